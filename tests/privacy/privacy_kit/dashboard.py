"""Flower as the product opens it, but with its database on. `python -m privacy_kit.dashboard FILE`; prints its port."""

from __future__ import annotations

import signal
import sys

from flower.app import Flower
from flower.urls import settings as flower_settings

from remand_workers import logs
from remand_workers.app import create_app
from remand_workers.flower import configure
from remand_workers.settings import Settings


def main() -> None:
    """Serve until SIGTERM."""
    settings = Settings()
    logs.configure(settings)
    options = configure(settings)
    options.persistent, options.db = True, sys.argv[1]
    made = Flower(capp=create_app(settings, works=False), options=options, **flower_settings)
    sys.stdout.write(f"{made.start_http_server()}\n")
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        made.start()
    finally:
        made.stop()


if __name__ == "__main__":
    main()

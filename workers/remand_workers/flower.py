"""Flower on the same settings as the workers: its pages show tasks in people's words, and nobody's data.

What Flower knows are the events that workers send, and those carry tokens and the words made of them (pipeline, item,
stage, attempt). It is opened for reading: runs are cancelled and resumed by `remand`, not by revoking messages. It
refuses to listen beyond this machine without a password. `/metrics` and `/healthcheck` stay open even then: that is
Flower's way, and a proxy's job to close.
"""

from __future__ import annotations

import errno
import ipaddress
import signal
import sys
from collections.abc import Callable
from typing import Any

from celery import Celery
from flower.app import Flower
from flower.urls import settings as flower_settings
from tornado.options import OptionParser, options

from remand.errors import RemandError
from remand_tasks.celery_tasks import NAMES

from . import logs
from .app import create_app
from .settings import Settings, SettingsError, variable

MOST_TASKS = 20_000
"""Tasks that Flower keeps in memory."""

_COLUMNS = "name,state,received,started,runtime,worker,uuid"
_STEPS = {name: step for step, name in NAMES.items()}


class FlowerError(RemandError):
    """Flower cannot be opened. The text says why and what to do."""


def format_task(task: Any) -> Any:
    """A task as pages show it: pipeline, item, stage and attempt under the name, no token.

    `task` is Flower's copy. Pages alone show it so; the API gives Celery's own names.
    """
    step = _STEPS.get(task.name)
    words = str(task.args or "").strip("'\"")
    if step is not None and words:
        task.name = f"{step} · {words}"
    return task


def configure(settings: Settings) -> OptionParser:
    """Set Flower's options. Raises `SettingsError` where it would be open to others without a password."""
    auth = None if settings.flower_auth is None else settings.flower_auth.get_secret_value()
    if auth is None and not _loopback(settings.flower_address):
        raise SettingsError(
            (
                variable("flower_auth"),
                f"must be set to user:password, because others can reach {settings.flower_address!r}; "
                f"or set {variable('flower_address')} to 127.0.0.1",
            )
        )
    options.address = settings.flower_address
    options.port = settings.flower_port
    options.basic_auth = [auth] if auth else []
    options.format_task = format_task
    options.tasks_columns = _COLUMNS
    options.max_tasks = MOST_TASKS
    options.persistent = False
    options.read_only = True
    options.natural_time = False
    return options


def open_flower(app: Celery, settings: Settings) -> tuple[Flower, int]:
    """Flower, listening, and its port. Raises `FlowerError`, `SettingsError`."""
    made = Flower(capp=app, options=configure(settings), **flower_settings)
    try:
        return made, made.start_http_server()
    except OSError as error:
        why = {
            errno.EADDRINUSE: f"port {settings.flower_port} is taken by another program",
            errno.EACCES: f"port {settings.flower_port} may not be used by you",
            errno.EADDRNOTAVAIL: f"this machine has no address {settings.flower_address!r}",
        }.get(error.errno or 0, f"it cannot listen ({type(error).__name__})")
        raise FlowerError(
            f"Flower cannot be opened: {why}. Set {variable('flower_port')} or {variable('flower_address')} to "
            "something else; port 0 takes a free one"
        ) from None


def run_flower(settings: Settings, tell: Callable[[str], None]) -> int:
    """Serve Flower until SIGINT or SIGTERM; `tell` is told its address. The exit status."""
    # It needs the broker alone: neither the vault's keys nor the ledger should be where a web page is served.
    if settings.broker_url is None:
        raise SettingsError(
            (variable("broker_url"), "is not set: name the broker whose workers are to be seen")
        )
    logs.configure(settings)
    flower, port = open_flower(create_app(settings, works=False), settings)
    host = settings.flower_address or "127.0.0.1"
    tell(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def end(_signal: int, _frame: object) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    try:
        flower.start()
    except KeyboardInterrupt:
        return 130
    finally:
        flower.stop()
    return 0


def _loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False

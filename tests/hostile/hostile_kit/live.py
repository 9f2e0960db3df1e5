"""Real services and one real worker process, whose memory and log can be looked at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import redis

from remand import Outcome
from remand_workers.app import create_app
from remand_workers.client import Client
from remand_workers.embedded import Embedded
from remand_workers.settings import Settings

from .pipeline import pipeline

FOLDER = Path(__file__).resolve().parent.parent
PATIENCE = 60.0
PACE = {
    "REMAND_PULSE_INTERVAL": "0.1",
    "REMAND_CLAIM_LEASE": "6",
    "REMAND_CLAIM_RENEWAL": "1.5",
    "REMAND_DISPATCH_LEASE": "1",
    "REMAND_CONCURRENCY": "4",
    "REMAND_LOG_LEVEL": "DEBUG",
}
_PROGRAM = """
from remand_workers.process import run_worker
from remand_workers.settings import Settings

raise SystemExit(run_worker(Settings()))
"""


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition` holds."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, f"{what} within {PATIENCE:g} s"
        time.sleep(0.02)


class Live:
    """Services, a worker and a client. Used as a context manager."""

    def __init__(self, home: Path, variables: Mapping[str, str]) -> None:
        self._home = home
        self._variables = dict(variables)
        self._embedded = Embedded(Settings(_env_file=None, home=home / "services"))
        self.process: subprocess.Popen[bytes]
        self.client: Client
        self.broker: redis.Redis
        self.app: Any

    def __enter__(self) -> Live:
        self._home.mkdir(parents=True, exist_ok=True)
        self._embedded.start()
        settings = self._embedded.settings
        assert settings.broker_url is not None
        self.settings = settings
        self.client = Client(settings)
        self.app = create_app(settings)
        path = settings.broker_url.removeprefix("redis+socket://")
        self.broker = redis.Redis.from_url(f"unix://{path}?db=0")
        self.start()
        return self

    def environment(self) -> dict[str, str]:
        """What a worker or a command of this place is given."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REMAND_")}
        path = os.pathsep.join(filter(None, [str(FOLDER), kept.get("PYTHONPATH", "")]))
        return {**kept, **self.settings.environment(), **PACE, **self._variables, "PYTHONPATH": path}

    def start(self) -> None:
        """Start the worker, and wait until it takes work."""
        with open(self._home / "worker.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                env=self.environment(),
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(lambda: "work is taken" in self.log() or self.process.poll() is not None, "a worker")
        assert self.process.poll() is None, self.log()[-2_000:]

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.client.close()
        self.app.close()
        self.broker.close()
        self._embedded.stop()

    def log(self) -> str:
        """What the worker has logged so far."""
        return (self._home / "worker.log").read_text("utf-8", "replace")

    def memory(self, peak: bool = True) -> int:
        """Bytes that the worker has resident, by default at the highest since `reset_peak`."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) * 1024

    def reset_peak(self) -> None:
        """Forget the peak of memory."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def run(self, inputs: Iterable[Any], *, seconds: float = PATIENCE) -> list[Outcome]:
        """Outcomes of a whole run."""
        run = self.client.submit(pipeline, inputs, reuse=False)
        run.wait(seconds)
        return list(run.results())

    def quiet(self) -> bool:
        """Whether no message is queued or held."""
        queues = ("remand.produce", "remand.validate", "remand.coordinate", "remand.alone", "unacked")
        return not any(self.broker.exists(name) for name in queues)

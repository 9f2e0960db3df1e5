"""A stack of real services for a test session: a Valkey, an SQLite ledger, worker processes, a client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from remand_workers.client import Client
from remand_workers.embedded import Embedded
from remand_workers.settings import Settings

FOLDER = Path(__file__).resolve().parent.parent

LEASES = {
    "REMAND_PULSE_INTERVAL": "0.1",
    "REMAND_CLAIM_LEASE": "6",
    "REMAND_CLAIM_RENEWAL": "1.5",
    "REMAND_DISPATCH_LEASE": "3",
    "REMAND_PLANNING_LEASE": "10",
    "REMAND_CONCURRENCY": "8",
    "REMAND_LOG_FORMAT": "json",
    "REMAND_LOG_LEVEL": "INFO",
    "REMAND_METRICS_PORT": "0",
}

PLAIN = """
from remand_workers.process import run_worker
from remand_workers.settings import Settings

raise SystemExit(run_worker(Settings()))
"""

# Whatever is published to the task queues is published twice: each message, chain links included.
DOUBLING = """
from kombu.messaging import Producer

once = Producer._publish

def twice(self, body, priority, content_type, content_encoding, headers, *rest, **more):
    if str((headers or {}).get("task", "")).startswith("remand."):
        once(self, body, priority, content_type, content_encoding, headers, *rest, **more)
    return once(self, body, priority, content_type, content_encoding, headers, *rest, **more)

Producer._publish = twice
"""


class Stack:
    """Services and `count` worker processes that run `program`. Used as a context manager."""

    def __init__(
        self,
        home: Path,
        *,
        count: int,
        program: str = PLAIN,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self._count = count
        self._program = program
        self._environment = {**LEASES, **(environment or {})}
        self._embedded = Embedded(Settings(home=home / "services"))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.client: Client

    def __enter__(self) -> Stack:
        self.home.mkdir(parents=True, exist_ok=True)
        self._embedded.start()
        settings = self._embedded.settings
        self.client = Client(settings)
        path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH", "")]))
        for number in range(self._count):
            environment = {
                **os.environ,
                **settings.environment(),
                **self._environment,
                "PYTHONPATH": path,
                "PYTHONHASHSEED": str(1 + number),
            }
            with open(self.home / f"worker-{number}.log", "wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", self._program],
                        env=environment,
                        cwd=self.home,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        self.client.close()
        self._embedded.stop()

    def lines(self) -> list[dict[str, Any]]:
        """What the workers have logged so far, one mapping a record; what is no JSON is under `text`."""
        found: list[dict[str, Any]] = []
        for path in sorted(self.home.glob("worker-*.log")):
            for line in path.read_text(errors="replace").splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    record = None
                found.append(record if isinstance(record, dict) else {"text": line})
        return found

    def counted(self, metric: str, pipeline: str, label: str) -> Counter[str]:
        """What the metric `metric` counts for a pipeline in all workers, by the value of `label`."""
        found: Counter[str] = Counter()
        for line in self.lines():
            said = str(line.get("event"))
            if said.startswith("metrics are served on port "):
                address = f"http://127.0.0.1:{said.rpartition(' ')[2]}/metrics"
                with urllib.request.urlopen(address, timeout=10) as answered:
                    text = answered.read().decode()
                for family in text_string_to_metric_families(text):
                    for sample in family.samples:
                        if sample.name == metric and sample.labels.get("pipeline") == pipeline:
                            found[sample.labels[label]] += int(sample.value)
        return found

"""Worker processes that are started again when they die, and what befell each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .services import until

TESTS = Path(__file__).resolve().parent.parent


class Zygote:
    """The process that starts workers. One serves many crews."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
        self.python_path = path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos_kit.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**_clean(os.environ), "PYTHONPATH": path, "REMAND_MODEL_BASE_URL": "http://127.0.0.1:9/v1"},
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        if not self._process.stdout.readline().startswith("zygote"):
            raise RuntimeError("the process that starts workers did not start")
        self._owners: dict[int, Worker] = {}
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="chaos-zygote", daemon=True)
        self._listener.start()

    def start(self, worker: Worker) -> None:
        """Start a process for `worker`, which is told when it has started and when it has ended."""
        assert self._process.stdin is not None
        with self._lock:
            self._owners[worker.number] = worker
            order = {"number": worker.number, "environment": worker.environment, "log": str(worker.log)}
            self._process.stdin.write(json.dumps({**order, "fresh": worker.fresh}) + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, *numbers = line.split()
            worker = self._owners[int(numbers[0])]
            if what == "started":
                worker.has_started(int(numbers[1]))
            elif what == "ended":
                worker.has_ended(int(numbers[1]), int(numbers[2]))

    def close(self) -> None:
        """Kill every worker and end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._listener.join(10)
        self._process.stdout.close()


_numbers = iter(range(1, 1_000_000_000))


@dataclass(slots=True)
class Worker:
    """One place in a crew, and the processes that filled it one after the other."""

    zygote: Zygote
    environment: dict[str, str]
    log: Path
    fresh: bool = False
    again: bool = True
    """Whether it is started again when it ends."""
    number: int = field(default_factory=lambda: next(_numbers))
    pid: int = 0
    alive: bool = False
    awaited: bool = False
    """Whether a process was asked for that has not started yet."""
    ended: list[tuple[int, int]] = field(default_factory=list)
    """Process ids and statuses; a negative status is the signal that ended it."""

    def begin(self) -> None:
        """Start a process."""
        self.awaited = True
        self.zygote.start(self)

    def has_started(self, pid: int) -> None:
        self.pid, self.alive, self.awaited = pid, True, False

    def has_ended(self, pid: int, status: int) -> None:
        self.ended.append((pid, status))
        if self.again:
            self.begin()
        self.alive = False

    def signal(self, number: int) -> None:
        """Send a signal to its process, if there is one."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def is_ready(self) -> bool:
        """Whether its present process takes messages."""
        return self.alive and f"ready {self.pid}\n" in self.log.read_text(errors="replace")


class Crew:
    """Workers on one stack for one scenario. Used as a context manager."""

    def __init__(self, zygote: Zygote, folder: Path, environment: Mapping[str, str]) -> None:
        self._zygote = zygote
        self._folder = folder
        self._environment = {**_clean(os.environ), "PYTHONPATH": zygote.python_path, **environment}
        self.workers: list[Worker] = []
        self.frozen: set[int] = set()
        """Processes that were stopped for longer than a claim lasts."""
        self._asleep: dict[str, float] = {}
        """Faults by the name of their file, and when each is over; infinity once it is."""
        self._done = threading.Event()
        self._faults = folder / "faults"
        self._faults.mkdir()
        self._continuer = threading.Thread(target=self._continue, name="chaos-continuer", daemon=True)

    def hire(
        self, count: int = 1, *, again: bool = True, fresh: bool = False, **variables: str
    ) -> list[Worker]:
        """Start workers, with more variables in their environment."""
        hired = []
        for _ in range(count):
            environment = {**self._environment, "REMAND_FAULTS_ONCE_DIR": str(self._faults), **variables}
            worker = Worker(self._zygote, environment, self._folder / "none", fresh=fresh, again=again)
            worker.environment["CHAOS_NUMBER"] = str(worker.number)
            worker.log = self._folder / f"worker-{worker.number}.log"
            worker.log.touch()
            self.workers.append(worker)
            worker.begin()
            hired.append(worker)
        return hired

    def await_ready(self) -> None:
        """Wait until every worker takes messages."""
        until(lambda: all(worker.is_ready() for worker in self.workers), "workers are ready")

    @property
    def faults(self) -> list[tuple[str, int, str]]:
        """Faults that happened: point, process, action."""
        found = []
        for path in sorted(self._faults.iterdir()):
            words = path.read_text().split()
            if len(words) == 2:
                found.append((path.name.rpartition(".")[0], int(words[0]), words[1]))
        return found

    @property
    def died(self) -> set[int]:
        """Processes that ended without being told to, were frozen, or broke in the middle of a step."""
        ended = {pid for worker in self.workers for pid, status in worker.ended if status != 0}
        broke = {pid for _, pid, action in self.faults if action == "raise"}
        return ended | broke | self.frozen

    def says(self, text: str) -> bool:
        """Whether a log holds the text."""
        return any(text in worker.log.read_text(errors="replace") for worker in self.workers)

    def all_awake(self) -> bool:
        """Whether every process that a fault put to sleep was woken again."""
        return all(ends == float("inf") for ends in list(self._asleep.values()))

    def _continue(self) -> None:
        """Wake processes that a fault put to sleep, when their time is over."""
        asleep = self._asleep
        while not self._done.wait(0.02):
            for path in self._faults.iterdir():
                if path.name in asleep:
                    continue
                words = path.read_text().split()
                if len(words) == 2 and words[1].startswith("stop:"):
                    seconds = float(words[1].partition(":")[2])
                    asleep[path.name] = time.monotonic() + seconds
                    if seconds >= float(self._environment["REMAND_CLAIM_LEASE"]):
                        self.frozen.add(int(words[0]))
                elif len(words) == 2:
                    asleep[path.name] = float("inf")
            for name, ends in asleep.items():
                if ends <= time.monotonic():
                    asleep[name] = float("inf")
                    with suppress(ProcessLookupError):
                        os.kill(int((self._faults / name).read_text().split()[0]), signal.SIGCONT)

    def __enter__(self) -> Crew:
        self._continuer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()
        self._done.set()
        self._continuer.join(10)

    def dismiss(self, sign: int = signal.SIGKILL) -> None:
        """End every worker for good."""
        for worker in self.workers:
            worker.again = False
        told: set[int] = set()

        def over() -> bool:
            for worker in self.workers:
                if worker.alive and worker.pid not in told:
                    told.add(worker.pid)
                    worker.signal(sign)
            return not any(worker.alive or worker.awaited for worker in self.workers)

        until(over, "workers have ended")


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(("REMAND_", "CHAOS_"))}

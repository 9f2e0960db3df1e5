"""`python -m bench [ITEMS]`: items a second, CPU of an item and memory of a worker, against a chain written by hand.

Both do the same work with the same worker processes, threads, broker and scripted model, one after the other.
Ratios travel from machine to machine; the absolute figures do not.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from remand_workers import Client, Settings
from remand_workers.embedded import Embedded

ROOT = Path(__file__).resolve().parents[1]
TICK = os.sysconf("SC_CLK_TCK")
THREADS, WORKERS = 16, 2
REPLY = '{"name": "x", "year": 2001}'


@dataclass(frozen=True)
class Measured:
    """What a run of so many items took."""

    items: int
    seconds: float
    cpu_seconds: float
    memory: dict[int, int]
    """Resident KiB of the largest worker, by items done."""

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of processor for an item, in workers and in the sending process."""
        return 1_000 * self.cpu_seconds / self.items


def cpu(pid: int) -> float:
    """Seconds of processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def resident(pid: int) -> int:
    """KiB of memory that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


@contextmanager
def processes(
    commands: list[list[str]], environment: dict[str, str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Worker processes, ended at the end."""
    started = [
        subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for command in commands
    ]
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)


def watch(
    items: int, done: Callable[[], int], send: Callable[[], None], workers: list[subprocess.Popen[bytes]]
) -> Measured:
    """Send, wait until all is done, and measure from the first send."""
    before = sum(cpu(worker.pid) for worker in workers) + time.process_time()
    marks = {mark: 0 for mark in (1_000, items) if mark <= items}
    began = time.monotonic()
    send()
    while (now := done()) < items:
        for mark in marks:
            if now >= mark and not marks[mark]:
                marks[mark] = max(resident(worker.pid) for worker in workers)
        if time.monotonic() - began > 1_800:
            raise SystemExit(f"only {now} of {items} items were done in half an hour")
        time.sleep(0.5)
    seconds = time.monotonic() - began
    used = sum(cpu(worker.pid) for worker in workers) + time.process_time() - before
    marks[items] = max(resident(worker.pid) for worker in workers)
    return Measured(items, seconds, used, marks)


def remand(items: int, settings: Settings, environment: dict[str, str]) -> Measured:
    """The pipeline on Remand's workers."""
    command = [sys.executable, "-m", "remand_workers.cli", "worker", "--concurrency", str(THREADS)]
    with processes([command] * WORKERS, environment) as workers, Client(settings) as client:
        warm = client.submit("bench.pipeline:pipeline", [{"text": str(n)} for n in range(50)], reuse=False)
        warm.wait(120)
        run = client.begin("bench.pipeline:pipeline", reuse=False)

        def send() -> None:
            client.feed(run, ((n, {"text": f"item {n}"}) for n in range(items)))
            client.submissions.input_done(run.id)

        measured = watch(items, lambda: run.status().closed, send, workers)
        if str(run.wait(60)) != "succeeded":
            raise SystemExit(f"the run ended {run.status().run.status}")
        return measured


def by_hand(items: int, environment: dict[str, str]) -> Measured:
    """The same work as a bare chain."""
    database = environment["BENCH_DATABASE"]
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS records (body TEXT)")
    os.environ.update({name: environment[name] for name in ("BENCH_BROKER", "BENCH_DATABASE")})
    command = [sys.executable, "-m", "celery", "-A", "bench.byhand:app", "worker", "--pool", "threads"]
    command += ["--concurrency", str(THREADS), "--without-gossip", "--without-mingle", "--loglevel", "ERROR"]
    commands = [[*command, "-n", f"hand{n}@bench"] for n in range(WORKERS)]
    from . import byhand

    def done() -> int:
        with sqlite3.connect(database) as connection:
            return int(connection.execute("SELECT count(*) FROM records").fetchone()[0])

    with processes(commands, environment) as workers:
        for number in range(50):
            byhand.send(number)
        while done() < 50:
            time.sleep(0.1)

        def send() -> None:
            for number in range(items):
                byhand.send(number)

        measured = watch(items + 50, done, send, workers)
    return Measured(items, measured.seconds, measured.cpu_seconds, measured.memory)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("items", nargs="?", type=int, default=10_000)
    items = parser.parse_args().items
    with tempfile.TemporaryDirectory() as folder, Embedded(Settings(home=Path(folder, "home"))) as services:
        server = subprocess.Popen(
            [sys.executable, "-m", "remand.testing", "--reply", REPLY], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            os.environ.update(REMAND_MODEL="scripted", REMAND_MODEL_BASE_URL=url)
            assert services.settings.broker_url is not None
            environment = {
                **os.environ,
                **services.settings.environment(),
                "REMAND_LOG_LEVEL": "WARNING",
                "BENCH_BROKER": services.settings.broker_url + "?virtual_host=5",
                "BENCH_DATABASE": str(Path(folder, "byhand.db")),
            }
            hand = by_hand(items, environment)
            ours = remand(items, services.settings, environment)
        finally:
            server.terminate()
            server.wait()
    print(f"{items:,} items, one model call and two validators each; {WORKERS} workers of {THREADS} threads")
    print(f"{'':24} {'items/s':>9} {'CPU-ms/item':>12}  worker memory")
    for name, measured in (("chain written by hand", hand), ("remand", ours)):
        memory = ", ".join(
            f"{size / 1024:.0f} MB at {mark:,}" for mark, size in sorted(measured.memory.items())
        )
        print(f"{name:24} {measured.rate:9.1f} {measured.cpu_ms:12.2f}  {memory}")
    print(f"{'ratio':24} {ours.rate / hand.rate:9.2f} {ours.cpu_ms / hand.cpu_ms:12.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

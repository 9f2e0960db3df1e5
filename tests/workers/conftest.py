"""What tests of commands share: a folder with a pipeline whose inputs say what happens, and commands run there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PIPELINE = '''
"""Inputs say what happens: {"do": "correct"} is sent back once, {"do": "slow", "seconds": 1} takes its time."""

import os
import signal
import time
from pathlib import Path

from remand import (
    SINGLE_RESPONSE_V1, ModelResponse, Pipeline, Policy, Produced, Stage, accept, producer, reject, validator,
)

SECRET = "MARKER-7f3a"


@producer(version="1", correction=SINGLE_RESPONSE_V1)
def make(context, correction):
    do = context.input["do"]
    if do == "slow":
        Path("began").touch()
        time.sleep(context.input["seconds"])
    if do == "die" and not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "raise":
        raise RuntimeError(SECRET + " in an exception")
    value = {"attempt": context.attempt, "do": do, "note": SECRET + " in a value"}
    return Produced(value, response=ModelResponse(SECRET + " in a response"))


@validator(version="1", execution_retries=0)
def judged(value, context):
    if value["do"] == "undetermined":
        raise ValueError(SECRET + " in a judge's exception")
    return accept()


@validator(version="1", queue="own.queue")
def right(value, context):
    if value["do"] == "reject" or (value["do"] == "correct" and value["attempt"] == 1):
        return reject(SECRET + " in a finding", path="attempt", code="wrong")
    return accept()


stages = [Stage("make", make, [judged, right], retries=1, backoff=0)]
pipeline = Pipeline(
    "shop", version="1", stages=stages,
    policy=Policy(semantic_rejection="quarantine", operational_failure="warn_continue"),
)
strict = Pipeline("strict", version="1", stages=stages)
'''


@dataclass(slots=True)
class Shop:
    """A folder with `shop.py` in it, and commands run there as processes of their own."""

    folder: Path
    environment: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def inputs(self, *lines: str, name: str = "in.jsonl") -> Path:
        """Write an input file."""
        path = self.folder / name
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command with pipes for all three."""
        process = subprocess.Popen(
            [sys.executable, "-m", "remand_workers.cli", *arguments],
            cwd=self.folder,
            env={**self.environment, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.started.append(process)
        return process

    def remand(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*arguments, **variables)
        out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def workers(self) -> list[int]:
        """Worker processes that were started in this folder and live."""
        return [pid for pid in _processes(self.folder) if b"\0worker\0" in _read(f"/proc/{pid}/cmdline")]

    def log(self) -> str:
        """The logs of this folder's workers."""
        return "".join(
            path.read_text("utf-8") for path in sorted((self.folder / ".remand").glob("worker-*.log"))
        )


def _processes(folder: Path) -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.readlink(f"/proc/{entry}/cwd") == str(folder):
                    yield int(entry)
            except OSError:
                continue


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def until(condition: Callable[[], object], *, what: str, seconds: float = 60) -> None:
    """Wait until `condition` holds."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"{what} within {seconds:g} s"
        time.sleep(0.02)


def make_shop(folder: Path) -> Shop:
    """A shop in `folder`, its environment without our variables and without colours or a terminal's width."""
    (folder / "shop.py").write_text(PIPELINE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REMAND_", "FLOWER_"))}
    return Shop(
        folder.resolve(),
        {**kept, "REMAND_WORKERS": "1", "REMAND_CONCURRENCY": "4", "REMAND_PULSE_INTERVAL": "0.2"},
    )


def close_shop(shop: Shop) -> None:
    """End whatever still runs."""
    for process in shop.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # What was to be written is of no interest any more.
                    pipe.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = make_shop(tmp_path)
    yield made
    close_shop(made)


@pytest.fixture(scope="module")
def new_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Shop]]:
    """Makes shops that last as long as the module's tests."""
    made: list[Shop] = []

    def make(name: str) -> Shop:
        made.append(make_shop(tmp_path_factory.mktemp(name)))
        return made[-1]

    yield make
    for each in made:
        close_shop(each)


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., None]:
    return until


@pytest.fixture(scope="module")
def ended(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Shop, subprocess.CompletedProcess[str]]]:
    """A run in which everything happened that can happen without failing it, and what its command said."""
    shop = make_shop(tmp_path_factory.mktemp("ended"))
    shop.inputs(
        '{"id": "a", "do": "good"}',
        '{"id": "b", "do": "correct"}',
        "MARKER-7f3a, and no JSON",
        "",
        '{"id": "c", "do": "reject"}',
        '{"id": "d", "do": "undetermined"}',
        '{"id": "e", "do": "raise"}',
        '{"no": "id"}',
    )
    done = shop.remand(
        "run", "shop:pipeline", "--input", "in.jsonl", "--output", "out.jsonl", "--key", "id", "--run-id", "all",
        "--json",
    )  # fmt: skip
    yield shop, done
    close_shop(shop)

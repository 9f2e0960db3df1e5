"""`remand` commands as processes that are forked from one that has imported everything: a tenth of the time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["intake_kit", "remand_workers.cli.taking_in"])


def _be(arguments: Sequence[str], folder: str, environment: Mapping[str, str], out: str, err: str) -> None:
    """In the child: the command's own environment and streams, nothing of the parent's."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, path in ((0, None), (1, out), (2, err)):
        os.dup2(
            nothing if path is None else os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), descriptor
        )
    # As an interpreter has it: multiprocessing's children ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from remand_tasks import faults
    from remand_workers.cli import main

    faults.arm(os.environ)
    status = 70
    try:
        status = main(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class Command:
    """A command that runs, or has run."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], name: str
    ) -> None:
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        for path in (self._out, self._err):
            path.touch()
        self._process: Any = _FORKS.Process(
            target=_be, args=(list(arguments), str(folder), dict(environment), str(self._out), str(self._err))
        )
        self._process.start()

    @property
    def stdout(self) -> str:
        """What it has written to standard output so far."""
        return self._out.read_text("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """What it has said so far."""
        return self._err.read_text("utf-8", "replace")

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self._process.pid, number)

    def wait(self, seconds: float = 90) -> int:
        """Wait for its end. Its exit status, negative for a signal."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, (
            f"it has not ended within {seconds:g} s: {self.stderr[-2_000:]}"
        )
        return int(self._process.exitcode)

    def end(self) -> None:
        """Kill it, if it still runs."""
        self._process.kill()
        self._process.join(30)
        self._process.close()

"""Worker processes of one command: started, watched, started again when they die, and gone when the command is.

A worker's standard input is a line to this process: it writes a byte when it is ready, and when the line closes it ends
at once, with all its children. On Linux the kernel ends it too, even a frozen one. Each writes its log to
`worker-N.log` in the home folder; nothing in there is sensitive.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from remand.pipeline import Pipeline

from ..settings import Settings, variable
from .console import warn
from .failures import MISUSED, CommandError

METRICS_PORT = variable("metrics_port")
_LARGEST_LOG = 8 * 1024 * 1024
_SETTLED = 60.0
"""Seconds after which a worker's death no longer counts towards giving it up."""
_MOST_DEATHS = 20
_MOST_FALSE_STARTS = 3
_LONGEST_PAUSE = 8.0


@dataclass(slots=True)
class _Member:
    """One worker's place."""

    number: int
    log: Path
    process: subprocess.Popen[bytes] | None = None
    line: socket.socket | None = None
    ready: bool = False
    started: float = 0.0
    deaths: int = 0
    false_starts: int = 0
    again_at: float = 0.0
    given_up: bool = False


class Crew:
    """`count` worker processes that run `arguments` with `environment`. Call every method from one thread.

    (On Linux a child is told of the end of the thread that started it.)
    """

    def __init__(
        self,
        count: int,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        logs: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self._tell = tell
        self._members = [_Member(number, logs / f"worker-{number}.log") for number in range(1, count + 1)]

    def __len__(self) -> int:
        return len(self._members)

    @property
    def ready(self) -> int:
        """How many workers take work."""
        return sum(member.ready for member in self._members)

    def start(self) -> None:
        """Start them all."""
        for member in self._members:
            self._start(member)

    def look(self) -> None:
        """See who died, and start them again. Raises `CommandError` when none is left to do the work."""
        for member in self._members:
            self._listen(member)
            process = member.process
            if process is not None and process.poll() is not None:
                self._died(member, process)
            if member.process is None and not member.given_up and time.monotonic() >= member.again_at:
                self._start(member)
        if self._members and all(member.given_up for member in self._members):
            logs = str(self._members[0].log)
            raise CommandError(f"no worker stays alive; the last lines of {logs!r} say why")

    def stop(self, patience: float) -> None:
        """Let them finish what they hold, for at most `patience` seconds; then end them."""
        running = [member.process for member in self._members if member.process is not None]
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + patience
        for process in running:
            try:
                process.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                self._tell("a worker did not finish in time and is ended")
                break
        self.kill()

    def kill(self) -> None:
        """End them at once, with all their children."""
        for member in self._members:
            if member.process is not None:
                if member.process.poll() is None:
                    _kill_group(member.process.pid)
                member.process.wait()
                member.process = None
            if member.line is not None:
                member.line.close()
                member.line = None
            member.ready = False

    def _start(self, member: _Member) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs, _log(member.log) as log:
            member.process = subprocess.Popen(  # noqa: S603
                [
                    sys.executable, "-m", "remand_workers.cli", "worker", "--lifeline",
                    "--name", f"remand-{os.getpid()}-{member.number}", *self._arguments,
                ],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env=self._environment_of(member),
                start_new_session=True,  # Ctrl-C is for the command, which tells them gently.
            )  # fmt: skip
        member.line, member.ready, member.started = ours, False, time.monotonic()

    def _environment_of(self, member: _Member) -> dict[str, str]:
        """Its own metrics port: the first worker has the one that is set, the next ones those after it."""
        port = int(self._environment.get(METRICS_PORT) or 0)
        if not port:
            return self._environment
        return {**self._environment, METRICS_PORT: str(port + member.number - 1)}

    def _listen(self, member: _Member) -> None:
        if member.line is None or member.ready:
            return
        try:
            member.ready = bool(member.line.recv(16))
        except (BlockingIOError, ConnectionError):
            member.ready = False

    def _died(self, member: _Member, process: subprocess.Popen[bytes]) -> None:
        # What it left behind (the children of a prefork pool) goes with it.
        _kill_group(process.pid)
        if member.line is not None:
            member.line.close()
        now = time.monotonic()
        if now - member.started > _SETTLED:
            member.deaths = member.false_starts = 0
        member.deaths += 1
        member.false_starts = 0 if member.ready else member.false_starts + 1
        how = _how(process.returncode)
        member.process, member.line, member.ready = None, None, False
        member.given_up = (
            process.returncode == MISUSED
            or member.deaths >= _MOST_DEATHS
            or member.false_starts >= _MOST_FALSE_STARTS
        )
        if member.given_up:
            self._tell(
                f"worker {member.number} ended ({how}) and is not started again; see {str(member.log)!r}"
            )
        else:
            pause = min(0.25 * 2 ** (member.deaths - 1), _LONGEST_PAUSE)
            member.again_at = now + pause
            self._tell(f"worker {member.number} ended ({how}); it is started again")


def crew_of(settings: Settings, pipelines: Sequence[str], *, attend: str | None = None) -> Crew:
    """As many workers as the settings say, for these pipelines; their pulses look after `attend` alone."""
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    arguments = [word for target in pipelines for word in ("--pipeline", target)]
    if attend is not None:
        arguments += ["--attend", attend]
    return Crew(
        settings.workers,
        arguments,
        environment={**os.environ, **settings.environment()},
        logs=settings.home.absolute(),
        tell=warn,
    )


def patience(pipeline: Pipeline, settings: Settings) -> float:
    """Seconds in which whatever a worker may hold is over."""
    longest = max(
        max(stage.producer.deadline, sum(validator.timeout for validator in stage.validators))
        for stage in pipeline.stages
    )
    return longest + settings.claim_grace.total_seconds()


def _how(returncode: int) -> str:
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def _kill_group(pid: int) -> None:
    """End a process that leads its own session, and everything in it. It may be gone already."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _log(path: Path) -> BinaryIO:
    too_large = path.exists() and path.stat().st_size > _LARGEST_LOG
    return open(path, "wb" if too_large else "ab")


def hold_lifeline() -> Callable[[], None]:
    """In a worker: end at once when the process at the other end of standard input is gone.

    Gives a function that tells that process that work is taken.
    """
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: also reaches a process that is stopped or stuck.
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    line = socket.socket(fileno=os.dup(0))
    line.setblocking(True)

    def watch() -> None:
        while True:
            try:
                heard = line.recv(16)
            except OSError:
                heard = b""
            if not heard:
                _kill_group(os.getpgrp())

    threading.Thread(target=watch, name="remand-lifeline", daemon=True).start()

    def tell() -> None:
        with suppress(OSError):  # Nobody hears it: the thread above is about to end this process.
            line.send(b"+")

    return tell

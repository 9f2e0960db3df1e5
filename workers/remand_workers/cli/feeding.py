"""Feeding a run from JSON lines, as a stream: a file or standard input, in a thread of its own.

A line that cannot be taken is reported by its number and counted, and the others go on. A line is never quoted. An
input's default key is the number of its line among those that are not blank, bad ones included, so that the same file
means the same items when it is given again.
"""

from __future__ import annotations

import json
import os
import select
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from remand.errors import RemandError
from remand.keys import BadKey
from remand_tasks.state.submissions import NewItem, RunError

from ..client import BadInput, Client, Run, new_item
from .failures import UsageError

BATCH = 500
LONGEST_LINE = 16 * 1024 * 1024
"""Bytes. A longer line is left out: what it takes to hold would take the process with it."""
_BLOCK = 1 << 16
_PAUSE = 0.2
_STILL_HERE = 10.0
"""Seconds after which a feeder that waits for input says that it is alive: well within its lease."""
_TOLD = 20
"""Bad lines that are reported one by one; the rest is only counted."""


class Line(NamedTuple):
    """A line that is not blank: its number in the input, from 1, its position among such lines, from 0, its bytes."""

    number: int
    position: int
    text: bytes


class Lines:
    """The lines of a file, or of standard input where the name is `-`, that are not blank."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stdin = name == "-"
        if self.stdin:
            self._file = os.dup(0)
        else:
            path = Path(name)
            if not path.exists():
                raise UsageError(f"there is no input file {name!r}")
            if path.is_dir():
                raise UsageError(f"the input {name!r} is a folder; name a file of JSON lines")
            try:
                self._file = os.open(path, os.O_RDONLY)
            except PermissionError:
                raise UsageError(f"the input file {name!r} may not be read; check its rights") from None
        self._parts: list[bytes] = []
        self._size = 0
        self._ended = False
        self._number = self._position = 0
        self._waiting: list[Line] = []

    def first(self) -> bool:
        """Wait for the first line that is not blank. False where the input ends without one."""
        while not self._waiting and not self._ended:
            self._waiting += self._read()
        return bool(self._waiting)

    def count(self) -> int | None:
        """How many lines the whole input has; `None` where it is no ordinary file."""
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            return None
        with open(self.name if not self.stdin else os.dup(self._file), "rb") as again:
            return sum(1 for line in again if line.strip())

    def batches(self, stopped: threading.Event) -> Iterator[list[Line]]:
        """The lines; a batch is given when it is full or nothing more comes just now: an empty one, too."""
        while not stopped.is_set():
            if len(self._waiting) >= BATCH or (self._waiting and (self._ended or not self._more())):
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                yield batch
            elif self._ended:
                return
            elif self._more():
                self._waiting += self._read()
            else:
                yield []

    @property
    def ended(self) -> bool:
        """Whether all of it was read and given out."""
        return self._ended and not self._waiting

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)

    def _more(self) -> bool:
        return bool(select.select([self._file], [], [], _PAUSE)[0])

    def _read(self) -> list[Line]:
        block = os.read(self._file, _BLOCK)
        self._ended = not block
        *ends, begun = block.split(b"\n")
        found = []
        for part in ends if block else [b""]:
            self._keep(part)
            line, self._parts, self._size = b"".join(self._parts), [], 0
            self._number += 1
            if self._number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                found.append(Line(self._number, self._position, line))
                self._position += 1
        self._keep(begun)
        return found

    def _keep(self, part: bytes) -> None:
        """Add to the line that is being read; of one that is too long no more is kept than shows that it is."""
        if part and self._size <= LONGEST_LINE:
            self._parts.append(part)
            self._size += len(part)


class Feeder(threading.Thread):
    """Reads lines into a run until they end, the run does, or it is stopped.

    `read` counts lines, `new` items that the run did not have, `bad` lines that could not be taken. `finished` says
    that everything was read; `error` is what ended it early, unless that was the run's own end.
    """

    def __init__(
        self, client: Client, run: Run, lines: Lines, key: str | None, tell: Callable[[str], None]
    ) -> None:
        super().__init__(name="remand-feeder", daemon=True)
        self._client, self._run, self._lines, self._key, self._tell = client, run, lines, key, tell
        self._stopped = threading.Event()
        self.read = self.new = self.bad = 0
        self.finished = False
        self.error: Exception | None = None

    def halt(self) -> None:
        """Stop after the batch at hand."""
        self._stopped.set()

    def stop(self) -> None:
        """Stop after the batch at hand, and wait for that."""
        self.halt()
        if self.is_alive():
            self.join(30.0)

    def run(self) -> None:
        """The thread's work."""
        try:
            fed = time.monotonic()
            for batch in self._lines.batches(self._stopped):
                items = [item for line in batch if (item := self._item(line)) is not None]
                if items or time.monotonic() - fed > _STILL_HERE:
                    self.new += self._client.submissions.feed(self._run.id, items, self._client.now())
                    fed = time.monotonic()
                self.read += len(batch)
            if self._lines.ended:
                self._client.submissions.input_done(self._run.id)
                self.finished = True
        except RunError:
            # The run has ended meanwhile, so there is nothing to feed; its status tells why.
            self.halt()
        except Exception as error:
            self.error = error
        finally:
            self._lines.close()

    def _item(self, line: Line) -> NewItem | None:
        try:
            return parse(line.text, line.position, self._key)
        except BadLine as error:
            self.bad += 1
            if self.bad <= _TOLD:
                self._tell(f"line {line.number} was left out: {error}")
            elif self.bad == _TOLD + 1:
                self._tell("more lines were left out; those are only counted")
        return None


class BadLine(RemandError):
    """A line that is no input. The text says what is wrong with it and quotes nothing of it."""


def parse(line: bytes, position: int, key: str | None) -> NewItem:
    """The item that a line means. Raises `BadLine`."""
    if len(line) > LONGEST_LINE:
        raise BadLine(f"it is longer than {LONGEST_LINE // 1024 // 1024} MiB")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine(f"it is not UTF-8 text (byte {error.start + 1})") from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadLine(f"it is not JSON (column {error.colno})") from None
    except (ValueError, RecursionError):
        raise BadLine("it holds a number or a nesting that is too long to read") from None
    try:
        return new_item(position, value, key)
    except BadKey as error:
        raise BadLine(str(error)) from None
    except BadInput as error:
        raise BadLine(error.problem) from None

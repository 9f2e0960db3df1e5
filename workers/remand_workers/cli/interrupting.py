"""Ctrl-C and its like: the first one asks for an orderly end, the second one ends everything at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted:
    """Set by the first SIGINT, SIGTERM or SIGHUP; the second raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __bool__(self) -> bool:
        return self.event.is_set()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals inside the block."""
        names = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` wants it ignored.
            names.append(signal.SIGHUP)
        before = {name: signal.signal(name, self._hear) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)

    def _hear(self, _signal: int, _frame: FrameType | None) -> None:
        if self.event.is_set():
            raise KeyboardInterrupt
        self.event.set()

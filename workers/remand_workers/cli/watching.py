"""A run's progress for people: live on a terminal, an occasional line elsewhere, a table at the end."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from remand_policy import Status
from remand_tasks.state.queries import Progress

from .console import coloured, err, plural, say, shown

_BETWEEN_LINES = 10.0


def counts(progress: Progress) -> list[tuple[str, int]]:
    """What is counted, under the names people see. Undetermined verdicts are no rejections and stand apart."""
    return [
        *((status.value, progress.end(status)) for status in Status),
        ("set aside", progress.quarantined),
        ("undetermined verdicts", progress.undetermined),
        ("corrections sent", progress.corrections),
        ("generations", progress.generations),
        ("tokens in", progress.usage.input_tokens),
        ("tokens out", progress.usage.output_tokens),
    ]


class View:
    """Shows progress until left. `quiet` shows nothing at all."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live: Live | None = None
        self._began = self._told = time.monotonic()
        self._closed_before: int | None = None
        self._last_line = ""

    def __enter__(self) -> Self:
        if not self._quiet and err().is_terminal:
            self._live = Live(console=err(), refresh_per_second=4, transient=True, redirect_stdout=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def elapsed(self) -> float:
        """Seconds since this command began to watch."""
        return time.monotonic() - self._began

    def rate(self, progress: Progress) -> float:
        """Items that this command saw closing, a second."""
        seen = progress.closed - (self._closed_before or 0)
        return seen / self.elapsed if self.elapsed > 0 else 0.0

    def show(self, progress: Progress, *, bad: int = 0, note: str = "") -> None:
        """Show where the run stands now."""
        if self._closed_before is None:
            self._closed_before = progress.closed
        if self._live is not None:
            self._live.update(self._picture(progress, bad, note))
        elif not self._quiet and time.monotonic() - self._told >= _BETWEEN_LINES:
            self._told = time.monotonic()
            line = _line(progress, bad)
            if line != self._last_line:
                say(f"{line}, {self.rate(progress):.1f} items/s, {clock(self.elapsed)}")
            self._last_line = line

    def _picture(self, progress: Progress, bad: int, note: str) -> Group:
        total = progress.total
        head = Text.assemble(
            (progress.run.pipeline, "bold"), "  ", progress.run.id, "  ", coloured(progress.run.status)
        )
        bar = Table.grid(padding=(0, 1))
        known = bool(progress.run.input_done)
        bar.add_row(
            ProgressBar(total=max(total, 1), completed=progress.closed, width=40),
            f"{progress.closed:,} of {total:,}{'' if known else ' so far'}",
            f"{self.rate(progress):.1f} items/s",
            clock(self.elapsed),
        )
        parts = Text()
        for name, number in [*counts(progress), ("lines left out", bad)]:
            if number or name == "accepted":
                parts.append("  " if parts else "")
                parts.append(f"{name} ")
                parts.append(f"{number:,}", style="bold")
        return Group(head, bar, parts, Text(note, style="dim")) if note else Group(head, bar, parts)


def summary(progress: Progress, *, bad: int, elapsed: float, rate: float) -> Table:
    """The table that a run ends with."""
    rows: list[tuple[object, object]] = [("run", progress.run.id), ("status", coloured(progress.run.status))]
    rows += [("items", progress.total), *counts(progress)]
    extra = [
        ("reused from checkpoints", progress.reused),
        ("accepted by fallback", progress.fallbacks),
        ("recovered after a loss", progress.recovered),
        ("lines left out", bad),
    ]
    rows += [(name, number) for name, number in extra if number]
    rows += [(f"reason: {reason}", number) for reason, number in sorted(progress.reasons.items())]
    rows += [("elapsed", clock(elapsed)), ("items/s", f"{rate:.1f}")]
    made = Table.grid(padding=(0, 2))
    made.add_column()
    made.add_column(justify="right")
    for name, value in rows:
        made.add_row(str(name), value if isinstance(value, Text) else shown(value))
    return made


def clock(seconds: float) -> str:
    """A span of time as h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _line(progress: Progress, bad: int) -> str:
    parts = [f"{number:,} {name}" for name, number in [*counts(progress), ("lines left out", bad)] if number]
    return (
        f"{progress.closed:,} of {plural(progress.total, 'item')}: {', '.join(parts) or 'none has ended yet'}"
    )

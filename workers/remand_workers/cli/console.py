"""Where output goes: data to standard output, everything said to people to standard error.

Colours and live displays appear on terminals only and follow `NO_COLOR`. Tables that are piped keep their natural
width. A reader that goes away (`remand results … | head`) ends the command quietly.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPED_WIDTH = 2_000


@cache
def err() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def out() -> Console:
    """Standard output."""
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(file=sys.stdout, highlight=False, width=width)


def say(text: str, style: str = "") -> None:
    """Tell people something."""
    err().print(Text(text, style=style))


def warn(text: str) -> None:
    """Tell people something that they should not miss."""
    err().print(Text.assemble(("warning: ", "bold yellow"), text))


def complain(text: str) -> None:
    """Tell people what went wrong."""
    err().print(Text.assemble(("error: ", "bold red"), text))


def write_json(value: Any) -> None:
    """One JSON value on standard output, on one line unless a person reads it."""
    indent = 2 if sys.stdout.isatty() else None
    write_line(json.dumps(value, ensure_ascii=False, indent=indent))


def write_line(text: str) -> None:
    """One line of data on standard output."""
    with reader():
        # Bytes, so that a locale that is not UTF-8 cannot break JSON.
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
        sys.stdout.buffer.flush()


def write_table(table: Table) -> None:
    """A table on standard output."""
    with reader():
        out().print(table)
        sys.stdout.flush()


class reader:
    """A block that writes to standard output; it ends the command with status 0 if nobody reads any more."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, BrokenPipeError):
            abandon_stdout()
            sys.exit(0)


def abandon_stdout() -> None:
    """Send what is left in standard output's buffer nowhere, so that the interpreter's end does not complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    """A plain table; columns whose name begins with `#` hold numbers."""
    made = Table(
        title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", title_style="bold"
    )
    for name in columns:
        made.add_column(
            name.lstrip("#"), justify="right" if name.startswith("#") else "left", overflow="fold"
        )
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(shown(cell)) for cell in row))
    return made


def shown(value: object) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def plural(number: int, word: str, words: str | None = None) -> str:
    """A number and its noun: `1 item`, `2,000 items`; `words` is the plural of one that takes no `s`."""
    return f"{number:,} {word if number == 1 else words or word + 's'}"


STYLES = {
    "accepted": "green",
    "succeeded": "green",
    "ok": "green",
    "incomplete": "yellow",
    "degraded": "yellow",
    "undetermined": "yellow",
    "warn": "yellow",
    "rejected": "magenta",
    "failed": "red",
    "fail": "red",
    "failing": "red",
    "cancelled": "dim",
    "cancelling": "dim",
    "running": "cyan",
}


def coloured(word: str | None) -> Text:
    """A status in its colour."""
    return Text(word or "-", style=STYLES.get(word or "", ""))

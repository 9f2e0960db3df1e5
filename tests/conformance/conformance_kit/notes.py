"""Counts calls across processes: each call appends one line to a file named after item and caller."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from remand import Context


def note(context: Context, caller: str, **seen: Any) -> int:
    """Write down one call of `caller` for this item. How many it were with this one."""
    folder = Path(context.input["notes"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{context.item}.{context.stage}.{caller}"
    line = json.dumps({"attempt": context.attempt, "pid": os.getpid(), **seen}, default=str) + "\n"
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    return len(path.read_text().splitlines())


def notes(folder: Path, caller: str, *, item: int = 0, stage: str = "s") -> list[dict[str, Any]]:
    """What was written down, in order."""
    path = folder / f"{item}.{stage}.{caller}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

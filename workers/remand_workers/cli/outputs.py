"""Outputs as JSON lines, in input order, each written as soon as it and all before it are final.

A file is written beside its target under the same name with `.partial` and takes the target's name at the end, so that
whoever reads the target never sees half a run. What is no ordinary file (a pipe, `/dev/stdout`) is written directly.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import BinaryIO

from remand.outcome import Outcome
from remand_tasks.state.queries import Queries

from .failures import CommandError, UsageError


def line_of(outcome: Outcome) -> str:
    """One outcome as a JSON line."""
    return json.dumps(
        {
            "key": outcome.key,
            "item": outcome.item,
            "status": outcome.status.value,
            "value": outcome.value,
            "validation": str(outcome.validation),
            "reason": outcome.reason,
            "disposition": outcome.disposition,
            "code": outcome.code,
            "attempts": outcome.attempts,
            "generations": outcome.generations,
            "fallback": outcome.fallback,
            "reused": outcome.reused,
            "diagnostics": list(outcome.diagnostics),
            "verdicts": [
                {
                    "validator": verdict.validator,
                    "verdict": verdict.verdict.value,
                    "tries": verdict.tries,
                    "error_type": verdict.error_type,
                    "error_at": verdict.error_at,
                }
                for verdict in outcome.verdicts
            ],
        },
        ensure_ascii=False,
    )


class Output:
    """Where a run's outputs go: a file, standard output (`-`), or nowhere (`None`)."""

    def __init__(self, target: str | None, *, source: str | None = None) -> None:
        self.written = 0
        self._last = -1
        self._target: Path | None = None
        self._partial: Path | None = None
        self._file: BinaryIO | None = None
        if target == "-":
            self._file = sys.stdout.buffer
        elif target is not None:
            path = Path(os.path.realpath(target))
            if path.is_dir():
                raise UsageError(f"the output {target!r} is a folder; name a file")
            if source not in (None, "-") and path == Path(os.path.realpath(str(source))):
                raise UsageError("input and output are the same file; name another output")
            if not path.parent.is_dir():
                raise UsageError(f"there is no folder {str(path.parent)!r} for the output")
            if path.exists() and not path.is_file():
                self._file = path.open("wb")
            else:
                self._target, self._partial = path, path.with_name(path.name + ".partial")
                try:
                    self._file = self._partial.open("wb")
                except PermissionError:
                    raise UsageError(
                        f"the output {str(self._partial)!r} may not be written; check the folder's rights"
                    ) from None

    @property
    def stdout(self) -> bool:
        """Whether outputs go to standard output."""
        return self._file is sys.stdout.buffer

    def advance(self, queries: Queries, run_id: str, stages: int) -> int:
        """Write what has become final since the last call. How many lines that were.

        Raises `CommandError` where nobody reads standard output any more.
        """
        if self._file is None:
            return 0
        before = self.written
        try:
            for outcome in queries.outcomes(run_id, stages, after=self._last):
                self._file.write(line_of(outcome).encode("utf-8", "backslashreplace") + b"\n")
                self._last = outcome.item
                self.written += 1
            if self.written > before:
                self._file.flush()
        except BrokenPipeError:
            from .console import abandon_stdout

            abandon_stdout()
            self._file = None
            raise CommandError("nobody reads the output any more, so the run was stopped") from None
        return self.written - before

    def finish(self) -> str | None:
        """Give the file its name. Where the outputs are, for people."""
        if self._file is None or self.stdout:
            return None
        self._file.flush()
        if self._target is None or self._partial is None:
            self._file.close()
            return None
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        self._partial.replace(self._target)
        return str(self._target)

    def leave(self) -> str | None:
        """Keep what there is under its `.partial` name. Where that is, for people; an empty one is removed."""
        if self._file is None or self._partial is None:
            return None
        self._file.close()
        self._file = None
        if not self.written:
            self._partial.unlink(missing_ok=True)
            return None
        return str(self._partial)

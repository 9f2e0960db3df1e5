"""The command line, `remand`. Every command is a thin shell around what code can call as well.

Data goes to standard output, messages and progress to standard error. Exit status: 0 succeeded, 3 degraded, 1 failed,
2 bad usage or a pipeline that was refused, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line, by default this process's own. The exit status."""
    from .failures import guarded
    from .program import program

    return guarded(lambda: program()(args=None if arguments is None else list(arguments), prog_name="remand"))

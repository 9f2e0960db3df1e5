"""An input's own key: where it is found in a record, and what may serve as one."""

from __future__ import annotations

from typing import Any

from .errors import RemandError

MAX_KEY = 200


class BadKey(RemandError):
    """An input has no usable key. `problem` says why, without quoting the input."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"key {self.path!r}: {self.problem}"


def is_key(text: str) -> bool:
    """Whether `text` may serve as a key: 1 to `MAX_KEY` printable characters."""
    return 0 < len(text) <= MAX_KEY and text.isprintable()


def key_of(record: Any, path: str | None, position: int) -> str:
    """The key of `record`: the value at the dotted `path`, or its `position` without one. Raises `BadKey`."""
    if path is None:
        return str(position)
    found = record
    for part in path.split("."):
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            raise BadKey(path, "the record has no such field")
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise BadKey(path, f"a key must be a string or a whole number, not {type(found).__name__}")
    key = str(found)
    if not is_key(key):
        raise BadKey(path, f"a key must have 1 to {MAX_KEY} printable characters")
    return key

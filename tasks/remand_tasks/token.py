"""The token: what a task message holds, and all it holds.

A token names one execution, `run/seq/stage/attempt/epoch`, and fences off every stale one. Anything that is not
exactly the text of a token is refused, and the refusal never repeats what was sent.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from remand.errors import RemandError

_LONGEST = 200
_LONGEST_NAME = 100
# Fifteen digits: Lua inside Redis compares epochs as doubles, which are exact up to 2**53.
_NUMBER = r"(0|[1-9][0-9]{0,14})"
_TOKEN = re.compile(rf"([A-Za-z0-9_-]{{1,64}})/{_NUMBER}/{_NUMBER}/{_NUMBER}/{_NUMBER}")
_RUN = re.compile(r"[A-Za-z0-9_-]{1,64}")


class BadToken(RemandError):
    """A text is no token. Drop the message: no later delivery of it can be right.

    `code` is `type`, `length` or `form`.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return f"not a token: wrong {self.code}"


class Token(NamedTuple):
    """One execution of one attempt. `epoch` belongs to the item and only ever rises."""

    run: str
    seq: int
    stage: int
    attempt: int
    epoch: int

    @classmethod
    def parse(cls, text: object) -> Token:
        """Read a token back from its text.

        :raises BadToken: for anything but the exact text that `str` of a token gives.
        """
        if not isinstance(text, str):
            raise BadToken("type")
        if len(text) > _LONGEST:
            raise BadToken("length")
        found = _TOKEN.fullmatch(text)
        if found is None:
            raise BadToken("form")
        run, seq, stage, attempt, epoch = found.groups()
        return cls(run, int(seq), int(stage), int(attempt), int(epoch))

    def __str__(self) -> str:
        return f"{self.run}/{self.seq}/{self.stage}/{self.attempt}/{self.epoch}"


def registry_of(text: object) -> str:
    """The name of a registry, which is all that a message about one holds.

    :raises BadToken: for anything that can name none.
    """
    if not isinstance(text, str):
        raise BadToken("type")
    if not 0 < len(text) <= _LONGEST_NAME:
        raise BadToken("length")
    if not text.isprintable() or not {" ", "/", "\\"}.isdisjoint(text):
        raise BadToken("form")
    return text


def is_run(name: str) -> bool:
    """Whether `name` may name a run. Such a name is safe in a Redis key and in a `SCAN` pattern."""
    return _RUN.fullmatch(name) is not None

"""Reads one typed value out of a model's reply, and says in fixed words what is wrong with a reply that has none.

Pure functions over text. Before a repair call is paid for, what models put around JSON is taken off: a byte order
mark, a leading `<think>` block, one code fence, prose around one JSON object or array. Beyond that JSON is taken
strictly: it is never completed, re-quoted or guessed at. Refused are duplicate keys (which one was meant is
unknowable), NaN and infinities (floats that overflow too), lone surrogates, nesting deeper than `MAX_DEPTH`, text
above `MAX_BYTES`, and prose around several JSON values. Work is linear in the length of the reply.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

MAX_BYTES: Final = 4 * 1024 * 1024
"""The longest reply that is looked at, in bytes of UTF-8."""
MAX_DEPTH: Final = 100
"""How deep JSON may nest."""
MAX_LOCATIONS: Final = 8
_MAX_SEGMENTS: Final = 12
_MAX_SEGMENT: Final = 64
_FALSE_STARTS: Final = 4
"""How many opening brackets that are never closed are passed over in prose: each costs one look at the rest."""
_ASIDES: Final = 1_000
"""How many closed brackets that hold no JSON are passed over."""

_FENCE: Final = re.compile(r"^[ \t]{0,3}```[^\n`]*$", re.MULTILINE)
_BRACKET: Final = re.compile(r"[\[\]{}\"]")
_STRING_REST: Final = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""From after an opening quote to the closing one. Possessive, so that it never looks at a character twice."""
_OPENER: Final = re.compile(r"[\[{]")
_CLOSES: Final = {"}": "{", "]": "["}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a reply gives no value. `repairable` says whether it makes sense to show the reply to the model again."""

    code: str
    locations: tuple[tuple[str, str], ...] = ()
    repairable: bool = True


@dataclass(frozen=True, slots=True)
class Extracted:
    """The one JSON value of a reply, and its exact text."""

    value: Any
    text: str


@dataclass(frozen=True, slots=True)
class Typed:
    """The value of a reply, as the output type has it."""

    value: Any


class _Refused(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def extract(text: str) -> Extracted | Problem:
    """The one JSON value in `text`, or why there is none."""
    if len(text) > MAX_BYTES:
        return Problem("too_large", repairable=False)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        # A reply that is no valid Unicode cannot be sent back byte for byte either.
        return Problem("lone_surrogate", repairable=False)
    if size > MAX_BYTES:
        return Problem("too_large", repairable=False)
    body = text.strip().lstrip("\ufeff").strip()
    if body.startswith("<think>"):
        _, closed, rest = body.partition("</think>")
        body = rest.strip() if closed else body
    try:
        for part in (body, _fenced(body)):
            value = _parse(part) if part else _NOTHING
            if value is not _NOTHING:
                return Extracted(value, part)
        return _only_value(body)
    except _Refused as refused:
        return Problem(refused.code)


def read(text: str, adapter: TypeAdapter[Any]) -> Typed | Problem:
    """The typed value in `text`, or why there is none. What the output type's own code raises is let through,
    `ValidationError` apart."""
    extracted = extract(text)
    if isinstance(extracted, Problem):
        return extracted
    try:
        return Typed(adapter.validate_json(extracted.text))
    except ValidationError as error:
        return Problem("schema_mismatch", _locations(error))


class _Nothing:
    """No JSON here."""


_NOTHING: Final = _Nothing()


def _fenced(body: str) -> str:
    """What stands in the one code fence of `body`; empty if there is none, or more than one."""
    marks = list(islice(_FENCE.finditer(body), 3))
    if len(marks) != 2:
        return ""
    return body[marks[0].end() : marks[1].start()].strip()


def _only_value(body: str) -> Extracted:
    """The one object or array that stands in prose. Raises `_Refused`."""
    found: Extracted | None = None
    position, false_starts, asides, seen = 0, 0, 0, False
    while (opener := _OPENER.search(body, position)) is not None:
        seen = True
        end = _extent(body, opener.start())
        if end is None:
            false_starts += 1
            if false_starts > _FALSE_STARTS:
                break
            position = opener.end()
            continue
        part = body[opener.start() : end]
        value = _parse(part)
        if value is _NOTHING:
            asides += 1
            if asides > _ASIDES:
                raise _Refused("invalid_json")
        elif found is not None:
            raise _Refused("several_values")
        else:
            found = Extracted(value, part)
        position = end
    if found is None or false_starts:
        # After a bracket that never closes, what follows may be a piece of a value that was cut off.
        raise _Refused("invalid_json" if seen else "no_json")
    return found


def _extent(text: str, start: int) -> int | None:
    """Where the bracket at `start` is closed, strings respected; `None` if it is not. Raises `_Refused`."""
    open_brackets: list[str] = []
    position = start
    while (mark := _BRACKET.search(text, position)) is not None:
        position = mark.end()
        character = mark.group()
        if character == '"':
            string = _STRING_REST.match(text, position)
            if string is None:
                return None
            position = string.end()
        elif character in _CLOSES:
            if not open_brackets or open_brackets.pop() != _CLOSES[character]:
                return None
            if not open_brackets:
                return position
        else:
            open_brackets.append(character)
            if len(open_brackets) > MAX_DEPTH:
                raise _Refused("too_deep")
    return None


def _parse(text: str) -> Any:
    """`text` as strict JSON; `_NOTHING` if it is none. Raises `_Refused` for JSON that is not taken."""
    if text.count("[") + text.count("{") > MAX_DEPTH and text[0] in "[{":
        _extent(text, 0)  # the parser recurses: depth is looked at before
    try:
        value = json.loads(
            text, object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float, parse_int=_int
        )
    except json.JSONDecodeError:
        return _NOTHING
    except RecursionError:
        raise _Refused("too_deep") from None
    if "\\u" in text and not _encodable(value):
        raise _Refused("lone_surrogate")
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _Refused("duplicate_key")
    return made


def _constant(_: str) -> Any:
    raise _Refused("not_a_number")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused("number_range")
    return number


def _int(text: str) -> int:
    if len(text) > 1_000:
        raise _Refused("number_range")
    return int(text)


def _encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _locations(error: ValidationError) -> tuple[tuple[str, str], ...]:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return tuple((_path(detail["loc"]), _word(detail["type"])) for detail in details[:MAX_LOCATIONS]) + (
        (("…", f"{len(details) - MAX_LOCATIONS} more"),) if len(details) > MAX_LOCATIONS else ()
    )


def _path(segments: Sequence[int | str]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{_word(part)}" for part in segments[:_MAX_SEGMENTS]]
    if len(segments) > _MAX_SEGMENTS:
        parts.append("…")
    return "".join(parts).removeprefix(".") or "(the whole value)"


def _word(text: str) -> str:
    """A key or an error type on one line: no control characters, no backticks, bounded."""
    kept = "".join(c for c in text[: _MAX_SEGMENT * 2] if c != "`" and unicodedata.category(c)[0] not in "CZ")
    return kept[:_MAX_SEGMENT] + ("…" if len(kept) > _MAX_SEGMENT or len(text) > _MAX_SEGMENT * 2 else "")

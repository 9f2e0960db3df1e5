"""Replies of a hostile or broken model server, and what each must come to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from remand.testing import Reply

MARKER = "Zqreply4411x"
"""In every reply, and in no log."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A reply, made when asked for, and the status and code of the item that gets it; no code where it is accepted."""

    reply: Callable[[], Reply]
    code: str | None = None
    status: str = "failed"
    codes: tuple[str, ...] = field(default=())


def _text(content: str) -> Callable[[], Reply]:
    return lambda: Reply(content)


def _raw(make: Callable[[], bytes]) -> Callable[[], Reply]:
    return lambda: Reply(raw=make())


def _body(content: str) -> bytes:
    """A chat completion with `content` as it stands, escapes included."""
    head = b'{"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "'
    return head + content.encode() + b'"}}]}'


_LARGE = 50 * 1024 * 1024
_VALUE = json.dumps({"n": 1, "note": MARKER})
_ESCAPED = _body(_VALUE.replace('"', '\\"'))

REPLIES: dict[str, Expected] = {
    "good": Expected(_text(_VALUE), status="accepted"),
    "large": Expected(_raw(lambda: _body(MARKER + "x" * _LARGE)), "too_large"),
    "large_value": Expected(_text('{"n": 1, "note": "' + MARKER + "x" * 5_000_000 + '"}'), "too_large"),
    "large_error": Expected(lambda: Reply(MARKER + "x" * 20_000_000, status=500), "http_500"),
    "deep": Expected(_text(MARKER + '{"more": ' + "[" * 200_000 + "]" * 200_000 + "}"), "too_deep"),
    "deep_open": Expected(_text(MARKER + "[{" * 200_000), "too_deep"),
    "deep_body": Expected(_raw(lambda: b"[" * 1_000_000 + b"]" * 1_000_000), "bad_response"),
    "surrogate_body": Expected(_raw(lambda: _body(MARKER + "\\ud800")), "lone_surrogate"),
    "surrogate_value": Expected(_text('{"n": 1, "note": "' + MARKER + '\\ud800"}'), "lone_surrogate"),
    "surrogate_key": Expected(_text('{"n": 1, "more": {"\\udfff": "' + MARKER + '"}}'), "lone_surrogate"),
    "nul": Expected(_text('{"n": 1, "note": "' + MARKER + '\\u0000"}'), status="accepted"),
    "nul_raw": Expected(_text('{"n": 1, "note": "' + MARKER + '\0"}'), "invalid_json"),
    "duplicate": Expected(_text('{"n": 1, "n": 2, "note": "' + MARKER + '"}'), "duplicate_key"),
    "nan": Expected(_text('{"n": NaN, "note": "' + MARKER + '"}'), "not_a_number"),
    "infinite": Expected(_text('{"n": 1e999, "note": "' + MARKER + '"}'), "number_range"),
    "digits": Expected(_text('{"n": ' + "9" * 5_000 + ', "note": "' + MARKER + '"}'), "number_range"),
    "big_number": Expected(_text('{"n": ' + "9" * 900 + ', "note": "' + MARKER + '"}'), status="accepted"),
    "garbage": Expected(_raw(lambda: MARKER.encode() + bytes(range(256)) * 100), "bad_response"),
    "no_choices": Expected(_raw(lambda: b'{"choices": {"0": "' + MARKER.encode() + b'"}}'), "bad_response"),
    "list_content": Expected(
        _raw(lambda: b'{"choices": [{"message": {"content": ["' + MARKER.encode() + b'"]}}]}'), "bad_response"
    ),
    "empty": Expected(_text(""), "empty_response"),
    "html": Expected(_text(f"<html><script>{MARKER}</script>"), "no_json"),
    "fences": Expected(_text("```json\n" * 20_000 + MARKER), "no_json"),
    "brackets": Expected(_text(MARKER + "{" + '"a' * 200_000), "invalid_json"),
    "backslashes": Expected(_text('{"n": 1, "note": "' + MARKER + "\\" * 1_000_001), "invalid_json"),
    "gone": Expected(lambda: Reply(drop=True), "connection"),
    "usage": Expected(
        _raw(lambda: _ESCAPED[:-1] + b', "usage": {"prompt_tokens": 1e308, "completion_tokens": -5}}'),
        status="accepted",
    ),
    "model_name": Expected(
        _raw(lambda: _ESCAPED[:-1] + b', "model": "' + b"m" * 100_000 + b'"}'), status="accepted"
    ),
    "headers": Expected(
        lambda: Reply(_VALUE, headers={"set-cookie": MARKER, "x-long": MARKER * 2_000}), status="accepted"
    ),
}  # fmt: skip

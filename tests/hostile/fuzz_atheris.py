"""Coverage-guided fuzzing of what reads strangers' texts: input lines, replies of models, tokens in messages.

    python tests/hostile/fuzz_atheris.py lines|replies|tokens [-max_total_time=120] [other options of libFuzzer]

`make fuzz` installs Atheris and runs all three; neither is part of the tests. What breaks a promise is written to a
file `crash-…` in the working directory, and given as an argument in place of options it is tried again.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import atheris

with atheris.instrument_imports(include=["remand", "remand_policy", "remand_tasks", "remand_workers"]):
    from remand.llm.structured import Extracted, Problem, Typed, extract, read
    from remand_policy import digest
    from remand_tasks.token import BadToken, Token
    from remand_workers.cli.feeding import BadLine, parse

from pydantic import TypeAdapter

ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)
KEYS = (None, "id", "a.0", "a.b")
PIECES = (
    "{", "}", "[", "]", ",", ":", '"', '"a":', '"b"', "0", "-0", "1e5", "1E999", "0.1", "9" * 30, "NaN", "-Infinity",
    "null", "true", "\\", "\\u00", "\\ud83d", "\\ude00", "```", "```json", "\n", " ", "<think>", "</think>", "\ufeff",
    "\x00", "é", "\ud800",
)  # fmt: skip
"""What half of the texts are made of, a byte each: mutated bytes alone are hardly ever JSON."""


def spelled(data: bytes) -> tuple[int, bytes]:
    """A number that says how to go on, and a text: as it is, or made of `PIECES`."""
    kind, rest = data[0] if data else 0, data[1:]
    if kind % 2:
        text = "".join(PIECES[byte % len(PIECES)] for byte in rest)
        rest = text.encode("utf-8", "surrogatepass")
    return kind // 2, rest


def lines(data: bytes) -> None:
    """A line is an item that means what the line says, or is left out in words of ours."""
    number, line = spelled(data)
    try:
        item = parse(line, 7, KEYS[number % len(KEYS)])
    except BadLine as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    assert item.digest == digest(json.loads(line)) == digest(json.loads(item.text))
    assert "\n" not in item.text
    assert 0 < len(item.key) <= 200
    assert item.key.isprintable()


def replies(data: bytes) -> None:
    """A reply holds one value, which stands in it to the letter and is the same for every reader, or a problem."""
    number, reply = spelled(data)
    text = reply.decode("utf-8", "surrogateescape" if number % 2 else "replace")
    found = extract(text)
    if isinstance(found, Problem):
        assert found.code.isidentifier()
        return
    assert found.text in text
    assert extract(found.text) == found
    typed = read(text, ANYTHING)
    assert isinstance(typed, Typed), typed
    assert _same(typed.value, found.value)
    assert isinstance(extract(json.dumps(found.value, ensure_ascii=False)), Extracted)


def tokens(data: bytes) -> None:
    """A token is the exact text of one."""
    text = data.decode("utf-8", "replace")
    try:
        token = Token.parse(text)
    except BadToken as error:
        assert error.code in ("type", "length", "form")  # noqa: PT017
        return
    assert str(token) == text


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class Target(NamedTuple):
    """What is fed, and what mutation begins with."""

    feed: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


TARGETS = {
    "lines": Target(
        lines,
        (
            b'\0{"id": "x", "a": [1, 2.5, null, true]}',
            b'\2{"id": "\\u0041\\ud83d\\ude00"}',
            b'\4{"a": ["k"]}',
            b'\6{"a": {"b": -0}}',
            b"\0\xef\xbb\xbf[1e5, NaN, 1E999]",
            b"\1\x00\x07\x09\x04\x07\x0a\x01",
        ),
    ),
    "replies": Target(
        replies,
        (
            b'\0```json\n{"title": "x", "year": 1936}\n```',
            b"\0<think>hm [1]</think>\n\xef\xbb\xbf[1, 2.0, -0, 1e3]",
            b'\0Here: {"a": "\\"}\\u0041\\ud83d\\ude00"} and that is all [sic].',
            b"\0[[[[1]]]] {",
            b'\2{"a": 1, "a": 2}',
            b"\1\x00\x07\x09\x04\x07\x0a\x01",
        ),
    ),
    "tokens": Target(tokens, (b"run-1/0/1/2/3", b"r/999999999999999/0/0/0", b"r/00/1/2/3")),
}


def main() -> None:
    """The command."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: {sys.argv[0]} {'|'.join(TARGETS)} [options of libFuzzer]")
    target = TARGETS[sys.argv[1]]
    options = sys.argv[2:]
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(target.seeds):
            Path(corpus, str(number)).write_bytes(seed)
        if all(option.startswith("-") for option in options):
            options += ["-timeout=10", corpus]
        atheris.Setup([sys.argv[0], *options], target.feed)
        atheris.Fuzz()


if __name__ == "__main__":
    main()

"""Lines of foreign bytes as inputs: each is an item or is left out with a reason that quotes nothing."""

# ruff: noqa: PT017 - a property holds for what is taken and for what is refused alike

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remand.errors import RemandError
from remand.keys import BadKey
from remand_policy import digest
from remand_workers.cli.feeding import BadLine, Lines, parse
from remand_workers.client import BadInput, new_item

MARKER = "Zqline6633x"

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def spoiled(line: bytes) -> st.SearchStrategy[bytes]:
    """`line` with something cut out and something put in."""
    place = st.integers(0, len(line))
    return st.tuples(place, place, st.binary(max_size=4)).map(
        lambda cut: line[: min(cut[:2])] + cut[2] + line[max(cut[:2]) :]
    )


lines = st.one_of(
    st.binary(max_size=200),
    st.text().map(lambda text: text.encode("utf-8", "surrogatepass")),
    plain.map(lambda value: json.dumps({"text": MARKER, "value": value}).encode()).flatmap(spoiled),
    st.integers(1, 100_000).map(lambda depth: b"[" * depth),
    st.integers(1, 3_000).map(lambda depth: b'{"a":' * depth + b"1" + b"}" * depth),
)


@settings(max_examples=300, deadline=None)
@given(line=lines, key=st.sampled_from([None, "text", "value.a", "value.0"]))
@example(line=b"NaN", key=None)
@example(line=b"1e999", key=None)
@example(line=b"9" * 5_000, key=None)
@example(line=b'"\\ud800"', key=None)
@example(line=b'{"text": "\\u0000"}', key="text")
@example(line=b"\xef\xbb\xbf1", key=None)
@example(line=b"[" * 100_000 + b"]" * 100_000, key=None)
@example(line=b'{"a": 1, "a": 2}', key=None)
def test_a_line_is_an_item_or_left_out_without_a_quotation(line: bytes, key: str | None) -> None:
    try:
        item = parse(line, 7, key)
    except BadLine as error:
        assert MARKER not in f"{error} {error!r} {error.args}"
        assert str(error).isprintable()
        assert error.__cause__ is None
        assert error.__suppress_context__
        return
    value = json.loads(item.text)
    assert item.text.encode().decode() == item.text
    assert "\n" not in item.text
    assert item.digest == digest(value) == digest(json.loads(line))
    assert 0 < len(item.key) <= 200
    assert item.key.isprintable()


@settings(max_examples=200, deadline=None)
@given(value=plain | st.binary() | st.sets(st.integers()) | st.just(object()) | st.complex_numbers())
@example(value={"text": MARKER, "n": math.nan})
@example(value={"text": MARKER + "\ud800"})
@example(value={1: MARKER})
def test_a_value_is_an_item_or_refused_without_a_quotation(value: Any) -> None:
    try:
        item = new_item(3, value, None)
    except BadInput as error:
        assert MARKER not in f"{error} {error!r}"
        assert error.position == 3
        return
    assert new_item(3, json.loads(item.text), None).text == item.text


@given(key=st.text() | st.integers() | st.floats() | st.none() | st.booleans() | st.lists(st.text()))
def test_a_key_is_usable_or_refused_without_a_quotation(key: Any) -> None:
    try:
        item = new_item(0, {"id": key, "text": MARKER}, "id")
    except (BadKey, BadInput) as error:
        assert isinstance(error, RemandError)
        assert MARKER not in f"{error} {error!r}"
        if isinstance(key, str) and len(key) > 20:
            assert key not in str(error)
        return
    assert item.key == str(key)


@settings(max_examples=60, deadline=None)
@given(
    content=st.binary(max_size=500) | st.lists(lines, max_size=8).map(b"\n".join), block=st.integers(1, 50)
)
def test_lines_are_the_same_however_they_arrive(
    content: bytes, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Through a pipe in blocks of any size as through a file."""
    path = tmp_path_factory.getbasetemp() / "lines"
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            for start in range(0, len(content), block):
                pipe.write(content[start : start + block])

    writing = threading.Thread(target=write)
    writing.start()
    found = Lines(str(path))
    try:
        given = [line for batch in found.batches(threading.Event()) for line in batch]
    finally:
        found.close()
        writing.join()
        path.unlink()
    expected = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    assert [line.text for line in given] == [line for line in expected if line.strip()]
    assert [line.position for line in given] == list(range(len(given)))
    assert [line.number for line in given] == [
        number for number, line in enumerate(expected, 1) if line.strip()
    ]


def test_a_file_of_nothing_has_no_line(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbf \r\n\t\n")
    found = Lines(str(tmp_path / "f"))
    assert not found.first()
    found.close()

"""Reading one typed value out of a reply."""

from __future__ import annotations

import json
import time
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from remand.llm.structured import MAX_BYTES, MAX_DEPTH, Extracted, Problem, Typed, extract, read

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
values = st.recursive(
    scalars | texts, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
)
containers = st.lists(values, max_size=4) | st.dictionaries(texts, values, max_size=4)
prose = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="[]{}`<\ufeff"), max_size=60)


def found(text: str) -> Any:
    made = extract(text)
    assert isinstance(made, Extracted), made
    return made.value


def code(text: str) -> str:
    made = extract(text)
    assert isinstance(made, Problem), made
    return made.code


@settings(deadline=None)
@given(values, st.booleans(), st.sampled_from([None, 2]))
def test_plain_json_is_read_as_it_is(value: Any, escape: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=escape, indent=indent)
    assert found(text) == value
    assert found("\ufeff \n" + text + "\n") == value


@settings(deadline=None)
@given(values, st.sampled_from(["", "json", "JSON", "javascript"]))
def test_one_code_fence_is_taken_off(value: Any, language: str) -> None:
    assert found(f"```{language}\n{json.dumps(value, indent=1)}\n```") == value


@settings(deadline=None)
@given(containers, prose, prose)
def test_prose_around_one_object_or_array_is_taken_off(value: Any, before: str, after: str) -> None:
    assert found(f"{before}\n{json.dumps(value)}\n{after}") == value


@settings(deadline=None)
@given(containers, prose)
def test_prose_around_a_fence_is_taken_off(value: Any, words: str) -> None:
    assert found(f"{words}\n```json\n{json.dumps(value)}\n```\n{words}") == value


@settings(deadline=None)
@given(containers, containers)
def test_two_values_are_ambiguous(one: Any, two: Any) -> None:
    assert code(f"{json.dumps(one)} or {json.dumps(two)}") == "several_values"


@settings(deadline=None)
@given(st.text(max_size=200) | st.text('{}[]"\\,:`1a\n', max_size=200))
def test_any_text_gives_a_value_or_a_problem(text: str) -> None:
    made = extract(text)
    if isinstance(made, Extracted):
        assert json.loads(made.text) == made.value
        json.dumps(made.value, ensure_ascii=False, allow_nan=False).encode()
    else:
        assert made.code


@settings(deadline=None)
@given(st.dictionaries(texts, values, min_size=1, max_size=3), st.data())
def test_a_reply_that_was_cut_off_is_never_completed(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = data.draw(st.integers(1, len(text) - 1))
    assert isinstance(extract(text[:cut]), Problem)


def test_reasoning_before_the_answer_is_taken_off() -> None:
    assert found('<think>Maybe {"a": 0}?</think>\n{"a": 1}') == {"a": 1}
    assert code('<think>Maybe {"a": 0}? or [1]') == "several_values"


def test_brackets_in_prose_that_are_no_json_are_passed_over() -> None:
    assert found('For {name} the answer is {"a": "}]"} as asked') == {"a": "}]"}


def test_scalars_in_prose_are_not_guessed_at() -> None:
    assert code("the answer is 42") == "no_json"
    assert found("42") == 42


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no_json"),
        ("no", "no_json"),
        ('{"a": 1', "invalid_json"),
        ("{'a': 1}", "invalid_json"),
        ('{"a": 1,}', "invalid_json"),
        ('{"a": 1, "a": 1}', "duplicate_key"),
        ('text {"b": {"a": 1, "a": 2}} text', "duplicate_key"),
        ('{"a": NaN}', "not_a_number"),
        ("[-Infinity]", "not_a_number"),
        ("[1e999]", "number_range"),
        ("[" + "9" * 5_000 + "]", "number_range"),
        ('["\\ud800"]', "lone_surrogate"),
        ('{"\\udc00": 1}', "lone_surrogate"),
        ('["\ud800"]', "lone_surrogate"),
        ("[" * 200 + "]" * 200, "too_deep"),
        ('{"a":' * 100_000, "too_deep"),
        ("[" * 1_000_000, "too_deep"),
        ("[" + "1," * MAX_BYTES + "1]", "too_large"),
        ("é" * (MAX_BYTES // 2 + 1), "too_large"),
    ],
    ids=range(19),
)
def test_what_is_refused(text: str, expected: str) -> None:
    assert code(text) == expected


def test_depth_is_allowed_up_to_the_bound() -> None:
    assert isinstance(extract("[" * MAX_DEPTH + "]" * MAX_DEPTH), Extracted)
    assert code("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)) == "too_deep"
    many = "[" + ",".join(["[]"] * 1_000) + "]"
    assert len(found(many)) == 1_000


@pytest.mark.parametrize(
    "piece",
    [
        "{",
        "[",
        "{}",
        "[{",
        '{"',
        '{"\\"',
        '{"a":"\\',
        "```\n",
        "<think>",
        "{]",
        '{x}"',
        "\\ud800",
        "{\n```json\n",
    ],
)
def test_time_is_linear_in_hostile_text(piece: str) -> None:
    def seconds(size: int) -> float:
        text = "x " + piece * (size // len(piece))
        start = time.process_time()
        extract(text)
        return time.process_time() - start

    small, large = min(seconds(50_000) for _ in range(3)), min(seconds(800_000) for _ in range(2))
    # Sixteen times the text: linear work takes about 16 times as long, quadratic work 256 times.
    assert large < 0.15 + small * 60


def test_what_cannot_be_sent_back_is_not_repairable() -> None:
    for text in ('["\ud800"]', "x" * (MAX_BYTES + 1)):
        made = extract(text)
        assert isinstance(made, Problem)
        assert not made.repairable


class Author(BaseModel):
    name: str


class Citation(BaseModel, extra="forbid"):
    title: str
    authors: list[Author]
    published: date | None = None


ADAPTER = TypeAdapter(Citation)


def test_a_value_is_typed_as_json_has_it() -> None:
    made = read('{"title": "A", "authors": [], "published": "2020-01-02"}', ADAPTER)
    assert made == Typed(Citation(title="A", authors=[], published=date(2020, 1, 2)))


def test_locations_name_fields_and_error_types_and_no_values() -> None:
    made = read('{"authors": [{"name": 7}, {"name": "MARKER"}], "published": "MARKER"}', ADAPTER)
    assert isinstance(made, Problem)
    assert made.code == "schema_mismatch"
    assert ("title", "missing") in made.locations
    assert ("authors[0].name", "string_type") in made.locations
    assert "MARKER" not in repr(made)


def test_locations_are_bounded_and_on_one_line() -> None:
    reply = json.dumps({"title": "A", "authors": [{}] * 500, "a`\n\u2028" + "k" * 5_000: 1})
    made = read(reply, ADAPTER)
    assert isinstance(made, Problem)
    assert len(made.locations) == 9
    assert made.locations[-1] == ("…", "493 more")
    alone = read(json.dumps({"title": "A", "authors": [], "a`\n\u2028" + "k" * 5_000: 1}), ADAPTER)
    assert isinstance(alone, Problem)
    ((path, kind),) = alone.locations
    assert kind == "extra_forbidden"
    assert path == "a" + "k" * 63 + "…"

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remand_tasks.token import BadToken, Token, is_run

NUMBERS = st.integers(min_value=0, max_value=10**15 - 1)
RUNS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
TOKENS = st.builds(Token, RUNS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


@given(TOKENS)
def test_token_is_read_back_from_its_text(token: Token) -> None:
    assert Token.parse(str(token)) == token


@given(st.text(max_size=40))
def test_any_text_is_either_refused_or_the_exact_text_of_a_token(text: str) -> None:
    try:
        token = Token.parse(text)
    except BadToken:
        return
    assert str(token) == text


def test_text_of_a_token_is_run_seq_stage_attempt_epoch() -> None:
    assert str(Token("r1", 2, 3, 4, 5)) == "r1/2/3/4/5"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "r/1/2/3",
        "r/1/2/3/4/5",
        "r/1/2/3/-4",
        "r/1/2/3/+4",
        "r/1/2/3/4 ",
        "r/1/2/3/4\n",
        " r/1/2/3/4",
        "r/1/2/3/04",
        "r/1/2/3/4.0",
        "r/1/2/3/1_0",
        "r/1/2/3/٤",  # an Arabic four: int() would take it
        "r/1/2/3/",
        "/1/2/3/4",
        "r.s/1/2/3/4",
        "r*/1/2/3/4",
        "ré/1/2/3/4",
        "r" * 65 + "/1/2/3/4",
        "r/1/2/3/" + "9" * 16,
    ],
)
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(BadToken) as refused:
        Token.parse(text)
    assert refused.value.code == "form"


@pytest.mark.parametrize("value", [None, 7, b"r/1/2/3/4", ["r", 1, 2, 3, 4], Token("r", 1, 2, 3, 4)])
def test_what_is_not_a_string_is_refused(value: object) -> None:
    with pytest.raises(BadToken) as refused:
        Token.parse(value)
    assert refused.value.code == "type"


def test_overlong_text_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadToken) as refused:
        Token.parse("r/1/2/3/4" + "0" * 192)
    assert refused.value.code == "length"


def test_refusal_never_quotes_the_text_and_survives_pickling() -> None:
    with pytest.raises(BadToken) as refused:
        Token.parse("SECRET text")
    again = pickle.loads(pickle.dumps(refused.value))
    assert again.code == "form"
    for error in (refused.value, again):
        assert "SECRET" not in f"{error!s} {error!r} {error.args!r}"


def test_tokens_sort_by_run_then_seq_then_epoch_as_numbers() -> None:
    assert Token("r", 2, 1, 1, 9) < Token("r", 10, 1, 1, 1)
    assert Token("r", 2, 1, 1, 9) < Token("r", 2, 1, 1, 10)


@pytest.mark.parametrize("name", ["", "*", "a/b", "a?", "r" * 65, "r\n"])
def test_names_that_could_be_patterns_are_no_runs(name: str) -> None:
    assert not is_run(name)


def test_plain_names_are_runs() -> None:
    assert is_run("2024-06_r1")

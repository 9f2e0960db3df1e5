"""Decorators and the verdicts' words: what is refused, and what the fingerprint is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from remand import (
    SINGLE_RESPONSE_V1,
    Accepted,
    Context,
    Finding,
    PipelineError,
    Produced,
    Producer,
    Rejected,
    Validator,
    accept,
    producer,
    reject,
    validator,
)
from remand.authoring import FunctionProducer
from remand.testing import context


def check(value: Any, context: Context) -> Accepted:
    """The value must be right.

    More about it.
    """
    return accept()


def make(context: Context, correction: object) -> Produced:
    return Produced(context.input)


def refused(build: Callable[[], object]) -> str:
    with pytest.raises(PipelineError) as caught:
        build()
    return str(caught.value)


# -------------------------------------------------------------------------------------------------- verdicts


def test_a_rejection_takes_a_text_a_finding_or_several() -> None:
    one = Finding("wrong", path="year", code="y")
    assert reject("wrong", path="year", code="y") == Rejected((one,))
    assert reject(one) == Rejected((one,))
    assert reject([one, Finding("also")]) == Rejected((one, Finding("also")))
    assert reject(Finding(text) for text in ("a", "b")) == Rejected((Finding("a"), Finding("b")))


@pytest.mark.parametrize("given", [[1], ["text"], 5, None], ids=repr)
def test_a_rejection_of_anything_else_is_an_error(given: Any) -> None:
    with pytest.raises(TypeError):
        reject(given)


def test_path_and_code_belong_to_a_text() -> None:
    with pytest.raises(TypeError, match="path and code go with a text"):
        reject([Finding("wrong")], path="year")


@pytest.mark.parametrize("answer", [accept(), reject("wrong")], ids=["accepted", "rejected"])
def test_a_verdict_has_no_truth_value(answer: object) -> None:
    with pytest.raises(TypeError, match="no truth value"):
        bool(answer)


# ------------------------------------------------------------------------------------------------ validators


def test_a_validator_takes_name_and_description_from_its_function() -> None:
    made = validator(version="1")(check)
    assert (made.name, made.description) == ("check", "The value must be right.")
    assert (made.timeout, made.execution_retries, made.queue) == (30.0, 1, None)
    assert made(1, context({})) == accept()
    assert made.__doc__ == check.__doc__


def test_a_function_without_a_docstring_has_a_description_all_the_same() -> None:
    def year_is_printed(value: Any, context: Context) -> Accepted:
        return accept()

    assert validator(version="1")(year_is_printed).description == "It fails the check 'year is printed'."


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"version": ""}, "version must be a non-empty string; it is empty"),
        ({"version": None}, "version must be a non-empty string; it is NoneType"),
        ({"version": 1}, "version must be a non-empty string; it is int"),
        ({"execution_retries": -1}, "execution_retries must not be negative, it is -1"),
        ({"execution_retries": 1.0}, "execution_retries must be a whole number, not float"),
        ({"execution_retries": True}, "execution_retries must be a whole number, not bool"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"timeout": -1}, "timeout must be a number of seconds above 0"),
        ({"timeout": float("nan")}, "timeout must be a number of seconds above 0"),
        ({"timeout": 90_000}, "at most 86400"),
        ({"timeout": "5"}, "timeout must be a number of seconds"),
        ({"timeout": True}, "timeout must be a number of seconds"),
        ({"name": "two words"}, "without spaces or slashes"),
        ({"name": "a/b"}, "without spaces or slashes"),
        ({"name": "x" * 101}, "at most 100"),
        ({"name": 5}, "name must be a non-empty string; it is int"),
        ({"queue": "two words"}, "without spaces or slashes"),
        ({"queue": ""}, "name must be a non-empty string"),
        ({"description": 5}, "description must be a non-empty string; it is int"),
        ({"description": " "}, "description must be a non-empty string"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_validator_is_refused_by_the_field_that_is_wrong(settings: dict[str, Any], problem: str) -> None:
    message = refused(lambda: validator(**{"version": "1", **settings})(check))
    assert problem in message
    assert message.startswith("validator")


def test_a_missing_version_is_refused_by_python_itself() -> None:
    with pytest.raises(TypeError, match="version"):
        validator()(check)  # type: ignore[call-arg]


def test_what_is_not_callable_is_no_validator() -> None:
    assert refused(lambda: validator(version="1")("text")) == "validator: expected a callable, not str"  # type: ignore[arg-type]


def test_a_lambda_needs_a_name() -> None:
    assert "a lambda needs a name" in refused(lambda: validator(version="1")(lambda value, context: accept()))
    assert validator("named", version="1")(lambda value, context: accept()).name == "named"
    assert "a lambda needs a name" in refused(lambda: producer(version="1")(lambda context, correction: None))
    assert producer("named", version="1")(lambda context, correction: None).name == "named"


def test_a_callable_object_needs_a_name() -> None:
    class Check:
        def __call__(self, value: Any, context: Context) -> Accepted:
            return accept()

    assert "name must be" in refused(lambda: Validator(Check(), version="1"))
    assert Validator(Check(), "check", version="1").name == "check"


# ------------------------------------------------------------------------------------------------- producers


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"version": ""}, "version must be a non-empty string"),
        ({"version": None}, "version must be a non-empty string"),
        ({"repairs": -1}, "repairs must not be negative, it is -1"),
        ({"repairs": "1"}, "repairs must be a whole number, not str"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"correction": "all_responses_v9"}, "unknown correction protocol 'all_responses_v9'"),
        ({"correction": True}, "unknown correction protocol True"),
        ({"name": "a b"}, "without spaces or slashes"),
    ],
    ids=str,
)
def test_a_producer_is_refused_by_the_field_that_is_wrong(settings: dict[str, Any], problem: str) -> None:
    message = refused(lambda: producer(**{"version": "1", **settings})(make))
    assert problem in message
    assert message.startswith("producer")


def test_what_is_not_callable_is_no_producer() -> None:
    assert refused(lambda: producer(version="1")(5)) == "producer: expected a callable, not int"  # type: ignore[arg-type]


def test_an_output_that_is_no_type_is_refused_when_it_is_described() -> None:
    made = producer(version="1", output=5)(make)
    assert "output is no type that pydantic takes" in refused(made.describe)


def test_an_output_without_a_schema_is_refused_when_it_is_described() -> None:
    made = producer(version="1", output=Callable[[], int])(make)
    assert "output has no JSON schema" in refused(made.describe)


def test_a_producer_says_how_long_one_attempt_may_take() -> None:
    assert producer(version="1", repairs=2, timeout=10)(make).deadline == 30.0


def test_a_decorated_function_can_be_called_as_one() -> None:
    made = producer(version="1")(make)
    assert isinstance(made, FunctionProducer)
    assert made(context("in"), None) == Produced("in")
    assert made.__name__ == "make"  # type: ignore[attr-defined]


def test_a_subclass_must_say_what_an_attempt_does() -> None:
    with pytest.raises(TypeError, match="must define __call__"):
        Producer("empty", version="1")(context({}), None)


class Output(BaseModel):
    x: int


def test_descriptions_hold_what_the_fingerprint_covers_and_nothing_else() -> None:
    made = producer(version="2", output=Output, correction=SINGLE_RESPONSE_V1, repairs=1)(make)
    assert made.describe() == {
        "name": "make",
        "version": "2",
        "correction": "single_response_v1",
        "repairs": 1,
        "output": Output.model_json_schema(),
    }
    assert validator(version="3", timeout=5.0, queue="slow")(check).describe() == {
        "name": "check",
        "version": "3",
        "description": "The value must be right.",
        "execution_retries": 1,
    }

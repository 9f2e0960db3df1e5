"""One call of a producer and one of a validator: whatever the author's code does, a value comes back."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from remand import (
    SINGLE_RESPONSE_V1,
    Accepted,
    Context,
    Finding,
    ModelResponse,
    OperationalFailure,
    Produced,
    Producer,
    Rejected,
    RetryRequest,
    StructuralFailure,
    Throttled,
    Usage,
    Validator,
    Verdict,
    accept,
    reject,
)
from remand.attempt import (
    MAX_FINDING,
    MAX_FINDINGS,
    MAX_OPERATOR_MESSAGE,
    MAX_PATH,
    MAX_VALUE_BYTES,
    Attempted,
    Judged,
    code_of,
    judge,
    produce,
)
from remand.authoring import FunctionProducer
from remand.testing import context
from remand_policy import Guidance, Production, Response

MARKER = "marker-5b1f"


class Point(BaseModel):
    x: float
    label: str = ""


def producer_of(function: Callable[..., Any], **settings: Any) -> FunctionProducer:
    return FunctionProducer(function, settings.pop("name", "maker"), version="1", **settings)


def attempt(given: Any, **settings: Any) -> Attempted:
    """One attempt of a producer that returns `given`, or raises it."""

    def make(context: Context, correction: object) -> Any:
        if isinstance(given, BaseException):
            raise given
        return given

    return produce(producer_of(make, timeout=20.0, **settings), context({}), None)


def verdict(answer: Any, *, candidate: Any = 1, output: Any = None, **settings: Any) -> Judged:
    """One call of a validator that answers `answer`, or raises it."""

    def check(value: Any, context: Context) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    maker = producer_of(lambda context, correction: None, output=output)
    validator = Validator(check, "checker", version="1", timeout=20.0, **settings)
    return judge(validator, maker, json.dumps(candidate).encode(), lambda: context({}))


# --------------------------------------------------------------------------------------- what producers give


def test_a_candidate_crosses_as_json_with_its_response_and_counts() -> None:
    response = ModelResponse("the reply", usage=Usage(10, 5))
    made = attempt(Produced(Point(x=1.5), response, generations=2), output=Point)
    assert made.production is Production.CANDIDATE
    assert made.candidate == b'{"x":1.5,"label":""}'
    assert (made.generations, made.usage) == (2, Usage(10, 5))
    assert made.response_state is Response.USABLE


def test_an_async_producer_is_awaited() -> None:
    async def make(context: Context, correction: object) -> Produced:
        await asyncio.sleep(0)
        return Produced(context.input)

    assert produce(producer_of(make), context(7), None).candidate == b"7"


@pytest.mark.parametrize("given", [None, 3, "text", {"value": 1}, Point, (1, None)], ids=repr)
def test_anything_but_produced_and_retry_request_breaks_the_contract(given: Any) -> None:
    made = attempt(given)
    assert (made.production, made.code, made.generations) == (Production.CONTRACT, "return_type", 1)


@pytest.mark.parametrize(
    ("error", "production", "code"),
    [
        (StructuralFailure("no_table"), Production.STRUCTURAL, "no_table"),
        (OperationalFailure("http_500"), Production.OPERATIONAL, "http_500"),
        (ValueError(MARKER), Production.OPERATIONAL, "raised"),
        (SystemExit(MARKER), Production.OPERATIONAL, "raised"),
        (KeyboardInterrupt(MARKER), Production.OPERATIONAL, "raised"),
        (TimeoutError(MARKER), Production.OPERATIONAL, "raised"),
        (Throttled(3.0), Production.THROTTLED, "throttled"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_each_exception_becomes(error: BaseException, production: Production, code: str) -> None:
    made = attempt(error)
    assert (made.production, made.code) == (production, code)


def test_a_failure_carries_its_generations_and_usage() -> None:
    made = attempt(StructuralFailure("no_table", generations=2, usage=Usage(7, 3)))
    assert (made.generations, made.usage) == (2, Usage(7, 3))
    assert attempt(ValueError()).generations == 1
    assert attempt(Throttled(1.0)).generations == 0


@pytest.mark.parametrize("seconds", ["soon", -1.0, math.nan, math.inf, True])
def test_a_wait_that_is_no_number_of_seconds_is_left_to_the_backoff(seconds: Any) -> None:
    assert attempt(Throttled(seconds)).retry_after is None


def test_a_wait_is_kept() -> None:
    assert attempt(Throttled(3)).retry_after == 3.0


def test_counts_of_a_failure_that_are_no_counts_are_replaced() -> None:
    error = OperationalFailure("http_500", generations="many", usage="much")  # type: ignore[arg-type]
    made = attempt(error)
    assert (made.generations, made.usage) == (1, Usage())


def test_a_producer_past_its_deadline_is_a_time_out_and_names_its_place() -> None:
    def spin(context: Context, correction: object) -> Any:
        while True:
            pass

    made = produce(producer_of(spin, timeout=0.3), context({}), None)
    assert (made.production, made.code, made.error_type) == (
        Production.OPERATIONAL,
        "timeout",
        "TimeoutError",
    )
    assert made.error_at is not None
    assert made.error_at.startswith(f"{__name__}:spin:")


@pytest.mark.parametrize(
    "given",
    [
        Produced(1, generations="two"),  # type: ignore[arg-type]
        Produced(1, generations=-1),
        Produced(1, generations=True),
        Produced(1, generations=10**9),
        RetryRequest("code", "message", 1, rank="high"),  # type: ignore[arg-type]
        RetryRequest("code", "message", 1, rank=True),
        RetryRequest("code", "message", 1, generations=None),  # type: ignore[arg-type]
        RetryRequest("code", "message", 1, diagnostics=5),  # type: ignore[arg-type]
        RetryRequest("code", "message", 1, diagnostics="abc"),
        RetryRequest("code", 5, 1),  # type: ignore[arg-type]
    ],
)
def test_a_field_of_another_type_breaks_the_contract(given: Any) -> None:
    made = attempt(given)
    assert (made.production, made.code) == (Production.CONTRACT, "field_type")
    assert made.generations == 1


def test_usage_that_counts_no_tokens_is_none() -> None:
    for usage in ("much", Usage("ten", 5), Usage(-1, 0)):  # type: ignore[arg-type]
        assert attempt(Produced(1, ModelResponse("r", usage=usage))).usage == Usage()  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------- the crossing


class Leaving(BaseModel):
    x: int

    @field_validator("x")
    @classmethod
    def leave(cls, value: int) -> int:
        raise SystemExit(MARKER)


@pytest.mark.parametrize(
    ("output", "value"),
    [
        (None, math.nan),
        (None, {"a": [1, math.inf]}),
        (Point, Point(x=math.nan)),
        (None, "\ud800"),
        (Point, Point(x=1, label="\udfff")),
        (None, object()),
        (None, {"a": object()}),
        (Point, {"x": "far"}),
        (Point, None),
        (int, "one"),
        (Leaving, Leaving.model_construct(x=1)),
    ],
    ids=[
        "nan",
        "nested infinity",
        "nan in a model",
        "lone surrogate",
        "lone surrogate in a model",
        "object",
        "nested object",
        "mapping that no model takes",
        "none for a model",
        "text that is no number",
        "validation that exits",
    ],
)
def test_a_value_that_cannot_cross_is_a_structural_failure(output: Any, value: Any) -> None:
    response = ModelResponse("r", usage=Usage(4, 2))
    made = attempt(Produced(value, response, generations=2), output=output)
    assert (made.production, made.code) == (Production.STRUCTURAL, "not_json")
    assert (made.generations, made.usage) == (2, Usage(4, 2))
    assert made.candidate is None


def test_a_null_is_not_taken_for_a_lost_number() -> None:
    assert attempt(Produced({"a": None, "b": 1.5})).candidate == b'{"a":null,"b":1.5}'


def test_an_endless_value_is_a_structural_failure() -> None:
    value: list[Any] = []
    value.append(value)
    assert attempt(Produced(value)).code == "not_json"


def test_an_oversized_value_is_a_structural_failure() -> None:
    made = attempt(Produced("x" * MAX_VALUE_BYTES))
    assert (made.production, made.code) == (Production.STRUCTURAL, "too_large")
    assert attempt(Produced("x" * (MAX_VALUE_BYTES - 2))).production is Production.CANDIDATE


def test_a_fallback_that_cannot_cross_is_a_structural_failure() -> None:
    assert attempt(RetryRequest("code", "message", math.nan)).code == "not_json"


# ---------------------------------------------------------------------------------------- contract breaches

REPLY = ModelResponse("the reply")
USING = {"correction": SINGLE_RESPONSE_V1}


@pytest.mark.parametrize(
    ("given", "settings", "code"),
    [
        (Produced(1), USING, "candidate_without_response"),
        (Produced(1, ModelResponse("  ")), USING, "candidate_without_response"),
        (Produced(1, ModelResponse("x", finish_reason="tool_calls")), USING, "candidate_without_response"),
        (Produced(1, "text"), USING, "candidate_without_response"),  # type: ignore[arg-type]
        (Produced(1, ModelResponse(5)), USING, "candidate_without_response"),  # type: ignore[arg-type]
        (RetryRequest("c", "m", 1, guidance="do it", response=REPLY), {}, "guidance_undeclared"),
        (RetryRequest("c", "m", 1, guidance=" \n", response=REPLY), USING, "guidance_blank"),
        (RetryRequest("c", "m", 1, guidance=7, response=REPLY), USING, "guidance_blank"),  # type: ignore[arg-type]
        (RetryRequest("c", "m", 1, guidance="do it"), USING, "guidance_without_response"),
        (
            RetryRequest("c", "m", 1, guidance="x", response=ModelResponse("")),
            USING,
            "guidance_without_response",
        ),
    ],
)
def test_each_breach_has_its_code(given: Any, settings: dict[str, Any], code: str) -> None:
    made = attempt(given, **settings)
    assert (made.production, made.code) == (Production.CONTRACT, code)
    assert made.guidance is None
    assert made.response is None


def test_a_well_made_retry_request_keeps_its_texts_apart() -> None:
    made = attempt(
        RetryRequest("unsafe", "two groups overlap", [1], guidance="keep 2 apart", response=REPLY, rank=-3),
        **USING,
    )
    assert made.production is Production.RETRY
    assert (made.reason_code, made.operator_message, made.guidance) == (
        "unsafe",
        "two groups overlap",
        "keep 2 apart",
    )
    assert (made.fallback, made.rank) == (b"[1]", -3)
    assert made.guidance_state is Guidance.PRESENT


def test_a_fallback_of_none_is_no_fallback() -> None:
    assert attempt(RetryRequest("code", "message", None)).report().fallback is None


def test_codes_diagnostics_and_operator_message_are_made_safe_and_bounded() -> None:
    made = attempt(
        RetryRequest(
            f"{MARKER} said the model", "m" * 9_999, 1, diagnostics=["ok", f"{MARKER} x", *["d"] * 20]
        )
    )
    assert made.reason_code == made.code == "invalid_code"
    assert made.operator_message == "m" * MAX_OPERATOR_MESSAGE
    assert made.diagnostics == ("ok", "invalid_code", *["d"] * 6)


@pytest.mark.parametrize("value", ["with space", "a/b", "é", "", "x" * 65, "line\nbreak", None, 3, ["a"]])
def test_what_does_not_look_like_a_code_is_none(value: Any) -> None:
    assert code_of(value) == "invalid_code"
    assert code_of("Http_500.retry-later:x") == "Http_500.retry-later:x"


def test_the_code_of_a_failure_is_made_safe() -> None:
    assert attempt(StructuralFailure(f"{MARKER} is no title")).code == "invalid_code"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (ValueError(MARKER), "operational, raised, ValueError at"),
        (StructuralFailure("no_table"), "structural, no_table, StructuralFailure at"),
        (RetryRequest("c", MARKER, 1, guidance=MARKER), "contract, guidance_undeclared"),
        (Produced(object()), "structural, not_json"),
    ],
)
def test_an_attempt_without_a_candidate_is_warned_of_without_any_text(
    given: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "remand"):
        attempt(given)
    assert "producer maker gave no candidate (stage test, item 0, attempt 1): " + told in caplog.text
    assert MARKER not in caplog.text


@pytest.mark.parametrize("given", [Produced(1), Throttled(1.0), RetryRequest("c", "m", 1)])
def test_an_ordinary_end_of_an_attempt_is_no_warning(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    attempt(given)
    assert not caplog.records


# ------------------------------------------------------------------------------------- what validators answer


def test_accept_and_reject_are_the_two_verdicts() -> None:
    assert verdict(accept()).verdict is Verdict.ACCEPTED
    judged = verdict(reject("wrong year", path="year", code="year"))
    assert judged.verdict is Verdict.REJECTED
    assert judged.findings == (Finding("wrong year", path="year", code="year"),)


class Lookalike:
    findings = ()
    usage = None


class Pretender(Accepted):
    """A subclass is an object that the validator made up."""


@pytest.mark.parametrize(
    "answer",
    [None, True, False, "accepted", math.nan, 1.7, Verdict.ACCEPTED, Accepted, Lookalike(), Pretender()],
    ids=lambda value: str(value).partition(" object at")[0],
)
def test_any_other_answer_is_undetermined(answer: Any) -> None:
    judged = verdict(answer)
    assert judged.verdict is Verdict.UNDETERMINED
    assert judged.findings == ()
    assert judged.error_type == "TypeError"


@pytest.mark.parametrize("findings", [None, "text", [1], 5], ids=repr)
def test_a_rejection_made_by_hand_of_something_else_is_undetermined(findings: Any) -> None:
    assert verdict(Rejected(findings)).verdict is Verdict.UNDETERMINED


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, Throttled, StructuralFailure])
def test_an_exception_is_undetermined_and_stays_reachable(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    error = kind(MARKER)
    judged = verdict(error)
    assert judged.verdict is Verdict.UNDETERMINED
    assert judged.error is error
    assert judged.error_type == kind.__name__
    assert judged.error_at is not None
    assert judged.error_at.startswith(f"{__name__}:check:")
    assert "validator checker could not judge (stage test, item 0, attempt 1)" in caplog.text
    assert judged.error_at in caplog.text
    assert MARKER not in caplog.text


def test_a_time_out_is_undetermined() -> None:
    def spin(value: Any, context: Context) -> Any:
        while True:
            pass

    maker = producer_of(lambda context, correction: None)
    judged = judge(Validator(spin, version="1", timeout=0.3), maker, b"1", lambda: context({}))
    assert (judged.verdict, judged.error_type) == (Verdict.UNDETERMINED, "TimeoutError")


def test_an_async_validator_is_awaited() -> None:
    async def check(value: Any, context: Context) -> Any:
        await asyncio.sleep(0)
        return accept()

    maker = producer_of(lambda context, correction: None)
    judged = judge(Validator(check, version="1", timeout=20.0), maker, b"1", lambda: context({}))
    assert judged.verdict is Verdict.ACCEPTED


def test_each_call_gets_a_value_and_a_context_of_its_own() -> None:
    seen: list[tuple[Any, Any]] = []

    def spoil(value: Any, context: Context) -> Any:
        seen.append((dict(value), dict(context.input)))
        value["x"] = context.input["x"] = "spoilt"
        return accept()

    maker = producer_of(lambda context, correction: None)
    validator = Validator(spoil, version="1", timeout=20.0)
    for _ in range(2):
        judge(validator, maker, b'{"x":1}', lambda: context({"x": 2}))
    assert seen == [({"x": 1}, {"x": 2})] * 2


def test_validators_see_the_output_type() -> None:
    seen: list[object] = []
    maker = producer_of(lambda context, correction: None, output=Point)
    validator = Validator(lambda value, context: seen.append(value), "look", version="1", timeout=20.0)
    judge(validator, maker, b'{"x":1}', lambda: context({}))
    assert seen == [Point(x=1)]


def test_an_output_type_that_exits_is_undetermined() -> None:
    assert verdict(accept(), candidate={"x": 1}, output=Leaving).verdict is Verdict.UNDETERMINED


def test_findings_are_bounded_and_their_codes_made_safe() -> None:
    long = Finding("t" * (MAX_FINDING + 9), path="p" * (MAX_PATH + 9), code=f"{MARKER} in words")
    judged = verdict(reject([long] * (MAX_FINDINGS + 9)))
    assert len(judged.findings) == MAX_FINDINGS
    first = judged.findings[0]
    assert (len(first.text), len(first.path or ""), first.code) == (MAX_FINDING, MAX_PATH, "invalid_code")


def test_usage_of_a_judge_counts_only_if_it_counts_tokens() -> None:
    assert verdict(Accepted(Usage(3, 4))).usage == Usage(3, 4)
    assert verdict(Rejected((), Usage(3, 4))).usage == Usage(3, 4)
    assert verdict(Accepted("much")).usage == Usage()  # type: ignore[arg-type]
    assert verdict(OperationalFailure("down", usage=Usage(1, 1))).usage == Usage(1, 1)


# ---------------------------------------------------------------------------------------- a subclass producer


def test_a_producer_that_keeps_its_own_deadline_is_given_a_little_longer() -> None:
    release = threading.Event()

    class Punctual(Producer[Any]):
        keeps_deadline = True

        def __call__(self, context: Context, correction: object) -> Produced:
            release.wait(self.timeout)
            raise OperationalFailure("own_timeout")

    made = produce(Punctual("punctual", version="1", timeout=0.3), context({}), None)
    assert made.code == "own_timeout"


def test_a_subclass_without_a_call_is_an_operational_failure() -> None:
    made = produce(Producer("empty", version="1"), context({}), None)
    assert (made.production, made.error_type) == (Production.OPERATIONAL, "TypeError")


def test_plain_data_that_fits_the_output_type_is_taken_as_that_type() -> None:
    made = attempt(Produced({"x": 1}), output=Point)
    assert made.production is Production.CANDIDATE
    assert made.candidate is not None
    assert Point.model_validate_json(made.candidate).x == 1

"""The in-process driver: order, keys, concurrency, the end of a run, stages, fallbacks, deadlines."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from remand import (
    SINGLE_RESPONSE_V1,
    Context,
    Correction,
    ModelResponse,
    OperationalFailure,
    Outcome,
    Pipeline,
    PipelineError,
    Policy,
    Produced,
    RetryRequest,
    Stage,
    StructuralFailure,
    Throttled,
    Usage,
    Validator,
    accept,
    arun_local,
    reject,
    run_local,
)
from remand.authoring import FunctionProducer
from remand.keys import BadKey, key_of
from remand.local import _Run

Make = Callable[[Context, Correction | None], Any]
Check = Callable[[Any, Context], Any]


def maker(function: Make, **settings: Any) -> FunctionProducer:
    return FunctionProducer(function, "maker", **{"version": "1", "timeout": 20.0, **settings})


def checker(function: Check, name: str = "checker", **settings: Any) -> Validator:
    return Validator(function, name, **{"version": "1", "timeout": 20.0, **settings})


def echo(context: Context, correction: Correction | None) -> Produced:
    return Produced(context.input)


def pipeline_of(*stages: Stage, **settings: Any) -> Pipeline:
    return Pipeline("test", version="1", stages=stages, **settings)


def one_stage(function: Make = echo, *checks: Validator, producer: Any = None, **settings: Any) -> Pipeline:
    policy = settings.pop("pipeline_policy", None)
    given = {"backoff": 0, **settings}
    return pipeline_of(Stage("only", producer or maker(function), checks, **given), policy=policy)


def statuses(outcomes: Sequence[Outcome]) -> list[str]:
    return [str(outcome.status) for outcome in outcomes]


def scripted(*results: Any) -> Make:
    """A producer that gives these one after the other; exceptions are raised."""
    left: Iterator[Any] = iter(results)

    def make(context: Context, correction: Correction | None) -> Any:
        result = next(left)
        if isinstance(result, BaseException):
            raise result
        return result

    return make


# -------------------------------------------------------------------------------------------- inputs and keys


@pytest.mark.parametrize("concurrency", [1, 4])
def test_outcomes_come_in_the_order_of_the_inputs(concurrency: int) -> None:
    outcomes = run_local(one_stage(), (n for n in range(20)), concurrency=concurrency)
    assert [outcome.value for outcome in outcomes] == list(range(20))
    assert [outcome.item for outcome in outcomes] == list(range(20))
    assert all(outcomes)


def test_inputs_with_the_same_key_are_one_item_and_the_first_counts() -> None:
    records = [{"id": {"no": 7}, "n": 1}, {"id": {"no": "8"}, "n": 2}, {"id": {"no": 7}, "n": 3}]
    outcomes = run_local(one_stage(), records, key="id.no")
    assert [(outcome.key, outcome.value["n"]) for outcome in outcomes] == [("7", 1), ("8", 2)]


def test_without_a_key_the_position_is_the_key() -> None:
    assert [outcome.key for outcome in run_local(one_stage(), ["same", "same"])] == ["0", "1"]


@pytest.mark.parametrize(
    ("record", "path"),
    [
        ({"id": 1}, "other"),
        ({"id": 1}, "id.deeper"),
        ({"id": None}, "id"),
        ({"id": True}, "id"),
        ({"id": 1.5}, "id"),
        ({"id": [1]}, "id"),
        ({"id": ""}, "id"),
        ({"id": "secret\n"}, "id"),
        ({"id": "secret" * 50}, "id"),
        ({"ids": ["secret"]}, "ids.1"),
        ({"ids": ["secret"]}, "ids.²"),
        ({"ids": ["secret"]}, "ids.-1"),
        ("secret", "id"),
    ],
    ids=str,
)
def test_an_input_without_a_usable_key_is_refused_without_being_quoted(record: Any, path: str) -> None:
    with pytest.raises(BadKey) as caught:
        run_local(one_stage(), [record], key=path)
    assert caught.value.path == path
    assert "secret" not in str(caught.value)


def test_a_key_may_lie_in_a_list() -> None:
    assert key_of({"ids": ["a", "b"]}, "ids.1", 0) == "b"


def nested(depth: int) -> Any:
    value: Any = "secret"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "record",
    [float("nan"), [float("inf")], "secret\ud800", nested(100_000)],
    ids=["nan", "inf", "surrogate", "deep"],
)
def test_an_input_that_is_not_json_is_refused_before_anything_runs(record: Any) -> None:
    ran: list[int] = []

    def make(context: Context, correction: Correction | None) -> Produced:
        ran.append(1)
        return Produced(1)

    with pytest.raises(ValueError, match=r"^input 1 is not JSON") as caught:
        run_local(one_stage(make), [1, record])
    assert "secret" not in repr(caught.value)
    assert not ran


def test_an_object_as_input_is_refused() -> None:
    with pytest.raises(TypeError, match="input 0"):
        run_local(one_stage(), [object()])


def test_what_is_no_pipeline_is_refused() -> None:
    with pytest.raises(PipelineError, match="expected a Pipeline, not Stage"):
        run_local(Stage("only", maker(echo)), [1])  # type: ignore[arg-type]


def test_no_inputs_give_no_outcomes() -> None:
    assert run_local(one_stage(), []) == []


def test_each_attempt_gets_its_own_copy_of_the_input() -> None:
    def make(context: Context, correction: Correction | None) -> Produced:
        context.input["n"] += 1
        return Produced(context.input["n"])

    pipeline = one_stage(make, checker(lambda value, context: reject("no")), blind_retries=True)
    record = {"n": 1}
    (outcome,) = run_local(pipeline, [record])
    assert outcome.attempts == 3
    assert record == {"n": 1}
    values: list[int] = []

    def keep(value: int, context: Context) -> Any:
        values.append(value)
        return reject("no")

    run_local(one_stage(make, checker(keep), blind_retries=True), [{"n": 1}])
    assert values == [2, 2, 2]


# ------------------------------------------------------------------------------------------------ concurrency


def test_items_run_at_the_same_time_up_to_the_concurrency() -> None:
    together = threading.Barrier(4)
    running, most, lock = 0, 0, threading.Lock()

    def make(context: Context, correction: Correction | None) -> Produced:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(20)
        with lock:
            running -= 1
        return Produced(context.input)

    assert all(run_local(one_stage(make), range(8), concurrency=4))
    assert most == 4


def test_arun_local_leaves_a_running_loop_free() -> None:
    async def main() -> list[Outcome]:
        released = threading.Event()

        def make(context: Context, correction: Correction | None) -> Produced:
            assert released.wait(20), "the event loop was held"
            return Produced(context.input)

        task = asyncio.create_task(arun_local(one_stage(make), [1, 2], key=None, concurrency=2))
        await asyncio.sleep(0)
        released.set()
        return await task

    assert all(asyncio.run(main()))


def test_run_local_works_on_the_thread_of_a_running_loop_with_async_functions() -> None:
    async def make(context: Context, correction: Correction | None) -> Produced:
        await asyncio.sleep(0)
        return Produced(context.input)

    async def check(value: Any, context: Context) -> Any:
        await asyncio.sleep(0)
        return accept()

    async def main() -> list[Outcome]:
        return run_local(one_stage(make, checker(check)), [1, 2])

    assert all(asyncio.run(main()))


# ------------------------------------------------------------------------------------------ the end of a run


def below_three(value: int, context: Context) -> Any:
    return accept() if value < 3 else reject("too large")


def test_fail_run_cancels_what_has_not_begun_and_keeps_what_is_accepted() -> None:
    outcomes = run_local(one_stage(echo, checker(below_three)), [0, 1, 3, 2, 0])
    assert statuses(outcomes) == ["accepted", "accepted", "rejected", "cancelled", "cancelled"]
    assert [outcome.value for outcome in outcomes] == [0, 1, None, None, None]
    assert (outcomes[2].reason, outcomes[2].disposition) == ("semantic_rejection", "fail_run")
    assert (outcomes[3].attempts, outcomes[3].generations) == (0, 0)


@pytest.mark.parametrize("disposition", ["quarantine", "warn_continue"])
def test_other_dispositions_let_the_run_go_on_and_the_value_nowhere(disposition: str) -> None:
    policy = Policy(semantic_rejection=disposition)
    outcomes = run_local(one_stage(echo, checker(below_three), pipeline_policy=policy), [3, 2])
    assert statuses(outcomes) == ["rejected", "accepted"]
    assert outcomes[0].value is None
    assert outcomes[0].disposition == disposition


def test_items_in_flight_when_the_run_fails_keep_a_final_value_and_lose_unfinished_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed, begun = threading.Event(), threading.Barrier(3)
    fail = _Run.fail

    def fail_and_tell(run: _Run) -> None:
        fail(run)
        failed.set()

    monkeypatch.setattr(_Run, "fail", fail_and_tell)

    def make(context: Context, correction: Correction | None) -> Produced:
        begun.wait(20)
        if context.input != "rejected":
            assert failed.wait(20)
        if context.input == "unfinished":
            raise OperationalFailure("down")
        return Produced(context.input)

    def check(value: str, context: Context) -> Any:
        return accept() if value == "final" else reject("no")

    outcomes = run_local(
        one_stage(make, checker(check)), ["rejected", "final", "unfinished", "pending"], concurrency=3
    )
    assert statuses(outcomes) == ["rejected", "accepted", "cancelled", "cancelled"]
    assert [outcome.value for outcome in outcomes] == [None, "final", None, None]
    assert outcomes[2].attempts == 1


def test_a_broken_contract_fails_the_run_whatever_the_policy_says() -> None:
    lenient = Policy(
        **dict.fromkeys(("structural_failure", "semantic_rejection", "operational_failure"), "warn_continue")
    )
    outcomes = run_local(one_stage(lambda context, correction: 5, pipeline_policy=lenient), [1, 2])
    assert statuses(outcomes) == ["failed", "cancelled"]
    assert outcomes[0].reason == "contract_failure"
    assert outcomes[0].generations == 1


# ------------------------------------------------------------------------------------------------ corrections


def test_a_correction_carries_the_latest_response_and_all_findings_of_its_rejection() -> None:
    seen: list[Correction | None] = []

    def make(context: Context, correction: Correction | None) -> Produced:
        seen.append(correction)
        return Produced(context.attempt, ModelResponse(f"reply {context.attempt}"))

    checks = [
        checker(lambda value, context: accept() if value == 3 else reject(f"one of {value}"), "one"),
        checker(lambda value, context: accept(), "two"),
        checker(lambda value, context: accept() if value == 3 else reject(f"three of {value}"), "three"),
    ]
    pipeline = one_stage(make, *checks, producer=maker(make, correction=SINGLE_RESPONSE_V1))
    (outcome,) = run_local(pipeline, ["in"])
    assert outcome.succeeded
    assert (outcome.attempts, outcome.generations, outcome.corrections) == (3, 3, 2)
    first, second, third = seen
    assert first is None
    assert second is not None
    assert third is not None
    assert (second.protocol, second.response, third.response) == ("single_response_v1", "reply 1", "reply 2")
    assert second.guidance.index("one of 1") < second.guidance.index("three of 1")
    assert "of 1" not in third.guidance


def test_an_operational_failure_keeps_the_pending_correction_and_a_structural_one_drops_it() -> None:
    seen: list[str | None] = []
    script = scripted(
        Produced(0, ModelResponse("first")),
        OperationalFailure("down"),
        StructuralFailure("no_json"),
        Produced(1, ModelResponse("last")),
    )

    def make(context: Context, correction: Correction | None) -> Any:
        seen.append(correction and correction.response)
        return script(context, correction)

    check = checker(lambda value, context: accept() if value else reject("no"))
    stage = Stage("only", maker(make, correction=SINGLE_RESPONSE_V1), [check], retries=3, backoff=0)
    (outcome,) = run_local(pipeline_of(stage), [1])
    assert outcome.succeeded
    assert seen == [None, "first", "first", None]


def test_a_producer_without_the_protocol_is_not_tried_again_unless_blind_retries_are_allowed() -> None:
    check = checker(lambda value, context: reject("no"))
    (outcome,) = run_local(one_stage(echo, check), [1])
    assert (outcome.status, outcome.attempts, outcome.corrections) == ("rejected", 1, 0)
    (outcome,) = run_local(one_stage(echo, check, blind_retries=True), [1])
    assert (outcome.status, outcome.attempts, outcome.corrections) == ("rejected", 3, 0)


def test_only_undetermined_verdicts_are_asked_for_again_and_nothing_is_produced() -> None:
    calls = {"fine": 0, "broken": 0}

    def fine(value: Any, context: Context) -> Any:
        calls["fine"] += 1
        return accept()

    def broken(value: Any, context: Context) -> Any:
        calls["broken"] += 1
        if calls["broken"] == 1:
            raise ConnectionError("judge is down")
        return accept()

    (outcome,) = run_local(one_stage(echo, checker(fine, "fine"), checker(broken, "broken")), [1])
    assert outcome.succeeded
    assert (outcome.generations, calls) == (1, {"fine": 1, "broken": 2})
    assert [(record.validator, record.tries) for record in outcome.verdicts] == [("fine", 1), ("broken", 2)]


# ----------------------------------------------------------------------------------------------------- stages


class Word(BaseModel):
    text: str


def test_a_later_stage_sees_the_earlier_value_in_its_type_and_the_output_has_the_last_type() -> None:
    seen: list[Any] = []

    def second(context: Context, correction: Correction | None) -> Produced:
        seen.append((context.stage, context.previous, context.input))
        return Produced(len(context.previous.text))

    pipeline = pipeline_of(
        Stage("one", maker(lambda context, correction: Produced(Word(text=context.input)), output=Word)),
        Stage("two", maker(second, output=int)),
    )
    (outcome,) = run_local(pipeline, ["word"])
    assert outcome.value == 4
    assert seen == [("two", Word(text="word"), "word")]
    assert (outcome.attempts, outcome.generations) == (2, 2)


def test_what_no_validator_could_judge_stays_incomplete_through_every_later_stage() -> None:
    seen: list[Any] = []

    def broken(value: Any, context: Context) -> Any:
        raise ConnectionError("judge is down")

    def look(value: Any, context: Context) -> Any:
        seen.append((str(context.validation), context.validation.validators))
        return accept()

    pipeline = pipeline_of(
        Stage("one", maker(echo), [checker(look, "look"), checker(broken, "broken")]),
        Stage("two", maker(echo), [checker(look, "look")]),
    )
    (outcome,) = run_local(pipeline, [1])
    assert seen == [("complete", ()), ("incomplete", ("one/broken",))]
    assert outcome.status == "incomplete"
    assert not outcome
    assert outcome.value == 1
    assert outcome.validation == "incomplete"
    assert outcome.validation.validators == ("one/broken",)
    assert [record.validator for record in outcome.verdicts] == ["look"]


def test_an_undetermined_verdict_keeps_its_exception_within_reach() -> None:
    error = ConnectionError("judge is down")

    def broken(value: Any, context: Context) -> Any:
        raise error

    policy = {"validator_execution_failure": "fail_run"}
    (outcome,) = run_local(one_stage(echo, checker(broken), policy=policy), [1])
    (record,) = outcome.verdicts
    assert (outcome.status, outcome.reason) == ("failed", "validator_execution_failure")
    assert (record.verdict, record.error_type, record.error) == ("undetermined", "ConnectionError", error)
    assert record.tries == 2


def test_usage_is_that_of_all_attempts_and_judges() -> None:
    reply = ModelResponse("r", usage=Usage(10, 5))
    make = scripted(StructuralFailure("no_json", generations=2, usage=Usage(20, 7)), Produced(1, reply))
    (outcome,) = run_local(one_stage(make), [1])
    assert (outcome.usage, outcome.generations) == (Usage(30, 12), 3)


# -------------------------------------------------------------------------------------------------- fallbacks


def asks(fallback: Any, rank: int = 0, *, code: str = "unsafe") -> RetryRequest:
    return RetryRequest(code, "for people", fallback, rank=rank, diagnostics=(code, f"rank.{rank}"))


def test_the_fallback_of_highest_rank_goes_through_the_validators_when_retries_are_spent() -> None:
    judged: list[Any] = []

    def check(value: Any, context: Context) -> Any:
        judged.append(value)
        return accept()

    make = scripted(asks("b", 2), asks("c", 3), asks("a", 1))
    (outcome,) = run_local(one_stage(make, checker(check)), [1])
    assert judged == ["c"]
    assert (outcome.status, outcome.value, outcome.fallback) == ("accepted", "c", True)
    assert outcome.diagnostics == ("unsafe", "rank.3")
    assert (outcome.attempts, outcome.generations) == (3, 3)


def test_a_rejected_fallback_closes_the_item() -> None:
    make = scripted(asks("a"), asks("b"))
    (outcome,) = run_local(one_stage(make, checker(lambda value, context: reject("no")), retries=1), [1])
    assert (outcome.status, outcome.reason, outcome.value) == ("rejected", "semantic_rejection", None)


def test_a_kept_fallback_is_judged_when_later_attempts_fail() -> None:
    make = scripted(asks("kept"), OperationalFailure("down"), StructuralFailure("no_json"))
    (outcome,) = run_local(one_stage(make), [1])
    assert (outcome.value, outcome.fallback) == ("kept", True)


def test_without_a_fallback_an_exhausted_retry_request_is_a_structural_failure() -> None:
    (outcome,) = run_local(one_stage(scripted(asks(None), asks(None)), retries=1), [1])
    assert (outcome.status, outcome.reason, outcome.code) == ("failed", "structural_failure", "no_fallback")


def test_a_retry_request_with_guidance_corrects_with_its_own_response() -> None:
    seen: list[Correction | None] = []
    script = scripted(
        RetryRequest("unsafe", "secret for people", 0, guidance="keep 2 apart", response=ModelResponse("r1")),
        Produced(1, ModelResponse("r2")),
    )

    def make(context: Context, correction: Correction | None) -> Any:
        seen.append(correction)
        return script(context, correction)

    (outcome,) = run_local(one_stage(producer=maker(make, correction=SINGLE_RESPONSE_V1)), [1])
    assert outcome.succeeded
    assert not outcome.fallback
    correction = seen[1]
    assert correction is not None
    assert correction.response == "r1"
    assert "keep 2 apart" in correction.guidance
    assert "secret" not in correction.guidance
    assert "unsafe" not in correction.guidance


# ------------------------------------------------------------------------------------------ waiting, deadlines


def test_throttling_waits_as_told_and_spends_no_budget() -> None:
    waits: list[float] = []
    make = scripted(*[Throttled(float(n)) for n in range(1, 11)], Produced(1))
    (outcome,) = run_local(one_stage(make, retries=0), [1], sleep=waits.append)
    assert outcome.succeeded
    assert (outcome.attempts, outcome.generations) == (1, 1)
    assert waits == [float(n) for n in range(1, 11)]


def test_throttling_without_a_time_backs_off() -> None:
    waits: list[float] = []
    make = scripted(Throttled(), Throttled(), Throttled(), Produced(1))
    run_local(one_stage(make, backoff=1.0), [1], sleep=waits.append)
    bounds = [(0.5, 1.0), (1.0, 2.0), (2.0, 4.0)]
    assert all(low <= wait <= high for wait, (low, high) in zip(waits, bounds, strict=True))


def test_operational_failures_back_off_and_rejections_do_not() -> None:
    waits: list[float] = []
    make = scripted(OperationalFailure("http_500"), StructuralFailure("no_json"), OperationalFailure("down"))
    (outcome,) = run_local(one_stage(make, backoff=1.0), [1], sleep=waits.append)
    assert (outcome.status, outcome.reason, outcome.attempts) == ("failed", "operational_failure", 3)
    assert len(waits) == 1
    assert 0.5 <= waits[0] <= 1.0


def really_wait(seconds: float) -> None:
    """Wait until a moment has passed, as a real `sleep` would: these tests are about a real clock."""
    end, pause = time.monotonic() + seconds, threading.Event()
    while time.monotonic() < end:
        pause.wait(0.01)


def test_a_deadline_that_passes_while_throttled_closes_the_item() -> None:
    tries: list[int] = []
    waits: list[float] = []

    def make(context: Context, correction: Correction | None) -> Produced:
        tries.append(1)
        raise Throttled(3600.0)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        really_wait(seconds)

    (outcome,) = run_local(one_stage(make, deadline=timedelta(seconds=0.2)), [1], sleep=wait)
    assert (outcome.status, outcome.reason, outcome.code) == ("failed", "operational_failure", "deadline")
    assert len(tries) == 1
    assert all(seconds <= 0.2 for seconds in waits)


def test_a_kept_fallback_is_judged_when_the_deadline_passes() -> None:
    make = scripted(asks("kept"), Throttled(3600.0))
    (outcome,) = run_local(one_stage(make, deadline=timedelta(seconds=0.3)), [1], sleep=really_wait)
    assert (outcome.status, outcome.value, outcome.fallback) == ("accepted", "kept", True)


def test_inputs_are_given_as_json_gives_them() -> None:
    (outcome,) = run_local(one_stage(), [{1: ("a", None)}])
    assert outcome.value == json.loads(json.dumps({1: ("a", None)}))

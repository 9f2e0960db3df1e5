"""Verdicts: what validators say, fail to say, and what that costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conformance_kit.drivers import LOCAL, Driver, Workers
from conformance_kit.parts import MARKER, RELEASE

from remand import Status, Verdict, accept, reject
from remand.calls import hung_calls

ALWAYS_BROKEN = {"b": ["raise"]}


@pytest.mark.row("V1")
def test_always_raising_validator_ends_incomplete_after_one_generation(driver: Driver) -> None:
    result = driver.run("plain_3", plan=ALWAYS_BROKEN)
    outcome = result.outcome
    assert result.generations == outcome.generations == 1
    assert [result.calls(name) for name in "abc"] == [1, 2, 1]
    assert outcome.status == "incomplete"
    assert not outcome.succeeded
    assert outcome.value.n == 1
    assert outcome.validation == "incomplete"
    assert outcome.validation.validators == ("s/b",)
    assert outcome.corrections == 0
    assert result.status == "degraded"
    broken = result.verdict("b")
    assert (broken.verdict, broken.tries, broken.error_type) == ("undetermined", 2, "RuntimeError")
    assert broken.error_at.startswith("conformance_kit.parts:answer:")
    assert [result.verdict(name).verdict for name in "ac"] == ["accepted", "accepted"]
    told = [line for line in result.warnings if "validator b could not judge" in line]
    assert len(told) == 2
    assert all("RuntimeError" in line and "conformance_kit.parts:answer:" in line for line in told)
    assert MARKER not in "".join(result.warnings)


@pytest.mark.row("V2")
def test_always_raising_validator_under_fail_run_fails_item_and_run(driver: Driver) -> None:
    result = driver.run("broken_fails", plan=ALWAYS_BROKEN)
    assert result.generations == 1
    assert (result.outcome.status, result.outcome.reason) == ("failed", "validator_execution_failure")
    assert result.outcome.disposition == "fail_run"
    assert result.outcome.value is None
    assert result.status == "failed"


@pytest.mark.row("V3")
def test_validator_that_raises_once_is_asked_again_about_the_same_response(driver: Driver) -> None:
    result = driver.run("plain", plan={"b": ["raise", "accept"]})
    assert result.generations == 1
    assert [result.calls(name) for name in "abc"] == [1, 2, 1]
    assert result.outcome.status == "accepted"
    assert result.outcome.succeeded
    assert result.verdict("b").error_type is None
    assert result.status == "succeeded"


@pytest.mark.row("V4")
def test_validator_that_raises_and_then_rejects_corrects_with_that_rejection_only(driver: Driver) -> None:
    result = driver.run("plain", plan={"b": ["raise", "reject:it is too small", "accept"]})
    assert result.generations == 2
    assert result.outcome.status == "accepted"
    guidance = result.requests()[1][-1]["content"]
    assert guidance.count("it is too small") == 1
    assert MARKER not in guidance
    assert "\n1.\n" in guidance
    assert "\n2.\n" not in guidance


@pytest.mark.row("V5")
def test_broken_validator_beside_a_rejecting_one_is_judged_afresh_and_never_quoted(driver: Driver) -> None:
    result = driver.run("plain", plan={"a": ["raise"], "b": ["reject:b says no", "accept"]})
    assert result.generations == 2
    guidance = result.requests()[1][-1]["content"]
    assert "b says no" in guidance
    assert "\n2.\n" not in guidance
    assert MARKER not in guidance
    assert [note["attempt"] for note in result.notes("a")] == [1, 2, 2]
    assert result.calls("b") == 2
    assert result.outcome.status == "incomplete"
    assert result.outcome.validation.validators == ("s/a",)


@pytest.mark.row("V6")
def test_broken_and_rejected_on_the_first_attempt_only_is_accepted(driver: Driver) -> None:
    result = driver.run("plain", plan={"a": ["raise", "accept"], "b": ["reject:no", "accept"]})
    assert result.generations == 2
    assert result.outcome.status == "accepted"
    assert result.outcome.validation == "complete"


@pytest.mark.row("V7")
def test_every_validator_runs_after_a_rejection_and_findings_keep_their_order(driver: Driver) -> None:
    plan = {name: [f"reject:finding of {name}", "accept"] for name in "abc"}
    result = driver.run("plain", plan=plan)
    assert [result.calls(name) for name in "abc"] == [2, 2, 2]
    guidance = result.requests()[1][-1]["content"]
    places = [guidance.index(f"finding of {name}") for name in "abc"]
    assert places == sorted(places)


NO_VERDICTS = ("none", "true", "string", "nan", "number", "word", "made_up", "class", "exit")


@pytest.mark.row("V8")
def test_any_other_return_value_is_undetermined(driver: Driver) -> None:
    items = [{"plan": {"b": [step]}} for step in NO_VERDICTS]
    result = driver.run("plain", items=items)
    assert result.generations == len(NO_VERDICTS)
    for number, outcome in enumerate(result.outcomes):
        step = NO_VERDICTS[number]
        (record,) = [record for record in outcome.verdicts if record.validator == "b"]
        assert record.verdict == "undetermined", step
        assert record.error_type == ("SystemExit" if step == "exit" else "TypeError"), step
        assert outcome.status == "incomplete", step
        assert outcome.corrections == 0, step
        assert result.calls("b", item=number) == 2, step


TIMEOUT = 1.5
"""Of the validator `slow` in the pipeline `hanging`, in seconds."""


@pytest.mark.row("V9")
@pytest.mark.parametrize("how", ["block", "loop"])
def test_hanging_validators_are_given_up_in_time_and_serving_goes_on(
    driver: Driver, how: str, own_stack: Callable[..., Workers]
) -> None:
    items = [{"plan": {"slow": [how]}} for _ in range(20)]
    if driver.name == LOCAL:
        before = hung_calls()
        result = driver.run("hanging", items=items[:4])
        try:
            assert [outcome.status for outcome in result.outcomes] == ["incomplete"] * 4
            expected = before + 4 if how == "block" else before
            _wait_until(lambda: hung_calls() == expected)
        finally:
            RELEASE.set()
        _wait_until(lambda: hung_calls() == before)
        RELEASE.clear()
        assert driver.run("hanging").outcome.succeeded
        return
    own = own_stack(count=1, environment={"REMAND_HUNG_CALLS": "4", "REMAND_CONCURRENCY": "8"})
    assert own.stack is not None
    (process,) = own.stack.processes
    result = own.run("hanging", items=items)
    assert [outcome.status for outcome in result.outcomes] == ["incomplete"] * 20
    assert result.generations == 20
    assert result.run is not None
    for number, outcome in enumerate(result.outcomes):
        (record,) = [record for record in outcome.verdicts if record.validator == "slow"]
        assert (record.verdict, record.error_type, record.tries) == ("undetermined", "TimeoutError", 1)
        assert record.error_at is not None
        assert record.error_at.startswith("conformance_kit.parts:answer:")
        receipt = result.run.client.queries.receipts(result.run.id, number)[-1]
        (slow,) = [entry for entry in receipt.verdicts if entry["validator"] == "slow"]
        assert TIMEOUT <= slow["seconds"] <= 1.5 * TIMEOUT
    assert own.run("hanging", items=[{}] * 5).status == "succeeded"
    assert process.poll() is None
    replaced = [line for line in own.stack.lines() if "this process is replaced" in str(line.get("event"))]
    # Serving threads, the calls that may hang (up to the limit), and the dozen that every worker has.
    most = 8 + 4 + 12
    if how == "block":
        assert replaced
        _wait_until(lambda: _threads(process.pid) <= most)
    else:
        assert not replaced
        assert _threads(process.pid) <= most


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _wait_until(holds: Callable[[], bool], *, seconds: float = 20.0) -> None:
    until, pause = time.monotonic() + seconds, threading.Event()
    while not holds():
        assert time.monotonic() < until, "it did not come about in time"
        pause.wait(0.05)


@pytest.mark.row("V10")
@pytest.mark.parametrize(("step", "kind"), [("pydantic", "ValidationError"), ("json", "JSONDecodeError")])
def test_judge_whose_parser_raises_is_undetermined(driver: Driver, step: str, kind: str) -> None:
    result = driver.run("plain", plan={"b": [step]})
    assert result.generations == 1
    assert result.outcome.status == "incomplete"
    assert result.verdict("b").error_type == kind
    assert result.outcome.corrections == 0


@pytest.mark.row("V10")
@pytest.mark.parametrize("reply", ["I think it is fine.", '{"verdict": "great", "findings": []}', ""])
def test_chat_judge_whose_reply_is_no_verdict_is_undetermined(driver: Driver, reply: str) -> None:
    result = driver.run("rubric", judge=[reply])
    assert result.generations == 1
    assert len(result.judged) == 2
    assert result.outcome.status == "incomplete"
    assert result.verdict("rubric").verdict == "undetermined"
    assert len(result.requests()[0]) == 1


@pytest.mark.row("V10")
def test_chat_judge_that_answers_in_its_schema_decides(driver: Driver) -> None:
    no = {"verdict": "rejected", "findings": [{"text": "say two", "path": "n"}]}
    yes = {"verdict": "accepted", "findings": []}
    result = driver.run("rubric", judge=[no, yes])
    assert result.generations == 2
    assert result.outcome.status == "accepted"
    assert "say two" in result.requests()[1][-1]["content"]


@pytest.mark.row("V11")
def test_async_validators_are_awaited_and_give_the_same_verdicts(driver: Driver) -> None:
    plans = [["accept"], ["reject:no", "accept"], ["raise"], ["block"], ["none"]]
    result = driver.run("async_ones", items=[{"plan": {"a": plan}} for plan in plans])
    assert [outcome.status for outcome in result.outcomes] == [
        "accepted",
        "accepted",
        "incomplete",
        "incomplete",
        "incomplete",
    ]
    assert [outcome.generations for outcome in result.outcomes] == [1, 2, 1, 1, 1]
    kinds = [outcome.verdicts[0].error_type for outcome in result.outcomes]
    assert kinds == [None, None, "RuntimeError", "TimeoutError", "TypeError"]
    assert all(outcome.verdicts[1].verdict == "accepted" for outcome in result.outcomes)


@pytest.mark.row("V12")
def test_validator_that_changes_the_candidate_changes_its_own_copy_only(driver: Driver) -> None:
    result = driver.run("plain", plan={"a": ["mutate"]})
    assert result.outcome.status == "accepted"
    original = {"n": 1, "tags": []}
    assert [result.notes(name)[0]["value"] for name in "abc"] == [original] * 3
    assert result.outcome.value.model_dump() == original


@pytest.mark.row("V14")
def test_undetermined_on_the_last_attempt_is_named_as_what_it_is(driver: Driver) -> None:
    result = driver.run("broken_fails_1", plan={"a": ["accept", "raise"], "b": ["reject:no", "accept"]})
    assert result.generations == 2
    assert [note["attempt"] for note in result.notes("a")] == [1, 2, 2]
    outcome = result.outcome
    assert (outcome.status, outcome.reason) == ("failed", "validator_execution_failure")
    assert "budget" not in (outcome.code or "")
    assert "exhausted" not in (outcome.code or "")


@pytest.mark.row("V15")
def test_undetermined_verdicts_are_counted_apart_from_rejections(driver: Driver) -> None:
    broken = driver.run("counted_broken", plan=ALWAYS_BROKEN)
    rejected = driver.run("counted_rejecting", plan={name: ["reject:no", "accept"] for name in "abc"})
    assert (broken.outcome.corrections, rejected.outcome.corrections) == (0, 1)
    if not isinstance(driver, Workers):
        assert [record.verdict for record in broken.outcome.verdicts].count(Verdict.UNDETERMINED) == 1
        return
    assert broken.run is not None
    assert rejected.run is not None
    assert driver.stack is not None
    shown, other = broken.run.status().to_json(), rejected.run.status().to_json()
    assert (shown["undetermined_verdicts"], shown["rejected"], shown["incomplete"]) == (2, 0, 1)
    assert (shown["corrections"], shown["reasons"]) == (0, {})
    assert (other["undetermined_verdicts"], other["corrections"], other["accepted"]) == (0, 1, 1)
    verdicts = driver.stack.counted("remand_verdicts_total", "counted-broken", "verdict")
    assert verdicts == {"accepted": 2, "undetermined": 2}
    verdicts = driver.stack.counted("remand_verdicts_total", "counted-rejecting", "verdict")
    assert verdicts == {"accepted": 3, "rejected": 3}


@pytest.mark.row("V16")
def test_verdicts_have_no_truth_value_and_incomplete_is_false(driver: Driver) -> None:
    outcome = driver.run("plain", plan=ALWAYS_BROKEN).outcome
    assert outcome.status is Status.INCOMPLETE
    assert bool(outcome) is False
    for record in outcome.verdicts:
        with pytest.raises(TypeError, match="truth value"):
            bool(record.verdict)
    for answer in (accept(), reject("no")):
        with pytest.raises(TypeError, match="truth value"):
            bool(answer)

"""Dispositions and provenance: how items and runs end, and what a later run may reuse."""

from __future__ import annotations

import socket
import threading
from itertools import product

import pytest
from conformance_kit.drivers import Driver
from conformance_kit.pipelines import CHANGES, CHANGES_OF_ALL, DISPOSITIONS, REASONS
from conformance_kit.server import Server

from remand.testing import RecordedRequest, Reply, ScriptedModel


@pytest.mark.row("D1")
def test_a_stage_that_overrides_one_field_keeps_the_other_ones(driver: Driver) -> None:
    result = driver.run(
        "overriding",
        items=[{"plan": {"a": ["reject:no"]}}, {}, {}],
        by_item={1: ["no JSON"]},
        window=1,
    )
    rejected, malformed, good = result.outcomes
    assert (rejected.status, rejected.disposition) == ("rejected", "quarantine")
    assert (malformed.status, malformed.disposition) == ("failed", "warn_continue")
    assert good.status == "accepted"
    assert result.status == "degraded"


@pytest.mark.row("D1")
def test_a_field_that_nobody_overrides_keeps_its_default(driver: Driver) -> None:
    result = driver.run("overriding", replies=[Reply("", status=500)])
    assert (result.outcome.status, result.outcome.disposition) == ("failed", "fail_run")
    assert result.status == "failed"


@pytest.mark.row("D2")
def test_a_rejected_item_under_warn_continue_goes_nowhere(driver: Driver) -> None:
    result = driver.run("two_go_on", items=[{"plan": {"b": ["reject:no"]}}, {}], window=1)
    rejected, good = result.outcomes
    assert (rejected.status, rejected.reason) == ("rejected", "semantic_rejection")
    assert rejected.disposition == "warn_continue"
    assert rejected.value is None
    assert not rejected
    assert result.calls("c", item=0, stage="t") == 0
    assert all("Again." not in request[0]["content"] for request in result.requests(0))
    assert good.status == "accepted"
    assert result.calls("c", item=1, stage="t") == 1
    assert result.status == "degraded"


@pytest.mark.row("D3")
def test_a_quarantined_item_is_listed_and_redrivable_and_the_run_goes_on(driver: Driver) -> None:
    result = driver.run(
        "semantic_rejection_quarantine",
        items=[{}, {"plan": {"a": ["reject:no", "accept"]}}, {}],
        window=1,
    )
    assert [outcome.status for outcome in result.outcomes] == ["accepted", "rejected", "accepted"]
    assert result.status == "degraded"
    run = result.run
    assert run is not None
    assert run.pipeline is not None
    queries = run.client.queries
    (listed,) = queries.items(run.id, disposition="quarantine")
    assert (listed.seq, listed.status, listed.reason) == (1, "rejected", "semantic_rejection")
    assert run.status().to_json()["quarantined"] == 1
    redriven = run.client.submissions.redrive(run.id, run.pipeline.fingerprint, dispositions=["quarantine"])
    assert redriven == 1
    assert run.wait(60) == "succeeded"
    assert [outcome.status for outcome in run.results()] == ["accepted"] * 3
    assert queries.items(run.id, disposition="quarantine") == []
    assert [receipt.round for receipt in queries.receipts(run.id, 1)] == [1, 2]


@pytest.mark.row("D4")
@pytest.mark.parametrize("window", [1, 4])
def test_fail_run_ends_admission_and_keeps_finished_values(driver: Driver, window: int) -> None:
    items = [{"plan": {"a": ["reject:no"]}} if number == 3 else {} for number in range(100)]
    result = driver.run("semantic_rejection_fail_run", items=items, window=window)
    assert result.status == "failed"
    assert len(result.outcomes) == 100
    assert (result.outcomes[3].status, result.outcomes[3].disposition) == ("rejected", "fail_run")
    begun = {exchange.item for exchange in result.exchanges}
    if driver.name == "local" or window == 1:
        assert begun == {0, 1, 2, 3}
    # The others of the window may run ahead of item 3, but not to the end.
    assert len(begun) <= 50
    for number, outcome in enumerate(result.outcomes):
        if number == 3:
            continue
        if outcome.status == "accepted":
            assert outcome.value.n == 1
            assert number in begun
        else:
            assert (outcome.status, outcome.value, outcome.reason) == ("cancelled", None, None)
    assert all(outcome.status == "cancelled" for outcome in result.outcomes[50:])
    assert {outcome.status for outcome in result.outcomes[:3]} == {"accepted"} or window > 1


@pytest.mark.row("D5")
def test_incomplete_at_the_first_stage_stays_incomplete_and_leaves_no_checkpoint(driver: Driver) -> None:
    plan = {"a": ["raise"]}
    result = driver.run("two", plan=plan)
    outcome = result.outcome
    assert result.generations == 2
    assert (outcome.status, outcome.validation) == ("incomplete", "incomplete")
    assert outcome.validation.validators == ("s/a",)
    assert [record.verdict for record in outcome.verdicts] == ["accepted"]
    assert result.notes("c", stage="t")[0]["validation"] == "incomplete"
    assert result.notes("b")[0]["validation"] == "complete"
    assert result.status == "degraded"
    if driver.name == "workers":
        again = driver.run("two", plan=plan, case=result.folder.name, reuse=True)
        assert (again.generations, again.outcome.reused) == (2, False)


@pytest.mark.row("D6")
def test_accepted_items_are_reused_by_the_next_run_and_others_produced_again(driver: Driver) -> None:
    items = [
        {},
        {"plan": {"b": ["raise"]}},
        {"plan": {"b": ["reject:no"]}},
        {},
        {"plan": {"a": ["reject:no", "accept"]}},
    ]
    by_item = {3: [{"retry": {"fallback": {"n": 7}}}]}
    first = driver.run("reusable", items=items, by_item=by_item, reuse=True)
    statuses = ["accepted", "incomplete", "rejected", "accepted", "accepted"]
    assert [outcome.status for outcome in first.outcomes] == statuses
    assert [outcome.fallback for outcome in first.outcomes] == [False, False, False, True, False]
    again = driver.run("reusable", items=items, by_item=by_item, reuse=True, case=first.folder.name)
    reused = [True, False, False, False, True]
    assert [outcome.reused for outcome in again.outcomes] == reused
    assert [bool(again.requests(item)) for item in range(5)] == [not was for was in reused]
    for was, outcome in zip(reused, again.outcomes, strict=True):
        if was:
            assert (outcome.status, outcome.generations, outcome.attempts) == ("accepted", 0, 0)
            assert outcome.value.n == 1
    assert again.run is not None
    assert again.run.status().to_json()["reused"] == 2


@pytest.mark.row("D6")
def test_a_run_whose_items_are_all_reused_ends_succeeded_without_a_generation(driver: Driver) -> None:
    first = driver.run("two", items=[{}] * 150, reuse=True, window=8)
    assert first.status == "succeeded"
    again = driver.run("two", items=[{}] * 150, reuse=True, window=8, case=first.folder.name)
    assert (again.status, again.generations) == ("succeeded", 0)
    assert all(outcome.reused and outcome.value.n == 1 for outcome in again.outcomes)


VARIANTS = [*product("st", CHANGES), *product(["all"], CHANGES_OF_ALL)]


@pytest.mark.row("D7")
@pytest.mark.parametrize(("place", "what"), VARIANTS)
def test_a_change_that_the_fingerprint_covers_stops_reuse_from_its_stage_on(
    driver: Driver, place: str, what: str
) -> None:
    case = "unchanged"
    driver.run("two_stages", case=case, reuse=True)
    kept = driver.run("two_stages", case=case, reuse=True)
    assert (kept.generations, kept.outcome.reused) == (0, True)
    changed = driver.run(f"{place}_{what}", case=case, reuse=True)
    assert changed.outcome.status == "accepted"
    stages = ["t"] if place == "t" else ["s", "t"]
    assert [_stage_of(request) for request in changed.requests()] == stages
    assert changed.outcome.generations == changed.outcome.attempts == len(stages)
    assert not changed.outcome.reused  # the value is this run's own, whatever it was made of
    assert changed.run is not None
    receipts = changed.run.client.queries.receipts(changed.run.id, 0)
    assert [receipt.stage for receipt in receipts] == ([1] if place == "t" else [0, 1])


def _stage_of(request: list[dict[str, str]]) -> str:
    said = next(message["content"] for message in request if "Stage " in message["content"])
    return said.split("Stage ")[1][0]


@pytest.mark.row("D7")
def test_another_input_is_not_reused(driver: Driver) -> None:
    driver.run("two_stages", case="unchanged", reuse=True)
    changed = driver.run("two_stages", case="unchanged", items=[{"more": 1}], reuse=True)
    assert (changed.generations, changed.outcome.reused) == (2, False)


@pytest.mark.row("D8")
def test_a_failed_run_is_resumed_when_the_model_server_is_up(driver: Driver) -> None:
    port, reached = _free_port(), threading.Event()

    def going_down(request: RecordedRequest) -> Reply:
        if "/1]]" in request.messages[0]["content"]:
            reached.set()
            return Reply('{"n": 1}', delay=60)
        return Reply('{"n": 1}')

    items = [{"base_url": f"http://127.0.0.1:{port}/v1"}] * 4
    with ScriptedModel(going_down, port=port) as first:
        begun = driver.begin("asks_plain_1", items=items, window=1)
        assert reached.wait(60)
        first.close()
        failed = begun.finish()
    assert failed.status == "failed"
    assert [outcome.status for outcome in failed.outcomes] == ["accepted", "failed", "cancelled", "cancelled"]
    assert failed.outcomes[1].reason == "operational_failure"
    spent = failed.outcomes[1].attempts
    assert spent == 2
    run = begun.run
    assert run is not None
    with ScriptedModel(['{"n": 2}'], port=port) as second:
        assert run.resume() == 3
        assert run.wait(60) == "succeeded"
        asked = [request.messages[0]["content"] for request in second.requests]
    assert sorted(text.split("/")[1][0] for text in asked) == ["1", "2", "3"]
    outcomes = list(run.results())
    assert [outcome.status for outcome in outcomes] == ["accepted"] * 4
    assert [outcome.value.n for outcome in outcomes] == [1, 2, 2, 2]
    receipt = run.client.queries.receipts(run.id, 1)[-1]
    assert (receipt.round, receipt.attempt) == (2, 1)


@pytest.mark.row("D8")
def test_resumed_items_have_fresh_budgets(driver: Driver, model_server: Server) -> None:
    del model_server
    port = _free_port()
    items = [{"base_url": f"http://127.0.0.1:{port}/v1", "plan": {"a": ["reject:no", "accept"]}}]
    begun = driver.begin("asks_plain_1", items=items)
    failed = begun.finish()
    assert (failed.status, failed.outcome.attempts) == ("failed", 2)
    run = begun.run
    assert run is not None
    # One retry is allowed: it was spent before, and is there again for the correction.
    with ScriptedModel(['{"n": 1}', '{"n": 2}'], port=port) as up:
        assert run.resume() == 1
        assert run.wait(60) == "succeeded"
        assert up.generations == 2
    (outcome,) = run.results()
    assert outcome.value.n == 2


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.row("D9")
def test_a_validator_cannot_return_a_disposition(driver: Driver) -> None:
    result = driver.run("broken_fails", plan={"b": ["disposition"]})
    assert result.generations == 1
    assert result.verdict("b").verdict == "undetermined"
    assert result.verdict("b").error_type == "TypeError"
    assert (result.outcome.disposition, result.status) == ("fail_run", "failed")


@pytest.mark.row("D10")
def test_a_key_that_comes_twice_is_one_item(driver: Driver) -> None:
    items = [{"id": "x"}, {"id": "y"}, {"id": "x"}, {"id": 7}, {"id": "7"}]
    result = driver.run("plain", items=items, key="id")
    assert [outcome.key for outcome in result.outcomes] == ["x", "y", "7"]
    assert [outcome.item for outcome in result.outcomes] == [0, 1, 2]
    assert result.generations == 3


TROUBLES = {
    "structural_failure": ({}, ["no JSON"]),
    "semantic_rejection": ({"a": ["reject:no"]}, [{"n": 1}]),
    "validator_execution_failure": ({"a": ["raise"]}, [{"n": 1}]),
    "operational_failure": ({}, [Reply("", status=500)]),
}


@pytest.mark.row("D11")
@pytest.mark.parametrize(("reason", "disposition"), list(product(REASONS, DISPOSITIONS)))
def test_each_reason_under_each_disposition(driver: Driver, reason: str, disposition: str) -> None:
    plan, replies = TROUBLES[reason]
    result = driver.run(f"{reason}_{disposition}", items=[{"plan": plan}, {}], by_item={0: replies}, window=1)
    bad, good = result.outcomes
    if (reason, disposition) == ("validator_execution_failure", "warn_continue"):
        assert (bad.status, bad.reason, bad.disposition) == ("incomplete", None, None)
        assert bad.value.n == 1
    else:
        status = "rejected" if reason == "semantic_rejection" else "failed"
        assert (bad.status, bad.reason, bad.disposition) == (status, reason, disposition)
        assert bad.value is None
    assert not bad.succeeded
    if disposition == "fail_run":
        assert (good.status, result.status) == ("cancelled", "failed")
    else:
        assert (good.status, result.status) == ("accepted", "degraded")
    if result.run is not None:
        listed = result.run.client.queries.items(result.run.id, disposition="quarantine")
        assert [item.seq for item in listed] == ([0] if disposition == "quarantine" else [])


@pytest.mark.row("D11")
def test_a_contract_failure_always_fails_the_run(driver: Driver) -> None:
    result = driver.run("reusable", items=[{}, {}], by_item={0: [{"n": 1, "response": "none"}]}, window=1)
    bad, good = result.outcomes
    assert (bad.status, bad.reason, bad.disposition) == ("failed", "contract_failure", "fail_run")
    assert good.status == "cancelled"
    assert result.status == "failed"

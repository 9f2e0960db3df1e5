"""Budgets: three that are apart, and what spends none of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest
from conformance_kit.drivers import Driver, Result, Workers
from conformance_kit.workers import DOUBLING, PLAIN

from remand import PipelineError
from remand.testing import Reply


def gaps(result: Result) -> list[float]:
    """Seconds between the requests of a run, as the server saw them come."""
    return [after.request.at - before.request.at for before, after in pairwise(result.exchanges)]


@pytest.mark.row("B1")
def test_retries_0_is_exactly_one_generation(driver: Driver) -> None:
    replies = {0: ['{"n": 1}'], 1: ["no JSON"], 2: [Reply("", status=500)], 3: [Reply(drop=True)]}
    items = [{"plan": {"b": ["reject:no"]}}, {}, {}, {}]
    for number, reason in enumerate(
        ("semantic_rejection", "structural_failure", "operational_failure", "operational_failure")
    ):
        result = driver.run("plain_0", replies=replies[number], plan=items[number].get("plan"))
        assert result.generations == result.outcome.generations == 1
        assert (result.outcome.attempts, result.outcome.reason) == (1, reason)


@pytest.mark.row("B2")
@pytest.mark.parametrize("field", ["retries", "repairs", "execution_retries"])
def test_negative_budgets_are_refused_when_loaded_naming_the_field(driver: Driver, field: str) -> None:
    with pytest.raises(PipelineError) as refused:
        driver.load(f"conformance_kit.bad_{field}:pipeline")
    assert f"{field} must not be negative" in refused.value.problem
    if driver.name == "workers":
        assert isinstance(driver, Workers)
        assert driver.stack is not None
        assert not [run for run in driver.stack.client.queries.runs(1_000) if f"bad_{field}" in run.target]


@pytest.mark.row("B3")
def test_retries_and_repairs_multiply_and_attempts_begin_with_the_ordinary_request(driver: Driver) -> None:
    result = driver.run("repairing", replies=["no JSON"])
    requests = result.requests()
    assert result.generations == result.outcome.generations == len(requests) == 6
    assert (result.outcome.reason, result.outcome.attempts) == ("structural_failure", 3)
    assert requests[0] == requests[2] == requests[4]
    assert all(len(requests[number]) == len(requests[0]) + 2 for number in (1, 3, 5))
    assert result.calls("a") == 0


@pytest.mark.row("B4")
def test_structural_failures_and_rejections_share_the_outer_budget(driver: Driver) -> None:
    replies = ["no JSON", "no JSON", '{"n": 1}', '{"n": 2}']
    result = driver.run("plain_3", replies=replies, plan={"b": ["reject:no"]})
    requests = result.requests()
    assert result.generations == 4
    assert requests[2] == requests[0]
    assert requests[3][-2] == {"role": "assistant", "content": '{"n": 1}'}
    assert (result.outcome.reason, result.outcome.attempts) == ("semantic_rejection", 4)


THROTTLED = Reply("", status=429, headers={"retry-after-ms": "150"})


@pytest.mark.row("B5")
def test_throttling_spends_no_budget_and_its_waits_are_honoured(driver: Driver) -> None:
    result = driver.run("plain_0", replies=[*[THROTTLED] * 10, {"n": 1}])
    assert len(result.exchanges) == 11
    assert result.generations == result.outcome.generations == 1
    assert (result.outcome.status, result.outcome.attempts) == ("accepted", 1)
    assert min(gaps(result)) >= 0.15
    assert len({exchange.text for exchange in result.exchanges}) == 1


@pytest.mark.row("B5")
def test_throttling_in_the_middle_keeps_the_correction(driver: Driver) -> None:
    result = driver.run(
        "plain_1", replies=['{"n": 1}', THROTTLED, THROTTLED, '{"n": 2}'], plan={"b": ["reject:no", "accept"]}
    )
    requests = result.requests()
    assert result.generations == 2
    assert requests[1] == requests[2] == requests[3]
    assert len(requests[1]) == len(requests[0]) + 2
    assert (result.outcome.status, result.outcome.attempts) == ("accepted", 2)


@pytest.mark.row("B6")
def test_provider_errors_are_retried_with_a_growing_backoff(driver: Driver) -> None:
    trouble = Reply("", status=500)
    result = driver.run("slow_backoff", replies=[trouble, trouble, {"n": 1}])
    assert result.generations == result.outcome.generations == 3
    assert (result.outcome.status, result.outcome.attempts) == ("accepted", 3)
    first, second = gaps(result)
    assert first >= 0.2  # 0.4 s, of which jitter takes off up to a half
    assert second >= 0.4


@pytest.mark.row("B7")
@pytest.mark.parametrize(
    "trouble",
    [
        Reply("", status=500, headers={"x-should-retry": "true"}),
        Reply("", status=503, headers={"retry-after": "0"}),
        Reply("", status=408),
        Reply("", status=409),
        Reply(drop=True),
    ],
    ids=["500", "503", "408", "409", "dropped"],
)
def test_the_server_counts_exactly_the_generations_of_the_outcome(driver: Driver, trouble: Reply) -> None:
    result = driver.run("plain_1", replies=[trouble])
    assert len(result.exchanges) == result.generations == result.outcome.generations == 2
    assert result.outcome.reason == "operational_failure"


@pytest.mark.row("B7")
def test_the_sdk_does_not_retry_a_429_by_itself(driver: Driver) -> None:
    result = driver.run("plain_0", replies=[THROTTLED, {"n": 1}])
    assert len(result.exchanges) == 2
    assert gaps(result)[0] >= 0.15
    assert result.outcome.generations == 1


@pytest.mark.row("B8")
def test_the_same_pipeline_run_twice_has_the_same_budgets(driver: Driver) -> None:
    seen = []
    for _ in range(2):
        spent = driver.run("repairing", replies=["no JSON"])
        judged = driver.run("plain_1", plan={"a": ["raise"], "b": ["reject:no"]})
        seen.append(
            SimpleNamespace(
                repaired=(spent.generations, spent.outcome.attempts),
                judged=(judged.generations, judged.calls("a"), judged.calls("b"), judged.outcome.reason),
            )
        )
    assert seen[0] == seen[1]
    assert seen[0] == SimpleNamespace(repaired=(6, 3), judged=(2, 2, 2, "semantic_rejection"))


@pytest.mark.row("B9")
def test_every_message_delivered_twice_changes_nothing(
    driver: Driver, own_stack: Callable[..., Workers]
) -> None:
    items = [
        {},
        {"plan": {"b": ["reject:no", "accept"]}},
        {"plan": {"a": ["raise"]}},
        {"plan": {"c": ["raise", "reject:no", "accept"]}},
        {"plan": {"b": ["reject:no"]}},
    ] * 4
    by_item = {number: ["no JSON", {"n": 1}] for number in range(0, len(items), 5)}
    double = own_stack(count=2, program=DOUBLING + PLAIN)
    once, twice = (each.run("go_on", items=items, by_item=by_item) for each in (driver, double))
    assert _counts(twice) == _counts(once)
    assert twice.status == once.status == "degraded"
    assert double.stack is not None
    received = [line for line in double.stack.lines() if "received" in str(line.get("event"))]
    kicks = {str(line["event"]).split("[")[1].split("]")[0] for line in received}
    assert len(received) >= 2 * len(kicks) - 2


def _counts(result: Result) -> list[tuple[object, ...]]:
    return [
        (
            outcome.status,
            outcome.reason,
            outcome.attempts,
            outcome.generations,
            len(result.requests(number)),
            *(result.calls(name, item=number) for name in "abc"),
        )
        for number, outcome in enumerate(result.outcomes)
    ]


@pytest.mark.row("B10")
def test_a_deadline_that_passes_while_throttled_closes_the_item(driver: Driver) -> None:
    result = driver.run("short_deadline", replies=[Reply("", status=429, headers={"retry-after": "3600"})])
    outcome = result.outcome
    assert (outcome.status, outcome.reason, outcome.code) == ("failed", "operational_failure", "deadline")
    assert outcome.generations == 0
    assert len(result.exchanges) == 1
    assert result.status == "failed"

"""Retries that a producer asks for itself: guidance, fallbacks, and what breaks the contract."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conformance_kit.drivers import Driver

from remand.testing import Reply


def retry(n: int | None = None, **fields: Any) -> dict[str, Any]:
    """A reply that makes the producer ask for a retry, with `{"n": n}` as its fallback."""
    return {"retry": {"fallback": None if n is None else {"n": n}, **fields}}


@pytest.mark.row("M1")
def test_guidance_with_its_response_corrects_the_next_request(driver: Driver) -> None:
    asked = json.dumps(retry(guidance="group 3 cannot be"))
    result = driver.run("asks", replies=[asked, {"n": 5}])
    first, second = result.requests()
    assert result.generations == result.outcome.generations == 2
    assert second[:-2] == first
    assert second[-2] == {"role": "assistant", "content": asked}
    assert second[-1]["role"] == "user"
    assert "group 3 cannot be" in second[-1]["content"]
    assert (result.outcome.status, result.outcome.value.n) == ("accepted", 5)
    assert not result.outcome.fallback


@pytest.mark.row("M2")
def test_a_retry_request_without_guidance_makes_a_fresh_attempt(driver: Driver) -> None:
    result = driver.run("asks", replies=[retry(1), {"n": 5}])
    first, second = result.requests()
    assert second == first
    assert (result.outcome.status, result.outcome.value.n, result.outcome.attempts) == ("accepted", 5, 2)


@pytest.mark.row("M2")
def test_a_retry_request_without_guidance_drops_a_pending_correction(driver: Driver) -> None:
    result = driver.run("asks", replies=[{"n": 1}, retry(1), {"n": 5}], plan={"b": ["reject:no", "accept"]})
    first, second, third = result.requests()
    assert len(second) == len(first) + 2
    assert third == first


@pytest.mark.row("M3")
@pytest.mark.parametrize("response", ["none", "empty"])
def test_guidance_without_its_response_is_a_contract_failure(driver: Driver, response: str) -> None:
    result = driver.run("asks", replies=[{**retry(1, guidance="do better"), "response": response}])
    _assert_broken(driver, result)


@pytest.mark.row("M4")
@pytest.mark.parametrize(
    ("pipeline", "guidance"), [("asks_undeclared", "do better"), ("asks", ""), ("asks", " \n\t ")]
)
def test_blank_or_undeclared_guidance_is_a_contract_failure(
    driver: Driver, pipeline: str, guidance: str
) -> None:
    _assert_broken(driver, driver.run(pipeline, replies=[retry(1, guidance=guidance)]))


def _assert_broken(driver: Driver, result: Any) -> None:
    outcome = result.outcome
    assert result.generations == 1
    assert (outcome.status, outcome.reason, outcome.disposition) == ("failed", "contract_failure", "fail_run")
    assert outcome.value is None
    assert result.status == "failed"


@pytest.mark.row("M5")
def test_when_attempts_are_exhausted_the_fallback_is_judged_and_marked(driver: Driver) -> None:
    codes = [f"code_{number}" for number in range(12)]
    replies = [retry(7, guidance="do better", diagnostics=codes)]
    result = driver.run("asks", replies=replies)
    outcome = result.outcome
    assert result.generations == outcome.generations == 3
    assert (outcome.status, outcome.value.n, outcome.fallback) == ("accepted", 7, True)
    assert [result.calls(name) for name in "ab"] == [1, 1]
    assert result.notes("a")[0]["value"]["n"] == 7
    assert outcome.diagnostics == tuple(codes[:8])
    assert result.status == "degraded"
    if driver.name == "workers":
        again = driver.run("asks", replies=replies, case=result.folder.name, reuse=True)
        assert (again.generations, again.outcome.reused) == (3, False)


@pytest.mark.row("M5")
def test_a_broken_validator_is_asked_again_about_the_fallback(driver: Driver) -> None:
    result = driver.run("asks_0", replies=[retry(7)], plan={"a": ["raise", "accept"]})
    assert result.generations == 1
    assert [result.calls(name) for name in "ab"] == [2, 1]
    assert (result.outcome.status, result.outcome.fallback) == ("accepted", True)


@pytest.mark.row("M6")
def test_a_fallback_that_a_validator_rejects_closes_as_semantic_rejection(driver: Driver) -> None:
    result = driver.run("asks", replies=[retry(7)], plan={"b": ["reject:no"]})
    outcome = result.outcome
    assert result.generations == 3
    assert (outcome.status, outcome.reason) == ("rejected", "semantic_rejection")
    assert (outcome.value, outcome.fallback) == (None, False)
    assert result.calls("b") == 1


@pytest.mark.row("M7")
def test_module_retries_and_rejections_share_the_outer_budget(driver: Driver) -> None:
    replies = [retry(7, guidance="do better"), {"n": 1}, retry(8, guidance="still not")]
    result = driver.run("asks", replies=replies, plan={"b": ["reject:no", "accept"]})
    outcome = result.outcome
    assert result.generations == outcome.generations == outcome.attempts == 3
    assert (outcome.status, outcome.fallback, outcome.value.n) == ("accepted", True, 8)
    assert outcome.corrections == 2


@pytest.mark.row("M7")
def test_a_rejection_on_the_last_attempt_is_no_place_for_a_fallback(driver: Driver) -> None:
    replies = [retry(7), {"n": 1}, {"n": 2}]
    result = driver.run("asks", replies=replies, plan={"b": ["reject:no"]})
    assert result.generations == 3
    assert (result.outcome.status, result.outcome.reason) == ("rejected", "semantic_rejection")


@pytest.mark.row("M8")
@pytest.mark.parametrize("trouble", ["no JSON", Reply("", status=500)], ids=["structural", "operational"])
def test_a_kept_fallback_survives_later_failures(driver: Driver, trouble: object) -> None:
    result = driver.run("asks", replies=[retry(7, guidance="do better"), trouble])
    outcome = result.outcome
    assert result.generations == outcome.generations == 3
    assert (outcome.status, outcome.fallback, outcome.value.n) == ("accepted", True, 7)
    assert result.calls("a") == 1


@pytest.mark.row("M9")
def test_the_fallback_of_the_highest_rank_is_judged(driver: Driver) -> None:
    result = driver.run("asks", replies=[retry(rank, rank=rank) for rank in (2, 3, 1)])
    assert result.generations == 3
    assert (result.outcome.fallback, result.outcome.value.n) == (True, 3)


@pytest.mark.row("M9")
def test_of_equal_ranks_the_later_fallback_is_judged(driver: Driver) -> None:
    result = driver.run("asks", replies=[retry(n, rank=4) for n in (1, 2, 3)])
    assert result.outcome.value.n == 3

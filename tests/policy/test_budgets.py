"""Budgets, the worst case that they make exact, and waiting between operational failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remand_policy import Backoff, check_budget, worst_case


@pytest.mark.parametrize("field", ["retries", "repairs", "execution_retries"])
def test_negative_budget_is_refused_naming_owner_and_field(field: str) -> None:
    """B2."""
    with pytest.raises(ValueError, match=f"^stage 'extract': {field} must not be negative, it is -1$"):
        check_budget("stage 'extract'", field, -1)


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, [1]])
def test_budget_that_is_no_whole_number_is_refused_naming_its_kind(value: object) -> None:
    with pytest.raises(
        ValueError, match=f"^stage: retries must be a whole number, not {type(value).__name__}$"
    ):
        check_budget("stage", "retries", value)


@pytest.mark.parametrize("value", [0, 1, 10**9])
def test_budget_is_given_back(value: int) -> None:
    assert check_budget("stage", "retries", value) == value


def test_worst_case_of_one_stage() -> None:
    worst = worst_case([("extract", 2, 1, {"year": 1, "title": 0})])
    assert worst.generations == 6
    assert worst.validator_calls == {"extract/year": 6, "extract/title": 3}


def test_budgets_of_zero_mean_one_call_each() -> None:
    worst = worst_case([("extract", 0, 0, {"year": 0})])
    assert (worst.generations, dict(worst.validator_calls)) == (1, {"extract/year": 1})


def test_worst_case_of_stages_adds_up_and_keeps_their_validators_apart() -> None:
    worst = worst_case([("a", 1, 0, {"v": 1}), ("b", 3, 2, {"v": 0}), ("c", 0, 0, {})])
    assert worst.generations == 2 + 12 + 1
    assert worst.validator_calls == {"a/v": 4, "b/v": 4}


def test_no_stages_cost_nothing() -> None:
    assert worst_case([]).generations == 0


def test_worst_case_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        worst_case([]).validator_calls["a"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (10**9, 60.0)]
)
def test_backoff_doubles_up_to_its_cap(attempt: int, seconds: float) -> None:
    assert Backoff().delay(attempt, jitter=0.0) == seconds


def test_jitter_takes_off_up_to_a_half() -> None:
    assert Backoff(base=8.0).delay(1, jitter=0.5) == 6.0


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True), st.floats(0, 100), st.floats(0, 1000))
def test_backoff_stays_between_half_and_whole(attempt: int, jitter: float, base: float, more: float) -> None:
    backoff = Backoff(base=base, cap=base + more)
    whole = backoff.delay(attempt, 0.0)
    assert whole / 2 <= backoff.delay(attempt, jitter) <= whole <= backoff.cap


@pytest.mark.parametrize(("base", "cap"), [(-1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0), (1.0, float("nan"))])
def test_backoff_that_makes_no_sense_is_refused(base: float, cap: float) -> None:
    with pytest.raises(ValueError, match="base must lie between 0 and cap"):
        Backoff(base=base, cap=cap)

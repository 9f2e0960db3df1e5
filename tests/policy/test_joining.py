"""When judgements suffice to make two clusters one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remand_policy import Evidence

counts = st.integers(0, 40)
sizes = st.integers(1, 500)
priors = st.floats(0, 1)
evidence = st.builds(Evidence, counts, counts, priors)


@given(evidence, evidence, evidence)
def test_order_of_judgements_does_not_matter(one: Evidence, other: Evidence, third: Evidence) -> None:
    assert one + other == other + one
    assert (one + other) + third == one + (other + third)


@given(evidence, evidence)
def test_sum_counts_every_judgement_and_keeps_the_best_prior(one: Evidence, other: Evidence) -> None:
    both = one + other
    assert both.judged == one.judged + other.judged
    assert both.prior == max(one.prior, other.prior)


@given(evidence)
def test_further_judgement_moves_the_chance_its_own_way(known: Evidence) -> None:
    assert (known + Evidence(positive=1, prior=0)).log_odds > known.log_odds
    assert (known + Evidence(negative=1, prior=0)).log_odds < known.log_odds


@given(evidence)
def test_chance_is_a_chance_and_says_what_the_odds_say(known: Evidence) -> None:
    assert 0 <= known.chance <= 1
    assert (known.chance > 0.5) == (known.log_odds > 0) or math.isclose(known.chance, 0.5)


@given(evidence, sizes, sizes)
def test_joining_is_symmetric_and_larger_clusters_need_no_less(
    known: Evidence, left: int, right: int
) -> None:
    assert known.joins(left, right) == known.joins(right, left)
    if known.joins(left + 1, right):
        assert known.joins(left, right)


@given(counts, counts, priors, sizes, sizes)
def test_nothing_joins_without_a_majority(
    positive: int, negative: int, prior: float, left: int, right: int
) -> None:
    if positive <= negative:
        assert not Evidence(positive, negative, prior).joins(left, right)


@given(evidence, sizes, sizes)
def test_join_is_likelier_right_than_the_pairs_it_would_spoil_allow(
    known: Evidence, left: int, right: int
) -> None:
    if known.joins(left, right) and abs(known.log_odds) < 30:
        assert 1 - known.chance < 1 / (2 * left * right) + 1e-9


@pytest.mark.parametrize(
    ("known", "left", "right", "joins"),
    [
        (Evidence(1, 0, 0.9), 1, 1, True),  # looked alike and was called the same
        (Evidence(1, 0, 0.0), 1, 1, False),  # only shared a prompt: one call may be a mistake
        (Evidence(2, 0, 0.0), 1, 1, True),
        (Evidence(2, 0, 0.0), 20, 20, False),  # would spoil 400 pairs
        (Evidence(4, 0, 0.0), 20, 20, True),
        (Evidence(3, 2, 0.9), 1, 5, True),
        (Evidence(2, 2, 0.999), 1, 4, False),
        (Evidence(0, 0, 1.0), 1, 1, False),  # however alike
    ],
)
def test_examples(known: Evidence, left: int, right: int, joins: bool) -> None:
    assert known.joins(left, right) is joins

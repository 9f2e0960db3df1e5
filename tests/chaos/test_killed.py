"""Proof by killing, on both stacks: what is promised of every item holds whatever dies, freezes or is emptied.

The whole of it is `make chaos`; here each scenario runs once, small. A test marked `chaos` is left to that.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from chaos_kit import scenarios
from chaos_kit.checks import Tally
from chaos_kit.scenarios import KILL_POINTS, Ground
from chaos_kit.stacks import POSTGRES, SQLITE

pytestmark = [pytest.mark.workers, pytest.mark.timeout(240)]

Holds = Callable[[Tally], None]

# One point each of the kinds: before a claim, in a call, behind it, in a judgement, around the commit, in the pulse.
SOME = (
    "produce.called",
    "validate.judged",
    "coordinate.committing",
    "coordinate.committed",
    "dispatch.opened",
)


@pytest.mark.parametrize("point", SOME)
def test_q1_every_item_closes_once_when_a_worker_is_killed_at(
    ground: Ground, holds: Holds, point: str
) -> None:
    tally = scenarios.killed_at(ground, point, times=3, items=12)
    holds(tally)
    assert tally.times == 3


@pytest.mark.chaos
@pytest.mark.parametrize("point", KILL_POINTS)
def test_q1_every_item_closes_once_whatever_the_point(ground: Ground, holds: Holds, point: str) -> None:
    tally = scenarios.killed_at(ground, point)
    holds(tally)
    assert tally.times > 0


def test_q2_the_run_finishes_when_the_broker_is_emptied(ground: Ground, holds: Holds) -> None:
    holds(scenarios.broker_emptied(ground, times=2))


def test_q3_a_late_result_changes_nothing(ground: Ground, holds: Holds) -> None:
    holds(scenarios.frozen_long(ground, "produce.called"))


def test_q3_a_result_within_the_claim_counts(ground: Ground, holds: Holds) -> None:
    holds(scenarios.frozen_briefly(ground, times=2))


@pytest.mark.parametrize("ground", [POSTGRES], indirect=True)
def test_q3_a_worker_frozen_in_a_transaction_does_not_hold_the_run(ground: Ground, holds: Holds) -> None:
    holds(scenarios.frozen_in_a_transaction(ground))


@pytest.mark.parametrize("ground", [SQLITE], indirect=True)
def test_q4_a_poison_input_closes_and_every_neighbour_finishes(ground: Ground, holds: Holds) -> None:
    holds(scenarios.poisoned(ground))


@pytest.mark.chaos
@pytest.mark.parametrize("poison", [1, 2])
def test_q4_poison_on_every_stack(ground: Ground, holds: Holds, poison: int) -> None:
    holds(scenarios.poisoned(ground, poison=poison))


def test_q5_consumption_resumes_when_the_broker_was_restarted(ground: Ground, holds: Holds) -> None:
    holds(scenarios.broker_restarted(ground))


def test_q6_sigterm_loses_nothing_and_pays_nothing_twice(ground: Ground, holds: Holds) -> None:
    holds(scenarios.told_to_stop(ground))


def test_q7_a_cancelled_run_stays_cancelled(ground: Ground, holds: Holds) -> None:
    holds(scenarios.cancelled_while_down(ground))


@pytest.mark.parametrize("seconds", [900.0, -900.0])
def test_q8_a_clock_that_is_off_steals_nothing(ground: Ground, holds: Holds, seconds: float) -> None:
    holds(scenarios.another_clock(ground, seconds=seconds))


def test_q9_odd_outputs_and_exceptions_end_cleanly(ground: Ground, holds: Holds) -> None:
    holds(scenarios.odd_values(ground))


@pytest.mark.parametrize("ground", [SQLITE], indirect=True)
def test_q11_a_long_run_is_flat(ground: Ground, holds: Holds) -> None:
    holds(scenarios.long_run(ground, items=2_000))


@pytest.mark.chaos
@pytest.mark.parametrize("ground", [POSTGRES], indirect=True)
def test_q11_a_long_run_is_flat_there_too(ground: Ground, holds: Holds) -> None:
    holds(scenarios.long_run(ground, items=2_000))


@pytest.mark.parametrize("ground", [SQLITE], indirect=True)
def test_q12_another_version_leaves_the_items_due(ground: Ground, holds: Holds) -> None:
    holds(scenarios.another_version(ground))


@pytest.mark.chaos
@pytest.mark.parametrize("ground", [POSTGRES], indirect=True)
def test_q12_another_version_leaves_the_items_due_there_too(ground: Ground, holds: Holds) -> None:
    holds(scenarios.another_version(ground))


@pytest.mark.parametrize("kinds", [("attempt",), ("vault",), ("attempt", "vault")], ids="+".join)
def test_q13_the_run_finishes_when_these_are_flushed(
    ground: Ground, holds: Holds, kinds: tuple[str, ...]
) -> None:
    holds(scenarios.flushed(ground, *kinds, times=2))


def test_v13_a_worker_that_dies_judging_is_no_acceptance(ground: Ground, holds: Holds) -> None:
    holds(scenarios.judged_to_death(ground))


def test_c10_a_correction_that_is_gone_is_not_made_up(ground: Ground, holds: Holds) -> None:
    holds(scenarios.correction_expired(ground))


def test_b9_every_message_twice_changes_nothing(ground: Ground, holds: Holds) -> None:
    holds(scenarios.doubled(ground))


@pytest.mark.chaos
def test_a_fifth_of_the_messages_may_be_lost(ground: Ground, holds: Holds) -> None:
    holds(scenarios.dropped(ground, items=12))


@pytest.mark.chaos
def test_q1_killed_anywhere(ground: Ground, holds: Holds) -> None:
    holds(scenarios.killed_at_random(ground))


@pytest.mark.chaos
def test_q1_all_killed_at_once(ground: Ground, holds: Holds) -> None:
    holds(scenarios.all_killed_at_once(ground))


@pytest.mark.parametrize("ground", [POSTGRES], indirect=True)
def test_the_task_queues_on_rabbitmq_are_quorum_queues(ground: Ground, holds: Holds) -> None:
    holds(ground.run("none", inputs=[{"do": "good"}]))
    assert set(ground.stack.queue_types().values()) == {"quorum"}

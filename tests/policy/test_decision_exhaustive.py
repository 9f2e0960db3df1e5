"""Every history that an item can have in one stage, walked to its end.

A state is an item, whether a correction is pending, and (while a candidate is judged) where each validator stands.
From each state every report that a driver can give is tried, and `decide` and `after` lead on. The walk keeps, for
each state, the most that can still be generated and judged from there; a state that can reach itself would be an
item that never ends.

Counted apart, as the design says: a recovery or a reopening allows one generation more and one more judged response.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

import pytest

from remand_policy import (
    Advance,
    Again,
    Close,
    Decision,
    Guidance,
    Item,
    JudgeFallback,
    Judgement,
    Policy,
    Production,
    Reason,
    Report,
    Response,
    Retry,
    Revalidate,
    Rules,
    Situation,
    Source,
    Status,
    Verdict,
    after,
    decide,
)

RANKS = (None, 1, 2)
GENERATES = frozenset(
    {
        Production.CANDIDATE,
        Production.STRUCTURAL,
        Production.OPERATIONAL,
        Production.RETRY,
        Production.CONTRACT,
        Production.LOST,
        Production.GONE,
        Production.NOREC,
    }
)
"""What may have cost a generation. A lost, gone or unrecorded one is charged as if it had."""


def _without_candidate() -> list[Report]:
    plain = [Report(production=p) for p in Production if p not in (Production.CANDIDATE, Production.RETRY)]
    asked = [
        Report(production=Production.RETRY, guidance=guidance, response=response, fallback=rank)
        for guidance, response in (
            (Guidance.ABSENT, Response.ABSENT),
            (Guidance.PRESENT, Response.USABLE),
            (Guidance.PRESENT, Response.UNUSABLE),
            (Guidance.BLANK, Response.USABLE),
        )
        for rank in RANKS
    ]
    return [*plain, *asked, Report(production=Production.CANDIDATE, response=Response.ABSENT)]


WITHOUT_CANDIDATE = _without_candidate()
"""Every report of an execution that gave nothing to judge. The last is a candidate without its response."""


@dataclass(frozen=True, slots=True)
class Most:
    """The most that can happen from a state on: generations, judged responses, calls of each validator."""

    generations: int = 0
    responses: int = 0
    calls: tuple[int, ...] = ()

    def __or__(self, other: Most) -> Most:
        return Most(
            max(self.generations, other.generations),
            max(self.responses, other.responses),
            tuple(max(pair) for pair in zip(self.calls, other.calls, strict=True)),
        )

    def __add__(self, other: Most) -> Most:
        return Most(
            self.generations + other.generations,
            self.responses + other.responses,
            tuple(a + b for a, b in zip(self.calls, other.calls, strict=True)),
        )


Class = tuple[int, int | None, bool, bool]
"""What a candidate's decision may depend on: attempt, fallback, whether it is judged, lateness."""
Exit = tuple[Decision, Report]


class Walk:
    """All histories under one set of rules."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.none = Most(calls=(0,) * len(rules.execution_retries))
        self.allowance = Most(-1, -1, tuple(-1 - extra for extra in rules.execution_retries))
        self.known: dict[tuple[Item, bool], Most] = {}
        self.open: set[tuple[Item, bool]] = set()
        self.exits: dict[Class, dict[Decision, tuple[Report, tuple[int, ...]]]] = {}
        self.ends: set[Decision] = set()
        self.judged_again = 0

    def run(self) -> Most:
        return self.reached(Item(), pending=False)

    def reached(self, item: Item, *, pending: bool) -> Most:
        """The most from a state in which the producer is about to run (or the fallback about to be judged)."""
        state = (item, pending)
        if state in self.known:
            return self.known[state]
        assert state not in self.open, f"an item could come back to {state} for ever"
        self.open.add(state)
        most = reduce(Most.__or__, self.futures(item, pending), self.none)
        self.open.remove(state)
        self.known[state] = most
        return most

    def futures(self, item: Item, pending: bool) -> Iterator[Most]:
        for late in {item.late, True}:
            found = replace(item, late=late)
            fresh = not item.judging_fallback
            full = tuple(1 + extra for extra in self.rules.execution_retries)
            for decision, (report, calls) in self.candidates(found).items():
                cost = Most(int(fresh), 1, calls)
                yield cost + self.follow(found, pending, report, decision)
            for report in self.failures(found, pending):
                decision = self.decided(found, report)
                judged = report.production in (Production.GONE, Production.NOREC)
                cost = Most(
                    int(fresh and report.production in GENERATES),
                    int(judged),
                    full if judged else self.none.calls,  # it may have been judged before it went missing
                )
                yield cost + self.follow(found, pending, report, decision)

    def failures(self, item: Item, pending: bool) -> Iterator[Report]:
        for report in WITHOUT_CANDIDATE:
            if report.production is Production.UNREADABLE and not pending:
                continue  # there was nothing to read
            if item.judging_fallback and report.production not in (Production.GONE, Production.NOREC):
                continue  # the producer does not run
            if report.production is Production.CANDIDATE and not self.rules.corrections:
                continue  # no breach, and tried among the candidates
            yield report

    def candidates(self, item: Item) -> dict[Decision, tuple[Report, tuple[int, ...]]]:
        """Every way out of judging one response, with a report that leads there and the most calls on the way.

        That these do not depend on an item's counters is a property proved elsewhere, so each class is judged once.
        """
        key = (item.attempt, item.fallback, item.judging_fallback, item.late)
        if key in self.exits:
            return self.exits[key]
        plain = Item(
            attempt=item.attempt,
            fallback=item.fallback,
            judging_fallback=item.judging_fallback,
            late=item.late,
        )
        exits: dict[Decision, tuple[Report, tuple[int, ...]]] = {}
        tried: set[tuple[Judgement, ...]] = set()
        size = len(self.rules.execution_retries)
        standings = [tuple(map(Judgement, verdicts)) for verdicts in itertools.product(Verdict, repeat=size)]
        while standings:
            standing = standings.pop()
            if standing in tried:
                continue
            tried.add(standing)
            report = Report(production=Production.CANDIDATE, response=Response.USABLE, verdicts=standing)
            decision = self.decided(plain, report)
            if isinstance(decision, Revalidate):
                self.judged_again += 1
                standings += self.asked_again(standing, decision)
                continue
            calls = tuple(judgement.tries for judgement in standing)
            assert all(n <= 1 + extra for n, extra in zip(calls, self.rules.execution_retries, strict=True))
            _, most = exits.get(decision, (report, calls))
            exits[decision] = report, tuple(map(max, most, calls))
        self.exits[key] = exits
        return exits

    def asked_again(
        self, standing: tuple[Judgement, ...], decision: Revalidate
    ) -> Iterator[tuple[Judgement, ...]]:
        undetermined_with_retries = tuple(
            index
            for index, (judgement, extra) in enumerate(
                zip(standing, self.rules.execution_retries, strict=True)
            )
            if judgement.verdict is Verdict.UNDETERMINED and judgement.tries < 1 + extra
        )
        assert decision.ask == undetermined_with_retries != ()
        for verdicts in itertools.product(Verdict, repeat=len(decision.ask)):
            again = list(standing)
            for index, verdict in zip(decision.ask, verdicts, strict=True):
                again[index] = Judgement(verdict, standing[index].tries + 1)
            yield tuple(again)

    def decided(self, item: Item, report: Report) -> Decision:
        decision = decide(item, report, self.rules)
        verdicts = [judgement.verdict for judgement in report.verdicts]
        if Verdict.REJECTED in verdicts:
            assert not isinstance(decision, Advance | Revalidate), "a rejected candidate advanced"
        elif Verdict.UNDETERMINED in verdicts:
            assert not isinstance(decision, Retry | Again), "an undetermined verdict generated"
            assert not (isinstance(decision, Advance) and decision.status is Status.ACCEPTED)
        if report.production is not Production.CANDIDATE:
            assert not isinstance(decision, Advance), "something that is no candidate advanced"
        if isinstance(decision, Close) and decision.reason is Reason.SEMANTIC_REJECTION:
            assert Verdict.REJECTED in verdicts
        return decision

    def follow(self, item: Item, pending: bool, report: Report, decision: Decision) -> Most:
        """The most after this decision; the pending correction goes where the decision says."""
        match decision:
            case Advance() | Close():
                self.ends.add(decision)
                return self.none
            case Revalidate():
                raise AssertionError("judging again is followed where responses are judged")
            case Retry(correction=correction):
                assert not item.late
                assert item.attempt < 1 + self.rules.retries
                if correction in (Source.FINDINGS, Source.GUIDANCE):
                    assert self.rules.corrections
                    assert report.response is Response.USABLE
                kept = correction is Source.KEPT and pending
                found = after(item, decision, report)
                self.keeps_the_best_fallback(item, report, found)
                return self.reached(found, pending=kept or correction in (Source.FINDINGS, Source.GUIDANCE))
            case JudgeFallback():
                found = after(item, decision, report)
                assert found.judging_fallback
                assert found.fallback is not None
                self.keeps_the_best_fallback(item, report, found)
                return self.reached(found, pending=False)
            case Again(because=because):
                found = after(item, decision, report)
                rest = self.reached(found, pending=pending and because is not Situation.UNREADABLE)
                if because not in (Situation.GONE, Situation.LOST, Situation.NOREC):
                    return rest
                # A fallback whose record is opened again is judged again, and nothing is generated for it.
                return rest + (
                    replace(self.allowance, generations=0) if found.judging_fallback else self.allowance
                )

    def keeps_the_best_fallback(self, item: Item, report: Report, found: Item) -> None:
        offered = report.fallback if report.production is Production.RETRY else None
        ranks = [rank for rank in (item.fallback, offered) if rank is not None]
        assert found.fallback == max(ranks, default=None)


def rules(
    retries: int,
    execution_retries: tuple[int, ...],
    *,
    corrections: bool,
    blind_retries: bool,
    cap: int,
    policy: Policy | None = None,
) -> Rules:
    return Rules(
        retries=retries,
        execution_retries=execution_retries,
        corrections=corrections,
        blind_retries=blind_retries,
        policy=policy or Policy(),
        max_recoveries=cap,
        max_reopens=cap,
        max_throttles=cap,
    )


def check(stage: Rules) -> Walk:
    """Walk all histories; that they end and keep every bound is asserted, and that the bounds are reached."""
    walk = Walk(stage)
    most = walk.run()
    attempts = 1 + stage.retries
    assert most.generations == attempts
    assert most.responses <= attempts
    for calls, extra in zip(most.calls, stage.execution_retries, strict=True):
        assert calls <= attempts * (1 + extra)
    if stage.execution_retries and (stage.corrections or stage.blind_retries):
        # A worst case that no history reaches would be a promise too weak to be of use.
        assert most.responses == attempts
        assert most.calls == tuple(attempts * (1 + extra) for extra in stage.execution_retries)
    return walk


@pytest.mark.parametrize("execution_retries", range(3))
@pytest.mark.parametrize("blind_retries", [False, True], ids=["", "blind"])
@pytest.mark.parametrize("corrections", [False, True], ids=["plain", "corrections"])
@pytest.mark.parametrize("retries", range(4))
def test_every_item_ends_within_its_budgets(
    retries: int, corrections: bool, blind_retries: bool, execution_retries: int
) -> None:
    stage = rules(
        retries, (execution_retries,) * 3, corrections=corrections, blind_retries=blind_retries, cap=2
    )
    walk = check(stage)
    assert bool(walk.judged_again) is (execution_retries > 0)
    statuses = {end.status for end in walk.ends if isinstance(end, Advance | Close)}
    assert statuses == set(Status)


@pytest.mark.parametrize("fail", [False, True], ids=["warn", "fail"])
@pytest.mark.parametrize("execution_retries", [(), (0,), (2, 1), (0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("corrections", [False, True], ids=["blind", "corrections"])
@pytest.mark.parametrize("retries", range(3))
def test_every_item_ends_whatever_each_validator_is_allowed(
    retries: int, corrections: bool, execution_retries: tuple[int, ...], fail: bool
) -> None:
    policy = Policy(validator_execution_failure="fail_run" if fail else "warn_continue")
    walk = check(
        rules(retries, execution_retries, corrections=corrections, blind_retries=True, cap=1, policy=policy)
    )
    incomplete = any(isinstance(end, Advance) and end.status is Status.INCOMPLETE for end in walk.ends)
    assert incomplete is (not fail and execution_retries != ())


@pytest.mark.parametrize("cap", [0, 1, 4])
def test_every_item_ends_at_other_caps(cap: int) -> None:
    check(rules(1, (1,), corrections=True, blind_retries=False, cap=cap))


def test_fallback_judged_after_the_last_attempt_stays_within_the_worst_case() -> None:
    """The attempt that offered it gave no candidate, so its judgement takes the place of that attempt's."""
    stage = rules(2, (1,), corrections=True, blind_retries=False, cap=0)
    judged = Report(
        production=Production.CANDIDATE, response=Response.USABLE, verdicts=(Judgement(Verdict.REJECTED),)
    )
    offer = Report(production=Production.RETRY, fallback=0)
    for place in range(3):
        item, responses = Item(), 0
        for attempt in range(3):
            report = offer if attempt == place else judged
            responses += report is judged
            decision = decide(item, report, stage)
            item = after(item, decision, report)
        # Only where the last attempt asked does the fallback follow: two responses were judged before it.
        assert item.judging_fallback is (place == 2)
        assert responses + item.judging_fallback <= 3

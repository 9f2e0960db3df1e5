"""Every row of the decision table, by name: what an attempt gave, what was left, and what is decided."""

from __future__ import annotations

import dataclasses

import pytest

from remand_policy import (
    CANCELLED,
    TABLE,
    Advance,
    Again,
    Close,
    Decision,
    Disposition,
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
    breach,
    classify,
    decide,
    when_run_has_ended,
)

A, R, U = Verdict.ACCEPTED, Verdict.REJECTED, Verdict.UNDETERMINED
FIRST, LAST = Item(attempt=1), Item(attempt=3)
CORRECTABLE = Rules(retries=2, corrections=True)


def judged(*verdicts: Verdict, tries: int | tuple[int, ...] = 1) -> Report:
    """A candidate with its exact response and these verdicts."""
    each = tries if isinstance(tries, tuple) else (tries,) * len(verdicts)
    judgements = tuple(Judgement(v, t) for v, t in zip(verdicts, each, strict=True))
    return Report(production=Production.CANDIDATE, response=Response.USABLE, verdicts=judgements)


def gave(production: Production) -> Report:
    return Report(production=production)


def asked(
    guidance: Guidance = Guidance.ABSENT,
    *,
    fallback: int | None = None,
    response: Response = Response.USABLE,
) -> Report:
    return Report(production=Production.RETRY, guidance=guidance, response=response, fallback=fallback)


def rules(
    validators: int = 0,
    *,
    execution_retries: int | tuple[int, ...] = 1,
    corrections: bool = True,
    blind_retries: bool = False,
    retries: int = 2,
    policy: Policy | None = None,
) -> Rules:
    each = execution_retries if isinstance(execution_retries, tuple) else (execution_retries,) * validators
    return Rules(
        retries=retries,
        execution_retries=each,
        corrections=corrections,
        blind_retries=blind_retries,
        policy=policy or Policy(),
    )


def closed(reason: Reason, disposition: Disposition = Disposition.FAIL_RUN, code: str | None = None) -> Close:
    status = Status.REJECTED if reason is Reason.SEMANTIC_REJECTION else Status.FAILED
    return Close(status, reason, disposition, code)


# ---------------------------------------------------------------------------------- DESIGN's table, row by row

REJECTION = closed(Reason.SEMANTIC_REJECTION)
UNJUDGED = closed(Reason.VALIDATOR_EXECUTION_FAILURE)
STRUCTURAL = closed(Reason.STRUCTURAL_FAILURE)
OPERATIONAL = closed(Reason.OPERATIONAL_FAILURE)
FAIL_UNJUDGED = Policy(validator_execution_failure="fail_run")

ROWS: dict[str, tuple[Item, Report, Rules, Decision]] = {
    "all accepted, retries left": (FIRST, judged(A, A), rules(2), Advance(Status.ACCEPTED)),
    "all accepted, none left": (LAST, judged(A, A), rules(2), Advance(Status.ACCEPTED)),
    "no validators at all": (FIRST, judged(), rules(0), Advance(Status.ACCEPTED)),
    "rejected, corrections, retries left": (
        FIRST,
        judged(A, R, A),
        rules(3),
        Retry(Source.FINDINGS, rejections=(1,)),
    ),
    "rejected by two, in configured order": (
        FIRST,
        judged(R, A, R),
        rules(3),
        Retry(Source.FINDINGS, rejections=(0, 2)),
    ),
    "rejected, corrections beat blind retries": (
        FIRST,
        judged(R),
        rules(1, blind_retries=True),
        Retry(Source.FINDINGS, rejections=(0,)),
    ),
    "rejected, no corrections, retries left": (FIRST, judged(R), rules(1, corrections=False), REJECTION),
    "rejected, no corrections, blind retries allowed": (
        FIRST,
        judged(R),
        rules(1, corrections=False, blind_retries=True),
        Retry(Source.NONE),
    ),
    "rejected, last attempt": (LAST, judged(R), rules(1), REJECTION),
    "rejected, last attempt, blind retries allowed": (
        LAST,
        judged(R),
        rules(1, corrections=False, blind_retries=True),
        REJECTION,
    ),
    "rejected, the attempt before the last": (
        Item(attempt=2),
        judged(R),
        rules(1),
        Retry(Source.FINDINGS, rejections=(0,)),
    ),
    "rejected, retries 0": (FIRST, judged(R), rules(1, retries=0), REJECTION),
    "rejected, last attempt, a fallback is kept": (
        Item(attempt=3, fallback=1),
        judged(R),
        rules(1),
        REJECTION,
    ),
    "undetermined, an execution retry left": (FIRST, judged(A, U), rules(2), Revalidate((1,))),
    "undetermined, an execution retry left, last attempt": (LAST, judged(A, U), rules(2), Revalidate((1,))),
    "two undetermined, one has a retry left": (
        FIRST,
        judged(U, U, A, tries=(1, 1, 1)),
        rules(execution_retries=(0, 2, 2)),
        Revalidate((1,)),
    ),
    "two undetermined, both have a retry left": (FIRST, judged(U, A, U), rules(3), Revalidate((0, 2))),
    "undetermined on the second of three calls": (
        FIRST,
        judged(U, tries=2),
        rules(1, execution_retries=2),
        Revalidate((0,)),
    ),
    "undetermined, none left, warn_continue": (
        FIRST,
        judged(U, A, tries=2),
        rules(2),
        Advance(Status.INCOMPLETE),
    ),
    "undetermined, none left, warn_continue, last attempt": (
        LAST,
        judged(U, A, tries=2),
        rules(2),
        Advance(Status.INCOMPLETE),
    ),
    "undetermined, none left, fail_run": (
        FIRST,
        judged(U, tries=2),
        rules(1, policy=FAIL_UNJUDGED),
        UNJUDGED,
    ),
    "undetermined, execution retries 0, last attempt": (
        LAST,
        judged(U, U),
        rules(2, execution_retries=0, policy=FAIL_UNJUDGED),
        UNJUDGED,
    ),
    "undetermined, a fallback is kept": (
        Item(fallback=1),
        judged(U, tries=2),
        rules(1, policy=FAIL_UNJUDGED),
        UNJUDGED,
    ),
    "structural, retries left": (FIRST, gave(Production.STRUCTURAL), CORRECTABLE, Retry(Source.NONE)),
    "structural, last attempt": (LAST, gave(Production.STRUCTURAL), CORRECTABLE, STRUCTURAL),
    "structural, last attempt, a fallback is kept": (
        Item(attempt=3, fallback=0),
        gave(Production.STRUCTURAL),
        CORRECTABLE,
        JudgeFallback(),
    ),
    "structural, retries left, a fallback is kept": (
        Item(attempt=2, fallback=0),
        gave(Production.STRUCTURAL),
        CORRECTABLE,
        Retry(Source.NONE),
    ),
    "operational, retries left": (
        FIRST,
        gave(Production.OPERATIONAL),
        CORRECTABLE,
        Retry(Source.KEPT, backoff=True),
    ),
    "operational, last attempt": (LAST, gave(Production.OPERATIONAL), CORRECTABLE, OPERATIONAL),
    "operational, last attempt, a fallback is kept": (
        Item(attempt=3, fallback=5),
        gave(Production.OPERATIONAL),
        CORRECTABLE,
        JudgeFallback(),
    ),
    "throttled": (FIRST, gave(Production.THROTTLED), CORRECTABLE, Again(Situation.THROTTLED)),
    "throttled, last attempt": (LAST, gave(Production.THROTTLED), CORRECTABLE, Again(Situation.THROTTLED)),
    "throttled to the cap": (
        Item(throttles=10_000),
        gave(Production.THROTTLED),
        CORRECTABLE,
        closed(Reason.OPERATIONAL_FAILURE, code="throttled"),
    ),
    "throttled to the cap, a fallback is kept": (
        Item(throttles=10_000, fallback=1),
        gave(Production.THROTTLED),
        CORRECTABLE,
        JudgeFallback(),
    ),
    "module asks with guidance, retries left": (
        FIRST,
        asked(Guidance.PRESENT),
        CORRECTABLE,
        Retry(Source.GUIDANCE),
    ),
    "module asks with guidance and a fallback": (
        FIRST,
        asked(Guidance.PRESENT, fallback=1),
        CORRECTABLE,
        Retry(Source.GUIDANCE, keep_offer=True),
    ),
    "module asks without guidance, retries left": (FIRST, asked(), CORRECTABLE, Retry(Source.NONE)),
    "module asks without guidance, no protocol": (
        FIRST,
        asked(response=Response.ABSENT, fallback=0),
        Rules(),
        Retry(Source.NONE, keep_offer=True),
    ),
    "module asks with guidance, last attempt": (
        LAST,
        asked(Guidance.PRESENT, fallback=0),
        CORRECTABLE,
        JudgeFallback(keep_offer=True),
    ),
    "module asks without guidance, last attempt": (
        LAST,
        asked(fallback=0),
        CORRECTABLE,
        JudgeFallback(keep_offer=True),
    ),
    "module asks, last attempt, only an earlier fallback": (
        Item(attempt=3, fallback=2),
        asked(),
        CORRECTABLE,
        JudgeFallback(),
    ),
    "module asks, last attempt, no fallback at all": (
        LAST,
        asked(Guidance.PRESENT),
        CORRECTABLE,
        closed(Reason.STRUCTURAL_FAILURE, code="no_fallback"),
    ),
    "module asks blind, last attempt, no fallback at all": (
        LAST,
        asked(),
        CORRECTABLE,
        closed(Reason.STRUCTURAL_FAILURE, code="no_fallback"),
    ),
    "broken contract, said by the driver": (
        FIRST,
        gave(Production.CONTRACT),
        CORRECTABLE,
        closed(Reason.CONTRACT_FAILURE, code="contract"),
    ),
    "correction could not be read back": (
        Item(attempt=2),
        gave(Production.UNREADABLE),
        CORRECTABLE,
        Again(Situation.UNREADABLE),
    ),
    "candidate gone": (FIRST, gave(Production.GONE), CORRECTABLE, Again(Situation.GONE)),
    "worker lost while producing": (LAST, gave(Production.LOST), CORRECTABLE, Again(Situation.LOST)),
    "worker lost, last recovery runs alone": (
        Item(recoveries=2),
        gave(Production.LOST),
        CORRECTABLE,
        Again(Situation.LOST, alone=True),
    ),
    "worker lost, recoveries spent": (
        Item(recoveries=3),
        gave(Production.LOST),
        CORRECTABLE,
        closed(Reason.OPERATIONAL_FAILURE, code="recoveries"),
    ),
    "worker lost, a fallback is kept": (
        Item(attempt=3, fallback=1),
        gave(Production.LOST),
        CORRECTABLE,
        Again(Situation.LOST),
    ),
    "worker lost, recoveries spent, a fallback is kept": (
        Item(recoveries=3, fallback=1),
        gave(Production.LOST),
        CORRECTABLE,
        closed(Reason.OPERATIONAL_FAILURE, code="recoveries"),
    ),
    "throttled, a fallback is kept": (
        Item(attempt=3, fallback=1),
        gave(Production.THROTTLED),
        CORRECTABLE,
        Again(Situation.THROTTLED),
    ),
    "candidate gone, recoveries spent": (
        Item(recoveries=3),
        gave(Production.GONE),
        CORRECTABLE,
        closed(Reason.OPERATIONAL_FAILURE, code="recoveries"),
    ),
    "attempt record missing": (FIRST, gave(Production.NOREC), CORRECTABLE, Again(Situation.NOREC)),
    "attempt record missing, reopens spent": (
        Item(reopens=8),
        gave(Production.NOREC),
        CORRECTABLE,
        closed(Reason.OPERATIONAL_FAILURE, code="reopens"),
    ),
    "run ended before the attempt began": (FIRST, gave(Production.VOID), CORRECTABLE, CANCELLED),
    # A fallback under judgement.
    "fallback accepted": (
        Item(attempt=3, fallback=1, judging_fallback=True),
        judged(A),
        rules(1),
        Advance(Status.ACCEPTED, fallback=True),
    ),
    "fallback rejected": (
        Item(attempt=3, fallback=1, judging_fallback=True),
        judged(R),
        rules(1),
        REJECTION,
    ),
    "fallback rejected with retries left": (
        Item(attempt=1, fallback=1, judging_fallback=True),
        judged(R),
        rules(1, blind_retries=True),
        REJECTION,
    ),
    "fallback undetermined, an execution retry left": (
        Item(attempt=3, fallback=1, judging_fallback=True),
        judged(U),
        rules(1),
        Revalidate((0,)),
    ),
    "fallback undetermined, none left, warn_continue": (
        Item(attempt=3, fallback=1, judging_fallback=True),
        judged(U, tries=2),
        rules(1),
        Advance(Status.INCOMPLETE, fallback=True),
    ),
    "fallback's record missing": (
        Item(attempt=3, fallback=1, judging_fallback=True),
        gave(Production.NOREC),
        CORRECTABLE,
        Again(Situation.NOREC),
    ),
    "fallback gone": (
        Item(attempt=3, fallback=1, judging_fallback=True),
        gave(Production.GONE),
        CORRECTABLE,
        Again(Situation.GONE, forget_fallback=True),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_row_of_the_decision_table(name: str) -> None:
    item, report, of_stage, expected = ROWS[name]
    assert decide(item, report, of_stage) == expected


def test_every_row_of_the_table_is_reached_by_a_case_here() -> None:
    reached = {_row(item, report, of_stage) for item, report, of_stage, _ in ROWS.values()}
    assert reached == {(situation, index) for situation in TABLE for index in range(len(TABLE[situation]))}


def test_words_of_each_row_say_what_it_does() -> None:
    for item, report, of_stage, _ in ROWS.values():
        situation, index = _row(item, report, of_stage)
        row = TABLE[situation][index]
        assert _in_words(row.action(item, report, of_stage)) == row.then


def test_every_situation_has_rules_and_ends_in_one_that_always_holds() -> None:
    assert set(TABLE) == set(Situation)
    impossible = Rules(retries=0, max_recoveries=0, max_reopens=0, max_throttles=0)
    for situation, rows in TABLE.items():
        assert rows[-1].guard(Item(), gave(Production.CANDIDATE), impossible), situation


def _row(item: Item, report: Report, of_stage: Rules) -> tuple[Situation, int]:
    situation = classify(item, report, of_stage)
    holds = [row.guard(item, report, of_stage) for row in TABLE[situation]]
    return situation, holds.index(True)


def _in_words(decision: Decision) -> str:
    match decision:
        case Advance(status=status):
            return f"advance: {status}"
        case Close(reason=reason, status=status):
            return f"close: {reason or status}"
        case Revalidate():
            return "judge again"
        case JudgeFallback():
            return "judge the fallback"
        case Again():
            return "same attempt again"
        case Retry(backoff=True):
            return "next attempt after backoff"
        case Retry(correction=Source.NONE):
            return "next attempt, fresh"
        case Retry():
            return "next attempt, corrected"


# ------------------------------------------------------------------------------------------- mixed and shared


@pytest.mark.parametrize("tries", [1, 2])
@pytest.mark.parametrize("undetermined", [0, 2])
def test_rejection_outweighs_the_undetermined_and_alone_corrects(undetermined: int, tries: int) -> None:
    verdicts = [A, R, A]
    verdicts[undetermined] = U
    assert decide(FIRST, judged(*verdicts, tries=tries), rules(3)) == Retry(Source.FINDINGS, rejections=(1,))


def test_mixed_on_the_last_attempt_closes_by_the_rejection_without_judging_again() -> None:
    assert decide(LAST, judged(U, R), rules(2, policy=FAIL_UNJUDGED)) == REJECTION


def test_revalidation_that_ends_in_a_rejection_corrects() -> None:
    first = judged(A, U)
    assert decide(FIRST, first, rules(2)) == Revalidate((1,))
    again = judged(A, R, tries=(1, 2))
    assert decide(FIRST, again, rules(2)) == Retry(Source.FINDINGS, rejections=(1,))
    assert decide(LAST, again, rules(2)) == REJECTION


def test_a_validator_without_retries_left_stays_undetermined_when_another_recovers() -> None:
    stage = rules(execution_retries=(0, 1))
    assert decide(FIRST, judged(U, U), stage) == Revalidate((1,))
    assert decide(FIRST, judged(U, A, tries=(1, 2)), stage) == Advance(Status.INCOMPLETE)


def test_two_structural_failures_leave_one_correction_of_three_retries() -> None:
    """B4: one shared outer budget, no hidden ones."""
    stage = rules(1, retries=3)
    item = FIRST
    for production in (Production.STRUCTURAL, Production.STRUCTURAL):
        decision = decide(item, gave(production), stage)
        assert decision == Retry(Source.NONE)
        item = after(item, decision, gave(production))
    assert item.attempt == 3
    decision = decide(item, judged(R), stage)
    assert decision == Retry(Source.FINDINGS, rejections=(0,))
    item = after(item, decision, judged(R))
    assert decide(item, judged(R), stage) == REJECTION


def test_only_undetermined_at_the_last_attempt_ends_for_that_reason() -> None:
    """V14: never as a spent budget."""
    for policy, expected in ((FAIL_UNJUDGED, UNJUDGED), (Policy(), Advance(Status.INCOMPLETE))):
        stage = rules(2, execution_retries=0, policy=policy)
        assert decide(LAST, judged(U, A), stage) == expected


def test_all_kinds_of_retries_share_one_budget() -> None:
    """M7: a module's request, a rejection, a structural and an operational failure spend the same retries."""
    stage = rules(1, retries=4)
    item = FIRST
    for report in (
        asked(Guidance.PRESENT),
        judged(R),
        gave(Production.STRUCTURAL),
        gave(Production.OPERATIONAL),
    ):
        decision = decide(item, report, stage)
        assert isinstance(decision, Retry)
        item = after(item, decision, report)
    assert item.attempt == 5
    assert decide(item, judged(R), stage) == REJECTION


# -------------------------------------------------------------------------------------------------- contracts


@pytest.mark.parametrize(
    ("report", "corrections", "code"),
    [
        (asked(Guidance.PRESENT), False, "guidance_undeclared"),
        (asked(Guidance.BLANK), False, "guidance_undeclared"),
        (asked(Guidance.BLANK), True, "guidance_blank"),
        (asked(Guidance.PRESENT, response=Response.ABSENT), True, "guidance_without_response"),
        (asked(Guidance.PRESENT, response=Response.UNUSABLE), True, "guidance_without_response"),
        (Report(production=Production.CANDIDATE), True, "candidate_without_response"),
        (
            Report(production=Production.CANDIDATE, response=Response.UNUSABLE),
            True,
            "candidate_without_response",
        ),
    ],
)
@pytest.mark.parametrize("item", [FIRST, LAST, Item(attempt=3, fallback=1), Item(late=True)])
def test_broken_contract_closes_whatever_is_left(
    item: Item, report: Report, corrections: bool, code: str
) -> None:
    lenient = Policy(structural_failure="warn_continue", operational_failure="warn_continue")
    decision = decide(item, report, rules(0, corrections=corrections, policy=lenient))
    assert decision == closed(Reason.CONTRACT_FAILURE, code=code)
    assert isinstance(decision, Close)
    assert decision.fails_run


@pytest.mark.parametrize(
    ("report", "corrections"),
    [
        (asked(), True),
        (asked(response=Response.ABSENT), True),
        (asked(response=Response.ABSENT), False),
        (asked(Guidance.PRESENT), True),
        (judged(), True),
        (Report(production=Production.CANDIDATE), False),
        (Report(production=Production.STRUCTURAL, guidance=Guidance.BLANK), True),
    ],
)
def test_kept_contract_is_no_breach(report: Report, corrections: bool) -> None:
    assert breach(report, corrections=corrections) is None


def test_fallback_under_judgement_needs_no_response_of_its_own() -> None:
    item = Item(attempt=3, fallback=1, judging_fallback=True)
    report = Report(production=Production.CANDIDATE, verdicts=(Judgement(A),))
    assert decide(item, report, rules(1)) == Advance(Status.ACCEPTED, fallback=True)


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_producer_without_the_protocol_is_never_corrected(attempt: int) -> None:
    """C7: a rejection closes, or leads to a blind attempt where allowed; the undetermined never generate."""
    item = Item(attempt=attempt)
    report = Report(production=Production.CANDIDATE, verdicts=(Judgement(R), Judgement(U, 2)))
    assert decide(item, report, rules(2, corrections=False)) == REJECTION
    blind = decide(item, report, rules(2, corrections=False, blind_retries=True))
    assert blind == (Retry(Source.NONE) if attempt < 3 else REJECTION)
    unjudged = Report(production=Production.CANDIDATE, verdicts=(Judgement(A), Judgement(U, 2)))
    assert decide(item, unjudged, rules(2, corrections=False, blind_retries=True)) == Advance(
        Status.INCOMPLETE
    )


@pytest.mark.parametrize("count", [0, 1, 3])
def test_verdicts_that_do_not_match_the_validators_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} verdicts for 2 validators"):
        decide(FIRST, judged(*[A] * count), rules(2))


# -------------------------------------------------------------------------------------------------- fallbacks


def test_fallback_of_the_highest_rank_is_kept() -> None:
    """M9: ranks 2, 3, 1 keep the one of rank 3."""
    item = FIRST
    offers = (2, 3, 1)
    keeps = []
    for rank in offers:
        report = asked(fallback=rank)
        decision = decide(item, report, CORRECTABLE)
        assert isinstance(decision, Retry | JudgeFallback)
        keeps.append(decision.keep_offer)
        item = after(item, decision, report)
    assert keeps == [True, True, False]
    assert (item.fallback, item.judging_fallback) == (3, True)


def test_later_of_two_fallbacks_of_equal_rank_is_kept() -> None:
    decision = decide(Item(attempt=2, fallback=0), asked(fallback=0), CORRECTABLE)
    assert decision == Retry(Source.NONE, keep_offer=True)


def test_negative_rank_is_a_rank_like_any_other() -> None:
    assert decide(LAST, asked(fallback=-5), CORRECTABLE) == JudgeFallback(keep_offer=True)
    assert decide(Item(fallback=-5), asked(fallback=-6), CORRECTABLE) == Retry(Source.NONE)


@pytest.mark.parametrize("rank", [0, 4])
def test_fallback_of_rank_zero_survives_later_failures(rank: int) -> None:
    """M8."""
    item = after(FIRST, Retry(Source.NONE, keep_offer=True), asked(fallback=rank))
    for production in (Production.STRUCTURAL, Production.OPERATIONAL):
        decision = decide(item, gave(production), CORRECTABLE)
        item = after(item, decision, gave(production))
    assert item == Item(attempt=3, fallback=rank, judging_fallback=True)


# --------------------------------------------------------------------------------------------------- deadline

LATE, LATE_KEPT = Item(late=True), Item(late=True, fallback=1)
DEADLINE = closed(Reason.OPERATIONAL_FAILURE, code="deadline")
MORE_WORK = {
    "a correction": judged(R),
    "judging again": judged(U),
    "a fresh attempt": gave(Production.STRUCTURAL),
    "an attempt after backoff": gave(Production.OPERATIONAL),
    "patience": gave(Production.THROTTLED),
    "a guided attempt": asked(Guidance.PRESENT),
    "a blind attempt": asked(),
    "an unreadable correction": gave(Production.UNREADABLE),
    "a recovery of a candidate": gave(Production.GONE),
    "a recovery of a worker": gave(Production.LOST),
    "a reopening": gave(Production.NOREC),
}


@pytest.mark.parametrize("what", MORE_WORK)
def test_past_the_deadline_no_more_work_but_the_kept_fallback(what: str) -> None:
    report = MORE_WORK[what]
    stage = rules(len(report.verdicts))
    assert decide(LATE, report, stage) == DEADLINE
    assert decide(LATE_KEPT, report, stage) == JudgeFallback()


@pytest.mark.parametrize("guidance", [Guidance.ABSENT, Guidance.PRESENT])
@pytest.mark.parametrize("offered", [0, 2])
def test_past_the_deadline_a_fallback_offered_just_now_counts(guidance: Guidance, offered: int) -> None:
    report = asked(guidance, fallback=offered)
    assert decide(LATE, report, CORRECTABLE) == JudgeFallback(keep_offer=True)
    assert decide(LATE_KEPT, report, CORRECTABLE) == JudgeFallback(keep_offer=offered >= 1)


def test_deadline_closing_follows_the_policy_for_operational_failures() -> None:
    lenient = rules(policy=Policy(operational_failure="quarantine"))
    decision = decide(LATE, gave(Production.THROTTLED), lenient)
    assert decision == closed(Reason.OPERATIONAL_FAILURE, Disposition.QUARANTINE, "deadline")


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (judged(A), Advance(Status.ACCEPTED)),
        (judged(U, tries=2), Advance(Status.INCOMPLETE)),
        (gave(Production.VOID), CANCELLED),
        (gave(Production.CONTRACT), closed(Reason.CONTRACT_FAILURE, code="contract")),
    ],
)
def test_work_that_is_done_stands_after_the_deadline(report: Report, expected: Decision) -> None:
    stage = rules(len(report.verdicts))
    assert decide(LATE, report, stage) == expected
    assert decide(LATE_KEPT, report, stage) == expected


def test_rejection_of_the_last_attempt_stands_after_the_deadline() -> None:
    for item in (LATE, LATE_KEPT):
        assert decide(dataclasses.replace(item, attempt=3), judged(R), rules(1)) == REJECTION


def test_operational_failure_of_the_last_attempt_after_the_deadline_names_the_deadline() -> None:
    assert decide(Item(attempt=3, late=True), gave(Production.OPERATIONAL), CORRECTABLE) == DEADLINE
    assert decide(Item(attempt=3, late=True), gave(Production.STRUCTURAL), CORRECTABLE) == STRUCTURAL


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (judged(U), Revalidate((0,))),
        (judged(A), Advance(Status.ACCEPTED, fallback=True)),
        (judged(R), REJECTION),
        (gave(Production.NOREC), Again(Situation.NOREC)),
        (gave(Production.GONE), DEADLINE),
        (gave(Production.LOST), DEADLINE),
    ],
)
def test_fallback_is_judged_to_its_end_after_the_deadline(report: Report, expected: Decision) -> None:
    item = Item(attempt=2, fallback=1, judging_fallback=True, late=True)
    assert decide(item, report, rules(len(report.verdicts))) == expected


# ---------------------------------------------------------------------------------- dispositions, end of a run

_BY_REASON = {
    Reason.SEMANTIC_REJECTION: (judged(R), Status.REJECTED),
    Reason.STRUCTURAL_FAILURE: (gave(Production.STRUCTURAL), Status.FAILED),
    Reason.OPERATIONAL_FAILURE: (gave(Production.OPERATIONAL), Status.FAILED),
    Reason.VALIDATOR_EXECUTION_FAILURE: (judged(U, tries=2), Status.FAILED),
}


@pytest.mark.parametrize("disposition", Disposition)
@pytest.mark.parametrize("reason", _BY_REASON)
def test_row_of_the_disposition_table(reason: Reason, disposition: Disposition) -> None:
    """D11."""
    report, status = _BY_REASON[reason]
    decision = decide(
        LAST, report, rules(len(report.verdicts), policy=Policy().override({reason.value: disposition}))
    )
    if (reason, disposition) == (Reason.VALIDATOR_EXECUTION_FAILURE, Disposition.WARN_CONTINUE):
        assert decision == Advance(Status.INCOMPLETE)
        return
    assert decision == Close(status, reason, disposition)
    assert isinstance(decision, Close)
    assert decision.fails_run is (disposition is Disposition.FAIL_RUN)
    assert decision.quarantined is (disposition is Disposition.QUARANTINE)


@pytest.mark.parametrize("disposition", Disposition)
def test_contract_failure_fails_the_run_under_every_policy(disposition: Disposition) -> None:
    policy = Policy().override({reason.value: disposition for reason in _BY_REASON})
    decision = decide(FIRST, gave(Production.CONTRACT), rules(policy=policy))
    assert decision == closed(Reason.CONTRACT_FAILURE, code="contract")


def test_cancellation_has_no_reason_and_no_disposition() -> None:
    assert Close(Status.CANCELLED) == CANCELLED
    assert not CANCELLED.fails_run
    assert not CANCELLED.quarantined


@pytest.mark.parametrize("last_stage", [True, False])
def test_once_the_run_has_ended_what_needs_more_work_is_cancelled(last_stage: bool) -> None:
    more_work: list[Decision] = [
        Retry(Source.NONE),
        Retry(Source.FINDINGS, rejections=(0,)),
        Again(Situation.LOST),
        Revalidate((0,)),
        JudgeFallback(),
    ]
    for decision in more_work:
        assert when_run_has_ended(decision, last_stage=last_stage) == CANCELLED
    for decision in (REJECTION, STRUCTURAL, UNJUDGED, CANCELLED):
        assert when_run_has_ended(decision, last_stage=last_stage) == decision
    for status in (Status.ACCEPTED, Status.INCOMPLETE):
        advance = Advance(status)
        assert when_run_has_ended(advance, last_stage=last_stage) == (advance if last_stage else CANCELLED)


# ------------------------------------------------------------------------------------------------------ after


@pytest.mark.parametrize(
    ("because", "counter"),
    [
        (Situation.GONE, "recoveries"),
        (Situation.LOST, "recoveries"),
        (Situation.NOREC, "reopens"),
        (Situation.THROTTLED, "throttles"),
        (Situation.UNREADABLE, None),
    ],
)
def test_same_attempt_again_raises_one_counter_and_nothing_else(
    because: Situation, counter: str | None
) -> None:
    item = Item(attempt=2, recoveries=1, reopens=1, throttles=1, fallback=3)
    expected = dataclasses.asdict(item) | ({counter: 2} if counter else {})
    assert dataclasses.asdict(after(item, Again(because), gave(Production.LOST))) == expected


def test_forgotten_fallback_is_neither_kept_nor_judged() -> None:
    item = Item(attempt=3, fallback=1, judging_fallback=True)
    found = after(item, Again(Situation.GONE, forget_fallback=True), gave(Production.GONE))
    assert found == Item(attempt=3, recoveries=1)


def test_reopened_fallback_is_judged_on() -> None:
    item = Item(attempt=3, fallback=1, judging_fallback=True)
    assert after(item, Again(Situation.NOREC), gave(Production.NOREC)) == dataclasses.replace(item, reopens=1)


@pytest.mark.parametrize("decision", [Advance(Status.ACCEPTED), Revalidate((0,)), REJECTION, CANCELLED])
def test_item_is_unchanged_by_what_starts_no_attempt(decision: Decision) -> None:
    item = Item(attempt=2, recoveries=1, reopens=2, throttles=3, fallback=4)
    assert after(item, decision, judged(A)) == item

"""What holds of the decision for every item, every report and every rules, found by search."""

from __future__ import annotations

import dataclasses
import pickle

from hypothesis import event, given
from hypothesis import strategies as st

from remand_policy import (
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

DISPOSITIONS = st.sampled_from(Disposition)
RANKS = st.none() | st.integers(-3, 3)
ITEMS = st.builds(
    Item,
    attempt=st.integers(1, 6),
    recoveries=st.integers(0, 4),
    reopens=st.integers(0, 4),
    throttles=st.integers(0, 4),
    fallback=RANKS,
    judging_fallback=st.booleans(),
    late=st.booleans(),
)
RULES = st.builds(
    Rules,
    retries=st.integers(0, 5),
    execution_retries=st.lists(st.integers(0, 3), max_size=4).map(tuple),
    corrections=st.booleans(),
    blind_retries=st.booleans(),
    policy=st.builds(
        Policy,
        structural_failure=DISPOSITIONS,
        semantic_rejection=DISPOSITIONS,
        validator_execution_failure=DISPOSITIONS,
        operational_failure=DISPOSITIONS,
    ),
    max_recoveries=st.integers(0, 4),
    max_reopens=st.integers(0, 4),
    max_throttles=st.integers(0, 4),
)


@st.composite
def cases(draw: st.DrawFn, verdicts: st.SearchStrategy[Verdict] | None = None) -> tuple[Item, Report, Rules]:
    """Any item with any report that fits its stage's rules; with `verdicts`, a candidate's."""
    rules = draw(RULES)
    production = Production.CANDIDATE if verdicts is not None else draw(st.sampled_from(Production))
    judgements = st.builds(
        Judgement, st.sampled_from(Verdict) if verdicts is None else verdicts, st.integers(1, 4)
    )
    count = len(rules.execution_retries) if production is Production.CANDIDATE else 0
    report = Report(
        production=production,
        verdicts=tuple(draw(st.lists(judgements, min_size=count, max_size=count))),
        response=draw(st.sampled_from(Response)),
        guidance=draw(st.sampled_from(Guidance)),
        fallback=draw(RANKS),
    )
    return draw(ITEMS), report, rules


def produces(decision: Decision) -> bool:
    """Whether the decision leads to another execution of the producer. A fallback's reopened record does not."""
    return isinstance(decision, Retry | Again)


@given(cases())
def test_every_input_has_a_decision_and_it_names_its_situation(case: tuple[Item, Report, Rules]) -> None:
    item, report, rules = case
    decision = decide(item, report, rules)
    event(type(decision).__name__)
    assert isinstance(decision, Advance | Retry | Again | Revalidate | JudgeFallback | Close)
    if isinstance(decision, Again):
        assert decision.because is classify(item, report, rules)


@given(cases())
def test_equal_inputs_give_equal_decisions_and_are_left_alone(case: tuple[Item, Report, Rules]) -> None:
    copies = pickle.loads(pickle.dumps(case))
    first = decide(*case)
    assert first == decide(*case) == decide(*copies)
    assert case == copies


@given(cases())
def test_no_budget_and_no_cap_is_ever_exceeded(case: tuple[Item, Report, Rules]) -> None:
    item, report, rules = case
    decision = decide(item, report, rules)
    found = after(item, decision, report)
    if isinstance(decision, Retry):
        assert item.attempt < found.attempt == item.attempt + 1 <= 1 + rules.retries
    else:
        assert found.attempt == item.attempt
    for counter, cap in (
        ("recoveries", rules.max_recoveries),
        ("reopens", rules.max_reopens),
        ("throttles", rules.max_throttles),
    ):
        before, now = getattr(item, counter), getattr(found, counter)
        assert now == before or now == before + 1 <= cap
    if isinstance(decision, Revalidate):
        for index in decision.ask:
            assert report.verdicts[index].tries + 1 <= 1 + rules.execution_retries[index]


@given(cases())
def test_one_decision_spends_at_most_one_budget(case: tuple[Item, Report, Rules]) -> None:
    item, report, rules = case
    decision = decide(item, report, rules)
    found = after(item, decision, report)
    spent = sum(
        getattr(found, field) - getattr(item, field)
        for field in ("attempt", "recoveries", "reopens", "throttles")
    )
    free = isinstance(decision, Again) and decision.because is Situation.UNREADABLE
    assert spent == (1 if produces(decision) and not free else 0)


@given(cases(st.sampled_from([Verdict.ACCEPTED, Verdict.UNDETERMINED])))
def test_undetermined_verdicts_never_generate(case: tuple[Item, Report, Rules]) -> None:
    item, report, rules = case
    decision = decide(item, report, rules)
    assert not produces(decision)
    if not breach(report, corrections=rules.corrections) and not item.late:
        assert isinstance(decision, Advance | Revalidate | Close)


@given(cases(st.sampled_from(Verdict)))
def test_candidate_that_was_rejected_or_not_judged_is_never_accepted(
    case: tuple[Item, Report, Rules],
) -> None:
    item, report, rules = case
    decision = decide(item, report, rules)
    verdicts = {judgement.verdict for judgement in report.verdicts}
    if Verdict.REJECTED in verdicts:
        assert not isinstance(decision, Advance | Revalidate)
    elif Verdict.UNDETERMINED in verdicts:
        assert decision != Advance(Status.ACCEPTED, fallback=item.judging_fallback)
        if isinstance(decision, Advance):
            assert decision.status is Status.INCOMPLETE
            assert rules.policy.of(Reason.VALIDATOR_EXECUTION_FAILURE) is Disposition.WARN_CONTINUE
    elif isinstance(decision, Advance):
        assert decision.status is Status.ACCEPTED


@given(cases())
def test_only_a_candidate_advances(case: tuple[Item, Report, Rules]) -> None:
    item, report, rules = case
    decision = decide(item, report, rules)
    if isinstance(decision, Advance):
        assert report.production is Production.CANDIDATE
        assert decision.fallback is item.judging_fallback


@given(cases())
def test_correction_comes_from_a_rejection_or_from_guidance_with_its_exact_response(
    case: tuple[Item, Report, Rules],
) -> None:
    item, report, rules = case
    decision = decide(item, report, rules)
    if not isinstance(decision, Retry):
        return
    match decision.correction:
        case Source.FINDINGS:
            assert rules.corrections
            assert report.production is Production.CANDIDATE
            assert report.response is Response.USABLE
            rejected = [i for i, j in enumerate(report.verdicts) if j.verdict is Verdict.REJECTED]
            assert list(decision.rejections) == rejected != []
        case Source.GUIDANCE:
            assert rules.corrections
            assert report.production is Production.RETRY
            assert report.guidance is Guidance.PRESENT
            assert report.response is Response.USABLE
        case Source.KEPT:
            assert report.production is Production.OPERATIONAL
        case Source.NONE:
            pass
    if decision.correction is not Source.FINDINGS:
        assert decision.rejections == ()


@given(cases())
def test_nothing_is_corrected_or_retried_after_the_last_attempt(case: tuple[Item, Report, Rules]) -> None:
    item, report, rules = case
    item = dataclasses.replace(item, attempt=1 + rules.retries)
    assert not isinstance(decide(item, report, rules), Retry)


@given(cases())
def test_fallback_under_judgement_never_spends_a_retry_and_is_never_started_again(
    case: tuple[Item, Report, Rules],
) -> None:
    item, report, rules = case
    item = dataclasses.replace(item, judging_fallback=True)
    decision = decide(item, report, rules)
    assert not isinstance(decision, Retry | JudgeFallback)
    if isinstance(decision, Again) and decision.because in (Situation.GONE, Situation.LOST):
        # Only a fallback that no longer exists makes room for the producer, as a counted recovery.
        found = after(item, decision, report)
        assert (found.fallback, found.judging_fallback) == (None, False)
        assert found.recoveries == item.recoveries + 1
    elif not isinstance(decision, Close):
        assert after(item, decision, report).judging_fallback


@given(cases())
def test_a_fallback_is_judged_only_if_there_is_one_and_the_best_is_kept(
    case: tuple[Item, Report, Rules],
) -> None:
    item, report, rules = case
    decision = decide(item, report, rules)
    found = after(item, decision, report)
    offered = report.fallback if report.production is Production.RETRY else None
    known = [rank for rank in (item.fallback, offered) if rank is not None]
    if isinstance(decision, JudgeFallback):
        assert found.judging_fallback
        assert known
    if isinstance(decision, Retry | JudgeFallback):
        assert found.fallback == max(known, default=None)
        if offered is not None and offered == item.fallback:
            assert decision.keep_offer, "the later of equals"
    elif not (isinstance(decision, Again) and decision.forget_fallback):
        assert found.fallback == item.fallback


@given(cases())
def test_broken_contract_always_fails_the_run(case: tuple[Item, Report, Rules]) -> None:
    item, report, rules = case
    code = breach(report, corrections=rules.corrections)
    if code is None or (item.judging_fallback and report.production is not Production.CONTRACT):
        decision = decide(item, report, rules)
        assert not (isinstance(decision, Close) and decision.reason is Reason.CONTRACT_FAILURE)
        return
    decision = decide(item, report, rules)
    assert decision == Close(Status.FAILED, Reason.CONTRACT_FAILURE, Disposition.FAIL_RUN, code)
    assert when_run_has_ended(decision, last_stage=False) == decision


@given(cases())
def test_late_items_get_no_more_production(case: tuple[Item, Report, Rules]) -> None:
    item, report, rules = case
    in_time = decide(dataclasses.replace(item, late=False), report, rules)
    late = decide(dataclasses.replace(item, late=True), report, rules)
    fallback_again = item.judging_fallback and report.production is Production.NOREC
    assert not produces(late) or fallback_again
    if isinstance(late, Revalidate):
        assert item.judging_fallback
    if isinstance(in_time, Advance | JudgeFallback):
        assert late == in_time
    if isinstance(in_time, Close) and isinstance(late, Close):
        assert dataclasses.replace(late, code=None) == dataclasses.replace(in_time, code=None)
    if isinstance(late, Close) and not isinstance(in_time, Close):
        assert (late.reason, late.code) == (Reason.OPERATIONAL_FAILURE, "deadline")
        assert item.judging_fallback or item.fallback is None


@given(cases())
def test_disposition_of_a_closing_is_the_policys(case: tuple[Item, Report, Rules]) -> None:
    decision = decide(*case)
    if isinstance(decision, Close) and decision.reason is not None:
        assert decision.disposition is case[2].policy.of(decision.reason)
        rejected = decision.reason is Reason.SEMANTIC_REJECTION
        assert decision.status is (Status.REJECTED if rejected else Status.FAILED)


@given(cases(st.sampled_from(Verdict)), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_what_verdicts_lead_to_does_not_depend_on_recoveries_reopens_or_throttles(
    case: tuple[Item, Report, Rules], recoveries: int, reopens: int, throttles: int
) -> None:
    """The exhaustive walk relies on this to judge each candidate once for all counters."""
    item, report, rules = case
    other = dataclasses.replace(item, recoveries=recoveries, reopens=reopens, throttles=throttles)
    assert decide(other, report, rules) == decide(item, report, rules)


@given(cases(), st.booleans())
def test_once_the_run_has_ended_no_decision_asks_for_work(
    case: tuple[Item, Report, Rules], last_stage: bool
) -> None:
    decision = when_run_has_ended(decide(*case), last_stage=last_stage)
    assert isinstance(decision, Close) or (isinstance(decision, Advance) and last_stage)

"""The decision: what becomes of an item after one attempt. Read this file top down; it is the whole theory.

An attempt ends in one *situation* (`classify`). `TABLE` lists, for each situation, the rules that may apply:
the first whose guard holds gives the decision, and the last guard of every list is `always`, so the table is
total. Two overlays follow, because they cut across all rows: an item past its deadline gets no more work
(`_in_time`), and a run that is no longer running starts none (`when_run_has_ended`).

Nothing here reads a clock, a random number or the environment; time enters as `Item.late`. Nothing here
reads text. The diagram in the documentation is drawn from `TABLE`.

Bump `DECISION_VERSION` when any row changes meaning: checkpoints made under other rules then never match.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias, assert_never

from .disposition import closing_status
from .report import Item, Report, Rules
from .words import Disposition, Guidance, Production, Reason, Response, Status, Verdict

DECISION_VERSION: Final = "1"


class Situation(StrEnum):
    """What an attempt amounts to, all its facts taken together."""

    ACCEPTED = "every validator accepted"
    REJECTED = "at least one validator rejected"
    UNDETERMINED = "none rejected, some undetermined"
    STRUCTURAL = "structural failure"
    OPERATIONAL = "operational failure"
    THROTTLED = "throttled"
    ASKED_GUIDED = "module retry request with guidance"
    ASKED_BLIND = "module retry request without guidance"
    BROKEN = "broken contract"
    UNREADABLE = "correction could not be read back"
    GONE = "candidate gone before the decision"
    LOST = "worker lost while producing"
    NOREC = "attempt record missing"
    VOID = "run ended before the attempt began"


class Source(StrEnum):
    """Where the next attempt's correction comes from."""

    NONE = "none"
    """No correction: the ordinary request."""
    KEPT = "kept"
    """The one that was pending; nothing superseded it."""
    FINDINGS = "findings"
    """The genuine rejections of this attempt."""
    GUIDANCE = "guidance"
    """The producer's own guidance."""


# ---------------------------------------------------------------------------------------------- decisions


@dataclass(frozen=True, slots=True)
class Advance:
    """The candidate goes on to the next stage, or out as the item's value."""

    status: Status
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class Retry:
    """Spend one outer retry: the next attempt. `rejections` are the validators whose findings correct it."""

    correction: Source
    rejections: tuple[int, ...] = ()
    backoff: bool = False
    keep_offer: bool = False
    """The fallback that this attempt offered replaces the kept one."""


@dataclass(frozen=True, slots=True)
class Again:
    """The same attempt once more; no budget is spent, `because` says which counter rises."""

    because: Situation
    alone: bool = False
    """The last recovery: nothing else suspect may run beside it."""
    forget_fallback: bool = False


@dataclass(frozen=True, slots=True)
class Revalidate:
    """Ask exactly these validators again about the same response. No generation."""

    ask: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JudgeFallback:
    """The fallback becomes the candidate and goes through the validators. No generation."""

    keep_offer: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """The item ends here. `reason` is `None` for a cancellation alone; `code` refines it for people."""

    status: Status
    reason: Reason | None = None
    disposition: Disposition | None = None
    code: str | None = None

    @property
    def fails_run(self) -> bool:
        """Whether the run fails with this item."""
        return self.disposition is Disposition.FAIL_RUN

    @property
    def quarantined(self) -> bool:
        """Whether the item is set aside for a person."""
        return self.disposition is Disposition.QUARANTINE


Decision: TypeAlias = Advance | Retry | Again | Revalidate | JudgeFallback | Close
CANCELLED: Final = Close(Status.CANCELLED)


# -------------------------------------------------------------------------------------------- situations


def breach(report: Report, *, corrections: bool) -> str | None:
    """The code of the contract that a producer broke, or `None`.

    `corrections` says that it declares `single_response_v1`. Only such a producer may give guidance, guidance is never
    blank and never without the exact response it is about, and a candidate comes with its response.
    """
    if report.production is Production.CONTRACT:
        return "contract"
    if report.production is Production.RETRY and report.guidance is not Guidance.ABSENT:
        if not corrections:
            return "guidance_undeclared"
        if report.guidance is Guidance.BLANK:
            return "guidance_blank"
        if report.response is not Response.USABLE:
            return "guidance_without_response"
    if report.production is Production.CANDIDATE and corrections and report.response is not Response.USABLE:
        return "candidate_without_response"
    return None


def classify(item: Item, report: Report, rules: Rules) -> Situation:
    """The situation that an attempt amounts to. A rejection outweighs whatever is undetermined."""
    # A fallback was offered beside its own response; that it is judged later breaks no contract.
    if not item.judging_fallback and breach(report, corrections=rules.corrections):
        return Situation.BROKEN
    match report.production:
        case Production.CANDIDATE:
            verdicts = [judgement.verdict for judgement in report.verdicts]
            if len(verdicts) != len(rules.execution_retries):
                raise ValueError(f"{len(verdicts)} verdicts for {len(rules.execution_retries)} validators")
            if Verdict.REJECTED in verdicts:
                return Situation.REJECTED
            if Verdict.UNDETERMINED in verdicts:
                return Situation.UNDETERMINED
            return Situation.ACCEPTED
        case Production.RETRY:
            guided = report.guidance is not Guidance.ABSENT
            return Situation.ASKED_GUIDED if guided else Situation.ASKED_BLIND
        case Production.STRUCTURAL:
            return Situation.STRUCTURAL
        case Production.OPERATIONAL:
            return Situation.OPERATIONAL
        case Production.THROTTLED:
            return Situation.THROTTLED
        case Production.CONTRACT:
            return Situation.BROKEN
        case Production.UNREADABLE:
            return Situation.UNREADABLE
        case Production.GONE:
            return Situation.GONE
        case Production.LOST:
            return Situation.LOST
        case Production.NOREC:
            return Situation.NOREC
        case Production.VOID:
            return Situation.VOID
        case _:
            assert_never(report.production)


# ------------------------------------------------------------------------------------------------ guards


def _ask(report: Report, rules: Rules) -> tuple[int, ...]:
    return tuple(
        index
        for index, (judgement, extra) in enumerate(zip(report.verdicts, rules.execution_retries, strict=True))
        if judgement.verdict is Verdict.UNDETERMINED and judgement.tries <= extra
    )


def _always(item: Item, report: Report, rules: Rules) -> bool:
    return True


def _retries_left(item: Item, report: Report, rules: Rules) -> bool:
    return item.attempt <= rules.retries and not item.judging_fallback


def _correctable(item: Item, report: Report, rules: Rules) -> bool:
    return _retries_left(item, report, rules) and rules.corrections


def _blind(item: Item, report: Report, rules: Rules) -> bool:
    return _retries_left(item, report, rules) and rules.blind_retries


def _execution_retry_left(item: Item, report: Report, rules: Rules) -> bool:
    return bool(_ask(report, rules))


def _warn_continue(item: Item, report: Report, rules: Rules) -> bool:
    return rules.policy.of(Reason.VALIDATOR_EXECUTION_FAILURE) is Disposition.WARN_CONTINUE


def _fallback_kept(item: Item, report: Report, rules: Rules) -> bool:
    offered = report.production is Production.RETRY and report.fallback is not None
    return (item.fallback is not None or offered) and not item.judging_fallback


def _recoveries_left(item: Item, report: Report, rules: Rules) -> bool:
    return item.recoveries < rules.max_recoveries


def _reopens_left(item: Item, report: Report, rules: Rules) -> bool:
    return item.reopens < rules.max_reopens


def _throttles_left(item: Item, report: Report, rules: Rules) -> bool:
    return item.throttles < rules.max_throttles


# ----------------------------------------------------------------------------------------------- actions


def _keeps_offer(item: Item, report: Report) -> bool:
    """Of several fallbacks the one with the highest rank is kept, the later one of equals."""
    if report.production is not Production.RETRY or report.fallback is None:
        return False
    return item.fallback is None or report.fallback >= item.fallback


def _advance(item: Item, report: Report, rules: Rules) -> Decision:
    return Advance(Status.ACCEPTED, fallback=item.judging_fallback)


def _advance_incomplete(item: Item, report: Report, rules: Rules) -> Decision:
    return Advance(Status.INCOMPLETE, fallback=item.judging_fallback)


def _correct(item: Item, report: Report, rules: Rules) -> Decision:
    rejections = tuple(i for i, j in enumerate(report.verdicts) if j.verdict is Verdict.REJECTED)
    return Retry(Source.FINDINGS, rejections=rejections)


def _guide(item: Item, report: Report, rules: Rules) -> Decision:
    return Retry(Source.GUIDANCE, keep_offer=_keeps_offer(item, report))


def _fresh(item: Item, report: Report, rules: Rules) -> Decision:
    return Retry(Source.NONE, keep_offer=_keeps_offer(item, report))


def _back_off(item: Item, report: Report, rules: Rules) -> Decision:
    return Retry(Source.KEPT, backoff=True)


def _revalidate(item: Item, report: Report, rules: Rules) -> Decision:
    return Revalidate(_ask(report, rules))


def _judge_fallback(item: Item, report: Report, rules: Rules) -> Decision:
    return JudgeFallback(keep_offer=_keeps_offer(item, report))


def _again(item: Item, report: Report, rules: Rules) -> Decision:
    return Again(classify(item, report, rules))


def _recover(item: Item, report: Report, rules: Rules) -> Decision:
    return Again(
        classify(item, report, rules),
        alone=item.recoveries + 1 == rules.max_recoveries,
        forget_fallback=item.judging_fallback,
    )


def _close(reason: Reason, code: str | None = None) -> Action:
    def close(item: Item, report: Report, rules: Rules) -> Decision:
        exact = breach(report, corrections=rules.corrections) if reason is Reason.CONTRACT_FAILURE else code
        return Close(closing_status(reason), reason, rules.policy.of(reason), exact)

    return close


def _cancel(item: Item, report: Report, rules: Rules) -> Decision:
    return CANCELLED


# ------------------------------------------------------------------------------------------------- table

Guard: TypeAlias = Callable[[Item, Report, Rules], bool]
Action: TypeAlias = Callable[[Item, Report, Rules], Decision]


@dataclass(frozen=True, slots=True)
class Row:
    """One rule: when the guard holds, the action. `when` and `then` are its words in the documentation."""

    when: str
    guard: Guard
    then: str
    action: Action


_CLOSE_STRUCTURAL = Row("otherwise", _always, "close: structural_failure", _close(Reason.STRUCTURAL_FAILURE))
_CLOSE_OPERATIONAL = Row(
    "otherwise", _always, "close: operational_failure", _close(Reason.OPERATIONAL_FAILURE)
)
_CLOSE_LOST = Row(
    "recoveries spent",
    _always,
    "close: operational_failure",
    _close(Reason.OPERATIONAL_FAILURE, "recoveries"),
)
_USE_FALLBACK = Row("a fallback is kept", _fallback_kept, "judge the fallback", _judge_fallback)
_RECOVER = Row("recoveries left", _recoveries_left, "same attempt again", _recover)
_NO_FALLBACK = Row(
    "otherwise", _always, "close: structural_failure", _close(Reason.STRUCTURAL_FAILURE, "no_fallback")
)

TABLE: Final[Mapping[Situation, tuple[Row, ...]]] = MappingProxyType(
    {
        Situation.ACCEPTED: (Row("always", _always, "advance: accepted", _advance),),
        Situation.REJECTED: (
            Row("retries left, takes corrections", _correctable, "next attempt, corrected", _correct),
            Row("retries left, blind retries allowed", _blind, "next attempt, fresh", _fresh),
            Row("otherwise", _always, "close: semantic_rejection", _close(Reason.SEMANTIC_REJECTION)),
        ),
        Situation.UNDETERMINED: (
            Row("an execution retry left", _execution_retry_left, "judge again", _revalidate),
            Row("policy says warn_continue", _warn_continue, "advance: incomplete", _advance_incomplete),
            Row(
                "otherwise",
                _always,
                "close: validator_execution_failure",
                _close(Reason.VALIDATOR_EXECUTION_FAILURE),
            ),
        ),
        Situation.STRUCTURAL: (
            Row("retries left", _retries_left, "next attempt, fresh", _fresh),
            _USE_FALLBACK,
            _CLOSE_STRUCTURAL,
        ),
        Situation.OPERATIONAL: (
            Row("retries left", _retries_left, "next attempt after backoff", _back_off),
            _USE_FALLBACK,
            _CLOSE_OPERATIONAL,
        ),
        Situation.THROTTLED: (
            Row("below the cap", _throttles_left, "same attempt again", _again),
            _USE_FALLBACK,
            Row(
                "otherwise",
                _always,
                "close: operational_failure",
                _close(Reason.OPERATIONAL_FAILURE, "throttled"),
            ),
        ),
        Situation.ASKED_GUIDED: (
            Row("retries left", _retries_left, "next attempt, corrected", _guide),
            _USE_FALLBACK,
            _NO_FALLBACK,
        ),
        Situation.ASKED_BLIND: (
            Row("retries left", _retries_left, "next attempt, fresh", _fresh),
            _USE_FALLBACK,
            _NO_FALLBACK,
        ),
        Situation.BROKEN: (
            Row("always", _always, "close: contract_failure", _close(Reason.CONTRACT_FAILURE)),
        ),
        Situation.UNREADABLE: (Row("always", _always, "same attempt again", _again),),
        Situation.GONE: (_RECOVER, _CLOSE_LOST),
        Situation.LOST: (_RECOVER, _CLOSE_LOST),
        Situation.NOREC: (
            Row("reopens left", _reopens_left, "same attempt again", _again),
            Row(
                "reopens spent",
                _always,
                "close: operational_failure",
                _close(Reason.OPERATIONAL_FAILURE, "reopens"),
            ),
        ),
        Situation.VOID: (Row("always", _always, "close: cancelled", _cancel),),
    }
)


def decide(item: Item, report: Report, policy: Rules) -> Decision:
    """What becomes of `item` after the attempt that `report` aggregates, under the rules of its stage.

    Total and pure: the same arguments always give an equal decision. Raises `ValueError` only for a candidate
    report whose verdicts do not match the stage's validators one to one.
    """
    for row in TABLE[classify(item, report, policy)]:
        if row.guard(item, report, policy):
            return _in_time(row.action(item, report, policy), item, report, policy)
    raise AssertionError("every list of rules ends in `always`")


def _in_time(decision: Decision, item: Item, report: Report, rules: Rules) -> Decision:
    """Past the deadline nothing is produced any more: the kept fallback, else the end.

    A fallback that is being judged may be judged to its end; that needs no generation and is bounded.
    """
    if not item.late:
        return decision
    match decision:
        case Close(reason=Reason.OPERATIONAL_FAILURE, code=None):
            return replace(decision, code="deadline")
        case Advance() | Close() | JudgeFallback():
            return decision
        case Revalidate() if item.judging_fallback:
            return decision
        case Again(because=Situation.NOREC) if item.judging_fallback:
            return decision
        case Retry() | Again() | Revalidate():
            if _fallback_kept(item, report, rules):
                return _judge_fallback(item, report, rules)
            late = _close(Reason.OPERATIONAL_FAILURE, "deadline")
            return late(item, report, rules)
        case _:
            assert_never(decision)


def when_run_has_ended(decision: Decision, *, last_stage: bool) -> Decision:
    """The decision in a run that is failing or being cancelled: what needs more work is cancelled.

    Work that is done keeps its end: a value that is final stays, and so does a closing that was reached.
    """
    match decision:
        case Close():
            return decision
        case Advance():
            return decision if last_stage else CANCELLED
        case Retry() | Again() | Revalidate() | JudgeFallback():
            return CANCELLED
        case _:
            assert_never(decision)


def refined(decision: Close, code: str | None) -> Close:
    """A closing with the attempt's own code, where it has none or only a general one. Cancellations have none."""
    if decision.reason is None or decision.code not in (None, "contract"):
        return decision
    return replace(decision, code=code or decision.code)


def after(item: Item, decision: Decision, report: Report) -> Item:
    """The item as the next report of the same stage will find it. Closings and advances leave it as it is."""
    match decision:
        case Retry():
            fallback = report.fallback if decision.keep_offer else item.fallback
            return replace(item, attempt=item.attempt + 1, fallback=fallback, judging_fallback=False)
        case JudgeFallback():
            fallback = report.fallback if decision.keep_offer else item.fallback
            return replace(item, fallback=fallback, judging_fallback=True)
        case Again(because=because):
            forget = decision.forget_fallback
            return replace(
                item,
                recoveries=item.recoveries + (because in (Situation.GONE, Situation.LOST)),
                reopens=item.reopens + (because is Situation.NOREC),
                throttles=item.throttles + (because is Situation.THROTTLED),
                fallback=None if forget else item.fallback,
                judging_fallback=item.judging_fallback and not forget,
            )
        case Advance() | Revalidate() | Close():
            return item
        case _:
            assert_never(decision)

"""An item's row as a value, and what a decision makes of it. Pure: no clock, no database, no Redis.

`apply` is the whole of "what the coordinator writes": the ledger stores its result under the guard of the epoch,
and a simulator can run it without any ledger.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, NamedTuple, assert_never

from sqlalchemy import RowMapping

from remand_policy import (
    Advance,
    Again,
    Close,
    Decision,
    Item,
    JudgeFallback,
    Production,
    Report,
    Retry,
    Revalidate,
    Situation,
    Source,
    Status,
    Verdict,
    after,
    refined,
)

from ..token import Token

Step = Literal["produce", "validate", "coordinate"]


class Row(NamedTuple):
    """The mutable columns of an item, and the two that name it. The columns' comments are in `tables`.

    A named tuple, because a decision copies its row several times, and a tuple is copied at once.
    """

    run_id: str
    seq: int
    key: str = ""
    state: str = "pending"
    epoch: int = 0
    since: int = 0
    round: int = 1
    stage: int = 0
    attempt: int = 1
    ask: str = ""
    recoveries: int = 0
    reopens: int = 0
    throttles: int = 0
    kicks: int = 0
    alone: int = 0
    due_at: float = 0.0
    deadline_at: float = 0.0
    correction: str = ""
    fallback: str = ""
    fallback_rank: int | None = None
    fallback_codes: str = "[]"
    judging_fallback: int = 0
    counted: int = 0
    unable: str = "[]"
    input_digest: str = ""
    previous_digest: str = ""
    status: str | None = None
    reason: str | None = None
    disposition: str | None = None
    code: str | None = None
    used_fallback: int = 0
    diagnostics: str = "[]"
    reused: int = 0
    attempts: int = 0
    generations: int = 0
    corrections: int = 0
    undetermined: int = 0
    recovered: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    closed_at: float | None = None

    @property
    def token(self) -> Token:
        """Names the execution that this row is waiting for."""
        return Token(self.run_id, self.seq, self.stage, self.attempt, self.epoch)

    @property
    def asked(self) -> tuple[int, ...]:
        """Validators to ask again."""
        return tuple(int(part) for part in self.ask.split(",") if part)

    def item(self, now: float) -> Item:
        """The row as `decide` takes it."""
        return Item(
            attempt=self.attempt,
            recoveries=self.recoveries,
            reopens=self.reopens,
            throttles=self.throttles,
            fallback=self.fallback_rank if self.fallback else None,
            judging_fallback=bool(self.judging_fallback),
            late=now >= self.deadline_at,
        )


_columns = itemgetter(*Row._fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """An attempt's record as the coordinator reads it: codes and counts."""

    production: Production
    epoch_of_production: int
    """When it was published; 0 where nothing was."""
    entry: str = ""
    """Name of the vault entry of the candidate under judgement."""
    generations: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    judge_input_tokens: int = 0
    judge_output_tokens: int = 0
    retry_after: float | None = None
    fallback_codes: tuple[str, ...] = ()
    validators: tuple[str, ...] = ()
    """Names of the stage's validators, in order."""
    stage: str = ""
    code: str | None = None
    """What the producer's part says of it, in one word; it refines a closing that has no code of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The present, and the waits that a decision may ask for, in seconds."""

    now: float
    dispatch_lease: float
    backoff: float
    """Already jittered, for this attempt."""


def entry_epoch(entry: str) -> int:
    """The epoch in the name of a vault entry, such as 57 in `cand.57`."""
    return int(entry.split(".")[1])


def count(row: Row, report: Report, facts: Facts) -> Row:
    """`row` with the cost of this report added: a production's once, however often its candidate is judged."""
    undetermined = sum(judgement.verdict is Verdict.UNDETERMINED for judgement in report.verdicts)
    row = row._replace(
        input_tokens=row.input_tokens + facts.judge_input_tokens,
        output_tokens=row.output_tokens + facts.judge_output_tokens,
        undetermined=row.undetermined + undetermined,
    )
    if facts.epoch_of_production <= row.counted:
        return row
    return row._replace(
        counted=facts.epoch_of_production,
        generations=row.generations + facts.generations,
        input_tokens=row.input_tokens + facts.input_tokens,
        output_tokens=row.output_tokens + facts.output_tokens,
    )


def apply(row: Row, decision: Decision, report: Report, facts: Facts, timing: Timing) -> Row:
    """The row after `decision`. Its epoch rises by one whatever was decided; nothing of a former epoch fits any more.

    A suspect that is `alone` stays so until it leaves the stage: it has no recovery left to lose beside another one.

    An advance leaves `stage` at the next stage, in flight; the caller closes the row instead when there is none.
    """
    item = after(row.item(timing.now), decision, report)
    row = count(row, report, facts)._replace(
        epoch=row.epoch + 1,
        kicks=0,
        ask="",
        recoveries=item.recoveries,
        reopens=item.reopens,
        throttles=item.throttles,
        state="in_flight",
        due_at=timing.now + timing.dispatch_lease,
    )
    match decision:
        case Close():
            return close(row, refined(decision, facts.code), timing.now)
        case Advance():
            return _advance(row, decision, report, facts, timing)
        case Revalidate(ask=ask):
            return row._replace(ask=",".join(str(index) for index in ask))
        case JudgeFallback():
            kept = _keep_offer(row, report, facts) if decision.keep_offer else row
            return kept._replace(since=row.epoch, judging_fallback=1, correction="")
        case Again():
            return _again(row, decision, facts, timing)
        case Retry():
            kept = _keep_offer(row, report, facts) if decision.keep_offer else row
            kept = kept._replace(
                attempt=item.attempt,
                attempts=row.attempts + 1,
                since=row.epoch,
                correction=_correction(row, decision, facts),
                judging_fallback=0,
            )
            kept = kept._replace(corrections=kept.corrections + bool(kept.correction))
            if decision.backoff:
                wait = max(timing.backoff, facts.retry_after or 0.0)
                return kept._replace(state="waiting", due_at=_by_deadline(kept, timing.now + wait))
            return kept
        case _:
            assert_never(decision)


def close(row: Row, decision: Close, now: float) -> Row:
    """The row closed by `decision`; the caller has raised its epoch."""
    return row._replace(
        state="closed",
        alone=0,
        ask="",
        correction="",
        status=decision.status.value,
        reason=decision.reason.value if decision.reason else None,
        disposition=decision.disposition.value if decision.disposition else None,
        code=decision.code,
        closed_at=now,
    )


def finish(row: Row, now: float) -> Row:
    """The row closed with the value of its last stage: accepted, or incomplete where a validator could not judge."""
    status = Status.ACCEPTED if row.unable == "[]" else Status.INCOMPLETE
    return row._replace(state="closed", alone=0, ask="", correction="", status=status.value, closed_at=now)


def enter_stage(row: Row, stage: int, now: float, deadline: float) -> Row:
    """The row at the beginning of a stage, with that stage's fresh budgets."""
    return row._replace(
        stage=stage,
        attempt=1,
        attempts=row.attempts + 1,
        since=row.epoch,
        alone=0,
        recoveries=0,
        reopens=0,
        throttles=0,
        correction="",
        fallback="",
        fallback_rank=None,
        fallback_codes="[]",
        judging_fallback=0,
        deadline_at=now + deadline,
    )


def _advance(row: Row, decision: Advance, report: Report, facts: Facts, timing: Timing) -> Row:
    if decision.status is Status.INCOMPLETE:
        unable = json.loads(row.unable) + [
            f"{facts.stage}/{name}"
            for name, judgement in zip(facts.validators, report.verdicts, strict=True)
            if judgement.verdict is Verdict.UNDETERMINED
        ]
        row = row._replace(unable=json.dumps(unable))
    if decision.fallback:
        codes = (json.loads(row.diagnostics) + json.loads(row.fallback_codes))[:8]
        row = row._replace(used_fallback=1, diagnostics=json.dumps(codes))
    return row


def _again(row: Row, decision: Again, facts: Facts, timing: Timing) -> Row:
    match decision.because:
        case Situation.THROTTLED:
            wait = facts.retry_after if facts.retry_after is not None else timing.backoff
            return row._replace(state="waiting", due_at=_by_deadline(row, timing.now + wait))
        case Situation.UNREADABLE:
            return row._replace(correction="")
        case Situation.GONE | Situation.LOST:
            row = row._replace(recovered=row.recovered + 1)
            if decision.forget_fallback:
                row = row._replace(judging_fallback=0, fallback="", fallback_rank=None, fallback_codes="[]")
            if decision.alone:
                return row._replace(alone=1, state="waiting", due_at=timing.now)
            return row
        case Situation.NOREC:
            return row._replace(recovered=row.recovered + 1)
        case _:
            return row


def _keep_offer(row: Row, report: Report, facts: Facts) -> Row:
    return row._replace(
        fallback=f"fall.{facts.epoch_of_production}",
        fallback_rank=report.fallback,
        fallback_codes=json.dumps(facts.fallback_codes),
    )


def _correction(row: Row, decision: Retry, facts: Facts) -> str:
    match decision.correction:
        case Source.NONE:
            return ""
        case Source.KEPT:
            return row.correction
        case Source.GUIDANCE:
            return f"guid.{facts.epoch_of_production}"
        case Source.FINDINGS:
            asked = ",".join(str(index) for index in decision.rejections)
            return f"find.{entry_epoch(facts.entry)}:{asked}"
        case _:
            assert_never(decision.correction)


def _by_deadline(row: Row, due: float) -> float:
    """A wait ends at the deadline at the latest; whoever wakes then closes the item."""
    return min(due, row.deadline_at)


def row_of(mapping: RowMapping) -> Row:
    """The row in a result that has its columns."""
    return Row._make(_columns(mapping))

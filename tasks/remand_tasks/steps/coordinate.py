"""Gather, decide, apply: the coordinator's step.

It reads the attempt's record, which is codes and counts, and asks `decide`. It commits one transaction, then
touches Redis, then sends: in that order, so that whatever is owed can always be derived from the ledger again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from remand.blocks import BlockProducer
from remand.pipeline import Stage
from remand_policy import (
    Advance,
    Close,
    Decision,
    Guidance,
    Judgement,
    Production,
    Reason,
    Report,
    Response,
    Retry,
    Status,
    Verdict,
    decide,
    when_run_has_ended,
)

from ..faults import point
from ..pipelines import Bound
from ..runtime import Runtime
from ..state import rows
from ..state.attempts import Record
from ..state.ledger import Change, Execution, RunInfo, receipt_of
from ..state.rows import Facts, Row, Timing
from ..state.vault import VaultError
from ..token import Token
from . import Next
from .common import tell_unreadable

log = logging.getLogger("remand.tasks")


def run(runtime: Runtime, token: Token) -> Next:
    """Decide about the execution that `token` names, if its facts are complete and nobody has decided yet."""
    point("coordinate.begun")
    execution = runtime.ledger.execution(token.run, token.seq)
    if execution is None or execution.row.state != "in_flight" or execution.row.token != token:
        return Next.STOP
    bound = runtime.pipelines.of(execution.run)
    if bound is None:
        return Next.STOP
    record = runtime.attempts.read(token.run, token.seq)
    if record is None or record.epoch != token.epoch or not record.complete:
        return Next.STOP
    point("coordinate.read")
    runtime.attempts.start(token)
    point("coordinate.counted")
    settle(runtime, execution, bound, record)
    return Next.STOP


def settle(runtime: Runtime, execution: Execution, bound: Bound, record: Record) -> None:
    """Decide about a complete record, write it, and send what is owed."""
    row, pipeline = execution.row, bound.pipeline
    stage = pipeline.stages[row.stage]
    rules = pipeline.rules(
        row.stage, max_recoveries=runtime.caps.recoveries, max_reopens=runtime.caps.reopens
    )
    report, facts = report_of(record), facts_of(record, stage)
    item = row.item(record.now)
    decision = decide(item, report, rules)
    value: bytes | None = None
    if isinstance(decision, Advance):
        value = _read(runtime, row, record.candidate, "the candidate")
        if value is None:
            report = Report(production=Production.GONE)
            decision = decide(item, report, rules)
    operator = None
    if report.production is Production.RETRY:
        name = f"oper.{facts.epoch_of_production}"
        text = _read(runtime, row, name, "the operator's message")
        operator = None if text is None else text.decode()
    settled = commit(
        runtime,
        row,
        bound,
        record,
        report,
        facts,
        decision,
        value=value,
        operator=operator,
    )
    if settled is None:
        log.info("decided already: the epoch has moved on")


def _read(runtime: Runtime, row: Row, name: str, what: str) -> bytes | None:
    """An entry, `None` where it is gone or is not what was put there. Without the key this worker cannot decide."""
    try:
        return runtime.vault.read(row.run_id, row.seq, [name]).get(name)
    except VaultError as error:
        tell_unreadable(error, what, runtime.vault)
        if error.code == "unknown_key":
            raise
        # While it lies there, the record would keep it as the candidate, and nothing be produced in its place.
        runtime.vault.discard(row.run_id, row.seq, name)
        return None


def commit(
    runtime: Runtime,
    row: Row,
    bound: Bound,
    record: Record | None,
    report: Report,
    facts: Facts,
    decision: Decision,
    *,
    value: bytes | None = None,
    operator: str | None = None,
    now: float | None = None,
) -> Row | None:
    """Write `decision` about `row`, then open and send what is owed, then clear what is closed."""
    pipeline = bound.pipeline
    stage = pipeline.stages[row.stage]
    at = record.now if record is not None else now if now is not None else runtime.attempts.now()
    timing = Timing(
        now=at,
        dispatch_lease=runtime.times.dispatch_lease,
        backoff=stage.backoff.delay(max(row.attempt, row.throttles + 1), runtime.jitter.random()),
    )
    applied: list[Decision] = []

    def change(run: RunInfo) -> Change:
        final = decision
        if not run.running:
            final = when_run_has_ended(decision, last_stage=row.stage == len(pipeline.stages) - 1)
        applied.append(final)
        after = rows.apply(row, final, report, facts, timing)
        receipt = _receipt(row, final, report, facts, record, stage, at, after)
        if not isinstance(final, Advance):
            fails = isinstance(final, Close) and final.fails_run
            return Change(row=after, receipt=receipt, operator_message=operator, fails_run=fails)
        assert value is not None
        return Change(
            row=after,
            receipt=receipt,
            value=value.decode(),
            value_digest=hashlib.sha256(value).hexdigest(),
            checkpoint=after.unable == "[]" and not after.used_fallback,
            operator_message=operator,
        )

    point("coordinate.decided")
    done = runtime.ledger.commit(row, bound.plan, at, change, closing=isinstance(decision, Close | Advance))
    if done is None:
        return None
    point("coordinate.committed")
    _log(row, applied[-1], pipeline.name, stage.name)
    runtime.observer.decided(pipeline.name, stage.name, _name(applied[-1]))
    if done.row.state == "closed":
        runtime.observer.closed(pipeline.name, done.row.status or "", done.row.reason)
    for owed in done.owed:
        runtime.dispatch(owed, bound, at)
    if done.row.state == "closed":
        _clear(runtime, done.row, applied[-1], stage, record, bound)
        if isinstance(stage.producer, BlockProducer):
            runtime.sender.reconcile(stage.producer.registry.name)
    return done.row


def _clear(
    runtime: Runtime, row: Row, decision: Decision, stage: Stage, record: Record | None, bound: Bound
) -> None:
    """Delete a closed item's record and texts, but what policy retains of a quarantined one for a reviewer."""
    point("close.begun")
    keep = bound.pipeline.policy.retain_quarantined
    retained: tuple[str, ...] = ()
    if keep is not None and record is not None and isinstance(decision, Close) and decision.quarantined:
        epoch = record.candidate.partition(".")[2]
        if epoch:
            rejected = [i for i, state in enumerate(record.validators) if state.state == "rejected"]
            retained = (record.candidate, *(f"find.{i}.{epoch}" for i in rejected))
    runtime.attempts.close(
        row.run_id,
        row.seq,
        row.epoch,
        retain=retained,
        retain_for=keep.total_seconds() if keep is not None else None,
    )
    point("close.deleted")


# ----------------------------------------------------------------------------------- a record as `decide` takes it


def report_of(record: Record) -> Report:
    """The aggregate of an attempt."""
    facts = record.facts
    production = Production(record.p)
    verdicts: tuple[Judgement, ...] = ()
    if production is Production.CANDIDATE:
        verdicts = tuple(Judgement(Verdict(state.state), state.tries) for state in record.validators)
    return Report(
        production=production,
        verdicts=verdicts,
        response=Response(facts.get("response", Response.ABSENT)),
        guidance=Guidance(facts.get("guidance", Guidance.ABSENT)),
        fallback=int(facts["rank"]) if "rank" in facts else None,
    )


def facts_of(record: Record, stage: Stage) -> Facts:
    """The counts that belong to a report."""
    facts = record.facts
    details = [detail for detail in _details(record) if detail.get("ep") == record.epoch]
    return Facts(
        production=Production(record.p),
        epoch_of_production=int(facts.get("born", 0)),
        entry=record.candidate,
        generations=int(facts.get("generations", 0)),
        input_tokens=int(facts.get("in", 0)),
        output_tokens=int(facts.get("out", 0)),
        judge_input_tokens=sum(int(detail.get("i", 0)) for detail in details),
        judge_output_tokens=sum(int(detail.get("o", 0)) for detail in details),
        retry_after=float(facts["wait"]) if "wait" in facts else None,
        fallback_codes=tuple(json.loads(facts.get("codes", "[]"))),
        validators=tuple(validator.name for validator in stage.validators),
        stage=stage.name,
        code=facts.get("code") or None,
    )


def _details(record: Record) -> list[Mapping[str, Any]]:
    return [json.loads(state.detail) if state.detail.startswith("{") else {} for state in record.validators]


def _receipt(
    row: Row,
    decision: Decision,
    report: Report,
    facts: Facts,
    record: Record | None,
    stage: Stage,
    now: float,
    after: Row,
) -> dict[str, object]:
    verdicts: list[dict[str, object]] = []
    if record is not None and report.production is Production.CANDIDATE:
        for validator, state, detail in zip(
            stage.validators, record.validators, _details(record), strict=True
        ):
            lost = state.state == "undetermined" and not detail.get("error_type")
            verdicts.append(
                {
                    "validator": validator.name,
                    "verdict": state.state,
                    "tries": state.tries,
                    "findings": detail.get("n", 0),
                    "seconds": detail.get("s"),
                    "error_type": "WorkerLost" if lost else detail.get("error_type"),
                    "error_at": detail.get("error_at"),
                }
            )
    codes = record.facts if record is not None else {}
    return receipt_of(
        row,
        decision=_name(decision),
        now=now,
        production=report.production.value,
        code=(decision.code if isinstance(decision, Close) else None) or codes.get("code") or None,
        verdicts=json.dumps(verdicts),
        generations=after.generations - row.generations,
        input_tokens=after.input_tokens - row.input_tokens,
        output_tokens=after.output_tokens - row.output_tokens,
        error_type=codes.get("error_type") or None,
        error_at=codes.get("error_at") or None,
    )


def _name(decision: Decision) -> str:
    match decision:
        case Advance(status=status, fallback=fallback):
            return f"advance:{status.value}{':fallback' if fallback else ''}"
        case Close(reason=reason, status=status):
            return f"close:{reason.value if reason else status.value}"
        case Retry(correction=source):
            return f"retry:{source.value}"
        case _:
            return type(decision).__name__.lower()


def _log(row: Row, decision: Decision, pipeline: str, stage: str) -> None:
    worrying = isinstance(decision, Close) or (
        isinstance(decision, Advance) and decision.status != "accepted"
    )
    log.log(
        logging.WARNING if worrying and _name(decision) != "close:cancelled" else logging.INFO,
        "decided: %s (pipeline %s, item %s, stage %s, attempt %s)",
        _name(decision),
        pipeline,
        row.seq,
        stage,
        row.attempt,
    )


def give_up(runtime: Runtime, row: Row, bound: Bound, code: str, now: float) -> Row | None:
    """Close an item that keeps breaking its coordinator, as an operational failure."""
    rules = bound.pipeline.rules(row.stage)
    disposition = rules.policy.of(Reason.OPERATIONAL_FAILURE)
    decision = Close(Status.FAILED, Reason.OPERATIONAL_FAILURE, disposition, code)
    report = Report(production=Production.OPERATIONAL)
    facts = Facts(production=Production.OPERATIONAL, epoch_of_production=0)
    return commit(runtime, row, bound, None, report, facts, decision, now=now)

"""What people ask of runs: where one stands, how its items ended, the story of one. Reading only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, bindparam, case, func, select

from remand.context import Usage, Validation
from remand.outcome import Outcome, VerdictRecord
from remand_policy import Disposition, Reason, RunStatus, Status, Verdict

from .engine import Database
from .ledger import RunInfo, run_of
from .tables import items, payloads, receipts, runs

_CHUNK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands: its items by state and end, and what they cost so far."""

    run: RunInfo
    total: int
    pending: int
    waiting: int
    in_flight: int
    ends: Mapping[str, int]
    quarantined: int
    reasons: Mapping[str, int]
    generations: int
    attempts: int
    corrections: int
    undetermined: int
    recovered: int
    reused: int
    fallbacks: int
    usage: Usage

    @property
    def closed(self) -> int:
        """Items that ended."""
        return sum(self.ends.values())

    def end(self, status: Status) -> int:
        """How many items ended so."""
        return self.ends.get(status.value, 0)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        run = self.run
        return {
            "run": run.id,
            "pipeline": run.pipeline,
            "version": run.version,
            "status": run.status,
            "created_at": run.created_at,
            "ended_at": run.ended_at,
            "input_done": bool(run.input_done),
            "items": self.total,
            "pending": self.pending,
            "waiting": self.waiting,
            "in_flight": self.in_flight,
            **{status.value: self.end(status) for status in Status},
            "quarantined": self.quarantined,
            "reasons": dict(self.reasons),
            "undetermined_verdicts": self.undetermined,
            "generations": self.generations,
            "attempts": self.attempts,
            "corrections": self.corrections,
            "recovered": self.recovered,
            "reused": self.reused,
            "fallbacks": self.fallbacks,
            "input_tokens": self.usage.input_tokens,
            "output_tokens": self.usage.output_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSummary:
    """One line about an item: codes and counts."""

    seq: int
    key: str
    state: str
    stage: int
    attempt: int
    status: str | None
    reason: str | None
    disposition: str | None
    code: str | None
    generations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One decision about an item, as it was committed. No text of a model, an input or an exception."""

    epoch: int
    round: int
    stage: int
    attempt: int
    production: str
    code: str | None
    decision: str
    verdicts: tuple[Mapping[str, Any], ...]
    corrected: bool
    generations: int
    input_tokens: int
    output_tokens: int
    error_type: str | None
    error_at: str | None
    at: float


def _sum(column: Any) -> Any:
    return func.coalesce(func.sum(column), 0)


_GROUPS = (
    select(
        items.c.state,
        items.c.status,
        items.c.disposition,
        items.c.reason,
        func.count(),
        _sum(items.c.generations),
        _sum(items.c.attempts),
        _sum(items.c.corrections),
        _sum(items.c.undetermined),
        _sum(items.c.recovered),
        _sum(items.c.reused),
        _sum(case((items.c.state == "closed", items.c.used_fallback), else_=0)),
        _sum(items.c.input_tokens),
        _sum(items.c.output_tokens),
    )
    .where(items.c.run_id == bindparam("run_id"))
    .group_by(items.c.state, items.c.status, items.c.disposition, items.c.reason)
)
_RUN_COLUMNS = [runs.c[name] for name in RunInfo._fields]
_SUMMARY = [
    items.c[name]
    for name in (
        "seq", "key", "state", "stage", "attempt", "status", "reason", "disposition", "code", "generations",
    )
]  # fmt: skip


@dataclass(slots=True)
class Queries:
    """Reads a ledger for people."""

    database: Database

    def runs(self, limit: int = 20) -> list[RunInfo]:
        """The latest runs, newest first."""
        statement = select(*_RUN_COLUMNS).order_by(runs.c.created_at.desc()).limit(limit)
        with self.database.read() as connection:
            return [run_of(found) for found in connection.execute(statement).mappings()]

    def run(self, run_id: str) -> RunInfo | None:
        """The run with this id, or whose id alone begins with it."""
        exact = select(*_RUN_COLUMNS).where(runs.c.id == run_id)
        begins = select(*_RUN_COLUMNS).where(runs.c.id.startswith(run_id, autoescape=True)).limit(2)
        with self.database.read() as connection:
            for statement in (exact, begins):
                found = connection.execute(statement).mappings().all()
                if len(found) == 1:
                    return run_of(found[0])
        return None

    def progress(self, run_id: str) -> Progress:
        """Where a run stands. Raises `LookupError` if there is no such run."""
        run = self.run(run_id)
        if run is None:
            raise LookupError(run_id)
        with self.database.read() as connection:
            groups = connection.execute(_GROUPS, {"run_id": run.id}).all()
        states: dict[str, int] = {}
        ends: dict[str, int] = {}
        reasons: dict[str, int] = {}
        quarantined = 0
        sums = [0] * 9
        for state, status, disposition, reason, count, *counts in groups:
            states[state] = states.get(state, 0) + count
            if state == "closed":
                ends[status] = ends.get(status, 0) + count
                quarantined += count * (disposition == Disposition.QUARANTINE.value)
                if reason:
                    reasons[reason] = reasons.get(reason, 0) + count
            sums = [a + int(b) for a, b in zip(sums, counts, strict=True)]
        generations, attempts, corrections, undetermined, recovered, reused, fallbacks, read, written = sums
        return Progress(
            run=run,
            total=sum(states.values()),
            pending=states.get("pending", 0),
            waiting=states.get("waiting", 0),
            in_flight=states.get("in_flight", 0),
            ends=ends,
            quarantined=quarantined,
            reasons=reasons,
            generations=generations,
            attempts=attempts,
            corrections=corrections,
            undetermined=undetermined,
            recovered=recovered,
            reused=reused,
            fallbacks=fallbacks,
            usage=Usage(read, written),
        )

    def items(self, run_id: str, *, disposition: str | None = None, limit: int = 1_000) -> list[ItemSummary]:
        """Items of a run in order; with `disposition`, closed ones of that disposition alone."""
        statement = select(*_SUMMARY).where(items.c.run_id == run_id).order_by(items.c.seq).limit(limit)
        if disposition is not None:
            statement = statement.where(items.c.state == "closed", items.c.disposition == disposition)
        with self.database.read() as connection:
            return [ItemSummary(**found) for found in connection.execute(statement).mappings()]

    def find(self, run_id: str, item: str) -> int | None:
        """The number of the item with this key, or with this number."""
        with self.database.read() as connection:
            by_key = select(items.c.seq).where(items.c.run_id == run_id, items.c.key == item)
            found = connection.execute(by_key).scalar_one_or_none()
            if found is None and item.isdigit():
                by_seq = select(items.c.seq).where(items.c.run_id == run_id, items.c.seq == int(item))
                found = connection.execute(by_seq).scalar_one_or_none()
        return found

    def receipts(self, run_id: str, seq: int) -> list[Receipt]:
        """Every decision about an item, in order."""
        columns = [receipts.c[name] for name in Receipt.__dataclass_fields__]
        statement = (
            select(*columns)
            .where(receipts.c.run_id == run_id, receipts.c.seq == seq)
            .order_by(receipts.c.epoch)
        )
        with self.database.read() as connection:
            found = connection.execute(statement).mappings().all()
        return [
            Receipt(
                **{**row, "verdicts": tuple(json.loads(row["verdicts"])), "corrected": bool(row["corrected"])}
            )
            for row in found
        ]

    def payload(self, run_id: str, seq: int, name: str) -> str | None:
        """One payload: the user's own data, shown on request only."""
        statement = select(payloads.c.body).where(
            payloads.c.run_id == run_id, payloads.c.seq == seq, payloads.c.name == name
        )
        with self.database.read() as connection:
            return connection.execute(statement).scalar_one_or_none()

    def outcomes(
        self, run_id: str, stages: int, *, after: int = -1, limit: int | None = None
    ) -> Iterator[Outcome]:
        """Outcomes of closed items in input order, from the item behind `after`, up to the first that is open.

        `value` is the JSON value; `stages` is how many stages the pipeline has.
        """
        last_value = f"value.{stages - 1}"
        given = 0
        while limit is None or given < limit:
            chunk = self._outcome_rows(run_id, last_value, after)
            verdicts = self._last_verdicts(run_id, [row["seq"] for row in chunk])
            for row in chunk:
                if (
                    row["state"] != "closed"
                    or row["seq"] != after + 1
                    or (limit is not None and given >= limit)
                ):
                    return
                after = row["seq"]
                given += 1
                yield _outcome(row, verdicts.get(after, ()))
            if not chunk:
                return

    def _outcome_rows(self, run_id: str, last_value: str, after: int) -> list[Mapping[str, Any]]:
        statement: Select[Any] = (
            select(items, payloads.c.body)
            .outerjoin(
                payloads,
                (payloads.c.run_id == items.c.run_id)
                & (payloads.c.seq == items.c.seq)
                & (payloads.c.name == last_value),
            )
            .where(items.c.run_id == run_id, items.c.seq > after)
            .order_by(items.c.seq)
            .limit(_CHUNK)
        )
        with self.database.read() as connection:
            return [dict(found) for found in connection.execute(statement).mappings()]

    def _last_verdicts(self, run_id: str, seqs: list[int]) -> dict[int, tuple[VerdictRecord, ...]]:
        if not seqs:
            return {}
        statement = (
            select(receipts.c.seq, receipts.c.verdicts)
            .where(receipts.c.run_id == run_id, receipts.c.seq >= seqs[0], receipts.c.seq <= seqs[-1])
            .order_by(receipts.c.seq, receipts.c.epoch)
        )
        found: dict[int, tuple[VerdictRecord, ...]] = {}
        with self.database.read() as connection:
            for seq, text in connection.execute(statement):
                found[seq] = tuple(
                    VerdictRecord(
                        validator=entry["validator"],
                        verdict=Verdict(entry["verdict"]),
                        tries=entry["tries"],
                        error_type=entry.get("error_type"),
                        error_at=entry.get("error_at"),
                    )
                    for entry in json.loads(text)
                )
        return found


def _outcome(row: Mapping[str, Any], verdicts: tuple[VerdictRecord, ...]) -> Outcome:
    status = Status(row["status"])
    carries = status in (Status.ACCEPTED, Status.INCOMPLETE)
    return Outcome(
        status=status,
        item=row["seq"],
        key=row["key"],
        value=json.loads(row["body"]) if carries and row["body"] is not None else None,
        reason=Reason(row["reason"]) if row["reason"] else None,
        disposition=Disposition(row["disposition"]) if row["disposition"] else None,
        code=row["code"],
        attempts=row["attempts"],
        generations=row["generations"],
        corrections=row["corrections"],
        verdicts=verdicts,
        usage=Usage(row["input_tokens"], row["output_tokens"]),
        reused=bool(row["reused"]),
        validation=Validation(json.loads(row["unable"])),
        fallback=bool(row["used_fallback"]) and carries,
        diagnostics=tuple(json.loads(row["diagnostics"])),
    )


def exit_status(status: RunStatus) -> int:
    """What a command ends with for a run: 0 succeeded, 3 degraded, 1 failed or cancelled."""
    return {RunStatus.SUCCEEDED: 0, RunStatus.DEGRADED: 3}.get(status, 1)

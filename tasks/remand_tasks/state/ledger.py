"""The ledger: every transition of runs and items, each one transaction under its guard.

Statements are built once, here, because building them costs more than running them. A guard that finds nothing to
update means that somebody else was first: the method says so by returning `None` or less, and nothing was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    RowMapping,
    Select,
    and_,
    bindparam,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)

from remand_policy import CANCELLED, RunStatus, checkpoint_digest

from ..faults import point
from . import rows as transitions
from .engine import WAKING_ALONE, Database, locked, one_by_one
from .rows import Row, row_of
from .tables import OPEN, checkpoints, items, payloads, receipts, runs

REUSED_AT_ONCE = 100
"""Items closed from checkpoints in one transaction, at most."""


class RunInfo(NamedTuple):
    """A run as its row says."""

    id: str
    target: str
    pipeline: str
    version: str
    fingerprint: str
    status: str
    window: int
    key_path: str | None
    reuse: int
    input_done: int
    feeder_until: float
    created_at: float
    ended_at: float | None

    @property
    def running(self) -> bool:
        """Whether new work may begin in it."""
        return self.status == RunStatus.RUNNING


@dataclass(frozen=True, slots=True)
class Plan:
    """What admission needs to know of a pipeline: a fingerprint and a deadline in seconds for each stage."""

    fingerprints: tuple[str, ...]
    deadlines: tuple[float, ...]


class Execution(NamedTuple):
    """An item with its run, as one query reads them. Texts are JSON; `None` where they were not asked for."""

    run: RunInfo
    row: Row
    input: str | None = None
    previous: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a coordinator wants written of one decision."""

    row: Row
    receipt: Mapping[str, object]
    advanced: bool = False
    """The row's stage was passed with `value`; the ledger moves it on or closes it."""
    value: str | None = None
    value_digest: str = ""
    checkpoint: bool = False
    operator_message: str | None = None
    fails_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What was written: the row as it now stands, and the rows that are owed a dispatch."""

    row: Row
    owed: tuple[Row, ...] = ()


_RUN_COLUMNS = [runs.c[name] for name in RunInfo._fields]
_ITEM_COLUMNS = [items.c[name] for name in Row._fields]
_LABELLED_RUN = [column.label(f"run__{column.name}") for column in _RUN_COLUMNS]
_run_columns = itemgetter(*RunInfo._fields)
_labelled_run_columns = itemgetter(*(column.name for column in _LABELLED_RUN))
_HERE = and_(items.c.run_id == bindparam("run_id"), items.c.seq == bindparam("seq"))
_OPEN = text(OPEN)

_RUN = select(*_RUN_COLUMNS).where(runs.c.id == bindparam("run_id"))
_RUN_SHARED = locked(_RUN, share=True)
_RUN_LOCKED = locked(_RUN)
_ROW = select(*_ITEM_COLUMNS).where(_HERE)
_EXECUTION = (
    select(*_LABELLED_RUN, *_ITEM_COLUMNS).join_from(items, runs, runs.c.id == items.c.run_id).where(_HERE)
)
_input, _previous = payloads.alias("input"), payloads.alias("previous")


def _payload(alias: Any, name: Any) -> Any:
    return and_(alias.c.run_id == items.c.run_id, alias.c.seq == items.c.seq, alias.c.name == name)


_EXECUTION_WITH_INPUT = (
    select(
        *_LABELLED_RUN,
        *_ITEM_COLUMNS,
        _input.c.body.label("input_body"),
        _previous.c.body.label("previous_body"),
    )
    .join_from(items, runs, runs.c.id == items.c.run_id)
    .outerjoin(_input, _payload(_input, "input"))
    .outerjoin(_previous, _payload(_previous, bindparam("previous_name")))
    .where(_HERE)
)
_MUTABLE = [name for name in Row._fields if name not in ("run_id", "seq", "key", "input_digest")]
_mutable_columns = attrgetter(*_MUTABLE)
_UPDATE_ROW = (
    update(items)
    .where(
        items.c.run_id == bindparam("at_run"),
        items.c.seq == bindparam("at_seq"),
        items.c.state == bindparam("at_state"),
        items.c.epoch == bindparam("at_epoch"),
    )
    .values({name: bindparam(name) for name in _MUTABLE})
)
_ADD_RECEIPT = insert(receipts)
_OPEN_COUNT = select(func.count()).select_from(items).where(items.c.run_id == bindparam("run_id"), _OPEN)
_PENDING = (
    select(*_ITEM_COLUMNS)
    .where(items.c.run_id == bindparam("run_id"), text("state = 'pending'"))
    .order_by(items.c.seq)
    .limit(bindparam("room"))
)
_CHECKPOINT = select(
    checkpoints.c.run_id, checkpoints.c.seq, checkpoints.c.stage, checkpoints.c.value_digest
).where(checkpoints.c.fingerprint == bindparam("fingerprint"), checkpoints.c.digest == bindparam("digest"))
_BODY = select(payloads.c.body).where(
    payloads.c.run_id == bindparam("run_id"),
    payloads.c.seq == bindparam("seq"),
    payloads.c.name == bindparam("name"),
)
_DELETE_BODY = payloads.delete().where(
    payloads.c.run_id == bindparam("at_run"),
    payloads.c.seq == bindparam("at_seq"),
    payloads.c.name == bindparam("at_name"),
)
_FAIL_RUN = (
    update(runs)
    .where(runs.c.id == bindparam("at_run"), runs.c.status == RunStatus.RUNNING.value)
    .values(status=RunStatus.FAILING.value)
)
_DUE = (
    select(*_ITEM_COLUMNS)
    .where(
        _OPEN,
        items.c.due_at <= bindparam("now"),
        items.c.run_id.not_in(bindparam("leave", expanding=True)),
    )
    .order_by(items.c.due_at)
    .limit(bindparam("limit"))
)
_DUE_IN_RUN = _DUE.where(items.c.run_id == bindparam("run_id"))
_DUE_IN_RUNS = _DUE.where(func.substr(items.c.run_id, 1, bindparam("length")) == bindparam("run_id"))
_PUSH = (
    update(items)
    .where(
        items.c.run_id == bindparam("at_run"),
        items.c.seq == bindparam("at_seq"),
        items.c.epoch == bindparam("at_epoch"),
        items.c.due_at == bindparam("at_due"),
        _OPEN,
    )
    .values(due_at=bindparam("due_at"), kicks=bindparam("kicks"))
)
_OTHER_ALONE: Select[Any] = (
    select(literal_column("1"))
    .select_from(items)
    .where(text("alone = 1"), items.c.state == "in_flight")
    .limit(1)
)
# Not sorted here: asked for an order, SQLite walks every run that ever was instead of the index of open ones.
_UNENDED = select(*_RUN_COLUMNS).where(runs.c.ended_at.is_(None))
# In any order: in that of `seq`, SQLite would walk the run's closed rows once for each batch.
_TO_CANCEL = (
    select(*_ITEM_COLUMNS)
    .where(items.c.run_id == bindparam("run_id"), items.c.state.in_(("pending", "waiting")))
    .limit(bindparam("limit"))
)
_ANY_UNCLOSED: Select[Any] = (
    select(literal_column("1"))
    .select_from(items)
    .where(items.c.run_id == bindparam("run_id"), items.c.state.in_(("pending", "waiting", "in_flight")))
    .limit(1)
)
_ENDS = (
    select(items.c.status, items.c.used_fallback, func.count())
    .where(items.c.run_id == bindparam("run_id"))
    .group_by(items.c.status, items.c.used_fallback)
)
_END_RUN = (
    update(runs)
    .where(runs.c.id == bindparam("at_run"), runs.c.ended_at.is_(None))
    .values(status=bindparam("status"), ended_at=bindparam("ended_at"))
)


def _guarded(row: Row, before: Row) -> dict[str, object]:
    values: dict[str, object] = dict(zip(_MUTABLE, _mutable_columns(row), strict=True))
    values.update(at_run=before.run_id, at_seq=before.seq, at_state=before.state, at_epoch=before.epoch)
    return values


def run_of(mapping: RowMapping) -> RunInfo:
    return RunInfo._make(_run_columns(mapping))


def _execution_of(mapping: RowMapping, *payloads: str | None) -> Execution:
    return Execution(RunInfo._make(_labelled_run_columns(mapping)), row_of(mapping), *payloads)


def _beginning(only: str | None) -> str | None:
    """What the ids of runs begin with that `beginning-*` names."""
    return only[:-1] if only is not None and only.endswith("-*") else None


@dataclass(slots=True)
class Ledger:
    """All that workers read and write of runs and items. Times are seconds by the clock of the Redis server."""

    database: Database
    dispatch_lease: float = 10.0

    # ------------------------------------------------------------------------------------------------ reading

    def run(self, run_id: str) -> RunInfo | None:
        """The run with this id."""
        with self.database.read() as connection:
            found = connection.execute(_RUN, {"run_id": run_id}).mappings().first()
        return None if found is None else run_of(found)

    def unended(self, only: str | None = None) -> list[RunInfo]:
        """Runs that have not ended, oldest first; of those alone that `only` names, as for `due`."""
        with self.database.read() as connection:
            found = [run_of(mapping) for mapping in connection.execute(_UNENDED).mappings()]
        begins = _beginning(only)
        named = (
            run
            for run in found
            if only in (None, run.id) or (begins is not None and run.id.startswith(begins))
        )
        return sorted(named, key=lambda run: run.created_at)

    def execution(self, run_id: str, seq: int) -> Execution | None:
        """An item with its run, without any payload."""
        with self.database.read() as connection:
            found = connection.execute(_EXECUTION, {"run_id": run_id, "seq": seq}).mappings().first()
        return None if found is None else _execution_of(found)

    def execution_with_input(self, run_id: str, seq: int, stage: int) -> Execution | None:
        """An item with its run, its input and the value of the stage before `stage`."""
        at = {"run_id": run_id, "seq": seq, "previous_name": f"value.{stage - 1}"}
        with self.database.read() as connection:
            found = connection.execute(_EXECUTION_WITH_INPUT, at).mappings().first()
        if found is None:
            return None
        return _execution_of(found, found["input_body"], found["previous_body"])

    def due(self, now: float, limit: int, leave: Sequence[str] = (), only: str | None = None) -> list[Row]:
        """Open items whose time has passed, the longest overdue first: not of the runs in `leave`.

        `only` names the one run to look at, or by `beginning-*` all that begin so.
        """
        at = {"now": now, "limit": limit, "leave": list(leave), "run_id": only}
        statement = _DUE if only is None else _DUE_IN_RUN
        begins = _beginning(only)
        if begins is not None:
            statement, at = _DUE_IN_RUNS, {**at, "run_id": begins, "length": len(begins)}
        with self.database.read() as connection:
            return [row_of(found) for found in connection.execute(statement, at).mappings()]

    # ---------------------------------------------------------------------------------- the coordinator's commit

    def commit(
        self, before: Row, plan: Plan, now: float, change: Callable[[RunInfo], Change], *, closing: bool
    ) -> Committed | None:
        """Write one decision about `before`, and admit what a closing makes room for, in one transaction.

        `change` is called with the run as it stands inside the transaction. `closing` says that the decision may close
        the item, so that the run's row is locked and not only shared. `None` where the epoch had moved on.
        """
        key = {"run_id": before.run_id}
        with self.database.write() as connection:
            found = connection.execute(_RUN_LOCKED if closing else _RUN_SHARED, key).mappings().one()
            run = run_of(found)
            wanted = change(run)
            row = wanted.row
            if wanted.value is not None:
                row = self._pass_stage(connection, run, plan, wanted, now)
            if connection.execute(_UPDATE_ROW, _guarded(row, before)).rowcount != 1:
                connection.rollback()
                return None
            connection.execute(_ADD_RECEIPT, dict(wanted.receipt))
            if wanted.operator_message is not None:
                self._store(connection, row, f"operator.{before.epoch}", wanted.operator_message)
            owed: list[Row] = []
            if row.state == "closed":
                if wanted.fails_run:
                    connection.execute(_FAIL_RUN, {"at_run": run.id})
                elif run.running:
                    owed = self._admit(connection, run, plan, now)
            elif row.state == "in_flight":
                owed = [row]
            point("coordinate.committing")
            return Committed(row=row, owed=tuple(owed))

    def _pass_stage(
        self, connection: Connection, run: RunInfo, plan: Plan, wanted: Change, now: float
    ) -> Row:
        assert wanted.value is not None
        row = wanted.row._replace(previous_digest=wanted.value_digest)
        self._store(connection, row, f"value.{row.stage}", wanted.value)
        if wanted.checkpoint:
            at = checkpoint_digest(row.input_digest, wanted.row.previous_digest)
            connection.execute(
                self.database.insert_or_ignore(checkpoints),
                {
                    "fingerprint": plan.fingerprints[row.stage],
                    "digest": at,
                    "run_id": row.run_id,
                    "seq": row.seq,
                    "stage": row.stage,
                    "value_digest": wanted.value_digest,
                },
            )
        return self._enter(connection, run, plan, row, row.stage + 1, now)

    def _enter(
        self, connection: Connection, run: RunInfo, plan: Plan, row: Row, stage: int, now: float
    ) -> Row:
        """`row` entering `stage`, or a later one where checkpoints hold the values between, or closed at the end."""
        reused = 0
        while stage < len(plan.fingerprints):
            row = transitions.enter_stage(row, stage, now, plan.deadlines[stage])
            found = None
            if run.reuse and row.unable == "[]" and not row.used_fallback:
                at = {
                    "fingerprint": plan.fingerprints[stage],
                    "digest": checkpoint_digest(row.input_digest, row.previous_digest),
                }
                found = connection.execute(_CHECKPOINT, at).first()
            if found is None:
                return row._replace(state="in_flight", due_at=now + self.dispatch_lease)
            source = {"run_id": found.run_id, "seq": found.seq, "name": f"value.{found.stage}"}
            body = connection.execute(_BODY, source).scalar_one_or_none()
            if body is None:
                return row._replace(state="in_flight", due_at=now + self.dispatch_lease)
            self._store(connection, row, f"value.{stage}", body)
            row = row._replace(previous_digest=found.value_digest, attempts=row.attempts - 1)
            reused = 1
            stage += 1
        return transitions.finish(row._replace(reused=reused), now)

    def _store(self, connection: Connection, row: Row, name: str, body: str) -> None:
        at = {"at_run": row.run_id, "at_seq": row.seq, "at_name": name}
        if row.round > 1:
            connection.execute(_DELETE_BODY, at)
        connection.execute(
            self.database.insert_or_ignore(payloads),
            {"run_id": row.run_id, "seq": row.seq, "name": name, "body": body},
        )

    def _admit(self, connection: Connection, run: RunInfo, plan: Plan, now: float) -> list[Row]:
        """Put pending items in flight while the window has room. The caller holds the run's lock."""
        room = run.window - connection.execute(_OPEN_COUNT, {"run_id": run.id}).scalar_one()
        owed: list[Row] = []
        closed = 0
        while room > 0 and closed < REUSED_AT_ONCE:
            found = connection.execute(
                _PENDING, {"run_id": run.id, "room": min(room, REUSED_AT_ONCE)}
            ).mappings().all()  # fmt: skip
            for mapping in found:
                before = row_of(mapping)
                row = before._replace(epoch=before.epoch + 1, kicks=0, ask="", alone=0)
                row = self._enter(connection, run, plan, row, row.stage, now)
                connection.execute(_UPDATE_ROW, _guarded(row, before))
                if row.state == "closed":
                    closed += 1
                else:
                    owed.append(row)
                    room -= 1
            if not found:
                break
        return owed

    # ------------------------------------------------------------------------------------------------- the pulse

    def admit(self, run_id: str, plan: Plan, now: float) -> list[Row]:
        """Put pending items of a run in flight while its window has room."""
        with self.database.write() as connection:
            found = connection.execute(_RUN_LOCKED, {"run_id": run_id}).mappings().first()
            run = None if found is None else run_of(found)
            if run is None or not run.running:
                return []
            return self._admit(connection, run, plan, now)

    def wake(self, row: Row, now: float) -> Row | None:
        """waiting to in flight, the epoch kept. `None` where it moved on, the run ended, or another one is alone."""
        with self.database.write() as connection:
            if row.alone:
                one_by_one(self.database, connection, WAKING_ALONE)
            run = connection.execute(_RUN_SHARED, {"run_id": row.run_id}).mappings().one()
            if not run_of(run).running:
                return None
            if row.alone and connection.execute(_OTHER_ALONE).first() is not None:
                self._push(connection, row, now + 2.0, row.kicks)
                return None
            woken = row._replace(state="in_flight", due_at=now + self.dispatch_lease, kicks=0)
            done = connection.execute(_UPDATE_ROW, _guarded(woken, row)).rowcount
            return woken if done == 1 else None

    def push(self, row: Row, due_at: float, kicks: int | None = None) -> bool:
        """Look at an item again at `due_at`. False where somebody else already moved it."""
        with self.database.write() as connection:
            return self._push(connection, row, due_at, row.kicks if kicks is None else kicks)

    def _push(self, connection: Connection, row: Row, due_at: float, kicks: int) -> bool:
        values = {
            "at_run": row.run_id,
            "at_seq": row.seq,
            "at_epoch": row.epoch,
            "at_due": row.due_at,
            "due_at": due_at,
            "kicks": kicks,
        }
        return bool(connection.execute(_PUSH, values).rowcount == 1)

    def jump(self, row: Row, record_epoch: int, now: float) -> Row | None:
        """The record is ahead, so the ledger was restored: go past it and begin the attempt anew."""
        epoch = max(row.epoch, record_epoch) + 1
        jumped = row._replace(
            epoch=epoch,
            since=epoch,
            ask="",
            correction="",
            reopens=row.reopens + 1,
            kicks=0,
            due_at=now + self.dispatch_lease,
        )
        with self.database.write() as connection:
            done = connection.execute(_UPDATE_ROW, _guarded(jumped, row)).rowcount
        return jumped if done == 1 else None

    def cancel_rest(self, run_id: str, now: float, limit: int) -> int:
        """Close up to `limit` pending and waiting items of a run that is no longer running. How many it were."""
        with self.database.write() as connection:
            run = run_of(connection.execute(_RUN_LOCKED, {"run_id": run_id}).mappings().one())
            if run.running:
                return 0
            found = connection.execute(_TO_CANCEL, {"run_id": run_id, "limit": limit}).mappings().all()
            for mapping in found:
                before = row_of(mapping)
                row = transitions.close(before._replace(epoch=before.epoch + 1), CANCELLED, now)
                connection.execute(_UPDATE_ROW, _guarded(row, before))
            return len(found)

    def end_if_done(self, run_id: str, now: float) -> RunStatus | None:
        """End a run in which nothing is open and nothing more is fed. Its end, or `None` where it goes on."""
        with self.database.write() as connection:
            run = run_of(connection.execute(_RUN_LOCKED, {"run_id": run_id}).mappings().one())
            if run.ended_at is not None or (run.running and not run.input_done):
                return None
            if connection.execute(_ANY_UNCLOSED, {"run_id": run_id}).first() is not None:
                return None
            status = _end_of(run, connection.execute(_ENDS, {"run_id": run_id}).all())
            values = {"at_run": run_id, "status": status.value, "ended_at": now}
            return status if connection.execute(_END_RUN, values).rowcount == 1 else None


def _end_of(run: RunInfo, ends: Iterable[Sequence[Any]]) -> RunStatus:
    if run.status == RunStatus.FAILING:
        return RunStatus.FAILED
    if run.status == RunStatus.CANCELLING:
        return RunStatus.CANCELLED
    clean = all(status == "accepted" and not fallback for status, fallback, _ in ends)
    return RunStatus.SUCCEEDED if clean else RunStatus.DEGRADED


def receipt_of(row: Row, *, decision: str, now: float, **codes: object) -> dict[str, object]:
    """A receipt's columns for the execution that `row` stood for. Codes and counts only."""
    columns: dict[str, object] = {
        "run_id": row.run_id,
        "seq": row.seq,
        "epoch": row.epoch,
        "round": row.round,
        "stage": row.stage,
        "attempt": row.attempt,
        "production": "",
        "code": None,
        "decision": decision,
        "verdicts": json.dumps([]),
        "corrected": int(bool(row.correction)),
        "generations": 0,
        "input_tokens": 0,
        "output_tokens": 0,
        "error_type": None,
        "error_at": None,
        "at": now,
    }
    columns.update(codes)
    return columns

"""Purging: payloads first, then what was decided, in small transactions; the item's row stays as a tombstone.

A purged item keeps its key, its epoch and how it ended. So no old message can revive it, and no input under its key
is taken again; what it said is gone: input, values, operator messages, receipts, and every checkpoint that stood on
its values. Only items of runs that have ended are purged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    select,
    text,
    update,
)

from .engine import Database
from .tables import UNPURGED, checkpoints, items, payloads, receipts, runs

BATCH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Which items to purge: all that fit everything that is named. `before` is in epoch seconds."""

    before: float | None = None
    run_id: str | None = None
    statuses: Sequence[str] = ()
    payloads_only: bool = False
    """Keep the receipts: what was decided stays, what was said goes."""


# Not `run_id IN (...)`: then SQLite would read every item of every ended run, and sort them, for each batch.
_ENDED = exists().where(runs.c.id == items.c.run_id, runs.c.ended_at.is_not(None))


def _item(table: Table) -> ColumnElement[bool]:
    return and_(table.c.run_id == bindparam("at_run"), table.c.seq == bindparam("at_seq"))


# Item by item: for a list of pairs SQLite would read the whole table.
_SAID = tuple(delete(table).where(_item(table)) for table in (payloads, checkpoints))
_DECIDED = delete(receipts).where(_item(receipts))
_MARK = update(items).where(_item(items)).values(purged=1)


@dataclass(slots=True)
class Retention:
    """Purges a ledger."""

    database: Database

    def count(self, which: Which) -> int:
        """How many items `purge` would take."""
        with self.database.read() as connection:
            chosen = self._chosen(which).subquery()
            return connection.execute(select(func.count()).select_from(chosen)).scalar_one()

    def purge(self, which: Which, *, limit: int | None = None) -> int:
        """Purge what fits, a batch a transaction, at most `limit` items. How many it was.

        Stopped at any point, it has purged whole items; the next call goes on.
        """
        done = 0
        while limit is None or done < limit:
            size = BATCH if limit is None else min(BATCH, limit - done)
            with self.database.write() as connection:
                chosen = connection.execute(self._chosen(which).limit(size)).all()
                if not chosen:
                    break
                self._remove(connection, [(row.run_id, row.seq) for row in chosen], which)
            done += len(chosen)
        return done

    def _chosen(self, which: Which) -> Select[Any]:
        statement = (
            select(items.c.run_id, items.c.seq).where(text(UNPURGED), _ENDED).order_by(items.c.closed_at)
        )
        if which.before is not None:
            statement = statement.where(items.c.closed_at <= which.before)
        if which.run_id is not None:
            statement = statement.where(items.c.run_id == which.run_id)
        if which.statuses:
            statement = statement.where(items.c.status.in_(list(which.statuses)))
        return statement

    def _remove(self, connection: Connection, chosen: list[tuple[str, int]], which: Which) -> None:
        at = [{"at_run": run_id, "at_seq": seq} for run_id, seq in chosen]
        for delete_of_item in _SAID if which.payloads_only else (*_SAID, _DECIDED):
            connection.execute(delete_of_item, at)
        connection.execute(_MARK, at)

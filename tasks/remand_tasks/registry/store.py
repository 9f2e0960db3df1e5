"""Registries in the ledger: what is registered, entries coming in, requests for reconciliation, jobs and their rounds.

Whoever changes a registry locks its row first, so that changes come one after the other; a model is never called
within a transaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import BaseModel
from sqlalchemy import (
    Connection,
    RowMapping,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    update,
)

from remand.errors import RemandError
from remand.registry import Registry

from ..state.engine import Database, locked
from ..state.tables import runs
from .tables import WANTED, clusters, entries, feeds, jobs, keys, records, registries

MOST_SHARED_KEY = 1_000
"""An exact key of more entries than this is taken for a placeholder, not for a name."""
_AT_ONCE = 500
"""Values in one IN list."""
_FACTS = {"budget_spent": "the budget of calls was spent, so that less likely pairs were not asked about"}
_NOTES = {
    "entries_left_for_next_time": "entries were in blocks that failed and are left for the next time",
    "entries_without_tokens": "entries have no text to compare by",
    "exact_keys_too_common": "exact keys are those of too many entries and were taken for placeholders",
    "runs_not_served": "runs were not read in, because their pipeline is not here as it was",
    "tokens_too_common": "words or trigrams are too common to compare by",
}


class RegistryError(RemandError):
    """Something cannot be done to a registry. The text says what and what to do instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryRow:
    """A registry as its row says."""

    name: str
    target: str
    version: str
    fingerprint: str
    revision: int
    entries: int
    wanted: int
    served: int
    job: str
    claim: int
    claimed_until: float
    due_at: float
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A reconciliation as its row says."""

    id: str
    registry: str
    fingerprint: str
    state: str
    request: int
    round: int = 0
    run_id: str = ""
    blocks: int = 0
    applied: int = 0
    calls: int = 0
    budget: int = 0
    depth: int = 1
    gain: float = 0.0
    merges: int = 0
    fresh: int = 0
    exact: int = 0
    merged: int = 0
    stale: int = 0
    notes: str = "{}"
    started_at: float = 0.0
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """An entry ready to be stored: its id, its record as JSON text, the digests of record and exact keys."""

    id: str
    body: str = field(repr=False)
    digest: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Put:
    """How many entries were added, changed, or there already as they are."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0


def made_of(registry: Registry[Any], entry: BaseModel) -> Made:
    """`entry` as the ledger takes it. Raises `BadEntry` where one of the registry's functions does not take it."""
    body = registry.dump(entry)
    registry.compared(entry)
    return Made(
        registry.entry_id(entry),
        body,
        _digest(body),
        tuple(_digest(key) for key in registry.exact_keys(entry)),
    )


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


_COLUMNS = [registries.c[f.name] for f in fields(RegistryRow)]
_JOB_COLUMNS = [jobs.c[f.name] for f in fields(Job)]
_FIND = select(*_COLUMNS).where(registries.c.name == bindparam("name"))
_LOCK = locked(_FIND)
_DUE = select(registries.c.name).where(registries.c.due_at <= bindparam("now"), text(WANTED))
_OWED = (
    select(registries.c.name)
    .distinct()
    .join_from(registries, feeds, feeds.c.registry == registries.c.name)
    .join(runs, runs.c.id == feeds.c.run_id)
    .where(registries.c.due_at <= bindparam("now"), runs.c.ended_at > feeds.c.fed_at)
)


def row_of(found: RowMapping) -> RegistryRow:
    return RegistryRow(**{f.name: found[f.name] for f in fields(RegistryRow)})


def find(connection: Connection, name: str) -> RegistryRow | None:
    """The registry of this name."""
    found = connection.execute(_FIND, {"name": name}).mappings().first()
    return None if found is None else row_of(found)


def lock(connection: Connection, name: str) -> RegistryRow:
    """The registry of this name, locked until the transaction ends. Raises `RegistryError` if there is none."""
    found = connection.execute(_LOCK, {"name": name}).mappings().first()
    if found is None:
        raise RegistryError(f"there is no registry {name!r}; see `remand registry list`")
    return row_of(found)


def chunks(values: Iterable[str]) -> Iterable[list[str]]:
    """`values` in lists that a database takes in one IN list."""
    everything = list(values)
    for start in range(0, len(everything), _AT_ONCE):
        yield everything[start : start + _AT_ONCE]


def register(
    database: Database,
    connection: Connection,
    registry: Registry[Any],
    target: str,
    now: float,
    *,
    move: bool = False,
) -> RegistryRow:
    """Make a registry known; where it is known already, by its new target if it changed, or with `move` anyway."""
    connection.execute(
        database.insert_or_ignore(registries),
        {
            "name": registry.name,
            "target": target,
            "version": registry.pipeline.version,
            "fingerprint": registry.fingerprint,
            "revision": 0,
            "entries": 0,
            "wanted": 0,
            "served": 0,
            "job": "",
            "claim": 0,
            "claimed_until": 0.0,
            "due_at": now,
            "created_at": now,
        },
    )
    row = lock(connection, registry.name)
    if row.fingerprint != registry.fingerprint or (move and row.target != target):
        connection.execute(
            update(registries)
            .where(registries.c.name == registry.name)
            .values(target=target, version=registry.pipeline.version, fingerprint=registry.fingerprint)
        )
    return lock(connection, registry.name)


def put(
    database: Database,
    connection: Connection,
    name: str,
    made: Sequence[Made],
    now: float,
    *,
    run_id: str = "",
    seqs: Sequence[int] = (),
) -> Put:
    """Store entries of a registry: an id that is there takes the new record. Of equal ids the last one counts.

    A new or changed entry is fresh: the next reconciliation compares it. `seqs` are the items of `run_id`, one an
    entry. Raises `RegistryError` for an unknown registry.
    """
    latest = {one.id: (one, seqs[place] if seqs else 0) for place, one in enumerate(made)}
    row = lock(connection, name)
    known: dict[str, tuple[str, int]] = {}
    for some in chunks(latest):
        found = connection.execute(
            select(entries.c.id, entries.c.digest, entries.c.version).where(
                entries.c.registry == name, entries.c.id.in_(some)
            )
        )
        known.update({found_id: (digest, version) for found_id, digest, version in found})
    new = [(one, seq) for one, seq in latest.values() if one.id not in known]
    changed = [one for one, _ in latest.values() if one.id in known and known[one.id][0] != one.digest]
    if new:
        at = {"registry": name, "fresh": 1, "run_id": run_id, "at": now, "version": 1}
        connection.execute(
            insert(entries),
            [
                at
                | {"id": one.id, "seq": seq, "ordinal": row.entries + place}
                | {"cluster": one.id, "digest": one.digest}
                for place, (one, seq) in enumerate(new)
            ],
        )  # fmt: skip
        connection.execute(
            insert(clusters),
            [
                {"registry": name, "id": one.id, "version": 1, "size": 1, "merged_into": "", "receipt": 0}
                for one, _ in new
            ],
        )
        connection.execute(
            insert(records), [{"registry": name, "id": one.id, "body": one.body} for one, _ in new]
        )
    for one in changed:
        here = and_(entries.c.registry == name, entries.c.id == one.id)
        connection.execute(
            update(entries)
            .where(here)
            .values(digest=one.digest, version=entries.c.version + 1, fresh=1, at=now)
        )
        connection.execute(
            update(records).where(records.c.registry == name, records.c.id == one.id).values(body=one.body)
        )
        connection.execute(delete(keys).where(keys.c.registry == name, keys.c.id == one.id))
    put_keys = [
        {"registry": name, "digest": key, "id": one.id}
        for one in [*(one for one, _ in new), *changed]
        for key in dict.fromkeys(one.keys)
    ]
    if put_keys:
        connection.execute(database.insert_or_ignore(keys), put_keys)
    if new or changed:
        connection.execute(
            update(registries)
            .where(registries.c.name == name)
            .values(entries=registries.c.entries + len(new), revision=registries.c.revision + 1)
        )
    return Put(len(new), len(changed), len(latest) - len(new) - len(changed))


def want(connection: Connection, name: str, now: float) -> int:
    """Ask for a reconciliation. Requests that come before it begins are one. The number of the request."""
    lock(connection, name)
    connection.execute(
        update(registries).where(registries.c.name == name).values(wanted=registries.c.wanted + 1, due_at=now)
    )
    return lock(connection, name).wanted


def feed_from(database: Database, connection: Connection, name: str, run_id: str) -> None:
    """Remember that a run's accepted values go into a registry when it has ended."""
    connection.execute(
        database.insert_or_ignore(feeds),
        {"registry": name, "run_id": run_id, "fed_at": 0.0, "added": 0, "refused": 0},
    )


def bodies(connection: Connection, name: str, ids: Iterable[str]) -> dict[str, str]:
    """The records of entries, as JSON text."""
    found: dict[str, str] = {}
    for some in chunks(ids):
        found.update(
            connection.execute(
                select(records.c.id, records.c.body).where(records.c.registry == name, records.c.id.in_(some))
            ).all()
        )
    return found


def members_of(connection: Connection, name: str, canonical: Iterable[str]) -> dict[str, list[str]]:
    """The entries of clusters in the order in which they came."""
    found: dict[str, list[str]] = {}
    for some in chunks(canonical):
        for cluster, entry in connection.execute(
            select(entries.c.cluster, entries.c.id)
            .where(entries.c.registry == name, entries.c.cluster.in_(some))
            .order_by(entries.c.ordinal)
        ):
            found.setdefault(cluster, []).append(entry)
    return found


@dataclass(slots=True)
class Registries:
    """What is done with registries outside a longer transaction."""

    database: Database

    def find(self, name: str) -> RegistryRow | None:
        """The registry of this name."""
        with self.database.read() as connection:
            return find(connection, name)

    def all(self) -> list[RegistryRow]:
        """Every registry, by name."""
        with self.database.read() as connection:
            found = connection.execute(select(*_COLUMNS).order_by(registries.c.name)).mappings()
            return [row_of(mapping) for mapping in found]

    def register(
        self, registry: Registry[Any], target: str, now: float, *, move: bool = False
    ) -> RegistryRow:
        """As the function."""
        with self.database.write() as connection:
            return register(self.database, connection, registry, target, now, move=move)

    def put(self, name: str, made: Sequence[Made], now: float) -> Put:
        """As the function."""
        with self.database.write() as connection:
            return put(self.database, connection, name, made, now)

    def want(self, name: str, now: float) -> int:
        """As the function."""
        with self.database.write() as connection:
            return want(connection, name, now)

    def due(self, now: float, *, owed: bool = True) -> list[str]:
        """Registries in which something is to be done and that nobody looked after lately.

        With `owed`, also those that a run has ended for since: this reads a row for each run that ever fed one.
        """
        found: set[str] = set()
        with self.database.read() as connection:
            for statement in (_DUE, _OWED) if owed else (_DUE,):
                found.update(connection.execute(statement, {"now": now}).scalars())
        return sorted(found)

    def push(self, name: str, due_at: float, now: float) -> bool:
        """Look at a registry again at `due_at`. False where somebody else moved it first."""
        with self.database.write() as connection:
            moved = connection.execute(
                update(registries)
                .where(registries.c.name == name, registries.c.due_at <= now)
                .values(due_at=due_at)
            )
            return bool(moved.rowcount == 1)

    def fresh(self, name: str) -> int:
        """How many entries wait to be compared."""
        with self.database.read() as connection:
            return int(
                connection.execute(
                    select(func.count())
                    .select_from(entries)
                    .where(entries.c.registry == name, text("fresh = 1"))
                ).scalar_one()
            )

    def owed(self, name: str) -> list[tuple[str, float]]:
        """Runs that have ended and were not read since, with their ends."""
        statement = (
            select(runs.c.id, runs.c.ended_at)
            .join_from(feeds, runs, runs.c.id == feeds.c.run_id)
            .where(feeds.c.registry == name, runs.c.ended_at > feeds.c.fed_at)
            .order_by(runs.c.ended_at)
        )
        with self.database.read() as connection:
            return [(run_id, ended_at) for run_id, ended_at in connection.execute(statement)]

    def job(self, job_id: str) -> Job | None:
        """The job with this id."""
        with self.database.read() as connection:
            return job(connection, job_id)

    def jobs(self, name: str, limit: int = 20) -> list[Job]:
        """The latest jobs of a registry, newest first."""
        statement = (
            select(*_JOB_COLUMNS)
            .where(jobs.c.registry == name)
            .order_by(jobs.c.started_at.desc())
            .limit(limit)
        )
        with self.database.read() as connection:
            return [Job(**found) for found in connection.execute(statement).mappings()]


def job(connection: Connection, job_id: str) -> Job | None:
    """The job with this id."""
    found = connection.execute(select(*_JOB_COLUMNS).where(jobs.c.id == job_id)).mappings().first()
    return None if found is None else Job(**found)


def note_words(noted: Mapping[str, int]) -> list[str]:
    """Caps that were hit and what was left out, in words."""
    return [
        f"{count:,} {_NOTES[code]}" if code in _NOTES else _FACTS.get(code, code.replace("_", " "))
        for code, count in sorted(noted.items())
    ]


def notes(of: Job) -> Mapping[str, int]:
    """The caps that a job hit, as counts by code."""
    found: dict[str, int] = json.loads(of.notes)
    return found

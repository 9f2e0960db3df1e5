"""What people ask of registries: where one stands, its clusters, reviews, receipts and jobs. Reading only.

Ids, codes and counts. Records are the user's data: `records` gives those that were asked for, and nothing else does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, case, func, or_, select

from remand_policy import Status

from ..state.engine import Database
from ..state.tables import items, runs
from .store import Job, Registries, RegistryError, RegistryRow, bodies, chunks, find, members_of
from .tables import clusters, entries, merges, reviews

_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a registry stands. `owed` counts runs that have ended and were not read in yet."""

    row: RegistryRow
    entries: int
    clusters: int
    fresh: int
    reviews: int
    owed: int
    job: Job | None
    last: Job | None

    @property
    def state(self) -> str:
        """`idle`, `asked`, `planning` or `proposing`."""
        if self.job is not None:
            return self.job.state
        return "asked" if self.row.wanted > self.row.served or self.owed else "idle"

    @property
    def settled(self) -> bool:
        """Whether there is nothing to reconcile: no new entry, no run to read in, no job."""
        return self.job is None and not self.fresh and not self.owed


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster: its canonical id and its members' ids in the order in which they came, the canonical one first."""

    id: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """Entries that a person has to decide about. `clusters` counts those that they are in now."""

    number: int
    members: tuple[str, ...]
    clusters: int
    why: str
    run_id: str
    seq: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A merge or an unmerge: clusters with their members before and after, and where it came from."""

    number: int
    kind: str
    cluster: str
    before: Mapping[str, tuple[str, ...]]
    after: Mapping[str, tuple[str, ...]]
    rule: str
    run_id: str
    seq: int
    attempt: int
    undoes: int | None
    undone_by: int | None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of a job: its run, and how many of its blocks have closed or ended without a usable proposal."""

    number: int
    run_id: str
    fingerprint: str
    status: str
    blocks: int
    closed: int
    failed: int
    generations: int


@dataclass(slots=True)
class RegistryQueries:
    """Reads registries for people. Raises `RegistryError` where there is no registry of the name."""

    database: Database

    def all(self) -> list[Standing]:
        """Every registry, by name."""
        return [self.standing(row.name) for row in Registries(self.database).all()]

    def standing(self, name: str) -> Standing:
        """Where a registry stands now."""
        registries = Registries(self.database)
        last = registries.jobs(name, 1)
        with self.database.read() as connection:
            row = _known(connection, name)
            counted = [
                connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one()
                for table, where in (
                    (entries, [entries.c.registry == name]),
                    (clusters, [clusters.c.registry == name, clusters.c.merged_into == ""]),
                    (reviews, [reviews.c.registry == name, reviews.c.state == "open"]),
                )
            ]
        return Standing(
            row=row,
            entries=counted[0],
            clusters=counted[1],
            fresh=registries.fresh(name),
            reviews=counted[2],
            owed=len(registries.owed(name)),
            job=registries.job(row.job) if row.job else None,
            last=last[0] if last else None,
        )

    def jobs(self, name: str, limit: int) -> list[Job]:
        """The latest jobs, newest first."""
        return Registries(self.database).jobs(name, limit)

    def rounds(self, job_id: str) -> list[Round]:
        """The rounds of a job, in order."""
        begins = f"registry-{job_id}-"
        usable = and_(items.c.status == Status.ACCEPTED.value, items.c.diagnostics.not_like('%"malformed"%'))
        closed = items.c.state == "closed"
        statement = (
            select(
                runs.c.id,
                runs.c.fingerprint,
                runs.c.status,
                func.count(items.c.seq),
                func.coalesce(func.sum(case((closed, 1), else_=0)), 0),
                func.coalesce(func.sum(case((and_(closed, ~usable), 1), else_=0)), 0),
                func.coalesce(func.sum(items.c.generations), 0),
            )
            .join_from(runs, items, runs.c.id == items.c.run_id, isouter=True)
            .where(runs.c.id.startswith(begins, autoescape=True))
            .group_by(runs.c.id, runs.c.fingerprint, runs.c.status, runs.c.created_at)
            .order_by(runs.c.created_at)
        )
        with self.database.read() as connection:
            found = connection.execute(statement).all()
        return [
            Round(
                number=int(run_id.removeprefix(begins).partition("-")[0]),
                run_id=run_id,
                fingerprint=fingerprint,
                status=status,
                blocks=blocks,
                closed=ended,
                failed=failed,
                generations=generations,
            )
            for run_id, fingerprint, status, blocks, ended, failed, generations in found
        ]

    def cluster_of(self, name: str, entry: str) -> str | None:
        """The canonical id of the cluster that an entry is in; an id that was canonical is an entry's."""
        with self.database.read() as connection:
            _known(connection, name)
            return connection.execute(
                select(entries.c.cluster).where(entries.c.registry == name, entries.c.id == entry)
            ).scalar_one_or_none()

    def clusters(self, name: str, *, only: str | None = None) -> Iterator[Cluster]:
        """Clusters by their ids; that one alone where `only` names it. Each batch is read by itself."""
        after = ""
        while True:
            with self.database.read() as connection:
                _known(connection, name)
                where = [clusters.c.registry == name, clusters.c.merged_into == "", clusters.c.id > after]
                if only is not None:
                    where.append(clusters.c.id == only)
                ids = list(
                    connection.execute(
                        select(clusters.c.id).where(*where).order_by(clusters.c.id).limit(_AT_ONCE)
                    ).scalars()
                )
                members = members_of(connection, name, ids)
            for each in ids:
                if each in members:  # Else it was merged between the two readings.
                    yield Cluster(each, tuple(members[each]))
            if len(ids) < _AT_ONCE:
                return
            after = ids[-1]

    def records(self, name: str, ids: Iterable[str]) -> dict[str, Any]:
        """The records of entries as plain values: the user's data, shown on request only."""
        with self.database.read() as connection:
            return {entry: json.loads(body) for entry, body in bodies(connection, name, ids).items()}

    def reviews(self, name: str) -> list[Review]:
        """What waits for a person, oldest first."""
        with self.database.read() as connection:
            _known(connection, name)
            found = connection.execute(
                select(reviews)
                .where(reviews.c.registry == name, reviews.c.state == "open")
                .order_by(reviews.c.id)
            ).all()
            members = {row.id: tuple(entry for entry, _ in json.loads(row.members)) for row in found}
            cluster: dict[str, str] = {}
            for some in chunks(dict.fromkeys(entry for ids in members.values() for entry in ids)):
                where = (entries.c.registry == name, entries.c.id.in_(some))
                cluster.update(
                    connection.execute(select(entries.c.id, entries.c.cluster).where(*where)).all()
                )
        return [
            Review(
                number=row.id,
                members=members[row.id],
                clusters=len({cluster.get(entry) for entry in members[row.id]}),
                why=row.why,
                run_id=row.run_id,
                seq=row.seq,
                at=row.at,
            )
            for row in found
        ]

    def history(self, name: str, *, cluster: str | None = None, limit: int = 50) -> list[Receipt]:
        """The latest merges and unmerges, newest first; with `cluster`, those that an entry of it had a part in."""
        statement = select(merges).where(merges.c.registry == name).order_by(merges.c.id.desc()).limit(limit)
        with self.database.read() as connection:
            _known(connection, name)
            if cluster is not None:
                members = members_of(connection, name, [cluster]).get(cluster, [cluster])
                # Ids stand in the receipt as JSON has them.
                part = merges.c.before.contains(json.dumps(cluster), autoescape=True)
                statement = statement.where(or_(merges.c.cluster.in_(members), part))
            return [_receipt(row) for row in connection.execute(statement)]


def _receipt(row: Any) -> Receipt:
    before, after = json.loads(row.before), json.loads(row.after)
    undoes = before.pop("of", None) if row.kind == "unmerge" else None
    return Receipt(
        number=row.id,
        kind=row.kind,
        cluster=row.cluster,
        before={cluster: tuple(was["members"]) for cluster, was in before.items()},
        after={cluster: tuple(now["members"]) for cluster, now in after.items()},
        rule=row.rule,
        run_id=row.run_id,
        seq=row.seq,
        attempt=row.attempt,
        undoes=None if undoes is None else undoes["merge"],
        undone_by=row.undone_by or None,
        at=row.at,
    )


def _known(connection: Connection, name: str) -> RegistryRow:
    found = find(connection, name)
    if found is None:
        raise RegistryError(f"there is no registry {name!r}; see `remand registry list`")
    return found

"""A registry as a planner sees it: one reading of its partition and judgements, and blocks made of what was planned."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from remand.registry import Registry

from ..state.engine import Database
from .candidates import Candidates, Rows, Vectors
from .joining import DECISIVE, FAILED, MODEL, NEGATIVE, POSITIVE
from .planning import Between, Planned, Snapshot, bins_of
from .store import Job, bodies
from .tables import edges, entries


class View:
    """A registry as a planner sees it, and the records of its entries when they are asked for."""

    def __init__(
        self,
        database: Database,
        registry: Registry[Any],
        snapshot: Snapshot,
        versions: list[int],
        names: list[str],
        judgements: Judgements,
    ) -> None:
        self.snapshot = snapshot
        self.versions = versions
        self.vectors: Vectors | None = None
        self.nearest: dict[int, Candidates] = {}
        self._database = database
        self._registry = registry
        self._names = names
        self._judgements = judgements
        self._bodies: dict[str, str] = {}
        self._parsed: dict[int, Any] = {}
        self._forbidden: dict[tuple[tuple[int, ...], tuple[int, ...]], bool] = {}
        self._rows: dict[int, tuple[int, ...]] | None = None

    @classmethod
    def read(cls, database: Database, registry: Registry[Any], job_id: str, last: View | None = None) -> View:
        """The registry as it is now, without records. What `last` has read of the same job is not read again."""
        name = registry.name
        if last is not None and (last._judgements.job_id != job_id or last._registry is not registry):
            last = None
        with database.read() as connection:
            found = connection.execute(
                select(entries.c.id, entries.c.cluster, entries.c.version, entries.c.fresh)
                .where(entries.c.registry == name)
                .order_by(entries.c.ordinal)
            ).all()
            ids = [row.id for row in found]
            versions = [row.version for row in found]
            number: dict[str, int] = {}
            cluster = np.array([number.setdefault(row.cluster, len(number)) for row in found], dtype=np.int64)
            fresh = np.array([bool(row.fresh) for row in found], dtype=bool)
            judgements = Judgements(job_id) if last is None else last._judgements
            if fresh.any():
                judgements.read(connection, name, ids)
        snapshot = judgements.snapshot(ids, versions, cluster, fresh)
        view = cls(database, registry, snapshot, versions, list(number), judgements)
        if last is not None and last.versions == versions and last.snapshot.ids == ids:
            view.vectors, view.nearest, view._forbidden = last.vectors, last.nearest, last._forbidden
            view._bodies, view._parsed = last._bodies, last._parsed
        return view

    def entries(self) -> list[Any]:
        """Every entry, in order of rows."""
        if len(self._bodies) < len(self.snapshot.ids):
            self._read(self.snapshot.ids)
        return [self.entry(row) for row in range(len(self.snapshot.ids))]

    def entry(self, row: int) -> Any:
        """One entry."""
        if row not in self._parsed:
            name = self.snapshot.ids[row]
            if name not in self._bodies:
                self._read([name])
            self._parsed[row] = self._registry.parse(self._bodies[name])
        return self._parsed[row]

    def _read(self, ids: Sequence[str]) -> None:
        with self._database.read() as connection:
            self._bodies.update(
                bodies(connection, self._registry.name, [i for i in ids if i not in self._bodies])
            )

    def rows_of(self, cluster: int) -> tuple[int, ...]:
        """The rows of a cluster."""
        if self._rows is None:
            rows: dict[int, list[int]] = {}
            for row, found in enumerate(self.snapshot.cluster.tolist()):
                rows.setdefault(found, []).append(row)
            self._rows = {found: tuple(some) for found, some in rows.items()}
        return self._rows[cluster]

    def forbidden(self, one: int, other: int) -> bool:
        """Whether a rule keeps two clusters apart."""
        key = self.rows_of(one), self.rows_of(other)
        if key not in self._forbidden:
            groups = [[self.entry(row) for row in rows] for rows in key]
            self._forbidden[key] = self._registry.forbidden(groups) is not None
        return self._forbidden[key]

    def block(self, registry: Registry[Any], current: Job, planned: Planned) -> dict[str, Any]:
        """A block as the input of an item: records in an order of its own under local ids."""
        rows = sorted(planned.rows)
        self._read([self.snapshot.ids[row] for row in rows])
        names = "\n".join(self.snapshot.ids[row] for row in rows)
        seed = int.from_bytes(hashlib.sha256(f"{registry.fingerprint}\n{names}".encode()).digest()[:4], "big")
        random.Random(seed).shuffle(rows)  # noqa: S311 - an order, not a secret
        local = {row: f"r{place}" for place, row in enumerate(rows, 1)}
        cluster_of = self.snapshot.cluster
        inside = dict.fromkeys(int(cluster_of[row]) for row in rows)
        around = [row for cluster in inside for row in self.rows_of(cluster) if row not in local]
        self._read([self.snapshot.ids[row] for row in around])
        return {
            "registry": registry.name,
            "seed": seed,
            "records": [
                {
                    "id": local[row],
                    "entry": self.snapshot.ids[row],
                    "version": self.versions[row],
                    "cluster": self._names[int(cluster_of[row])],
                    "record": json.loads(self._bodies[self.snapshot.ids[row]]),
                }
                for row in rows
            ],
            "around": [
                {
                    "cluster": self._names[int(cluster_of[row])],
                    "record": json.loads(self._bodies[self.snapshot.ids[row]]),
                }
                for row in around
            ],
            "apart": [
                [local[one], local[other]]
                for one, other in combinations(rows, 2)
                if (
                    min(int(cluster_of[one]), int(cluster_of[other])),
                    max(int(cluster_of[one]), int(cluster_of[other])),
                )
                in self.snapshot.apart
            ],
            "pairs": [
                [local[one], local[other], chance, score] for one, other, chance, score in planned.pairs
            ],
        }


_CODES: Final = {POSITIVE: 1, NEGATIVE: -1}
_EDGE: Final = np.dtype(
    [
        ("one", np.int64),
        ("other", np.int64),
        ("one_version", np.int64),
        ("other_version", np.int64),
        ("said", np.int8),
        ("prior", np.float64),
        ("score", np.float64),
    ]
)


class Judgements:
    """What was judged in a registry, by rows, as far as it was read for one job. Judgements are only ever added to."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._last = 0
        self._edges: NDArray[Any] = np.empty(0, _EDGE)
        self._decided: dict[tuple[int, int], str] = {}

    def read(self, connection: Connection, name: str, ids: Sequence[str]) -> None:
        """Read what was added since the last time. Rows of `ids` stay the same when entries are added."""
        row_of = {entry: row for row, entry in enumerate(ids)}
        found = connection.execution_options(yield_per=10_000).execute(
            select(
                edges.c.id, edges.c.one, edges.c.other, edges.c.one_version, edges.c.other_version,
                edges.c.judgement, edges.c.prior, edges.c.score, edges.c.source, edges.c.run_id,
            )
            .where(edges.c.registry == name, edges.c.id > self._last)
            .order_by(edges.c.id)
        )  # fmt: skip
        of_this_job = f"registry-{self.job_id}-"
        for part in found.partitions():
            self._last = part[-1].id
            rows = []
            for _, one, other, one_version, other_version, said, prior, score, source, run_id in part:
                pair = row_of[one], row_of[other]
                if source in DECISIVE:
                    self._decided[pair] = said
                elif source == MODEL and (said != FAILED or run_id.startswith(of_this_job)):
                    rows.append(
                        (*pair, one_version, other_version, _CODES.get(said, 0), prior or 0.0, score or 0.0)
                    )
            self._edges = np.concatenate([self._edges, np.array(rows, _EDGE)])

    def snapshot(
        self, ids: Sequence[str], versions: Sequence[int], cluster: Rows, fresh: NDArray[np.bool_]
    ) -> Snapshot:
        """What these judgements say of a partition. Those of entries that changed since count for rates alone."""
        planned = self._edges[(self._edges["score"] > 0) & (self._edges["said"] != 0)]
        bins = bins_of(planned["score"])
        number, same = np.bincount(bins), np.bincount(bins, planned["said"] > 0)
        now = np.array(versions, dtype=np.int64)
        one, other = self._edges["one"], self._edges["other"]
        stands = (now[one] == self._edges["one_version"]) & (now[other] == self._edges["other_version"])
        standing = self._edges[stands]
        one, other = standing["one"], standing["other"]
        across = cluster[one] != cluster[other]
        said = standing["said"][across]
        apart = ((int(cluster[left]), int(cluster[right])) for left, right in self._apart())
        return Snapshot(
            ids=ids,
            cluster=cluster,
            fresh=fresh,
            between=Between.of(
                cluster[one[across]], cluster[other[across]], said > 0, said < 0, standing["prior"][across]
            ),
            judged=np.unique(np.minimum(one, other) * len(ids) + np.maximum(one, other)),
            rates={each: (int(same[each]), int(number[each])) for each in np.flatnonzero(number).tolist()},
            apart=frozenset((min(pair), max(pair)) for pair in apart if pair[0] != pair[1]),
        )

    def _apart(self) -> list[tuple[int, int]]:
        return [pair for pair, said in self._decided.items() if said == NEGATIVE]

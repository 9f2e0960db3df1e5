"""A registry as a planner sees it: one reading of its partition and judgements, and blocks made of what was planned."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from sqlalchemy import select

from remand.registry import Registry
from remand_policy import Evidence

from ..state.engine import Database
from .candidates import Rows, Vectors
from .joining import FAILED, MODEL, NEGATIVE, POSITIVE, apart, evidence_of
from .planning import Planned, Snapshot, bin_of
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
    ) -> None:
        self.snapshot = snapshot
        self.versions = versions
        self.vectors: Vectors | None = None
        self._database = database
        self._registry = registry
        self._names = names
        self._bodies: dict[str, str] = {}
        self._parsed: dict[int, Any] = {}
        self._rows: dict[int, list[int]] | None = None

    @classmethod
    def read(cls, database: Database, registry: Registry[Any], job_id: str) -> View:
        """The registry as it is now, without records."""
        name = registry.name
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
            judged = _Judged(ids, versions, cluster)
            statement = select(
                edges.c.one, edges.c.other, edges.c.one_version, edges.c.other_version,
                edges.c.judgement, edges.c.prior, edges.c.score, edges.c.run_id,
            ).where(edges.c.registry == name, edges.c.source == MODEL)  # fmt: skip
            if fresh.any():
                for edge_row in connection.execution_options(yield_per=10_000).execute(statement):
                    judged.take(*edge_row, of_this_job=edge_row.run_id.startswith(f"registry-{job_id}-"))
            kept_apart = apart(connection, name)
        row_of = judged.row_of
        snapshot = Snapshot(
            ids=ids,
            cluster=cluster,
            fresh=fresh,
            evidence=judged.evidence,
            judged=np.unique(np.array(judged.keys, dtype=np.int64)),
            rates=judged.rates,
            apart=frozenset(
                (min(pair), max(pair))
                for pair in (
                    (int(cluster[row_of[one]]), int(cluster[row_of[other]]))
                    for one, other in kept_apart
                    if one in row_of and other in row_of
                )
                if pair[0] != pair[1]
            ),
        )
        return cls(database, registry, snapshot, versions, list(number))

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

    def rows_of(self, cluster: int) -> list[int]:
        """The rows of a cluster."""
        if self._rows is None:
            self._rows = {}
            for row, found in enumerate(self.snapshot.cluster.tolist()):
                self._rows.setdefault(found, []).append(row)
        return self._rows[cluster]

    def forbidden(self, one: int, other: int) -> bool:
        """Whether a rule keeps two clusters apart."""
        groups = [[self.entry(row) for row in self.rows_of(cluster)] for cluster in (one, other)]
        return self._registry.forbidden(groups) is not None

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


class _Judged:
    """Judgements of the model added up: evidence between clusters, judged pairs, and rates by score."""

    def __init__(self, ids: Sequence[str], versions: Sequence[int], cluster: Rows) -> None:
        self.row_of = {name: row for row, name in enumerate(ids)}
        self._versions = versions
        self._cluster = cluster.tolist()
        self._count = len(ids)
        self.keys: list[int] = []
        self.evidence: dict[tuple[int, int], Evidence] = {}
        self.rates: dict[int, tuple[int, int]] = {}

    def take(
        self,
        one: str,
        other: str,
        one_version: int,
        other_version: int,
        judgement: str,
        prior: float | None,
        score: float | None,
        _run_id: str,
        *,
        of_this_job: bool,
    ) -> None:
        left, right = self.row_of[one], self.row_of[other]
        if score is not None and judgement in (POSITIVE, NEGATIVE):
            same, number = self.rates.get(bin_of(score), (0, 0))
            self.rates[bin_of(score)] = (same + (judgement == POSITIVE), number + 1)
        if self._versions[left] != one_version or self._versions[right] != other_version:
            return
        if judgement == FAILED and not of_this_job:
            return
        self.keys.append(min(left, right) * self._count + max(left, right))
        between = self._cluster[left], self._cluster[right]
        if between[0] != between[1]:
            key = (min(between), max(between))
            weight = evidence_of(judgement, prior)
            known = self.evidence.get(key)
            self.evidence[key] = weight if known is None else known + weight

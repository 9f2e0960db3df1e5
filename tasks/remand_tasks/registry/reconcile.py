"""A reconciliation from request to end: entries read in, exact keys, rounds of blocks, each applied in plan order.

`advance` does what can be done now and returns; it may be called by anybody, at any time, any number of times. A job
has one planner at a time, who is fenced off by the registry's claim when its lease has passed. The blocks of a round
are the items of a run: proposed in parallel, closed in any order, applied one transaction each, in plan order.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from sqlalchemy import and_, insert, select, text, update

from remand.context import COMPLETE, Context, Validation
from remand.errors import BadEntry, PipelineError
from remand.pipeline import Pipeline
from remand.registry import Registry
from remand_policy import Status

from ..faults import point
from ..state.engine import Database
from ..state.ledger import RunInfo
from ..state.queries import Queries
from ..state.submissions import NewItem, Submissions
from ..state.tables import items, payloads, runs
from .applying import apply_block, closed_block, failed_entries
from .candidates import NONE, WORDS_FROM, Candidates, Index, Vectors, nearest_by_embedding
from .joining import (
    EXACT,
    Clusters,
    Origin,
    join_allowed,
)
from .planning import DEEPEST, WORTH_A_CALL, Planned, plan
from .store import (
    MOST_SHARED_KEY,
    Job,
    Registries,
    RegistryRow,
    chunks,
    find,
    job,
    lock,
    made_of,
    note_words,
    put,
)
from .tables import entries, feeds, jobs, keys, registries
from .view import View

log = logging.getLogger("remand.tasks")

FIRST_ROUND: Final = 50
"""A job's first round has one block for so many fresh entries: what comes of it says what the others are worth."""
LEAST_BLOCKS: Final = 4
CALLS_FOR_THOUSAND: Final = 60
LEAST_BUDGET: Final = 20
_WINDOW: Final = 256
_BATCH: Final = 500


class Superseded(Exception):
    """Another planner has taken over."""


@dataclass(slots=True)
class Reconciler:
    """Takes a registry's work on. `load` gives a registry by its target and raises `PipelineError`.

    `pipeline_of` gives the pipeline of a run, or `None` where this process cannot reproduce it.
    """

    database: Database
    load: Callable[[str], Registry[Any]]
    pipeline_of: Callable[[RunInfo], Pipeline | None]
    now: Callable[[], float]
    lease: float = 120.0
    """Seconds after which a planner that said nothing is thought dead."""
    _indexes: dict[str, Index] = field(default_factory=dict)
    _last: View | None = None
    """What the last round was planned from: the next one has little to read anew."""

    def advance(self, name: str) -> bool:
        """Do what can be done for a registry now. Whether a round of blocks was begun."""
        while True:
            with self.database.read() as connection:
                row = find(connection, name)
                current = job(connection, row.job) if row is not None and row.job else None
            if row is None:
                return False
            try:
                registry = self.load(row.target)
            except PipelineError as error:
                log.error(
                    "registry %s cannot be served here: %s was refused (%s)", name, row.target, error.problem
                )
                return False
            if current is not None and current.run_id:
                if not self._apply(registry, current):
                    return False
                continue
            if current is None and row.wanted <= row.served and not self._owed(name):
                return False
            claimed = self._claim(registry, row, current)
            if claimed is None:
                return False
            try:
                if self._plan(registry, *claimed):
                    return True
            except Superseded:
                return False

    def _owed(self, name: str) -> bool:
        """Whether there is a run to read in that this process can read."""
        queries = Queries(self.database)
        owed = (queries.run(run_id) for run_id, _ in Registries(self.database).owed(name))
        return any(run is not None and self.pipeline_of(run) is not None for run in owed)

    # ------------------------------------------------------------------------------------------------- planning

    def _claim(
        self, registry: Registry[Any], row: RegistryRow, current: Job | None
    ) -> tuple[int, Job] | None:
        """Become the planner of a registry, with a job begun where none is. `None` where another one is."""
        now = self.now()
        with self.database.write() as connection:
            found = lock(connection, row.name)
            if found.claim != row.claim or found.job != row.job or found.claimed_until > now:
                return None
            if current is None:
                current = Job(
                    id=secrets.token_hex(8),
                    registry=row.name,
                    fingerprint=registry.fingerprint,
                    state="planning",
                    request=found.wanted,
                    started_at=now,
                )
                connection.execute(insert(jobs).values(**_columns(current)))
            elif current.fingerprint != registry.fingerprint and current.state == "planning":
                connection.execute(
                    update(jobs).where(jobs.c.id == current.id).values(fingerprint=registry.fingerprint)
                )
            claim = found.claim + 1
            connection.execute(
                update(registries)
                .where(registries.c.name == row.name)
                .values(claim=claim, claimed_until=now + self.lease, job=current.id)
            )
        point("reconcile.claimed")
        return claim, current

    def _plan(self, registry: Registry[Any], claim: int, current: Job) -> bool:
        """Plan the next round, or end the job. Whether a round was begun."""
        try:
            caps = Counter[str](json.loads(current.notes))
            self._cancel_orphans(current)
            if current.round == 0:
                self._feed(registry, claim, caps)
            merged = self._join_exact(registry, claim, current, caps)
            self._renew(registry.name, claim)
            # Taken out meanwhile: nobody else may read on with it.
            last, self._last = self._last, None
            view = View.read(self.database, registry, current.id, last)
            first = current.round == 0
            fresh = int(view.snapshot.fresh.sum())
            budget = current.budget or _budget(registry, fresh)
            depth, scale = current.depth, 1.0
            if current.blocks:
                scale = min(1.0, (current.merges + 1) / (current.gain + 1))
                if current.round > 1 and current.merges < current.blocks * WORTH_A_CALL / 3 / depth:
                    budget = current.calls
            limit = budget - current.calls
            slice_ = fresh // FIRST_ROUND if first else current.calls // 2
            blocks: list[Planned] = []
            while fresh and limit > 0 and not blocks:
                candidates = self._candidates(registry, view, depth, caps)
                self._renew(registry.name, claim)
                blocks = plan(
                    view.snapshot,
                    candidates,
                    size=registry.block_size,
                    limit=min(limit, max(LEAST_BLOCKS, slice_)),
                    scale=scale,
                    depth=depth,
                    forbidden=view.forbidden if registry.cannot_link or registry.compatible else None,
                )
                if blocks or first or depth >= DEEPEST:
                    break
                depth, scale = depth * 3, 1.0
            if current.calls >= budget and current.budget and budget == current.budget:
                caps["budget_spent"] = 1
            after = {
                "budget": budget,
                "depth": depth,
                "fresh": max(current.fresh, fresh),
                "exact": current.exact + merged,
            }
            after["merged"] = current.merged + merged
        except BaseException:
            self._release(registry.name, claim)
            raise
        if not blocks:
            self._end(registry, claim, current, view, caps, after)
            return False
        self._last = view
        self._begin_round(registry, claim, current, view, blocks, caps, after)
        return True

    def _renew(self, name: str, claim: int) -> None:
        """Say that this planner is alive. Raises `Superseded` if it was taken for dead."""
        with self.database.write() as connection:
            renewed = connection.execute(
                update(registries)
                .where(registries.c.name == name, registries.c.claim == claim)
                .values(claimed_until=self.now() + self.lease)
            )
        if renewed.rowcount != 1:
            raise Superseded

    def _cancel_orphans(self, current: Job) -> None:
        """Cancel runs that a planner of this job began and did not live to name."""
        prefix = f"registry-{current.id}-{current.round + 1}-"
        with self.database.read() as connection:
            orphans = connection.execute(
                select(runs.c.id).where(runs.c.ended_at.is_(None), runs.c.id.startswith(prefix))
            ).scalars().all()  # fmt: skip
        for run_id in orphans:
            Submissions(self.database).cancel(run_id)

    def _release(self, name: str, claim: int) -> None:
        with self.database.write() as connection:
            connection.execute(
                update(registries)
                .where(registries.c.name == name, registries.c.claim == claim)
                .values(claimed_until=0.0)
            )

    def _feed(self, registry: Registry[Any], claim: int, caps: Counter[str]) -> None:
        """Read in the accepted values of runs that have ended."""
        queries = Queries(self.database)
        for run_id, ended_at in Registries(self.database).owed(registry.name):
            run = queries.run(run_id)
            pipeline = self.pipeline_of(run) if run is not None else None
            feed = (
                next((f for f in pipeline.registries if f.registry.name == registry.name), None)
                if pipeline
                else None
            )
            if pipeline is None or feed is None:
                caps["runs_not_served"] += 1
                continue
            added = refused = 0
            after = -1
            while True:
                batch = self._accepted(run_id, pipeline, registry.accept_incomplete, after)
                if not batch:
                    break
                self._renew(registry.name, claim)
                after = batch[-1][0]
                made, seqs = [], []
                for seq, value, context in batch:
                    try:
                        entry = feed.entry(value(), context)
                        if entry is not None:
                            made.append(made_of(registry, entry))
                            seqs.append(seq)
                    except BadEntry as error:
                        refused += 1
                        log.warning(
                            "item %s of run %s gives no entry of %s: %s",
                            seq,
                            run_id,
                            registry.name,
                            error.code,
                        )
                with self.database.write() as connection:
                    added += put(
                        self.database, connection, registry.name, made, self.now(), run_id=run_id, seqs=seqs
                    ).added
            with self.database.write() as connection:
                connection.execute(
                    update(feeds)
                    .where(feeds.c.registry == registry.name, feeds.c.run_id == run_id)
                    .values(fed_at=ended_at, added=feeds.c.added + added, refused=refused)
                )
            point("reconcile.fed")

    def _accepted(
        self, run_id: str, pipeline: Pipeline, incomplete: bool, after: int
    ) -> list[tuple[int, Callable[[], Any], Context]]:
        stage = len(pipeline.stages) - 1
        adapter = pipeline.stages[stage].producer.adapter
        given, value = payloads.alias("given"), payloads.alias("value")
        here = [
            and_(each.c.run_id == items.c.run_id, each.c.seq == items.c.seq, each.c.name == wanted)
            for each, wanted in ((given, "input"), (value, f"value.{stage}"))
        ]
        statuses = [Status.ACCEPTED.value] + ([Status.INCOMPLETE.value] if incomplete else [])
        statement = (
            select(items.c.seq, items.c.attempts, items.c.unable, given.c.body, value.c.body)
            .join_from(items, given, here[0])
            .join(value, here[1])
            .where(
                items.c.run_id == run_id,
                items.c.seq > after,
                items.c.state == "closed",
                items.c.status.in_(statuses),
            )
            .order_by(items.c.seq)
            .limit(_BATCH)
        )
        with self.database.read() as connection:
            found = connection.execute(statement).all()
        name = pipeline.stages[stage].name
        batch: list[tuple[int, Callable[[], Any], Context]] = []
        for seq, attempts, unable, input_body, body in found:
            context = Context(
                input=json.loads(input_body),
                run_id=run_id,
                item=seq,
                stage=name,
                attempt=attempts,
                previous=None,
                validation=Validation(json.loads(unable)) if unable != "[]" else COMPLETE,
            )
            batch.append((seq, partial(_value, adapter, body), context))
        return batch

    def _join_exact(self, registry: Registry[Any], claim: int, current: Job, caps: Counter[str]) -> int:
        """Join entries with an equal exact key, without a model. How many merges it made."""
        name = registry.name
        fresh = select(keys.c.digest).join_from(
            keys, entries, and_(entries.c.registry == keys.c.registry, entries.c.id == keys.c.id)
        ).where(keys.c.registry == name, text("fresh = 1"))  # fmt: skip
        statement = (
            select(keys.c.digest, entries.c.id, entries.c.cluster)
            .join_from(keys, entries, and_(entries.c.registry == keys.c.registry, entries.c.id == keys.c.id))
            .where(keys.c.registry == name, keys.c.digest.in_(fresh))
            .order_by(entries.c.ordinal)
        )
        groups: dict[str, list[str]] = {}
        with self.database.read() as connection:
            for digest, _, cluster in connection.execute(statement):
                groups.setdefault(digest, []).append(cluster)
        made = 0
        capped = 0
        for place, (digest, found) in enumerate(groups.items()):
            if place % _BATCH == 0:
                self._renew(registry.name, claim)
            if len(found) > MOST_SHARED_KEY:
                capped += 1
                continue
            if len(set(found)) < 2:
                continue
            with self.database.write() as connection:
                lock(connection, name)
                now_in = dict.fromkeys(
                    connection.execute(
                        select(entries.c.cluster)
                        .join_from(
                            keys,
                            entries,
                            and_(entries.c.registry == keys.c.registry, entries.c.id == keys.c.id),
                        )
                        .where(keys.c.registry == name, keys.c.digest == digest)
                        .order_by(entries.c.ordinal)
                    ).scalars()
                )
                known = Clusters(connection, registry, now_in)
                origin = Origin(EXACT, registry.fingerprint, current.run_id)
                made += len(join_allowed(connection, known, list(now_in), origin, self.now()))
        if capped:
            caps["exact_keys_too_common"] = capped
        point("reconcile.exact")
        return made

    def _candidates(self, registry: Registry[Any], view: View, depth: int, caps: Counter[str]) -> Candidates:
        k = registry.neighbours * depth
        if len(view.snapshot.ids) >= WORDS_FROM and view.snapshot.fresh.sum() * 10 < len(view.snapshot.ids):
            return self._from_index(registry, view, k, caps)
        if view.vectors is None:
            view.vectors = Vectors([registry.compared(entry) for entry in view.entries()])
        vectors = view.vectors
        caps.pop("tokens_too_common", None)
        caps.pop("entries_without_tokens", None)
        if vectors.common:
            caps["tokens_too_common"] = vectors.common
        if vectors.empty:
            caps["entries_without_tokens"] = vectors.empty
        fresh, cluster = view.snapshot.fresh, view.snapshot.cluster
        # Rules may forbid half of what is near, so that more is asked for.
        if k not in view.nearest:
            view.nearest[k] = vectors.nearest(2 * k)
            if registry.embed is not None:
                view.nearest[k] += nearest_by_embedding(
                    registry.embed([registry.compared(e) for e in view.entries()]), k
                )
        found = view.nearest[k]
        found = found.where(fresh[found.left] | fresh[found.right])
        if view.snapshot.clusters < len(view.snapshot.ids):
            first = np.full(view.snapshot.clusters, len(cluster), dtype=np.int64)
            np.minimum.at(first, cluster, np.arange(len(cluster)))
            new = np.zeros(view.snapshot.clusters, dtype=bool)
            np.logical_or.at(new, cluster, fresh)
            between = vectors.nearest_clusters(cluster, k)
            between = between.where(new[between.left] | new[between.right])
            left, right = first[between.left], first[between.right]
            found = found + Candidates.of(left, right, vectors.alike(left, right))
        return found

    def _from_index(self, registry: Registry[Any], view: View, k: int, caps: Counter[str]) -> Candidates:
        """Candidates of a few fresh entries among very many, without comparing the others again."""
        ids = view.snapshot.ids
        index = self._indexes.get(registry.name)
        fresh = np.flatnonzero(view.snapshot.fresh).tolist()
        old = len(ids) - len(fresh)
        if index is None or index.stale or len(index) < old:
            texts = [registry.compared(entry) for entry in view.entries()]
            index = self._indexes[registry.name] = Index(ids, texts)
        row_of = {name: row for row, name in enumerate(ids)}
        left: list[int] = []
        right: list[int] = []
        score: list[float] = []
        for row in fresh:
            compared = registry.compared(view.entry(row))
            index.add(ids[row], compared)
            for other, alike in index.nearest(compared, k, but=ids[row]):
                if other in row_of:
                    left.append(row)
                    right.append(row_of[other])
                    score.append(alike)
        if index.common:
            caps["tokens_too_common"] = index.common
        if not left:
            return NONE
        return Candidates.of(np.array(left, np.int64), np.array(right, np.int64), np.array(score))

    def _begin_round(
        self,
        registry: Registry[Any],
        claim: int,
        current: Job,
        view: View,
        blocks: Sequence[Planned],
        caps: Counter[str],
        after: Mapping[str, object],
    ) -> None:
        name, now = registry.name, self.now()
        run_id = f"registry-{current.id}-{current.round + 1}-{claim}"
        with self.database.read() as connection:
            row = find(connection, name)
        assert row is not None
        submissions = Submissions(self.database)
        submissions.begin(
            run_id,
            target=row.target,
            pipeline=registry.pipeline.name,
            version=registry.pipeline.version,
            fingerprint=registry.fingerprint,
            window=_WINDOW,
            key_path=None,
            reuse=False,
            now=now,
        )
        batch: list[NewItem] = []
        for place, block in enumerate(blocks):
            body = json.dumps(view.block(registry, current, block), ensure_ascii=False, separators=(",", ":"))
            batch.append(NewItem(str(place), body, hashlib.sha256(body.encode()).hexdigest()))
            if len(batch) == _BATCH:
                submissions.feed(run_id, batch, self.now())
                batch = []
        if batch:
            submissions.feed(run_id, batch, self.now())
        submissions.input_done(run_id)
        point("reconcile.planned")
        with self.database.write() as connection:
            found = lock(connection, name)
            if found.claim != claim:
                connection.rollback()
                stale = True
            else:
                stale = False
                connection.execute(
                    update(jobs)
                    .where(jobs.c.id == current.id)
                    .values(
                        state="proposing",
                        round=current.round + 1,
                        run_id=run_id,
                        blocks=len(blocks),
                        applied=0,
                        calls=current.calls + len(blocks),
                        gain=sum(block.worth for block in blocks),
                        merges=0,
                        notes=json.dumps(caps),
                        **after,
                    )
                )
                connection.execute(
                    update(registries).where(registries.c.name == name).values(claimed_until=0.0)
                )
        if stale:
            submissions.cancel(run_id)
        point("reconcile.begun")

    def _end(
        self,
        registry: Registry[Any],
        claim: int,
        current: Job,
        view: View,
        caps: Counter[str],
        after: Mapping[str, object],
        state: str = "done",
    ) -> None:
        """Nothing more is worth asking. What was compared is fresh no more, but for blocks that failed."""
        name, now = registry.name, self.now()
        with self.database.write() as connection:
            found = lock(connection, name)
            if found.claim != claim:
                return
            failed = failed_entries(connection, name, current.id)
            done = [
                (view.snapshot.ids[row], view.versions[row])
                for row in np.flatnonzero(view.snapshot.fresh).tolist()
                if view.snapshot.ids[row] not in failed
            ]
            versions = dict(done)
            for some in chunks(versions):
                for version in sorted({versions[each] for each in some}):
                    same = [each for each in some if versions[each] == version]
                    connection.execute(
                        update(entries)
                        .where(
                            entries.c.registry == name, entries.c.id.in_(same), entries.c.version == version
                        )
                        .values(fresh=0)
                    )
            if failed:
                caps["entries_left_for_next_time"] = len(failed)
            connection.execute(
                update(jobs)
                .where(jobs.c.id == current.id)
                .values(state=state, run_id="", ended_at=now, notes=json.dumps(caps), **after)
            )
            connection.execute(
                update(registries)
                .where(registries.c.name == name)
                .values(job="", served=max(found.served, current.request), claimed_until=0.0, due_at=now)
            )
        for words in note_words(caps):
            log.warning("registry %s: %s", name, words)
        log.info("registry %s was reconciled: %s merges, %s calls", name, after["merged"], current.calls)
        self._last = None
        point("reconcile.ended")

    # ----------------------------------------------------------------------------------------------- applying

    def _apply(self, registry: Registry[Any], current: Job) -> bool:
        """Apply closed blocks in plan order. Whether the round is over, so that the next one can be planned."""
        applied = current.applied
        while applied < current.blocks:
            found = closed_block(self.database, current.run_id, applied)
            if found is None:
                return False
            if (
                apply_block(self.database, registry, current.id, current.run_id, applied, found, self.now())
                is None
            ):
                return False
            point("reconcile.applied")
            applied += 1
        with self.database.write() as connection:
            lock(connection, registry.name)
            fresh = job(connection, current.id)
            if fresh is None or fresh.run_id != current.run_id or fresh.applied < fresh.blocks:
                return False
            ended = connection.execute(
                select(runs.c.status).where(runs.c.id == current.run_id)
            ).scalar_one_or_none()
            stopped = ended in ("failed", "failing", "cancelled", "cancelling")
            connection.execute(
                update(jobs)
                .where(jobs.c.id == current.id)
                .values(
                    state="planning",
                    run_id="",
                    **({"budget": fresh.calls, "depth": DEEPEST} if stopped else {}),
                )
            )
        return True


def _budget(registry: Registry[Any], fresh: int) -> int:
    if registry.max_calls is not None:
        return registry.max_calls
    return max(LEAST_BUDGET, fresh * CALLS_FOR_THOUSAND // 1_000)


def _columns(current: Job) -> dict[str, object]:
    return {name: getattr(current, name) for name in Job.__dataclass_fields__}


def _value(adapter: Any, body: str) -> Any:
    with suppress(Exception, SystemExit):
        return adapter.validate_json(body)
    raise BadEntry("value")

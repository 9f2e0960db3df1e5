"""What a closed block says is written down, and the merges that follow from it are made: one transaction a block."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from sqlalchemy import Connection, and_, insert, select, update

from remand.blocks import Proposal
from remand.registry import Registry
from remand_policy import Status

from ..faults import point
from ..state.engine import Database
from ..state.tables import items, payloads
from .joining import FAILED, MODEL, NEGATIVE, POSITIVE, UNSURE, Clusters, Origin, edge, join_supported, review
from .planning import gain
from .store import chunks, job, lock
from .tables import edges, entries, jobs


@dataclass(frozen=True, slots=True)
class ClosedBlock:
    """A block whose item has closed: what it showed and what was proposed, if anything was."""

    block: Mapping[str, Any] = field(repr=False)
    proposal: Proposal | None = field(repr=False)
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of a block: merges and what they count for, groups that were stale, reviews."""

    merged: int = 0
    gained: int = 0
    stale: int = 0


def closed_block(database: Database, run_id: str, seq: int) -> ClosedBlock | None:
    """A block of a run if it has closed."""
    given, value = payloads.alias("given"), payloads.alias("value")
    statement = (
        select(items.c.state, items.c.status, items.c.attempts, items.c.diagnostics, given.c.body, value.c.body)
        .join_from(
            items, given, and_(given.c.run_id == items.c.run_id, given.c.seq == items.c.seq, given.c.name == "input"),
            isouter=True,
        )
        .outerjoin(
            value, and_(value.c.run_id == items.c.run_id, value.c.seq == items.c.seq, value.c.name == "value.0")
        )
        .where(items.c.run_id == run_id, items.c.seq == seq)
    )  # fmt: skip
    with database.read() as connection:
        found = connection.execute(statement).first()
    if found is None:
        return ClosedBlock({}, None)
    state, status, attempts, diagnostics, block, proposed = found
    if state != "closed":
        return None
    usable = (
        status == Status.ACCEPTED.value
        and proposed is not None
        and "malformed" not in json.loads(diagnostics)
    )
    return ClosedBlock(
        json.loads(block) if block is not None else {},
        Proposal.model_validate_json(proposed) if usable else None,
        attempts,
    )


def apply_block(
    database: Database,
    registry: Registry[Any],
    job_id: str,
    run_id: str,
    seq: int,
    closed: ClosedBlock,
    now: float,
) -> Applied | None:
    """Write what was judged of a block, and the merges that it supports, in one transaction. `None` if it was done."""
    name = registry.name
    with database.write() as connection:
        lock(connection, name)
        current = job(connection, job_id)
        if current is None or current.run_id != run_id or current.applied != seq:
            return None
        done = _applied(database, connection, registry, run_id, seq, closed, now)
        connection.execute(
            update(jobs)
            .where(jobs.c.id == job_id)
            .values(
                applied=seq + 1,
                merges=jobs.c.merges + done.gained,
                merged=jobs.c.merged + done.merged,
                stale=jobs.c.stale + done.stale,
            )
        )
        point("reconcile.applying")
        return done


def _applied(
    database: Database,
    connection: Connection,
    registry: Registry[Any],
    run_id: str,
    seq: int,
    closed: ClosedBlock,
    now: float,
) -> Applied:
    name = registry.name
    shown = {record["id"]: record for record in closed.block.get("records", ())}
    ids = {local: record["entry"] for local, record in shown.items()}
    standing: dict[str, tuple[str, int]] = {}
    for some in chunks(ids.values()):
        for entry, cluster, version in connection.execute(
            select(entries.c.id, entries.c.cluster, entries.c.version).where(
                entries.c.registry == name, entries.c.id.in_(some)
            )
        ):
            standing[entry] = (cluster, version)
    current = {
        local: entry
        for local, entry in ids.items()
        if entry in standing and standing[entry][1] == shown[local]["version"]
    }
    said = _judgements(registry, closed, current, standing, run_id, seq, now)
    if said:
        connection.execute(insert(edges), said)
    if closed.proposal is None:
        return Applied()
    merged = gained = 0
    origin = Origin(MODEL, registry.fingerprint, run_id, seq, closed.attempt)
    groups = [group for group in closed.proposal.groups if all(local in current for local in group)]
    stale = len(closed.proposal.groups) - len(groups)
    known = Clusters(
        connection, registry, (standing[current[local]][0] for group in groups for local in group)
    )
    for group in groups:
        together = list(dict.fromkeys(known.owner[current[local]] for local in group))
        for made in join_supported(connection, known, together, origin, now):
            merged += 1
            gained += sum(gain(made.sizes[0], size) for size in made.sizes[1:])
    for group in closed.proposal.unsure:
        if all(local in current for local in group):
            members_now = {current[local]: standing[current[local]][1] for local in group}
            if len({standing[member][0] for member in members_now}) > 1:
                review(database.insert_or_ignore, connection, name, members_now, "unsure", run_id, seq, now)
    return Applied(merged, gained, stale)


def _judgements(
    registry: Registry[Any],
    closed: ClosedBlock,
    current: Mapping[str, str],
    standing: Mapping[str, tuple[str, int]],
    run_id: str,
    seq: int,
    now: float,
) -> list[dict[str, object]]:
    """An edge for each pair of the block; where nothing was said of it, one for each planned pair: `failed`."""
    planned = {
        frozenset((one, other)): {"prior": chance, "score": score}
        for one, other, chance, score in closed.block.get("pairs", ())
    }
    group_of: dict[str, int] = {}
    unsure: set[frozenset[str]] = set()
    refused: set[frozenset[str]] = set()
    if closed.proposal is not None:
        group_of = {local: place for place, group in enumerate(closed.proposal.groups) for local in group}
        unsure = {frozenset(pair) for group in closed.proposal.unsure for pair in combinations(group, 2)}
        refused = {frozenset(pair) for each in closed.proposal.refused for pair in combinations(each.ids, 2)}
    said: list[dict[str, object]] = []
    for one, other in combinations(sorted(current), 2):
        pair = frozenset((one, other))
        if closed.proposal is None:
            judgement = FAILED if pair in planned else ""
        elif one in group_of and group_of[one] == group_of.get(other):
            judgement = POSITIVE
        elif pair in unsure:
            judgement = UNSURE
        elif pair in refused:
            # Said to be the same and not let through: neither is known.
            judgement = UNSURE if pair in planned else ""
        else:
            judgement = NEGATIVE
        if judgement:
            said.append(
                edge(
                    registry.name,
                    (current[one], standing[current[one]][1]),
                    (current[other], standing[current[other]][1]),
                    judgement,
                    MODEL,
                    now,
                    run_id=run_id,
                    seq=seq,
                    **planned.get(pair, {}),
                )
            )
    return said


def failed_entries(connection: Connection, name: str, job_id: str) -> set[str]:
    """Entries of this job's blocks in which nothing was said."""
    found: set[str] = set()
    for pair in connection.execute(
        select(edges.c.one, edges.c.other).where(
            edges.c.registry == name,
            edges.c.judgement == FAILED,
            edges.c.run_id.startswith(f"registry-{job_id}-"),
        )
    ):
        found.update(pair)
    return found

"""Clusters become one and come apart again: always in one transaction that holds the registry's lock, with a receipt.

Nothing is joined that a rule forbids on the whole clusters as they now are, nor what a person or an undone merge keeps
apart. A receipt holds ids, versions and codes, and enough to restore what was before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from sqlalchemy import Connection, and_, func, insert, select, update

from remand.errors import BadEntry
from remand.registry import Registry
from remand_policy import Evidence

from .store import RegistryError, bodies, chunks, lock, members_of
from .tables import clusters, edges, entries, merges, registries, reviews

PERSON, UNMERGE, EXACT, MODEL = "person", "unmerge", "exact", "model"
DECISIVE: Final = (PERSON, UNMERGE)
POSITIVE, NEGATIVE, UNSURE, FAILED = "positive", "negative", "unsure", "failed"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a merge comes from: `rule` is `model`, `person`, or the code that found an exact key."""

    rule: str
    fingerprint: str
    run_id: str = ""
    seq: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge that was made: its receipt's number, the canonical id, the sizes of the clusters that it joined."""

    id: int
    cluster: str
    sizes: tuple[int, ...]


class Clusters:
    """Some clusters of a registry inside a transaction, with their members' records as entries, read when needed."""

    def __init__(self, connection: Connection, registry: Registry[Any], ids: Iterable[str]) -> None:
        self._connection = connection
        self.registry = registry
        self.members = members_of(connection, registry.name, dict.fromkeys(ids))
        self._parsed: dict[str, Any] = {}
        self._apart = apart(connection, registry.name, [m for some in self.members.values() for m in some])

    def forbidden(self, ids: Sequence[str]) -> str | None:
        """The rule that forbids making one cluster of these, `kept_apart` where a person or an unmerge does."""
        owner = {member: cluster for cluster in ids for member in self.members[cluster]}
        for one, other in self._apart:
            if owner.get(one, one) != owner.get(other, one):
                return "kept_apart"
        found = self.registry.forbidden([self._entries(cluster) for cluster in ids])
        return None if found is None else found.rule

    def join(self, into: str, other: str) -> None:
        """Count `other` to `into` from now on."""
        self.members[into] += self.members.pop(other)

    def _entries(self, cluster: str) -> list[Any]:
        missing = [member for member in self.members[cluster] if member not in self._parsed]
        if missing:
            for member, body in bodies(self._connection, self.registry.name, missing).items():
                self._parsed[member] = self.registry.parse(body)
        return [self._parsed[member] for member in self.members[cluster]]


def apart(connection: Connection, name: str, members: Sequence[str] | None = None) -> set[tuple[str, str]]:
    """Pairs of entries that a person or an undone merge keeps apart; with `members`, those that touch them.

    What a person said last of a pair counts.
    """
    statement = select(edges.c.one, edges.c.other, edges.c.judgement).where(
        edges.c.registry == name, edges.c.source.in_(DECISIVE)
    )
    found: dict[tuple[str, str], str] = {}
    if members is None:
        rows = connection.execute(statement.order_by(edges.c.id)).all()
    else:
        rows = [
            row
            for some in chunks(members)
            for row in connection.execute(statement.where(edges.c.one.in_(some)).order_by(edges.c.id))
        ]
    for one, other, judgement in rows:
        found[one, other] = judgement
    return {pair for pair, judgement in found.items() if judgement == NEGATIVE}


def evidence_between(
    connection: Connection, name: str, members: Mapping[str, Sequence[str]]
) -> dict[tuple[str, str], Evidence]:
    """What was judged between clusters, given with their members, by pairs of canonical ids in order.

    Judgements of entries that changed since do not count.
    """
    owner = {member: cluster for cluster, some in members.items() for member in some}
    one, other = entries.alias("one_entry"), entries.alias("other_entry")
    found: dict[tuple[str, str], Evidence] = {}
    for some in chunks(owner):
        statement = (
            select(edges.c.one, edges.c.other, edges.c.judgement, edges.c.prior)
            .join_from(edges, one, and_(one.c.registry == edges.c.registry, one.c.id == edges.c.one))
            .join(other, and_(other.c.registry == edges.c.registry, other.c.id == edges.c.other))
            .where(
                edges.c.registry == name,
                edges.c.one.in_(some),
                edges.c.source == MODEL,
                edges.c.judgement.in_((POSITIVE, NEGATIVE)),
                edges.c.one_version == one.c.version,
                edges.c.other_version == other.c.version,
            )
        )
        for left, right, judgement, prior in connection.execute(statement):
            pair = owner[left], owner.get(right, owner[left])
            if pair[0] == pair[1]:
                continue
            key = (min(pair), max(pair))
            found[key] = found.get(key, Evidence(prior=0.0)) + evidence_of(judgement, prior)
    return found


def evidence_of(judgement: str, prior: float | None) -> Evidence:
    """One judgement as evidence."""
    weight = prior if prior is not None else 0.0
    return Evidence(int(judgement == POSITIVE), int(judgement == NEGATIVE), weight)


def edge(
    name: str,
    one: tuple[str, int],
    other: tuple[str, int],
    judgement: str,
    source: str,
    now: float,
    **more: object,
) -> dict[str, object]:
    """A judgement's columns. Entries are given with their versions; the lower id comes first."""
    low, high = min(one, other), max(one, other)
    return {
        "registry": name,
        "one": low[0],
        "other": high[0],
        "one_version": low[1],
        "other_version": high[1],
        "judgement": judgement,
        "source": source,
        "prior": None,
        "score": None,
        "run_id": "",
        "seq": 0,
        "at": now,
        **more,
    }


# ----------------------------------------------------------------------------------------------------- together


def join_supported(
    connection: Connection, known: Clusters, group: Sequence[str], origin: Origin, now: float
) -> list[Merged]:
    """Join clusters of `group` as far as what was judged between them supports it, the surest first."""
    members = {cluster: known.members[cluster] for cluster in group}
    evidence = evidence_between(connection, known.registry.name, members)
    parts: dict[str, list[str]] = {cluster: [cluster] for cluster in group}
    size = {cluster: len(some) for cluster, some in members.items()}
    refused: set[tuple[str, str]] = set()
    while True:
        supported = sorted(
            (
                (-weight.log_odds, pair)
                for pair, weight in evidence.items()
                if pair not in refused and weight.joins(size[pair[0]], size[pair[1]])
            ),
        )
        if not supported:
            break
        one, other = supported[0][1]
        if known.forbidden([*parts[one], *parts[other]]):
            refused.add((one, other))
            continue
        parts[one] += parts.pop(other)
        size[one] += size.pop(other)
        evidence = _united(evidence, one, other)
        refused = {pair for pair in refused if other not in pair}
    return [merge(connection, known, part, origin, now) for _, part in sorted(parts.items()) if len(part) > 1]


def _united(
    evidence: Mapping[tuple[str, str], Evidence], into: str, gone: str
) -> dict[tuple[str, str], Evidence]:
    united: dict[tuple[str, str], Evidence] = {}
    for pair, weight in evidence.items():
        one, other = (into if cluster == gone else cluster for cluster in pair)
        if one != other:
            key = (min(one, other), max(one, other))
            united[key] = united[key] + weight if key in united else weight
    return united


def join_allowed(
    connection: Connection, known: Clusters, group: Sequence[str], origin: Origin, now: float
) -> list[Merged]:
    """Join what code or a person found to be the same: each cluster to the first that no rule keeps it from."""
    parts: list[list[str]] = []
    for cluster in group:
        for part in parts:
            if not known.forbidden([*part, cluster]):
                part.append(cluster)
                break
        else:
            parts.append([cluster])
    return [merge(connection, known, part, origin, now) for part in parts if len(part) > 1]


def merge(connection: Connection, known: Clusters, part: Sequence[str], origin: Origin, now: float) -> Merged:
    """Make one cluster of several, under the id of the one whose first entry came first. Leaves a receipt."""
    name = known.registry.name
    rows = {row.id: row for row in connection.execute(_rows(name, part))}
    first = dict(
        connection.execute(
            select(entries.c.cluster, func.min(entries.c.ordinal))
            .where(entries.c.registry == name, entries.c.cluster.in_(part))
            .group_by(entries.c.cluster)
        )
        .tuples()
        .all()
    )
    ordered = sorted(part, key=lambda cluster: first[cluster])
    survivor, others = ordered[0], ordered[1:]
    before = {
        cluster: {
            "members": list(known.members[cluster]),
            "version": rows[cluster].version,
            "receipt": rows[cluster].receipt,
        }
        for cluster in ordered
    }
    sizes = tuple(len(known.members[cluster]) for cluster in ordered)
    for other in others:
        known.join(survivor, other)
    version = rows[survivor].version + 1
    after = {survivor: {"members": list(known.members[survivor]), "version": version}}
    number = _receipt(connection, name, "merge", survivor, before, after, origin, now)
    connection.execute(
        update(entries)
        .where(entries.c.registry == name, entries.c.cluster.in_(others))
        .values(cluster=survivor)
    )
    connection.execute(
        update(clusters)
        .where(clusters.c.registry == name, clusters.c.id.in_(others))
        .values(merged_into=survivor, version=clusters.c.version + 1)
    )
    _write(connection, name, survivor, version, len(known.members[survivor]), number)
    _revise(connection, name)
    return Merged(number, survivor, sizes)


def _rows(name: str, ids: Sequence[str]) -> Any:
    return select(clusters).where(clusters.c.registry == name, clusters.c.id.in_(ids))


def _write(connection: Connection, name: str, cluster: str, version: int, size: int, receipt: int) -> None:
    """Compare and set a cluster that stands: `version` is the one after that which it has."""
    done = connection.execute(
        update(clusters)
        .where(clusters.c.registry == name, clusters.c.id == cluster, clusters.c.version == version - 1)
        .values(version=version, size=size, receipt=receipt, merged_into="")
    )
    if done.rowcount != 1:
        raise RegistryError(f"cluster {cluster!r} was changed meanwhile; try again")


def _revise(connection: Connection, name: str) -> None:
    connection.execute(
        update(registries).where(registries.c.name == name).values(revision=registries.c.revision + 1)
    )


def _receipt(
    connection: Connection,
    name: str,
    kind: str,
    cluster: str,
    before: Mapping[str, object],
    after: Mapping[str, object],
    origin: Origin,
    now: float,
) -> int:
    what = json.dumps([kind, before], sort_keys=True)
    done = connection.execute(
        insert(merges).values(
            registry=name,
            kind=kind,
            cluster=cluster,
            before=json.dumps(before),
            after=json.dumps(after),
            rule=origin.rule,
            fingerprint=origin.fingerprint,
            run_id=origin.run_id,
            seq=origin.seq,
            attempt=origin.attempt,
            # The versions in it make it another merge each time that it is made anew after an unmerge.
            key=hashlib.sha256(what.encode()).hexdigest(),
            undone_by=0,
            at=now,
        )
    )
    assert done.inserted_primary_key is not None
    return int(done.inserted_primary_key[0])


# -------------------------------------------------------------------------------------------------------- apart


def unmerge(connection: Connection, name: str, number: int, fingerprint: str, now: float) -> int:
    """Undo a merge: what was before is restored, and kept apart from now on. The number of the unmerge's receipt.

    Raises `RegistryError` for one that was undone, and for one that a later merge stands on, which it names.
    """
    lock(connection, name)
    found = connection.execute(select(merges).where(merges.c.registry == name, merges.c.id == number)).first()
    if found is None or found.kind != "merge":
        raise RegistryError(f"registry {name!r} has no merge {number}; see `remand registry history {name}`")
    if found.undone_by:
        raise RegistryError(f"merge {number} was undone already, by {found.undone_by}")
    standing = connection.execute(_rows(name, [found.cluster])).one()
    if standing.merged_into or standing.receipt != number:
        later = _standing_on(connection, name, found.cluster, number)
        raise RegistryError(f"merge {later} stands on merge {number}; undo {later} first")
    before: dict[str, dict[str, Any]] = json.loads(found.before)
    for cluster, was in before.items():
        for some in chunks(was["members"]):
            connection.execute(
                update(entries)
                .where(entries.c.registry == name, entries.c.id.in_(some))
                .values(cluster=cluster)
            )
        row = connection.execute(_rows(name, [cluster])).one()
        _write(connection, name, cluster, row.version + 1, len(was["members"]), was["receipt"])
    versions = dict(
        connection.execute(
            select(entries.c.id, entries.c.version).where(
                entries.c.registry == name, entries.c.id.in_(list(before))
            )
        )
        .tuples()
        .all()
    )
    connection.execute(
        insert(edges),
        [
            edge(name, (one, versions[one]), (other, versions[other]), NEGATIVE, UNMERGE, now)
            for one, other in combinations(sorted(before), 2)
        ],
    )
    now_after = {found.cluster: json.loads(found.after)[found.cluster]}
    undone = _receipt(
        connection, name, "unmerge", found.cluster, {**now_after, "of": {"merge": number}}, before,
        Origin(PERSON, fingerprint), now,
    )  # fmt: skip
    connection.execute(update(merges).where(merges.c.id == number).values(undone_by=undone))
    _revise(connection, name)
    return undone


def _standing_on(connection: Connection, name: str, cluster: str, number: int) -> int:
    """The first merge after `number` that took `cluster` as it left it."""
    later = connection.execute(
        select(merges.c.id, merges.c.before)
        .where(
            merges.c.registry == name,
            merges.c.kind == "merge",
            merges.c.undone_by == 0,
            merges.c.id > number,
        )
        .order_by(merges.c.id)
    )
    return next(int(found.id) for found in later if cluster in json.loads(found.before))


# ------------------------------------------------------------------------------------------------------ reviews


def review(
    insert_or_ignore: Callable[[Any], Any],
    connection: Connection,
    name: str,
    members: Mapping[str, int],
    why: str,
    run_id: str,
    seq: int,
    now: float,
) -> None:
    """Put entries, given with their versions, on the list for a person, unless they are on it or were settled."""
    text = json.dumps(sorted(members.items()))
    connection.execute(
        insert_or_ignore(reviews),
        {
            "registry": name,
            "members": text,
            "digest": hashlib.sha256(text.encode()).hexdigest(),
            "state": "open",
            "why": why,
            "run_id": run_id,
            "seq": seq,
            "at": now,
        },
    )


def settle(
    connection: Connection, registry: Registry[Any], number: int, *, accept: bool, now: float
) -> Merged | None:
    """Settle a review: its entries are the same, or they are kept apart. The merge, where there was one to make.

    Raises `RegistryError` for an unknown or settled review, and where a rule forbids the merge.
    """
    name = registry.name
    lock(connection, name)
    found = connection.execute(
        select(reviews).where(reviews.c.registry == name, reviews.c.id == number)
    ).first()
    if found is None:
        raise RegistryError(f"registry {name!r} has no review {number}; see `remand registry review {name}`")
    if found.state != "open":
        raise RegistryError(f"review {number} is {found.state} already")
    ids = [member for member, _ in json.loads(found.members)]
    where = {
        row.id: row
        for row in connection.execute(
            select(entries.c.id, entries.c.cluster, entries.c.version).where(
                entries.c.registry == name, entries.c.id.in_(ids)
            )
        )
    }
    known = Clusters(connection, registry, [row.cluster for row in where.values()])
    group = list(known.members)
    judgement = POSITIVE if accept else NEGATIVE
    said = [
        edge(name, (one, where[one].version), (other, where[other].version), judgement, PERSON, now)
        for one, other in combinations(ids, 2)
        if accept or where[one].cluster != where[other].cluster
    ]
    if said:
        connection.execute(insert(edges), said)
    merged = None
    if accept and len(group) > 1:
        known = Clusters(connection, registry, group)
        rule = known.forbidden(group)
        if rule is not None:
            raise RegistryError(f"rule {rule!r} forbids that the entries of review {number} become one")
        try:
            merged = merge(connection, known, group, Origin(PERSON, registry.fingerprint), now)
        except BadEntry as error:
            raise RegistryError(f"the records cannot be merged ({error.code})") from None
    connection.execute(
        update(reviews)
        .where(reviews.c.id == number)
        .values(state="accepted" if accept else "refused", settled_at=now)
    )
    _revise(connection, name)
    return merged

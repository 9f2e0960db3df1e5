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
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, String, bindparam, insert, select, update

from remand.errors import BadEntry
from remand.registry import Registry
from remand_policy import Evidence

from .store import RegistryError, bodies, chunks, lock
from .tables import clusters, edges, entries, merges, registries, reviews

PERSON, UNMERGE, EXACT, MODEL = "person", "unmerge", "exact", "model"
DECISIVE: Final = (PERSON, UNMERGE)
POSITIVE, NEGATIVE, UNSURE, FAILED = "positive", "negative", "unsure", "failed"

# Made once: they are asked with every block, and to make one takes longer than to ask it.
_NAME: Final = bindparam("of", type_=String())
_SOME: Final = bindparam("some", expanding=True, type_=String())
_MEMBERS: Final = (
    select(entries.c.id, entries.c.cluster, entries.c.version, entries.c.ordinal)
    .where(entries.c.registry == _NAME, entries.c.cluster.in_(_SOME))
    .order_by(entries.c.ordinal)
)
_STANDING: Final = select(clusters.c.id, clusters.c.version, clusters.c.receipt).where(
    clusters.c.registry == _NAME, clusters.c.id.in_(_SOME)
)
_JUDGED: Final = select(
    edges.c.id, edges.c.one, edges.c.other, edges.c.one_version, edges.c.other_version,
    edges.c.judgement, edges.c.source, edges.c.prior,
).where(edges.c.registry == _NAME, edges.c.one.in_(_SOME))  # fmt: skip
_MOVE: Final = (
    update(entries)
    .where(entries.c.registry == _NAME, entries.c.cluster.in_(_SOME))
    .values(cluster=bindparam("into"))
)
_REDIRECT: Final = (
    update(clusters)
    .where(clusters.c.registry == _NAME, clusters.c.id.in_(_SOME))
    .values(merged_into=bindparam("into"), version=clusters.c.version + 1)
)
_WRITE: Final = (
    update(clusters)
    .where(
        clusters.c.registry == _NAME,
        clusters.c.id == bindparam("cluster"),
        clusters.c.version == bindparam("before"),
    )
    .values(
        version=bindparam("after"), size=bindparam("members"), receipt=bindparam("number"), merged_into=""
    )
)
_REVISE: Final = (
    update(registries).where(registries.c.name == _NAME).values(revision=registries.c.revision + 1)
)


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
    """Some clusters of a registry inside a transaction that holds its lock: members, versions, judgements.

    Records are read when a rule needs them.
    """

    def __init__(self, connection: Connection, registry: Registry[Any], ids: Iterable[str]) -> None:
        self._connection = connection
        self.registry = registry
        self.members: dict[str, list[str]] = {}
        self.versions: dict[str, int] = {}
        self.receipts: dict[str, int] = {}
        self.ordinals: dict[str, int] = {}
        """Of each cluster that of its first entry."""
        self.owner: dict[str, str] = {}
        """The cluster of each member."""
        self._parsed: dict[str, Any] = {}
        self._apart: set[tuple[str, str]] = set()
        self._judged: list[tuple[str, str, Evidence]] = []
        self._has_rules = bool(registry.cannot_link or registry.compatible)
        name = registry.name
        entry_versions: dict[str, int] = {}
        for some in chunks(dict.fromkeys(ids)):
            of_some = {"of": name, "some": some}
            for entry, cluster, version, ordinal in connection.execute(_MEMBERS, of_some):
                self.members.setdefault(cluster, []).append(entry)
                self.ordinals.setdefault(cluster, ordinal)
                self.owner[entry] = cluster
                entry_versions[entry] = version
            for cluster, version, receipt in connection.execute(_STANDING, of_some):
                self.versions[cluster], self.receipts[cluster] = version, receipt
        self._read_judgements(entry_versions)

    def _read_judgements(self, versions: Mapping[str, int]) -> None:
        for some in chunks(self.owner):
            # Put in order here: told to, SQLite takes the order from an index and reads the whole registry.
            found = sorted(
                self._connection.execute(_JUDGED, {"of": self.registry.name, "some": some}), key=itemgetter(0)
            )
            for _, one, other, one_version, other_version, judgement, source, prior in found:
                if other not in self.owner:
                    continue
                if source in DECISIVE:  # what was said last of a pair counts
                    (self._apart.add if judgement == NEGATIVE else self._apart.discard)((one, other))
                elif (
                    judgement in (POSITIVE, NEGATIVE)
                    and one_version == versions[one]
                    and other_version == versions[other]
                ):
                    self._judged.append((one, other, evidence_of(judgement, prior)))

    def forbidden(self, ids: Sequence[str]) -> str | None:
        """The rule that forbids making one cluster of these, `kept_apart` where a person or an unmerge does."""
        for pair in self._apart:
            one, other = (self.owner[entry] for entry in pair)
            if one != other and one in ids and other in ids:
                return "kept_apart"
        if not self._has_rules:
            return None
        found = self.registry.forbidden([self._entries(cluster) for cluster in ids])
        return None if found is None else found.rule

    def evidence(self, ids: Sequence[str]) -> dict[tuple[str, str], Evidence]:
        """What the model judged between clusters, by pairs in order. Judgements of what changed since do not count."""
        wanted = set(ids)
        found: dict[tuple[str, str], Evidence] = {}
        for left, right, weight in self._judged:
            one, other = self.owner[left], self.owner[right]
            if one != other and one in wanted and other in wanted:
                key = (min(one, other), max(one, other))
                found[key] = found[key] + weight if key in found else weight
        return found

    def join(self, into: str, others: Sequence[str], version: int, receipt: int) -> None:
        """Count `others` to `into` from now on."""
        for other in others:
            for member in self.members[other]:
                self.owner[member] = into
            self.members[into] += self.members.pop(other)
        self.versions[into], self.receipts[into] = version, receipt

    def _entries(self, cluster: str) -> list[Any]:
        missing = [member for member in self.members[cluster] if member not in self._parsed]
        if missing:
            for member, body in bodies(self._connection, self.registry.name, missing).items():
                self._parsed[member] = self.registry.parse(body)
        return [self._parsed[member] for member in self.members[cluster]]


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
    evidence = known.evidence(group)
    parts: dict[str, list[str]] = {cluster: [cluster] for cluster in group}
    size = {cluster: len(known.members[cluster]) for cluster in group}
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
    survivor, *others = sorted(part, key=lambda cluster: known.ordinals[cluster])
    before = {
        cluster: {
            "members": list(known.members[cluster]),
            "version": known.versions[cluster],
            "receipt": known.receipts[cluster],
        }
        for cluster in (survivor, *others)
    }
    sizes = tuple(len(known.members[cluster]) for cluster in (survivor, *others))
    version = known.versions[survivor] + 1
    members = [member for cluster in (survivor, *others) for member in known.members[cluster]]
    after = {survivor: {"members": members, "version": version}}
    number = _receipt(connection, name, "merge", survivor, before, after, origin, now)
    redirected = {"of": name, "some": others, "into": survivor}
    connection.execute(_MOVE, redirected)
    connection.execute(_REDIRECT, redirected)
    _write(connection, name, survivor, version, len(members), number)
    connection.execute(_REVISE, {"of": name})
    known.join(survivor, others, version, number)
    return Merged(number, survivor, sizes)


def _rows(name: str, ids: Sequence[str]) -> Any:
    return select(clusters).where(clusters.c.registry == name, clusters.c.id.in_(ids))


def _write(connection: Connection, name: str, cluster: str, version: int, size: int, receipt: int) -> None:
    """Compare and set a cluster that stands: `version` is the one after that which it has."""
    done = connection.execute(
        _WRITE,
        {
            "of": name,
            "cluster": cluster,
            "before": version - 1,
            "after": version,
            "members": size,
            "number": receipt,
        },
    )
    if done.rowcount != 1:
        raise RegistryError(f"cluster {cluster!r} was changed meanwhile; try again")


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
        ).all()
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
    connection.execute(_REVISE, {"of": name})
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
    connection.execute(_REVISE, {"of": name})
    return merged

"""Which blocks to ask about next: what a call is expected to bring, most first, until it is not worth a call.

Each candidate pair of clusters gets a chance of being the same from how alike they look, set right by what came of
such pairs before. Pairs that a rule forbids, and pairs that were judged, are not asked about; clusters whose judgements
contradict each other are asked about again through other members. Everything is decided by the snapshot alone, so that
any worker plans the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from remand_policy import Evidence

from .candidates import Candidates, Rows, Scores
from .packing import Pair, pack

WORTH_A_CALL: Final = 0.03
"""Merges that a call must be expected to bring."""
LEAST_CHANCE: Final = 0.0003
"""Pairs less likely the same than this are not asked about."""
DEEPEST: Final = 9
_SMOOTHING: Final = 50.0
"""How many judged pairs weigh as much as what a score says by itself."""
_CONTESTED: Final = 0.02
_MOST_JUDGED: Final = 30
_MEMBERS_ASKED: Final = 4
_CROSS_PAIRS: Final = 9
_CONTESTED_WEIGHT: Final = 0.3
_LARGEST_GAIN: Final = 8
_RULES_AT_ONCE: Final = 200_000
"""Pairs that rules are asked about before packing, at most: beyond, only those that would be asked about."""


@dataclass(frozen=True, slots=True)
class Between:
    """What was judged between pairs of clusters, the lower first, each pair once, in their order.

    Of each pair how many judgements said the same, how many different, and the best chance that blocking gave.
    """

    low: Rows
    high: Rows
    positive: Rows
    negative: Rows
    prior: Scores

    @classmethod
    def of(
        cls, one: Rows, other: Rows, positive: NDArray[np.bool_], negative: NDArray[np.bool_], prior: Scores
    ) -> Self:
        """Judgements added up by pairs of clusters."""
        low, high = np.minimum(one, other), np.maximum(one, other)
        order = np.lexsort((high, low))
        low, high = low[order], high[order]
        first = np.flatnonzero(_changes(low) | _changes(high))
        same, different = (
            np.add.reduceat(each[order].astype(np.int64), first) for each in (positive, negative)
        )
        return cls(low[first], high[first], same, different, np.maximum.reduceat(prior[order], first))

    def evidence(self, place: int) -> Evidence:
        """The judgements of one pair."""
        return Evidence(int(self.positive[place]), int(self.negative[place]), float(self.prior[place]))


def _nothing() -> Rows:
    return np.empty(0, np.int64)


NOTHING: Final = Between(_nothing(), _nothing(), _nothing(), _nothing(), np.empty(0, np.float64))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of a registry: rows in the order in which entries came, clusters numbered from 0.

    `between` and `apart` are about pairs of clusters, the lower first; `judged` holds `one * rows + other` of judged
    pairs of rows, sorted. `rates` says of each bin of scores how many planned pairs were the same, out of how many.
    """

    ids: Sequence[str]
    cluster: Rows
    fresh: NDArray[np.bool_]
    between: Between = NOTHING
    judged: Rows = field(default_factory=_nothing)
    rates: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    apart: frozenset[tuple[int, int]] = frozenset()

    @property
    def clusters(self) -> int:
        """How many clusters there are."""
        return int(self.cluster.max()) + 1 if len(self.cluster) else 0


@dataclass(frozen=True, slots=True)
class Planned:
    """Rows to show together, what that is worth, and of its planned pairs the chance and the score."""

    rows: tuple[int, ...]
    worth: float
    pairs: tuple[tuple[int, int, float, float], ...]


def gain(left: int, right: int) -> int:
    """What joining clusters of these sizes counts for."""
    return min(_LARGEST_GAIN, left, right)


def bins_of(score: Scores) -> Rows:
    """The bins of scores in which rates are kept: half powers of two."""
    return (-2 * np.log2(np.maximum(score, 1e-9))).astype(np.int64)


def plan(
    snapshot: Snapshot,
    candidates: Candidates,
    *,
    size: int,
    limit: int,
    scale: float = 1.0,
    depth: int = 1,
    forbidden: Callable[[int, int], bool] | None = None,
) -> list[Planned]:
    """At most `limit` blocks of at most `size` rows, the most worth first.

    `scale` corrects what blocks are expected to bring by what the last round brought. `depth` above 1 asks about less
    likely pairs too. `forbidden` says whether a rule keeps two clusters apart.
    """
    if limit < 1:
        return []
    forbids = _Cached(forbidden, snapshot.apart)
    open_ = _open_pairs(snapshot, candidates, forbids)
    chance, score = _chances(snapshot, candidates, open_)
    likely = chance > LEAST_CHANCE / depth
    open_, chance, score = open_.where(likely), chance[likely], score[likely]
    most = limit * size * size // 2
    order = np.lexsort((open_.right, open_.left, -chance))[:most]
    known: dict[tuple[int, int], tuple[float, float]] = {}
    pairs: list[Pair] = []
    for place in order.tolist():
        one, other = int(open_.left[place]), int(open_.right[place])
        if forbids(int(snapshot.cluster[one]), int(snapshot.cluster[other])):
            continue
        known[one, other] = (float(chance[place]), float(score[place]))
        pairs.append((one, other, float(chance[place])))
    pairs += [pair for pair in _contested(snapshot, forbids) if pair[:2] not in known]
    blocks = sorted(pack(pairs, size), key=lambda block: -block.worth)
    return [
        Planned(tuple(block.rows), block.worth, _hints(sorted(block.rows), known))
        for block in blocks[:limit]
        if block.worth * scale >= WORTH_A_CALL / depth
    ]


class _Cached:
    """Whether two clusters must stay apart. Rules are the author's code and are asked once about a pair."""

    def __init__(
        self, forbidden: Callable[[int, int], bool] | None, apart: frozenset[tuple[int, int]]
    ) -> None:
        self.any = forbidden is not None or bool(apart)
        self.rules = forbidden is not None
        self._forbidden = forbidden
        self._apart = apart
        self._known: dict[tuple[int, int], bool] = {}

    def __call__(self, one: int, other: int) -> bool:
        key = (min(one, other), max(one, other))
        if key in self._apart:
            return True
        if self._forbidden is None:
            return False
        if key not in self._known:
            self._known[key] = self._forbidden(*key)
        return self._known[key]


def _open_pairs(snapshot: Snapshot, candidates: Candidates, forbids: _Cached) -> Candidates:
    """The most alike pair of rows for each pair of clusters that nothing is known of yet. Rows, the lower first."""
    count = max(snapshot.clusters, 1)
    one, other = snapshot.cluster[candidates.left], snapshot.cluster[candidates.right]
    key = np.minimum(one, other) * count + np.maximum(one, other)
    judged = snapshot.between.low * count + snapshot.between.high
    kept = np.flatnonzero((one != other) & ~_among(key, judged))
    order = kept[np.lexsort((-candidates.score[kept], key[kept]))]
    order = order[_changes(key[order])]
    if forbids.any and len(order) <= _RULES_AT_ONCE:
        pairs = zip(one[order].tolist(), other[order].tolist(), strict=True)
        order = order[np.fromiter((not forbids(*pair) for pair in pairs), bool, len(order))]
    return Candidates(candidates.left[order], candidates.right[order], candidates.score[order])


def _chances(snapshot: Snapshot, candidates: Candidates, open_: Candidates) -> tuple[Scores, Scores]:
    """For each open pair the chance that it is the same, and the score that this rests on.

    A pair scores by how alike it is, beside the most alike that either cluster has, and beside the most alike that
    either has among the open pairs.
    """
    best, best_open = np.zeros(snapshot.clusters), np.zeros(snapshot.clusters)
    for pairs, into in ((candidates, best), (open_, best_open)):
        for rows in (pairs.left, pairs.right):
            np.maximum.at(into, snapshot.cluster[rows], pairs.score)
    one, other = snapshot.cluster[open_.left], snapshot.cluster[open_.right]
    alike = np.minimum(open_.score, 1.0)
    score = (
        alike**2
        * (alike / np.maximum(best_open[one], best_open[other])) ** 1.5
        * (alike / np.maximum(best[one], best[other])) ** 1.5
    )
    bins = bins_of(score)
    most = int(bins.max()) + 1 if len(bins) else 1
    same, planned = np.zeros(most), np.zeros(most)
    for place, (positive, number) in snapshot.rates.items():
        if place < most:
            same[place], planned[place] = positive, number
    return (same[bins] + score * _SMOOTHING) / (planned[bins] + _SMOOTHING), score


def _contested(snapshot: Snapshot, forbids: _Cached) -> list[Pair]:
    """Further pairs between clusters whose judgements did not settle it."""
    between = snapshot.between
    # Without a judgement for it the chance is at most what it was before.
    unsettled = (between.positive > 0) | (between.prior > _CONTESTED)
    few = between.positive + between.negative < _MOST_JUDGED
    places = np.flatnonzero(unsettled & few).tolist()
    if not places:
        return []
    order = np.argsort(snapshot.cluster, kind="stable")
    starts = np.searchsorted(snapshot.cluster[order], np.arange(snapshot.clusters + 1))
    pairs: list[Pair] = []
    for place in places:
        one, other = int(between.low[place]), int(between.high[place])
        chance = between.evidence(place).chance
        if chance <= _CONTESTED or forbids(one, other):
            continue
        left, right = (order[starts[each] : starts[each + 1]] for each in (one, other))
        worth = chance * _CONTESTED_WEIGHT * gain(len(left), len(right))
        asked = [
            (min(pair), max(pair))
            for pair in product(left[:_MEMBERS_ASKED].tolist(), right[:_MEMBERS_ASKED].tolist())
        ]
        keys = np.array([low * len(snapshot.ids) + high for low, high in asked], dtype=np.int64)
        new = np.flatnonzero(~_among(keys, snapshot.judged))[:_CROSS_PAIRS]
        pairs += [(*asked[each], worth) for each in new.tolist()]
    return pairs


def _changes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a value differs from the one before it. The first one does."""
    changes = np.ones(len(values), dtype=bool)
    changes[1:] = values[1:] != values[:-1]
    return changes


def _among(values: Rows, found: Rows) -> NDArray[np.bool_]:
    """Which of `values` are among those of `found`, which are in order."""
    if not len(found):
        return np.zeros(len(values), dtype=bool)
    place = np.minimum(np.searchsorted(found, values), len(found) - 1)
    return np.asarray(found[place] == values)


def _hints(
    rows: Sequence[int], known: Mapping[tuple[int, int], tuple[float, float]]
) -> tuple[tuple[int, int, float, float], ...]:
    return tuple(
        (one, other, *known[one, other])
        for place, one in enumerate(rows)
        for other in rows[place + 1 :]
        if (one, other) in known
    )

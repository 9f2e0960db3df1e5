"""Matchers in place of a model: one that is right, and two that err as models do, from a seed."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations
from typing import Final

Matcher = Callable[[Sequence[str], Mapping[str, str]], list[list[str]]]
"""Groups of entry ids, of the ids that a block shows, with gold clusters by id."""


def perfect(ids: Sequence[str], gold: Mapping[str, str]) -> list[list[str]]:
    """Groups as they are."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in ids:
        groups[gold[name]].append(name)
    return list(groups.values())


FALSE, MISSED = 0.01, 0.05
"""How often a pair is called wrongly: different ones the same, and the same ones different."""


def erring(seed: int) -> Matcher:
    """A matcher that calls 1% of different pairs the same and misses 5%, always in the same way for the same pair.

    As a proposal is disjoint groups, it settles contradictions of its own as a reader would who has all records before
    him: groups are joined while most of the pairs between them were called the same.
    """

    def match(ids: Sequence[str], gold: Mapping[str, str]) -> list[list[str]]:
        ordered = sorted(ids)
        called = {pair: _called(seed, *pair, gold) for pair in combinations(ordered, 2)}
        groups = [[name] for name in ordered]
        while True:
            best: tuple[float, int, int] | None = None
            for (i, left), (j, right) in combinations(enumerate(groups), 2):
                votes = [called[min(a, b), max(a, b)] for a in left for b in right]
                share = sum(votes) / len(votes)
                if share > 0.5 and (best is None or share > best[0]):
                    best = (share, i, j)
            if best is None:
                return groups
            groups[best[1]] += groups.pop(best[2])

    return match


def closing(seed: int) -> Matcher:
    """The same matcher, but it joins whatever a chain of its calls connects: it never looks at a group as a whole."""

    def match(ids: Sequence[str], gold: Mapping[str, str]) -> list[list[str]]:
        groups: list[list[str]] = []
        for name in sorted(ids):
            linked = [group for group in groups if any(_called(seed, each, name, gold) for each in group)]
            groups = [group for group in groups if group not in linked]
            groups.append([name, *chain.from_iterable(linked)])
        return groups

    return match


def _called(seed: int, one: str, other: str, gold: Mapping[str, str]) -> bool:
    """Whether the erring matcher calls two entries the same."""
    chance = random.Random(f"{seed} {min(one, other)} {max(one, other)}").random()
    return chance >= MISSED if gold[one] == gold[other] else chance < FALSE


MATCHERS: Final[Mapping[str, Callable[[int], Matcher]]] = {
    "perfect": lambda _: perfect,
    "erring": erring,
    "closing": closing,
}
"""By name, each made from a seed."""

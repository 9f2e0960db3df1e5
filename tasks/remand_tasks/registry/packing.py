"""Pairs into blocks: few prompts that show every pair worth asking about, the likeliest pairs first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Pair = tuple[int, int, float]
"""Two rows and what it is worth to ask about them."""


@dataclass(slots=True)
class Packed:
    """Rows that share a prompt, and the worth of all pairs that it covers."""

    rows: list[int] = field(default_factory=list)
    worth: float = 0.0


def pack(pairs: Sequence[Pair], size: int) -> Iterator[Packed]:
    """Blocks of at most `size` rows that together cover all of `pairs`, greedily.

    A block begins with the best pair that no block covers yet, and grows by the row that covers the most beside those
    that are in it; where none does, it takes in the next best pair. The same pairs give the same blocks.
    """
    near: dict[int, dict[int, float]] = {}
    for one, other, worth in pairs:
        near.setdefault(one, {})[other] = worth
        near.setdefault(other, {})[one] = worth
    block = _Growing(near)
    for one, other, _ in sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1])):
        if other not in near[one]:
            continue
        if len({one, other} - block.members) + len(block.members) > size:
            yield block.packed()
            block = _Growing(near)
        block.take(one)
        block.take(other)
        block.grow(size)
        if len(block.members) >= size:
            yield block.packed()
            block = _Growing(near)
    if block.members:
        yield block.packed()


class _Growing:
    """A block under construction. It takes the pairs that it covers out of `near`."""

    def __init__(self, near: dict[int, dict[int, float]]) -> None:
        self._near = near
        self.members: set[int] = set()
        self._rows: list[int] = []
        self._worth = 0.0
        self._gain: dict[int, float] = {}
        self._queue: list[tuple[float, int]] = []

    def packed(self) -> Packed:
        return Packed(self._rows, self._worth)

    def take(self, row: int) -> None:
        if row in self.members:
            return
        near = self._near[row]
        self._worth += self._gain.pop(row, 0.0)
        for member in self.members & near.keys():
            del near[member]
            del self._near[member][row]
        self.members.add(row)
        self._rows.append(row)
        for other, worth in near.items():
            gain = self._gain[other] = self._gain.get(other, 0.0) + worth
            heapq.heappush(self._queue, (-gain, other))

    def grow(self, size: int) -> None:
        while len(self.members) < size and self._queue:
            gain, row = heapq.heappop(self._queue)
            if row not in self.members and self._gain.get(row) == -gain:
                self.take(row)

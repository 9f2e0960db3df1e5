"""Which entries are worth comparing: nearest neighbours by TF-IDF, without comparing everything with everything.

Character trigrams find what is misspelt; beyond `WORDS_FROM` entries words take their place, at a tenth of the cost.
A token that a great part of the entries share tells nothing apart and would make candidates of them all: it is left
out, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sparse_dot_topn import sp_matmul_topn

from remand.normal import normal

WORDS_FROM: Final = 20_001
COMMON_AT_LEAST: Final = 1_000
"""A token of fewer entries than this is never too common."""
COMMON_TRIGRAM, COMMON_WORD = 0.25, 0.05
"""The part of all entries that may share a token."""
FLOOR: Final = 0.02
"""Entries less alike than this are no candidates."""

Rows = NDArray[np.int64]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Pairs of rows, the lower first, each once, with how alike they are: from 0 to 1."""

    left: Rows
    right: Rows
    score: Scores

    @classmethod
    def of(cls, left: Rows, right: Rows, score: Scores) -> Candidates:
        """Put pairs in order, the best score of each."""
        if not len(left):
            return cls(left, right, score)
        low, high = np.minimum(left, right).astype(np.int64), np.maximum(left, right).astype(np.int64)
        key = low * (int(high.max()) + 1) + high
        order = np.lexsort((-score, key))
        first = np.ones(len(order), dtype=bool)
        first[1:] = key[order][1:] != key[order][:-1]
        chosen = order[first]
        return cls(low[chosen], high[chosen], score[chosen].astype(np.float64))

    def where(self, kept: NDArray[np.bool_]) -> Candidates:
        """Those pairs alone."""
        return Candidates(self.left[kept], self.right[kept], self.score[kept])

    def __add__(self, other: Candidates) -> Candidates:
        return Candidates.of(
            np.concatenate([self.left, other.left]),
            np.concatenate([self.right, other.right]),
            np.concatenate([self.score, other.score]),
        )

    def __len__(self) -> int:
        return len(self.left)


NONE: Final = Candidates(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64))


class Vectors:
    """TF-IDF vectors of texts, a row each, of length 1.

    `common` is how many tokens were left out because too many entries share them, `empty` how many entries have no
    token left.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        words = len(texts) >= WORDS_FROM
        self._counter = CountVectorizer(
            preprocessor=normal,
            analyzer="word" if words else "char_wb",
            ngram_range=(1, 1) if words else (3, 3),
            token_pattern=r"\w+" if words else None,
            dtype=np.float32,
        )
        self._weights = TfidfTransformer()
        try:
            counts: Any = self._counter.fit_transform(texts)
        except ValueError:  # not a token in all of them
            counts = sparse.csr_matrix((len(texts), 1), dtype=np.float32)
        shared = np.bincount(counts.indices, minlength=counts.shape[1])
        part = COMMON_WORD if words else COMMON_TRIGRAM
        self._kept = np.flatnonzero(shared <= max(COMMON_AT_LEAST, part * len(texts)))
        self.common = int(counts.shape[1] - len(self._kept))
        if self.common:
            counts = counts[:, self._kept]
        self.matrix: Any = self._weights.fit_transform(counts).tocsr()
        self.empty = int(np.count_nonzero(np.diff(self.matrix.indptr) == 0))

    def of(self, texts: Sequence[str]) -> Any:
        """Vectors of further texts in the same space."""
        counts: Any = self._counter.transform(texts)
        return self._weights.transform(counts[:, self._kept] if self.common else counts, copy=False).tocsr()

    def nearest(self, k: int) -> Candidates:
        """Each row's `k` nearest others."""
        return _nearest(self.matrix, k)

    def nearest_clusters(self, cluster: Rows, k: int) -> Candidates:
        """Each cluster's `k` nearest others by their mean vectors. Rows of the result are clusters, numbered from 0."""
        count = int(cluster.max()) + 1 if len(cluster) else 0
        rows = np.arange(len(cluster))
        member = sparse.csr_matrix(
            (np.ones(len(cluster), dtype=np.float32), (cluster, rows)), shape=(count, len(cluster))
        )
        sums: Any = (member @ self.matrix).tocsr()
        length = np.sqrt(np.asarray(sums.multiply(sums).sum(axis=1)).ravel())
        length[length == 0] = 1.0
        return _nearest(sparse.diags((1 / length).astype(np.float32)).dot(sums).tocsr(), k)

    def alike(self, left: Rows, right: Rows) -> Scores:
        """How alike pairs of rows are."""
        return (
            np.asarray(self.matrix[left].multiply(self.matrix[right]).sum(axis=1)).ravel().astype(np.float64)
        )


def _nearest(matrix: Any, k: int) -> Candidates:
    if matrix.shape[0] < 2 or matrix.nnz == 0:
        return NONE
    found = sp_matmul_topn(matrix, matrix.T.tocsr(), top_n=k + 1, threshold=FLOOR, n_threads=1).tocoo()
    others = found.row != found.col
    return Candidates.of(
        found.row[others].astype(np.int64), found.col[others].astype(np.int64), found.data[others].astype(np.float64)
    )  # fmt: skip


def nearest_by_embedding(vectors: Sequence[Sequence[float]], k: int) -> Candidates:
    """Each row's `k` nearest others by cosine; the score is squared, as embeddings call everything a little alike."""
    matrix: NDArray[Any] = np.asarray(vectors, dtype=np.float32)
    length = np.linalg.norm(matrix, axis=1, keepdims=True)
    matrix = matrix / np.where(length == 0, 1, length)
    left: list[Rows] = []
    right: list[Rows] = []
    score: list[Scores] = []
    k = min(k, len(matrix) - 1)
    if k < 1:
        return NONE
    for start in range(0, len(matrix), 2_000):
        part = matrix[start : start + 2_000] @ matrix.T
        part[np.arange(len(part)), np.arange(start, start + len(part))] = -1.0
        best = np.argpartition(-part, k - 1, axis=1)[:, :k]
        left.append(np.repeat(np.arange(start, start + len(part), dtype=np.int64), k))
        right.append(best.ravel().astype(np.int64))
        score.append(np.take_along_axis(part, best, axis=1).ravel().clip(0, 1).astype(np.float64) ** 2)
    return Candidates.of(np.concatenate(left), np.concatenate(right), np.concatenate(score))


class Index:
    """Finds the nearest entries of one that is new among many, without touching the others' vectors.

    The weights of tokens stay as they were when it was made; `stale` says when a new one should be made.
    """

    def __init__(self, ids: Sequence[str], texts: Sequence[str]) -> None:
        self._vectors = Vectors(texts)
        self._columns: Any = self._vectors.matrix.tocsc()
        self._ids: list[str] = list(ids)
        self._row = {name: row for row, name in enumerate(self._ids)}
        self._base = len(self._ids)
        self._gone: set[int] = set()
        self._later: dict[int, list[tuple[int, float]]] = {}
        self.common, self.empty = self._vectors.common, self._vectors.empty

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, name: str) -> bool:
        return name in self._row

    @property
    def stale(self) -> bool:
        """Whether so much was added since that the weights say little."""
        return len(self._ids) - self._base > max(1_000, self._base // 5)

    def add(self, name: str, text: str) -> None:
        """Add an entry, or put another text in its place."""
        old = self._row.get(name)
        if old is not None:
            self._gone.add(old)
        row = self._row[name] = len(self._ids)
        self._ids.append(name)
        vector = self._vectors.of([text])
        for token, weight in zip(vector.indices.tolist(), vector.data.tolist(), strict=True):
            self._later.setdefault(token, []).append((row, weight))

    def nearest(self, text: str, k: int, *, but: str = "") -> list[tuple[str, float]]:
        """The `k` entries most like `text`, the most alike first, but not the entry `but` itself."""
        vector = self._vectors.of([text])
        score = np.zeros(len(self._ids), dtype=np.float32)
        starts, rows, weights = self._columns.indptr, self._columns.indices, self._columns.data
        for token, weight in zip(vector.indices.tolist(), vector.data.tolist(), strict=True):
            here = slice(starts[token], starts[token + 1])
            score[rows[here]] += weight * weights[here]
            for row, other in self._later.get(token, ()):
                score[row] += weight * other
        for row in self._gone:
            score[row] = 0.0
        if but in self._row:
            score[self._row[but]] = 0.0
        few = np.argpartition(-score, min(k, len(score) - 1))[:k] if len(score) > 1 else np.arange(len(score))
        best = few[np.lexsort((few, -score[few]))]
        return [(self._ids[row], float(score[row])) for row in best.tolist() if score[row] >= FLOOR]

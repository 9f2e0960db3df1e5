"""What very many entries take: planning them, one more among them, and entries that say the same placeholder.

The records are made up here, from a seed: persons with names as unevenly spread as real ones, some of them twice with
errors.
"""

from __future__ import annotations

import random
import resource
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, product
from pathlib import Path

from remand import Groups, Produced, Registry, producer
from remand_tasks.registry.candidates import Index
from remand_tasks.registry.reconcile import Reconciler
from remand_tasks.registry.store import Registries, made_of, notes
from remand_tasks.state.engine import Database
from remand_tasks.state.migrate import upgrade

from .reconciling import Entry, _id, _text

NAME = "scale"
NEIGHBOURS = 10
_SYLLABLES = [*map("".join, product(["ch", "st", *"bdfghjklmnprstvwz"], "aeiou"))]
_ENDINGS = ["", "n", "r", "s", "l", "ne", "ton", "ley", "ski", "sen"]
_TWICE = 0.2


def persons(count: int, seed: int = 1) -> Iterator[str]:
    """Texts of persons. One in five is an earlier one with errors."""
    rng = random.Random(seed)
    given, family, street, town = (_names(rng, number) for number in (800, 12_000, 4_000, 1_500))
    made: list[list[str]] = []
    for _ in range(count):
        if made and rng.random() < _TWICE:
            fields = [_with_errors(rng, each) for each in rng.choice(made)]
            if rng.random() < 0.2:
                fields[rng.randrange(2, len(fields))] = ""
        else:
            born = f"{rng.randint(1920, 2010)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
            at = f"{rng.randint(1, 200)} {_one(rng, street)} street"
            fields = [
                _one(rng, given),
                _one(rng, family),
                born,
                at,
                _one(rng, town),
                f"{rng.randint(10_000, 99_999)}",
            ]
            made.append(fields)
        yield " ".join(each for each in fields if each)


def placeholders(count: int) -> Iterator[str]:
    """Half of them say nothing but `Unknown`, the others have a name besides."""
    for place, person in enumerate(persons(count)):
        yield "Unknown" if place % 2 else f"Unknown {person}"


Names = tuple[list[str], list[float]]


def _names(rng: random.Random, count: int) -> Names:
    """Made-up names with the weights of their ranks, added up."""
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(rng.choices(_SYLLABLES, k=rng.choice([1, 2, 2, 3]))) + rng.choice(_ENDINGS)] = None
    return list(names), list(accumulate(1 / (rank + 5) for rank in range(count)))


def _one(rng: random.Random, names: Names) -> str:
    return rng.choices(names[0], cum_weights=names[1])[0]


def _with_errors(rng: random.Random, text: str) -> str:
    if len(text) < 2 or rng.random() > 0.15:
        return text
    place = rng.randrange(len(text) - 1)
    return rng.choice(
        [
            text[:place] + text[place + 1 :],
            text[:place] + text[place + 1] + text[place] + text[place + 2 :],
            text[:place] + rng.choice("aeinrst") + text[place + 1 :],
        ]
    )


@producer(version="1", output=Groups)
def _nobody(_context: object, _correction: object) -> Produced:
    return Produced(Groups(groups=[]))


def _first_word(entry: Entry) -> str | None:
    return entry.text if entry.text == "Unknown" else None


def _registry() -> Registry[Entry]:
    return Registry(
        NAME, Entry, version="1", key=_id, text=_text, exact=[_first_word], proposer=_nobody, neighbours=NEIGHBOURS
    )  # fmt: skip


def _ledger(path: Path) -> Database:
    return Database(f"sqlite:///{path}")


def fill(path: Path, kind: str, count: int) -> None:
    """A ledger with a registry of so many entries."""
    texts = {"persons": persons, "placeholders": placeholders}[kind](count)
    database, registry = _ledger(path), _registry()
    upgrade(database)
    store = Registries(database)
    store.register(registry, "bench:registry", 1.0)
    made = [made_of(registry, Entry(id=f"e{n:06}", text=text, source="")) for n, text in enumerate(texts)]
    for start in range(0, count, 5_000):
        store.put(NAME, made[start : start + 5_000], 1.0)
    store.want(NAME, 1.0)
    database.dispose()


@dataclass(frozen=True)
class FirstPlan:
    """What the first plan of an empty registry took and gave."""

    cpu_seconds: float
    memory: int
    """MiB, the most that the process ever held."""
    blocks: int
    largest: int
    """Records in the largest block."""
    caps: dict[str, int]


def first_plan(path: Path) -> FirstPlan:
    """Plan the first round of what `fill` made: exact keys, reading, candidates, blocks, and writing them down."""
    database, registry = _ledger(path), _registry()
    reconciler = Reconciler(database, lambda _: registry, lambda _: None, lambda: 2.0)
    started = time.process_time()
    reconciler.advance(NAME)
    cpu = time.process_time() - started
    (job,) = Registries(database).jobs(NAME)
    database.dispose()
    with sqlite3.connect(path) as connection:
        (largest,) = connection.execute(
            "SELECT coalesce(max(json_array_length(body, '$.records')), 0) FROM payloads WHERE name = 'input'"
        ).fetchone()
    connection.close()
    return FirstPlan(
        cpu_seconds=cpu,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        blocks=job.blocks,
        largest=int(largest),
        caps=dict(notes(job)),
    )


def one_more(count: int, new: int = 200) -> float:
    """Milliseconds of processor to find the nearest of one new entry among so many, and to add it."""
    texts = list(persons(count + new))
    index = Index([str(n) for n in range(count)], texts[:count])
    started = time.process_time()
    for place, text in enumerate(texts[count:]):
        index.nearest(text, NEIGHBOURS)
        index.add(f"new {place}", text)
    return 1_000 * (time.process_time() - started) / new

"""One set through the product: the ledger, the planner, the blocks' pipeline with its checks, the application.

What is left out is the queue: blocks are proposed in this process, one after the other, by a matcher in place of a
model.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from sqlalchemy import select

from remand import Context, Correction, Groups, Produced, Producer, Registry, run_local
from remand_tasks.registry.reconcile import Reconciler
from remand_tasks.registry.store import Registries, made_of
from remand_tasks.registry.tables import entries, registries
from remand_tasks.registry.tables import jobs as registry_jobs
from remand_tasks.state.engine import Database
from remand_tasks.state.migrate import upgrade
from remand_tasks.state.tables import metadata

from .matchers import MATCHERS, Matcher
from .sets import Labelled, load


class Entry(BaseModel):
    """An entry of a labelled set."""

    id: str
    text: str
    source: str


class _Matching(Producer[Groups]):
    """Asks a matcher about the block in hand."""

    def __init__(self, matcher: Matcher, gold: Mapping[str, str]) -> None:
        super().__init__("matcher", version="1", output=Groups)
        self.block: Mapping[str, Any] = {}
        self._matcher = matcher
        self._gold = gold

    def __call__(self, context: Context, correction: Correction | None) -> Produced:
        local = {record["entry"]: record["id"] for record in self.block["records"]}
        groups = self._matcher(sorted(local), self._gold)
        return Produced(
            Groups(groups=[[local[name] for name in group] for group in groups if len(group) > 1])
        )


def one_source(one: Entry, other: Entry) -> bool:
    """No entry is twice in one source."""
    return one.source == other.source


@dataclass(frozen=True)
class Outcome:
    """What a reconciliation gave and took."""

    entries: int
    precision: float
    recall: float
    calls: int
    rounds: int
    cpu_seconds: float
    memory: int
    """MiB, the most that this process ever held."""
    again_calls: int
    """Calls of a further reconciliation of the same entries."""
    again_writes: bool
    """Whether that one changed the registry, or a look without a request anything at all."""

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall over pairs."""
        return 2 * self.precision * self.recall / max(self.precision + self.recall, 1e-9)


def measure(name: str, data: Path, matcher: str, seed: int, calls_for_thousand: int) -> Outcome:
    """A set by its name through the product, with a matcher by its name, in a ledger that is thrown away."""
    labelled = load(name, data)
    with tempfile.TemporaryDirectory(prefix="remand-bench-") as folder:
        budget = max(1, len(labelled.texts) * calls_for_thousand // 1_000)
        return reconcile(labelled, MATCHERS[matcher](seed), Path(folder), budget)


def reconcile(data: Labelled, matcher: Matcher, folder: Path, max_calls: int | None = None) -> Outcome:
    """Put a set into an empty registry, reconcile it to the end, and once more."""
    gold = {f"e{place:06d}": cluster for place, cluster in enumerate(data.gold)}
    matching = _Matching(matcher, gold)
    registry = Registry(
        "bench",
        Entry,
        version="1",
        key=_id,
        text=_text,
        cannot_link=[one_source] if data.source is not None else [],
        proposer=matching,
        max_calls=max_calls,
    )
    path = folder / f"{data.name}-{time.monotonic_ns()}.db"
    database = Database(f"sqlite:///{path}")
    upgrade(database)
    store = Registries(database)
    made = [
        made_of(registry, Entry(id=name, text=text, source="" if data.source is None else data.source[place]))
        for place, (name, text) in enumerate(zip(gold, data.texts, strict=True))
    ]
    store.register(registry, "bench:registry", 1.0)
    for start in range(0, len(made), 5_000):
        store.put("bench", made[start : start + 5_000], 1.0)
    store.want("bench", 1.0)
    clock = iter(range(2, 100_000_000))
    reconciler = Reconciler(database, lambda _: registry, lambda _: None, lambda: float(next(clock)))
    started = time.process_time()
    thinking = 0.0
    while reconciler.advance("bench"):
        thinking += _propose(path, registry, matching)
    cpu = time.process_time() - started - thinking
    jobs = store.jobs("bench")
    with database.read() as connection:
        found = dict(connection.execute(select(entries.c.id, entries.c.cluster)).all())
    calls = sum(job.calls for job in jobs)
    with sqlite3.connect(path) as watcher:  # tells what others write, on one and the same connection
        version = watcher.execute("PRAGMA data_version").fetchone()
        reconciler.advance("bench")
        writes = watcher.execute("PRAGMA data_version").fetchone() != version
    watcher.close()
    held = _held(database)
    store.want("bench", 3.0)
    reconciler.advance("bench")
    again = sum(job.calls for job in store.jobs("bench")) - calls
    writes = writes or _held(database) != held
    database.dispose()
    precision, recall = _score(found, gold)
    return Outcome(
        entries=len(gold),
        precision=precision,
        recall=recall,
        calls=calls,
        rounds=sum(job.round for job in jobs),
        cpu_seconds=cpu,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        again_calls=again,
        again_writes=writes,
    )


def _id(entry: Entry) -> str:
    return entry.id


def _text(entry: Entry) -> str:
    return entry.text


def _held(database: Database) -> list[Any]:
    """All that the ledger holds, but for who asked and what was planned."""
    kept = [table for table in metadata.sorted_tables if table not in (registries, registry_jobs)]
    with database.read() as connection:
        revision = connection.execute(select(registries.c.revision)).scalar_one()
        return [revision, *(hash(tuple(map(tuple, connection.execute(select(table))))) for table in kept)]


def _propose(path: Path, registry: Registry[Any], matching: _Matching) -> float:
    """Close every open block with what the registry's pipeline makes of it. The seconds of processor it took."""
    started = time.process_time()
    with sqlite3.connect(path) as connection:
        open_ = connection.execute(
            "SELECT i.run_id, i.seq, p.body FROM items i JOIN payloads p ON p.run_id = i.run_id AND p.seq = i.seq"
            " AND p.name = 'input' WHERE i.state = 'pending'"
        ).fetchall()
        for run_id, seq, body in open_:
            matching.block = json.loads(body)
            (outcome,) = run_local(registry.pipeline, [matching.block])
            connection.execute(
                "UPDATE items SET state = 'closed', status = ?, attempts = ?, diagnostics = ?"
                " WHERE run_id = ? AND seq = ?",
                (outcome.status.value, outcome.attempts, json.dumps(list(outcome.diagnostics)), run_id, seq),
            )
            if outcome.value is not None:
                connection.execute(
                    "INSERT INTO payloads VALUES (?, ?, 'value.0', ?)",
                    (run_id, seq, outcome.value.model_dump_json()),
                )
        connection.execute("UPDATE runs SET ended_at = 1, status = 'succeeded'")
    return time.process_time() - started


def _score(found: Mapping[str, str], gold: Mapping[str, str]) -> tuple[float, float]:
    def pairs(sizes: Counter[Any]) -> int:
        return sum(size * (size - 1) // 2 for size in sizes.values())

    right = pairs(Counter((found[name], gold[name]) for name in gold))
    return right / max(pairs(Counter(found.values())), 1), right / max(pairs(Counter(gold.values())), 1)

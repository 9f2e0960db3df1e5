"""Registries for the scenarios: any attribute of this module is one, named after it, so that each scenario has its own.

`MODEL` is asked for groups. It knows the truth by the word `gold…` in each text, and answers otherwise where a scenario
says so.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pydantic import BaseModel
from sqlalchemy import select

from remand import Registry, load_registry
from remand.llm import ChatProposer
from remand.testing import RecordedRequest, Reply, ScriptedModel
from remand_tasks.registry.store import Job, Put, Registries, made_of
from remand_tasks.registry.tables import edges, entries, merges
from remand_workers.client import Client

URL = "CONFORMANCE_REGISTRY_MODEL"
PATIENCE = 150.0


class Thing(BaseModel):
    """An entry. Two kinds are never the same; an empty one says nothing."""

    id: str
    text: str
    kind: str = ""
    name: str = ""


def _id(thing: Thing) -> str:
    return thing.id


def _text(thing: Thing) -> str:
    return thing.text


def name(thing: Thing) -> str:
    """The name, which is nobody else's."""
    return thing.name


def different_kind(one: Thing, other: Thing) -> bool:
    """The kinds differ."""
    return bool(one.kind and other.kind and one.kind != other.kind)


def __getattr__(wanted: str) -> Registry[Thing]:
    if not re.fullmatch(r"[a-z]+_[0-9a-f]{12}", wanted):
        raise AttributeError(wanted)
    kind = wanted.split("_")[0]
    made = Registry(
        wanted,
        Thing,
        version="1",
        key=_id,
        text=_text,
        exact=[name],
        cannot_link=[different_kind],
        proposer=ChatProposer(
            model="scripted", base_url=os.environ.get(URL, "http://127.0.0.1:9/v1"), api_key="none", repairs=0
        ),
        retries=1,
        max_calls=2 if kind == "few" else 200,
    )
    globals()[wanted] = made
    return made


Shown = Sequence[Mapping[str, str]]
Answer = Callable[[int, Shown], Any]
"""What the model says to its n-th request of a scenario, from 1, about the records that it is shown."""


def truth(_: int, shown: Shown) -> dict[str, Any]:
    """Groups as they are."""
    groups: dict[str, list[str]] = defaultdict(list)
    for record in shown:
        (gold,) = re.findall(r"gold\w*", record["text"])
        groups[gold].append(record["id"])
    return {
        "groups": [group for group in groups.values() if len(group) > 1],
        "apart": [group[0] for group in groups.values() if len(group) == 1],
        "unsure": [],
    }


@dataclass(slots=True)
class Model:
    """The model of all registries: a scenario is known by the word `case…` in its texts."""

    answers: dict[str, Answer] = field(default_factory=dict)
    asked: dict[str, list[tuple[Shown, list[dict[str, str]]]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @contextmanager
    def serving(self) -> Iterator[Model]:
        """Serve; workers that are started meanwhile find it by their environment."""
        with ScriptedModel(self._reply) as server:
            os.environ[URL] = server.base_url
            yield self

    def _reply(self, request: RecordedRequest) -> Reply | str:
        messages = request.body["messages"]
        lines = next(m["content"] for m in messages if "<records>" in m["content"] and m["role"] == "user")
        shown = [json.loads(line) for line in lines.split("\n")[1:-1]]
        (case,) = set(re.findall(r"case\w*", lines))
        self.asked[case].append((shown, messages))
        said = self.answers.get(case, truth)(len(self.asked[case]), shown)
        return said if isinstance(said, Reply | str) else json.dumps(said)


@dataclass(slots=True)
class Case:
    """One scenario's registry on a stack that runs."""

    client: Client
    model: Model
    kind: str = "plain"
    registry: Registry[Thing] = field(init=False)
    store: Registries = field(init=False)
    word: str = field(init=False)

    def __post_init__(self) -> None:
        number = uuid4().hex[:12]
        self.word = f"case{number}"
        target = f"conformance_kit.registries:{self.kind}_{number}"
        self.registry = load_registry(target)
        self.store = Registries(self.client.database)
        self.store.register(self.registry, target, self.client.now())

    @property
    def name(self) -> str:
        """The registry's name."""
        return self.registry.name

    def thing(self, id_: str, text: str, gold: str, **more: str) -> Thing:
        """An entry whose text names the case and the truth."""
        return Thing(id=id_, text=f"{self.word} {text} gold{gold}", **more)

    def put(self, things: Iterable[Thing]) -> Put:
        """Store entries."""
        made = [made_of(self.registry, thing) for thing in things]
        return self.store.put(self.name, made, self.client.now())

    def reconcile(self) -> Job:
        """Ask for a reconciliation, and wait until a job has answered it."""
        request = self.store.want(self.name, self.client.now())
        return self.wait(request)

    def wait(self, request: int) -> Job:
        """Wait until a job has answered a request."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            row = self.store.find(self.name)
            assert row is not None
            if row.served >= request and not row.job:
                return self.store.jobs(self.name)[0]
            time.sleep(0.05)
        raise TimeoutError(
            f"registry {self.name}: {self.store.find(self.name)}, {self.store.jobs(self.name)}"
        )

    def clusters(self) -> set[frozenset[str]]:
        """Clusters of more than one entry."""
        found: dict[str, set[str]] = defaultdict(set)
        for entry, cluster in self.rows(
            select(entries.c.id, entries.c.cluster).where(entries.c.registry == self.name)
        ):
            found[cluster].add(entry)
        return {frozenset(members) for members in found.values() if len(members) > 1}

    def partition(self) -> dict[str, str]:
        """The canonical id of every entry."""
        return dict(self.rows(select(entries.c.id, entries.c.cluster).where(entries.c.registry == self.name)))

    def receipts(self) -> list[Any]:
        """Receipts, oldest first."""
        return self.rows(select(merges).where(merges.c.registry == self.name).order_by(merges.c.id))

    def edges(self) -> int:
        """How many judgements there are."""
        return len(self.rows(select(edges.c.id).where(edges.c.registry == self.name)))

    def state(self) -> dict[str, list[Any]]:
        """Everything that the ledger holds of the registry, but for the times."""
        from remand_tasks.registry import tables

        found: dict[str, list[Any]] = {}
        for table in (
            tables.registries,
            tables.entries,
            tables.clusters,
            tables.edges,
            tables.merges,
            tables.jobs,
        ):
            column = table.c.name if table is tables.registries else table.c.registry
            kept = [c for c in table.c if c.name not in ("due_at", "claimed_until")]
            found[table.name] = sorted(map(repr, self.rows(select(*kept).where(column == self.name))))
        return found

    def rows(self, statement: Any) -> list[Any]:
        """What a query gives."""
        with self.client.database.read() as connection:
            return list(connection.execute(statement).all())

    @property
    def asked(self) -> list[tuple[Shown, list[dict[str, str]]]]:
        """What the model was asked: records and messages."""
        return self.model.asked[self.word]

    def answer(self, answer: Answer) -> None:
        """Say what the model answers in this scenario."""
        self.model.answers[self.word] = answer


class Gate:
    """Holds the model back until a scenario lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()

    def delayed(self, said: Any, seconds: float) -> Reply:
        """A reply that takes its time, after telling that it was asked for."""
        self.reached.set()
        return Reply(json.dumps(said), delay=seconds)

"""What the intake writes, on both databases: once under an id and one letter for a message, whoever is faster."""

from __future__ import annotations

import sys
import time
import types
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import BaseModel
from sqlalchemy import select

from remand import Groups, Produced, Registry, producer
from remand_tasks.registry.intake import MOST_DELIVERIES, Delivery, Intake, Limits, Result
from remand_tasks.registry.letters import Letters, listed
from remand_tasks.registry.store import Registries
from remand_tasks.registry.tables import entries
from remand_tasks.state.engine import Database
from remand_tasks.state.migrate import upgrade
from remand_tasks.state.vault import KeyRing, Vault
from remand_workers.embedded import Embedded
from remand_workers.settings import Settings


class Work(BaseModel):
    """An entry."""

    title: str


@producer(version="1", output=Groups)
def nothing(context: Any, correction: Any) -> Produced:
    """Never called."""
    return Produced(Groups(groups=[]))


def title(work: Work) -> str:
    """The title."""
    return work.title


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vault]:
    with Embedded(Settings(_env_file=None, home=tmp_path_factory.mktemp("services"))) as embedded:
        assert embedded.settings.vault_url is not None
        with redis.Redis.from_url(embedded.settings.vault_url) as client:
            yield Vault(client, KeyRing.parse(KeyRing.generate()))


@pytest.fixture(params=["sqlite", "postgresql"])
def intake(
    request: pytest.FixtureRequest, tmp_path: Path, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Intake]:
    url = (
        f"sqlite:///{tmp_path}/ledger.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgresql_url")
    )
    module = types.ModuleType("ledger_works")
    works = Registry("works", Work, version="1", key=title, text=title, proposer=nothing)
    module.works = works  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ledger_works", module)
    database = Database(url)
    upgrade(database)
    Registries(database).register(works, "ledger_works:works", 0.0)
    letters = Letters(database=database, vault=vault, clock=time.time, lifetime=60)
    yield Intake(database=database, letters=letters, clock=time.time, limits=Limits())
    database.dispose()


def body(identity: str, *titles: str, registry: str = "works") -> bytes:
    sent = ", ".join(f'{{"title": "{each}"}}' for each in titles)
    return f'{{"id": "{identity}", "registry": "{registry}", "entries": [{sent}]}}'.encode()


def together(intake: Intake, bodies: list[bytes]) -> Counter[Result]:
    """Take all of them at once."""
    deliveries = [Delivery(source="redis", body=each) for each in bodies]
    with ThreadPoolExecutor(8) as pool:
        return Counter(pool.map(intake.take, deliveries))


def test_one_of_many_at_once_takes_a_message(intake: Intake) -> None:
    assert together(intake, [body("m", "a", "b")] * 8) == {Result.TAKEN: 1, Result.REDELIVERED: 7}
    found = Registries(intake.database).find("works")
    assert found is not None
    assert (found.wanted, found.entries) == (1, 2)


def test_one_of_two_messages_under_one_id_is_taken_and_the_other_is_dead(intake: Intake) -> None:
    assert together(intake, [body("m", "a"), body("m", "b")] * 4)[Result.TAKEN] == 1
    with intake.database.read() as connection:
        assert len(connection.execute(select(entries.c.id)).all()) == 1
    (letter,) = listed(intake.database)
    assert (letter.reason, letter.message_id) == ("id_reused", "m")


def test_garbage_of_many_at_once_is_one_letter_with_its_message(intake: Intake) -> None:
    assert together(intake, [b"garbage"] * 8) == {Result.DEAD: 8}
    (letter,) = listed(intake.database)
    assert (letter.times, letter.kept, letter.size) == (8, 7, 7)
    assert intake.letters.body(letter.id) == b"garbage"
    assert intake.letters.settle(letter.id, "dropped")
    assert not intake.letters.settle(letter.id, "retried")
    assert intake.letters.body(letter.id) is None
    assert listed(intake.database) == []
    together(intake, [b"garbage"])
    assert [(each.id, each.times, each.kept) for each in listed(intake.database)] == [(letter.id, 9, 7)]


def test_a_message_that_is_refused_stores_none_of_its_entries(intake: Intake) -> None:
    assert intake.take(Delivery(source="amqp", body=body("m", "a", " "))) is Result.DEAD
    with intake.database.read() as connection:
        assert connection.execute(select(entries.c.id)).all() == []


def test_a_registry_that_cannot_be_loaded_is_waited_for_a_number_of_times(intake: Intake) -> None:
    works = sys.modules["ledger_works"].works
    sys.modules["ledger_works"].works = None  # type: ignore[attr-defined]
    for number in range(1, MOST_DELIVERIES):
        assert intake.take(Delivery(source="redis", body=body("m", "a"), number=number)) is Result.LATER
    assert listed(intake.database) == []
    assert intake.take(Delivery(source="redis", body=body("m", "a"), number=MOST_DELIVERIES)) is Result.DEAD
    assert listed(intake.database)[0].reason == "registry_unavailable"
    sys.modules["ledger_works"].works = works  # type: ignore[attr-defined]
    assert intake.take(Delivery(source="redis", body=body("m", "a"), number=MOST_DELIVERIES)) is Result.TAKEN


def test_a_message_that_was_taken_is_known_though_its_registry_is_gone(intake: Intake) -> None:
    assert intake.take(Delivery(source="redis", body=body("m", "a"))) is Result.TAKEN
    intake._loaded.clear()
    sys.modules["ledger_works"].works = None  # type: ignore[attr-defined]
    assert intake.take(Delivery(source="redis", body=body("m", "a"))) is Result.REDELIVERED


def test_a_server_that_is_away_for_a_moment_is_no_fault_of_the_message(intake: Intake) -> None:
    clock = intake.clock

    def away() -> float:
        raise redis.ConnectionError("gone")

    intake.clock = away
    with pytest.raises(redis.ConnectionError):
        intake.take(Delivery(source="redis", body=body("m", "a")))
    assert listed(intake.database) == []
    intake.clock = clock
    assert intake.take(Delivery(source="redis", body=body("m", "a"))) is Result.TAKEN


def test_the_vault_keeps_no_more_than_its_share(intake: Intake) -> None:
    intake.letters.most_kept = 1_000
    for number in range(30):
        intake.take(Delivery(source="redis", body=f"{number:0100}{{".encode()))
    kept = [letter.kept for letter in listed(intake.database)]
    assert len(kept) == 30
    assert 800 < sum(kept) <= 1_000

"""Bytes that claim to be messages of other systems: taken whole, or refused by a code that quotes nothing."""

from __future__ import annotations

import json
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from sqlalchemy import select

from remand import Groups, Produced, Registry, producer
from remand_tasks.registry.intake import Delivery, Intake, Limits, Message, Result, parse
from remand_tasks.registry.letters import LONGEST_DETAIL, Letters, Reason, Refusal, listed
from remand_tasks.registry.store import Registries
from remand_tasks.registry.tables import dead, entries, messages
from remand_tasks.state.engine import Database
from remand_tasks.state.migrate import upgrade
from remand_tasks.state.vault import KeyRing, Vault
from remand_workers.embedded import Embedded
from remand_workers.settings import Settings

MARKER = "Zqintake8822x"
LIMITS = Limits(size=3_000, entries=5)


class Work(BaseModel):
    """An entry with types of which JSON has none."""

    title: str
    year: int | None = None
    more: dict[str, Any] = {}


@producer(version="1", output=Groups)
def nothing(context: Any, correction: Any) -> Produced:
    """Never called."""
    return Produced(Groups(groups=[]))


def title(work: Work) -> str:
    """The title."""
    return work.title


works = Registry("works", Work, version="1", key=title, text=title, proposer=nothing)


@pytest.fixture(scope="module")
def intake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Intake]:
    folder = tmp_path_factory.mktemp("intake")
    module = types.ModuleType("hostile_works")
    module.works = works  # type: ignore[attr-defined]
    sys.modules["hostile_works"] = module
    database = Database(f"sqlite:///{folder / 'ledger.db'}")
    upgrade(database)
    Registries(database).register(works, "hostile_works:works", 0.0)
    with Embedded(Settings(_env_file=None, home=folder / "services")) as embedded:
        assert embedded.settings.vault_url is not None
        client = redis.Redis.from_url(embedded.settings.vault_url)
        vault = Vault(client, KeyRing.parse(KeyRing.generate()))
        letters = Letters(database=database, vault=vault, clock=time.time, lifetime=600)
        yield Intake(database=database, letters=letters, clock=time.time, limits=LIMITS)
        client.close()
    database.dispose()
    del sys.modules["hostile_works"]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
titles = st.sampled_from(["a", "b", f"{MARKER} c", "", " ", "\0", "x" * 300]) | st.text(max_size=20)
works_sent = st.fixed_dictionaries({"title": titles}, optional={"year": plain, "more": plain})
good = st.fixed_dictionaries(
    {
        "id": st.text(max_size=30) | st.just(MARKER * 40),
        "registry": st.sampled_from(["works", "nowhere", MARKER + "/"]),
    },
    optional={
        "entries": st.lists(works_sent, max_size=6),
        "reconcile": st.booleans() | plain,
        MARKER: plain,
    },
)  # fmt: skip
near = st.one_of(good, plain, st.fixed_dictionaries({}, optional=dict.fromkeys(Message.model_fields, plain)))


def spoiled(body: bytes) -> st.SearchStrategy[bytes]:
    """`body` with something cut out and something put in, or as it is."""
    place = st.integers(0, len(body))
    cut = st.tuples(place, place, st.binary(max_size=4))
    return st.just(body) | cut.map(lambda at: body[: min(at[:2])] + at[2] + body[max(at[:2]) :])


bodies = st.one_of(
    st.binary(max_size=200),
    near.map(lambda value: json.dumps(value).encode()).flatmap(spoiled),
    near.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.integers(1, 4_000).map(lambda depth: b"[" * depth),
    st.integers(1, 400).map(
        lambda depth: b'{"id": "m", "registry": "works", "entries": [{"title": "a", "more": '
        + b'{"a":' * depth + b"1" + b"}" * depth + b"}]}"
    ),
)  # fmt: skip

EXAMPLES = [
    b"",
    b"NaN",
    b"\xef\xbb\xbf" + b'{"id": "bom", "registry": "works", "reconcile": true}',
    b'{"id": "m", "id": "n", "registry": "nowhere", "registry": "works", "reconcile": true}',
    b'{"id": "\\ud800", "registry": "works", "reconcile": true}',
    b'{"id": "m\\u0000", "registry": "works", "reconcile": true}',
    b'{"id": "m", "registry": "works", "entries": [{"title": "a", "more": {"x": ' + b"9" * 2_000 + b"}}]}",
    b'{"id": "m", "registry": "works", "entries": [{"title": "a", "more": {"x": -1e999}}]}',
    b'{"id": "m", "registry": "works", "entries": [{"title": "a\\u0000b"}]}',
    b'{"id": "m", "registry": "works", "entries": {"title": "a"}}',
    b"[" * 100_000,
]


@settings(max_examples=400, deadline=None)
@given(body=bodies)
def test_bytes_are_a_message_or_a_reason_that_quotes_nothing(body: bytes) -> None:
    check_parsed(body)


@pytest.mark.parametrize("body", EXAMPLES, ids=range(len(EXAMPLES)))
def test_known_troublemakers_are_a_message_or_a_reason(body: bytes) -> None:
    check_parsed(body)


def test_a_byte_order_mark_is_no_part_of_the_message() -> None:
    found = parse(b"\xef\xbb\xbf" + b'{"id": "bom", "registry": "works", "reconcile": true}', LIMITS)
    assert isinstance(found, Message)


def check_parsed(body: bytes) -> None:
    found = parse(body, LIMITS)
    if isinstance(found, Message):
        assert len(found.entries) <= LIMITS.entries
        assert found.id.isprintable()
        assert found.entries or found.reconcile
        assert len(body) <= LIMITS.size
    else:
        assert MARKER not in found.detail
        assert len(found.detail) <= LONGEST_DETAIL
        assert found.message_id.isprintable()
        assert len(found.message_id) <= 200
        assert found.registry.isprintable()
        assert found.reason in (Reason.NOT_JSON, Reason.SCHEMA, Reason.TOO_LARGE)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies)
def test_whatever_comes_is_taken_or_buried_and_a_second_time_changes_nothing(
    body: bytes, intake: Intake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    first = intake.take(Delivery(source="redis", body=body))
    before = state(intake)
    second = intake.take(Delivery(source="redis", body=body))
    assert (first, second) in {
        (Result.TAKEN, Result.REDELIVERED),
        (Result.REDELIVERED, Result.REDELIVERED),
        (Result.DEAD, Result.DEAD),
    }
    assert state(intake) == before
    assert MARKER not in caplog.text
    for letter in listed(intake.database, limit=1):
        assert letter.reason != Reason.ERROR, letter.detail


def state(intake: Intake) -> list[Any]:
    """All that must not change."""
    with intake.database.read() as connection:
        said = [connection.execute(select(table)).all() for table in (messages, entries)]
        letters = connection.execute(select(dead.c.id, dead.c.reason, dead.c.state, dead.c.kept)).all()
    return [*said, letters]


def test_a_refusal_shows_no_word_of_what_it_refuses() -> None:
    body = json.dumps(
        {"id": "m", "registry": "works", "entries": [{MARKER: [MARKER]}, MARKER], MARKER: MARKER}
    )
    found = parse(body.encode(), LIMITS)
    assert isinstance(found, Refusal)
    assert MARKER not in repr(found)
    whole = parse(
        json.dumps({"id": "m", "registry": "works", "entries": [{"title": MARKER}]}).encode(), LIMITS
    )
    assert MARKER not in f"{whole!r} {whole}"
    assert MARKER not in repr(Delivery(source="redis", body=body.encode()))


def test_a_ledger_that_cannot_be_used_is_no_fault_of_the_message(tmp_path: Path, intake: Intake) -> None:
    from sqlalchemy.exc import OperationalError

    broken = Database(f"sqlite:///{tmp_path / 'nowhere' / 'ledger.db'}")
    letters = Letters(database=broken, vault=intake.letters.vault, clock=time.time, lifetime=600)
    away = Intake(database=broken, letters=letters, clock=time.time, limits=LIMITS)
    for body in (b'{"id": "away", "registry": "works", "reconcile": true}', b"{"):
        with pytest.raises(OperationalError):
            away.take(Delivery(source="redis", body=body))
    broken.dispose()

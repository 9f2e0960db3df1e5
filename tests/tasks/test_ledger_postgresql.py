"""What the ledger needs of PostgreSQL's own locks: there, unlike on SQLite, transactions run beside each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event, text, update

from remand_tasks.state.engine import Database
from remand_tasks.state.ledger import Ledger, Plan
from remand_tasks.state.migrate import upgrade
from remand_tasks.state.rows import Row
from remand_tasks.state.submissions import NewItem, Submissions
from remand_tasks.state.tables import items

NOW = 1_000.0
_WAITING_FOR_A_LOCK = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")


@pytest.fixture
def database(postgresql_url: str) -> Iterator[Database]:
    """An empty ledger on a real PostgreSQL."""
    made = Database(postgresql_url)
    upgrade(made)
    yield made
    made.dispose()


def waiting_alone(database: Database, run: str) -> Row:
    """The one item of a run, which waits until it can be alone."""
    submissions = Submissions(database)
    submissions.begin(
        run, target="shop:pipeline", pipeline="shop", version="1", fingerprint="f" * 64, window=4, key_path=None,
        reuse=True, now=NOW,
    )  # fmt: skip
    submissions.feed(run, [NewItem("0", "{}", "a" * 64)], NOW)
    ledger = Ledger(database)
    ledger.admit(run, Plan(("f" * 64,), (3_600.0,)), NOW)
    with database.write() as connection:
        connection.execute(
            update(items).where(items.c.run_id == run).values(alone=1, state="waiting", due_at=NOW)
        )
    (row,) = ledger.due(NOW, 10, only=run)
    return row


def test_of_two_runs_one_item_at_a_time_is_alone(database: Database) -> None:
    rows = [waiting_alone(database, run) for run in ("r", "s")]
    about_to_wake: list[str] = []
    both_are_somewhere = threading.Event()

    @event.listens_for(database.engine, "before_cursor_execute")
    def hold(_: Any, __: Any, statement: str, parameters: Any, *rest: Any) -> None:
        """Keep whoever is about to wake its item until the other one is as far or waits for it."""
        if not (statement.startswith("UPDATE items") and parameters.get("state") == "in_flight"):
            return
        about_to_wake.append(statement)
        while len(about_to_wake) < 2 and not both_are_somewhere.wait(0.01):
            with database.engine.connect() as connection:
                if connection.execute(_WAITING_FOR_A_LOCK).scalar_one():
                    both_are_somewhere.set()

    ledger = Ledger(database)
    with ThreadPoolExecutor(2) as pool:
        woken = [row for row in pool.map(lambda row: ledger.wake(row, NOW), rows) if row is not None]
    assert len(woken) == 1
    pushed = ledger.due(NOW + 2, 10)
    assert [row.run_id for row in pushed] == [row.run_id for row in rows if row.run_id != woken[0].run_id]


def test_items_that_are_not_alone_wake_without_waiting_for_each_other(database: Database) -> None:
    waiting_alone(database, "r")
    with database.write() as connection:
        connection.execute(update(items).values(alone=0))
    ledger = Ledger(database)
    (row,) = ledger.due(NOW, 10)
    said: list[str] = []

    @event.listens_for(database.engine, "before_cursor_execute")
    def listen(_: Any, __: Any, statement: str, *rest: Any) -> None:
        said.append(statement)

    assert ledger.wake(row, NOW) is not None
    assert said
    assert not any("advisory" in statement for statement in said)

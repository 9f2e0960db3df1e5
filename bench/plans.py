"""`python -m bench.plans [--ledger URL] [--items N]`: how a ledger of a million items answers the hot queries.

Without a URL it fills a SQLite file of its own. Name an empty PostgreSQL database to see its plans.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, insert, text

from remand_tasks.state import ledger, queries
from remand_tasks.state.engine import Database
from remand_tasks.state.migrate import upgrade
from remand_tasks.state.retention import Retention, Which
from remand_tasks.state.submissions import NewItem, _pending
from remand_tasks.state.tables import items, runs

OPEN_ITEMS = 256

STATEMENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "what is due": (ledger._DUE, {"now": 1e9, "limit": 200, "leave": ["none"]}),
    "what is due in one run": (
        ledger._DUE_IN_RUN,
        {"now": 1e9, "limit": 200, "leave": ["none"], "run_id": "r0"},
    ),
    "how many are open": (ledger._OPEN_COUNT, {"run_id": "r0"}),
    "next to admit": (ledger._PENDING, {"run_id": "r0", "room": 16}),
    "another one alone": (ledger._OTHER_ALONE, {}),
    "runs that have not ended": (ledger._UNENDED, {}),
    "to cancel": (ledger._TO_CANCEL, {"run_id": "r0", "limit": 500}),
    "anything open": (ledger._ANY_UNCLOSED, {"run_id": "r0"}),
    "an item with its run": (ledger._EXECUTION, {"run_id": "r0", "seq": 1}),
    "where a run stands": (queries._GROUPS, {"run_id": "r0"}),
}


def fill(database: Database, count: int) -> None:
    """Ten runs, nearly all of it closed, as an old ledger is."""
    each = count // 10
    with database.write() as connection:
        for number in range(10):
            connection.execute(insert(runs), _run(f"r{number}", ended=number > 0))
    for number in range(10):
        for start in range(0, each, 20_000):
            rows = [
                {**_pending(f"r{number}", seq, NewItem(str(seq), "", "")), **_state(number, seq, each)}
                for seq in range(start, min(start + 20_000, each))
            ]
            with database.write() as connection:
                connection.execute(insert(items), rows)
    if not database.sqlite:  # As its autovacuum does in time. Nobody does it on SQLite.
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))


def _run(name: str, *, ended: bool) -> dict[str, Any]:
    return {
        "id": name, "target": "m:p", "pipeline": "p", "version": "1", "fingerprint": "f", "window": OPEN_ITEMS,
        "status": "succeeded" if ended else "running", "reuse": 1, "input_done": 1, "feeder_until": 0.0,
        "created_at": 0.0, "ended_at": 1.0 if ended else None,
    }  # fmt: skip


def _state(run: int, seq: int, each: int) -> dict[str, Any]:
    if run == 0 and seq >= each - OPEN_ITEMS:
        return {"state": "in_flight", "due_at": 1e6 + seq, "status": None, "closed_at": None}
    if run == 0 and seq >= each // 2:
        return {"state": "pending", "due_at": 0.0, "status": None, "closed_at": None}
    return {"state": "closed", "due_at": 0.0, "status": "accepted", "closed_at": float(seq)}


def _purges(database: Database) -> dict[str, tuple[Any, dict[str, Any]]]:
    chosen = Retention(database)._chosen
    return {
        "to purge by age": (chosen(Which(before=1e9)).limit(100), {}),
        "to purge of a run": (chosen(Which(run_id="r1")).limit(100), {}),
    }


def plan(connection: Connection, asked: list[tuple[str, Any]], *, sqlite: bool) -> list[str]:
    """The database's own words about the statement that was asked last."""
    statement, given = asked[-1]
    explain = "EXPLAIN QUERY PLAN " if sqlite else "EXPLAIN (COSTS OFF) "
    return [str(row[-1]) for row in connection.exec_driver_sql(explain + statement, given)]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.plans", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--ledger", help="an empty database; by default a SQLite file that is deleted afterwards"
    )
    parser.add_argument("--items", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Database(given.ledger or f"sqlite:///{Path(folder, 'ledger.db')}")
        upgrade(database)
        fill(database, given.items)
        asked: list[tuple[str, Any]] = []

        @event.listens_for(database.engine, "before_cursor_execute")
        def listen(_connection: Any, _cursor: Any, statement: str, given: Any, *_: Any) -> None:
            asked.append((statement, given))

        with database.read() as connection:
            for name, (statement, values) in {**STATEMENTS, **_purges(database)}.items():
                connection.execute(statement, values).all()
                began = time.perf_counter()
                connection.execute(statement, values).all()
                took = 1_000 * (time.perf_counter() - began)
                print(f"{name} ({took:.1f} ms)")
                for line in plan(connection, asked, sqlite=database.sqlite):
                    print(f"    {line}")
        database.dispose()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""An error of the database says which statement failed, and nothing of what was written with it."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from privacy_kit.texts import kinds_in, planted
from sqlalchemy import Connection, insert, text
from sqlalchemy.exc import DataError, IntegrityError, OperationalError, StatementError

from remand_tasks.state.engine import Database
from remand_tasks.state.migrate import upgrade
from remand_tasks.state.tables import payloads
from remand_workers.surfaces import Kind

ROW: dict[str, Any] = {"run_id": "r", "seq": 0, "name": "input", "body": planted(Kind.INPUT)}


def shows_nothing(error: StatementError) -> None:
    """No form of the error holds a text: printed, logged with its causes, attributes, pickled."""
    causes = [error, error.__cause__, error.orig]
    shown = [form for each in causes for form in (str(each), repr(each), repr(vars(each)))]
    shown += traceback.format_exception(error)
    assert not kinds_in("\n".join(shown).encode())
    assert not kinds_in(pickle.dumps(causes))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_parameters_are_in_no_form_of_the_error(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'ledger.db'}")
    with pytest.raises(OperationalError) as caught, database.write() as connection:
        connection.execute(text("INSERT INTO nowhere VALUES (:body)"), {"body": planted(Kind.INPUT)})
    database.dispose()
    assert "INSERT INTO nowhere" in str(caught.value)
    shows_nothing(caught.value)


def without_a_name(connection: Connection) -> None:
    """PostgreSQL says: Failing row contains (...)."""
    connection.execute(insert(payloads), {**ROW, "name": None})


def twice(connection: Connection) -> None:
    """PostgreSQL says: Key (...)=(...) already exists."""
    connection.execute(insert(payloads), [{**ROW, "name": planted(Kind.INPUT)[:40]}] * 2)


def no_number(connection: Connection) -> None:
    """PostgreSQL says: invalid input syntax for type integer: "..."."""
    connection.execute(text("SELECT CAST(:body AS integer)"), ROW)


@pytest.mark.parametrize(
    ("write", "kind", "named"),
    [
        (without_a_name, IntegrityError, "23502 payloads name"),
        (twice, IntegrityError, "23505 payloads pk_payloads"),
        (no_number, DataError, "22P02"),
    ],
)
def test_rows_that_postgresql_quotes_are_in_no_form_of_the_error(
    postgresql_url: str, write: Callable[[Connection], None], kind: type[StatementError], named: str
) -> None:
    database = Database(postgresql_url)
    upgrade(database)
    with pytest.raises(kind) as caught, database.write() as connection:
        write(connection)
    database.dispose()
    assert named in str(caught.value)
    shows_nothing(caught.value)

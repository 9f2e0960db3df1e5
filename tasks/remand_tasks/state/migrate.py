"""Brings a ledger's tables to what this version needs, and says when somebody else has to."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import OperationalError

from .engine import MIGRATING, Database, LedgerError, one_by_one


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def head() -> str:
    """The revision that this version needs."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    assert found is not None
    return found


def current(database: Database) -> str | None:
    """The revision that the ledger has, `None` for an empty database. Raises `LedgerError` if it cannot be reached."""
    try:
        with database.read() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    except OperationalError as error:
        kind = type(error.orig).__name__ if error.orig is not None else "OperationalError"
        raise LedgerError(f"REMAND_LEDGER_URL: the database cannot be reached or opened ({kind})") from None


def upgrade(database: Database) -> bool:
    """Run the migrations that are missing. True where there were any. Safe to run from many processes at once."""
    if current(database) == head():
        return False
    config = _config()
    with database.write() as connection:
        one_by_one(database, connection, MIGRATING)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return True


def prepare(database: Database, *, migrate: bool) -> None:
    """Make sure that the ledger fits: upgrade an embedded one, refuse another that is behind or ahead.

    Raises `LedgerError` saying what to do.
    """
    if migrate:
        upgrade(database)
        return
    has, needs = current(database), head()
    if has != needs:
        problem = "has no tables yet" if has is None else f"is at revision {has}, this version needs {needs}"
        raise LedgerError(f"the ledger {problem}; run `remand migrate`")

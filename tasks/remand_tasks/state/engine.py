"""The one module that knows one database from another: engines, locking reads, inserts that may meet a row."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Insert, Select, Table, create_engine, event, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, StatementError

from remand.errors import RemandError

_WRITING = "remand_writing"
LONGEST_PAUSE = 15
"""Seconds that a transaction may do nothing before PostgreSQL ends it. None is held across Redis, a send or a call."""

MIGRATING, WAKING_ALONE = 72656, 72657
"""What `one_by_one` lets a single transaction of a ledger do at a time: keys of PostgreSQL's advisory locks."""


class LedgerError(RemandError):
    """The ledger cannot be used. The text says which setting to mend; it never shows a password."""


class Database:
    """An engine whose transactions are short and, on SQLite, never fight over the write lock.

    On SQLite each writing transaction takes the lock at once (`BEGIN IMMEDIATE`), behind one lock a process: a
    transaction that begins by reading cannot wait for the lock later, it fails. Parameters and rows are kept out of
    errors and statement logs: inputs and values are among them.
    """

    def __init__(self, url: str, *, pool_size: int = 20) -> None:
        try:
            parsed = make_url(url)
        except ArgumentError:
            raise LedgerError(
                "REMAND_LEDGER_URL is not a database URL, such as sqlite:////path/ledger.db"
            ) from None
        self.sqlite = parsed.get_backend_name() == "sqlite"
        if not self.sqlite and parsed.get_backend_name() != "postgresql":
            raise LedgerError("REMAND_LEDGER_URL: the ledger runs on sqlite or postgresql")
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        try:
            if self.sqlite:
                if _in_memory(parsed):
                    raise LedgerError(
                        "REMAND_LEDGER_URL: a ledger in memory would end with its process; "
                        "name a file, such as sqlite:////path/ledger.db"
                    )
                self.engine = create_engine(
                    parsed,
                    connect_args={"timeout": 60, "check_same_thread": False},
                    pool_size=pool_size,
                    max_overflow=100,
                    hide_parameters=True,
                )
                _prepare_sqlite(self.engine)
            else:
                self.engine = create_engine(
                    parsed, pool_size=pool_size, max_overflow=30, pool_pre_ping=True, hide_parameters=True
                )
                _prepare_postgresql(self.engine)
        except (NoSuchModuleError, ModuleNotFoundError):
            raise LedgerError(
                "REMAND_LEDGER_URL: the PostgreSQL driver is missing; install remand[postgres]"
            ) from None
        event.listen(self.engine, "handle_error", _forget_contents)
        self._lock: Any = threading.Lock() if self.sqlite else _NoLock()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading."""
        with self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One writing transaction, committed at the end. Never held across Redis or a send."""
        with self._lock, self.engine.connect() as connection:
            connection.execution_options(**{_WRITING: True})
            with connection.begin():
                yield connection

    def insert_or_ignore(self, table: Table) -> Insert:
        """An insert that leaves a row alone that is there already."""
        insert = sqlite.insert(table) if self.sqlite else postgresql.insert(table)
        return insert.on_conflict_do_nothing()

    def dispose(self) -> None:
        """Close every connection: after a fork, and at the end."""
        self.engine.dispose()


class _NoLock:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _in_memory(url: URL) -> bool:
    return not url.database or ":memory:" in url.database or url.query.get("mode") == "memory"


def _forget_contents(context: ExceptionContext) -> None:
    """Leave codes and names in an error: parameters are an attribute of it, and PostgreSQL quotes rows and values."""
    error = context.sqlalchemy_exception
    if not isinstance(error, StatementError):
        return
    error.params = None
    cause = error.orig
    said = getattr(cause, "diag", None)
    if cause is None or said is None or said.sqlstate is None:
        return
    names = (said.sqlstate, said.table_name, said.column_name, said.constraint_name)
    text = " ".join(name for name in names if name)
    # In place, for it is the cause in every traceback, and the words are in it a second time.
    type(cause).__init__(cause, text)
    error.args = (f"({type(cause).__module__}.{type(cause).__name__}) {text}",)


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=60000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get(_WRITING, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _prepare_postgresql(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        # A worker that freezes, or whose machine vanishes, in the middle of a transaction keeps its row locks, and a
        # run's row with them: nobody could close anything of that run until the network gives the connection up.
        with connection.cursor() as cursor:
            cursor.execute(f"SET idle_in_transaction_session_timeout = '{LONGEST_PAUSE}s'")
        connection.commit()


def locked(statement: Select[Any], *, share: bool = False) -> Select[Any]:
    """`statement` locking the rows it reads, where the database locks rows; SQLite ignores it."""
    return statement.with_for_update(read=share)


def one_by_one(database: Database, connection: Connection, key: int) -> None:
    """Wait until no other transaction is past this with the same key; this one is until it ends.

    On SQLite a writing transaction is the only one anyway.
    """
    if not database.sqlite:
        connection.execute(select(func.pg_advisory_xact_lock(key)))

"""What tests of several folders share: a real PostgreSQL, where one can be had."""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_CHAOS = str(Path(__file__).resolve().parent / "chaos")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Callable[[], str]]:
    """Makes an empty database on a PostgreSQL of this test session and gives its URL. Skips where there is none."""
    if _CHAOS not in sys.path:
        sys.path.insert(0, _CHAOS)
    import psycopg
    from chaos_kit.services import Missing, Postgres, new_folder

    folder = new_folder("postgres")
    try:
        made = Postgres(folder)
        made.server.start()
    except Missing as error:
        shutil.rmtree(folder)
        pytest.skip(f"NOT PROVED on PostgreSQL: {error}")

    def empty() -> str:
        name = f"ledger_{uuid.uuid4().hex}"
        with psycopg.connect(made.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return made.url.replace("/postgres?", f"/{name}?")

    try:
        yield empty
    finally:
        made.server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgresql_url(postgresql: Callable[[], str]) -> str:
    """An empty database on a real PostgreSQL."""
    return postgresql()

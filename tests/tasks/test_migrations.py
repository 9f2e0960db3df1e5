"""What the migrations make is what the tables say, on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

import remand_tasks.registry.tables  # noqa: F401 - among the metadata
from remand_tasks.state.engine import Database
from remand_tasks.state.migrate import upgrade
from remand_tasks.state.tables import metadata


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_migrations_make_the_tables_that_the_code_expects(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db" if kind == "sqlite" else request.getfixturevalue("postgresql_url")
    database = Database(url)
    upgrade(database)
    with database.read() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    database.dispose()
    assert differences == []

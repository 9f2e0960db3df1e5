"""Settings and the ledger as commands need them: services of one's own, embedded ones, or only the ledger's file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from remand_tasks.registry.reading import RegistryQueries
from remand_tasks.state.engine import Database
from remand_tasks.state.ledger import RunInfo
from remand_tasks.state.migrate import prepare
from remand_tasks.state.queries import Queries

from ..embedded import Embedded, ledger_url, running
from ..settings import Settings, variable
from .failures import UsageError


def read_settings(**given: Any) -> Settings:
    """The settings, with what the command line gave in place of theirs. Also makes the model's known to pipelines."""
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    export_model(settings)
    return settings


def export_model(settings: Settings) -> None:
    """Put the model's settings into the environment, where producers and judges look for them.

    They may have come from `.env` or the command line.
    """
    if settings.model is not None:
        os.environ[variable("model")] = settings.model
    if settings.model_base_url is not None:
        os.environ[variable("model_base_url")] = settings.model_base_url
    if settings.model_api_key is not None:
        os.environ[variable("model_api_key")] = settings.model_api_key.get_secret_value()


def attached(settings: Settings, stack: ExitStack) -> Settings:
    """Settings with every address filled in: as given, or of the embedded services that run in the home folder.

    Raises `UsageError` where none do. The services stay until `stack` is closed.
    """
    if not settings.embedded:
        return settings
    if running(settings) is None:
        raise UsageError(
            f"no services run in {str(settings.home)!r}: start them with `remand up` in another terminal, "
            "or name a broker in REMAND_BROKER_URL"
        )
    return stack.enter_context(Embedded(settings)).settings


@contextmanager
def ledger(settings: Settings, *, create: bool = False) -> Iterator[Queries]:
    """The ledger alone: no server has to run. With `create` an embedded one is made where there is none."""
    url = settings.ledger_url
    if url is None:
        if not settings.embedded:
            settings.require_services()
        file = settings.home / "ledger.db"
        if create:
            settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        elif not file.exists():
            raise UsageError(f"there is no ledger in {str(settings.home)!r} yet: nothing was run here")
        url = ledger_url(settings.home)
    database = Database(url)
    try:
        prepare(database, migrate=database.sqlite)
        yield Queries(database)
    finally:
        database.dispose()


@contextmanager
def registries(home: Path | None) -> Iterator[tuple[RegistryQueries, Settings]]:
    """The registries of the ledger alone, and the settings."""
    settings = read_settings(home=home)
    with ledger(settings) as queries:
        yield RegistryQueries(queries.database), settings


def run_named(queries: Queries, run: str | None) -> RunInfo:
    """The run with this id, or that it alone begins with; the latest one without."""
    if run is None:
        latest = queries.runs(limit=1)
        if not latest:
            raise UsageError("there are no runs yet; `remand run` makes one")
        return latest[0]
    found = queries.run(run)
    if found is None:
        raise UsageError(f"there is no run {run!r}, or several begin so; `remand status` lists them")
    return found

"""Registries from code: making them known, finding the code of one, asking for a reconciliation and waiting for it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from remand.pipeline import load_registry
from remand.registry import Registry
from remand_tasks.registry.reading import RegistryQueries, Standing
from remand_tasks.registry.store import Job, Registries, RegistryError, RegistryRow
from remand_tasks.state.engine import Database


def code_of(row: RegistryRow) -> Registry[Any]:
    """The code of a registry that is known. Raises `PipelineError`, and `RegistryError` where it is another one."""
    registry = load_registry(row.target)
    if registry.name != row.name:
        raise RegistryError(
            f"{row.target!r} holds registry {registry.name!r} now, and not {row.name!r}; say where it is with "
            "`remand registry add MODULE:REGISTRY`"
        )
    return registry


def same_version(row: RegistryRow) -> Registry[Any]:
    """The code of a registry in the version that the ledger knows. Raises as `code_of`, and for another version."""
    registry = code_of(row)
    if registry.version != row.version:
        raise RegistryError(
            f"registry {row.name!r} is known in version {row.version!r}, and {row.target!r} has version "
            f"{registry.version!r}; make it known with `remand registry add {row.target}`"
        )
    return registry


def known(database: Database, name_or_target: str, now: float) -> tuple[Registry[Any], RegistryRow]:
    """A registry with its code, by its name or by the place of its code; made known as it is now.

    Raises `RegistryError` and `PipelineError`.
    """
    registries = Registries(database)
    row = registries.find(name_or_target)
    if row is not None:
        registry, target = code_of(row), row.target
    elif ":" in name_or_target:
        registry, target = load_registry(name_or_target), name_or_target
        row = registries.find(registry.name)
    else:
        raise RegistryError(f"there is no registry {name_or_target!r}; see `remand registry list`")
    if row is None or row.fingerprint != registry.fingerprint:
        row = registries.register(registry, target, now)
    return registry, row


def request(database: Database, name: str, now: float) -> int | None:
    """Ask for a reconciliation if there is anything to reconcile. The number of the request that answers it.

    One that was asked for and has not begun, or a job in progress, is not asked for again.
    """
    standing = RegistryQueries(database).standing(name)
    if standing.job is not None:
        return standing.job.request
    if standing.row.wanted > standing.row.served:
        return standing.row.wanted
    if standing.settled:
        return None
    return Registries(database).want(name, now)


@dataclass(slots=True)
class Reconciliation:
    """A reconciliation that was asked for. `request` is `None` where there was nothing to reconcile."""

    database: Database
    registry: str
    request: int | None

    def standing(self) -> Standing:
        """Where the registry stands now."""
        return RegistryQueries(self.database).standing(self.registry)

    def done(self) -> bool:
        """Whether it has ended."""
        row = Registries(self.database).find(self.registry)
        return self.request is None or (row is not None and not row.job and row.served >= self.request)

    def wait(self, timeout: float | None = None, *, poll: float = 0.1) -> Job | None:
        """Wait for its end. The latest job that answered it. Raises `TimeoutError` after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            if until is not None and time.monotonic() > until:
                raise TimeoutError(
                    f"registry {self.registry!r} was not reconciled within {timeout:g} seconds"
                )
            time.sleep(poll)
        if self.request is None:
            return None
        jobs = Registries(self.database).jobs(self.registry)
        return next((job for job in jobs if job.request >= self.request), None)

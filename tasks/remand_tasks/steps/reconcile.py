"""What is done for a registry when a message, the pulse or a closed block asks for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from remand.pipeline import Pipeline

from ..runtime import Runtime
from ..state.ledger import RunInfo

if TYPE_CHECKING:
    from ..registry.reconcile import Reconciler

log = logging.getLogger("remand.tasks")


def reconciler_of(runtime: Runtime) -> Reconciler:
    """What takes registries on in this process, made on first use: it needs numerical libraries that nothing else does.

    Raises `ModuleNotFoundError` saying what to install where they are missing.
    """
    if runtime.reconciler is None:
        try:
            from ..registry.reconcile import Reconciler
        except ModuleNotFoundError as error:
            log.error(
                "registries cannot be reconciled here: %s is missing; install remand[registry]", error.name
            )
            raise

        def pipeline_of(run: RunInfo) -> Pipeline | None:
            bound = runtime.pipelines.of(run)
            return None if bound is None else bound.pipeline

        runtime.reconciler = Reconciler(
            runtime.ledger.database,
            runtime.pipelines.registry,
            pipeline_of,
            runtime.attempts.now,
            lease=runtime.times.planning,
        )
    return runtime.reconciler


def run(runtime: Runtime, name: str) -> None:
    """Do what can be done for a registry now. An unknown name does nothing."""
    if runtime.registries.find(name) is not None:
        reconciler_of(runtime).advance(name)

"""`worker`: which queues it serves, and where its services are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from remand.pipeline import load_target
from remand_tasks.routing import ALONE, COORDINATE, PRODUCE, RECONCILE, VALIDATE

from ..process import run_worker
from ..settings import Settings
from .context import attached

QUEUES_OF = {
    "all": (PRODUCE, VALIDATE, COORDINATE, RECONCILE, ALONE),
    "coordinator": (COORDINATE, RECONCILE),
    "producer": (PRODUCE, ALONE),
    "validator": (VALIDATE,),
}


def queues_for(role: str, targets: Sequence[str]) -> list[str]:
    """The queues of a role; one that validates serves the own queues of the pipelines' validators, too."""
    found = list(QUEUES_OF[role])
    if role in ("all", "validator"):
        for target in targets:
            for stage in load_target(target).stages:
                found += [validator.queue for validator in stage.validators if validator.queue is not None]
    return list(dict.fromkeys(found))


def serve(
    settings: Settings,
    queues: Sequence[str] | None,
    role: str,
    name: str | None,
    pipelines: Sequence[str],
    attend: str | None,
    ready: Callable[[], None] | None,
) -> int:
    """Be a worker until told to stop. The exit status."""
    with ExitStack() as stack:
        settings = attached(settings, stack)
        chosen = list(queues) if queues else queues_for(role, pipelines)
        return run_worker(settings, queues=chosen, name=name, pipelines=pipelines, attend=attend, ready=ready)

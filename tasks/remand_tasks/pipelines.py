"""The pipelines that this process can work for: imported by name, trusted by fingerprint.

A run names its pipeline and the fingerprint it was begun with. A process that cannot reproduce that fingerprint
must not touch the run: its items stay due for one that can, and `misfits` says so to health checks.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any

from remand.errors import PipelineError
from remand.pipeline import Pipeline, load_registry, load_target
from remand.registry import Registry

from .state.ledger import Plan, RunInfo
from .token import Token

log = logging.getLogger("remand.tasks")


@dataclass(frozen=True, slots=True)
class Bound:
    """A run's pipeline in this process."""

    pipeline: Pipeline
    plan: Plan

    @classmethod
    def of(cls, pipeline: Pipeline) -> Bound:
        """Bind `pipeline`."""
        deadlines = tuple(stage.deadline.total_seconds() for stage in pipeline.stages)
        return cls(pipeline, Plan(pipeline.stage_fingerprints, deadlines))


class Pipelines:
    """Loads each pipeline once and remembers which runs it cannot serve."""

    def __init__(self) -> None:
        self._bound: dict[tuple[str, str], Bound | None] = {}
        self._by_run: dict[str, Bound] = {}
        self._misfits: dict[str, str] = {}
        self._registries: dict[str, Registry[Any]] = {}
        self._lock = threading.Lock()

    def of(self, run: RunInfo) -> Bound | None:
        """The pipeline of `run`, or `None` where this process cannot reproduce its fingerprint."""
        found = self._by_run.get(run.id)
        if found is not None:
            return found
        if run.id in self._misfits:
            return None
        with self._lock:
            key = (run.target, run.fingerprint)
            if key not in self._bound:
                self._bound[key] = self._load(run)
            bound = self._bound[key]
            if bound is None:
                self._misfits[run.id] = run.target
            else:
                if len(self._by_run) > 1_000:
                    self._by_run.clear()
                self._by_run[run.id] = bound
            return bound

    def _load(self, run: RunInfo) -> Bound | None:
        try:
            pipeline = load_target(run.target)
        except PipelineError as error:
            log.error(
                "run %s cannot be served here: pipeline %s was refused (%s)",
                run.id,
                run.target,
                error.problem,
            )
            return None
        if pipeline.fingerprint != run.fingerprint:
            log.error(
                "run %s cannot be served here: pipeline %s has another fingerprint than the run was begun with",
                run.id,
                run.target,
            )
            return None
        return Bound.of(pipeline)

    def preload(self, target: str) -> Pipeline:
        """Load a pipeline before any run asks for it. Raises `PipelineError`."""
        pipeline = load_target(target)
        self._bound[(target, pipeline.fingerprint)] = Bound.of(pipeline)
        return pipeline

    def registry(self, target: str) -> Registry[Any]:
        """The registry at `target`, loaded once. Raises `PipelineError`."""
        found = self._registries.get(target)
        if found is None:
            found = self._registries[target] = load_registry(target)
        return found

    @property
    def misfits(self) -> dict[str, str]:
        """Runs that this process leaves to others, with their pipelines' names."""
        return dict(self._misfits)

    def stage_name(self, token: Token) -> str:
        """The name of the token's stage, its number where this process does not know the run yet."""
        bound = self._by_run.get(token.run)
        if bound is None or token.stage >= len(bound.pipeline.stages):
            return str(token.stage)
        return bound.pipeline.stages[token.stage].name

    def describe(self, token: Token) -> str:
        """A token in words for people: pipeline, item number, stage, attempt out of how many."""
        bound = self._by_run.get(token.run)
        if bound is None or token.stage >= len(bound.pipeline.stages):
            return f"item {token.seq:06d} stage {token.stage} attempt {token.attempt}"
        stage = bound.pipeline.stages[token.stage]
        return (
            f"{bound.pipeline.name} {token.seq:06d} {stage.name} attempt {token.attempt}/{stage.retries + 1}"
        )

"""What the tasks stand on, wired once a process and passed inward."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import redis

from .faults import point
from .pipelines import Bound, Pipelines
from .registry.store import Registries
from .renewal import Renewal
from .state.attempts import Attempts
from .state.ledger import Ledger
from .state.rows import Row, Step
from .state.vault import Vault

if TYPE_CHECKING:
    from .registry.reconcile import Reconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds. A renewal is at most a third of a claim; a claim ends hard `grace` after its call's deadline."""

    claim: float = 30.0
    renewal: float = 10.0
    grace: float = 15.0
    dispatch_lease: float = 10.0
    dispatch_longest: float = 300.0
    planning: float = 120.0
    """How long a planner of a registry is thought alive without a word of it."""
    runs_read: float = 30.0
    """How often runs are looked for that ended elsewhere and feed a registry."""
    pulse: float = 1.0
    retention: float | None = None
    """How long items of ended runs are kept; `None` for ever."""
    after_deadline: float = 3600.0
    """How long records and vault entries outlive an item's deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Bounds on what no budget pays for."""

    recoveries: int = 3
    reopens: int = 8
    starts: int = 5
    due_at_once: int = 200
    cancelled_at_once: int = 500
    purged_at_once: int = 100


class Sender(Protocol):
    """Sends what is owed. A message is a kick: losing or doubling one changes nothing."""

    def send(self, row: Row, bound: Bound, step: Step, asked: Sequence[int] = ()) -> None:
        """Begin the steps of an attempt, from `step` on; with `asked`, visit the groups of those validators alone."""

    def reconcile(self, registry: str) -> None:
        """Have somebody do what can be done for a registry."""


class Observer:
    """Is told what happened, in names that pipelines fix and in codes. The base class keeps nothing."""

    def produced(self, pipeline: str, stage: str, production: str, seconds: float, generations: int) -> None:
        """An attempt of a producer was published."""

    def judged(self, pipeline: str, stage: str, validator: str, verdict: str, seconds: float) -> None:
        """A validator gave a verdict."""

    def decided(self, pipeline: str, stage: str, decision: str) -> None:
        """A decision was committed."""

    def closed(self, pipeline: str, status: str, reason: str | None) -> None:
        """An item closed."""

    def tokens(self, pipeline: str, stage: str, read: int, written: int) -> None:
        """A production or a judgement used tokens."""

    def delivered(self, source: str, result: str) -> None:
        """A message of another system was delivered."""


@dataclass(slots=True, kw_only=True)
class Runtime:
    """Everything that a step needs."""

    ledger: Ledger
    redis: redis.Redis
    vault: Vault
    attempts: Attempts
    pipelines: Pipelines
    renewal: Renewal
    sender: Sender
    times: Times = field(default_factory=Times)
    caps: Caps = field(default_factory=Caps)
    observer: Observer = field(default_factory=Observer)
    jitter: random.Random = field(default_factory=random.Random)
    reconciler: Reconciler | None = None

    @property
    def registries(self) -> Registries:
        """The registries of the ledger."""
        return Registries(self.ledger.database)

    def expiry(self, row: Row, now: float) -> float:
        """Seconds after which an item's record and vault entries go by themselves."""
        return max(row.deadline_at - now, 0.0) + self.times.after_deadline

    def dispatch(self, row: Row, bound: Bound, now: float) -> None:
        """Open the record of a row in flight and send its first step."""
        stage = bound.pipeline.stages[row.stage]
        point("dispatch.opening")
        self.attempts.open(
            row.token,
            since=row.since,
            validators=len(stage.validators),
            ask=row.asked,
            expiry=self.expiry(row, now),
            fallback=row.fallback if row.judging_fallback else None,
        )
        point("dispatch.opened")
        # Only this first message may leave groups out: if the candidate is gone, all of them will have to judge anew.
        self.sender.send(row, bound, "validate" if row.ask or row.judging_fallback else "produce", row.asked)

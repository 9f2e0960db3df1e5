"""What `decide` is told: the item's place in its budgets, the rules of its stage, and one attempt's facts.

Codes and counts only. The coordinator that builds these never reads a response or a finding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .disposition import Policy
from .words import Guidance, Production, Response, Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """One validator's standing on the response under judgement.

    `tries` counts its calls on this response, the one that gave this verdict included.
    """

    verdict: Verdict
    tries: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The aggregate of one attempt: what the producer gave, and one verdict for each validator.

    `verdicts` is in configured order and complete when `production` is `candidate`; otherwise it is empty.
    `fallback` is the rank of the fallback that a retry request offers, or `None` without one.
    """

    production: Production
    verdicts: tuple[Judgement, ...] = ()
    response: Response = Response.ABSENT
    guidance: Guidance = Guidance.ABSENT
    fallback: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a stage allows: its budgets, its producer's capability, its effective policy.

    `execution_retries` has one entry a validator. The three `max_` caps bound what no budget pays for.
    """

    retries: int = 2
    execution_retries: tuple[int, ...] = ()
    corrections: bool = False
    """The producer declares `single_response_v1`."""
    blind_retries: bool = False
    policy: Policy = field(default_factory=Policy)
    max_recoveries: int = 3
    max_reopens: int = 8
    max_throttles: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Where an item stands in its stage when a report arrives.

    `attempt` is 1 for the first. `fallback` is the rank of the kept fallback. `judging_fallback` says that the
    candidate under judgement is that fallback. `late` says that the item's deadline has passed.
    """

    attempt: int = 1
    recoveries: int = 0
    reopens: int = 0
    throttles: int = 0
    fallback: int | None = None
    judging_fallback: bool = False
    late: bool = False

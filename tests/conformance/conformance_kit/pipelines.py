"""The pipelines of the scenarios, one attribute each, so that worker processes find them by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from typing import Any
from unittest.mock import patch

from pydantic import BaseModel

from remand import Bounds, Pipeline, Policy, Stage
from remand.llm import ChatJudge

from .parts import PROMPT, A, B, C, async_judge, chat, judge, module

BACKOFF = 0.05


def one(
    *validators: Any, producer: Any = None, policy: Policy | None = None, name: str = "one", **stage: Any
) -> Pipeline:
    """A pipeline of one stage called `s`."""
    given = {"backoff": BACKOFF, **stage}
    return Pipeline(
        name, version="1", stages=[Stage("s", producer or chat(), validators, **given)], policy=policy
    )


# Three validators under different budgets and policies: most rows need no more.
plain = one(A, B, C)
counted_broken = one(A, B, C, retries=3, name="counted-broken")
counted_rejecting = one(A, B, C, name="counted-rejecting")
plain_0 = one(A, B, C, retries=0)
plain_1 = one(A, B, C, retries=1)
plain_3 = one(A, B, C, retries=3)
plain_5 = one(A, B, C, retries=5)
broken_fails = one(A, B, C, retries=3, policy=Policy(validator_execution_failure="fail_run"))
broken_fails_1 = one(A, B, C, retries=1, policy=Policy(validator_execution_failure="fail_run"))
go_on = one(
    A,
    B,
    C,
    retries=1,
    policy=Policy(
        semantic_rejection="warn_continue",
        structural_failure="warn_continue",
        operational_failure="warn_continue",
    ),
)
repairing = one(A, producer=chat(repairs=1))
slow_backoff = one(A, backoff=0.4)
timid = one(A, B, producer=chat(correction=None))
blind = one(A, B, producer=chat(correction=None), blind_retries=True)
async_ones = one(async_judge("a", timeout=0.5), async_judge("b"))
hanging = one(A, judge("slow", timeout=1.5, execution_retries=0), C)
short_deadline = one(A, deadline=timedelta(seconds=0.5), retries=0)
rubric = one(
    ChatJudge("rubric", version="1", rubric="It is a good number.", model="judge", timeout=10.0), B, retries=2
)

# A producer that may ask for its own retries.
asks = one(A, B, producer=module())
asks_0 = one(A, B, producer=module(), retries=0)
asks_plain_1 = one(A, producer=module(), retries=1)
asks_undeclared = one(A, B, producer=module(correction=None))

# Two stages.
two = Pipeline(
    "two",
    version="1",
    stages=[
        Stage("s", chat("first"), [A, B], backoff=BACKOFF, retries=1),
        Stage("t", chat("second", prompt=PROMPT + " Again."), [C], backoff=BACKOFF, retries=1),
    ],
)
two_go_on = Pipeline("two", version="1", stages=two.stages, policy=Policy(semantic_rejection="warn_continue"))
overriding = Pipeline(
    "overriding",
    version="1",
    stages=[
        Stage("s", chat(), [A], retries=0, policy={"semantic_rejection": "quarantine"}),
    ],
    policy=Policy(structural_failure="warn_continue", semantic_rejection="fail_run"),
)
reusable = Pipeline(
    "reusable",
    version="1",
    stages=[Stage("s", module(), [A, B], backoff=BACKOFF, retries=1)],
    policy=Policy(semantic_rejection="warn_continue", operational_failure="warn_continue"),
)

# ----------------------------------------------------------------------- each reason under each disposition

REASONS = ("structural_failure", "semantic_rejection", "validator_execution_failure", "operational_failure")
DISPOSITIONS = ("fail_run", "warn_continue", "quarantine")

for _reason, _disposition in product(REASONS, DISPOSITIONS):
    globals()[f"{_reason}_{_disposition}"] = one(
        A, retries=0, policy=Policy().override({_reason: _disposition})
    )

# --------------------------------------------------------------------- one change a variant of two stages


class Wider(BaseModel):
    """Another output schema."""

    n: int
    tags: list[str] = []
    remark: str | None = None


@contextmanager
def _constant(name: str, value: str) -> Iterator[None]:
    with patch(f"remand_policy.fingerprint.{name}", value):
        yield


def _changed(place: str, what: str) -> Pipeline:
    """`two_stages` with one thing changed in the stage `place`; with `both`, in everything."""

    def stage(name: str) -> Stage:
        change = what if name == place else ""
        chat_settings: dict[str, Any] = {"prompt": f"{PROMPT} Stage {name}.", "version": "1"}
        changes: dict[str, dict[str, Any]] = {
            "producer_version": {"version": "2"},
            "prompt": {"prompt": f"{PROMPT} Stage {name}!"},
            "system": {"system": "Be brief."},
            "output": {"output": Wider},
            "model": {"model": "scripted-other"},
            "temperature": {"temperature": 0.5},
            "seed": {"seed": 7},
            "repairs": {"repairs": 2},
            "correction": {"correction": None},
        }
        chat_settings |= changes.get(change, {})
        first: dict[str, Any] = {"timeout": 30.0}
        changes = {
            "validator_version": {"version": "2"},
            "validator_budget": {"execution_retries": 2},
            "validator_description": {"description": "It says something else."},
        }
        first |= changes.get(change, {})
        validators = [judge("renamed" if change == "validator_name" else "x", **first), judge("y")]
        if change == "validator_order":
            validators.reverse()
        if change == "validator_added":
            validators.append(judge("z"))
        producer = chat("renamed" if change == "producer_name" else f"chat-{name}", **chat_settings)
        return Stage(
            name,
            producer,
            validators,
            backoff=BACKOFF,
            retries=3 if change == "retries" else 2,
            blind_retries=change == "blind",
            policy={"structural_failure": "quarantine"} if change == "policy" else None,
        )

    bounds = Bounds(finding=300) if what == "bounds" else None
    made = Pipeline("two-stages", version="1", stages=[stage("s"), stage("t")], bounds=bounds)
    if what in ("DECISION_VERSION", "RENDERER_VERSION", "SINGLE_RESPONSE_V1"):
        with _constant(what, "other"):
            _ = made.fingerprint
    return made


CHANGES = (
    "producer_name",
    "producer_version",
    "prompt",
    "system",
    "output",
    "model",
    "temperature",
    "seed",
    "repairs",
    "correction",
    "validator_name",
    "validator_version",
    "validator_budget",
    "validator_description",
    "validator_order",
    "validator_added",
    "retries",
    "blind",
    "policy",
)
"""What may change in one stage."""

CHANGES_OF_ALL = ("bounds", "DECISION_VERSION", "RENDERER_VERSION", "SINGLE_RESPONSE_V1")
"""What changes every stage."""

two_stages = _changed("", "")
for _place, _what in [*product("st", CHANGES), *product(["all"], CHANGES_OF_ALL)]:
    globals()[f"{_place}_{_what}"] = _changed(_place, _what)

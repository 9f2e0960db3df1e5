"""What the workers run: a model is asked over HTTP, validators tell the same server that they were called.

An input's `do` says what happens to the item; the model's answers follow it too (`model.py`).
"""

from __future__ import annotations

import json
import os
import urllib.request
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from remand import Context, Pipeline, Policy, Produced, Stage, Throttled, accept, producer, reject, validator
from remand.llm import ChatProducer
from remand_workers.app import QUEUES

OWN_QUEUE = "chaos.own"
WORKER_QUEUES = (*QUEUES, OWN_QUEUE)
RETRIES = 3
EXECUTION_RETRIES = 6
DEADLINE = timedelta(minutes=10)
"""Less than the clocks of some workers are off: one that asked its own clock would close items as overdue."""


class Made(BaseModel):
    """A candidate: whose it is, and which of the server's answers it came from."""

    item: int
    stage: str
    attempt: int
    call: int


def ask(context: Context) -> list[dict[str, str]]:
    """The request: it names the item, the attempt and the process that pays."""
    return [{"role": "user", "content": json.dumps(_who(context))}]


def _who(context: Context, **more: Any) -> dict[str, Any]:
    return {
        "run": context.run_id,
        "item": context.item,
        "stage": context.stage,
        "attempt": context.attempt,
        "do": context.input["do"],
        "pid": os.getpid(),
        **more,
    }


def post(said: dict[str, Any], kind: str) -> str:
    """Ask the server without any SDK. What it answers."""
    request = urllib.request.Request(
        os.environ["REMAND_MODEL_BASE_URL"] + "/chat/completions",
        json.dumps({"model": kind, "messages": [{"role": "user", "content": json.dumps(said)}]}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answered:
        return str(json.load(answered)["choices"][0]["message"]["content"])


def note(context: Context, validator: str, value: Made) -> int:
    """Tell the server that `validator` is asked about `value`. How often that is by now for this candidate."""
    return int(post(_who(context, validator=validator, call=value.call), "note"))


@validator(version="1", timeout=10.0, execution_retries=EXECUTION_RETRIES)
def steady(value: Made, context: Context) -> Any:
    """Accepts, but where it is to break once a candidate, or to hold on."""
    seen = note(context, "steady", value)
    if context.input["do"] == "break" and seen == 1:
        raise RuntimeError("this validator breaks once")
    return accept()


@validator(version="1", timeout=10.0, execution_retries=EXECUTION_RETRIES)
def strict(value: Made, context: Context) -> Any:
    """Sends the first attempt of some items back."""
    note(context, "strict", value)
    if context.input["do"] == "correct" and context.attempt == 1:
        return reject("The first attempt is never right.", path="attempt", code="first")
    return accept()


@validator(version="1", timeout=10.0, execution_retries=EXECUTION_RETRIES, queue=OWN_QUEUE)
def apart(value: Made, context: Context) -> Any:
    """Accepts, on a queue of its own."""
    note(context, "apart", value)
    return accept()


@validator(version="1", timeout=10.0, execution_retries=EXECUTION_RETRIES)
def last(value: Made, context: Context) -> Any:
    """Accepts what the second stage made."""
    note(context, "last", value)
    return accept()


chat = ChatProducer(Made, ask, version="1", model="scripted", repairs=0, timeout=20.0, response_format="text")
pipeline = Pipeline(
    "chaos",
    version="1",
    stages=[
        Stage("first", chat, [steady, strict, apart], retries=RETRIES, backoff=0, deadline=DEADLINE),
        Stage("second", chat, [last], retries=RETRIES, backoff=0, deadline=DEADLINE),
    ],
    policy=Policy(operational_failure="quarantine"),
)


# -------------------------------------------------------------------- pipelines of single scenarios


@validator(version="1", timeout=10.0, execution_retries=1)
def deadly(value: Made, context: Context) -> Any:
    """Takes its worker down with it for some items, every time."""
    note(context, "deadly", value)
    if context.input["do"] == "kill":
        os._exit(9)
    return accept()


judged_to_death = Pipeline(
    "judged-to-death", version="1", stages=[Stage("first", chat, [deadly], retries=2, backoff=0)]
)


@producer(version="1", output=Made)
def poisoned(context: Context, correction: Any) -> Any:
    """Asks the model, and for some items takes its worker down with it, every time."""
    said = Made.model_validate_json(post(_who(context), "scripted"))
    if context.input["do"] == "kill":
        os._exit(9)
    return Produced(said)


poison = Pipeline(
    "poison",
    version="1",
    stages=[Stage("first", poisoned, [last], retries=2, backoff=0)],
    policy=Policy(operational_failure="quarantine"),
)


class Unpicklable(Exception):
    """Holds what no pickle can."""

    def __init__(self) -> None:
        super().__init__("a sensitive text")
        self.lock = __import__("threading").Lock()


class Particular(Exception):
    """Its constructor needs arguments, so that nobody makes another from its `args`."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__()


@producer(version="1", output=dict[str, Any])
def odd(context: Context, correction: Any) -> Any:
    """Gives or raises what a queue may not like."""
    match context.input["do"]:
        case "huge":
            return Produced({"text": "x" * 3_000_000})
        case "unpicklable":
            raise Unpicklable()
        case "particular":
            raise Particular("a", "b")
        case "throttled":
            raise Throttled(0.1)
    return Produced({"text": "small"})


@validator(version="1", timeout=10.0, execution_retries=0)
def odd_too(value: dict[str, Any], context: Context) -> Any:
    """Raises what a queue may not like."""
    if context.input["do"] == "judge-unpicklable":
        raise Unpicklable()
    if context.input["do"] == "judge-particular":
        raise Particular("a", "b")
    return accept()


oddities = Pipeline(
    "oddities",
    version="1",
    stages=[Stage("first", odd, [odd_too], retries=1, backoff=0)],
    policy=Policy(operational_failure="quarantine", structural_failure="quarantine"),
)


@producer(version="1", output=dict[str, int])
def quick(context: Context, correction: Any) -> Any:
    """No model: for runs that are long."""
    return Produced({"n": context.input["n"]})


@validator(version="1", timeout=10.0)
def small(value: dict[str, int], context: Context) -> Any:
    """Accepts what was asked for."""
    return accept() if value["n"] == context.input["n"] else reject("It is another number.")


long_run = Pipeline("long-run", version="1", stages=[Stage("first", quick, [small], retries=1, backoff=0)])

# A worker with another version of this one has CHAOS_VERSION set.
versioned = Pipeline(
    "versioned",
    version=os.environ.get("CHAOS_VERSION", "1"),
    stages=[Stage("first", chat, [last], retries=1)],
)

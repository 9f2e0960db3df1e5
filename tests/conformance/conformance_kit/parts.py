"""Producers and validators that do what the input's plan says, so that a scenario is data.

`input["plan"]` maps a validator's name to its answers, one a call about this item, the last repeating; without a plan
it accepts. The model's replies are scripted on the server, so what a producer gives is scripted too.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel

from remand import (
    SINGLE_RESPONSE_V1,
    Context,
    Correction,
    Disposition,
    Finding,
    ModelResponse,
    OperationalFailure,
    Produced,
    Producer,
    RetryRequest,
    StructuralFailure,
    Throttled,
    Validator,
    Verdict,
    accept,
    producer,
    reject,
    validator,
)
from remand.llm import ChatProducer

from .notes import note

MARKER = "zq-marker-7714"
"""A text that must not turn up in a place where it does not belong."""

RELEASE = threading.Event()
"""Ends validators that hang in this process; a worker's own is never set."""


class Number(BaseModel):
    """The candidate of most scenarios."""

    n: int
    tags: list[str] = []


class Strict(BaseModel):
    """A judge's own reply."""

    verdict: str


PROMPT = "{tag} Say a number as JSON, such as an object with the field n."


def chat(name: str = "chat", **settings: Any) -> ChatProducer[Number]:
    """The producer that asks the scripted model."""
    given = {"model": "scripted", "repairs": 0, "timeout": 20.0, **settings}
    return ChatProducer(given.pop("output", Number), given.pop("prompt", PROMPT), name=name, **given)


# ---------------------------------------------------------------------------------------------- validators


def _findings(words: str) -> Any:
    match words.partition(":")[::2]:
        case ("reject", text):
            return reject(text, path="n", code="too_small")
        case ("long", size):
            return reject(("word 🏴󠁧󠁢󠁷󠁬󠁳󠁿 é " * (int(size) // 8 + 1))[: int(size)])
        case ("many", count):
            return reject([Finding(f"problem number {i}", path=f"tags.{i}") for i in range(int(count))])
        case ("coded", text):
            return reject([Finding("plain words", path="n", code=text)])
    raise AssertionError(words)


def answer(step: str, value: Number, context: Context) -> Any:
    """What a planned step answers with; it may raise, hang, or return nonsense."""
    match step:
        case "accept":
            return accept()
        case "raise":
            raise RuntimeError(f"broken on purpose {MARKER}")
        case "exit":
            raise SystemExit(0)
        case "none":
            return None
        case "true":
            return True
        case "string":
            return "accepted"
        case "nan":
            return float("nan")
        case "number":
            return 1.7
        case "word":
            return Verdict.ACCEPTED
        case "disposition":
            return Disposition.WARN_CONTINUE
        case "made_up":
            return SimpleNamespace(verdict="accepted", accepted=True, findings=())
        case "class":
            return type(accept())
        case "pydantic":
            return Strict.model_validate_json('{"verdict": 3}')
        case "json":
            return json.loads("{broken")
        case "mutate":
            value.n = 999
            value.tags.append("changed")
            context.input["plan"] = {}
            return accept()
        case "block":
            RELEASE.wait()
            return accept()
        case "loop":
            while not RELEASE.is_set():
                pass
            return accept()
    return _findings(step)


def planned(name: str, context: Context, value: Number) -> str:
    """The step whose turn it is."""
    seen = note(context, name, value=value.model_dump(), validation=str(context.validation))
    steps = context.input.get("plan", {}).get(name, ["accept"])
    return str(steps[min(seen, len(steps)) - 1])


def judge(name: str, **settings: Any) -> Validator:
    """A validator that follows its plan."""

    @validator(name, version=settings.pop("version", "1"), **settings)
    def follow(value: Number, context: Context) -> Any:
        return answer(planned(name, context, value), value, context)

    return follow


def async_judge(name: str, **settings: Any) -> Validator:
    """The same as a coroutine function."""

    @validator(name, version="1", **settings)
    async def follow(value: Number, context: Context) -> Any:
        await asyncio.sleep(0)
        step = planned(name, context, value)
        if step == "block":
            await asyncio.Event().wait()
        return answer(step, value, context)

    return follow


A, B, C = judge("a"), judge("b"), judge("c")


# ------------------------------------------------------------------------------------------------ producers


def ask(context: Context, correction: Correction | None) -> ModelResponse:
    """One request to the scripted model, without any SDK. Raises the kinds of failure that a producer may."""
    messages = [{"role": "user", "content": f"{context.input['tag']} Propose."}]
    if correction is not None:
        messages.append({"role": "assistant", "content": correction.response})
        messages.append({"role": "user", "content": correction.guidance})
    base = context.input.get("base_url") or os.environ["REMAND_MODEL_BASE_URL"]
    request = urllib.request.Request(
        f"{base}/chat/completions",
        json.dumps({"model": "scripted", "messages": messages}).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answered:
            body = json.load(answered)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 429:
                raise Throttled(float(error.headers.get("retry-after", "0.05"))) from None
            raise OperationalFailure(f"http_{error.code}") from None
    except OSError:
        raise OperationalFailure("connection") from None
    return ModelResponse(body["choices"][0]["message"]["content"] or "")


def _module(context: Context, correction: Correction | None) -> Produced | RetryRequest:
    """Gives what the model's reply says: a value, or a retry request with the fields under `retry`."""
    note(context, "module", correction=None if correction is None else correction.guidance)
    reply = ask(context, correction)
    try:
        said = json.loads(reply.text)
    except ValueError:
        raise StructuralFailure("no_json") from None
    response = {"none": None, "empty": ModelResponse("  ")}.get(said.pop("response", ""), reply)
    if "retry" in said:
        asked = {"reason_code": "again", "operator_message": "proposal refused", **said["retry"]}
        fallback = asked.pop("fallback", None)
        return RetryRequest(
            **asked, fallback=None if fallback is None else Number(**fallback), response=response
        )
    return Produced(Number(**said), response)


def module(*, correction: str | None = SINGLE_RESPONSE_V1, **settings: Any) -> Producer[Any]:
    """A producer that may ask for its own retry."""
    return producer("module", version="1", output=Number, correction=correction, **settings)(_module)

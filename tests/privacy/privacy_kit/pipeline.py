"""A pipeline to which everything happens, and which says something secret whenever it can.

The input's `do` says what happens. Every planting is noted by kind in the file that `PRIVACY_NOTES` names, so that a
test can tell a text that was kept from one that never was.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from pydantic import BaseModel, field_validator

from remand import (
    SINGLE_RESPONSE_V1,
    Context,
    Correction,
    ModelResponse,
    Pipeline,
    Policy,
    Produced,
    RetryRequest,
    Stage,
    accept,
    producer,
    reject,
    validator,
)
from remand.llm import ChatJudge, ChatProducer
from remand_workers.surfaces import Kind

from .texts import CONTROL, MARKERS, planted

CHAT_TIMEOUT = 4.0


def note(kind: Kind, where: str) -> None:
    """Note that a text was planted. Appending one short line is whole on every POSIX file system."""
    with open(os.environ["PRIVACY_NOTES"], "a", encoding="utf-8") as file:
        file.write(f"{kind.value}\t{where}\n")


def said(kind: Kind, where: str, about: str = "") -> str:
    """A text of a kind, noted as planted."""
    note(kind, where)
    return planted(kind, about or where)


def once(name: str) -> bool:
    """Whether this is the first call with `name` in all processes."""
    try:
        (Path(os.environ["PRIVACY_NOTES"]).parent / f"once-{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def trouble(where: str) -> Exception:
    """An exception with secrets in its words, its note, its cause and that one's cause; with locals around it."""
    secret = said(Kind.EXCEPTION, where)
    try:
        try:
            raise KeyError(secret)
        except KeyError as error:
            raise ExceptionGroup(secret, [ValueError(secret), OSError(5, secret)]) from error
    except ExceptionGroup as error:
        made = RuntimeError(secret, {"more": secret})
        made.add_note(secret)
        made.__cause__ = error
        return made


class Answer(BaseModel):
    """What both stages make."""

    do: str
    note: str

    @field_validator("note")
    @classmethod
    def turns_coat(cls, note: str) -> str:
        """Raise, for one item, where Remand reads the value of the stage before: a step of its own then breaks."""
        frame: Any = sys._getframe()
        while "turncoat" in note and frame is not None:
            if frame.f_code.co_name == "context_of":
                raise ValueError(said(Kind.EXCEPTION, "output type"))
            frame = frame.f_back
        return note


def ask(context: Context) -> list[dict[str, str]]:
    """The request; for one item the worker dies while the model works on it."""
    do = context.input["do"]
    note(Kind.INPUT, "request")
    if do == "kill" and once("kill"):
        note(Kind.RESPONSE, "worker killed")
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return [
        {"role": "system", "content": said(Kind.PROMPT, "system")},
        {"role": "user", "content": f"[[{do}]] {context.input['text']}"},
    ]


@validator(f"checks_{CONTROL}", version="1", timeout=2.0, execution_retries=1)
def checks(value: Answer, context: Context) -> Any:
    """Rejects what holds the marker of candidates; hangs or raises where it is told to."""
    if context.input["do"] == "hangs":
        secret = said(Kind.EXCEPTION, "hanging validator")
        time.sleep(30)
        raise RuntimeError(secret)
    if context.input["do"] == "raises":
        raise trouble("validator")
    if MARKERS[Kind.CANDIDATE] in value.note:
        return reject(said(Kind.FINDING, "validator"), path="note", code="wrong")
    return accept()


tone = ChatJudge(
    "tone", version="1", rubric=planted(Kind.PROMPT, "a rubric"), model="judge", execution_retries=1
)


@producer(version="1", output=Answer, correction=SINGLE_RESPONSE_V1)
def module(context: Context, correction: Correction | None) -> Produced | RetryRequest:
    """Asks for retries itself, raises, or leaves a mess behind."""
    do, previous = context.input["do"], context.previous
    good = Answer(do=do, note=said(Kind.VALUE, "module"))
    response = ModelResponse(said(Kind.RESPONSE, "module"), model="m")
    if do == "module_raises":
        raise trouble("producer")
    if do in ("module_guided", "module_falls_back", "module_contract") and (
        correction is None or do != "module_guided"
    ):
        guided = do != "module_falls_back" or context.attempt == 1
        return RetryRequest(
            "again",
            said(Kind.OPERATOR, "module"),
            good if do == "module_falls_back" else Answer(do=do, note=said(Kind.CANDIDATE, "fallback")),
            guidance=said(Kind.GUIDANCE, "module") if guided else None,
            response=response if guided and do != "module_contract" else None,
            diagnostics=("unsafe_group",),
        )
    if do == "module_messy":
        _mess()
    return Produced(good if do.startswith("module") else previous, response=response)


def _mess() -> None:
    """A warning, an exception in a thread, and one in a finalizer."""
    secret = said(Kind.EXCEPTION, "left behind")
    warnings.warn(secret, stacklevel=1)

    def fail() -> None:
        raise ValueError(secret)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()

    class Bad:
        def __del__(self) -> None:
            raise ValueError(secret)

    Bad()


extract = Stage(
    "extract",
    ChatProducer(Answer, ask, version="1", model="scripted", repairs=1, timeout=CHAT_TIMEOUT, name="chat"),
    [checks, tone],
    retries=1,
    backoff=0.05,
)
finish = Stage("finish", module, [checks], retries=1, backoff=0.05)
aside = Policy(
    semantic_rejection="quarantine", structural_failure="warn_continue", operational_failure="quarantine"
)
pipeline = Pipeline(f"leaks-{CONTROL}", version="1", stages=[extract, finish], policy=aside)
strict = Pipeline(f"strict-{CONTROL}", version="1", stages=[extract, finish])

ITEMS = (
    "good", "corrected", "hopeless", "structural", "repaired", "slow", "throttled", "server_error", "kill",
    "judge_rejects", "judge_broken", "raises", "hangs", "turncoat", "module_guided", "module_falls_back",
    "module_raises", "module_messy",
)  # fmt: skip
"""What happens to the items of the main run."""


def inputs(dos: tuple[str, ...] = ITEMS) -> list[dict[str, str]]:
    """Inputs, one for each thing that is to happen."""
    return [{"do": do, "text": planted(Kind.INPUT, do)} for do in dos]

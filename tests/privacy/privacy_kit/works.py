"""A registry that other systems send entries to, and what they send: good messages, and bad ones in many ways."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from remand import Context, Correction, Groups, ModelResponse, Produced, Registry, producer
from remand_workers.surfaces import Kind

from .pipeline import said, trouble
from .texts import CONTROL, planted

NAME = f"works-{CONTROL}"
STREAM = f"foreign-{CONTROL}"


class Work(BaseModel):
    """An entry."""

    id: str
    title: str


@producer(version="1", output=Groups)
def proposer(context: Context, correction: Correction | None) -> Produced:
    """Finds all the same."""
    ids = [each["id"] for each in context.input["records"]]
    return Produced(Groups(groups=[ids]), response=ModelResponse(said(Kind.RESPONSE, "proposer")))


def key(work: Work) -> str:
    """Its id."""
    return work.id


def title(work: Work) -> str:
    """Its title."""
    if work.id == "raises":
        raise trouble("registry")
    return work.title


works = Registry(NAME, Work, version="1", key=key, text=title, proposer=proposer)


def _message(number: int, *entries: Any, **more: Any) -> bytes:
    return json.dumps({"id": f"{CONTROL}-{number}", "registry": NAME, "entries": entries, **more}).encode()


def messages() -> list[bytes]:
    """What another system sends."""
    text = planted(Kind.INPUT, "a message")
    good = [{"id": f"w{number}", "title": f"{text} {number % 2}"} for number in range(6)]
    return [
        _message(1, *good),
        _message(1, *good),
        _message(1, *good[:1]),
        _message(2, {"id": "raises", "title": text}),
        _message(3, {"id": text + "\n", "title": text}),
        _message(4, {"title": [text]}),
        _message(5, text),
        _message(6, good[0], **{text: text}),
        _message(7, good[0], registry=text),
        _message(8, {"id": "w", "title": text * 20_000}),
        _message(9, good[0], registry=[text]),
        _message(10, {"id": "w", "title": text})[:-3],
        text.encode(),
        text.encode("utf-16"),
        b"\xff" + text.encode(),
        b'{"id": "' + text.encode(),
    ]

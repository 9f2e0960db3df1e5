"""Messages that no worker of ours sent, as they lie on a Celery list of a Redis broker."""

from __future__ import annotations

import base64
import json
import pickle
import uuid
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MARKER = "Zqmessage5522x"
"""In every message, and in no log."""
QUEUE = "remand.produce"


class Touch:
    """Unpickled, it makes a file: so that a test sees whether anybody did."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def body(*arguments: Any, keywords: Any = None, embedded: Any = None) -> bytes:
    """A task message's body."""
    return json.dumps([list(arguments), keywords or {}, embedded or {}]).encode()


def envelope(
    content: bytes,
    *,
    task: Any = QUEUE,
    kind: str = "application/json",
    encoding: str = "utf-8",
    headers: Mapping[str, Any] | None = None,
    properties: Mapping[str, Any] | None = None,
) -> bytes:
    """A message with Celery's headers and kombu's envelope around `content`."""
    identity = str(uuid.uuid4())
    return json.dumps(
        {
            "body": base64.b64encode(content).decode(),
            "content-encoding": encoding,
            "content-type": kind,
            "headers": {
                "lang": "py", "task": task, "id": identity, "root_id": identity, "parent_id": None, "group": None,
                "retries": 0, "timelimit": [None, None], "eta": None, "expires": None, "argsrepr": MARKER,
                "kwargsrepr": MARKER, "origin": MARKER, **(headers or {}),
            },
            "properties": {
                "correlation_id": identity, "reply_to": str(uuid.uuid4()), "delivery_mode": 2, "priority": 0,
                "delivery_info": {"exchange": "", "routing_key": QUEUE}, "body_encoding": "base64",
                "delivery_tag": str(uuid.uuid4()), **(properties or {}),
            },
        }
    ).encode()  # fmt: skip


def _link(task: str, *arguments: Any) -> dict[str, Any]:
    return {
        "task": task, "args": list(arguments), "kwargs": {}, "options": {"queue": QUEUE}, "subtask_type": None,
        "immutable": True,
    }  # fmt: skip


def _bomb() -> bytes:
    """A body of half a gigabyte in half a megabyte, made without ever having it whole."""
    packing, block = zlib.compressobj(1), b"x" * 1_000_000
    begun = packing.compress(f'[["{MARKER}'.encode())
    return (
        begun
        + b"".join(packing.compress(block) for _ in range(500))
        + packing.compress(b'"],{},{}]')
        + packing.flush()
    )


FORGED = f"{MARKER}/0/0/1/1"

MESSAGES: dict[str, Callable[[Path], bytes]] = {
    "unknown run": lambda _: envelope(body(FORGED)),
    "unknown run, to coordinate": lambda _: envelope(body(FORGED), task="remand.coordinate"),
    "unknown run, to validate": lambda _: envelope(body(FORGED), task="remand.validate"),
    "no token": lambda _: envelope(body(MARKER)),
    "a number": lambda _: envelope(body(5)),
    "a mapping": lambda _: envelope(body({MARKER: MARKER})),
    "no argument": lambda _: envelope(body()),
    "two arguments": lambda _: envelope(body(FORGED, FORGED)),
    "keywords": lambda _: envelope(body(FORGED, keywords={"token": MARKER})),
    "ten megabytes": lambda _: envelope(body(MARKER + "x" * 10_000_000)),
    "pickle": lambda path: envelope(
        pickle.dumps(Touch(path)), kind="application/x-python-serialize", encoding="binary"
    ),
    "yaml": lambda path: envelope(
        f"!!python/object/apply:os.system ['touch {path}']".encode(), kind="application/x-yaml"
    ),
    "text": lambda _: envelope(MARKER.encode(), kind="text/plain"),
    "no JSON": lambda _: envelope(MARKER.encode() + b" {{{"),
    "no UTF-8": lambda _: envelope(b"\xff\xfe" + MARKER.encode()),
    "JSON of another shape": lambda _: envelope(json.dumps({MARKER: 1}).encode()),
    "null": lambda _: envelope(b"null"),
    "deep JSON": lambda _: envelope(b"[" * 100_000),
    "unknown task": lambda _: envelope(body(MARKER), task=f"{MARKER}.task"),
    "Celery's own task": lambda _: envelope(
        json.dumps([[], {"task": MARKER, "it": [[1]]}, {}]).encode(), task="celery.map"
    ),
    "a task that is a list": lambda _: envelope(body(FORGED), task=[MARKER]),
    "no id": lambda _: envelope(body(FORGED), headers={"id": None}),
    "an id that is a mapping": lambda _: envelope(body(FORGED), headers={"id": {MARKER: 1}}),
    "a far day": lambda _: envelope(body(FORGED), headers={"eta": "2999-01-01T00:00:00"}),
    "a day that is none": lambda _: envelope(body(FORGED), headers={"expires": MARKER}),
    "time limits that are none": lambda _: envelope(body(FORGED), headers={"timelimit": MARKER}),
    "retries that are none": lambda _: envelope(body(FORGED), headers={"retries": MARKER}),
    "a chain of another task": lambda _: envelope(body(FORGED, embedded={"chain": [_link(MARKER, MARKER)]})),
    "a chain about another token": lambda _: envelope(
        body(FORGED, embedded={"chain": [_link(QUEUE, MARKER)]})
    ),
    "a chain that is none": lambda _: envelope(body(FORGED, embedded={"chain": [MARKER]})),
    "error callbacks": lambda _: envelope(body(FORGED, embedded={"errbacks": [_link(MARKER, MARKER)]})),
    "a chord": lambda _: envelope(body(FORGED, embedded={"chord": _link(MARKER)}), headers={"group": MARKER}),
    "the old protocol": lambda _: envelope(
        json.dumps({"task": QUEUE, "id": MARKER, "args": [MARKER], "kwargs": {}}).encode(),
        headers={"task": None},
    ),
    "half a gigabyte, compressed": lambda _: envelope(_bomb(), headers={"compression": "application/x-gzip"}),
    "broken compression": lambda _: envelope(body(FORGED), headers={"compression": "application/x-gzip"}),
}

RAW = {
    "JSON": json.dumps({"a": MARKER}).encode(),
    "text": MARKER.encode(),
    "headers that are text": json.dumps({**json.loads(envelope(b"")), "headers": MARKER}).encode(),
}
"""Pushed onto the list without kombu's envelope, or with a broken one: Celery fails before it asks our code."""

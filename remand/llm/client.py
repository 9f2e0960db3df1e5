"""Sends one chat request and says what came of it, as a value.

Clients of the `openai` SDK, its retries off, each with one connection: a call borrows an idle one or makes one, so
that threads never queue up on a shared client. Clients are shared by all producers and judges of a process that
talk to the same server, and never by two processes. What a server says in words is not kept, whatever the status.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from ..context import Usage
from ..errors import Failure, OperationalFailure, PipelineError, StructuralFailure, Throttled
from . import fault

if TYPE_CHECKING:
    from openai import OpenAI

    from .transport import Line

MAX_RETRY_AFTER: Final = 86_400.0
_MAX_IDLE: Final = 512
_MAX_TOKENS: Final = 2**40
_FORMAT_STATUSES: Final = frozenset({400, 404, 415, 422, 501})
_FORMAT_WORDS: Final = (b"response_format", b"json_schema", b"json_object")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and the key for it."""

    base_url: str = field(repr=False)
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered."""

    text: str = field(repr=False)
    finish_reason: str | None
    model: str | None
    usage: Usage | None
    tool_calls: bool
    refused: bool


@dataclass(frozen=True, slots=True)
class FormatRefused:
    """The server does not know the `response_format`. The model never ran, so this is no generation."""


class _Clients:
    """Idle clients by server. Borrowing never waits: with none idle a new one is made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Endpoint, deque[tuple[OpenAI, Line]]] = {}
        self._inherited: list[object] = []

    @contextmanager
    def borrow(self, endpoint: Endpoint) -> Iterator[tuple[OpenAI, Line]]:
        with self._lock:
            idle = self._idle.setdefault(endpoint, deque())
            pair = idle.pop() if idle else None
        if pair is None:
            pair = _build(endpoint)
        kept = False
        try:
            yield pair
            with self._lock:
                kept = len(idle) < _MAX_IDLE
                if kept:
                    idle.append(pair)
        finally:
            if not kept:
                pair[0].close()

    def close(self) -> None:
        """Close every idle client."""
        with self._lock:
            pairs = [pair for idle in self._idle.values() for pair in idle]
            self._idle.clear()
        for client, _ in pairs:
            client.close()

    def forked(self) -> None:
        """In a child: leave the parent's connections alone, unclosed, and start with none."""
        self._inherited.append(self._idle)
        self._lock = threading.Lock()
        self._idle = {}


_clients: Final = _Clients()
os.register_at_fork(after_in_child=_clients.forked)
atexit.register(_clients.close)


def close_clients() -> None:
    """Close this process's idle connections to model servers. They are made again when needed."""
    _clients.close()


def prepare() -> None:
    """Import the SDK and load the certificates, which takes a second or so in a new process: no call's time."""
    import openai  # noqa: F401

    from .transport import tls

    tls()


def _build(endpoint: Endpoint) -> tuple[OpenAI, Line]:
    from openai import OpenAI

    from .transport import Line, http_client

    line = Line()
    client = OpenAI(
        api_key=endpoint.api_key,
        base_url=endpoint.base_url,
        max_retries=0,
        http_client=http_client(endpoint.base_url, line),
    )
    return client, line


def resolve(where: str, model: str | None, base_url: str | None, api_key: str | None) -> tuple[str, Endpoint]:
    """The model's name and its server, from what was given or else from `REMAND_MODEL`, `REMAND_MODEL_BASE_URL` and
    `REMAND_MODEL_API_KEY`. Without a base URL it is OpenAI's, and the SDK's own variables count as well; they do not
    for a server that was named, so that no key goes where it does not belong. Raises `PipelineError`."""
    name = resolve_model(where, model)
    base_url = base_url or os.environ.get("REMAND_MODEL_BASE_URL") or None
    api_key = api_key or os.environ.get("REMAND_MODEL_API_KEY") or None
    if base_url is None:
        base_url = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        api_key = api_key or os.environ.get("OPENAI_API_KEY") or None
        if api_key is None:
            raise PipelineError(
                where, "no server: set REMAND_MODEL_BASE_URL, or REMAND_MODEL_API_KEY for OpenAI's own"
            )
    if not base_url.startswith(("http://", "https://")):
        raise PipelineError(where, "base_url (REMAND_MODEL_BASE_URL) must start with http:// or https://")
    return name, Endpoint(base_url, api_key or "none")


def resolve_model(where: str, model: str | None) -> str:
    """The model's name. Raises `PipelineError` if there is none."""
    name = model or os.environ.get("REMAND_MODEL")
    if not name:
        raise PipelineError(where, "no model: set REMAND_MODEL, or give model=")
    return name


def send(
    where: str, endpoint: Endpoint, body: Mapping[str, Any], *, deadline: float, connect_timeout: float
) -> Answer | FormatRefused | Failure:
    """Send one request that must be over when `time.monotonic()` reads `deadline`.

    A `Failure` that comes back says in `generations` whether the model was reached: 1 once any of the request was
    sent, unless the server answered 429.
    """
    import httpx2
    import openai

    with _clients.borrow(endpoint) as (client, line):
        line.begin(deadline)
        timeout = httpx2.Timeout(None, connect=connect_timeout)
        try:
            response = client.post(
                "/chat/completions", cast_to=httpx2.Response, body=dict(body), options={"timeout": timeout}
            )
        except openai.APIStatusError as error:
            response = error.response
        except openai.APITimeoutError:
            return OperationalFailure("timeout", generations=int(line.sent))
        except openai.APIConnectionError:
            if line.overflow:
                return StructuralFailure("too_large")
            return OperationalFailure("connection", generations=int(line.sent))
        except Exception as error:
            fault.warn(where, "the model client", error)
            return OperationalFailure("client_error", generations=int(line.sent))
    if response.status_code != 200:
        return _refusal(
            response.status_code, response.headers, response.content, formatted="response_format" in body
        )
    return _answer(response.content)


def _refusal(
    status: int, headers: Mapping[str, str], content: bytes, *, formatted: bool
) -> FormatRefused | Failure:
    if status == 429:
        return Throttled(retry_after(headers, time.time()))
    head = content[: 16 * 1024].lower()
    if formatted and status in _FORMAT_STATUSES and any(word in head for word in _FORMAT_WORDS):
        return FormatRefused()
    return OperationalFailure(f"http_{status}", usage=_usage(_json(content)))


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a 429 asks to wait, between 0 and a day; `None` where it does not say.

    `retry-after-ms` comes first, then `retry-after` in seconds, then as a date: against the server's own `date`, so
    that its clock need not agree with ours. `now` is in seconds since the epoch.
    """
    for name, unit in (("retry-after-ms", 1_000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return min(seconds, MAX_RETRY_AFTER)
    until = _date(headers.get("retry-after"))
    if until is None:
        return None
    since = _date(headers.get("date"))
    return min(max(until - (now if since is None else since), 0.0), MAX_RETRY_AFTER)


def _date(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, IndexError):
        return None


def _answer(content: bytes) -> Answer | Failure:
    body = _json(content)
    usage = _usage(body)
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return OperationalFailure("bad_response", usage=usage)
    text = message.get("content")
    if text is not None and not isinstance(text, str):
        return OperationalFailure("bad_response", usage=usage)
    return Answer(
        text=text or "",
        finish_reason=_short(choice.get("finish_reason")),
        model=_short(body.get("model")),
        usage=usage,
        tool_calls=bool(message.get("tool_calls") or message.get("function_call")),
        refused=bool(message.get("refusal")),
    )


def _json(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _usage(body: Mapping[str, Any]) -> Usage | None:
    said = body.get("usage")
    if not isinstance(said, dict):
        return None
    return Usage(_tokens(said.get("prompt_tokens")), _tokens(said.get("completion_tokens")))


def _tokens(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_TOKENS else 0


def _short(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None

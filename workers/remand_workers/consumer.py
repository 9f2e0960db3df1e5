"""The door to the queues: a message that no worker of ours can have sent is thrown away before Celery looks at it.

Celery's own consumer ends the whole worker over some shapes of messages (a task's name that is a list, a missing id),
puts the message back, and so ends the next worker too. It also takes what Remand never sends: other tasks, compressed
bodies that grow without bound, messages to be kept in memory until a far day, chains of anybody's tasks. Here only what
`CelerySender` sends gets through: one of three tasks, one token, a chain of the same about the same token; or the one
that looks after a registry, and its name. Nothing of a message that is refused is logged. What cannot even be taken
off the list (raw pushes without kombu's envelope) never gets this far.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, Final

from celery.worker.consumer import Consumer
from kombu import compression

from remand_tasks.celery_tasks import NAMES
from remand_tasks.token import BadToken, Token, registry_of

log = logging.getLogger("remand.worker")

MAX_BODY: Final = 1024 * 1024
"""Bytes of the longest body that is read; ours have about 500 for each step."""
_TASKS: Final = frozenset(NAMES.values())
_STEPS: Final = _TASKS - {NAMES["reconcile"]}
_LONGEST_ID: Final = 200


class CarefulConsumer(Consumer):
    """Celery's consumer behind a check of each message."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # kombu decompresses before anybody sees a message, and without a bound.
        for kind in compression.encoders():
            compression.register(_refuse, _refuse, kind)

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:
        """What is called with each message. A broker that cannot be reached is Celery's to deal with, as ever."""
        handle = super().create_task_handler(*args, **kwargs)
        broker = (*self.connection_errors, *getattr(self, "channel_errors", ()))

        def careful(message: Any) -> None:
            problem = fault_of(message)
            if problem is None:
                try:
                    handle(message)
                except broker:
                    raise
                except Exception as error:
                    problem = type(error).__name__
                else:
                    return
            log.warning("refused a message that no worker of ours sent: wrong %s", problem)
            if not message.acknowledged:
                message.reject_log_error(log, self.connection_errors)

        return careful


def _refuse(_: bytes) -> bytes:
    raise ValueError("compressed messages are not taken")


def fault_of(message: Any) -> str | None:
    """What is wrong with a message, in a word; `None` if it is one of ours."""
    headers = message.headers
    if not isinstance(headers, dict):
        return "headers"
    name, identity = headers.get("task"), headers.get("id")
    if not isinstance(name, str) or name not in _TASKS:
        return "task"
    if not isinstance(identity, str) or not 0 < len(identity) <= _LONGEST_ID:
        return "id"
    if message.content_type != "application/json" or message.content_encoding != "utf-8":
        return "content type"
    if any(
        headers.get(name)
        for name in ("compression", "eta", "expires", "group", "chord", "replaced_task_nesting")
    ):
        return "option"
    if headers.get("timelimit") not in (None, [None, None]) or headers.get("retries") not in (None, 0):
        return "option"
    return _fault_of_body(message.body, registry=name == NAMES["reconcile"])


def _fault_of_body(body: object, *, registry: bool) -> str | None:
    if not isinstance(body, str | bytes) or len(body) > MAX_BODY:
        return "size"
    try:
        arguments, keywords, embedded = json.loads(body)
        (token,) = arguments
        _ = registry_of(token) if registry else Token.parse(token)
    except (ValueError, TypeError, RecursionError):
        return "body"
    except BadToken:
        return "token"
    if keywords != {} or not isinstance(embedded, dict):
        return "body"
    if any(embedded.get(name) for name in embedded.keys() - {"chain"}):
        return "body"
    links = embedded.get("chain") or []
    if registry and links:
        return "chain"
    if not isinstance(links, list) or not all(_is_link(link, token) for link in links):
        return "chain"
    return None


def _is_link(link: object, token: str) -> bool:
    return (
        isinstance(link, dict)
        and isinstance(link.get("task"), str)
        and link["task"] in _STEPS
        and link.get("args") == [token]
        and not link.get("kwargs")
    )

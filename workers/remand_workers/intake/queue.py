"""An AMQP queue, over a connection of its own: `rabbitmqadmin publish routing_key=remand.intake payload='{"id": …}'`.

One message at a time is taken off, so that one that ends this process cannot be confused with those behind it. A
message that has to wait keeps its channel, unacknowledged, and the next ones come through another.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from kombu.connection import Connection

from remand_tasks.registry.intake import MOST_DELIVERIES, Delivery

_PATIENCE: Final = 30.0
_HEARTBEAT: Final = 30
_MOST_WAITING: Final = 16
"""Messages put off at once; beyond that they hold up the queue."""
_ARGUMENTS: Final = {
    "x-queue-type": "quorum",
    # The broker's own end of a message whose frames cannot even be read.
    "x-delivery-limit": 4 * MOST_DELIVERIES,
}
_SETTLED: Final = 0.5
"""Seconds without a message after which the queue is asked whether it is empty."""


@dataclass(slots=True)
class _Held:
    """A delivered message, the channel that it came through, and when it is its turn again."""

    delivery: Delivery
    channel: Any
    tag: int
    due: float = 0.0


class Queue:
    """A durable queue: declared as a quorum queue where there is none, taken as it is where there is one."""

    kind = "amqp"

    def __init__(self, url: str, *, name: str, lease: float) -> None:
        self.where = f"queue {name}"
        self._url, self._name, self._lease = url, name, lease
        self._line: Any = None
        self._channel: Any = None
        self._tag = ""
        self._arrived: deque[_Held] = deque()
        self._waiting: deque[_Held] = deque()
        self._in_hand: _Held | None = None

    def open(self) -> None:
        """Connect, make the queue where there is none, and begin to consume."""
        self._line = Connection(
            self._url,
            heartbeat=_HEARTBEAT,
            connect_timeout=5,
            transport_options={"read_timeout": _PATIENCE, "write_timeout": _PATIENCE},
        )
        self._line.connect()
        self._declare()
        self._consume()

    def next(self, wait: float) -> Delivery | None:
        """What is due again, else a new message, for which to wait so many seconds. With 0, until none is left."""
        if self._waiting and self._waiting[0].due <= time.monotonic():
            return self._take(self._waiting.popleft())
        self._drain(wait or _SETTLED)
        while not wait and not self._arrived and self._channel is not None and self._ready():
            self._drain(_SETTLED)
        return self._take(self._arrived.popleft()) if self._arrived else None

    def done(self) -> None:
        """Acknowledge the message in hand."""
        held = self._in_hand
        assert held is not None
        held.channel.basic_ack(held.tag)
        if held.channel is not self._channel:
            held.channel.close()
        if self._channel is None:
            self._consume()

    def later(self) -> None:
        """Hold the message in hand for a lease; the next ones come through a channel of their own."""
        held = self._in_hand
        assert held is not None
        held.delivery = replace(held.delivery, number=held.delivery.number + 1)
        held.due = time.monotonic() + self._lease
        self._waiting.append(held)
        if held.channel is self._channel:
            held.channel.basic_cancel(self._tag)
            self._channel = None
        if self._channel is None and len(self._waiting) < _MOST_WAITING:
            self._consume()

    def close(self) -> None:
        """Close the connection: what is not acknowledged goes back into the queue."""
        self._arrived.clear()
        self._waiting.clear()
        self._channel = None
        if self._line is not None:
            with suppress(Exception):
                self._line.close()
            self._line = None

    def _take(self, held: _Held) -> Delivery:
        self._in_hand = held
        return held.delivery

    def _drain(self, wait: float) -> None:
        """Read what the broker sends, for so many seconds, or until a message has come."""
        if self._arrived:
            return
        self._line.heartbeat_check()
        with suppress(TimeoutError):
            self._line.drain_events(timeout=wait)

    def _ready(self) -> bool:
        """Whether the queue holds a message that is in nobody's hands."""
        with self._line.channel() as channel:
            return bool(channel.queue_declare(self._name, passive=True).message_count)

    def _declare(self) -> None:
        try:
            with self._line.channel() as channel:
                channel.queue_declare(self._name, passive=True)
        except self._line.channel_errors as error:
            if getattr(error, "reply_code", None) != 404:
                raise
            with self._line.channel() as channel:
                channel.queue_declare(self._name, durable=True, auto_delete=False, arguments=_ARGUMENTS)

    def _consume(self) -> None:
        channel = self._line.channel()
        channel.auto_decode = False
        channel.basic_qos(prefetch_size=0, prefetch_count=1, a_global=False)

        def arrived(message: Any) -> None:
            # The message as it is on the wire: kombu's own would be decompressed without a bound.
            headers = message.headers if isinstance(message.headers, dict) else {}
            before = headers.get("x-delivery-count", 0)
            number = before + 1 if isinstance(before, int) else 1
            body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
            delivery = Delivery(source=self.kind, body=body, number=number)
            self._arrived.append(_Held(delivery, channel, message.delivery_tag))

        self._channel, self._tag = channel, channel.basic_consume(self._name, callback=arrived)

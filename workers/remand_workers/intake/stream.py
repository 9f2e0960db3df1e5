"""A Redis Stream, read as one of a consumer group: `XADD remand.intake * json '{"id": …}'`.

What a consumer was given stays noted as pending until it is acknowledged. So a message that was in the hands of a
process that died comes again, to anybody, once nobody has touched it for a lease. What is acknowledged is deleted: the
stream is as long as what is still to be done.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

import redis
from redis.exceptions import ResponseError

from remand_tasks.registry.intake import MOST_DELIVERIES, Delivery

FIELD: Final = b"json"
_PATIENCE: Final = 30.0
_GONE: Final = 3_600_000
"""Milliseconds after which a consumer that holds nothing is forgotten."""


class Stream:
    """A stream and the group that reads it, under a consumer's name of this process alone."""

    kind = "redis"

    def __init__(self, url: str, *, name: str, group: str, lease: float) -> None:
        self.where = f"stream {name}"
        self._name, self._group, self._lease = name, group, lease
        self._consumer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._redis = redis.Redis.from_url(
            url, socket_timeout=_PATIENCE, socket_connect_timeout=5, health_check_interval=30
        )
        self._in_hand: bytes = b""
        self._look_at = 0.0

    def open(self) -> None:
        """Make the group where there is none, beginning at the stream's first message."""
        try:
            self._redis.xgroup_create(self._name, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        self._forget_the_dead()
        self._look_at = 0.0

    def next(self, wait: float) -> Delivery | None:
        """What somebody left unfinished, else a new message, for which to wait so many seconds."""
        if time.monotonic() >= self._look_at:
            if (left := self._left()) is not None:
                return left
            self._look_at = time.monotonic() + self._lease / 4
        found: Any = self._redis.xreadgroup(
            self._group, self._consumer, {self._name: ">"}, count=1, block=round(wait * 1000) or None
        )
        for _, entries in found or ():
            for place, fields in entries:
                return self._delivery(place, fields, 1)
        return None

    def done(self) -> None:
        """Acknowledge the message in hand, and delete it."""
        with self._redis.pipeline(transaction=True) as together:
            together.xack(self._name, self._group, self._in_hand)
            together.xdel(self._name, self._in_hand)
            together.execute()

    def later(self) -> None:
        """Leave the message in hand where it is: it comes again after a lease."""

    def close(self) -> None:
        """Close the connection. What is noted under this consumer's name comes again, to others."""
        self._redis.close()

    def _left(self) -> Delivery | None:
        """The oldest message that was delivered and that nobody has touched for a lease."""
        idle = round(self._lease * 1000)
        noted: Any = self._redis.xpending_range(self._name, self._group, min="-", max="+", count=1, idle=idle)
        for pending in noted:
            place, number = pending["message_id"], int(pending["times_delivered"]) + 1
            # A body that ended every process that read it, by its size say, is not even read.
            unread = number > MOST_DELIVERIES + 1
            claimed: Any = self._redis.xclaim(
                self._name, self._group, self._consumer, idle, [place], justid=unread
            )
            for each in claimed:
                return self._delivery(place, {} if unread else each[1], number)
        return None

    def _delivery(self, place: bytes, fields: Mapping[bytes, bytes], number: int) -> Delivery:
        """The field `json` is the message; so is a field of any name if there is no other."""
        self._in_hand = place
        body = fields.get(FIELD)
        if body is None and len(fields) == 1:
            (body,) = fields.values()
        where = f"{self._name}/{place.decode('ascii')}"
        return Delivery(source=self.kind, body=body, number=number, place=where)

    def _forget_the_dead(self) -> None:
        """Take consumers off the group's list that hold nothing and have not been heard of for an hour."""
        consumers: Any = self._redis.xinfo_consumers(self._name, self._group)
        for each in consumers:
            if not each["pending"] and each["idle"] > _GONE:
                self._redis.xgroup_delconsumer(self._name, self._group, each["name"])

"""Messages of other systems: what is done with one, from its bytes to its place in the ledger.

A message is taken whole or not at all, once under its id, in one transaction with its entries; only after that may it
be acknowledged. What is wrong with one is a code in a dead letter. What cannot be judged now, because the registry's
code is not here or a server is gone, is no dead letter yet: it is left where it is, and comes again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic_core import PydanticCustomError, from_json
from redis.exceptions import RedisError
from sqlalchemy import Connection, select
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection

from remand.calls import place_of
from remand.errors import BadEntry, PipelineError
from remand.keys import MAX_KEY, is_key
from remand.pipeline import load_registry
from remand.registry import Registry
from remand_policy import digest as canonical_digest

from ..faults import point
from ..state.engine import Database
from .letters import Letters, Reason, Refusal
from .store import Made, RegistryRow, find, made_of, put, want
from .tables import messages

log = logging.getLogger("remand.intake")

OUTAGES: Final = (OperationalError, InterfaceError, NoConnection, RedisError)
"""What ledger and vault raise when they cannot be used: nothing is wrong with the message then."""
MOST_DELIVERIES: Final = 5
"""A message that came this often and was never finished is not tried again."""
_BOM: Final = b"\xef\xbb\xbf"


def _key(text: str) -> str:
    if not is_key(text):
        raise PydanticCustomError("not_printable", "only printable characters")
    return text


class Message(BaseModel):
    """What another system asks of a registry: to store entries, to look for duplicates, or both."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        hide_input_in_errors=True,
        json_schema_extra={
            "anyOf": [
                {"required": ["entries"]},
                {"required": ["reconcile"], "properties": {"reconcile": {"const": True}}},
            ]
        },
    )

    id: Annotated[str, AfterValidator(_key)] = Field(
        min_length=1,
        max_length=MAX_KEY,
        description=(
            "Names the message for ever: the same one again changes nothing, another one under it is refused. "
            "Printable characters; it is shown, so nothing secret."
        ),
    )
    registry: Annotated[str, AfterValidator(_key)] = Field(
        min_length=1, max_length=100, description="The registry's name."
    )
    entries: list[dict[str, JsonValue]] = Field(
        default_factory=list,
        json_schema_extra={"minItems": 1},
        repr=False,
        description="Entries to store, each as the registry's entry model has it; those are then compared.",
    )
    reconcile: bool = Field(False, description="Look for duplicates, whether or not there are new entries.")

    @model_validator(mode="after")
    def _asks(self) -> Self:
        if not self.entries and (not self.reconcile or "entries" in self.model_fields_set):
            raise PydanticCustomError("asks_nothing", "neither entries nor reconcile")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one message may be: bytes of its body, and entries."""

    size: int = 1024 * 1024
    entries: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message as it came. `number` counts its deliveries; `place` says where it lay, if it has no body."""

    source: str
    body: bytes | None = field(repr=False)
    number: int = 1
    place: str = ""


class Result(StrEnum):
    """What became of a delivery. All but `LATER` are final: acknowledge it."""

    TAKEN = "taken"
    REDELIVERED = "redelivered"
    """It was taken before; nothing changed."""
    DEAD = "dead"
    LATER = "later"
    """It cannot be judged yet: leave it unacknowledged, and take it again."""


def parse(body: bytes, limits: Limits) -> Message | Refusal:
    """The message that `body` holds, or what is wrong with it, without a word of it."""
    if len(body) > limits.size:
        return Refusal(Reason.TOO_LARGE)
    body = body.removeprefix(_BOM)
    try:
        message = Message.model_validate_json(body)
    except ValidationError as error:
        return _refusal(error, body)
    if len(message.entries) > limits.entries:
        return Refusal(Reason.TOO_LARGE, "entries", message.id, _shown(message.registry))
    return message


def _refusal(error: ValidationError, body: bytes) -> Refusal:
    """The first thing that is wrong, at a field of ours or at an entry's number: other names are the sender's."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return Refusal(Reason.NOT_JSON)
    field_name, *inner = first["loc"] or ("",)
    where = [str(field_name)] if field_name in Message.model_fields else []
    if where and inner and isinstance(inner[0], int):
        where.append(str(inner[0]))
    detail = f"{'.'.join(where)}: {first['type']}" if where else str(first["type"])
    given = from_json(body)
    named = given if isinstance(given, dict) else {}
    identity, registry = named.get("id"), named.get("registry")
    return Refusal(
        Reason.SCHEMA,
        detail,
        identity if isinstance(identity, str) and is_key(identity) else "",
        _shown(registry) if isinstance(registry, str) else "",
    )


def _shown(registry: str) -> str:
    """The name of a registry, if a registry could be called so."""
    fits = 0 < len(registry) <= 100 and registry.isprintable() and not set(registry) & set("/\\ ")
    return registry if fits else ""


@dataclass(slots=True, kw_only=True)
class Intake:
    """Takes messages. Threads may share it."""

    database: Database
    letters: Letters
    clock: Callable[[], float]
    limits: Limits = field(default_factory=Limits)
    _loaded: dict[str, Registry[Any]] = field(default_factory=dict)

    def take(self, delivery: Delivery) -> Result:
        """Take a message into the ledger, or bury it. Raises what is in `OUTAGES`, and then nothing has happened."""
        judged = self._judge(delivery)
        if isinstance(judged, Refusal):
            if judged.reason is Reason.REGISTRY_UNAVAILABLE and delivery.number < MOST_DELIVERIES:
                return Result.LATER
            self._bury(judged, delivery)
            judged = Result.DEAD
        point("intake.recorded")
        return judged

    def _judge(self, delivery: Delivery) -> Result | Refusal:
        if delivery.number > MOST_DELIVERIES:
            return Refusal(Reason.REDELIVERED)
        if delivery.body is None:
            return Refusal(Reason.NO_BODY)
        try:
            return self._taken(delivery.body, delivery.source)
        except OUTAGES:
            raise
        except Exception as error:
            where = place_of(error, __name__)
            log.error("a message from %s could not be taken: %s at %s", delivery.source, where.type, where.at)
            return Refusal(Reason.ERROR, where.type)

    def _taken(self, body: bytes, source: str) -> Result | Refusal:
        message = parse(body, self.limits)
        if isinstance(message, Refusal):
            return message

        def refused(reason: Reason, detail: str = "") -> Refusal:
            return Refusal(reason, detail, message.id, _shown(message.registry))

        try:
            digest = canonical_digest(message.model_dump())
        except ValueError:  # NaN, an infinity: pydantic takes them, JSON has none
            return refused(Reason.NOT_JSON)
        with self.database.read() as connection:
            before = _before(connection, message.id, digest)
            row = find(connection, message.registry)
        if before is not None:
            return refused(before) if isinstance(before, Reason) else before
        if row is None:
            return refused(Reason.UNKNOWN_REGISTRY)
        registry = self._registry(row)
        if registry is None:
            return refused(Reason.REGISTRY_UNAVAILABLE)
        made: list[Made] = []
        for number, entry in enumerate(message.entries):
            try:
                made.append(made_of(registry, registry.parse(json.dumps(entry))))
            except BadEntry as error:
                return refused(Reason.BAD_ENTRY, f"entries.{number}: {error.code}")
        now = self.clock()
        with self.database.write() as connection:
            inserted = connection.execute(
                self.database.insert_or_ignore(messages).returning(messages.c.id),
                {
                    "id": message.id,
                    "registry": row.name,
                    "digest": digest,
                    "entries": len(made),
                    "source": source,
                    "at": now,
                },
            )
            if inserted.scalar() is None:  # another process was faster
                before = _before(connection, message.id, digest)
                return refused(before) if isinstance(before, Reason) else Result.REDELIVERED
            if made:
                put(self.database, connection, row.name, made, now)
            want(connection, row.name, now)
        return Result.TAKEN

    def _registry(self, row: RegistryRow) -> Registry[Any] | None:
        """The registry's code in the version that the ledger knows, or `None` where it is not here.

        Not by its fingerprint: that covers the model, which nobody asks here.
        """
        found = self._loaded.get(row.target)
        if found is None:
            try:
                found = load_registry(row.target)
            except PipelineError as error:
                log.warning("registry %s cannot be loaded here: %s", row.name, error.problem)
                return None
            self._loaded[row.target] = found
        if (found.name, found.version) != (row.name, row.version):
            log.warning(
                "registry %s is here in version %s, and the ledger knows %s",
                row.name,
                found.version,
                row.version,
            )
            return None
        return found

    def _bury(self, refusal: Refusal, delivery: Delivery) -> None:
        body = delivery.body or b""
        letter = self.letters.bury(
            refusal,
            source=delivery.source,
            digest=hashlib.sha256(delivery.place.encode() if delivery.body is None else body).hexdigest(),
            size=len(body),
            body=body if len(body) <= self.limits.size else b"",
        )
        log.warning(
            "a message of %d bytes from %s was refused: %s (dead letter %d)",
            len(body),
            delivery.source,
            refusal.reason.value,
            letter,
        )


def _before(connection: Connection, message_id: str, digest: str) -> Result | Reason | None:
    """What the ledger says of a message's id: taken before, taken by another message, or free."""
    known = connection.execute(select(messages.c.digest).where(messages.c.id == message_id)).scalar()
    if known is None:
        return None
    return Result.REDELIVERED if known == digest else Reason.ID_REUSED

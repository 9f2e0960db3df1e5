"""Dead letters: messages of other systems that could not be taken, each with a code that says why.

A letter holds codes, counts and a digest. The message itself is in the vault alone, encrypted and expiring, so that a
person can have it tried again; what cannot be read there any more can only be sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final, Literal

from sqlalchemy import func, select, update

from ..state.engine import Database
from ..state.vault import Vault
from .tables import dead

LONGEST_DETAIL: Final = 100
MOST_KEPT: Final = 64 * 1024 * 1024
"""Bytes of all bodies in the vault together: a flood of garbage must not fill it."""
_RUN: Final = "intake:dead"
"""Stands in the vault's keys where a run would; no run can be called so."""
_BODY: Final = "body"


class Reason(StrEnum):
    """Why a message could not be taken."""

    NO_BODY = "no_body"
    """The entry of the stream has no field `json`, and not just one field."""
    TOO_LARGE = "too_large"
    """More bytes or more entries than the settings allow."""
    NOT_JSON = "not_json"
    SCHEMA = "schema"
    """JSON, but not of the form that `remand intake schema` prints."""
    ID_REUSED = "id_reused"
    """Another message was taken under its id."""
    UNKNOWN_REGISTRY = "unknown_registry"
    REGISTRY_UNAVAILABLE = "registry_unavailable"
    """The registry's code could not be loaded, or not in the version that the ledger knows."""
    BAD_ENTRY = "bad_entry"
    """The registry refused an entry, and so the whole message."""
    REDELIVERED = "redelivered"
    """It came again and again, and whoever took it never finished."""
    ERROR = "error"
    """Taking it raised something that nobody expected."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is wrong with a message. `detail` is a place and a code; id and registry are there if they can be shown."""

    reason: Reason
    detail: str = ""
    message_id: str = ""
    registry: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter as its row says. `kept` counts the bytes that are in the vault, 0 for none."""

    id: int
    message_id: str
    registry: str
    source: str
    reason: str
    detail: str
    size: int
    kept: int
    times: int
    state: str
    at: float


@dataclass(slots=True, kw_only=True)
class Letters:
    """Buries messages and brings them back. Bodies go `lifetime` seconds after the message was last seen."""

    database: Database
    vault: Vault
    clock: Callable[[], float]
    lifetime: float
    most_kept: int = field(default=MOST_KEPT)

    def bury(self, refusal: Refusal, *, source: str, digest: str, size: int, body: bytes = b"") -> int:
        """Make a message's letter, or bring up the one that it has; `body` is kept if there is room. Its number."""
        now = self.clock()
        this = (dead.c.source == source) & (dead.c.digest == digest)
        others = select(func.coalesce(func.sum(dead.c.kept), 0)).where(
            dead.c.state == "dead", dead.c.at > now - self.lifetime, ~this
        )
        said = {
            "message_id": refusal.message_id,
            "registry": refusal.registry,
            "reason": refusal.reason.value,
            "detail": refusal.detail[:LONGEST_DETAIL],
            "state": "dead",
            "at": now,
        }
        with self.database.write() as connection:
            room = self.most_kept - int(connection.execute(others).scalar_one())
            kept = len(body) if len(body) <= room else 0
            connection.execute(
                self.database.insert_or_ignore(dead),
                {**said, "source": source, "digest": digest, "size": size, "kept": 0, "times": 0},
            )
            letter = connection.execute(
                update(dead)
                .where(this)
                .values(**said, kept=kept, times=dead.c.times + 1)
                .returning(dead.c.id)
            ).scalar_one()
        if kept:
            self.vault.keep(_RUN, letter, _BODY, body, expiry=self.lifetime)
        return int(letter)

    def body(self, letter: int) -> bytes | None:
        """The message of a letter, or `None` where it is not, or no longer, in the vault. Raises `VaultError`."""
        return self.vault.read(_RUN, letter, [_BODY]).get(_BODY)

    def settle(self, letter: int, state: Literal["retried", "dropped"]) -> bool:
        """Be done with a letter and delete its message. False where somebody else was first."""
        self.vault.delete(_RUN, letter)
        with self.database.write() as connection:
            changed = connection.execute(
                update(dead).where(dead.c.id == letter, dead.c.state == "dead").values(state=state, kept=0)
            )
            return bool(changed.rowcount == 1)


_COLUMNS = [dead.c[f.name] for f in fields(Letter)]


def listed(
    database: Database, *, settled: bool = False, ids: Sequence[int] = (), limit: int | None = None
) -> list[Letter]:
    """Dead letters, the latest first; with `settled` also those that were retried or dropped; of `ids` alone if any."""
    statement = select(*_COLUMNS).order_by(dead.c.at.desc(), dead.c.id.desc()).limit(limit)
    if not settled:
        statement = statement.where(dead.c.state == "dead")
    if ids:
        statement = statement.where(dead.c.id.in_(list(ids)))
    with database.read() as connection:
        return [Letter(**found) for found in connection.execute(statement).mappings()]

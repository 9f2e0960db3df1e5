"""A sealed word in the vault by which a worker sees, before it takes any work, whether it has the others' keys.

Each worker that starts opens the word that the last one left, then leaves its own, sealed with its first key. Who
cannot open it has a key ring of another installation, or one that a rotation left behind. It is two or three commands
at a worker's start, and none later. The word expires, so that a key that nobody has any more locks nobody out for ever.
This module says nothing about single entries: a ring may open the word and still lack a key that older entries need.
"""

from __future__ import annotations

from typing import Final

import redis

from .vault import KeyRing

KEY: Final = "remand:canary"
EXPIRY: Final = 7 * 86_400.0
"""Seconds that the word stays after the last worker's start."""

_REFERENCE: Final = "canary"
_WORD: Final = b"remand"


def compare(client: redis.Redis, keys: KeyRing, *, expiry: float = EXPIRY) -> None:
    """Open the word that is there and leave one's own.

    :raises VaultError: where `keys` do not open it; it is left as it is.
    """
    milliseconds = round(expiry * 1000)
    sealed = keys.seal(_REFERENCE, _WORD)
    if client.set(KEY, sealed, nx=True, px=milliseconds):
        return
    found = client.get(KEY)
    if isinstance(found, bytes):  # It may have expired in this moment.
        keys.open(_REFERENCE, found)
    client.set(KEY, sealed, px=milliseconds)

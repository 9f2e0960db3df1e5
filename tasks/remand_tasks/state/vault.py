"""The vault: responses, candidates and findings between two steps, encrypted and expiring.

One Redis hash an item, one field an entry. Only who holds a key can read an entry, and only under the reference it
was sealed for: a ciphertext moved to another item or another name does not open. The vault never keeps an entry
without an expiry (whoever writes sets it in the same script), never falls back to plain text, and never says what is
in an entry: its errors are codes.
"""

from __future__ import annotations

import base64
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NoReturn

import redis
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from remand.errors import RemandError
from remand_tasks.token import is_run

_VERSION: Final = 1
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_RING_ENTRY = re.compile(r"([A-Za-z0-9_-]{1,32}):([A-Za-z0-9_-]{43})=?")
_BATCH: Final = 500


class BadKeys(RemandError):
    """The text of a key ring is wrong. Mend `REMAND_VAULT_KEYS`; `remand` never shows what it holds.

    `code` is `empty`, `form` or `duplicate_id`.
    """

    def __init__(self, code: Literal["empty", "form", "duplicate_id"]) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return f"vault keys are wrong ({self.code}): expected id:base64url-of-32-bytes[,id:...]"


class VaultError(RemandError):
    """An entry is there but cannot be opened.

    `code` is `unknown_key` (sealed with a key this ring lacks: add the old key behind the new one), `tampered`
    (changed, or moved from another reference) or `malformed` (no sealed entry at all).
    """

    def __init__(self, code: Literal["unknown_key", "tampered", "malformed"]) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return f"a vault entry cannot be opened: {self.code}"


class KeyRing:
    """AES-256-GCM keys by id: the first one seals, every one opens. Rotate by putting a new key in front.

    A sealed entry is: version (1 byte), length of the key id (1 byte), key id, nonce (12 bytes), ciphertext with its
    tag. The reference is the associated data. Nonces are random: replace a key before it has sealed 2**32 entries.
    """

    __slots__ = ("_ciphers", "_header", "primary")

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """`keys` in order, the sealing key first; 32 bytes each. `parse` reads the usual text form."""
        if not keys:
            raise BadKeys("empty")
        if any(len(key) != _KEY_BYTES for key in keys.values()):
            raise BadKeys("form")
        self.primary: str = next(iter(keys))
        self._ciphers = {name.encode("ascii"): AESGCM(key) for name, key in keys.items()}
        self._header = bytes((_VERSION, len(self.primary))) + self.primary.encode("ascii")

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """Read `id:base64url-of-32-bytes[,id:...]`. White space around the entries does not matter.

        :raises BadKeys: with a code only; the text is never quoted.
        """
        if not text.strip():
            raise BadKeys("empty")
        keys: dict[str, bytes] = {}
        for entry in text.split(","):
            found = _RING_ENTRY.fullmatch(entry.strip())
            if found is None:
                raise BadKeys("form")
            name, material = found.groups()
            if name in keys:
                raise BadKeys("duplicate_id")
            keys[name] = base64.urlsafe_b64decode(material + "=")
        return cls(keys)

    @property
    def ids(self) -> tuple[str, ...]:
        """The keys' ids, the sealing one first. They are no secret: every sealed entry begins with one."""
        return tuple(name.decode("ascii") for name in self._ciphers)

    @staticmethod
    def generate(id: str = "k1") -> str:
        """The text form of a new ring with one random key. It is a secret: store it as one."""
        text = f"{id}:{base64.urlsafe_b64encode(os.urandom(_KEY_BYTES)).decode('ascii').rstrip('=')}"
        if _RING_ENTRY.fullmatch(text) is None:
            raise BadKeys("form")
        return text

    def seal(self, reference: str, data: bytes) -> bytes:
        """Encrypt `data` so that it opens under `reference` only."""
        nonce = os.urandom(_NONCE_BYTES)
        cipher = self._ciphers[self.primary.encode("ascii")]
        return self._header + nonce + cipher.encrypt(nonce, data, reference.encode())

    def open(self, reference: str, sealed: bytes) -> bytes:
        """Decrypt what `seal` gave for the same reference.

        :raises VaultError: when the key is not in this ring, the entry was changed or moved, or it is no entry.
        """
        if len(sealed) < 2 or sealed[0] != _VERSION:
            raise VaultError("malformed")
        nonce_at = 2 + sealed[1]
        data_at = nonce_at + _NONCE_BYTES
        if len(sealed) < data_at + _TAG_BYTES:
            raise VaultError("malformed")
        cipher = self._ciphers.get(sealed[2:nonce_at])
        if cipher is None:
            raise VaultError("unknown_key")
        try:
            return cipher.decrypt(sealed[nonce_at:data_at], sealed[data_at:], reference.encode())
        except InvalidTag:
            raise VaultError("tampered") from None

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self.ids)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A key ring is not pickled: it would put keys wherever the pickle goes.")


def sealed_with(sealed: bytes) -> str | None:
    """The id of the key that sealed this entry, `None` if it is no sealed entry. It opens nothing."""
    if len(sealed) < 2 or sealed[0] != _VERSION or len(sealed) < 2 + sealed[1]:
        return None
    return sealed[2 : 2 + sealed[1]].decode("ascii", "replace")


def vault_key(run: str, seq: int) -> str:
    """The Redis key of an item's vault entries. It shares its hash tag with `record_key`."""
    return f"remand:vault:{{{run}/{seq}}}"


def record_key(run: str, seq: int) -> str:
    """The Redis key of an item's attempt record."""
    return f"remand:attempt:{{{run}/{seq}}}"


class Vault:
    """Seals, opens, reads and deletes entries. An item's are written by its attempt record: one script does both."""

    def __init__(self, redis: redis.Redis, keys: KeyRing) -> None:
        """`redis` must return bytes (`decode_responses=False`): sealed entries are not text."""
        self._redis = redis
        self._keys = keys

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Ids of the keys that this process holds, the sealing one first."""
        return self._keys.ids

    def seal(self, run: str, seq: int, name: str, data: bytes) -> bytes:
        """Encrypt `data` for the entry `name` of one item."""
        return self._keys.seal(f"{run}/{seq}/{name}", data)

    def unseal(self, run: str, seq: int, name: str, sealed: bytes) -> bytes:
        """Decrypt what `seal` gave for the same item and name.

        :raises VaultError: see its codes.
        """
        return self._keys.open(f"{run}/{seq}/{name}", sealed)

    def read(self, run: str, seq: int, names: Sequence[str]) -> dict[str, bytes]:
        """The decrypted entries of `names` that exist, in one round trip. A missing name is absent, not an error.

        :raises VaultError: when an entry exists and cannot be opened.
        """
        if not names:
            return {}
        values: list[bytes | None] = self._redis.hmget(vault_key(run, seq), list(names))  # type: ignore[assignment]
        pairs = zip(names, values, strict=True)
        return {name: self.unseal(run, seq, name, sealed) for name, sealed in pairs if sealed is not None}

    def keep(self, run: str, seq: int, name: str, data: bytes, *, expiry: float) -> None:
        """Encrypt and write an entry that belongs to no item; all of its key goes after `expiry` seconds."""
        key = vault_key(run, seq)
        with self._redis.pipeline(transaction=True) as together:
            together.hset(key, name, self.seal(run, seq, name, data))
            together.pexpire(key, round(expiry * 1000))
            together.execute()

    def discard(self, run: str, seq: int, name: str) -> None:
        """Remove one entry, which is of no use to anybody."""
        self._redis.hdel(vault_key(run, seq), name)

    def delete(self, run: str, seq: int) -> None:
        """Remove every entry of one item."""
        self._redis.unlink(vault_key(run, seq))

    def sweep(self, run: str) -> int:
        """Remove every entry and attempt record of a run, and return how many keys that were.

        It walks the whole key space once, in steps that block nobody: for the end of a run, not for an item.
        Keys written meanwhile may stay; their expiry ends them.
        """
        if not is_run(run):  # anything else could be a pattern that matches other runs
            raise ValueError("not the name of a run")
        ours = tuple(f"remand:{kind}:{{{run}/".encode() for kind in ("vault", "attempt"))
        removed = 0
        batch: list[bytes] = []
        for key in self._scan(f"remand:*:{{{run}/*"):
            if key.startswith(ours):
                batch.append(key)
            if len(batch) == _BATCH:
                removed += self._unlink(batch)
                batch = []
        return removed + (self._unlink(batch) if batch else 0)

    def used_keys(self) -> Counter[str]:
        """How many entries each key has sealed, by key id, walking all of them; `""` counts what is no sealed entry.

        A key that is not among them, and that no worker seals with any more, can go.
        """
        found: Counter[str] = Counter()
        for key in self._scan("remand:vault:{*"):
            values: list[bytes] = self._redis.hvals(key)  # type: ignore[assignment]
            found.update(sealed_with(sealed) or "" for sealed in values)
        return found

    def _scan(self, pattern: str) -> Iterable[bytes]:
        return self._redis.scan_iter(match=pattern, count=1000)

    def _unlink(self, keys: Sequence[bytes]) -> int:
        return int(self._redis.unlink(*keys))

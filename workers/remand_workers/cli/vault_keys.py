"""`vault-key`: makes keys, and counts what each has sealed. It changes neither settings nor the vault."""

from __future__ import annotations

import re
from contextlib import ExitStack

from remand_tasks.state.vault import KeyRing, Vault

from ..app import connect
from ..settings import Settings
from .console import say, table, write_json, write_line, write_table
from .context import attached
from .failures import SUCCEEDED, UsageError


def ring(settings: Settings, *, add: bool, behind: bool) -> int:
    """Print a key, or with `add` the ring that is set with a new key in it. Raises `UsageError`, `BadKeys`."""
    if not add:
        if behind:
            raise UsageError("--behind says where --add puts the new key")
        write_line(KeyRing.generate())
        return SUCCEEDED
    if settings.vault_keys is None:
        raise UsageError(
            "there is no REMAND_VAULT_KEYS to add to; without --add this command makes the first key "
            "(embedded services keep theirs in the file vault.keys of their folder)"
        )
    old = settings.vault_keys.get_secret_value()
    name = _next(KeyRing.parse(old).ids)
    keys = [KeyRing.generate(name), old.strip()]
    write_line(",".join(reversed(keys) if behind else keys))
    say(f"{name} is new, and {'reads only' if behind else 'encrypts'}; this is a secret")
    return SUCCEEDED


def _next(ids: tuple[str, ...]) -> str:
    """A name that the ring does not have: k and the next number."""
    numbers = [int(found[1]) for name in ids if (found := re.fullmatch(r"k(\d{1,9})", name))]
    return f"k{max(numbers, default=len(ids)) + 1}"


def still_used(settings: Settings, *, json: bool) -> int:
    """Say how many entries of the vault each key has sealed, and which of the keys that are set none needs."""
    with ExitStack() as stack:
        settings = attached(settings, stack)
        if settings.vault_keys is None or settings.vault_url is None:
            settings.require_services()
        assert settings.vault_keys is not None
        held = KeyRing.parse(settings.vault_keys.get_secret_value())
        client = connect(settings)
        stack.callback(client.close)
        found = Vault(client, held).used_keys()
    counts = {name: found[name] for name in [*held.ids, *sorted(found.keys() - set(held.ids))]}
    if json:
        write_json(counts)
        return SUCCEEDED
    rows = [
        (name or "(no sealed entry)", count, _advice(name, count, held)) for name, count in counts.items()
    ]
    write_table(table(("key", "#entries", "what it means"), rows))
    return SUCCEEDED


def _advice(name: str, count: int, held: KeyRing) -> str:
    if name == held.primary:
        return "encrypts; keep it"
    if name not in held.ids:
        return "no entry of Remand's" if not name else "not among the keys that are set here"
    return "still needed" if count else "needed by nothing, once no worker has it in front"

"""What people change in registries: making one known, importing entries, settling reviews, undoing merges."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from remand.errors import BadEntry
from remand.pipeline import load_registry
from remand.registry import Registry
from remand_tasks.registry import joining
from remand_tasks.registry.reading import RegistryQueries
from remand_tasks.registry.store import Made, Put, Registries, made_of, put, want
from remand_tasks.state.engine import Database

from ..registries import same_version
from ..settings import Settings
from .console import plural, say, warn, write_json
from .failures import DEGRADED, FAILED, SUCCEEDED
from .feeding import LONGEST_LINE, BadLine, Lines
from .standing import now

_TOLD = 20
"""Bad lines that are reported one by one; the rest is only counted."""
_WORDS = {
    "not_json": "it is not JSON",
    "schema_mismatch": "it does not fit the registry's entry model",
    "key": "the registry's key gives no usable id for it",
    "text": "the registry's text gives nothing to compare for it",
}


def add(database: Database, settings: Settings, target: str, *, json: bool) -> None:
    """Make a registry known under its target."""
    registry = load_registry(target)
    row = Registries(database).register(registry, target, now(settings), move=True)
    if json:
        write_json(
            {
                "registry": row.name,
                "version": row.version,
                "target": row.target,
                "fingerprint": row.fingerprint,
            }
        )
    else:
        say(f"registry {row.name!r} is known in version {row.version!r}, at {row.target!r}")


def import_(database: Database, settings: Settings, name: str, input: str, *, quiet: bool, json: bool) -> int:
    """Store entries from JSON lines. The exit status."""
    row = RegistryQueries(database).standing(name).row
    registry = same_version(row)
    clock = _clock(settings)
    lines = Lines(input)
    read = bad = 0
    total = Put()
    for batch in lines.batches(threading.Event()):
        made: list[Made] = []
        for line in batch:
            read += 1
            try:
                made.append(_made(registry, line.text))
            except BadLine as error:
                bad += 1
                if bad <= _TOLD:
                    warn(f"line {line.number} was left out: {error}")
                elif bad == _TOLD + 1:
                    warn("more lines were left out; those are only counted")
        if made:
            with database.write() as connection:
                done = put(database, connection, name, made, clock())
                if done.added or done.changed:
                    want(connection, name, clock())
            total = Put(
                total.added + done.added, total.changed + done.changed, total.unchanged + done.unchanged
            )
    lines.close()
    if json:
        write_json(
            {
                "registry": name, "lines": read, "added": total.added, "changed": total.changed,
                "unchanged": total.unchanged, "lines_left_out": bad,
            }
        )  # fmt: skip
    elif not quiet:
        counted = [
            f"{number:,} {word}"
            for number, word in (
                (total.added, "added"), (total.changed, "changed"), (total.unchanged, "unchanged"), (bad, "left out"),
            )
            if number
        ]  # fmt: skip
        say(f"registry {name!r}: {plural(read, 'line')} read{': ' if counted else ''}{', '.join(counted)}")
        if total.added or total.changed:
            say(f"to look for duplicates, where no worker does: remand registry reconcile {name}")
    return SUCCEEDED if not bad else DEGRADED if bad < read else FAILED


def _made(registry: Registry[Any], line: bytes) -> Made:
    if len(line) > LONGEST_LINE:
        raise BadLine(f"it is longer than {LONGEST_LINE // 1024 // 1024} MiB")
    try:
        return made_of(registry, registry.parse(line))
    except BadEntry as error:
        words = _WORDS.get(error.code, f"the registry does not take it ({error.code})")
        raise BadLine(words) from None


def _clock(settings: Settings) -> Callable[[], float]:
    """The ledger's clock, asked once: what passes since then is measured here."""
    offset = now(settings) - time.time()
    return lambda: time.time() + offset


def settle(
    database: Database, settings: Settings, name: str, review: int, *, accept: bool, json: bool
) -> None:
    """Say of a review's entries that they are the same, or that they are not."""
    registry = same_version(RegistryQueries(database).standing(name).row)
    at = now(settings)
    with database.write() as connection:
        merged = joining.settle(connection, registry, review, accept=accept, now=at)
    if json:
        write_json(
            {
                "registry": name, "review": review, "state": "accepted" if accept else "refused",
                "receipt": None if merged is None else merged.id,
                "cluster": None if merged is None else merged.cluster,
            }
        )  # fmt: skip
    elif not accept:
        say(f"review {review} is refused: its entries stay apart")
    elif merged is None:
        say(f"review {review} is accepted: its entries were in one cluster already")
    else:
        say(
            f"review {review} is accepted: {plural(len(merged.sizes), 'cluster')} became {merged.cluster} "
            f"(receipt {merged.id})"
        )


def unmerge(database: Database, settings: Settings, name: str, receipt: int, *, json: bool) -> None:
    """Undo a merge."""
    row = RegistryQueries(database).standing(name).row
    at = now(settings)
    with database.write() as connection:
        undone = joining.unmerge(connection, name, receipt, row.fingerprint, at)
    [told] = [each for each in RegistryQueries(database).history(name, limit=20) if each.number == undone]
    if json:
        write_json({"registry": name, "undone": receipt, "receipt": undone, "clusters": list(told.after)})
    else:
        say(f"merge {receipt} is undone (receipt {undone}): {', '.join(told.after)} stay apart from now on")

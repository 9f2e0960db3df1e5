"""`purge`: what to forget, said in words that people use, and shown before it is done."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from remand_policy import Status
from remand_tasks.state.retention import Retention, Which

from ..settings import Settings
from .console import plural, say, write_json
from .context import ledger, run_named
from .failures import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def seconds(age: str) -> float:
    """`age` such as `30d`, `12h` or `90` (seconds), in seconds. Raises `UsageError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", age.strip())
    if found is None:
        raise UsageError("--older-than takes a number with s, m, h, d or w behind it, such as 30d")
    return float(found[1]) * _UNITS[found[2] or "s"]


def purge(
    settings: Settings,
    *,
    run: str | None,
    older_than: str | None,
    statuses: Sequence[str],
    payloads_only: bool,
    yes: bool,
    json: bool,
) -> int:
    """Purge what fits all that is named, or say how much that would be."""
    if run is None and older_than is None and not statuses:
        raise UsageError("say what to purge: --run, --older-than or --status, for example --older-than 30d")
    for status in statuses:
        if status not in list(Status):
            raise UsageError(f"there is no status {status!r}; there are {', '.join(Status)}")
    before = None if older_than is None else time.time() - seconds(older_than)
    with ledger(settings) as queries:
        which = Which(
            before=before,
            run_id=None if run is None else run_named(queries, run).id,
            statuses=tuple(statuses),
            payloads_only=payloads_only,
        )
        retention = Retention(queries.database)
        count = retention.count(which)
        done = retention.purge(which) if yes else 0
    if json:
        write_json({"items": count, "purged": done})
    elif yes:
        say(f"purged {plural(done, 'item')}; their keys stay, so that nothing revives them")
    else:
        say(f"this would purge {plural(count, 'item')} of ended runs; say --yes to do it")
    return 0

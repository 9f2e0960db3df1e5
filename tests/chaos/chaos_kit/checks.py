"""What holds after every scenario, asked of the ledger, the vault's server and the model server's log."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import redis
from sqlalchemy import select

from remand_tasks.state.tables import items, payloads, receipts

from .model import GENERATIONS, Model
from .pipeline import EXECUTION_RETRIES, RETRIES
from .services import until
from .stacks import Stack

BOUND = 2 * (1 + RETRIES)
"""The most generations that budgets allow an item of `pipeline`: two stages, no repairs."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """One line of the table."""

    stack: str
    fault: str
    times: int = 0
    items: int = 0
    lost: int = 0
    closed_twice: int = 0
    over_budget: int = 0
    extra: int = 0
    """Generations beyond what the items take without faults."""
    in_flight: int = 0
    """Model calls that nobody ever saw the answer of, by processes that were killed, frozen or broken."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count another line into this one."""
        for name in (
            "times",
            "items",
            "lost",
            "closed_twice",
            "over_budget",
            "extra",
            "in_flight",
            "seconds",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.problems += other.problems


class Keys:
    """Watches, while a run goes on, that no key of ours is without an expiry. Used as a context manager."""

    def __init__(self, stack: Stack) -> None:
        self._client = redis.Redis(unix_socket_path=str(stack.vault.socket))
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="chaos-keys", daemon=True)
        self.immortal: set[str] = set()
        self.seen = 0

    def __enter__(self) -> Keys:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(10)
        self._client.close()

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            try:
                keys = list(self._client.scan_iter(match="remand:*", count=1000))
                with self._client.pipeline(transaction=False) as pipe:
                    for key in keys:
                        pipe.pttl(key)
                    left = pipe.execute()
            except redis.RedisError:
                continue  # The server is down for a moment: a scenario's doing.
            self.seen += len(keys)
            self.immortal |= {key.decode() for key, ms in zip(keys, left, strict=True) if ms == -1}


def examine(
    tally: Tally,
    stack: Stack,
    model: Model,
    run: str,
    status: str,
    *,
    count: int,
    died: Collection[int],
    flushed: bool = False,
    expected_status: str | None = "succeeded",
    scripted: bool = True,
) -> None:
    """Fill `tally` in for a run that has ended. `flushed`: records or texts were thrown away, so published calls too.

    `scripted` says that the run's pipeline is the one whose every generation is known beforehand.
    """
    problems = tally.problems
    if expected_status is not None and status != expected_status:
        problems.append(f"the run ended {status}, not {expected_status}")
    with stack.client.database.read() as line:
        rows = line.execute(select(items).where(items.c.run_id == run).order_by(items.c.seq)).mappings().all()
        decided = line.execute(select(receipts).where(receipts.c.run_id == run)).mappings().all()
        stored = line.execute(
            select(payloads.c.seq, payloads.c.name, payloads.c.body).where(payloads.c.run_id == run)
        ).all()
    tally.items += count
    tally.lost += count - sum(row["state"] == "closed" for row in rows)
    tally.closed_twice += _closed_twice(decided, problems, rows)
    if tally.lost:
        problems.append(f"{tally.lost} items are not closed")
    if tally.closed_twice:
        problems.append(f"{tally.closed_twice} rounds closed more than once")
    if scripted:
        values = {(seq, name): json.loads(body) for seq, name, body in stored if name.startswith("value.")}
        inputs = {seq: json.loads(body)["do"] for seq, name, body in stored if name == "input"}
        _generations(tally, model, run, rows, decided, inputs, values, set(died), flushed=flushed)
        _judged(tally, model, run)
    _nothing_left(stack, run, problems)


def _closed_twice(decided: Any, problems: list[str], rows: Any) -> int:
    closings: Counter[tuple[int, int]] = Counter()
    last_stage = max((receipt["stage"] for receipt in decided), default=0)
    for receipt in decided:
        ends = receipt["decision"].startswith("close") or (
            receipt["decision"].startswith("advance") and receipt["stage"] == last_stage
        )
        closings[receipt["seq"], receipt["round"]] += ends
    for row in rows:
        if (
            row["state"] == "closed"
            and row["status"] != "cancelled"
            and closings[row["seq"], row["round"]] == 0
        ):
            problems.append(f"item {row['seq']} is closed without a receipt")
    return sum(count > 1 for count in closings.values())


def _generations(
    tally: Tally,
    model: Model,
    run: str,
    rows: Any,
    decided: Any,
    inputs: dict[int, str],
    values: dict[tuple[int, str], dict[str, Any]],
    died: set[int],
    *,
    flushed: bool,
) -> None:
    problems = tally.problems
    calls = model.calls_of(run)
    seen = {asked.call for asked in model.asked_of(run)}
    failures: Counter[int] = Counter()
    for receipt in decided:
        if receipt["production"] in ("structural", "operational"):
            failures[receipt["seq"]] += receipt["generations"]
    by_item: dict[int, list[Any]] = defaultdict(list)
    for call in calls:
        by_item[call.item].append(call)
    for row in rows:
        item = row["seq"]
        mine = by_item[item]
        unseen = [call for call in mine if call.candidate and call.id not in seen]
        broken = [call for call in mine if not call.candidate]
        # Of the answers that cannot be read, receipts say how many were published.
        unpublished = len(unseen) + max(0, len(broken) - failures[item])
        by_the_dead = sum(call.pid in died for call in unseen)
        by_the_dead += min(sum(call.pid in died for call in broken), max(0, len(broken) - failures[item]))
        tally.in_flight += by_the_dead
        tally.extra += max(0, len(mine) - GENERATIONS[inputs[item]])
        if len(mine) - unpublished > BOUND or row["generations"] > BOUND:
            tally.over_budget += 1
            problems.append(f"item {item} had {len(mine)} generations, {unpublished} of them unpublished")
        if flushed:
            continue
        if unpublished > by_the_dead:
            lost = [(call.pid, call.stage, call.attempt) for call in unseen if call.pid not in died]
            problems.append(f"item {item}: calls of processes that live were never published: {lost}")
        if len(mine) - unpublished != GENERATIONS[inputs[item]] and row["status"] == "accepted":
            problems.append(
                f"item {item} ({inputs[item]}): {len(mine)} generations, {unpublished} unpublished"
            )
        if row["generations"] > len(mine):
            problems.append(f"item {item}: the ledger counts {row['generations']} generations of {len(mine)}")
    for (item, name), value in values.items():
        if value["call"] not in seen:
            problems.append(f"item {item}: {name} was never shown to a validator")
    for call in calls:
        corrected = call.do == "correct" and call.stage == "first" and call.attempt == 2
        if corrected and call.messages != 3 and not flushed:
            problems.append(f"item {call.item}: attempt 2 was asked with {call.messages} messages")
    if not flushed and tally.extra > tally.in_flight:
        problems.append(f"{tally.extra} extra generations, {tally.in_flight} in flight in what died")


def _judged(tally: Tally, model: Model, run: str) -> None:
    asked = Counter((one.item, one.stage, one.validator) for one in model.asked_of(run))
    most = (1 + RETRIES) * (1 + EXECUTION_RETRIES)
    for at, times in asked.items():
        if times > most:
            tally.problems.append(f"validator {at} was called {times} times, {most} are allowed")


def left_over(stack: Stack, run: str) -> list[bytes]:
    """Keys of a run on the vault's server."""
    return [key for key in stack.vault.client.scan_iter(match="remand:*", count=1000) if run.encode() in key]


def _nothing_left(stack: Stack, run: str, problems: list[str]) -> None:
    try:
        until(lambda: not left_over(stack, run), "the vault is empty", 10.0)
    except TimeoutError:
        problems.append(f"{len(left_over(stack, run))} keys of the run are left")

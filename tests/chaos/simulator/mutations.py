"""The protocol's rules, each with a way to take it out of the product. Without any one of them, schedules must fail.

A mutation changes the product's own code or scripts while it is in force, and nothing of the simulator's checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from remand_policy import Retry, Revalidate
from remand_tasks.pulse import Pulse
from remand_tasks.state import ledger, rows, submissions
from remand_tasks.state.attempts import Look, Record
from remand_tasks.state.ledger import Ledger
from remand_tasks.state.rows import Row
from remand_tasks.steps import Next, common, coordinate, produce, validate

from . import memory_redis, memory_sql


@dataclass(frozen=True)
class Rule:
    """A rule of the protocol: what it says, which schedules show its absence, and how it is taken out."""

    says: str
    mode: str
    without: Callable[[ExitStack], None]


def _script(old: str, new: str) -> Callable[[ExitStack], None]:
    def enter(stack: ExitStack) -> None:
        def mutate(_self: Any, script: str) -> str:
            return script.replace(old, new)

        stack.enter_context(patch.object(memory_redis.MemoryRedis, "mutated", mutate))

    return enter


def _no_round(stack: ExitStack) -> None:
    real = rows.apply

    def apply(row: Row, decision: Any, *rest: Any) -> Row:
        after = real(row, decision, *rest)
        return after._replace(epoch=row.epoch) if isinstance(decision, Revalidate) else after

    stack.enter_context(patch.object(rows, "apply", apply))
    _script("tonumber(old[1]) >= tonumber(epoch)", "tonumber(old[1]) > tonumber(epoch)")(stack)


def _no_complete_check(stack: ExitStack) -> None:
    complete = property(lambda self: True)
    stack.enter_context(patch.object(Record, "complete", complete))
    real = coordinate.report_of

    def report_of(record: Record) -> Any:
        done = {"open": "undetermined", "claimed": "undetermined"}
        p = "operational" if record.p in ("open", "claimed") else record.p
        states = tuple(one._replace(state=done.get(one.state, one.state)) for one in record.validators)
        return real(record._replace(p=p, validators=states))

    real_facts = coordinate.facts_of

    def facts_of(record: Record, stage: Any) -> Any:
        return real_facts(
            record._replace(p="operational") if record.p in ("open", "claimed") else record, stage
        )

    stack.enter_context(patch.object(coordinate, "report_of", report_of))
    stack.enter_context(patch.object(coordinate, "facts_of", facts_of))
    for step in (produce, validate):
        run = step.run

        def forwarding(*args: Any, run: Any = run) -> Next:
            after = run(*args)
            return Next.FORWARD if after is Next.STOP else after

        stack.enter_context(patch.object(step, "run", forwarding))


def _missing_unlatched(stack: ExitStack) -> None:
    _script(
        "set('epoch', epoch, 'since', epoch, 'n', '0', 'p', 'norec', 'cand', '', 'starts', '0')\n"
        "  redis.call('PEXPIRE', rec, ARGV[3])",
        "return {'missing', epoch, 0, '0', 'produce', now}",
    )(stack)
    real = Pulse._look

    def look(self: Pulse, row: Row, now: float) -> None:
        runtime = self._runtime
        if row.state == "in_flight":
            run = runtime.ledger.run(row.run_id)
            assert run is not None
            seen = runtime.attempts.condemn(row.token, running=run.running)
            if seen.state == "missing":  # type: ignore[comparison-overlap]
                jumped = runtime.ledger.jump(row, row.epoch, now)
                bound = runtime.pipelines.of(run)
                if jumped is not None and bound is not None:
                    runtime.dispatch(jumped, bound, now)
                return
        real(self, row, now)

    stack.enter_context(patch.object(Pulse, "_look", look))


def _queue_wait_is_loss(stack: ExitStack) -> None:
    def resend(self: Pulse, row: Row, bound: Any, step: str) -> None:
        runtime, now = self._runtime, row.due_at
        fresh = runtime.ledger.execution(row.run_id, row.seq)
        assert fresh is not None
        if fresh.row.recoveries >= runtime.caps.recoveries:
            coordinate.give_up(runtime, fresh.row, bound, "recoveries", now)
        else:
            moved = fresh.row._replace(
                recoveries=fresh.row.recoveries + 1, epoch=fresh.row.epoch + 1, due_at=now + 4.0
            )
            with runtime.ledger.database.write() as connection:
                connection.execute(ledger._UPDATE_ROW, ledger._guarded(moved, fresh.row))
            runtime.dispatch(moved, bound, now)

    stack.enter_context(patch.object(Pulse, "_resend", resend))


def _no_sql_guard(stack: ExitStack) -> None:
    stack.enter_context(patch.object(memory_sql.MemoryDatabase, "unguarded", frozenset({"at_epoch"})))


def _admit_unlocked(stack: ExitStack) -> None:
    real = Ledger._admit

    def admit(self: Ledger, run_id: str, plan: Any, now: float) -> list[Row]:
        with self.database.read() as connection:
            found = connection.execute(ledger._RUN, {"run_id": run_id}).mappings().first()
            count = connection.execute(ledger._OPEN_COUNT, {"run_id": run_id}).scalar_one()
        if found is None or found["status"] != "running":
            return []
        with self.database.write() as connection:
            stale = ledger.run_of(found)
            live = connection.execute(ledger._OPEN_COUNT, {"run_id": run_id}).scalar_one()
            return real(self, connection, stale._replace(window=stale.window + live - count), plan, now)

    stack.enter_context(patch.object(Ledger, "admit", admit))


def _run_unlocked(stack: ExitStack) -> None:
    real = Ledger.commit

    def commit(self: Ledger, before: Row, plan: Any, now: float, change: Any, *, closing: bool) -> Any:
        with self.database.read() as connection:
            stale = ledger.run_of(connection.execute(ledger._RUN, {"run_id": before.run_id}).mappings().one())
        real_of = ledger.run_of
        self.database._before("sql")
        with patch.object(ledger, "run_of", lambda found: stale if stale else real_of(found)):
            with patch.object(self.database, "_before", lambda kind: None):
                return real(self, before, plan, now, change, closing=closing)

    stack.enter_context(patch.object(Ledger, "commit", commit))


def _no_ledger_check(stack: ExitStack) -> None:
    def unchecked(runtime: Any, token: Any) -> Any:
        execution = runtime.ledger.execution_with_input(token.run, token.seq, token.stage)
        if execution is None:
            return None
        row = execution.row._replace(
            state="in_flight", stage=token.stage, attempt=token.attempt, epoch=token.epoch
        )
        run = execution.run._replace(status="running")
        return execution._replace(row=row, run=run), runtime.pipelines.of(execution.run)

    stack.enter_context(patch.object(produce, "checked", unchecked))


def _resend_whole(stack: ExitStack) -> None:
    def resend(self: Pulse, row: Row, bound: Any, step: str) -> None:
        self._runtime.sender.send(row, bound, "produce")

    stack.enter_context(patch.object(Pulse, "_resend", resend))
    # A chain from the first step is cut by `produce` in a run that has ended; without the rule nothing else judges.


def _epoch_reset(stack: ExitStack) -> None:
    values = {**submissions._NEW_ROUND, "epoch": 0}
    stack.enter_context(patch.object(submissions, "_NEW_ROUND", values))


def _no_alone(stack: ExitStack) -> None:
    real = rows._again

    def again(row: Row, decision: Any, *rest: Any) -> Row:
        return real(row, replace(decision, alone=False), *rest)

    stack.enter_context(patch.object(rows, "_again", again))


def _no_ahead(stack: ExitStack) -> None:
    stack.enter_context(patch.object(Ledger, "jump", lambda self, row, epoch, now: None))


RULES: dict[str, Rule] = {
    "no_round": Rule("the epoch rises on revalidation", "normal", _no_round),
    "no_complete_check": Rule(
        "only complete facts decide, and a step with nothing to do stops its chain",
        "normal",
        _no_complete_check,
    ),
    "missing_unlatched": Rule("a missing record is latched by a tombstone", "normal", _missing_unlatched),
    "queue_wait_is_loss": Rule("waiting in a queue is no loss", "normal", _queue_wait_is_loss),
    "takeover": Rule(
        "only the pulse ends a dead claim",
        "normal",
        _script(
            "if production == 'claimed' then return {'held'} end\nif production ~= 'open'",
            "if production == 'claimed' and tonumber(get('exp')) >= clock() then return {'held'} end\n"
            "if production ~= 'open' and production ~= 'claimed'",
        ),
    ),
    "no_sql_guard": Rule("every write to an item is guarded by its epoch", "normal", _no_sql_guard),
    "admit_unlocked": Rule("admission counts under the run's lock", "normal", _admit_unlocked),
    "run_unlocked": Rule("a commit reads the run's status under its lock", "normal", _run_unlocked),
    "no_ledger_check": Rule("produce asks the ledger before it pays", "normal", _no_ledger_check),
    "resend_whole": Rule("the pulse resends from the first open step", "normal", _resend_whole),
    "epoch_reset": Rule("an epoch is never reset, not by a new round either", "redrive", _epoch_reset),
    "no_since": Rule(
        "a record is kept for the attempt that began it alone",
        "redrive",
        _script("old[2] == 'candidate' and old[3] == since and", "old[2] == 'candidate' and"),
    ),
    "no_alone": Rule("the last recovery runs alone", "poison", _no_alone),
    "no_ahead": Rule("a record ahead of a restored ledger is jumped over", "restore", _no_ahead),
}


@contextmanager
def without(*names: str) -> Iterator[None]:
    """The product without these rules, while the block runs."""
    with ExitStack() as stack:
        for name in names:
            RULES[name].without(stack)
        yield


__all__ = ["RULES", "Look", "Retry", "Rule", "common", "without"]

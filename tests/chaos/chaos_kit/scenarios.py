"""The scenarios by their rows: each runs on one stack and gives one line of the table, its problems in it."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from remand_policy import Status
from remand_tasks.faults import POINTS
from remand_tasks.runtime import Caps

from .checks import Tally
from .crew import Worker, Zygote
from .scenario import Live, inputs_of, scenario
from .services import until
from .stacks import SQLITE, Stack

ONCE_A_RUN = frozenset({"pulse.admitted", "pulse.ended", "pulse.swept"})
"""Passed once in a run: to see a fault there often takes many runs."""
SLOW = frozenset({"pulse.begun", "pulse.condemned", "pulse.pushed"})
"""Passed only when an item takes longer than its dispatch lease."""
_ELSEWHERE = ("send", "pulse.cancelled", "pulse.registry")
KILL_POINTS = tuple(
    name for name in POINTS if name not in _ELSEWHERE and not name.startswith(("reconcile.", "intake."))
)


@dataclass(slots=True)
class Ground:
    """Where scenarios run."""

    stack: Stack
    zygote: Zygote

    def run(self, fault: str, **settings: Any) -> Tally:
        """One scenario here."""
        return scenario(self.stack, self.zygote, fault, **settings)


# ------------------------------------------------------------------------------------------------ Q1 and Q3


def killed_at(ground: Ground, point: str, *, times: int = 8, items: int = 18) -> Tally:
    """`kill -9` of whichever worker passes the point, so many times."""
    return _fault_at(ground, point, "kill", f"kill -9 at {point}", times=times, items=items)


def broken_at(ground: Ground, point: str, *, times: int = 3, items: int = 12) -> Tally:
    """An exception at the point, in Remand's own code."""
    return _fault_at(ground, point, "raise", "exception in a step", times=times, items=items)


def _fault_at(ground: Ground, point: str, action: str, name: str, *, times: int, items: int) -> Tally:
    if point in ONCE_A_RUN:
        total = Tally(stack=ground.stack.name, fault=name)
        for _ in range(times):
            total.add(ground.run(name, inputs=inputs_of(4), faults=f"{point}={action}*1"))
        return total
    chance = "" if point.startswith("pulse.") else "@0.5"
    delay = 1.2 if point in SLOW else 0.05
    return ground.run(
        name,
        inputs=inputs_of(items),
        faults=f"{point}={action}{chance}*{times}",
        delay=delay,
        expected_status=None,
        after=_only_capped_ones_failed,
    )


def _only_capped_ones_failed(live: Live, tally: Tally) -> None:
    """Every item is accepted, but one whose coordinator broke five times: that is capped, whoever breaks it."""
    at_coordinators = sum(point.startswith("coordinate.") for point, _, _ in live.crew.faults)
    for outcome in live.run.results():
        capped = outcome.code == "coordinator" and at_coordinators >= Caps().starts
        if outcome.status != "accepted" and not capped:
            tally.problems.append(f"item {outcome.item} ended {outcome.status} ({outcome.code})")


def killed_at_cancelling(ground: Ground, *, times: int = 4) -> Tally:
    """`kill -9` between the batches of a run that is being cancelled."""

    def cancel(live: Live) -> None:
        live.await_calls(2)
        live.run.cancel()

    return ground.run(
        "kill -9 at pulse.cancelled",
        inputs=inputs_of(1_200, ["good"]),
        faults=f"pulse.cancelled=kill*{times}",
        window=8,
        during=cancel,
        expected_status="cancelled",
        scripted=False,
    )


def killed_at_random(ground: Ground, *, times: int = 20, items: int = 40) -> Tally:
    """`kill -9` of one worker after the other, wherever it is."""
    hits: list[int] = []

    def hunt(live: Live) -> None:
        while len(hits) < times and not live.ended():
            victim = live.crew.workers[len(hits) % len(live.crew.workers)]
            paid = len(live.model.calls_of(live.run.id))
            until(victim.is_ready, "the next one is ready")
            victim.signal(signal.SIGKILL)
            hits.append(victim.pid)
            until(functools.partial(live.has_moved, paid), "the run goes on")

    tally = ground.run(
        "kill -9 anywhere",
        inputs=inputs_of(items),
        workers=3,
        during=hunt,
        delay=0.15,
        patience=200.0,
        counted=False,
    )
    tally.times = len(hits)
    return tally


def all_killed_at_once(ground: Ground, *, times: int = 3) -> Tally:
    """`kill -9` of every worker at the same moment."""
    hits: list[int] = []

    def strike(live: Live) -> None:
        for round in range(times):
            live.await_closed(2 * round)
            until(lambda: all(worker.is_ready() for worker in live.crew.workers), "all are there")
            for worker in live.crew.workers:
                worker.signal(signal.SIGKILL)
                hits.append(worker.pid)
            until(lambda: all(worker.pid not in hits for worker in live.crew.workers), "all are replaced")

    tally = ground.run(
        "kill -9 of all at once", inputs=inputs_of(24), during=strike, delay=0.2, counted=False
    )
    tally.times = len(hits)
    return tally


def frozen_long(ground: Ground, point: str, *, times: int = 2) -> Tally:
    """SIGSTOP until the claim was condemned, then SIGCONT: what it brings then changes nothing."""

    refused: list[bool] = []

    def late(live: Live, tally: Tally) -> None:
        until(live.crew.all_awake, "the frozen ones are back")
        if point == "produce.called":
            with suppress(TimeoutError):
                until(lambda: live.crew.says("late: what was produced is refused"), "a late result", 10.0)
                refused.append(True)

    name = "SIGSTOP past the claim, SIGCONT"
    total = Tally(stack=ground.stack.name, fault=name)
    # A frozen one may hold a lock that the pulses of the others wait for. Its result is then late, and taken.
    for _ in range(3):
        rule = f"{point}=stop:4.0@0.5*{times}"
        total.add(ground.run(name, inputs=inputs_of(12), faults=rule, workers=3, after=late))
        if point != "produce.called" or refused:
            return total
    total.problems.append("no late result was ever refused")
    return total


def frozen_in_a_transaction(ground: Ground) -> Tally:
    """SIGSTOP with the run's row locked: PostgreSQL ends such a transaction, and the others go on without it."""

    def go_on(live: Live) -> None:
        until(live.ended, "the others end the run", 35.0)

    return ground.run(
        "SIGSTOP in a transaction",
        inputs=inputs_of(12),
        faults="coordinate.committing=stop:60.0*1",
        workers=3,
        during=go_on,
    )


def frozen_briefly(ground: Ground, point: str = "produce.called", *, times: int = 4) -> Tally:
    """SIGSTOP for less than a claim lasts: what was paid for counts."""
    tally = ground.run(
        "SIGSTOP within the claim", inputs=inputs_of(12), faults=f"{point}=stop:0.6@0.5*{times}", workers=3
    )
    if tally.extra:
        tally.problems.append(f"{tally.extra} calls that were paid for did not count")
    return tally


# --------------------------------------------------------------------------- broker, facts, vault: Q2, Q5, Q13


def broker_emptied(ground: Ground, *, times: int = 4) -> Tally:
    """Q2: every message thrown away, again and again."""

    def empty(live: Live) -> None:
        for round in range(times):
            live.await_closed(3 * round)
            ground.stack.empty_broker()

    tally = ground.run("broker emptied", inputs=inputs_of(24), during=empty, counted=False)
    tally.times = times
    return tally


def broker_restarted(ground: Ground, *, times: int = 1) -> Tally:
    """Q5: the broker killed and started again. On the Valkey stack facts and vault go with it."""

    def restart(live: Live) -> None:
        for round in range(times):
            live.await_closed(3 + 6 * round)
            ground.stack.restart_broker()

    one = ground.stack.name == SQLITE
    tally = ground.run(
        "broker restarted",
        inputs=inputs_of(30),
        during=restart,
        delay=0.3,
        flushed=one,
        counted=False,
        patience=150,
    )
    tally.times = times
    if not one and tally.extra:
        tally.problems.append("the model was paid twice although facts and vault were there")
    return tally


def flushed(ground: Ground, *kinds: str, times: int = 3) -> Tally:
    """Q13: facts, vault entries or both deleted in the middle; extra generations are counted as recoveries."""

    def flush(live: Live) -> None:
        for round in range(times):
            live.await_closed(4 * round)
            live.await_calls(8 * round + 4)
            for kind in kinds:
                ground.stack.flush(kind)

    def counted(live: Live, tally: Tally) -> None:
        recovered = live.run.status().recovered
        if tally.extra > recovered:
            tally.problems.append(f"{tally.extra} extra generations, {recovered} counted as recoveries")

    names = {"attempt": "facts", "vault": "vault"}
    tally = ground.run(
        f"{' and '.join(names[kind] for kind in kinds)} flushed",
        inputs=inputs_of(24),
        during=flush,
        after=counted,
        flushed=True,
        delay=0.1,
        counted=False,
    )
    tally.times = times
    return tally


# -------------------------------------------------------------------------------------- poison: Q4, V13


def poisoned(ground: Ground, *, poison: int = 1, neighbours: int = 30, window: int = 64) -> Tally:
    """Q4: inputs that end their worker every time, with neighbours in the same process."""
    recoveries = 3
    inputs = inputs_of(neighbours, ["good"])
    for number in range(poison):
        inputs.insert(3 + 5 * number, {"do": "kill", "n": -1})
    bad = [number for number, one in enumerate(inputs) if one["do"] == "kill"]

    def verdict(live: Live, tally: Tally) -> None:
        for outcome in live.run.results():
            if outcome.item in bad:
                ended = (outcome.status, outcome.reason, outcome.generations)
                if ended[:2] != ("failed", "operational_failure"):
                    tally.problems.append(f"the poison ended {ended}")
                paid = sum(call.item == outcome.item for call in live.model.calls_of(live.run.id))
                if paid > 1 + recoveries:
                    tally.problems.append(f"the poison was paid {paid} times, {1 + recoveries} are allowed")
            elif outcome.status != "accepted":
                tally.problems.append(f"neighbour {outcome.item} ended {outcome.status} ({outcome.code})")
        tally.times = sum(len(worker.ended) for worker in live.crew.workers)

    return ground.run(
        "poison input" if poison == 1 else f"{poison} poison inputs at once",
        inputs=inputs,
        pipeline="chaos_kit.pipeline:poison",
        workers=1,
        window=window,
        delay=0.2,
        environment={"REMAND_CONCURRENCY": "40", "REMAND_MAX_RECOVERIES": str(recoveries)},
        expected_status="degraded",
        scripted=False,
        after=verdict,
        counted=False,
        patience=115.0,
    )


def judged_to_death(ground: Ground) -> Tally:
    """V13: the worker dies in mid-judgement, every time. One generation, undetermined, never accepted by default."""

    def verdict(live: Live, tally: Tally) -> None:
        asked = [one for one in live.model.asked_of(live.run.id) if one.item == 1]
        paid = [call for call in live.model.calls_of(live.run.id) if call.item == 1]
        (outcome,) = [each for each in live.run.results() if each.item == 1]
        said = [(each.verdict, each.tries) for each in outcome.verdicts]
        if outcome.status != "incomplete" or said != [("undetermined", 2)]:
            tally.problems.append(f"it ended {outcome.status} with {said}")
        if len(paid) != 1 or len(asked) != 2:
            tally.problems.append(f"g={len(paid)}, v={len(asked)}")
        tally.times = sum(len(worker.ended) for worker in live.crew.workers)

    return ground.run(
        "worker dies in mid-judgement",
        inputs=[{"do": "good"}, {"do": "kill"}, {"do": "good"}],
        pipeline="chaos_kit.pipeline:judged_to_death",
        workers=1,
        expected_status="degraded",
        scripted=False,
        after=verdict,
    )


# ---------------------------------------------------------------------- people's doings: Q6, Q7, Q12, Q8


def told_to_stop(ground: Ground) -> Tally:
    """Q6: SIGTERM in the middle of model calls: what is held is finished or handed back, nothing is paid twice."""
    stopped: list[Worker] = []

    def stop(live: Live) -> None:
        live.await_calls(4)
        first = live.crew.workers[0]
        first.again = False
        live.crew.hire(1)
        first.signal(signal.SIGTERM)
        stopped.append(first)

    def ended(live: Live, tally: Tally) -> None:
        until(lambda: not stopped[0].alive, "the worker has ended")
        if stopped[0].ended[-1][1] != 0:
            tally.problems.append(f"it ended with status {stopped[0].ended[-1][1]}")
        if tally.extra:
            tally.problems.append(f"{tally.extra} calls were paid twice")

    return ground.run("SIGTERM", inputs=inputs_of(24), during=stop, after=ended, delay=0.4, counted=False)


def cancelled_while_down(ground: Ground) -> Tally:
    """Q7: cancelled while no worker lives; they come back, and nobody asks the model again."""
    paid: list[int] = []

    def cancel(live: Live) -> None:
        live.await_closed(2)
        live.crew.dismiss()
        live.run.cancel()
        paid.append(len(live.model.calls_of(live.run.id)))
        live.crew.hire(2)

    def still(live: Live, tally: Tally) -> None:
        now = len(live.model.calls_of(live.run.id))
        if now != paid[0]:
            tally.problems.append(f"{now - paid[0]} model calls after the cancellation")
        if live.run.status().end(Status.CANCELLED) == 0:
            tally.problems.append("nothing was cancelled")

    return ground.run(
        "cancelled while all are down",
        inputs=inputs_of(60, ["good"]),
        window=16,
        during=cancel,
        after=still,
        delay=0.3,
        expected_status="cancelled",
        scripted=False,
        counted=False,
    )


def another_clock(ground: Ground, *, seconds: float = 900.0) -> Tally:
    """Q8: one worker's clock is off. No claim is stolen, nothing expires early, nothing is paid twice."""
    tally = ground.run(
        f"a clock {seconds:+g} s off",
        inputs=inputs_of(24),
        workers=1,
        before=lambda live: live.crew.hire(1, fresh=True, REMAND_FAULTS_CLOCK=f"{seconds:g}") and None,
        during=lambda live: None,
        after=_clock_was_off,
        delay=0.2,
        counted=False,
    )
    if tally.extra:
        tally.problems.append(f"{tally.extra} extra generations")
    return tally


def _clock_was_off(live: Live, tally: Tally) -> None:
    first = live.crew.workers[0]
    if "moved the clock" not in first.log.read_text():
        tally.problems.append("the clock was not moved")
    if not any(call.pid == first.pid for call in live.model.calls_of(live.run.id)):
        tally.problems.append("the worker with the other clock did nothing")


def another_version(ground: Ground) -> Tally:
    """Q12: a worker with another version leaves the items due; one that fits takes them."""

    def misfit_first(live: Live) -> None:
        (misfit,) = live.crew.hire(1, fresh=True, CHAOS_VERSION="2")
        until(lambda: "cannot be served here" in misfit.log.read_text(), "it says that it cannot")
        if live.model.calls_of(live.run.id) or live.closed():
            raise TimeoutError("a worker with another version touched the run")

    return ground.run(
        "worker with another version",
        inputs=inputs_of(8, ["good"]),
        pipeline="chaos_kit.pipeline:versioned",
        # Each message that the misfit takes is sent again after a dispatch lease, which doubles.
        environment={"REMAND_DISPATCH_LEASE": "0.4", "REMAND_DISPATCH_LEASE_MAX": "0.8"},
        workers=1,
        before=misfit_first,
        scripted=False,
        counted=False,
    )


# ------------------------------------------------------------------------------- messages and values: B9, Q9, C10


def doubled(ground: Ground, *, items: int = 24) -> Tally:
    """B9: every message delivered twice; the same outcomes and the same generations."""
    tally = ground.run("every message twice", inputs=inputs_of(items), faults="send=double", counted=False)
    if tally.extra:
        tally.problems.append(f"{tally.extra} extra generations")
    return tally


def dropped(ground: Ground, *, items: int = 24) -> Tally:
    """A fifth of all messages lost on the way."""
    tally = ground.run(
        "a fifth of messages lost", inputs=inputs_of(items), faults="send=drop@0.2", counted=False
    )
    if tally.extra:
        tally.problems.append(f"{tally.extra} extra generations")
    return tally


ODD_ENDS = {
    "huge": "accepted",
    "small": "accepted",
    "unpicklable": "failed",
    "particular": "failed",
    "judge-unpicklable": "incomplete",
    "judge-particular": "incomplete",
}


def odd_values(ground: Ground) -> Tally:
    """Q9: an oversized output, and exceptions that cannot be pickled or made anew: clean ends, the worker lives."""
    inputs = [{"do": do} for do in ODD_ENDS]

    def ends(live: Live, tally: Tally) -> None:
        for outcome, (do, status) in zip(live.run.results(), ODD_ENDS.items(), strict=True):
            if outcome.status != status:
                tally.problems.append(f"{do} ended {outcome.status}, not {status}")
        if any(worker.ended for worker in live.crew.workers):
            tally.problems.append("a worker ended")
        if live.crew.says("sensitive text"):
            tally.problems.append("an exception's text is in a log")

    return ground.run(
        "odd outputs and exceptions",
        inputs=inputs,
        pipeline="chaos_kit.pipeline:oddities",
        expected_status="degraded",
        scripted=False,
        after=ends,
        counted=False,
    )


def correction_expired(ground: Ground) -> Tally:
    """C10: the correction is gone before it is read: the same attempt, afresh, with a warning, budgets unchanged."""

    def lose(live: Live) -> None:
        first = live.crew.workers[0]
        first.again = False
        until(lambda: first.pid and not first.alive and not first.awaited, "it died behind its commit")
        ground.stack.flush("vault")
        live.crew.hire(1)

    def afresh(live: Live, tally: Tally) -> None:
        calls = [(call.stage, call.attempt, call.messages) for call in live.model.calls_of(live.run.id)]
        if calls != [("first", 1, 1), ("first", 2, 1), ("second", 1, 1)]:
            tally.problems.append(f"the model was asked {calls}")
        story = [
            (each.attempt, each.production) for each in ground.stack.client.queries.receipts(live.run.id, 0)
            if each.stage == 0
        ]  # fmt: skip
        if story != [(1, "candidate"), (2, "unreadable"), (2, "candidate")]:
            tally.problems.append(f"its receipts say {story}")
        if not live.crew.says("begins afresh"):
            tally.problems.append("nobody warned")

    return ground.run(
        "correction gone before it is read",
        inputs=inputs_of(1, ["correct"]),
        faults="coordinate.committed=kill*1",
        workers=1,
        before=lambda live: None,
        during=lose,
        after=afresh,
        flushed=True,
    )


# --------------------------------------------------------------------------------------------------- Q11


def long_run(
    ground: Ground, *, items: int = 2_000, window: int = 64, report: Callable[[str], None] | None = None
) -> Tally:
    """Q11: a long run. Memory of workers and the depth of the queues stay flat."""
    memory: list[int] = []
    depths: list[int] = []
    redis_bytes: list[int] = []

    def watch(live: Live) -> None:
        pause = threading.Event()
        share = max(items // 20, 1)
        for part in range(1, 21):
            while live.closed() < part * share and not live.ended():
                pause.wait(0.1)
            depths.append(ground.stack.depth())
            memory.append(sum(_resident(worker.pid) for worker in live.crew.workers))
            redis_bytes.append(int(ground.stack.vault.client.info("memory")["used_memory"]))
            if report is not None:
                report(f"{live.closed():>8,} closed, {memory[-1] >> 20} MB in workers, {depths[-1]} messages")

    def flat(live: Live, tally: Tally) -> None:
        if any(worker.ended for worker in live.crew.workers):
            tally.problems.append("a worker ended")
        middle = len(memory) // 2
        if max(memory[middle:]) > 1.15 * max(memory[:middle]) + (8 << 20):
            tally.problems.append(f"workers grew: {[size >> 20 for size in memory]} MB")
        if max(depths) > 4 * window:
            tally.problems.append(f"queues grew: {depths}")
        if max(redis_bytes[middle:]) > 1.5 * max(redis_bytes[:middle]) + (8 << 20):
            tally.problems.append(f"Redis grew: {redis_bytes}")

    return ground.run(
        f"{items:,} items",
        inputs=[{"do": "good", "n": number} for number in range(items)],
        pipeline="chaos_kit.pipeline:long_run",
        window=window,
        # On a machine that is busy a short dispatch lease would send everything twice.
        environment={"REMAND_DISPATCH_LEASE": "10", "REMAND_DISPATCH_LEASE_MAX": "60", "REMAND_CLAIM_LEASE": "30",
                     "REMAND_LOG_LEVEL": "WARNING"},
        during=watch,
        after=flat,
        scripted=False,
        patience=60.0 + items / 10,
        counted=False,
    )  # fmt: skip


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0

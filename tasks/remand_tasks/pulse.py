"""The pulse: what is due, what is lost, what can be admitted, which runs have ended.

A thread of its own in every coordinating worker; any number may beat at once. Each row is looked at in a transaction
of its own, and a row that raises is pushed back, so that one bad row cannot stop the others. A Redis error is not
"missing": the beat ends there and the next one tries again.
"""

from __future__ import annotations

import logging
import math
import threading
import time

from redis.exceptions import RedisError

from .faults import point
from .pipelines import Bound
from .runtime import Runtime
from .state.retention import Retention, Which
from .state.rows import Row
from .steps import coordinate

log = logging.getLogger("remand.pulse")


class Pulse:
    """Beats until stopped. `beats` and `last_beat` (monotonic seconds) are for health checks."""

    def __init__(self, runtime: Runtime, *, attend: str | None = None) -> None:
        """With `attend`, look after that run alone, or after those that begin as `beginning-*` says."""
        self._runtime = runtime
        self._attend = attend
        self._fed_at = -math.inf
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.beats = 0
        self.last_beat = time.monotonic()

    def start(self) -> None:
        """Begin to beat in a thread."""
        self._thread = threading.Thread(target=self._run, name="remand-pulse", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the row that is being looked at."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.beat()
            except RedisError as error:
                log.warning("the pulse skips a beat, Redis cannot be asked: %s", type(error).__name__)
            except Exception as error:
                log.error("the pulse skips a beat: %s", type(error).__name__, exc_info=True)
            self._stop.wait(self._runtime.times.pulse)

    def beat(self) -> int:
        """One round over everything. How many due rows it looked at."""
        runtime = self._runtime
        now = runtime.attempts.now()
        due = runtime.ledger.due(
            now, runtime.caps.due_at_once, tuple(runtime.pipelines.misfits), self._attend
        )
        for row in due:
            if self._stop.is_set():
                return len(due)
            self._guarded(row, now)
        for run in runtime.ledger.unended(self._attend):
            bound = runtime.pipelines.of(run)
            if not run.running:
                while runtime.ledger.cancel_rest(run.id, now, runtime.caps.cancelled_at_once):
                    point("pulse.cancelled")
            elif bound is not None:
                point("pulse.admitting")
                admitted = runtime.ledger.admit(run.id, bound.plan, now)
                if admitted:
                    point("pulse.admitted")
                for owed in admitted:
                    runtime.dispatch(owed, bound, now)
            point("pulse.ending")
            ended = runtime.ledger.end_if_done(run.id, now)
            if ended is not None:
                log.info("run %s ended: %s", run.id, ended.value)
                point("pulse.ended")
                runtime.vault.sweep(run.id)
                point("pulse.swept")
                self._fed_at = -math.inf
        self._registries(now)
        self._retain(now)
        self.beats += 1
        self.last_beat = time.monotonic()
        return len(due)

    def _registries(self, now: float) -> None:
        """Have somebody look after each registry in which something is to be done, now and again."""
        if self._attend is not None:
            return
        registries = self._runtime.registries
        owed = now - self._fed_at >= self._runtime.times.runs_read
        if owed:
            self._fed_at = now
        for name in registries.due(now, owed=owed):
            if registries.push(name, now + self._runtime.times.dispatch_lease, now):
                point("pulse.registry")
                self._runtime.sender.reconcile(name)

    def _retain(self, now: float) -> None:
        """Purge what is older than the retention setting, a small bite each beat."""
        runtime = self._runtime
        if runtime.times.retention is not None:
            old = Which(before=now - runtime.times.retention)
            Retention(runtime.ledger.database).purge(old, limit=runtime.caps.purged_at_once)

    def _guarded(self, row: Row, now: float) -> None:
        try:
            self._look(row, now)
        except RedisError:
            raise
        except Exception as error:
            log.error(
                "item %s of run %s is pushed back: %s",
                row.seq,
                row.run_id,
                type(error).__name__,
                exc_info=True,
            )
            self._push(row, now)

    def _push(self, row: Row, now: float) -> bool:
        """Look again later, each time twice as late: waiting in a queue is no loss."""
        times = self._runtime.times
        later = min(times.dispatch_lease * 2.0 ** min(row.kicks + 1, 16), times.dispatch_longest)
        pushed = self._runtime.ledger.push(row, now + later, row.kicks + 1)
        point("pulse.pushed")
        return pushed

    def _look(self, row: Row, now: float) -> None:
        runtime = self._runtime
        run = runtime.ledger.run(row.run_id)
        if run is None:
            return
        bound = runtime.pipelines.of(run)
        if bound is None:
            return
        if row.state == "waiting":
            woken = runtime.ledger.wake(row, now)
            if woken is not None:
                point("pulse.woken")
                runtime.dispatch(woken, bound, now)
            return
        point("pulse.begun")
        look = runtime.attempts.condemn(row.token, running=run.running)
        point("pulse.condemned")
        match look.state:
            case "complete":
                if look.starts >= runtime.caps.starts:
                    coordinate.give_up(runtime, row, bound, "coordinator", now)
                elif self._push(row, now):
                    runtime.sender.send(row, bound, "coordinate")
            case "live":
                runtime.ledger.push(row, look.until + 1.0)
            case "behind":
                if self._push(row, now):
                    runtime.dispatch(row, bound, now)
            case "ahead":
                jumped = runtime.ledger.jump(row, look.epoch, now)
                if jumped is not None:
                    runtime.dispatch(jumped, bound, now)
            case "idle":
                if self._push(row, now):
                    self._resend(row, bound, look.step)

    def _resend(self, row: Row, bound: Bound, step: str) -> None:
        self._runtime.sender.send(row, bound, "produce" if step == "produce" else "validate")

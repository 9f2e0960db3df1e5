"""The real ledger on SQLite under random sequences of what may happen to it, stale and doubled calls included."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import select

from remand_policy import (
    Advance,
    Again,
    Close,
    Decision,
    Disposition,
    Production,
    Reason,
    Report,
    Retry,
    Revalidate,
    Situation,
    Source,
    Status,
    when_run_has_ended,
)
from remand_tasks.state import rows
from remand_tasks.state.engine import Database
from remand_tasks.state.ledger import Change, Ledger, Plan, RunInfo, receipt_of
from remand_tasks.state.migrate import upgrade
from remand_tasks.state.rows import Facts, Row, Timing, row_of
from remand_tasks.state.submissions import NewItem, RunError, Submissions
from remand_tasks.state.tables import items, receipts

RUN, WINDOW = "r", 3
PLAN = Plan(("a" * 64, "b" * 64), (3_600.0, 3_600.0))
FACTS = Facts(
    production=Production.CANDIDATE, epoch_of_production=1, entry="cand.1", validators=("v",), stage="s"
)

DECISIONS: list[Decision] = [
    Advance(Status.ACCEPTED),
    Close(Status.REJECTED, Reason.SEMANTIC_REJECTION, Disposition.QUARANTINE),
    Close(Status.FAILED, Reason.OPERATIONAL_FAILURE, Disposition.WARN_CONTINUE),
    Close(Status.FAILED, Reason.OPERATIONAL_FAILURE, Disposition.FAIL_RUN),
    Retry(Source.FINDINGS, (0,)),
    Retry(Source.KEPT, backoff=True),
    Revalidate((0,)),
    Again(Situation.THROTTLED),
    Again(Situation.LOST, alone=True),
    Again(Situation.NOREC),
]


class LedgerMachine(RuleBasedStateMachine):
    """Applies what coordinators, pulses and people do, in any order, and keeps old rows to apply them again."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.database = Database(f"sqlite:///{Path(self.folder.name) / 'ledger.db'}")
        upgrade(self.database)
        self.ledger, self.people = Ledger(self.database), Submissions(self.database)
        self.now, self.fed, self.seen = 1_000.0, 0, {}
        self.old: list[Row] = []
        self.people.begin(
            RUN,
            target="m:p",
            pipeline="p",
            version="1",
            fingerprint="f",
            window=WINDOW,
            key_path=None,
            reuse=True,
            now=0.0,
        )

    def rows(self) -> list[Row]:
        """All items as they stand."""
        columns = [items.c[name] for name in Row._fields]
        with self.database.read() as connection:
            return [row_of(found) for found in connection.execute(select(*columns)).mappings()]

    def run_info(self) -> RunInfo:
        """The run as it stands."""
        found = self.ledger.run(RUN)
        assert found is not None
        return found

    @rule(count=st.integers(1, 4), again=st.booleans())
    def feed(self, count: int, again: bool) -> None:
        first = 0 if again else self.fed
        batch = [NewItem(str(n), "{}", str(n)) for n in range(first, first + count)]
        try:
            new = self.people.feed(RUN, batch, self.now)
        except RunError:
            assert self.run_info().ended_at is not None
            return
        assert new == max(0, first + count - self.fed)
        self.fed = max(self.fed, first + count)

    @rule()
    def input_ends(self) -> None:
        self.people.input_done(RUN)

    @rule()
    def admit(self) -> None:
        running = self.run_info().running
        admitted = self.ledger.admit(RUN, PLAN, self.now)
        assert running or not admitted

    @rule(pick=st.integers(0, 10_000), decision=st.sampled_from(DECISIONS), stale=st.booleans())
    def decide(self, pick: int, decision: Decision, stale: bool) -> None:
        choices = self.old if stale and self.old else [row for row in self.rows() if row.state == "in_flight"]
        if not choices:
            return
        row = choices[pick % len(choices)]
        current = next(one for one in self.rows() if one.seq == row.seq)
        fits = current.state == "in_flight" and current.epoch == row.epoch
        timing = Timing(now=self.now, dispatch_lease=10.0, backoff=5.0)
        report = Report(production=Production.CANDIDATE)

        def change(run: RunInfo) -> Change:
            final = decision if run.running else when_run_has_ended(decision, last_stage=row.stage == 1)
            after = rows.apply(row, final, report, FACTS, timing)
            receipt = receipt_of(row, decision=type(final).__name__, now=self.now)
            if isinstance(final, Advance):
                return Change(row=after, receipt=receipt, value="{}", value_digest="d", checkpoint=True)
            return Change(row=after, receipt=receipt, fails_run=isinstance(final, Close) and final.fails_run)

        closing = isinstance(decision, Close | Advance)
        done = self.ledger.commit(row, PLAN, self.now, change, closing=closing)
        assert (done is not None) == fits, "a stale decision was written, or a fitting one refused"
        self.old = [*self.old[-20:], row]

    @rule(seconds=st.sampled_from((1.0, 30.0, 400.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for row in self.ledger.due(self.now, 10):
            if row.state == "waiting":
                woken = self.ledger.wake(row, self.now)
                assert woken is None or woken.epoch == row.epoch
            else:
                assert self.ledger.push(row, self.now + 10.0, row.kicks + 1)
                assert not self.ledger.push(row, self.now + 99.0, 0), "a push from an old look was written"

    @rule(pick=st.integers(0, 10_000), ahead=st.integers(0, 5))
    def record_is_ahead(self, pick: int, ahead: int) -> None:
        rows_in_flight = [row for row in self.rows() if row.state == "in_flight"]
        if rows_in_flight:
            row = rows_in_flight[pick % len(rows_in_flight)]
            jumped = self.ledger.jump(row, row.epoch + ahead, self.now)
            assert jumped is not None
            assert jumped.epoch > row.epoch + ahead

    @rule()
    def cancel(self) -> None:
        self.people.cancel(RUN)

    @rule()
    def cancel_rest(self) -> None:
        running = self.run_info().running
        assert not (self.ledger.cancel_rest(RUN, self.now, 2) and running)

    @rule(redrive=st.booleans())
    def another_round(self, redrive: bool) -> None:
        try:
            if redrive:
                self.people.redrive(RUN, "f", dispositions=["quarantine"])
            else:
                self.people.resume(RUN, "f")
        except RunError:
            assert self.run_info().status in ("failing", "cancelling")

    @rule()
    def end(self) -> None:
        open_rows = [row for row in self.rows() if row.state != "closed"]
        ended = self.ledger.end_if_done(RUN, self.now)
        assert not (ended is not None and open_rows), "a run ended with open items"

    @invariant()
    def what_always_holds(self) -> None:
        if not hasattr(self, "ledger"):
            return
        present = self.rows()
        assert sum(row.state in ("waiting", "in_flight") for row in present) <= WINDOW
        for row in present:
            epoch, life, state = self.seen.get(row.seq, (0, 1, "pending"))
            assert row.epoch >= epoch, "an epoch went back"
            assert row.round >= life
            assert (row.status is not None) == (row.state == "closed")
            if state == "closed" and row.state != "closed":
                assert row.round == life + 1, "a closed item came back in the same round"
            self.seen[row.seq] = (row.epoch, row.round, row.state)
        with self.database.read() as connection:
            closings = connection.execute(
                select(receipts.c.seq, receipts.c.round).where(receipts.c.decision == "Close")
            ).all()
        assert len(closings) == len(set(closings)), "two closings in one round"

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.dispose()
            self.folder.cleanup()


LedgerMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedger = LedgerMachine.TestCase

"""The ledger on SQLite: guards, admission, ends of runs, and the plans by which its hot queries are answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select, update

from remand_policy import (
    Advance,
    Again,
    Close,
    Disposition,
    Production,
    Reason,
    Report,
    Retry,
    Situation,
    Source,
    Status,
)
from remand_tasks.state import rows
from remand_tasks.state.engine import Database
from remand_tasks.state.ledger import Change, Committed, Ledger, Plan, receipt_of
from remand_tasks.state.migrate import upgrade
from remand_tasks.state.queries import Queries
from remand_tasks.state.retention import Retention, Which
from remand_tasks.state.rows import Facts, Row, Timing
from remand_tasks.state.submissions import NewItem, RunError, Submissions
from remand_tasks.state.tables import items, payloads, receipts, runs

NOW = 1_000.0
ONE_STAGE = Plan(("f" * 64,), (3_600.0,))
TWO_STAGES = Plan(("f" * 64, "g" * 64), (3_600.0, 3_600.0))
REPORT_FACTS = Facts(production=Production.CANDIDATE, epoch_of_production=1)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An empty ledger."""
    made = Database(f"sqlite:///{tmp_path / 'ledger.db'}")
    upgrade(made)
    yield made
    made.dispose()


@pytest.fixture
def ledger(database: Database) -> Ledger:
    """The ledger under test."""
    return Ledger(database)


@pytest.fixture
def submissions(database: Database) -> Submissions:
    """What begins and feeds runs."""
    return Submissions(database)


def begin(submissions: Submissions, run: str = "r", *, window: int = 4, reuse: bool = True) -> str:
    """Begin a run."""
    submissions.begin(
        run,
        target="shop:pipeline",
        pipeline="shop",
        version="1",
        fingerprint="f" * 64,
        window=window,
        key_path=None,
        reuse=reuse,
        now=NOW,
    )
    return run


def inputs(count: int, start: int = 0) -> list[NewItem]:
    """New items whose keys are their positions."""
    return [NewItem(str(n), f'{{"n":{n}}}', f"{n:064d}") for n in range(start, start + count)]


def fed(submissions: Submissions, count: int, run: str = "r", **options: Any) -> str:
    """A run whose whole input is there."""
    begin(submissions, run, **options)
    for start in range(0, count, 500):
        submissions.feed(run, inputs(min(500, count - start), start), NOW)
    submissions.input_done(run)
    return run


def decide(
    ledger: Ledger,
    before: Row,
    decision: Any,
    *,
    plan: Plan = ONE_STAGE,
    value: str | None = None,
    checkpoint: bool = True,
) -> Committed | None:
    """Commit a decision about a row, as the coordinator does."""
    timing = Timing(now=NOW, dispatch_lease=10.0, backoff=1.0)
    report = rows_report()

    def change(run: Any) -> Change:
        after = rows.apply(before, decision, report, REPORT_FACTS, timing)
        receipt = receipt_of(before, decision="test", now=NOW)
        if value is None:
            fails = isinstance(decision, Close) and decision.fails_run
            return Change(row=after, receipt=receipt, fails_run=fails)
        return Change(row=after, receipt=receipt, value=value, value_digest="d" * 64, checkpoint=checkpoint)

    return ledger.commit(before, plan, NOW, change, closing=isinstance(decision, Close | Advance))


def rows_report() -> Report:
    """The report of an attempt that gave a candidate without validators."""
    return Report(production=Production.CANDIDATE)


def accept(ledger: Ledger, row: Row, plan: Plan = ONE_STAGE, value: str = '{"n":1}') -> Committed | None:
    """Accept the candidate of the row's stage."""
    return decide(ledger, row, Advance(Status.ACCEPTED), plan=plan, value=value)


FAILED = Close(Status.FAILED, Reason.STRUCTURAL_FAILURE, Disposition.FAIL_RUN)
SET_ASIDE = Close(Status.REJECTED, Reason.SEMANTIC_REJECTION, Disposition.QUARANTINE)


def states(database: Database, run: str = "r") -> dict[str, int]:
    """How many items there are in each state."""
    with database.read() as connection:
        found = connection.execute(
            select(items.c.state, func.count()).where(items.c.run_id == run).group_by(items.c.state)
        )
        return {row[0]: row[1] for row in found}


# ---------------------------------------------------------------------------------------------------- plans


def plans_of(database: Database, work: Callable[[], object]) -> list[tuple[str, str]]:
    """Every statement but inserts that `work` executes, with the plan that SQLite answers it by."""
    seen: list[tuple[str, Any]] = []

    def executed(_: Any, __: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "UPDATE", "DELETE")):
            seen.append((statement, parameters[0] if isinstance(parameters, list) else parameters))

    event.listen(database.engine, "before_cursor_execute", executed)
    try:
        work()
    finally:
        event.remove(database.engine, "before_cursor_execute", executed)
    plans = []
    with database.read() as connection:
        for statement, parameters in seen:
            found = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.append((statement, "; ".join(str(line[3]) for line in found)))
    return plans


@pytest.fixture
def grown(database: Database, submissions: Submissions, ledger: Ledger) -> Row:
    """A ledger in which nearly everything is closed, as after hours of a run; one row that is in flight."""
    fed(submissions, 3_000, window=8)
    with database.write() as connection:
        connection.execute(
            update(items).where(items.c.seq < 2_900).values(state="closed", status="accepted", closed_at=NOW)
        )
    return ledger.admit("r", ONE_STAGE, NOW)[0]


def test_due_items_are_found_by_their_own_index(database: Database, ledger: Ledger, grown: Row) -> None:
    found = plans_of(database, lambda: ledger.due(NOW + 60, 100, ("other",)))
    ((_, plan),) = found
    assert "ix_items_due" in plan
    assert "SCAN" not in plan
    assert "TEMP B-TREE" not in plan


def test_a_closing_reads_no_closed_row(database: Database, ledger: Ledger, grown: Row) -> None:
    found = plans_of(database, lambda: accept(ledger, grown))
    (pending,) = [plan for statement, plan in found if "state = 'pending'" in statement]
    (counting,) = [plan for statement, plan in found if "count(" in statement]
    assert "ix_items_pending (run_id=?)" in pending
    assert "COVERING INDEX" in counting
    assert "(run_id=? AND state=?)" in counting
    for statement, plan in found:
        assert "SCAN" not in plan, statement
        assert "TEMP B-TREE" not in plan, statement


def test_whether_another_item_is_alone_is_asked_by_its_own_index(
    database: Database, ledger: Ledger, grown: Row
) -> None:
    with database.write() as connection:
        connection.execute(
            update(items).where(items.c.seq == grown.seq).values(alone=1, state="waiting", due_at=NOW)
        )
    waiting = grown._replace(alone=1, state="waiting", due_at=NOW)
    found = plans_of(database, lambda: ledger.wake(waiting, NOW))
    alone = [plan for statement, plan in found if "alone = 1" in statement]
    assert alone
    assert all("ix_items_alone" in plan for plan in alone), alone


def test_a_pulse_over_a_grown_ledger_reads_neither_closed_items_nor_ended_runs(
    database: Database, ledger: Ledger, grown: Row
) -> None:
    def beat() -> None:
        ledger.unended()
        ledger.admit("r", ONE_STAGE, NOW)
        ledger.end_if_done("r", NOW)

    for statement, plan in plans_of(database, beat):
        if "FROM items" in statement:
            assert "ix_items_pending" in plan or "(run_id=? AND state=?)" in plan, statement
        elif "ended_at IS NULL" in statement:
            assert "ix_runs_open" in plan
        else:
            assert "SCAN" not in plan, statement


def test_cancelling_the_rest_reads_no_closed_row(
    database: Database, ledger: Ledger, submissions: Submissions, grown: Row
) -> None:
    submissions.cancel("r")
    found = plans_of(database, lambda: ledger.cancel_rest("r", NOW, 10))
    (chosen,) = [plan for statement, plan in found if "FROM items" in statement]
    assert "ix_items_status (run_id=? AND state=?)" in chosen
    assert "TEMP B-TREE" not in chosen


@pytest.mark.parametrize("which", [Which(before=NOW), Which(run_id="r"), Which(run_id="r", before=NOW)])
def test_purging_reads_nothing_but_what_it_purges(database: Database, grown: Row, which: Which) -> None:
    with database.write() as connection:
        connection.execute(update(runs).values(ended_at=NOW))
    found = plans_of(database, lambda: Retention(database).purge(which, limit=50))
    (chosen, *others) = [plan for _, plan in found]
    assert ("ix_items_unpurged_in_run" if which.run_id else "ix_items_unpurged (closed_at<?)") in chosen
    assert len(others) == 4
    for plan in (chosen, *others):
        assert "SCAN" not in plan.replace("CORRELATED SCALAR", "")
        assert "TEMP B-TREE" not in plan
    assert all("(run_id=? AND seq=?)" in plan for plan in others), others


# -------------------------------------------------------------------------------------------------- feeding


def test_feeding_the_same_keys_again_adds_nothing(database: Database, submissions: Submissions) -> None:
    begin(submissions)
    assert submissions.feed("r", inputs(5), NOW) == 5
    assert submissions.feed("r", inputs(5), NOW) == 0
    assert submissions.feed("r", inputs(5, start=3), NOW) == 3
    with database.read() as connection:
        found = connection.execute(select(items.c.seq, items.c.key).order_by(items.c.seq)).all()
        bodies = connection.execute(select(func.count()).select_from(payloads)).scalar_one()
    assert [tuple(row) for row in found] == [(n, str(n)) for n in range(8)]
    assert bodies == 8


def test_a_key_twice_in_one_batch_is_the_first_of_them(database: Database, submissions: Submissions) -> None:
    begin(submissions)
    batch = [NewItem("x", "1", "a" * 64), NewItem("y", "2", "b" * 64), NewItem("x", "3", "c" * 64)]
    assert submissions.feed("r", batch, NOW) == 2
    assert Queries(database).payload("r", 0, "input") == "1"
    assert Queries(database).find("r", "y") == 1


def test_two_feeders_at_once_make_one_item_of_each_key(database: Database, submissions: Submissions) -> None:
    begin(submissions)
    with ThreadPoolExecutor(4) as pool:
        new = list(pool.map(lambda _: submissions.feed("r", inputs(200), NOW), range(4)))
    assert sum(new) == 200
    assert states(database) == {"pending": 200}


def test_beginning_a_run_twice_is_one_run_and_another_pipeline_is_refused(submissions: Submissions) -> None:
    begin(submissions)
    common = {"target": "t", "pipeline": "p", "version": "1", "window": 4, "reuse": True, "now": NOW}
    assert submissions.begin("r", fingerprint="f" * 64, key_path=None, **common) is False
    with pytest.raises(RunError, match="another version"):
        submissions.begin("r", fingerprint="e" * 64, key_path=None, **common)
    with pytest.raises(RunError, match="keys"):
        submissions.begin("r", fingerprint="f" * 64, key_path="id", **common)


def test_a_run_that_ended_takes_no_more_input(ledger: Ledger, submissions: Submissions) -> None:
    fed(submissions, 0)
    assert ledger.end_if_done("r", NOW) == "succeeded"
    with pytest.raises(RunError, match="ended"):
        submissions.feed("r", inputs(1), NOW)


# ------------------------------------------------------------------------------------------------ the guard


def test_a_commit_at_a_stale_epoch_writes_nothing(
    database: Database, ledger: Ledger, submissions: Submissions
) -> None:
    fed(submissions, 1)
    (before,) = ledger.admit("r", ONE_STAGE, NOW)
    moved = decide(ledger, before, Retry(Source.NONE))
    assert moved is not None
    assert moved.row.epoch == before.epoch + 1
    for stale in (lambda: accept(ledger, before), lambda: decide(ledger, before, FAILED)):
        assert stale() is None
    execution = ledger.execution("r", 0)
    assert execution is not None
    assert execution.row == moved.row
    assert execution.run.running
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(receipts)).scalar_one() == 1
        names = connection.execute(select(payloads.c.name)).scalars().all()
    assert names == ["input"]


def test_of_many_commits_at_one_epoch_one_is_written(
    database: Database, ledger: Ledger, submissions: Submissions
) -> None:
    fed(submissions, 1)
    (before,) = ledger.admit("r", ONE_STAGE, NOW)
    barrier = threading.Barrier(6)

    def race(_: int) -> Committed | None:
        barrier.wait()
        return accept(ledger, before)

    with ThreadPoolExecutor(6) as pool:
        done = [found for found in pool.map(race, range(6)) if found is not None]
    assert len(done) == 1
    assert states(database) == {"closed": 1}


def test_every_commit_and_closing_raises_the_epoch(ledger: Ledger, submissions: Submissions) -> None:
    fed(submissions, 1)
    (row,) = ledger.admit("r", ONE_STAGE, NOW)
    epochs = [row.epoch]
    for decision in (Again(Situation.GONE), Retry(Source.NONE), SET_ASIDE):
        done = decide(ledger, row, decision)
        assert done is not None
        row = done.row
        epochs.append(row.epoch)
    assert epochs == [1, 2, 3, 4]
    assert row.state == "closed"


def test_waking_keeps_the_epoch_and_happens_once(ledger: Ledger, submissions: Submissions) -> None:
    fed(submissions, 1)
    (row,) = ledger.admit("r", ONE_STAGE, NOW)
    done = decide(ledger, row, Retry(Source.NONE, backoff=True))
    assert done is not None
    assert done.row.state == "waiting"
    assert done.owed == ()
    assert ledger.due(NOW, 10) == []
    (due,) = ledger.due(NOW + 2, 10)
    woken = ledger.wake(due, NOW + 2)
    assert woken is not None
    assert (woken.state, woken.epoch) == ("in_flight", due.epoch)
    assert ledger.wake(due, NOW + 2) is None


def test_who_attends_to_some_runs_sees_those_alone(ledger: Ledger, submissions: Submissions) -> None:
    runs = ("a-1", "a-2", "ab-1", "A-1", "a%-1")
    for run in runs:
        fed(submissions, 1, run=run)
        ledger.admit(run, ONE_STAGE, NOW)

    def seen(only: str | None) -> list[set[str]]:
        due = {row.run_id for row in ledger.due(NOW + 60, 10, only=only)}
        return [due, {run.id for run in ledger.unended(only)}]

    assert seen(None) == [set(runs)] * 2
    assert seen("a-1") == [{"a-1"}] * 2
    assert seen("a-*") == [{"a-1", "a-2"}] * 2
    assert seen("a%-*") == [{"a%-1"}] * 2
    assert seen("b-*") == [set(), set()]


def test_a_row_that_moved_is_not_pushed(ledger: Ledger, submissions: Submissions) -> None:
    fed(submissions, 1)
    (row,) = ledger.admit("r", ONE_STAGE, NOW)
    assert ledger.push(row, NOW + 20, 1)
    assert not ledger.push(row, NOW + 30, 1)
    pushed = row._replace(due_at=NOW + 20, kicks=1)
    assert decide(ledger, pushed, Retry(Source.NONE)) is not None
    assert not ledger.push(pushed, NOW + 40, 2)


# -------------------------------------------------------------------------------------------------- windows


def test_admission_never_exceeds_the_window(
    database: Database, ledger: Ledger, submissions: Submissions
) -> None:
    fed(submissions, 200, window=7)
    flying: list[Row] = []
    lock = threading.Lock()
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            owed = ledger.admit("r", ONE_STAGE, NOW)
            with lock:
                flying.extend(owed)
                row = flying.pop() if flying else None
            if row is not None:
                # One in twenty waits, which still takes up its place.
                if row.seq % 20 == 0 and row.attempt == 1:
                    decide(ledger, row, Retry(Source.NONE, backoff=True))
                    done: Committed | None = None
                else:
                    done = accept(ledger, row)
                with lock:
                    flying.extend(done.owed if done else ())
            found = states(database)
            most.append(found.get("in_flight", 0) + found.get("waiting", 0))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert max(most) == 7
    assert states(database)["closed"] > 20


def test_a_closing_admits_the_next_in_order(ledger: Ledger, submissions: Submissions) -> None:
    fed(submissions, 5, window=2)
    first, second = ledger.admit("r", ONE_STAGE, NOW)
    assert [first.seq, second.seq] == [0, 1]
    assert ledger.admit("r", ONE_STAGE, NOW) == []
    done = accept(ledger, second)
    assert done is not None
    assert [row.seq for row in done.owed] == [2]


def test_nothing_is_admitted_once_an_item_failed_the_run(
    database: Database, ledger: Ledger, submissions: Submissions
) -> None:
    fed(submissions, 5, window=2)
    first, second = ledger.admit("r", ONE_STAGE, NOW)
    done = decide(ledger, first, FAILED)
    assert done is not None
    assert done.owed == ()
    assert ledger.admit("r", ONE_STAGE, NOW) == []
    # What is in flight finishes and keeps its value, and makes room for nobody.
    done = accept(ledger, second)
    assert done is not None
    assert (done.owed, done.row.status) == ((), "accepted")
    assert states(database) == {"closed": 2, "pending": 3}


def test_checkpoints_close_items_on_admission_and_the_next_take_their_places(
    database: Database, ledger: Ledger, submissions: Submissions
) -> None:
    fed(submissions, 6, "first", window=6)
    for row in ledger.admit("first", TWO_STAGES, NOW):
        if row.seq < 4:
            done = accept(ledger, row, TWO_STAGES, '{"n":1}')
            assert done is not None
            assert (done.row.stage, done.row.state) == (1, "in_flight")
            if row.seq < 3:
                assert accept(ledger, done.row, TWO_STAGES, '{"n":2}') is not None
    fed(submissions, 6, "second", window=2)
    owed = ledger.admit("second", TWO_STAGES, NOW)
    assert [(row.seq, row.stage) for row in owed] == [(3, 1), (4, 0)]
    outcomes = list(Queries(database).outcomes("second", 2))
    assert [outcome.value for outcome in outcomes] == [{"n": 2}] * 3
    assert all(outcome.reused and outcome.generations == outcome.attempts == 0 for outcome in outcomes)


def test_a_run_that_does_not_reuse_finds_no_checkpoint(ledger: Ledger, submissions: Submissions) -> None:
    fed(submissions, 1, "first")
    assert accept(ledger, ledger.admit("first", ONE_STAGE, NOW)[0]) is not None
    fed(submissions, 1, "second", reuse=False)
    assert len(ledger.admit("second", ONE_STAGE, NOW)) == 1


# ---------------------------------------------------------------------------------------------- ends of runs


@pytest.mark.parametrize(
    ("decisions", "end"),
    [
        ([None, None], "succeeded"),
        ([None, SET_ASIDE], "degraded"),
        ([None, Close(Status.FAILED, Reason.OPERATIONAL_FAILURE, Disposition.WARN_CONTINUE)], "degraded"),
        ([Advance(Status.INCOMPLETE), None], "degraded"),
        ([Advance(Status.ACCEPTED, fallback=True), None], "degraded"),
        ([None, FAILED], "failed"),
        ([FAILED, None], "failed"),
    ],
)
def test_how_items_ended_decides_how_the_run_ends(
    database: Database, ledger: Ledger, submissions: Submissions, decisions: list[Any], end: str
) -> None:
    fed(submissions, 2, window=2)
    for row, decision in zip(ledger.admit("r", ONE_STAGE, NOW), decisions, strict=True):
        assert ledger.end_if_done("r", NOW) is None
        if isinstance(decision, Close):
            assert decide(ledger, row, decision) is not None
            continue
        wanted = decision or Advance(Status.ACCEPTED)
        if wanted.status is Status.INCOMPLETE:
            _close_incomplete(database, row)
        else:
            assert decide(ledger, row, wanted, value='{"n":1}', checkpoint=False) is not None
    assert ledger.end_if_done("r", NOW + 1) == end
    assert ledger.end_if_done("r", NOW + 2) is None
    run = ledger.run("r")
    assert run is not None
    assert (run.status, run.ended_at) == (end, NOW + 1)
    assert ledger.unended() == []


def _close_incomplete(database: Database, row: Row) -> None:
    with database.write() as connection:
        connection.execute(
            update(items)
            .where(items.c.run_id == row.run_id, items.c.seq == row.seq)
            .values(state="closed", status="incomplete", epoch=row.epoch + 1, unable='["s/v"]')
        )


def test_a_run_does_not_end_while_input_may_come(ledger: Ledger, submissions: Submissions) -> None:
    begin(submissions)
    assert ledger.end_if_done("r", NOW) is None
    submissions.input_done("r")
    assert ledger.end_if_done("r", NOW) == "succeeded"


def test_a_cancelled_run_ends_cancelled_when_nothing_is_open(
    database: Database, ledger: Ledger, submissions: Submissions
) -> None:
    fed(submissions, 5, window=2)
    first, second = ledger.admit("r", ONE_STAGE, NOW)
    assert submissions.cancel("r") == "cancelling"
    assert ledger.cancel_rest("r", NOW, 2) == 2
    assert ledger.cancel_rest("r", NOW, 500) == 1
    assert ledger.end_if_done("r", NOW) is None
    assert accept(ledger, first) is not None
    assert decide(ledger, second, Close(Status.CANCELLED)) is not None
    assert ledger.end_if_done("r", NOW) == "cancelled"
    statuses = [outcome.status for outcome in Queries(database).outcomes("r", 1)]
    assert statuses == ["accepted", *["cancelled"] * 4]


def test_resuming_gives_unfinished_items_another_round_with_fresh_budgets(
    database: Database, ledger: Ledger, submissions: Submissions
) -> None:
    fed(submissions, 3, window=2)
    first, second = ledger.admit("r", ONE_STAGE, NOW)
    done = accept(ledger, first)
    retried = decide(ledger, second, Retry(Source.NONE))
    assert done is not None
    assert retried is not None
    assert decide(ledger, retried.row, FAILED) is not None
    assert decide(ledger, done.owed[0], Close(Status.CANCELLED)) is not None
    with pytest.raises(RunError, match="still ending"):
        submissions.resume("r", "f" * 64)
    assert ledger.end_if_done("r", NOW) == "failed"
    with pytest.raises(RunError, match="another version"):
        submissions.resume("r", "e" * 64)
    assert submissions.resume("r", "f" * 64) == 2
    again = ledger.admit("r", ONE_STAGE, NOW)
    assert [(row.seq, row.round, row.attempt) for row in again] == [(1, 2, 1), (2, 2, 1)]
    assert again[0].epoch == retried.row.epoch + 2  # the closing and the admission; it never begins again
    for row in again:
        assert accept(ledger, row) is not None
    assert ledger.end_if_done("r", NOW) == "succeeded"


def test_a_restored_ledger_jumps_past_the_record(ledger: Ledger, submissions: Submissions) -> None:
    fed(submissions, 1)
    (row,) = ledger.admit("r", ONE_STAGE, NOW)
    jumped = ledger.jump(row, 40, NOW)
    assert jumped is not None
    assert (jumped.epoch, jumped.since, jumped.correction) == (41, 41, "")
    assert ledger.jump(row, 40, NOW) is None
    execution = ledger.execution("r", 0)
    assert execution is not None
    assert execution.row == jumped


def test_only_one_suspect_is_in_flight_at_a_time(
    database: Database, ledger: Ledger, submissions: Submissions
) -> None:
    fed(submissions, 2, window=2)
    suspects = []
    for row in ledger.admit("r", ONE_STAGE, NOW):
        done = decide(ledger, row, Again(Situation.LOST, alone=True))
        assert done is not None
        assert (done.row.state, done.row.alone) == ("waiting", 1)
        suspects.append(done.row)
    assert ledger.wake(suspects[0], NOW) is not None
    assert ledger.wake(suspects[1], NOW) is None
    waiting = ledger.execution("r", 1)
    assert waiting is not None
    assert waiting.row.due_at == NOW + 2.0
    with database.read() as connection:
        assert connection.execute(select(runs.c.status)).scalar_one() == "running"

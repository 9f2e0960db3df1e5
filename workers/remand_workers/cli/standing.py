"""Where runs stand, and in plain words what keeps one from going on."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import redis
from sqlalchemy import func, select, text

from remand.errors import PipelineError
from remand.pipeline import load
from remand_policy import RunStatus
from remand_tasks.state.attempts import Attempts
from remand_tasks.state.ledger import RunInfo
from remand_tasks.state.queries import Progress, Queries, exit_status
from remand_tasks.state.submissions import Submissions
from remand_tasks.state.tables import OPEN, items

from ..app import connect
from ..embedded import running
from ..settings import Settings
from .console import coloured, err, reader, say, table, write_json, write_line, write_table
from .failures import INTERRUPTED
from .outputs import line_of
from .watching import View, summary

_MOST_SHOWN = 1_000_000
_LATE = 10.0
"""Seconds past its time after which an item shows that nobody looks."""


def list_runs(queries: Queries, limit: int, *, json: bool) -> None:
    """A table of the latest runs."""
    found = [queries.progress(run.id) for run in queries.runs(limit)]
    if json:
        write_json([progress.to_json() for progress in found])
        return
    if not found:
        say("there are no runs yet; `remand run` makes one")
        return
    columns = (
        "run", "pipeline", "status", "#items", "#accepted", "#incomplete", "#rejected", "#failed", "#cancelled",
        "#set aside", "#undetermined verdicts", "begun",
    )  # fmt: skip
    rows = [
        (
            each.run.id, each.run.pipeline, coloured(each.run.status), each.total,
            *(each.ends.get(end, 0) for end in ("accepted", "incomplete", "rejected", "failed", "cancelled")),
            each.quarantined, each.undetermined, when(each.run.created_at),
        )
        for each in found
    ]  # fmt: skip
    write_table(table(columns, rows))


def one_run(queries: Queries, settings: Settings, run_id: str, *, json: bool) -> None:
    """Everything about one run."""
    progress = queries.progress(run_id)
    told = notes(queries, settings, progress)
    if json:
        write_json({**progress.to_json(), "notes": told})
        return
    run = progress.run
    elapsed = (run.ended_at or now(settings)) - run.created_at
    write_table(
        summary(progress, bad=0, elapsed=max(elapsed, 0.0), rate=progress.closed / max(elapsed, 0.001))
    )
    for note in told:
        say(note)


def watch(queries: Queries, settings: Settings, run_id: str) -> int:
    """Show a run until it has ended. Its exit status."""
    pause = threading.Event()
    told: list[str] = []
    try:
        with View(quiet=False) as view:
            while True:
                progress = queries.progress(run_id)
                fresh = notes(queries, settings, progress)
                if fresh != told and not err().is_terminal:
                    for note in fresh:
                        say(note)
                told = fresh
                view.show(progress, note="\n".join(told))
                if progress.run.ended_at is not None:
                    break
                pause.wait(0.5)
    except KeyboardInterrupt:
        return INTERRUPTED
    one_run(queries, settings, run_id, json=False)
    return exit_status(RunStatus(progress.run.status))


def notes(queries: Queries, settings: Settings, progress: Progress) -> list[str]:
    """What keeps a run from going on, in plain words. Empty where nothing does."""
    run = progress.run
    if run.ended_at is not None:
        return []
    at = now(settings)
    found = []
    if settings.embedded and running(settings) is None:
        found.append(
            f"No services run in {str(settings.home)!r}, so nothing goes on: `remand resume {run.id}` starts them."
        )
    elif progress.closed == 0 and progress.attempts == 0 and at - run.created_at > _LATE:
        found.append(
            "No worker has touched it yet. Start one with `remand worker`; if some run, their log says why they leave "
            "this run alone (a pipeline that cannot be imported, or has changed)."
        )
    elif _overdue(queries, run.id, at) > _LATE:
        found.append(
            "No worker looks after it: items are overdue. `remand doctor` asks the workers; start one with "
            "`remand worker`."
        )
    if run.running and not run.input_done and run.feeder_until < at:
        found.append(
            "Its input was not read to the end and nobody reads it now. Go on with "
            f"`remand resume {run.id} --input FILE`, or finish what was read with `--no-more-input`."
        )
    if run.status == RunStatus.FAILING:
        found.append("An item has failed the run: what is in flight finishes, nothing more begins.")
    return found


def _overdue(queries: Queries, run_id: str, at: float) -> float:
    """Seconds by which the most overdue open item is late."""
    oldest = select(func.min(items.c.due_at)).where(items.c.run_id == run_id, text(OPEN))
    with queries.database.read() as connection:
        due = connection.execute(oldest).scalar_one()
    return 0.0 if due is None else at - float(due)


def results(queries: Queries, run: RunInfo) -> None:
    """Outputs as JSON lines."""
    with reader():
        for outcome in queries.outcomes(run.id, stages_of(run)):
            write_line(line_of(outcome))


def stages_of(run: RunInfo) -> int:
    """How many stages the run's pipeline has."""
    return len(load(run.target).stages)


def stage_names(run: RunInfo) -> dict[int, str]:
    """The names of the run's stages, as far as its pipeline can still be loaded."""
    try:
        pipeline = load(run.target)
    except PipelineError:
        return {}
    return {index: stage.name for index, stage in enumerate(pipeline.stages)}


def quarantine(queries: Queries, run: RunInfo, *, json: bool) -> None:
    """Items that were set aside."""
    names = stage_names(run)
    columns = ("key", "item", "stage", "attempt", "status", "reason", "code", "generations")
    rows = [
        (
            i.key,
            i.seq,
            names.get(i.stage, str(i.stage + 1)),
            i.attempt,
            i.status,
            i.reason,
            i.code,
            i.generations,
        )
        for i in queries.items(run.id, disposition="quarantine", limit=_MOST_SHOWN)
    ]
    if json:
        write_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    if not rows:
        say(f"nothing was set aside in run {run.id}")
        return
    write_table(table(columns, rows))
    say(f"the story of one: remand show {run.id} KEY")


def cancel(queries: Queries, settings: Settings, run: RunInfo) -> None:
    """Stop a run."""
    status = Submissions(queries.database).cancel(run.id)
    if status != RunStatus.CANCELLING:
        say(f"run {run.id} had ended already: {status}")
        return
    say(f"run {run.id} is being cancelled: what is in flight finishes, nothing more begins")
    if settings.embedded and running(settings) is None:
        say(
            f"no services run here, so it is closed when they next do; `remand resume {run.id}` also goes on with it"
        )


def now(settings: Settings) -> float:
    """The clock that all times in the ledger come from, the Redis server's; this machine's where none runs."""
    filled = running(settings) if settings.embedded else settings
    if filled is None or filled.vault_url is None:
        return time.time()
    client = connect(filled)
    try:
        return Attempts(client).now()
    except redis.RedisError:
        return time.time()
    finally:
        client.close()


def when(at: float | None) -> str:
    """A time as people read it, in their own zone."""
    return "-" if at is None else datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")

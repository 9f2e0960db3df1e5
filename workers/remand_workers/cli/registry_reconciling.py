"""`registry reconcile`: a registry is taken on until nothing is owed, with progress, and can be interrupted.

On embedded services this process plans and applies, and starts workers for the blocks of that job alone. Elsewhere it
asks the workers that serve the broker, and watches. Ctrl-C leaves the job as it is; the same command goes on with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from remand.pipeline import Pipeline
from remand_tasks.pipelines import Pipelines
from remand_tasks.registry.reading import RegistryQueries, Round, Standing
from remand_tasks.registry.store import Job, Registries, RegistryRow, note_words, notes
from remand_tasks.state.ledger import RunInfo

from ..client import Client
from ..embedded import Embedded
from ..registries import known, request
from ..settings import Settings
from .console import err, plural, say, warn, write_json
from .crew import Crew, crew_of, patience
from .failures import DEGRADED, FAILED, INTERRUPTED, SUCCEEDED, CommandError
from .interrupting import Interrupted
from .models import check_model_server
from .registry_stories import job_rows, pairs, plain, state_words
from .watching import clock

if TYPE_CHECKING:
    from remand_tasks.registry.reconcile import Reconciler

_LOOK = 0.1
_LONGEST_LOOK = 2.0
_BETWEEN_LINES = 10.0
_LATE = 10.0
"""Seconds past its time after which a registry shows that nobody looks."""


def reconcile(settings: Settings, name_or_target: str, *, quiet: bool, json: bool) -> int:
    """Reconcile one registry. The exit status."""
    embedded = settings.embedded
    signals = Interrupted()
    with ExitStack() as stack:
        stack.enter_context(signals.handled())
        if embedded:
            settings = stack.enter_context(Embedded(settings)).settings
        # Workers need the vault's keys; who only asks needs none.
        settings.require_services(keys=embedded)
        client = stack.enter_context(Client(settings))
        registry, row = known(client.database, name_or_target, client.now())
        if embedded:
            check_model_server(registry.pipeline, settings)
        work = Work(client, row.name, signals, quiet=quiet)
        if request(client.database, row.name, client.now()) is None:
            return work.idle(json=json)
        ended = work.drive() if embedded else work.watch()
        if not ended:
            return INTERRUPTED
        report = work.report()
        if not quiet:
            report.print()
        if json:
            write_json({**report.to_json(), "exit_status": report.exit_status})
        return report.exit_status


def reconciler_class() -> type[Reconciler]:
    """What plans and applies. Raises `CommandError` where the numerical libraries that it needs are missing."""
    try:
        from remand_tasks.registry.reconcile import Reconciler
    except ModuleNotFoundError as error:
        raise CommandError(
            f"{error.name} is missing, which comparing entries needs; install remand[registry]"
        ) from None
    return Reconciler


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a registry's reconciliation: where it stands, the jobs that ended, their rounds."""

    standing: Standing
    jobs: Sequence[Job]
    rounds: Sequence[Round]
    elapsed: float

    @property
    def exit_status(self) -> int:
        """0 done, 3 where blocks failed or something was left for the next time, 1 failed."""
        if any(job.state != "done" for job in self.jobs):
            return FAILED
        left = any({"entries_left_for_next_time", "runs_not_served"} & set(notes(job)) for job in self.jobs)
        return DEGRADED if left or any(each.failed for each in self.rounds) else SUCCEEDED

    def print(self) -> None:
        """Tell people."""
        err().print(
            pairs(
                [
                    ("registry", self.standing.row.name),
                    ("entries", self.standing.entries),
                    ("clusters", self.standing.clusters),
                    ("open reviews", self.standing.reviews),
                    *job_rows(self.jobs, self.rounds),
                    ("elapsed", clock(self.elapsed)),
                ]
            )
        )
        if self.standing.reviews:
            say(f"what waits for a person: remand registry review {self.standing.row.name}")

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        caps: dict[str, int] = {}
        for job in self.jobs:
            for code, count in notes(job).items():
                caps[code] = caps.get(code, 0) + count
        told = plain(self.standing)
        del told["job"], told["last_job"]
        return {
            **told,
            "jobs": [job.id for job in self.jobs],
            "rounds": sum(job.round for job in self.jobs),
            "calls": sum(job.calls for job in self.jobs),
            "budget": sum(job.budget for job in self.jobs),
            "compared": sum(job.fresh for job in self.jobs),
            "merges": sum(job.merged for job in self.jobs),
            "merges_without_model": sum(job.exact for job in self.jobs),
            "stale": sum(job.stale for job in self.jobs),
            "blocks_failed": sum(each.failed for each in self.rounds),
            "generations": sum(each.generations for each in self.rounds),
            "notes": caps,
            "elapsed_seconds": round(self.elapsed, 3),
        }


class Work:
    """One registry's reconciliation in this command."""

    def __init__(self, client: Client, name: str, signals: Interrupted, *, quiet: bool) -> None:
        self._client, self._signals, self._quiet = client, signals, quiet
        self._registry, self._row = known(client.database, name, client.now())
        self._queries = RegistryQueries(client.database)
        self._began = time.monotonic()
        self._before = {
            job.id for job in self._queries.jobs(self._row.name, 1_000) if job.ended_at is not None
        }
        self._told_budget = False

    def idle(self, *, json: bool) -> int:
        """Say that there is nothing to do."""
        report = self.report()
        if not self._quiet:
            standing = report.standing
            say(
                f"registry {self._row.name!r} has nothing new: {plural(standing.entries, 'entry', 'entries')}, "
                f"{plural(standing.clusters, 'cluster')}"
            )
        if json:
            write_json({**report.to_json(), "exit_status": SUCCEEDED})
        return SUCCEEDED

    def drive(self) -> bool:
        """Take it on in this process, with workers of its own, until nothing is owed. False if interrupted."""
        name, settings = self._row.name, self._client.settings
        reconciler = self._reconciler()
        crew: Crew | None = None
        served = ""
        with ExitStack() as stack, _View(quiet=self._quiet) as view, _warnings_told():
            stack.callback(lambda: crew.kill() if crew is not None else None)
            while True:
                reconciler.advance(name)
                row, job = self._look()
                if job is None and row.wanted <= row.served:
                    break
                if job is not None and job.run_id and job.id != served:
                    self._refuse_another_version(job)
                    if crew is not None:
                        crew.stop(patience(self._registry.pipeline, settings))
                    crew = crew_of(settings, [row.target], attend=f"registry-{job.id}-*")
                    crew.start()
                    served = job.id
                if crew is not None:
                    crew.look()
                starting = crew is not None and crew.ready == 0
                pause = self._show(view, job, "workers are starting" if starting else "")
                if self._signals.event.wait(pause):
                    if crew is not None:
                        say("stopping: workers finish what they hold; Ctrl-C again ends them at once")
                        crew.stop(patience(self._registry.pipeline, settings))
                    say(f"Interrupted. It can go on: remand registry reconcile {name}")
                    return False
            if crew is not None:
                crew.stop(patience(self._registry.pipeline, settings))
        return True

    def watch(self) -> bool:
        """Watch while workers elsewhere do it. False if interrupted."""
        name = self._row.name
        asked = Registries(self._client.database).find(name)
        assert asked is not None
        if not self._quiet:
            say(f"registry {name!r}: asked for; the workers that serve the broker do it")
        told = ""
        with _View(quiet=self._quiet) as view:
            while True:
                row, job = self._look()
                if job is None and row.served >= asked.wanted:
                    break
                late = max(row.due_at, row.claimed_until) + _LATE < self._client.now()
                note = "No worker looks after it: start one with `remand worker`." if late else ""
                if note and note != told and not err().is_terminal:
                    say(note)
                told = note
                if self._signals.event.wait(self._show(view, job, note)):
                    say(f"No longer watching. It goes on: remand registry show {name}")
                    return False
        for each in self.report().jobs:
            for words in note_words(notes(each)):
                warn(f"registry {name}: {words}")
        return True

    def report(self) -> Report:
        """What came of it."""
        jobs = [each for each in self._queries.jobs(self._row.name, 1_000) if each.id not in self._before]
        rounds = [each for job in jobs for each in self._queries.rounds(job.id)]
        return Report(self._queries.standing(self._row.name), jobs, rounds, time.monotonic() - self._began)

    def _reconciler(self) -> Reconciler:
        pipelines = Pipelines()

        def pipeline_of(run: RunInfo) -> Pipeline | None:
            bound = pipelines.of(run)
            return None if bound is None else bound.pipeline

        return reconciler_class()(self._client.database, pipelines.registry, pipeline_of, self._client.now)

    def _look(self) -> tuple[RegistryRow, Job | None]:
        registries = Registries(self._client.database)
        row = registries.find(self._row.name)
        assert row is not None
        return row, registries.job(row.job) if row.job else None

    def _refuse_another_version(self, job: Job) -> None:
        if job.fingerprint != self._registry.fingerprint:
            raise CommandError(
                f"job {job.id} was begun with another version of registry {self._row.name!r}; put that back, or give "
                f"its round up with `remand cancel {job.run_id}`"
            )

    def _show(self, view: _View, job: Job | None, note: str) -> float:
        """Show where it stands. Seconds until the next look."""
        began = time.monotonic()
        closed = 0
        if job is not None and job.run_id:
            closed = self._client.queries.progress(job.run_id).closed
        if job is not None and job.budget and not self._told_budget and not self._quiet:
            self._told_budget = True
            generations = self._registry.pipeline.worst_case().generations * job.budget
            say(f"at worst: {plural(job.budget, 'block')}, {plural(generations, 'generation')}")
        view.show(self._queries, self._row.name, job, closed, note)
        return min(max(_LOOK, 10 * (time.monotonic() - began)), _LONGEST_LOOK)


class _View:
    """Shows a job round by round until left: live on a terminal, an occasional line elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live: Live | None = None
        self._began = self._told = time.monotonic()

    def __enter__(self) -> Self:
        if not self._quiet and err().is_terminal:
            self._live = Live(console=err(), refresh_per_second=4, transient=True, redirect_stdout=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, queries: RegistryQueries, name: str, job: Job | None, closed: int, note: str) -> None:
        """Show it, if it is time."""
        elapsed = time.monotonic() - self._began
        if self._live is not None:
            head = Text.assemble((name, "bold"), "  ", _where(job))
            parts: list[Any] = [head]
            if job is not None and job.run_id:
                bar = Table.grid(padding=(0, 1))
                bar.add_row(
                    ProgressBar(total=max(job.blocks, 1), completed=closed, width=40),
                    f"{closed:,} of {plural(job.blocks, 'block')}",
                    clock(elapsed),
                )
                parts.append(bar)
            if job is not None:
                parts.append(Text(_counts(job)))
            if note:
                parts.append(Text(note, style="dim"))
            self._live.update(Group(*parts))
        elif not self._quiet and time.monotonic() - self._told >= _BETWEEN_LINES:
            self._told = time.monotonic()
            standing = queries.standing(name)
            told = "" if job is None else f", {_counts(job)}"
            say(f"{name}: {state_words(standing)}{told}, {clock(elapsed)}")


def _where(job: Job | None) -> str:
    if job is None:
        return "waiting"
    return f"round {job.round}, {job.state}" if job.run_id else f"planning round {job.round + 1}"


def _counts(job: Job) -> str:
    return (
        f"{plural(job.merged, 'merge')}, {job.calls:,} of at most {plural(job.budget, 'block')} asked about"
    )


@contextmanager
def _warnings_told() -> Iterator[None]:
    """Tell people what Remand's own code warns about while it plans and applies in this process: codes and places."""

    class Teller(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warn(record.getMessage())

    teller = Teller(logging.WARNING)
    logger = logging.getLogger("remand")
    logger.addHandler(teller)
    try:
        yield
    finally:
        logger.removeHandler(teller)

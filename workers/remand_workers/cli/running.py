"""`run`, `resume` and `up`: services, workers, input, progress and output of one command, and its orderly end.

Ctrl-C stops it gracefully: reading stops, workers finish what they hold, and the run can be resumed. A second one ends
everything at once; the run can be resumed all the same, because the ledger is committed step by step.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

from remand.pipeline import Pipeline, load, load_target
from remand_policy import Disposition, RunStatus
from remand_tasks.state.queries import Progress, exit_status
from remand_tasks.state.submissions import Submissions

from ..client import Client, Run, new_run_id
from ..embedded import Embedded
from ..settings import Settings
from .console import err, plural, say, warn, write_json, write_line
from .context import attached, ledger, run_named
from .crew import Crew, crew_of, patience
from .failures import DEGRADED, FAILED, INTERRUPTED, SUCCEEDED, CommandError, UsageError
from .feeding import Feeder, Lines
from .interrupting import Interrupted
from .models import check_model_server
from .outputs import Output
from .registry_reconciling import Report, Work, reconciler_class
from .watching import View, summary

_LOOK = 0.1
_LONGEST_LOOK = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the command line asked for."""

    input: str | None
    output: str | None
    key: str | None = None
    window: int | None = None
    reuse: bool = True
    run_id: str | None = None
    workers: bool = True
    reconcile: bool = True
    json: bool = False
    quiet: bool = False

    def destination(self) -> str | None:
        """Where outputs go: standard output if nothing else was said and it is piped."""
        if self.output == "-" and self.json:
            raise UsageError("--json and --output - both want standard output; give --output a file")
        if self.output is None and not self.json and not os.isatty(1):
            return "-"
        return self.output


def run(settings: Settings, target: str, order: Order) -> int:
    """`remand run`: everything that a run needs, from input to output. The exit status."""
    pipeline = load(target)
    _check_servers(pipeline, settings, order)
    if order.input is None:
        raise UsageError("name the input: --input FILE.jsonl, or --input - for standard input")
    destination = order.destination()
    lines = Lines(order.input)
    _say_worst_case(pipeline, lines.count(), quiet=order.quiet)
    if not lines.first():
        raise UsageError("the input is empty: it has no line that is not blank")
    output = Output(destination, source=order.input)
    order = replace(order, run_id=order.run_id or new_run_id())
    with _Work(settings, order, target, pipeline, output) as work:
        work.run = work.client.begin(
            target, key=order.key, run_id=order.run_id, window=order.window, reuse=order.reuse
        )
        say_quietly(order, f"run {work.run.id}")
        work.feed(lines, order.key)
        return work.until_done()


def resume(settings: Settings, run_id: str, order: Order, *, close_input: bool) -> int:
    """`remand resume`: another round for what is unfinished, and the rest of the input. The exit status."""
    with ledger(settings) as queries:
        found = run_named(queries, run_id)
    pipeline = load(found.target)
    _check_servers(pipeline, settings, order)
    if order.input is None and not found.input_done and not close_input:
        raise UsageError(
            f"the input of run {found.id!r} was not read to its end. Give it again with --input (items that the run "
            "has are not taken twice), or finish what was read with --no-more-input"
        )
    destination = order.destination()
    lines = Lines(order.input) if order.input is not None else None
    output = Output(destination, source=order.input)
    order = replace(order, run_id=found.id)
    with _Work(settings, order, found.target, pipeline, output) as work:
        work.run = Run(found.id, work.client, pipeline)
        if not work.until_settled():
            return work.interrupted()
        again = work.run.resume()
        say_quietly(order, f"run {found.id}: {plural(again, 'unfinished item')} to be done again")
        if lines is not None:
            work.feed(lines, found.key_path)
        elif close_input:
            work.client.submissions.input_done(found.id)
        return work.until_done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What `redrive` was told to take. An item must fit all of it."""

    reasons: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    quarantined: bool = False


def redrive(settings: Settings, run_id: str, order: Order, chosen: Chosen, *, preview: bool) -> int:
    """`remand redrive`: another round for chosen items. The exit status."""
    with ledger(settings) as queries:
        found = run_named(queries, run_id)
        pipeline = load(found.target)
        seqs = []
        for name in chosen.items:
            seq = queries.find(found.id, name)
            if seq is None:
                raise UsageError(f"run {found.id!r} has no item {name!r}")
            seqs.append(seq)

        def reopen(submissions: Submissions, *, only_count: bool) -> int:
            return submissions.redrive(
                found.id,
                pipeline.fingerprint,
                reasons=chosen.reasons,
                dispositions=(Disposition.QUARANTINE.value,) if chosen.quarantined else (),
                seqs=seqs,
                preview=only_count,
            )

        count = reopen(Submissions(queries.database), only_count=True)
    if order.json and preview:
        worst = pipeline.worst_case()
        write_json({"items": count, "generations_at_worst": worst.generations * count})
    if preview or not count:
        say_quietly(order, f"{plural(count, 'item')} to be done again")
        if count:
            _say_worst_case(pipeline, count, quiet=order.quiet)
        return 0
    _check_servers(pipeline, settings, order)
    _say_worst_case(pipeline, count, quiet=order.quiet)
    output = Output(order.destination(), source=None)
    order = replace(order, run_id=found.id)
    with _Work(settings, order, found.target, pipeline, output) as work:
        work.run = Run(found.id, work.client, pipeline)
        if not work.until_settled():
            return work.interrupted()
        again = reopen(work.client.submissions, only_count=False)
        say_quietly(order, f"run {found.id}: {plural(again, 'item')} to be done again")
        return work.until_done()


def submit(settings: Settings, target: str, order: Order, *, wait: bool) -> int:
    """`remand submit`: feed a run to what runs already, and print its id. The exit status."""
    pipeline = load(target)
    if order.input is None:
        raise UsageError("name the input: --input FILE.jsonl, or --input - for standard input")
    with ExitStack() as stack:
        settings = attached(settings, stack)
        lines = Lines(order.input)
        _say_worst_case(pipeline, lines.count(), quiet=order.quiet)
        if not lines.first():
            raise UsageError("the input is empty: it has no line that is not blank")
        with _Work(settings, order, target, pipeline, Output(None)) as work:
            work.run = work.client.begin(
                target, key=order.key, run_id=order.run_id, window=order.window, reuse=order.reuse
            )
            if not order.json:
                write_line(work.run.id)
            work.feed(lines, order.key)
            if wait:
                return work.until_done()
            return work.until_fed()


def up(settings: Settings, pipelines: list[str]) -> int:
    """`remand up`: services and workers in the foreground until they are told to stop. The exit status."""
    for target in pipelines:
        load_target(target)
    signals = Interrupted()
    with ExitStack() as stack:
        stack.enter_context(signals.handled())
        if settings.embedded:
            services = stack.enter_context(Embedded(settings))
            settings = services.settings
            say(f"services   {'joined' if services.attached else 'started'} in {str(settings.home)!r}")
        settings.require_services()
        with Client(settings):
            pass
        crew = crew_of(settings, pipelines)
        stack.callback(crew.kill)
        crew.start()
        say(
            f"workers    {len(crew)}, each {settings.concurrency} steps at once ({settings.pool}); logs beside them"
        )
        say(f"ledger     {_shown_url(settings.ledger_url)}")
        say(f"broker     {_shown_url(settings.broker_url)}")
        say(
            "In this folder, in another terminal: `remand submit`, `remand status`, `remand flower`. Ctrl-C ends it."
        )
        announced = False
        while not signals.event.wait(0.25):
            crew.look()
            if not announced and crew.ready == len(crew):
                announced = True
                say("ready")
        say("stopping: workers finish what they hold; Ctrl-C again ends them at once")
        try:
            crew.stop(settings.claim_lease.total_seconds() + 90.0)
        except KeyboardInterrupt:
            crew.kill()
    return INTERRUPTED


class _Work:
    """One run's services, workers, feeder, view and output, from the start to an orderly end."""

    run: Run

    def __init__(
        self, settings: Settings, order: Order, target: str, pipeline: Pipeline, output: Output
    ) -> None:
        self._settings, self._order, self._target = settings, order, target
        self._pipeline, self._output = pipeline, output
        self._embedded = settings.embedded
        self._stack = ExitStack()
        self._signals = Interrupted()
        self._crew: Crew | None = None
        self._feeder: Feeder | None = None
        self._ended = False

    def __enter__(self) -> _Work:
        try:
            self._stack.callback(self._leave_output)
            self._stack.enter_context(self._signals.handled())
            if self._settings.embedded:
                self._settings = self._stack.enter_context(Embedded(self._settings)).settings
            # Workers need the vault's keys; who only submits needs none.
            self._settings.require_services(keys=self._order.workers)
            self.client = self._stack.enter_context(Client(self._settings))
            # Asked before anything begins, so that a server that cannot be reached is said at once.
            self.client.now()
            if self._order.workers:
                self._crew = crew_of(self._settings, [self._target], attend=self._order.run_id)
                self._stack.callback(self._crew.kill)
                self._crew.start()
            self._view = self._stack.enter_context(View(quiet=self._order.quiet))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        begun = hasattr(self, "run") and not self._ended
        try:
            self._stack.close()
        finally:
            if error is not None and begun:
                say(f"The run can go on: {self._resume_command()}")
        if isinstance(error, KeyboardInterrupt):
            raise SystemExit(INTERRUPTED) from None

    def feed(self, lines: Lines, key: str | None) -> None:
        """Begin to read the input."""
        self._feeder = Feeder(self.client, self.run, lines, key, warn)
        self._feeder.start()

    def until_settled(self) -> bool:
        """Wait until a run that was failing or being cancelled has ended. False where that was interrupted."""
        ending = (RunStatus.FAILING, RunStatus.CANCELLING)
        return any(progress.run.status not in ending for progress in self._looks())

    def until_done(self) -> int:
        """Watch the run until it has ended or is interrupted. The exit status."""
        for progress in self._looks():
            self._output.advance(self.client.queries, self.run.id, len(self._pipeline.stages))
            feeder = self._feeder
            if feeder is not None and feeder.error is not None:
                raise feeder.error
            if feeder is not None and not progress.run.running:
                feeder.halt()
            if progress.run.ended_at is not None:
                return self._done(progress)
        return self.interrupted()

    def until_fed(self) -> int:
        """Wait until the input was read. The exit status."""
        feeder = self._feeder
        assert feeder is not None
        while feeder.is_alive():
            if self._signals.event.wait(_LOOK):
                return self.interrupted()
        if feeder.error is not None:
            raise feeder.error
        if self._order.json:
            write_json({"run": self.run.id, "items": feeder.new, "lines_left_out": feeder.bad})
        say_quietly(self._order, f"{plural(feeder.new, 'new item')}; watch: `remand status {self.run.id} -w`")
        return DEGRADED if feeder.bad else 0

    def interrupted(self) -> int:
        """End in order what was begun: reading, workers, output."""
        if self._crew is not None:
            say("stopping: workers finish what they hold; Ctrl-C again ends them at once")
        if self._feeder is not None:
            self._feeder.stop()
        if self._crew is not None:
            self._crew.stop(patience(self._pipeline, self._settings))
        self._output.advance(self.client.queries, self.run.id, len(self._pipeline.stages))
        self._tell_partial()
        if self._crew is None and (self._feeder is None or self._feeder.finished):
            say(f"No longer watching. The run goes on: remand status {self.run.id} --watch")
        else:
            say(f"Interrupted. The run can go on: {self._resume_command()}")
        return INTERRUPTED

    def _looks(self) -> Iterator[Progress]:
        pause = _LOOK
        while not self._signals.event.wait(pause):
            if self._crew is not None:
                self._crew.look()
            # The larger the run, the dearer the look: it is taken less often then.
            began = self._view.elapsed
            progress = self.client.queries.progress(self.run.id)
            pause = min(max(_LOOK, 10 * (self._view.elapsed - began)), _LONGEST_LOOK)
            self._view.show(progress, bad=self._bad, note=self._note())
            yield progress

    @property
    def _bad(self) -> int:
        return 0 if self._feeder is None else self._feeder.bad

    def _note(self) -> str:
        if self._crew is not None and self._crew.ready == 0:
            return "workers are starting"
        return ""

    def _done(self, progress: Progress) -> int:
        feeder = self._feeder
        if feeder is not None:
            feeder.stop()
        self._output.advance(self.client.queries, self.run.id, len(self._pipeline.stages))
        where = self._output.finish()
        self._ended = True
        self._view.__exit__(None, None, None)
        status = exit_status(RunStatus(progress.run.status))
        if status == 0 and self._bad:
            status = DEGRADED if progress.total else FAILED
        elapsed, rate = self._view.elapsed, self._view.rate(progress)
        if not self._order.quiet:
            err().print(summary(progress, bad=self._bad, elapsed=elapsed, rate=rate))
            if where is not None:
                say(f"outputs are in {where!r}")
            elif not self._output.stdout:
                say(f"its outputs: remand results {progress.run.id}")
            if feeder is not None and not feeder.finished:
                say(f"the input was not read to its end; to go on: {self._resume_command()}")
            if progress.quarantined:
                say(f"what was set aside: remand quarantine {progress.run.id}")
        if self._crew is not None:
            # They may hold work of other runs on the same broker. Ctrl-C twice ends them at once.
            self._crew.stop(patience(self._pipeline, self._settings))
        reports = self._reconcile()
        if status == SUCCEEDED and any(report.exit_status for report in reports):
            status = DEGRADED
        if self._signals:
            status = INTERRUPTED
        if self._order.json:
            told = {"lines_left_out": self._bad, "elapsed_seconds": round(elapsed, 3), "exit_status": status}
            fed = (
                {"registries": [report.to_json() for report in reports]} if self._pipeline.registries else {}
            )
            write_json({**progress.to_json(), **told, **fed})
        return status

    def _reconcile(self) -> list[Report]:
        """Go on with the registries that the run feeds, where nobody else would."""
        reports = []
        for feed in self._pipeline.registries if self._order.reconcile else ():
            name = feed.registry.name
            if not (self._embedded and self._order.workers):
                say_quietly(
                    self._order, f"workers that stay reconcile registry {name!r}: remand registry show {name}"
                )
                continue
            work = Work(self.client, name, self._signals, quiet=self._order.quiet)
            if not work.drive():
                break
            reports.append(work.report())
            if not self._order.quiet:
                reports[-1].print()
        return reports

    def _leave_output(self) -> None:
        self._tell_partial()

    def _tell_partial(self) -> None:
        partial = self._output.leave()
        if partial is not None:
            say(f"outputs so far are in {partial!r}")

    def _resume_command(self) -> str:
        words = ["remand", "resume", self.run.id]
        reading = self._feeder is not None and not self._feeder.finished
        if reading and self._order.input is not None:
            words += ["--input", self._order.input]
        if self._order.output is not None:
            words += ["--output", self._order.output]
        return shlex.join(words)


def _check_servers(pipeline: Pipeline, settings: Settings, order: Order) -> None:
    """Refuse to begin what could not be done to its end: a model's server or a library is missing."""
    check_model_server(pipeline, settings)
    if settings.embedded and order.workers and order.reconcile and pipeline.registries:
        reconciler_class()
        for feed in pipeline.registries:
            check_model_server(feed.registry.pipeline, settings)


def _say_worst_case(pipeline: Pipeline, items: int | None, *, quiet: bool) -> None:
    if quiet:
        return
    worst = pipeline.worst_case()
    for times, of in ((1, "an item"), (items or 0, f"all {plural(items or 0, 'item')}")):
        if times:
            parts = [plural(worst.generations * times, "generation")]
            counts = set(worst.validator_calls.values())
            if len(counts) == 1 and len(worst.validator_calls) > 3:
                each = plural(counts.pop() * times, "call")
                parts.append(f"{each} of each of its {len(worst.validator_calls)} validators")
            else:
                parts += [
                    f"{plural(calls * times, 'call')} of {name}"
                    for name, calls in worst.validator_calls.items()
                ]
            say(f"at worst, {of}: {', '.join(parts)}")


def say_quietly(order: Order, text: str) -> None:
    """Say it unless everything is to be quiet."""
    if not order.quiet:
        say(text)


def _shown_url(url: str | None) -> str:
    from ..settings import without_password

    return without_password(url or "")


__all__ = ["CommandError", "Order", "resume", "run", "up"]

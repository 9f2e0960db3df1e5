"""Submitting runs from code, and watching them. The command line stands on this too."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from remand.errors import PipelineError, RemandError
from remand.keys import key_of
from remand.outcome import Outcome
from remand.pipeline import Pipeline, load
from remand_policy import RunStatus, digest
from remand_tasks.registry.reading import RegistryQueries
from remand_tasks.registry.store import Put, Registries, feed_from, made_of, register
from remand_tasks.state.attempts import Attempts
from remand_tasks.state.engine import Database
from remand_tasks.state.migrate import prepare
from remand_tasks.state.queries import Progress, Queries
from remand_tasks.state.submissions import NewItem, RunError, Submissions

from . import registries
from .app import connect
from .settings import Settings

BATCH = 500


class BadInput(RemandError):
    """An input cannot be taken. `position` counts from 0; the input is not quoted."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(position, problem)
        self.position = position
        self.problem = problem

    def __str__(self) -> str:
        return f"input {self.position}: {self.problem}"


class BadValue(RemandError):
    """A stored value does not fit the output type of the pipeline that reads it: the type was changed since.

    Load the pipeline as it was when the run was made. `error_type` names what the output type raised; the value is not
    quoted.
    """

    def __init__(self, run: str, item: int, error_type: str) -> None:
        super().__init__(run, item, error_type)
        self.run = run
        self.item = item
        self.error_type = error_type

    def __str__(self) -> str:
        return (
            f"run {self.run!r}: the value of item {self.item} does not fit the output type of the last stage "
            f"({self.error_type}); read it with the pipeline as it was"
        )


def new_run_id() -> str:
    """A run id that sorts by time and cannot be guessed."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(4)


def target_of(pipeline: Pipeline) -> str:
    """`module:attribute` by which a worker can import `pipeline`.

    Raises `PipelineError` where no module holds it: one in `__main__`, or made inside a function.
    """
    in_main = False
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is pipeline:
                if name == "__main__":
                    in_main = True
                else:
                    return f"{name}:{attribute}"
    where = "it is defined in __main__" if in_main else "it is no module's attribute"
    raise PipelineError(
        f"pipeline {pipeline.name!r}", f"a worker cannot import it, because {where}; move it to a module"
    )


@dataclass(slots=True)
class Run:
    """A run that was submitted."""

    id: str
    client: Client
    pipeline: Pipeline | None = None

    def status(self) -> Progress:
        """Where it stands now."""
        return self.client.queries.progress(self.id)

    def wait(self, timeout: float | None = None, *, poll: float = 0.1) -> RunStatus:
        """Wait until it has ended. Raises `TimeoutError` after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = min(poll, 0.02)
        while True:
            run = self.client.queries.run(self.id)
            if run is None:
                raise RunError(f"there is no run {self.id!r}")
            if run.ended_at is not None:
                return RunStatus(run.status)
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"run {self.id} has not ended within {timeout:g} seconds")
            time.sleep(pause)
            pause = min(pause * 1.5, poll)

    def results(self) -> Iterator[Outcome]:
        """Outcomes in input order, up to the first item that is still open, values in the type of the last stage.

        Raises `BadValue` for a value that the type does not take any more.
        """
        pipeline = self.pipeline or self._load()
        last = pipeline.stages[-1].producer
        for outcome in self.client.queries.outcomes(self.id, len(pipeline.stages)):
            if outcome.value is None or last.output is None:
                yield outcome
            else:
                try:
                    value = last.adapter.validate_python(outcome.value)
                except Exception as error:
                    # What the type's own code raises quotes the value as well.
                    raise BadValue(self.id, outcome.item, type(error).__name__) from None
                yield replace(outcome, value=value)

    def cancel(self) -> str:
        """Stop it: nothing more begins. Its status after the call."""
        return self.client.submissions.cancel(self.id)

    def resume(self) -> int:
        """Give its failed and cancelled items a new round. How many those are."""
        pipeline = self.pipeline or self._load()
        return self.client.submissions.resume(self.id, pipeline.fingerprint)

    def redrive(
        self, *, reasons: Sequence[str] = (), dispositions: Sequence[str] = (), items: Sequence[int] = ()
    ) -> int:
        """Give chosen items that ended badly a new round: those that fit all that is named. How many those are."""
        pipeline = self.pipeline or self._load()
        return self.client.submissions.redrive(
            self.id, pipeline.fingerprint, reasons=reasons, dispositions=dispositions, seqs=items
        )

    def _load(self) -> Pipeline:
        run = self.client.queries.run(self.id)
        if run is None:
            raise RunError(f"there is no run {self.id!r}")
        self.pipeline = load(run.target)
        return self.pipeline


class Client:
    """Talks to ledger and vault; workers do the work. Close it, or use it in a `with` block."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.settings.require_services(keys=False)
        assert self.settings.ledger_url is not None
        self.database = Database(self.settings.ledger_url)
        prepare(self.database, migrate=self.database.sqlite)
        self.queries = Queries(self.database)
        self.submissions = Submissions(self.database)
        self.registries = RegistryQueries(self.database)
        self._redis = connect(self.settings)
        self._attempts = Attempts(self._redis)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give all connections back."""
        self.database.dispose()
        self._redis.close()

    def now(self) -> float:
        """The one clock: the Redis server's."""
        return self._attempts.now()

    def run(self, run_id: str) -> Run:
        """A run that was submitted before."""
        found = self.queries.run(run_id)
        if found is None:
            raise RunError(f"there is no run {run_id!r}")
        return Run(found.id, self)

    def submit(
        self,
        pipeline: Pipeline | str,
        inputs: Iterable[Any],
        *,
        key: str | None = None,
        run_id: str | None = None,
        window: int | None = None,
        reuse: bool = True,
    ) -> Run:
        """Begin a run, or go on feeding the one with this id, and stream `inputs` (JSON values) into it.

        `key` is a dotted path to an input's own key; a key that the run has is not taken again, so that submitting
        twice under one `run_id` does nothing twice. Raises `PipelineError`, `RunError`, and `BadInput`, before which
        everything stays.
        """
        run = self.begin(pipeline, key=key, run_id=run_id, window=window, reuse=reuse)
        self.feed(run, enumerate(inputs), key=key)
        self.submissions.input_done(run.id)
        return run

    def begin(
        self,
        pipeline: Pipeline | str,
        *,
        key: str | None = None,
        run_id: str | None = None,
        window: int | None = None,
        reuse: bool = True,
    ) -> Run:
        """Begin a run without feeding it."""
        target = pipeline if isinstance(pipeline, str) else target_of(pipeline)
        loaded = load(target) if isinstance(pipeline, str) else pipeline
        run = Run(run_id or new_run_id(), self, loaded)
        self._register(run, target, loaded)
        self.submissions.begin(
            run.id,
            target=target,
            pipeline=loaded.name,
            version=loaded.version,
            fingerprint=loaded.fingerprint,
            window=window or self.settings.window,
            key_path=key,
            reuse=reuse,
            now=self.now(),
        )
        return run

    def _register(self, run: Run, target: str, pipeline: Pipeline) -> None:
        """Make the registries known that a run feeds, before the run: it may end as soon as it has begun."""
        if not pipeline.registries:
            return
        now = self.now()
        with self.database.write() as connection:
            for feed in pipeline.registries:
                place = f"{target}#{feed.registry.name}"
                register(self.database, connection, feed.registry, place, now)
                feed_from(self.database, connection, feed.registry.name, run.id)

    def put(self, registry: str, entries: Iterable[BaseModel | Mapping[str, Any]]) -> Put:
        """Store entries in a registry, named as for `reconcile`. All or none of them: `BadEntry` names no value."""
        code, row = registries.known(self.database, registry, self.now())
        made = [made_of(code, each if isinstance(each, BaseModel) else code.parse(each)) for each in entries]
        return Registries(self.database).put(row.name, made, self.now())

    def reconcile(self, registry: str) -> registries.Reconciliation:
        """Ask workers to look for duplicates in a registry, where anything in it is new.

        It is named by its name, or by `module:registry` or `module:pipeline#name`, which also makes it known. Raises
        `RegistryError` and `PipelineError`.
        """
        _, row = registries.known(self.database, registry, self.now())
        asked = registries.request(self.database, row.name, self.now())
        return registries.Reconciliation(self.database, row.name, asked)

    def feed(self, run: Run, inputs: Iterable[tuple[int, Any]], *, key: str | None = None) -> int:
        """Add (position, value) pairs to a run in batches. How many were new."""
        batch: list[NewItem] = []
        new = 0
        try:
            for position, value in inputs:
                batch.append(new_item(position, value, key))
                if len(batch) >= BATCH:
                    full, batch = batch, []
                    new += self.submissions.feed(run.id, full, self.now())
        except BaseException:
            # What was read before a bad input, or before an interruption, is not lost.
            with suppress(RunError):
                self.submissions.feed(run.id, batch, self.now())
            raise
        return new + (self.submissions.feed(run.id, batch, self.now()) if batch else 0)


def new_item(position: int, value: Any, key: str | None) -> NewItem:
    """An input as the ledger takes it. Raises `BadInput` for what is no JSON value, `BadKey` without its key."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
        return NewItem(key_of(value, key, position), text, digest(value))
    except (TypeError, ValueError, RecursionError):
        raise BadInput(position, "it is not a JSON value (NaN and lone surrogates are not)") from None

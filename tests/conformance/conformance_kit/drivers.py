"""The two drivers behind one interface: run a pipeline over scripted items, and see all that came of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from remand import Outcome, Pipeline, load, run_local
from remand_workers.client import Run

from .notes import notes
from .rows import LOCAL, WORKERS
from .server import Answers, Exchange, Script, Server, tag
from .workers import Stack

PATIENCE = 90.0
"""Seconds within which any run of a scenario ends, on a busy machine too."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What one run came to. `warnings` are log lines of level warning and above that belong to it."""

    outcomes: list[Outcome]
    status: str
    exchanges: list[Exchange]
    judged: list[Exchange]
    folder: Path
    warnings: list[str]
    run: Run | None = None

    @property
    def outcome(self) -> Outcome:
        """The only outcome."""
        (only,) = self.outcomes
        return only

    @property
    def generations(self) -> int:
        """How many requests the model's server answered or failed on, 429s apart."""
        return sum(exchange.generation for exchange in self.exchanges)

    def requests(self, item: int = 0) -> list[list[dict[str, Any]]]:
        """The messages of every request for one item, in order."""
        return [exchange.messages for exchange in self.exchanges if exchange.item == item]

    def calls(self, caller: str, *, item: int = 0, stage: str = "s") -> int:
        """How often a validator was called for one item."""
        return len(self.notes(caller, item=item, stage=stage))

    def notes(self, caller: str, *, item: int = 0, stage: str = "s") -> list[dict[str, Any]]:
        """What a validator or producer wrote down, call by call."""
        return notes(self.folder, caller, item=item, stage=stage)

    def verdict(self, validator: str) -> Any:
        """The final record of one validator of the only item."""
        (found,) = [record for record in self.outcome.verdicts if record.validator == validator]
        return found


@dataclass(slots=True)
class Begun:
    """A run that has begun and is not waited for yet."""

    case: str
    finish: Callable[[], Result]
    run: Run | None = None


@dataclass(slots=True)
class Driver:
    """What scenarios are written against. `name` is `local` or `workers`."""

    server: Server
    root: Path
    name: str = ""
    cases: int = field(default=0)

    def run(self, pipeline: str, **given: Any) -> Result:
        """Run a pipeline of `conformance_kit.pipelines` to its end. See `begin` for the rest."""
        return self.begin(pipeline, **given).finish()

    def begin(
        self,
        pipeline: str,
        *,
        replies: Answers = ({"n": 1},),
        by_item: Mapping[int, Answers] | None = None,
        judge: Answers = (),
        plan: Mapping[str, Sequence[str]] | None = None,
        items: Sequence[Mapping[str, Any]] = ({},),
        case: str | None = None,
        key: str | None = None,
        window: int | None = None,
        reuse: bool = False,
    ) -> Begun:
        """Begin a run over `items`, each a mapping that is merged into its input.

        `plan` is what validators do unless an item has a `plan` of its own. A `case` that was run before has the same
        inputs again. `window` is how many items are in flight at once.
        """
        case = case or f"{self.name}-{uuid4().hex[:12]}"
        folder = self.root / case
        inputs = [
            {"tag": tag(case, position), "notes": str(folder), "plan": plan or {}, **item}
            for position, item in enumerate(items)
        ]
        self.server.script(case, Script(replies, by_item or {}, judge))
        seen, judged = len(self.server.log(case)), len(self.server.judged(case))

        def result(outcomes: list[Outcome], status: str, warnings: list[str], run: Run | None) -> Result:
            return Result(
                outcomes=outcomes,
                status=status,
                exchanges=self.server.log(case)[seen:],
                judged=self.server.judged(case)[judged:],
                folder=folder,
                warnings=warnings,
                run=run,
            )

        return self._begin(
            f"conformance_kit.pipelines:{pipeline}", inputs, case, result, key=key, window=window, reuse=reuse
        )

    def load(self, target: str) -> None:
        """Load a pipeline as this driver does. Raises `PipelineError`."""
        raise NotImplementedError

    def _begin(
        self, target: str, inputs: list[Any], case: str, result: Callable[..., Result], **options: Any
    ) -> Begun:
        raise NotImplementedError


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def status_of(outcomes: Sequence[Outcome]) -> str:
    """How a run with these outcomes ends; the in-process driver gives outcomes only."""
    if any(outcome.disposition == "fail_run" for outcome in outcomes):
        return "failed"
    clean = all(outcome.succeeded and not outcome.fallback for outcome in outcomes)
    return "succeeded" if clean else "degraded"


class Local(Driver):
    """`run_local`."""

    def load(self, target: str) -> None:
        """Load a pipeline by name."""
        load(target)

    def _begin(
        self, target: str, inputs: list[Any], case: str, result: Callable[..., Result], **options: Any
    ) -> Begun:
        pipeline: Pipeline = load(target)
        kept, logger = _Kept(), logging.getLogger("remand")
        done: list[Result | BaseException] = []

        def work() -> None:
            logger.addHandler(kept)
            try:
                outcomes = run_local(pipeline, inputs, key=options["key"])
                done.append(result(outcomes, status_of(outcomes), kept.lines, None))
            except BaseException as error:
                done.append(error)
            finally:
                logger.removeHandler(kept)

        thread = threading.Thread(target=work, name=case)
        thread.start()

        def finish() -> Result:
            thread.join(PATIENCE)
            assert done, "run_local did not end in time"
            if isinstance(done[0], BaseException):
                raise done[0]
            return done[0]

        return Begun(case, finish)


@dataclass(slots=True)
class Workers(Driver):
    """Real worker processes, a real Valkey, SQLite."""

    stack: Stack | None = None

    def load(self, target: str) -> None:
        """Submit a pipeline by name."""
        assert self.stack is not None
        self.stack.client.begin(target)

    def _begin(
        self, target: str, inputs: list[Any], case: str, result: Callable[..., Result], **options: Any
    ) -> Begun:
        stack = self.stack
        assert stack is not None
        run = stack.client.submit(target, inputs, **options)

        def finish() -> Result:
            status = run.wait(PATIENCE)
            return result(list(run.results()), status.value, list(_warnings(stack, run.id)), run)

        return Begun(case, finish, run)


def _warnings(stack: Stack, run_id: str) -> Iterator[str]:
    for line in stack.lines():
        if line.get("run") == run_id and line.get("level") in ("warning", "error", "critical"):
            yield str(line.get("event"))


__all__ = ["LOCAL", "WORKERS", "Begun", "Driver", "Local", "Result", "Workers", "status_of"]

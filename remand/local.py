"""The in-process driver: the same decisions as on workers, without any service.

It holds everything in memory and forgets it. Use it in tests, notebooks and small jobs; it takes no checkpoints.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, assert_never
from uuid import uuid4

from remand_policy import (
    SINGLE_RESPONSE_V1,
    Advance,
    Again,
    Close,
    Item,
    JudgeFallback,
    Judgement,
    Production,
    Rejection,
    Response,
    Retry,
    Revalidate,
    Situation,
    Source,
    Status,
    Verdict,
    after,
    decide,
    refined,
    render_findings,
    render_guidance,
    when_run_has_ended,
)

from .attempt import Attempted, Judged, judge, produce
from .context import COMPLETE, NO_USAGE, Context, Correction, Usage, Validation
from .errors import PipelineError
from .keys import key_of
from .outcome import Outcome, VerdictRecord
from .pipeline import Pipeline, Stage


def run_local(
    pipeline: Pipeline,
    inputs: Iterable[Any],
    *,
    key: str | None = None,
    concurrency: int = 1,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Outcome]:
    """Run `pipeline` over `inputs` in this process and return one outcome an item, in input order.

    Inputs are JSON values. `key` is a dotted path to an input's own key; inputs with the same key are one item.
    `concurrency` items run at a time, in threads. `sleep` waits, in seconds. Raises `PipelineError`
    for a bad pipeline, `TypeError` or `ValueError` for an input that is not JSON, `BadKey` for one without its key.
    """
    if not isinstance(pipeline, Pipeline):
        raise PipelineError("run_local", f"expected a Pipeline, not {type(pipeline).__name__}")
    _ = pipeline.fingerprint
    run = _Run(pipeline, sleep)
    items: dict[str, str] = {}
    for position, record in enumerate(inputs):
        encoded = _encode(record, position)
        items.setdefault(key_of(record, key, position), encoded)
    jobs = [(number, name, text) for number, (name, text) in enumerate(items.items())]
    if concurrency <= 1:
        return [run.item(*job) for job in jobs]
    with ThreadPoolExecutor(concurrency, thread_name_prefix="remand-local") as pool:
        return list(pool.map(lambda job: run.item(*job), jobs))


def _encode(record: Any, position: int) -> str:
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        text.encode()
    except TypeError:
        raise TypeError(f"input {position} holds something that is no JSON value") from None
    except (ValueError, RecursionError):
        raise ValueError(
            f"input {position} is not JSON: NaN, infinities, lone surrogates and endless nesting are not"
        ) from None
    return text


async def arun_local(
    pipeline: Pipeline, inputs: Iterable[Any], *, key: str | None = None, concurrency: int = 8
) -> list[Outcome]:
    """`run_local` for a caller that runs on an event loop: the loop stays free while the items run in threads."""
    return await asyncio.to_thread(run_local, pipeline, inputs, key=key, concurrency=concurrency)


class _Run:
    """What the items of one local run share: whether it still runs."""

    def __init__(self, pipeline: Pipeline, sleep: Callable[[float], None]) -> None:
        self.pipeline = pipeline
        self.sleep = sleep
        self.id = uuid4().hex
        self.running = True
        self.jitter = random.Random()  # noqa: S311 - spreads load, keeps no secret
        self.lock = Lock()

    def fail(self) -> None:
        with self.lock:
            self.running = False

    def item(self, number: int, key: str, text: str) -> Outcome:
        if not self.running:
            return Outcome(status=Status.CANCELLED, item=number, key=key)
        return _ItemRun(self, number, key, text).go()


@dataclass(slots=True)
class _ItemRun:
    """One item on its way through the stages."""

    run: _Run
    number: int
    key: str
    text: str
    previous: Any = None
    unable: tuple[str, ...] = ()
    attempts: int = 0
    generations: int = 0
    corrections: int = 0
    usage: Usage = NO_USAGE
    verdicts: tuple[VerdictRecord, ...] = ()
    fallback: bool = False
    diagnostics: tuple[str, ...] = ()
    value: Any = None

    def go(self) -> Outcome:
        last = len(self.run.pipeline.stages) - 1
        closing: Close | None = None
        for index, stage in enumerate(self.run.pipeline.stages):
            closing = _StageRun(self, stage, index, last_stage=index == last).go()
            if closing is not None:
                break
        if closing is not None and closing.fails_run:
            self.run.fail()
        validation = Validation(self.unable)
        status = closing.status if closing else (Status.INCOMPLETE if self.unable else Status.ACCEPTED)
        return Outcome(
            status=status,
            item=self.number,
            key=self.key,
            value=None if closing else self.value,
            reason=closing.reason if closing else None,
            disposition=closing.disposition if closing else None,
            code=closing.code if closing else None,
            attempts=self.attempts,
            generations=self.generations,
            corrections=self.corrections,
            verdicts=self.verdicts,
            usage=self.usage,
            validation=validation,
            fallback=self.fallback,
            diagnostics=self.diagnostics,
        )


@dataclass(slots=True)
class _StageRun:
    """One item in one stage: gather a report, decide, apply."""

    of: _ItemRun
    stage: Stage
    index: int
    last_stage: bool
    item: Item = field(default_factory=Item)
    correction: Correction | None = None
    attempted: Attempted | None = None
    judged: dict[int, Judged] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    fallback: bytes | None = None
    fallback_codes: tuple[str, ...] = ()
    until: float = 0.0

    def go(self) -> Close | None:
        """Work until the stage is left. `None` when a value goes on, else how the item closed."""
        run = self.of.run
        rules = run.pipeline.rules(self.index)
        self.until = time.monotonic() + self.stage.deadline.total_seconds()
        self._produce()
        while True:
            assert self.attempted is not None
            late = time.monotonic() >= self.until
            verdicts = tuple(
                Judgement(self.judged[i].verdict, self.tries[i]) for i in range(len(self.stage.validators))
            ) if self.attempted.production is Production.CANDIDATE else ()  # fmt: skip
            report = self.attempted.report(verdicts)
            decision = decide(replace(self.item, late=late), report, rules)
            if not run.running:
                decision = when_run_has_ended(decision, last_stage=self.last_stage)
            if isinstance(decision, Retry | JudgeFallback) and decision.keep_offer:
                self.fallback = self.attempted.fallback
                self.fallback_codes = self.attempted.diagnostics or (
                    self.attempted.reason_code or "fallback",
                )
            ended_at = self.item
            self.item = after(self.item, decision, report)
            match decision:
                case Close():
                    self._record()
                    return refined(decision, self.attempted.code)
                case Advance():
                    self._record()
                    self._advance(decision)
                    return None
                case Revalidate(ask=ask):
                    self._judge(ask)
                case JudgeFallback():
                    self.attempted = Attempted(production=Production.CANDIDATE, candidate=self.fallback)
                    self._judge_afresh()
                case Again(because=because):
                    if because is Situation.THROTTLED:
                        self._wait(self.attempted.retry_after, ended_at.throttles + 1)
                    self._produce()
                case Retry():
                    asked = self.attempted.retry_after
                    self._prepare(decision)
                    if decision.backoff:
                        delay = self.stage.backoff.delay(ended_at.attempt, run.jitter.random())
                        self._wait(max(delay, asked or 0.0), ended_at.attempt)
                    self._produce()
                case _:
                    assert_never(decision)

    def _wait(self, seconds: float | None, times: int) -> None:
        wanted = (
            seconds if seconds is not None else self.stage.backoff.delay(times, self.of.run.jitter.random())
        )
        self.of.run.sleep(max(0.0, min(wanted, self.until - time.monotonic())))

    def _context(self) -> Context:
        return Context(
            input=json.loads(self.of.text),
            run_id=self.of.run.id,
            item=self.of.number,
            stage=self.stage.name,
            attempt=self.item.attempt,
            previous=self._previous(),
            validation=Validation(self.of.unable) if self.of.unable else COMPLETE,
        )

    def _previous(self) -> Any:
        if self.index == 0:
            return None
        before = self.of.run.pipeline.stages[self.index - 1].producer
        return before.adapter.validate_json(self.of.previous)

    def _produce(self) -> None:
        if time.monotonic() >= self.until:
            self.attempted = Attempted(production=Production.OPERATIONAL, code="deadline")
            return
        if (
            self.item.throttles == 0
            or self.attempted is None
            or self.attempted.production is not Production.THROTTLED
        ):
            self.of.attempts += 1
            self.of.corrections += self.correction is not None
        self.attempted = produce(self.stage.producer, self._context(), self.correction)
        self.of.generations += self.attempted.generations
        self.of.usage += self.attempted.usage
        if self.attempted.production is Production.CANDIDATE:
            self._judge_afresh()
        else:
            self.judged, self.tries = {}, {}

    def _judge_afresh(self) -> None:
        self.judged, self.tries = {}, {}
        self._judge(tuple(range(len(self.stage.validators))))

    def _judge(self, indices: tuple[int, ...]) -> None:
        assert self.attempted is not None
        assert self.attempted.candidate is not None
        for index in indices:
            validator = self.stage.validators[index]
            self.tries[index] = self.tries.get(index, 0) + 1
            self.judged[index] = judge(
                validator, self.stage.producer, self.attempted.candidate, self._context
            )
            self.of.usage += self.judged[index].usage

    def _prepare(self, decision: Retry) -> None:
        """Put the next attempt's correction in place."""
        assert self.attempted is not None
        bounds = self.of.run.pipeline.bounds
        match decision.correction:
            case Source.KEPT:
                return
            case Source.NONE:
                self.correction = None
                return
            case Source.FINDINGS:
                guidance = render_findings(
                    [
                        Rejection(self.stage.validators[i].description, self.judged[i].findings)
                        for i in decision.rejections
                    ],
                    bounds,
                )
            case Source.GUIDANCE:
                guidance = render_guidance(self.attempted.guidance or "", bounds)
            case _:
                assert_never(decision.correction)
        response = self.attempted.response
        assert response is not None
        assert self.attempted.response_state is Response.USABLE
        self.correction = Correction(SINGLE_RESPONSE_V1, response.text, guidance)

    def _record(self) -> None:
        self.of.verdicts = tuple(
            VerdictRecord(
                validator=self.stage.validators[index].name,
                verdict=judged.verdict,
                tries=self.tries[index],
                error_type=judged.error_type,
                error_at=judged.error_at,
                error=judged.error,
            )
            for index, judged in sorted(self.judged.items())
        )

    def _advance(self, decision: Advance) -> None:
        assert self.attempted is not None
        if decision.status is Status.INCOMPLETE:
            self.of.unable += tuple(
                f"{self.stage.name}/{self.stage.validators[i].name}"
                for i, judged in sorted(self.judged.items())
                if judged.verdict is Verdict.UNDETERMINED
            )
        if decision.fallback:
            self.of.fallback = True
            self.of.diagnostics = (self.of.diagnostics + self.fallback_codes)[:8]
        self.of.previous = self.attempted.candidate
        assert self.attempted.candidate is not None
        self.of.value = self.stage.producer.adapter.validate_json(self.attempted.candidate)

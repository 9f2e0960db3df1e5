"""One schedule: workers, a broker, a pulse, and faults, all drawn from one seed.

Every touch of ledger, Redis or broker is a point where the scheduler may run somebody else, kill or freeze. What runs
between those points is the product: its steps, its pulse, its decision, its Lua scripts and its SQL statements. Only
the calls' threads are left out, because a schedule has one thread, and the model is a die.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from greenlet import GreenletExit, getcurrent, greenlet

import remand.attempt
from remand import (
    SINGLE_RESPONSE_V1,
    Context,
    Correction,
    ModelResponse,
    OperationalFailure,
    Pipeline,
    Policy,
    Produced,
    Producer,
    RetryRequest,
    Stage,
    StructuralFailure,
    Throttled,
    Validator,
    accept,
    reject,
)
from remand.calls import CalleeRaised
from remand_tasks.pipelines import Bound, Pipelines
from remand_tasks.pulse import Pulse
from remand_tasks.runtime import Caps, Runtime, Times
from remand_tasks.state.attempts import Attempts
from remand_tasks.state.ledger import Ledger
from remand_tasks.state.rows import Row, Step
from remand_tasks.state.submissions import NewItem, RunError, Submissions
from remand_tasks.state.vault import KeyRing, Vault, record_key, vault_key
from remand_tasks.steps import Next, coordinate, produce, validate
from remand_tasks.token import Token

from .memory_redis import MemoryRedis
from .memory_sql import MemoryDatabase

RUN = "run"
CLAIM, DISPATCH, RECOVERIES, EXECUTION_RETRIES = 6.0, 4.0, 2, 1
KEYS = KeyRing.parse(KeyRing.generate())
LAST_STEP = 9_000


class _Pulse(Pulse):
    """The pulse of a ledger without registries."""

    def _registries(self, now: float) -> None: ...


class Violation(BaseException):
    """An invariant does not hold. Not an `Exception`, so that no handler in the product can take it."""


_world: World | None = None


def _call_inline(function: Any, *args: Any, timeout: float) -> Any:
    try:
        return function(*args)
    except (GreenletExit, Violation):
        raise
    except BaseException as error:
        raise CalleeRaised(error) from None


class SimulatedProducer(Producer[Any]):
    """Asks the world's die."""

    def __call__(self, context: Context, correction: Correction | None) -> Any:
        """One model call."""
        assert _world is not None
        return _world.model_call(context, correction)


def _judge(index: int, value: Mapping[str, Any], context: Context) -> Any:
    assert _world is not None
    return _world.judge(index, value, context)


@functools.cache
def pipeline_of(stages: int, retries: int, failing: bool, version: str = "1") -> Pipeline:
    """A pipeline with two validators in two groups at each stage."""
    validators = [
        Validator(functools.partial(_judge, 0), "first", version="1", execution_retries=EXECUTION_RETRIES),
        Validator(
            functools.partial(_judge, 1),
            "second",
            version="1",
            execution_retries=EXECUTION_RETRIES,
            queue="slow",
        ),
    ]
    producer = SimulatedProducer("die", version=version, correction=SINGLE_RESPONSE_V1, timeout=20.0)
    disposition = "fail_run" if failing else "warn_continue"
    return Pipeline(
        "simulated",
        version="1",
        stages=[Stage(f"stage{n}", producer, validators, retries=retries) for n in range(stages)],
        policy=Policy(
            structural_failure=disposition, semantic_rejection=disposition, operational_failure=disposition
        ),
    )


@dataclass(slots=True)
class Process:
    """A step or a beat that is under way on a worker."""

    worker: int
    greenlet: greenlet
    message: Message | None
    born: int
    claims: set[tuple[Token, str, int | None]] = field(default_factory=set)
    paid: int | None = None
    """The item for which it called the model and has not published."""
    judged: tuple[int, int, str] = (0, -1, "")
    """The last judgement: candidate, validator, verdict."""


class Message(NamedTuple):
    """A chain: its links that are left, and the token."""

    links: tuple[tuple[str, str | None], ...]
    token: str
    sent: int


class SimulatedRenewal:
    """Notes which claims a process holds; the world's clock renews them."""

    def __init__(self, world: World) -> None:
        self._world = world

    @contextmanager
    def holding(self, token: Token, owner: str, validator: int | None = None) -> Iterator[None]:
        """Keep this claim alive while the block runs."""
        claims = self._world.current().claims
        claims.add((token, owner, validator))
        try:
            yield
        finally:
            claims.discard((token, owner, validator))


@dataclass
class Plan:
    """What a schedule is made of, besides its dice."""

    items: int
    window: int
    stages: int
    retries: int
    failing: bool
    rates: dict[str, float]
    until: int
    """The step after which no fault happens any more."""


def plan_of(dice: random.Random, mode: str) -> Plan:
    """Draw a plan. Each fault is absent in two schedules of five, so that rare ones are seen alone too."""
    scale = dice.choice((0.0, 0.3, 1.0, 1.0, 2.0))

    def rate(value: float) -> float:
        return value * scale if dice.random() < 0.6 else 0.0

    plan = Plan(
        items=dice.choice((1, 1, 2, 3, 4)),
        window=dice.choice((1, 2, 3)),
        stages=dice.choice((1, 1, 2)),
        retries=dice.choice((0, 1, 1, 2)),
        failing=dice.random() < 0.3,
        rates={
            "duplicate": rate(0.08),
            "drop": rate(0.05),
            "kill": rate(0.02),
            "freeze": rate(0.02),
            "flush": rate(0.006),
            "flush_records": rate(0.004),
            "flush_vault": rate(0.004),
            "cancel": rate(0.003),
            "redrive": 0.02,
            "empty_broker": rate(0.006),
        },
        until=dice.choice((80, 200, 400)),
    )
    if mode == "poison":
        plan.items, plan.window, plan.stages, plan.failing, plan.rates = 4, 4, 1, False, {}
    elif mode == "redrive":
        plan.failing = False
        plan.rates.update(kill=0.04, redrive=0.15)
    elif mode == "restore":
        plan.rates["restore"] = 0.02
    return plan


class World:
    """Runs one schedule. `go` returns how many steps it took, or raises `Violation`."""

    def __init__(self, seed: int, mode: str = "normal", trace: list[str] | None = None) -> None:
        global _world
        _world = self
        self.dice = random.Random(seed)
        self.mode, self.trace = mode, trace
        self.plan = plan_of(self.dice, mode)
        self.hub = getcurrent()
        self.redis = MemoryRedis(self.yield_to_others)
        self.database = MemoryDatabase(self.yield_to_others)
        self.pipeline = pipeline_of(self.plan.stages, self.plan.retries, self.plan.failing)
        self.runtime = self._wire()
        self.pulse = _Pulse(self.runtime)
        self.workers = 1 if mode == "poison" else 2
        self.frozen_until = [0.0] * self.workers
        self.thawed = 0.0
        self.queue: list[Message] = []
        self.processes: list[Process] = []
        self._running: Process | None = None
        self.step_number = self.faults = self.generations = 0
        self.snapshot: Any = None
        self.restored = self.in_restore = False
        self._begin()

    # ------------------------------------------------------------------------------------------------- wiring

    def _wire(self) -> Runtime:
        attempts = Attempts(self.redis)  # type: ignore[arg-type]
        attempts.now = lambda: self.redis.now  # type: ignore[method-assign]
        pipelines = Pipelines()
        bound = Bound.of(self.pipeline)
        pipelines.of = lambda run: bound  # type: ignore[method-assign]
        return Runtime(
            ledger=Ledger(self.database, dispatch_lease=DISPATCH),  # type: ignore[arg-type]
            redis=self.redis,  # type: ignore[arg-type]
            vault=Vault(self.redis, KEYS),  # type: ignore[arg-type]
            attempts=attempts,
            pipelines=pipelines,
            renewal=SimulatedRenewal(self),  # type: ignore[arg-type]
            sender=self,
            times=Times(claim=CLAIM, renewal=2.0, grace=5.0, dispatch_lease=DISPATCH, dispatch_longest=32.0),
            caps=Caps(recoveries=RECOVERIES, due_at_once=50, cancelled_at_once=2),
            jitter=random.Random(self.dice.random()),
        )

    def _begin(self) -> None:
        submissions = self.submissions = Submissions(self.database)  # type: ignore[arg-type]
        submissions.begin(
            RUN,
            target="simulated:pipeline",
            pipeline=self.pipeline.name,
            version="1",
            fingerprint=self.pipeline.fingerprint,
            window=self.plan.window,
            key_path=None,
            reuse=False,
            now=0.0,
        )
        submissions.feed(RUN, [NewItem(str(n), "{}", f"digest{n}") for n in range(self.plan.items)], 0.0)
        submissions.input_done(RUN)

    @property
    def run_status(self) -> str:
        """The run's status in the ledger."""
        return str(self.database.tables["runs"][(RUN,)]["status"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The items' rows."""
        return list(self.database.tables["items"].values())

    def row(self, seq: int) -> dict[str, Any]:
        """An item's row."""
        return self.database.tables["items"][(RUN, seq)]

    # ------------------------------------------------------------------------------------- who runs, and the broker

    def tell(self, *words: object) -> None:
        """Add a line to the story."""
        if self.trace is not None:
            self.trace.append(f"t={self.redis.now:4.0f} " + " ".join(str(word) for word in words))

    def yield_to_others(self, _kind: str) -> None:
        """A point where others may run. From the scheduler itself it is none."""
        if self._running is not None:
            self.hub.switch()

    def current(self) -> Process:
        """The process that is running."""
        assert self._running is not None
        return self._running

    def send(self, row: Row, bound: Bound, step: Step, asked: Sequence[int] = ()) -> None:
        """The product's sender, on this broker."""
        self.yield_to_others("send")
        links: list[tuple[str, str | None]] = [("produce", None)] if step == "produce" else []
        if step != "coordinate":
            for group in bound.pipeline.stages[row.stage].groups:
                if not asked or not set(group).isdisjoint(asked):
                    queue = bound.pipeline.stages[row.stage].validators[group[0]].queue
                    links.append(("validate", "remand.alone" if row.alone else queue or "remand.validate"))
        links.append(("coordinate", None))
        self.queue.append(Message(tuple(links), str(row.token), self.step_number))
        self.tell("send", step, row.seq, "epoch", row.epoch)

    def start(self, worker: int, message: Message | None) -> None:
        """Begin a step, or a beat where there is no message."""
        begun = greenlet(lambda: self._work(message), self.hub)
        self.processes.append(Process(worker, begun, message, self.step_number))

    def _work(self, message: Message | None) -> Next | None:
        if message is None:
            self.pulse.beat()
            return None
        name, queue = message.links[0]
        token = Token.parse(message.token)
        if name == "produce":
            return produce.run(self.runtime, token)
        if name == "validate":
            return validate.run(self.runtime, token, queue)
        return coordinate.run(self.runtime, token)

    def step(self, process: Process) -> None:
        """Let a process run to its next point."""
        self._running = process
        result = process.greenlet.switch()
        self._running = None
        if not process.greenlet.dead:
            if result == "poison":
                self.kill(process.worker)
            return
        self.processes.remove(process)
        message = process.message
        if message is None or result is Next.STOP or len(message.links) < 2:
            return
        links = message.links[1:] if result is Next.FORWARD else message.links[-1:]
        self.queue.append(Message(links, message.token, self.step_number))

    # --------------------------------------------------------------------------------------------------- the model

    def model_call(self, context: Context, correction: Correction | None) -> Any:
        """A die for a model."""
        raise NotImplementedError

    def judge(self, index: int, value: Mapping[str, Any], context: Context) -> Any:
        """A die for a validator."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------------------------- the faults

    def kill(self, worker: int) -> None:
        """A worker dies; half of what it held comes back to the broker."""
        self.tell("KILL worker", worker)
        for process in [process for process in self.processes if process.worker == worker]:
            self.processes.remove(process)
            process.greenlet.throw(GreenletExit)
            if process.message is not None and self.dice.random() < 0.5:
                self.queue.append(process.message)
        self.frozen_until[worker] = 0.0

    def fault(self, kind: str) -> None:
        """One fault."""
        dice = self.dice
        if kind in ("duplicate", "drop") and not self.queue:
            return
        self.faults += 1
        self.tell("FAULT", kind)
        match kind:
            case "duplicate":
                self.queue.append(dice.choice(self.queue))
            case "drop":
                self.queue.pop(dice.randrange(len(self.queue)))
            case "kill":
                self.kill(dice.randrange(self.workers))
            case "freeze":
                self.frozen_until[dice.randrange(self.workers)] = self.redis.now + dice.choice((3, 8, 20))
                self.thawed = max(self.frozen_until)
            case "flush" | "flush_records" | "flush_vault":
                self.flush(kind)
            case "empty_broker":
                self.queue.clear()
            case "cancel":
                self.submissions.cancel(RUN)
            case "redrive":
                self.redrive()
            case "restore":
                self.restore()

    def flush(self, kind: str) -> None:
        """Redis loses records, vault entries, or both."""
        for row in self.rows:
            if kind != "flush_vault":
                self.redis.unlink(record_key(RUN, row["seq"]))
            if kind != "flush_records":
                self.redis.unlink(vault_key(RUN, row["seq"]))

    def redrive(self) -> None:
        """A person gives what ended badly another round."""
        ended = [
            r["seq"] for r in self.rows if r["status"] in ("failed", "rejected", "cancelled", "incomplete")
        ]
        if ended and self.run_status == "running" and self.dice.random() < 0.5:
            try:
                self.submissions.redrive(RUN, self.pipeline.fingerprint, seqs=[self.dice.choice(ended)])
            except RunError:
                self.tell("redrive refused")

    def restore(self) -> None:
        """The ledger goes back to where a backup had it; Redis and the broker stay."""
        tables = self.database.tables
        if self.snapshot is None:
            self.snapshot = {name: dict(rows) for name, rows in tables.items()}
        elif not self.restored and self.run_status == "running":
            self.restored = True
            for name, rows in self.snapshot.items():
                tables[name].clear()
                tables[name].update(rows)

    def able(self) -> list[Process]:
        """The processes of workers that are not frozen."""
        now = self.redis.now
        if self.thawed <= now:
            return self.processes
        return [process for process in self.processes if self.frozen_until[process.worker] <= now]

    def tick(self) -> None:
        """A second passes: live claims are renewed, and the pulse beats here and there."""
        self.redis.now += 1.0
        held = [claim for process in self.able() if process.claims for claim in process.claims]
        if held:
            self.runtime.attempts.renew(held, lease=CLAIM)
        beating = [process for process in self.processes if process.message is None]
        if len(beating) < 2 and self.dice.random() < 0.6:
            worker = self.dice.randrange(self.workers)
            if self.frozen_until[worker] <= self.redis.now:
                self.start(worker, None)

    # -------------------------------------------------------------------------------------------------- one schedule

    def go(self) -> int:
        """Run until the run has ended."""
        dice, rates = self.dice, [(kind, rate) for kind, rate in self.plan.rates.items() if rate]
        faulty = sum(rate for _, rate in rates) + 1e-9
        runs, key = self.database.tables["runs"], (RUN,)
        self.start(0, None)
        while runs[key]["ended_at"] is None:
            self.step_number += 1
            if self.step_number > LAST_STEP:
                raise Violation(f"never ends: {[(r['seq'], r['state'], r['epoch']) for r in self.rows]}")
            if self.step_number < self.plan.until and (drawn := dice.random()) < faulty:
                for kind, rate in rates:
                    if drawn < rate:
                        self.fault(kind)
                        break
                    drawn -= rate
            drawn = dice.random()
            if drawn < 0.62 and (able := self.able()):
                self.step(dice.choice(able))
            elif drawn < 0.86 and self.queue:
                self._deliver()
            else:
                self.tick()
        for process in self.processes:
            process.greenlet.throw(GreenletExit)
        self.at_end()
        return self.step_number

    def _deliver(self) -> None:
        worker = self.dice.randrange(self.workers)
        if (
            self.frozen_until[worker] <= self.redis.now
            and len([process for process in self.processes if process.worker == worker]) < 5
        ):
            first = self.dice.random() < 0.5
            self.start(worker, self.queue.pop(0 if first else self.dice.randrange(len(self.queue))))

    def at_end(self) -> None:
        """What must hold when the run has ended."""
        for row in self.rows:
            if row["state"] != "closed" or row["status"] is None:
                raise Violation("an open item in an ended run")


def quiet() -> None:
    """Run the product's calls inline and keep its logs still."""
    remand.attempt.call = _call_inline  # type: ignore[attr-defined]
    logging.disable(logging.WARNING)
    gc.freeze()
    gc.set_threshold(50_000)


def encoded(value: Any) -> str:
    """JSON of a value."""
    return json.dumps(value)


__all__ = [
    "RUN",
    "ModelResponse",
    "OperationalFailure",
    "Produced",
    "RetryRequest",
    "StructuralFailure",
    "Throttled",
    "Violation",
    "World",
    "accept",
    "pipeline_of",
    "quiet",
    "reject",
]

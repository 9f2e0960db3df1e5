"""The Celery tasks: a token in, a step carried out, the chain forwarded, shortened or cut.

Nothing but a token is ever an argument, nothing is returned, and no exception leaves with its text: a step that breaks
is logged by type and place and reported as a `StepError`. What it left undone is found again in the ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from celery import Celery, Task, chain
from celery.app.amqp import AMQP
from celery.exceptions import Ignore
from celery.signals import task_success

from remand.calls import place_of
from remand.errors import RemandError

from . import faults
from .faults import point
from .pipelines import Bound
from .routing import COORDINATE, RECONCILE, queue_of
from .runtime import Runtime
from .state.rows import Row, Step
from .steps import Next, coordinate, produce, reconcile, validate
from .token import BadToken, Token, registry_of

log = logging.getLogger("remand.tasks")

NAMES = {
    "produce": "remand.produce",
    "validate": "remand.validate",
    "coordinate": "remand.coordinate",
    "reconcile": "remand.reconcile",
}


class StepError(RemandError):
    """A step broke. `step` and `error_type` are codes; the worker's log names the place."""

    def __init__(self, step: str, error_type: str) -> None:
        super().__init__(step, error_type)
        self.step = step
        self.error_type = error_type


class CleanAMQP(AMQP):
    """Writes what people read of a task's arguments itself: pipeline, item, stage and attempt, whoever sends."""

    describe: Callable[[Token], str] | None = None

    def as_task_v2(self, *args: Any, **kwargs: Any) -> Any:
        """The message of a task, its representations replaced."""
        message = super().as_task_v2(*args, **kwargs)
        shown = self._shown(message)
        message.headers["argsrepr"] = shown
        message.headers["kwargsrepr"] = "{}"
        if message.sent_event:
            message.sent_event["args"] = shown
            message.sent_event["kwargs"] = "{}"
        return message

    @cached_property
    def send_task_message(self) -> Any:
        """What publishes every task message of this application, links of chains included."""
        return faults.sender(super().send_task_message)

    def _shown(self, message: Any) -> str:
        arguments = message.body[0]
        try:
            token = Token.parse(arguments[0])
        except (BadToken, IndexError, TypeError, KeyError):
            return f"registry {arguments[0]}" if message.headers["task"] == NAMES["reconcile"] else "()"
        describe = type(self).describe
        return str(token) if describe is None else describe(token)


class CelerySender:
    """Sends each attempt as one chain: produce, the validator groups, coordinate."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def send(self, row: Row, bound: Bound, step: Step, asked: Sequence[int] = ()) -> None:
        """Begin at `step`; with `asked`, visit the groups of those validators alone."""
        pipeline = bound.pipeline
        links: list[tuple[str, str]] = []
        if step == "produce":
            links.append((NAMES["produce"], queue_of(row, pipeline, "produce")))
        if step != "coordinate":
            links += [
                (NAMES["validate"], queue_of(row, pipeline, "validate", group[0]))
                for group in pipeline.stages[row.stage].groups
                if not asked or not set(group).isdisjoint(asked)
            ]
        links.append((NAMES["coordinate"], COORDINATE))
        token = str(row.token)
        signatures = [
            self._app.signature(name, args=(token,), immutable=True, options={"queue": queue})
            for name, queue in links
        ]
        point("send.begun")
        (signatures[0] if len(signatures) == 1 else chain(*signatures)).apply_async()
        point("send.done")

    def reconcile(self, registry: str) -> None:
        """Have a worker do what can be done for a registry. Its name is the whole message."""
        point("send.begun")
        signature = self._app.signature(
            NAMES["reconcile"], args=(registry,), immutable=True, options={"queue": RECONCILE}
        )
        signature.apply_async()
        point("send.done")


def register(app: Celery, runtime: Callable[[], Runtime], bind: Callable[[Token | None], None]) -> None:
    """Define the tasks on `app`. `runtime` gives this process's runtime.

    `bind` is told the token before a step and `None` behind it, so that log records can carry it.
    """

    def carry_out(
        task: Task, step: str, arguments: tuple[Any, ...], work: Callable[[Runtime, Token], Next]
    ) -> None:
        try:
            token = Token.parse(arguments[0] if len(arguments) == 1 else None)
        except BadToken:
            log.warning("refused a message for %s: it holds no token", NAMES[step])
            raise Ignore() from None
        bind(token)
        try:
            after = work(runtime(), token)
        except Exception as error:
            place = place_of(error, work)
            log.error("%s broke: %s at %s", NAMES[step], place.type, place.at)
            raise StepError(step, place.type) from None
        finally:
            bind(None)
        point("step.returned")
        if after is Next.STOP:
            task.request.chain = None
        elif after is Next.DECIDE and task.request.chain:
            # The chain is kept reversed: its first entry is the last link, the coordinator.
            task.request.chain = task.request.chain[:1]

    options = {"bind": True, "ignore_result": True, "typing": False, "max_retries": 0, "shared": False}

    @app.task(name=NAMES["produce"], **options)
    def _produce(self: Task, *arguments: Any) -> None:
        """One attempt of the producer."""
        carry_out(self, "produce", arguments, produce.run)

    @app.task(name=NAMES["validate"], **options)
    def _validate(self: Task, *arguments: Any) -> None:
        """A group of neighbouring validators, in order."""
        queue = (self.request.delivery_info or {}).get("routing_key")
        carry_out(self, "validate", arguments, lambda given, token: validate.run(given, token, queue))

    @app.task(name=NAMES["coordinate"], **options)
    def _coordinate(self: Task, *arguments: Any) -> None:
        """Aggregate, decide, commit, dispatch what is owed."""
        carry_out(self, "coordinate", arguments, coordinate.run)

    @app.task(name=NAMES["reconcile"], **options)
    def _reconcile(self: Task, *arguments: Any) -> None:
        """What can be done for a registry now: read entries in, plan blocks, apply what was proposed."""
        try:
            name = registry_of(arguments[0] if len(arguments) == 1 else None)
        except BadToken:
            log.warning("refused a message for %s: it names no registry", NAMES["reconcile"])
            raise Ignore() from None
        try:
            reconcile.run(runtime(), name)
        except Exception as error:
            place = place_of(error, reconcile.run)
            log.error("%s broke: %s at %s", NAMES["reconcile"], place.type, place.at)
            raise StepError("reconcile", place.type) from None

    if faults.armed():
        # A chain goes on before this signal, and its message is acknowledged after it.
        task_success.connect(_forwarded, weak=False)


def _forwarded(**_: Any) -> None:
    point("step.forwarded")

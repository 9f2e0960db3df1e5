"""The process: each source in a thread of its own, one intake for all, and an orderly end.

It ends after the message in hand. A server that goes away is waited for, longer each time; that is said once. What a
message is made of never ends it: that is a dead letter.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Final, Protocol

from remand.pipeline import load_registry
from remand_tasks.registry.intake import OUTAGES, Delivery, Intake, Limits, Result
from remand_tasks.registry.letters import Letters
from remand_tasks.registry.store import Registries
from remand_tasks.runtime import Observer
from remand_tasks.state.attempts import Attempts
from remand_tasks.state.engine import Database
from remand_tasks.state.migrate import prepare
from remand_tasks.state.vault import KeyRing, Vault

from .. import logs
from ..app import connect
from ..settings import Settings
from ..telemetry import observer
from .queue import Queue
from .stream import Stream

log = logging.getLogger("remand.intake")

_WAIT: Final = 1.0
"""Seconds to wait for a message before looking up."""
_TELL: Final = 60.0
_SHORTEST, _LONGEST = 0.5, 30.0
"""Seconds between two tries to reach a server."""


class Source(Protocol):
    """Where messages come from, one at a time. Whatever it raises means: close it, and open it again."""

    kind: str
    where: str

    def open(self) -> None: ...

    def next(self, wait: float) -> Delivery | None: ...

    def done(self) -> None: ...

    def later(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Tally:
    """What became of deliveries so far."""

    counts: Counter[Result] = field(default_factory=Counter)

    def __str__(self) -> str:
        return ", ".join(f"{result.value} {self.counts[result]}" for result in Result)

    def to_json(self) -> dict[str, int]:
        """For programs."""
        return {result.value: self.counts[result] for result in Result}


@contextmanager
def opened(settings: Settings) -> Iterator[Intake]:
    """An intake on the ledger and the vault of `settings`. Raises `SettingsError`, `LedgerError`."""
    settings.require_services()
    assert settings.ledger_url is not None
    assert settings.vault_keys is not None
    database = Database(settings.ledger_url)
    client = connect(settings)
    try:
        prepare(database, migrate=database.sqlite)
        clock = Attempts(client).now
        letters = Letters(
            database=database,
            vault=Vault(client, KeyRing.parse(settings.vault_keys.get_secret_value())),
            clock=clock,
            lifetime=settings.intake_retention.total_seconds(),
        )
        limits = Limits(size=settings.intake_max_bytes, entries=settings.intake_max_entries)
        yield Intake(database=database, letters=letters, clock=clock, limits=limits)
    finally:
        database.dispose()
        client.close()


def run_intake(
    settings: Settings, *, registries: Sequence[str] = (), once: bool = False
) -> tuple[Tally, bool]:
    """Take messages until told to stop, or with `once` until none waits. What became of them, and whether by SIGINT.

    `registries` are loaded and made known to the ledger before the first message. Raises `PipelineError` for one that
    is refused, and with `once` whatever a server that cannot be used raises.
    """
    sources = _sources(settings)
    targets = [(target, load_registry(target)) for target in registries]
    logs.configure(settings)
    with opened(settings) as intake, _told_to_stop() as stop:
        for target, registry in targets:
            Registries(intake.database).register(registry, target, intake.clock())
        serving = _Serving(intake, observer(settings.metrics_port), stop, once)
        if once:
            for source in sources:
                serving.serve(source)
        else:
            serving.serve_all(sources)
        return serving.tally, stop.interrupted


def _sources(settings: Settings) -> list[Source]:
    lease = settings.intake_lease.total_seconds()
    return [
        Queue(url, name=settings.intake_queue, lease=lease)
        if url.startswith("amqp")
        else Stream(url, name=settings.intake_stream, group=settings.intake_group, lease=lease)
        for url in settings.intake_urls()
    ]


class _Stop(threading.Event):
    """Set by SIGTERM or SIGINT; `interrupted` says that it was SIGINT."""

    interrupted = False

    def hear(self, signal_number: int, _: FrameType | None) -> None:
        self.interrupted = self.interrupted or signal_number == signal.SIGINT
        self.set()


@contextmanager
def _told_to_stop() -> Iterator[_Stop]:
    stop = _Stop()
    before = {number: signal.signal(number, stop.hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Trouble:
    """One server that may be away: how long to wait, and what was said of it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said = ""
        self._pause = _SHORTEST

    def met(self, error: Exception) -> float:
        """Say it, if it is new. Seconds to wait."""
        kind = type(error).__name__
        if kind != self._said:
            log.warning("%s cannot be used (%s at %s), trying again", self._what, kind, logs.place(error))
            self._said = kind
        pause, self._pause = self._pause, min(self._pause * 2, _LONGEST)
        return pause

    def over(self) -> None:
        """It can be used."""
        if self._said:
            log.info("%s can be used again", self._what)
        self._said, self._pause = "", _SHORTEST


class _Serving:
    """What the threads share."""

    def __init__(self, intake: Intake, observer: Observer, stop: threading.Event, once: bool) -> None:
        self._intake, self._observer, self._stop, self._once = intake, observer, stop, once
        self.tally = Tally()

    def serve_all(self, sources: Sequence[Source]) -> None:
        """Serve every source until told to stop; say once a minute what happened, if anything did."""
        threads = [
            threading.Thread(
                target=self.serve, args=(source,), name=f"remand-intake-{source.kind}", daemon=True
            )
            for source in sources
        ]
        for thread in threads:
            thread.start()
        said = str(self.tally)
        while not self._stop.wait(_TELL):
            if (now := str(self.tally)) != said:
                log.info("messages: %s", now)
                said = now
        for thread in threads:
            thread.join()

    def serve(self, source: Source) -> None:
        """Serve one source until told to stop, or with `once` until it is empty."""
        trouble = _Trouble(source.where)
        while not self._stop.is_set():
            try:
                source.open()
                log.info("messages are taken from %s", source.where)
                while not self._stop.is_set():
                    delivery = source.next(0.0 if self._once else _WAIT)
                    trouble.over()
                    if delivery is not None:
                        self._handle(source, delivery)
                    elif self._once:
                        return
            except Exception as error:
                if self._once:
                    raise
                self._stop.wait(trouble.met(error))
            finally:
                source.close()

    def _handle(self, source: Source, delivery: Delivery) -> None:
        result = self._take(delivery)
        if result is None:
            return
        self.tally.counts[result] += 1
        self._observer.delivered(source.kind, result.value)
        if result is Result.LATER:
            source.later()
        else:
            source.done()

    def _take(self, delivery: Delivery) -> Result | None:
        """What became of a message. Ledger and vault are waited for; `None` if the end comes first."""
        trouble = _Trouble("the ledger or the vault")
        while True:
            try:
                result = self._intake.take(delivery)
            except OUTAGES as error:
                if self._once:
                    raise
                if self._stop.wait(trouble.met(error)):
                    return None
            else:
                trouble.over()
                return result

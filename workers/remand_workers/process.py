"""A worker process: Celery's worker with Remand's application, queues and signals.

It replaces itself when too many abandoned calls hold its threads: it stops taking work, finishes what it has, and
begins anew under the same process id, so that whoever watches it sees nothing die.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import celery.apps.worker
from celery import signals
from celery.apps.worker import Worker
from celery.exceptions import SecurityWarning
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from remand.calls import hung_calls
from remand_tasks.state import canary
from remand_tasks.state.vault import KeyRing, VaultError

from . import logs
from .app import QUEUES, connect, create_app, runtime_of
from .settings import Settings

log = logging.getLogger("remand.worker")

MISCONFIGURED = 2
"""The exit status of a worker that must not take any work as it is set up."""


def run_worker(
    settings: Settings,
    *,
    queues: Sequence[str] = QUEUES,
    name: str | None = None,
    pipelines: Sequence[str] = (),
    attend: str | None = None,
    ready: Callable[[], None] | None = None,
) -> int:
    """Serve `queues` until told to stop: SIGTERM and SIGINT finish what is held. The exit status: 130 after SIGINT,
    2 where the vault's keys are not those of the other workers.

    `pipelines` are loaded before the first message, so that a broken one is refused at once (`PipelineError`).
    With `attend`, its pulse looks after that run alone, or after those that begin so (`beginning-*`); messages are
    served whichever run they are of. `ready` is called once messages are taken.
    """
    settings.require_services()
    configure = logs.setup_logging_receiver(settings)
    configure()
    _quieten()
    signals.setup_logging.connect(configure, weak=False)
    signals.worker_process_init.connect(configure, weak=False)
    app = create_app(settings)
    app.conf.remand_attend = attend
    for target in pipelines:
        app.conf.remand_pipelines.preload(target)
    if not _has_the_others_keys(settings):
        return MISCONFIGURED
    told = _tell_of_life(ready)
    # Before the first message, so that a worker with nothing to do serves its metrics, too.
    begun = signals.worker_ready if settings.pool == "threads" else signals.worker_process_init
    begun.connect(lambda **_: runtime_of(app), weak=False)
    worker = app.Worker(
        hostname=f"{name or f'remand-{os.getpid()}'}@{socket.gethostname()}",
        pool=settings.pool,
        concurrency=settings.concurrency,
        queues=list(queues),
        loglevel=settings.log_level,
        without_gossip=True,
        without_mingle=True,
        quiet=True,
    )
    replace = _replace_when_hung(worker, settings.hung_calls)
    worker.start()
    if replace.is_set():
        log.warning("this process is replaced: abandoned calls hold too many of its threads")
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the same program with the same arguments
    return 130 if "SIGINT" in told else 0 if "SIGTERM" in told else int(worker.exitcode or 0)


def _has_the_others_keys(settings: Settings) -> bool:
    """Whether this worker opens what the last one that started sealed. Waits for the vault as Celery for the broker."""
    assert settings.vault_keys is not None
    keys = KeyRing.parse(settings.vault_keys.get_secret_value())
    client = connect(settings)
    pause = threading.Event()
    try:
        for wait in itertools.chain((0.5, 1.0, 2.0), itertools.repeat(5.0)):
            try:
                canary.compare(client, keys)
                return True
            except VaultError as error:
                log.error(
                    "REMAND_VAULT_KEYS is not what other workers have (%s): this worker has %s, and none of these "
                    "opens what the last worker sealed. Give it the same keys, a new one in front and the old ones "
                    "behind it. If the others' key is lost for good, delete %s from the vault's server. "
                    "This worker ends",
                    error.code,
                    ", ".join(keys.ids),
                    canary.KEY,
                )
                return False
            except (AuthenticationError, NoPermissionError) as error:
                log.error(
                    "the vault's server refuses this worker (%s): check the account in REMAND_VAULT_URL and its "
                    "rights. This worker ends",
                    type(error).__name__,
                )
                return False
            except RedisError as error:
                log.warning("the vault's server cannot be reached (%s), trying again", type(error).__name__)
            pause.wait(wait)
    finally:
        client.close()
    raise AssertionError("the waits never end")


def _quieten() -> None:
    """Keep Celery from printing: its words about signals, the locals that it dumps on SIGUSR1, and that root is bad.

    (The warning is about pickle, which is refused here.)
    """
    celery.apps.worker.safe_say = lambda *_, **__: None
    warnings.simplefilter("ignore", SecurityWarning)


def _tell_of_life(ready: Callable[[], None] | None) -> list[str]:
    """Log that work is taken, and that the end has begun. The list comes to hold the signal that said so."""
    told: list[str] = []

    def begun(**_: Any) -> None:
        log.info("work is taken")
        if ready is not None:
            ready()

    def ending(sig: object = None, **_: Any) -> None:
        told.append(sig if isinstance(sig, str) else signal.Signals(int(str(sig))).name)
        log.info("stopping: what is held is finished first")

    signals.worker_ready.connect(begun, weak=False)
    signals.worker_shutting_down.connect(ending, weak=False)
    return told


def _replace_when_hung(worker: Worker, most: int) -> threading.Event:
    """Watch the calls that were abandoned; past `most`, end the worker gently and say that it is to be replaced."""
    replace = threading.Event()

    def watch(**_: Any) -> None:
        pause = threading.Event()
        while not pause.wait(0.5):
            if hung_calls() > most:
                replace.set()
                from celery.worker import state

                state.should_stop = 0
                return

    def ready(**_: Any) -> None:
        threading.Thread(target=watch, name="remand-hung-calls", daemon=True).start()

    signals.worker_ready.connect(ready, weak=False)
    return replace

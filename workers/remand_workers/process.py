"""A worker process: Celery's worker with Remand's application, queues and signals.

It replaces itself when too many abandoned calls hold its threads: it stops taking work, finishes what it has, and
begins anew under the same process id, so that whoever watches it sees nothing die.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from celery import signals
from celery.apps.worker import Worker

from remand.calls import hung_calls

from . import logs
from .app import QUEUES, create_app
from .settings import Settings

log = logging.getLogger("remand.worker")


def run_worker(
    settings: Settings,
    *,
    queues: Sequence[str] = QUEUES,
    name: str | None = None,
    pipelines: Sequence[str] = (),
) -> int:
    """Serve `queues` until told to stop: SIGTERM finishes what is held. The exit status.

    `pipelines` are loaded before the first message, so that a broken one is refused at once (`PipelineError`).
    """
    settings.require_services()
    app = create_app(settings)
    signals.setup_logging.connect(logs.setup_logging_receiver(settings), weak=False)
    for target in pipelines:
        app.conf.remand_pipelines.preload(target)
    worker = app.Worker(
        hostname=f"{name or f'remand-{os.getpid()}'}@{socket.gethostname()}",
        pool=settings.pool,
        concurrency=settings.concurrency,
        queues=list(queues),
        loglevel=settings.log_level,
        task_events=True,
        without_gossip=True,
        without_mingle=True,
        quiet=True,
    )
    replace = _replace_when_hung(worker, settings.hung_calls)
    worker.start()
    if replace.is_set():
        log.warning("this process is replaced: abandoned calls hold too many of its threads")
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the same program with the same arguments
    return int(worker.exitcode or 0)


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

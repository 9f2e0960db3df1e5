"""The Celery application and this process's runtime: the one place where things are wired.

`create_app` builds an application for given settings. A worker process builds its runtime on first use, once for each
process, so that a fork never shares a connection.
"""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

import redis
from celery import Celery, bootsteps
from celery.signals import setup_logging, worker_process_init
from kombu.entity import Queue

from remand_tasks.celery_tasks import CelerySender, CleanAMQP, register
from remand_tasks.pipelines import Pipelines
from remand_tasks.pulse import Pulse
from remand_tasks.renewal import Renewal
from remand_tasks.routing import ALONE, COORDINATE, PRODUCE, RECONCILE, VALIDATE
from remand_tasks.runtime import Caps, Runtime, Times
from remand_tasks.state.attempts import Attempts
from remand_tasks.state.engine import Database
from remand_tasks.state.ledger import Ledger
from remand_tasks.state.vault import KeyRing, Vault
from remand_tasks.token import Token

from . import logs, remote
from .settings import Settings
from .telemetry import observer

QUEUES = (PRODUCE, VALIDATE, COORDINATE, RECONCILE, ALONE)
PATIENCE = 30.0
"""Seconds for a server to answer, broker or vault, before the connection to it is given up."""
_UNACKED = ("unacked", "unacked_index", "unacked_mutex")

_runtimes: dict[int, Runtime] = {}
_runtimes_lock = threading.Lock()


def connect(settings: Settings) -> redis.Redis:
    """A client of the vault's server. Connections are made when used, with time-outs on everything."""
    assert settings.vault_url is not None
    return redis.Redis.from_url(
        settings.vault_url,
        socket_timeout=PATIENCE,
        socket_connect_timeout=5,
        health_check_interval=30,
        max_connections=1_000,
    )


def times_of(settings: Settings) -> Times:
    """The leases and waits that settings ask for."""
    return Times(
        claim=settings.claim_lease.total_seconds(),
        renewal=settings.claim_renewal.total_seconds(),
        grace=settings.claim_grace.total_seconds(),
        dispatch_lease=settings.dispatch_lease.total_seconds(),
        dispatch_longest=settings.dispatch_lease_max.total_seconds(),
        planning=settings.planning_lease.total_seconds(),
        pulse=settings.pulse_interval.total_seconds(),
        retention=None if settings.retention is None else settings.retention.total_seconds(),
    )


def create_runtime(settings: Settings, app: Celery, pipelines: Pipelines | None = None) -> Runtime:
    """Wire a runtime: ledger, vault, records, sender."""
    settings.require_services()
    assert settings.vault_keys is not None
    assert settings.ledger_url is not None
    client = connect(settings)
    vault = Vault(client, KeyRing.parse(settings.vault_keys.get_secret_value()))
    attempts = Attempts(client)
    times = times_of(settings)
    return Runtime(
        ledger=Ledger(Database(settings.ledger_url), dispatch_lease=times.dispatch_lease),
        redis=client,
        vault=vault,
        attempts=attempts,
        pipelines=pipelines or Pipelines(),
        renewal=Renewal(attempts, lease=times.claim, every=times.renewal),
        sender=CelerySender(app),
        observer=observer(settings.metrics_port),
        times=times,
        caps=Caps(recoveries=settings.max_recoveries, reopens=settings.max_reopens),
    )


def runtime_of(app: Celery) -> Runtime:
    """This process's runtime for `app`, made on first use and made anew after a fork."""
    pid = os.getpid()
    runtime = _runtimes.get(pid)
    if runtime is None:
        with _runtimes_lock:
            if pid not in _runtimes:
                _runtimes.clear()
                _runtimes[pid] = create_runtime(app.conf.remand_settings, app, app.conf.remand_pipelines)
            runtime = _runtimes[pid]
    return runtime


class PulseStep(bootsteps.StartStopStep):
    """Beats the pulse in a worker that coordinates. It lives beside Celery's own loop, not in it."""

    requires: ClassVar[set[str]] = {"celery.worker.components:Pool"}

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self.pulse: Pulse | None = None

    def start(self, worker: Any) -> None:
        """Begin, if this worker takes from the coordinators' queue."""
        if COORDINATE in worker.app.amqp.queues.consume_from:
            self.pulse = Pulse(runtime_of(worker.app), attend=worker.app.conf.remand_attend)
            self.pulse.start()

    def stop(self, worker: Any) -> None:
        """End the pulse; whoever else beats goes on."""
        if self.pulse is not None:
            self.pulse.stop()

    terminate = stop


def create_app(settings: Settings, *, works: bool = True) -> Celery:
    """The Celery application for these settings. Results are not kept, JSON alone is accepted.

    With `works` false it is for one who only watches: on a Redis broker it keeps no hand in the table of unacknowledged
    messages, which all who consume share and mend, so that its account needs no right to it.
    """
    pipelines = Pipelines()

    class AMQP(CleanAMQP):
        describe = staticmethod(pipelines.describe)

    app = Celery("remand", amqp=AMQP, set_as_current=False)
    transport: dict[str, Any] = {}
    quorum = settings.broker_url is not None and settings.broker_url.startswith("amqp")
    kept = {"x-queue-type": "quorum"} if quorum else None
    if quorum:
        # Not kombu's `confirm_timeout`: after it, closing the connection would wait for the same broker, for ever.
        transport = {"confirm_publish": True, "read_timeout": PATIENCE, "write_timeout": PATIENCE}
    else:
        transport = {
            "visibility_timeout": settings.visibility_timeout.total_seconds(),
            "unacked_restore_throttle": 1,
            "health_check_interval": 10,
            "socket_timeout": PATIENCE,
            "socket_keepalive": True,
            "socket_connect_timeout": 5,
        }
        if not works:
            transport |= {f"{name}_key": f"watch.{name}" for name in _UNACKED}
    app.conf.update(
        remand_settings=settings,
        remand_pipelines=pipelines,
        remand_attend=None,
        broker_url=settings.broker_url,
        broker_connection_retry_on_startup=True,
        broker_transport_options=transport,
        visibility_timeout=settings.visibility_timeout.total_seconds(),
        # The type is said for each queue: Celery's default is only for those that it makes up by itself.
        task_queues=[Queue(name, routing_key=name, queue_arguments=kept) for name in QUEUES],
        task_default_queue=COORDINATE,
        task_create_missing_queue_type="quorum" if quorum else "classic",
        worker_detect_quorum_queues=quorum,
        task_create_missing_queues=True,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        task_send_sent_event=False,
        # Events cost a sixth of a worker's time; Flower turns them on where it runs.
        worker_send_task_events=False,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=not quorum,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_concurrency=settings.concurrency,
        worker_pool=settings.pool,
        worker_consumer="remand_workers.consumer:CarefulConsumer",
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_enable_remote_control=True,
        event_queue_expires=60.0,
        timezone="UTC",
        enable_utc=True,
    )

    def bind(token: Token | None) -> None:
        if token is None:
            logs.clear()
        else:
            stage = pipelines.stage_name(token)
            logs.bind(run=token.run, item=token.seq, stage=stage, attempt=token.attempt)

    register(app, lambda: runtime_of(app), bind)
    remote.define()
    app.steps["worker"].add(PulseStep)
    return app


__all__ = ["create_app", "create_runtime", "runtime_of", "setup_logging", "worker_process_init"]

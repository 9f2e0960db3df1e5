"""The two stacks: Valkey with SQLite, and RabbitMQ quorum queues with PostgreSQL and a Valkey for the vault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kombu.connection import Connection

from remand_tasks.state.engine import Database
from remand_tasks.state.migrate import prepare
from remand_tasks.state.vault import KeyRing
from remand_workers.client import Client
from remand_workers.settings import Settings

from .pipeline import WORKER_QUEUES
from .services import Postgres, Rabbit, Valkey, new_folder

LEASES = {
    "REMAND_CLAIM_LEASE": "2",
    "REMAND_CLAIM_RENEWAL": "0.5",
    "REMAND_CLAIM_GRACE": "1",
    "REMAND_DISPATCH_LEASE": "1",
    "REMAND_DISPATCH_LEASE_MAX": "4",
    "REMAND_PULSE_INTERVAL": "0.2",
    "REMAND_CONCURRENCY": "4",
    "REMAND_MAX_RECOVERIES": "30",
    "REMAND_MAX_REOPENS": "30",
    "REMAND_LOG_FORMAT": "json",
    "REMAND_LOG_LEVEL": "INFO",
}
"""Small ones, so that what is lost is found soon; and no cap that a killer of hundreds would reach."""

SQLITE, POSTGRES = "valkey+sqlite", "rabbitmq+postgresql"
NAMES = (SQLITE, POSTGRES)


class Stack:
    """Services, their settings, and what can be done to them in the middle of a run. Used as a context manager."""

    def __init__(
        self, name: str, folder: Path, broker: Valkey | Rabbit, vault: Valkey, settings: Settings
    ) -> None:
        self.name = name
        self.folder = folder
        self.broker = broker
        self.vault = vault
        self.settings = settings
        self.client = Client(settings)

    @property
    def environment(self) -> dict[str, str]:
        """For a worker on this stack."""
        return {**LEASES, **self.settings.environment()}

    def empty_broker(self) -> None:
        """Throw away every message, delivered ones too as far as the broker can."""
        if isinstance(self.broker, Valkey):
            keys = [key for key in self.vault.client.scan_iter() if not key.startswith(b"remand:")]
            if keys:
                self.vault.client.delete(*keys)
            return
        with Connection(self.broker.url) as line, line.channel() as channel:
            for queue in self._queues(channel):
                channel.queue_purge(queue)

    def restart_broker(self) -> None:
        """Kill the broker and start it again on the same address. The Valkey loses everything, the vault in it too."""
        self.broker.server.stop()
        self.broker.server.start()

    def flush(self, kind: str) -> int:
        """Delete every key of a kind: `attempt` (the facts) or `vault`. How many that were."""
        keys = list(self.vault.client.scan_iter(match=f"remand:{kind}:*", count=1000))
        return int(self.vault.client.delete(*keys)) if keys else 0

    def depth(self) -> int:
        """Messages that wait in the task queues."""
        if isinstance(self.broker, Valkey):
            return sum(int(self.vault.client.llen(queue)) for queue in WORKER_QUEUES)
        with Connection(self.broker.url) as line, line.channel() as channel:
            return sum(
                channel.queue_declare(queue, passive=True).message_count for queue in self._queues(channel)
            )

    def put_back(self) -> None:
        """As new for the next scenario: no message, no record, no text."""
        self.empty_broker()
        for kind in ("attempt", "vault"):
            self.flush(kind)

    def queue_types(self) -> dict[str, str]:
        """How the broker says that each task queue is kept; nothing on Redis."""
        if isinstance(self.broker, Valkey):
            return {}
        found = {}
        for queue in WORKER_QUEUES:
            with Connection(self.broker.url) as line:
                found[queue] = "quorum" if _declares(line, queue, {"x-queue-type": "quorum"}) else "classic"
        return found

    def _queues(self, channel: Any) -> list[str]:
        return [queue for queue in WORKER_QUEUES if _exists(channel.connection.client, queue)]


def _exists(line: Connection, queue: str) -> bool:
    channel = line.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except line.channel_errors:
        return False
    channel.close()
    return True


def _declares(line: Connection, queue: str, arguments: dict[str, str]) -> bool:
    channel = line.channel()
    try:
        channel.queue_declare(queue, durable=True, auto_delete=False, arguments=arguments)
    except line.channel_errors:
        return False
    channel.close()
    return True


@contextmanager
def stack(name: str) -> Iterator[Stack]:
    """One of the stacks, started. Raises `Missing` where a server cannot be had."""
    folder = new_folder("stack")
    servers: list[Any] = []
    try:
        for each in ("valkey", "postgres", "rabbit"):
            (folder / each).mkdir(mode=0o711)
        valkey = Valkey(folder / "valkey")
        if name == SQLITE:
            broker: Valkey | Rabbit = valkey
            servers = [valkey.server]
            urls = {"broker_url": valkey.broker_url, "ledger_url": f"sqlite:///{folder}/ledger.db"}
        else:
            postgres, rabbit = Postgres(folder / "postgres"), Rabbit(folder / "rabbit")
            broker = rabbit
            servers = [valkey.server, postgres.server, rabbit.mapper, rabbit.server]
            urls = {"broker_url": rabbit.url, "ledger_url": postgres.url}
        for server in servers:
            server.start()
        settings = Settings(**urls, vault_url=valkey.vault_url, vault_keys=KeyRing.generate())  # type: ignore[arg-type]
        database = Database(urls["ledger_url"])
        prepare(database, migrate=True)
        database.dispose()
        made = Stack(name, folder, broker, valkey, settings)
        try:
            yield made
        finally:
            made.client.close()
            valkey.client.close()
    finally:
        for server in reversed(servers):
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def describe(made: Stack) -> str:
    """What a stack consists of, for a report."""
    found = {"stack": made.name, "queues": made.queue_types()}
    return json.dumps(found)

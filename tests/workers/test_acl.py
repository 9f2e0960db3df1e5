"""Each role under its own account: a run passes with what the accounts may do, and nothing beyond it is allowed.

The accounts are those of `deploy/redis`, made by its `render.py`, on a real server or on two. The server's own log of
refusals (`ACL LOG`) says whether anything that the product does was refused.
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
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Exchange, Queue
from redis.exceptions import AuthenticationError, NoPermissionError

from remand_tasks.state.vault import KeyRing, record_key, vault_key
from remand_workers.app import create_app
from remand_workers.embedded import server_command
from remand_workers.settings import Settings

pytestmark = pytest.mark.workers

RENDER = Path(__file__).resolve().parents[2] / "deploy" / "redis" / "render.py"
ROLES = ("coordinator", "producer", "validator")
PIPELINE = """
from pydantic import BaseModel

from remand import (
    SINGLE_RESPONSE_V1, Groups, ModelResponse, Pipeline, Policy, Produced, Registry, Stage, accept, producer, reject,
    validator,
)

class Work(BaseModel):
    title: str

def title(work):
    return work.title

def all_the_same(context, correction):
    return Produced(Groups(groups=[[each["id"] for each in context.input["records"]]]))

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

works = Registry(
    "works", Work, version="1", key=title, text=title,
    proposer=producer(version="1", output=Groups)(all_the_same),
)
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
        given = {**self.environment, "REMAND_BROKER_URL": self.url("broker", role)}
        if role != "flower":
            given["REMAND_VAULT_URL"] = self.url("vault", role)
        if role not in (*ROLES, "intake"):
            del given["REMAND_VAULT_KEYS"]  # Who reads no texts needs no key.
        if role == "flower":
            del given["REMAND_LEDGER_URL"]
        return given

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

    def forget_refusals(self) -> None:
        """Begin the servers' lists of refusals anew."""
        for part in ("broker", "vault"):
            with self.client(part, "admin") as admin:
                admin.acl_log_reset()

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
    try:
        for name, at in {"redis": port}.items() if one else ports.items():
            options = {
                "port": at, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": folder,
                "aclfile": folder / f"{name}.acl", "logfile": folder / f"{name}.log",
            }  # fmt: skip
            words = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
            stack.processes.append(subprocess.Popen([server_command(), *words], stdout=subprocess.DEVNULL))
            wait_for(lambda at=at: answers(at), f"{name} server")  # type: ignore[misc]
        assert stack.remand("client", "migrate").returncode == 0
        logs = [
            stack.start(role, "worker", "--role", role, "--name", role, "--pipeline", "fenced:pipeline")
            for role in ROLES
        ]
        for log in logs:
            wait_for(lambda log=log: "work is taken" in log.read_text(), log.read_text())  # type: ignore[misc]
        yield stack
    finally:
        for process in reversed(stack.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def test_a_run_passes_and_nothing_the_product_does_is_refused(fenced: Fenced) -> None:
    fenced.forget_refusals()
    inputs = fenced.folder / "in.jsonl"
    inputs.write_text(
        "".join(f"{json.dumps(do)}\n" for do in ("good", "correct", "reject", "undetermined", "raise"))
    )
    done = fenced.remand(
        "client", "submit", "fenced:pipeline", "-i", "in.jsonl", "--run-id", "r", "--wait", "-q", "--no-reuse"
    )
    assert done.returncode == 3, done.stderr
    shown = fenced.remand("client", "results", "r")
    outcomes = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [each["status"] for each in outcomes] == [
        "accepted",
        "accepted",
        "rejected",
        "incomplete",
        "accepted",
    ]
    assert [each["attempts"] for each in outcomes] == [1, 2, 2, 1, 2]
    assert fenced.refusals() == []


def test_flower_shows_tasks_without_a_right_to_any_message(fenced: Fenced) -> None:
    port = free_port()
    fenced.forget_refusals()
    fenced.start("flower", "flower", "--port", str(port))
    wait_for(lambda: answers(port), "Flower")

    def fetch(path: str) -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    wait_for(lambda: all(f"{role}@" in fetch("/workers") for role in ROLES), "workers in Flower")
    table = "/tasks/datatable?draw=1&start=0&length=100&search[value]=&order[0][column]=0&order[0][dir]=asc"
    table += "&columns[0][data]=name"
    (fenced.folder / "one.jsonl").write_text('"good"\n')

    def seen() -> bool:
        done = fenced.remand(
            "client", "submit", "fenced:pipeline", "-i", "one.jsonl", "--wait", "-q", "--no-reuse"
        )
        assert done.returncode == 0, done.stderr
        return "fenced 000000 make attempt 1/2" in fetch(table)

    wait_for(seen, "a task in Flower")
    assert fetch("/broker")
    assert fenced.refusals() == []


def test_doctor_asks_workers_and_says_what_its_account_may_not_ask(fenced: Fenced) -> None:
    done = fenced.remand("client", "doctor", "fenced:pipeline", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {each["part"]: each for each in json.loads(done.stdout)}
    assert found["workers"]["found"].startswith("3 answer")
    assert found["queues"]["health"] == "ok", found["queues"]
    assert found["workers' keys"]["health"] == "ok", found["workers' keys"]
    assert found["accounts"]["health"] == "ok", found["accounts"]
    assert "cannot be checked" in found["vault persistence"]["found"]


def test_messages_of_other_systems_become_a_reconciliation(fenced: Fenced) -> None:
    fenced.forget_refusals()
    entries = [{"title": "one thing"}, {"title": "one thing!"}]
    with fenced.client("broker", "sender") as sender:
        for body in (
            json.dumps({"id": "m", "registry": "works", "entries": entries}),
            "no JSON",
            "no JSON either",
        ):
            sender.xadd("remand.intake", {"json": body})
    done = fenced.remand("intake", "intake", "--once", "--registry", "fenced:works", "--json")
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout) == {"taken": 1, "redelivered": 0, "dead": 2, "later": 0}
    again = fenced.remand("intake", "intake", "retry", "--all")
    assert again.returncode == 1
    assert again.stderr.count("not_json") >= 2
    assert fenced.remand("intake", "intake", "drop", "--all").returncode == 0

    def merged() -> bool:
        shown = fenced.remand("client", "registry", "entries", "works", "--json")
        assert shown.returncode == 0, shown.stderr
        return len(json.loads(shown.stdout)) == 1

    wait_for(merged, "one cluster")
    assert fenced.refusals() == []


@pytest.mark.parametrize("role", ROLES)
def test_kombu_may_restore_what_any_role_left_unacknowledged(fenced: Fenced, role: str) -> None:
    """Every consumer puts back what others did not acknowledge, whatever the queue: so kombu is made."""
    fenced.forget_refusals()
    app = create_app(fenced.settings(role))
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        # Nobody takes from this queue, so that what is put back can be seen.
        Queue("remand.idle", Exchange("remand.idle"), "remand.idle", channel=channel).declare()
        before = int(channel.client.llen("remand.idle"))
        delivery = {"exchange": "remand.idle", "routing_key": "remand.idle"}
        message = {"body": "e30=", "headers": {}, "properties": {"delivery_info": delivery}}
        tag = f"of a killed worker, put back by {role}"
        # As the table is after a consumer of any role took a message, and was killed.
        with fenced.client("broker", "coordinator") as other:
            other.hset("unacked", tag, json.dumps([message, "remand.idle", "remand.idle"]))
            other.zadd("unacked_index", {tag: time.time()})
        channel.qos.restore_by_tag(tag)
        assert channel.client.hget("unacked", tag) is None
        assert int(channel.client.llen("remand.idle")) == before + 1
    assert fenced.refusals() == []


VAULT_ENTRY, RECORD = vault_key("r", 0), record_key("r", 0)
FORBIDDEN: dict[str, list[tuple[Any, ...]]] = {
    "broker-flower": [
        ("HGETALL", "unacked"), ("HGET", "unacked", "x"), ("ZRANGE", "unacked_index", 0, -1),
        ("BRPOP", "remand.produce", 1), ("LPUSH", "remand.produce", "x"),
        ("LRANGE", "remand.produce", 0, -1), ("HGETALL", VAULT_ENTRY),
        ("HGETALL", RECORD), ("GET", "remand:canary"),
        ("EVAL", "return redis.call('HGETALL', KEYS[1])", 1, VAULT_ENTRY),
    ],
    "broker-client": [
        ("BRPOP", "remand.coordinate", 1), ("LPUSH", "remand.coordinate", "x"), ("HGET", "unacked", "x"),
        ("HGETALL", VAULT_ENTRY), ("PSUBSCRIBE", "/0.celeryev/*"),
    ],
    "broker-coordinator": [
        ("BRPOP", "remand.produce", 1), ("BRPOP", "remand.validate", 1), ("BRPOP", "own.queue", 1),
        ("LRANGE", "remand.produce", 0, -1), ("LMOVE", "remand.produce", "remand.coordinate", "LEFT", "LEFT"),
        ("RPOP", "remand.alone"), ("HGETALL", VAULT_ENTRY), ("HGETALL", "unacked"),
    ],
    "broker-producer": [
        ("BRPOP", "remand.validate", 1), ("BRPOP", "remand.coordinate", 1), ("BRPOP", "own.queue", 1),
        ("DEL", "x.reply.celery.pidbox", "remand:x"), ("HGETALL", VAULT_ENTRY),
    ],
    "broker-validator": [
        ("BRPOP", "remand.produce", 1), ("BRPOP", "remand.coordinate", 1), ("RPOP", "remand.alone"),
        ("HGETALL", VAULT_ENTRY),
    ],
    "broker-intake": [
        ("XADD", "remand.intake", "*", "json", "x"), ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "other", ">"),
        ("XGROUP", "DESTROY", "remand.intake", "remand"), ("BRPOP", "remand.produce", 1),
        ("LPUSH", "remand.produce", "x"), ("HGETALL", "unacked"), ("HGETALL", VAULT_ENTRY),
    ],
    "broker-sender": [
        ("XRANGE", "remand.intake", "-", "+"), ("XREADGROUP", "GROUP", "remand", "c", "STREAMS", "remand.intake", ">"),
        ("XLEN", "remand.intake"), ("DEL", "remand.intake"), ("XADD", "other", "*", "json", "x"),
        ("LPUSH", "remand.produce", "x"), ("HGETALL", VAULT_ENTRY), ("PSUBSCRIBE", "*"),
    ],
    "vault-intake": [
        ("HMGET", VAULT_ENTRY, "x"), ("HSET", VAULT_ENTRY, "x", "y"), ("UNLINK", VAULT_ENTRY), ("HMGET", RECORD, "x"),
        ("HGETALL", "remand:vault:{intake:dead/1}"), ("SCAN", 0), ("EVAL", "return 1", 0), ("GET", "remand:canary"),
    ],
    "vault-client": [
        ("HGETALL", VAULT_ENTRY), ("HGETALL", RECORD), ("HKEYS", VAULT_ENTRY), ("EVAL", "return 1", 0), ("SCAN", 0),
        ("GET", "remand:canary"), ("BRPOP", "remand.produce", 1), ("INFO",),
    ],
    "vault-coordinator": [("BRPOP", "remand.coordinate", 1), ("HGETALL", "unacked"), ("EVAL", "return 1", 0)],
    "vault-producer": [
        ("SCAN", 0), ("UNLINK", VAULT_ENTRY), ("DEL", RECORD), ("HGETALL", VAULT_ENTRY), ("HGETALL", RECORD),
        ("BRPOP", "remand.produce", 1), ("GET", "x"),
    ],
    "vault-validator": [
        ("SCAN", 0), ("UNLINK", VAULT_ENTRY), ("HKEYS", VAULT_ENTRY), ("HGETALL", VAULT_ENTRY),
        ("BRPOP", "remand.validate", 1), ("SET", "x", "y"),
    ],
    "broker-admin": [("HGETALL", "unacked"), ("LRANGE", "remand.produce", 0, -1), ("ACL", "SETUSER", "x")],
    "vault-admin": [("HGETALL", VAULT_ENTRY), ("ACL", "SETUSER", "x"), ("GET", "remand:canary")],
}  # fmt: skip
NOBODY: list[tuple[Any, ...]] = [
    ("KEYS", "*"), ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "SET", "save", "60 1"), ("MONITOR",), ("SHUTDOWN", "NOSAVE"),
    ("SAVE",), ("BGSAVE",), ("REPLICAOF", "NO", "ONE"), ("SWAPDB", 0, 1),
    ("MIGRATE", "h", 1, "k", 0, 1),
    ("RESTORE", "k", 0, "x"), ("DUMP", VAULT_ENTRY), ("MODULE", "LIST"), ("FUNCTION", "FLUSH"), ("ACL", "SETUSER", "x"),
]  # fmt: skip


def refused(client: redis.Redis, command: tuple[Any, ...]) -> bool:
    if command[0] == "MIGRATE":  # redis-py would take the word for a method's.
        command = ("MIGRATE", "127.0.0.1", "1", "k", "0", "1")
    with contextlib.closing(client):
        try:
            client.execute_command(*command)
        except NoPermissionError:
            return True
    return False


@pytest.mark.parametrize("account", sorted(FORBIDDEN))
def test_an_account_may_do_no_more_than_its_role(fenced: Fenced, account: str) -> None:
    part, role = account.split("-")
    allowed = [
        command
        for command in [*FORBIDDEN[account], *NOBODY]
        if not refused(fenced.client(part, role), command)
    ]
    assert allowed == []
    if role != "admin":
        assert refused(fenced.client(part, role), ("CONFIG", "GET", "save"))


def test_every_account_of_the_files_is_tried(fenced: Fenced) -> None:
    names = {name.removesuffix("_PASSWORD").lower().replace("_", "-") for name in fenced.passwords}
    assert names == set(FORBIDDEN)


def test_a_role_may_do_what_is_its_own(fenced: Fenced) -> None:
    """Against a vacuous pass: the commands that are refused to others go through for the role that needs them."""
    for part, role, command in (
        ("broker", "flower", ("LLEN", "remand.produce")),
        ("broker", "coordinator", ("LLEN", "remand.produce")),
        ("broker", "coordinator", ("RPOP", "remand.coordinate.nothing")),
        ("broker", "producer", ("RPOP", "remand.produce.nothing")),
        ("broker", "validator", ("RPOP", "own.queue.nothing")),
        ("vault", "coordinator", ("SCAN", 0)),
        ("vault", "producer", ("HKEYS", VAULT_ENTRY)),
        ("vault", "validator", ("HGETALL", RECORD)),
        ("vault", "admin", ("CONFIG", "GET", "save")),
    ):
        assert not refused(fenced.client(part, role), command), (part, role, command)


def test_nobody_comes_in_without_an_account(fenced: Fenced) -> None:
    for port in set(fenced.ports.values()):
        with redis.Redis(port=port) as nobody, pytest.raises(AuthenticationError):
            nobody.ping()


def test_files_hold_no_password(fenced: Fenced) -> None:
    files = list(fenced.folder.glob("*.acl"))
    assert files
    for file in files:
        text = file.read_text()
        assert not [name for name, password in fenced.passwords.items() if password in text]
        assert not re.search("@[A-Z_]+@", text), "a placeholder that was left"


def test_passwords_that_are_named_are_kept_and_bad_ones_refused(tmp_path: Path) -> None:
    def render(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(RENDER), "--into", str(tmp_path)], env={**os.environ, **environment},
            capture_output=True, text=True,
        )  # fmt: skip

    first = dict(line.split("=", 1) for line in render().stdout.splitlines())
    made = (tmp_path / "broker.acl").read_text()
    assert dict(line.split("=", 1) for line in render(**first).stdout.splitlines()) == first
    assert (tmp_path / "broker.acl").read_text() == made
    bad = render(VAULT_PRODUCER="a b c d e f g")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "VAULT_PRODUCER" in bad.stderr
    assert "a b c" not in bad.stderr

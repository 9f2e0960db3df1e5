"""What `doctor` warns of: each warning on the real thing where that can be made, with what to do about it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy.exc import OperationalError

from remand import Pipeline, Stage, producer, validator
from remand_tasks.state.vault import KeyRing
from remand_workers import remote
from remand_workers.app import create_app
from remand_workers.cli import examination, main, safety
from remand_workers.cli.findings import Finding
from remand_workers.embedded import server_command
from remand_workers.settings import Settings

KEYS = KeyRing.generate("k1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[redis.Redis]:
    """A server of this test, over TCP, with the settings that a vault should have."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = int(found.getsockname()[1])
    command = [
        server_command(),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        str(tmp_path),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)
    ends = time.monotonic() + 20
    try:
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < ends, "the server answers"
        yield client
    finally:
        client.close()
        process.kill()
        process.wait(10)


def port_of(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


def settings(**given: Any) -> Settings:
    return Settings(_env_file=None, **{"broker_url": "redis://localhost/0", "vault_keys": KEYS, **given})


def told(finding: Finding) -> tuple[str, str]:
    """Its health and what was found; a warning says what to do."""
    assert finding.health == "ok" or finding.todo
    return finding.health, finding.found


# ------------------------------------------------------------------------------------------------ the servers


def test_a_vault_that_reaches_a_disk_is_warned_of(server: redis.Redis) -> None:
    assert told(safety.persistence(server)) == ("ok", "nothing reaches a disk")
    server.config_set("save", "3600 1")
    health, found = told(safety.persistence(server))
    assert (health, "snapshots" in found, "append" in found) == ("warn", True, False)
    server.config_set("save", "")
    server.config_set("appendonly", "yes")
    health, found = told(safety.persistence(server))
    assert (health, "snapshots" in found, "append-only" in found) == ("warn", False, True)


@pytest.mark.parametrize("part", ["vault", "broker"])
def test_a_server_that_evicts_is_warned_of(server: redis.Redis, part: str) -> None:
    assert told(safety.eviction(part, server)) == ("ok", "noeviction")
    server.config_set("maxmemory-policy", "allkeys-lru")
    assert told(safety.eviction(part, server)) == ("warn", "it evicts keys when memory is full (allkeys-lru)")


def test_what_an_account_may_not_ask_is_said_to_be_unchecked(server: redis.Redis) -> None:
    server.execute_command("ACL", "SETUSER", "poor", "on", ">poor", "-@all", "+ping", "+hello", "+time")
    with redis.Redis(port=port_of(server), username="poor", password="poor") as poor:
        for finding in (safety.persistence(poor), safety.eviction("vault", poor)):
            health, found = told(finding)
            assert health == "warn"
            assert "cannot be checked" in found
        assert told(examination._vault(settings(), poor)) == ("ok", "answers")
        server.execute_command("ACL", "SETUSER", "poor", "+info")
        assert told(safety.eviction("vault", poor)) == ("ok", "noeviction")
        assert examination._vault(settings(), poor).found.startswith("valkey ")


@pytest.mark.parametrize(
    ("broker", "vault", "health"),
    [
        ("redis://:pw@a:6379/0", None, "warn"),
        ("redis://:pw@a/0", "redis://default:pw@a:6379/1", "warn"),
        ("redis://u:pw@a/0", "redis://u:pw@b/0", "warn"),
        ("redis://a/0", "redis://b/0", "warn"),
        ("redis://u:pw@a/0", "redis://v:pw2@a/1", "ok"),
        ("redis://u:pw@a/0", "redis://u:other@b/0", "ok"),
        ("amqp://u:pw@a", "redis://u:pw@b/0", "ok"),
    ],
)
def test_an_account_for_both_broker_and_vault_is_warned_of(
    broker: str, vault: str | None, health: str
) -> None:
    finding = safety.accounts(settings(broker_url=broker, vault_url=vault))
    assert told(finding)[0] == health
    assert "pw" not in finding.found + finding.todo


# ----------------------------------------------------------------------------------------------------- clocks


def test_a_clock_that_is_wrong_is_warned_of(server: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(safety.clocks(server, "sqlite:///x.db"))[0] == "ok"
    real = time.time
    monkeypatch.setattr(safety.time, "time", lambda: real() + 90)
    health, found = told(safety.clocks(server, None))
    assert health == "warn"
    assert "this machine's by 9" in found


def test_the_databases_clock_is_asked_where_it_has_one(
    server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere:
        sqlite = False

        def __init__(self, url: str, *, pool_size: int) -> None: ...
        def read(self) -> Elsewhere:
            return self

        def __enter__(self) -> Elsewhere:
            return self

        def __exit__(self, *_: object) -> None: ...
        def dispose(self) -> None: ...
        def exec_driver_sql(self, statement: str) -> Elsewhere:
            assert "clock_timestamp" in statement
            return self

        def scalar_one(self) -> float:
            return time.time() - 60

    monkeypatch.setattr(safety, "Database", Elsewhere)
    health, found = told(safety.clocks(server, "postgresql://ledger/remand"))
    assert health == "warn"
    assert "the database's by " in found
    assert "this machine's" not in found


def test_a_database_that_cannot_be_asked_does_not_end_the_examination(
    server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(client: Any, url: Any) -> Finding:
        raise OperationalError("SELECT", None, Exception("MARKER"))

    monkeypatch.setattr(safety, "clocks", broken)
    found = {each.part: each for each in examination._asked(server, settings())}
    assert found["clock"].health == "warn"
    assert "cannot be checked" in found["clock"].found
    assert "MARKER" not in found["clock"].found
    assert found["vault memory"].health == "ok"


# ---------------------------------------------------------------------------------------------------- workers


def reply(**given: Any) -> dict[str, Any]:
    return {"now": time.time(), "accepts": ["json"], "keys": ["k1"], **given}


def test_pickle_is_a_failure_wherever_it_is_accepted(server: redis.Redis) -> None:
    app = create_app(settings())
    assert told(safety.serialization(app)) == ("ok", "JSON alone is accepted")
    app.conf.result_accept_content = ["json", "pickle"]
    assert told(safety.serialization(app)) == ("fail", "accepted beside JSON: this program pickle")
    app.conf.result_accept_content = None
    app.conf.accept_content = ["json", "application/x-python-serialize"]
    assert told(safety.serialization(app))[0] == "fail"
    app.conf.accept_content = ["json", "yaml"]
    assert told(safety.serialization(app))[0] == "warn"

    found = {each.part: each for each in safety.workers({"a@x": reply(accepts=["json", "pickle"])}, None, 0)}
    assert told(found["workers' serialization"]) == ("fail", "accepted beside JSON: a@x pickle")


def test_workers_with_different_keys_are_warned_of() -> None:
    replies = {"a@x": reply(keys=["k2", "k1"]), "b@x": reply(keys=["k1"])}
    found = {each.part: each for each in safety.workers(replies, None, 0)}
    assert told(found["workers' keys"]) == ("warn", "b@x lacks k2")
    found = {each.part: each for each in safety.workers({"a@x": reply(), "b@x": reply()}, None, 0)}
    assert told(found["workers' keys"]) == ("ok", "all hold k1")


def test_keys_here_that_are_not_the_workers_are_warned_of() -> None:
    assert safety.own_keys(settings(), {"a@x": reply()}) is None
    finding = safety.own_keys(settings(), {"a@x": reply(keys=["k2"])})
    assert finding is not None
    assert told(finding) == ("warn", "set here: k1; workers': k2")


def test_a_workers_clock_that_is_wrong_is_warned_of(server: redis.Redis) -> None:
    asked = time.time()
    replies = {"a@x": reply(), "b@x": reply(now=asked - 30)}
    found = {each.part: each for each in safety.workers(replies, server, asked)}
    health, words = told(found["workers' clocks"])
    assert health == "warn"
    assert "b@x by 30.0 s" in words
    assert "a@x" not in words


def test_what_a_worker_tells_holds_no_key() -> None:
    class State:
        app = create_app(settings(vault_keys=f"{KeyRing.generate('k2')},{KEYS}"))

    said = remote.facts(State())
    assert said["keys"] == ["k2", "k1"]
    assert said["accepts"] == ["json"]
    assert abs(said["now"] - time.time()) < 5
    assert KEYS.partition(":")[2] not in json.dumps(said)


def test_a_step_longer_than_the_visibility_timeout_is_warned_of() -> None:
    @producer(version="1", timeout=100)
    def make(context: Any, correction: Any) -> Any: ...

    @validator(version="1", timeout=50)
    def one(value: Any, context: Any) -> Any: ...

    @validator(version="1", timeout=60)
    def two(value: Any, context: Any) -> Any: ...

    pipeline = Pipeline("p", version="1", stages=[Stage("s", make, [one, two])])
    grace = {"claim_grace": timedelta(seconds=10)}
    assert told(safety.longest_step(pipeline, settings(visibility_timeout=131, **grace)))[0] == "ok"
    health, found = told(safety.longest_step(pipeline, settings(visibility_timeout=130, **grace)))
    assert health == "warn"
    assert "a step may take 130 s" in found, "the two validators of a group are one step"
    rabbit = settings(broker_url="amqp://a", vault_url="redis://b", visibility_timeout=1)
    assert told(safety.longest_step(pipeline, rabbit))[0] == "ok"


# ----------------------------------------------------------------------------------------------------- Flower


@pytest.fixture
def page() -> Iterator[Callable[..., int]]:
    """Serves a page with a status, and gives its port."""
    servers: list[HTTPServer] = []

    def serve(status: int, text: bytes = b"<title>Flower</title>", host: str = "127.0.0.1") -> int:
        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None: ...

        servers.append(HTTPServer((host, 0), Page))
        threading.Thread(target=servers[-1].serve_forever, args=(0.05,), daemon=True).start()
        return servers[-1].server_port

    yield serve
    for each in servers:
        each.shutdown()
        each.server_close()


def test_a_flower_that_would_be_open_is_a_failure() -> None:
    health, found = told(safety.flower(settings(flower_address="0.0.0.0")))
    assert (health, "no password is set" in found) == ("fail", True)
    assert (
        told(safety.flower(settings(flower_address="0.0.0.0", flower_auth="a:b", flower_port=0)))[0] == "ok"
    )


def test_a_flower_that_runs_without_a_password_is_warned_of(
    page: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safety, "_own_addresses", lambda: ["127.0.0.1"])
    open_one, locked, other = page(200), page(401), page(200, b"something else")
    assert told(safety.flower(settings(flower_port=open_one, flower_auth="a:b")))[0] == "warn"
    assert told(safety.flower(settings(flower_port=open_one))) == ("ok", "runs, for this machine alone")
    assert told(safety.flower(settings(flower_port=locked))) == ("ok", "runs, and asks for a password")
    assert told(safety.flower(settings(flower_port=other))) == ("ok", "does not run here")


def test_a_flower_that_others_reach_without_a_password_is_warned_of(
    page: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = page(200, host="0.0.0.0")
    # A name of this machine that is not its loopback address, as far as this module can see.
    monkeypatch.setattr(safety, "_own_addresses", lambda: ["ip6-localnet", "127.0.0.1"])
    monkeypatch.setattr(safety, "_open", lambda host, at: _reach(host, at, port))
    health, found = told(safety.flower(settings(flower_port=port)))
    assert health == "warn"
    assert "shows itself to others" in found


_really_open = safety._open


def _reach(host: str, port: int, served: int) -> bool | None:
    assert port == served
    return _really_open("127.0.0.1", port)


# ---------------------------------------------------------------------------------------------------- together


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("REMAND_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_on_services_of_ones_own_each_part_is_looked_at(
    nowhere: Path, server: redis.Redis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REMAND_BROKER_URL", f"redis://127.0.0.1:{port_of(server)}/0")
    monkeypatch.setenv("REMAND_LEDGER_URL", f"sqlite:///{nowhere / 'ledger.db'}")
    monkeypatch.setenv("REMAND_VAULT_KEYS", KEYS)
    assert main(["doctor", "--json"]) == 0
    found = {each["part"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["ledger"]["health"] == "warn", "no tables yet"
    assert "remand migrate" in found["ledger"]["todo"]
    assert found["accounts"]["health"] == "warn"
    assert found["workers"]["health"] == "warn"
    for part in ("vault persistence", "vault memory", "broker memory", "clock", "serialization", "flower"):
        assert found[part]["health"] == "ok", found[part]
    assert main(["migrate"]) == 0
    capsys.readouterr()
    assert main(["doctor", "--json"]) == 0
    found = {each["part"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["ledger"]["health"] == "ok"
    assert KEYS.partition(":")[2] not in json.dumps(found)


@pytest.mark.parametrize("has", [None, "0000"])
def test_a_database_that_is_behind_is_a_failure_where_nobody_migrates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: str | None
) -> None:
    monkeypatch.setattr(examination, "current", lambda database: has)
    finding = examination._ledger(settings(ledger_url="postgresql+psycopg://u:pw@nowhere/x"))
    assert told(finding)[0] == "fail"
    assert "remand migrate" in finding.todo
    finding = examination._ledger(settings(ledger_url=f"sqlite:///{tmp_path / 'ledger.db'}"))
    assert told(finding)[0] == "warn"

"""The Compose file fits the product: accounts, passwords, ports and commands are those that there are.

It is read, not run: no container engine is needed. The accounts themselves are tested in `test_acl.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
import yaml
from dotenv import dotenv_values
from typer.main import get_command

from remand_workers.cli.program import program
from remand_workers.embedded import server_command
from remand_workers.settings import Settings, variable

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ("coordinator", "producer", "validator")
SERVING = (*WORKERS, "intake")
_VARIABLE = re.compile(r"\$\{(\w+)(?:(:[?-])[^}]*)?\}")


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "docker-compose.yml").read_text("utf-8")


@pytest.fixture(scope="module")
def example() -> dict[str, str]:
    return {name: value or "" for name, value in dotenv_values(ROOT / "deploy" / "example.env").items()}


@pytest.fixture(scope="module")
def services(text: str, example: dict[str, str]) -> dict[str, Any]:
    """The services as Compose sees them with the example's secrets."""
    filled = _VARIABLE.sub(lambda found: example.get(found[1], ""), text)
    read: dict[str, Any] = yaml.safe_load(filled)["services"]
    return read


def test_what_must_be_set_is_set_in_the_example(text: str, example: dict[str, str]) -> None:
    needed = {name for name, how in _VARIABLE.findall(text) if how != ":-"}
    assert needed
    assert needed <= {name for name, value in example.items() if value}


def test_every_setting_and_command_exists(services: dict[str, Any]) -> None:
    known = {variable(name) for name in Settings.model_fields}
    commands = get_command(program()).commands  # type: ignore[attr-defined]
    for name, service in services.items():
        if service["image"] == "remand:local" and "entrypoint" not in service:
            assert service["command"][0] in commands, name
            assert {key for key in service["environment"] if key.startswith("REMAND_")} <= known, name


def test_each_role_has_its_own_account_with_that_accounts_password(
    services: dict[str, Any], example: dict[str, str]
) -> None:
    expected = {role: {"broker", "vault"} for role in (*SERVING, "client")} | {"flower": {"broker"}}
    for role, servers in expected.items():
        given = services[role]["environment"]
        for server in ("broker", "vault"):
            url = given.get(f"REMAND_{server.upper()}_URL")
            assert (url is not None) == (server in servers), role
            if url is not None:
                parts = urlsplit(url)
                assert (parts.hostname, parts.username) == (server, f"{server}-{role}")
                assert parts.password == example[f"{server}_{role}".upper()]
        assert ("REMAND_VAULT_KEYS" in given) == (role in SERVING)
        assert ("REMAND_MODEL_API_KEY" in given) == (role in WORKERS)


def test_workers_start_on_a_migrated_ledger_and_are_asked_where_they_serve_metrics(
    services: dict[str, Any],
) -> None:
    assert services["migrate"]["depends_on"] == {"ledger": {"condition": "service_healthy"}}
    for role in SERVING:
        service = services[role]
        assert service["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
        assert (
            f":{service['environment']['REMAND_METRICS_PORT']}/metrics" in service["healthcheck"]["test"][-1]
        )
    for once in ("migrate", "accounts"):
        assert services[once]["restart"] == "no"


@pytest.mark.parametrize("name", ["broker", "vault"])
def test_servers_start_with_the_accounts_that_are_made_for_them(
    services: dict[str, Any], tmp_path: Path, name: str
) -> None:
    given = services["accounts"]["environment"]
    makes = services["accounts"]["entrypoint"][-1]
    makes = makes.replace("python /accounts", f"{sys.executable} {ROOT}/deploy/redis").replace(
        "/acl", f"{tmp_path}"
    )
    made = subprocess.run(["sh", "-c", makes], env={**os.environ, **given}, capture_output=True, check=True)
    assert made.stdout == b""  # Passwords would stand in the container's log.
    socket = tmp_path / "socket"
    words = [word.replace("/acl", str(tmp_path)) for word in services[name]["command"][1:]]
    words += ["--port", "0", "--unixsocket", str(socket), "--dir", str(tmp_path)]
    if "--maxmemory" in words:
        words[words.index("--maxmemory") + 1] = "64mb"
    server = subprocess.Popen(
        [server_command(), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert server.stdout is not None
        assert any("ready to accept connections" in line.lower() for line in server.stdout)
        admin = services[name]["environment"]
        with redis.Redis(
            unix_socket_path=str(socket), username=admin["ADMIN"], password=admin["ADMIN_PASSWORD"]
        ) as client:
            assert client.ping()
            persists = client.config_get("appendonly")["appendonly"] == "yes"
            assert persists == (name == "broker")
    finally:
        server.terminate()
        server.communicate(timeout=30)

"""Flower shows tasks in people's words, nobody's data, and only to those who may see it."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from remand_workers.flower import configure, format_task
from remand_workers.settings import Settings, SettingsError

AUTH = "anna:a-good-password"


def fetch(port: int, path: str, *, auth: str | None = AUTH) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if auth:
        request.add_header("Authorization", "Basic " + base64.b64encode(auth.encode()).decode())
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


def status_of(port: int, path: str, *, auth: str | None) -> int:
    try:
        fetch(port, path, auth=auth)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def datatable() -> str:
    query = {
        "draw": 1, "start": 0, "length": 100, "search[value]": "", "order[0][column]": 0, "order[0][dir]": "asc",
        "columns[0][data]": "name",
    }  # fmt: skip
    return "/tasks/datatable?" + urllib.parse.urlencode(query)


@pytest.mark.workers
def test_tasks_read_in_peoples_words_and_no_data_is_anywhere(shop: Any, until: Callable[..., None]) -> None:
    up = shop.start("up", "--pipeline", "shop:pipeline")
    while "ready" not in (line := up.stderr.readline()):
        assert line, "it ended without a word"
    flower = shop.start("flower", "--port", "0", REMAND_FLOWER_AUTH=AUTH)
    said = flower.stderr.readline()
    found = re.search(r"Flower is at http://127\.0\.0\.1:(\d+)", said)
    assert found, said
    port = int(found[1])
    # Workers send events only once Flower has asked them to.
    until(lambda: json.loads(fetch(port, "/api/workers?refresh=1")), what="a worker in Flower")
    shop.inputs('{"do": "correct"}', '{"do": "undetermined"}', '{"do": "raise"}', '{"do": "reject"}')

    def submitted_and_seen() -> bool:
        done = shop.remand("submit", "shop:pipeline", "-i", "in.jsonl", "--wait", "-q", "--no-reuse")
        assert done.returncode == 3, done.stderr
        return "shop 000000 make attempt 2/2" in fetch(port, datatable())

    until(submitted_and_seen, what="tasks in Flower")
    rows = json.loads(fetch(port, datatable()))["data"]
    names = {row["name"] for row in rows}
    assert "produce · shop 000000 make attempt 2/2" in names
    assert "coordinate · shop 000003 make attempt 1/2" in names
    page = fetch(port, f"/task/{rows[0]['uuid']}")
    assert "shop 00000" in page
    api = fetch(port, "/api/tasks?limit=1000")
    assert {task["name"] for task in json.loads(api).values()} <= {
        "remand.produce", "remand.validate", "remand.coordinate",
    }  # fmt: skip
    for path in (
        datatable(),
        f"/task/{rows[0]['uuid']}",
        "/api/tasks",
        "/api/workers",
        "/tasks",
        "/workers",
        "/metrics",
    ):
        text = fetch(port, path)
        assert "MARKER" not in text, path
        assert not re.search(r"[\w-]+/\d+/\d+/\d+/\d+", text), f"a token on {path}"

    assert status_of(port, "/tasks", auth=None) == 401
    assert status_of(port, "/api/tasks", auth=None) == 401
    assert status_of(port, "/api/tasks", auth="anna:wrong") == 401
    assert status_of(port, "/metrics", auth=None) == 200, "as documented"

    flower.send_signal(signal.SIGTERM)
    _, err = flower.communicate(timeout=30)
    assert flower.returncode == 0, err
    assert "Traceback" not in err
    assert "MARKER" not in err


@pytest.mark.workers
def test_a_taken_port_is_one_clear_message(shop: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = shop.remand(
            "flower", "--port", str(port), REMAND_BROKER_URL="redis://127.0.0.1:1/0",
            REMAND_VAULT_KEYS="a:" + "A" * 43 + "=", REMAND_LEDGER_URL="sqlite:///x.db",
        )  # fmt: skip
    assert done.returncode == 1
    assert f"Flower cannot be opened: port {port} is taken by another program" in done.stderr
    assert "REMAND_FLOWER_PORT" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_an_address_that_others_reach_needs_a_password(address: str) -> None:
    with pytest.raises(SettingsError, match="REMAND_FLOWER_AUTH: must be set to user:password"):
        configure(Settings(_env_file=None, flower_address=address))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_this_machines_own_addresses_need_none(address: str) -> None:
    options = configure(Settings(_env_file=None, flower_address=address))
    assert (options.address, options.basic_auth, options.read_only) == (address, [], True)


def test_other_peoples_tasks_are_left_as_they_are() -> None:
    task = SimpleNamespace(name="other.task", args="(1,)")
    assert format_task(task).name == "other.task"
    assert format_task(SimpleNamespace(name="remand.produce", args=None)).name == "remand.produce"

"""Embedded services: private, one server a folder, gone with their last user however it ends."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from kombu.connection import Connection

from remand_workers import embedded
from remand_workers.embedded import Embedded, EmbeddedError, running
from remand_workers.settings import Settings

pytestmark = pytest.mark.workers

USER = """
import sys
from pathlib import Path
from remand_workers.embedded import Embedded
from remand_workers.settings import Settings
with Embedded(Settings(home=Path(sys.argv[1]))) as services:
    print("attached" if services.attached else "started", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", broker_url=None)


@pytest.fixture
def user(settings: Settings) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts another process that uses the services until its input ends."""
    started = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", USER, str(settings.home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def services_of(settings: Settings) -> dict[str, object]:
    told: dict[str, object] = json.loads((settings.home / "services.json").read_text())
    return told


def until_gone(path: str) -> None:
    """Wait until nothing listens on the socket."""
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        with socket.socket(socket.AF_UNIX) as line:
            if line.connect_ex(path) != 0:
                return
    pytest.fail("the server is still there")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_both_addresses_reach_a_server_that_keeps_nothing(settings: Settings) -> None:
    with Embedded(settings) as services:
        found = services.settings
        found.require_services()
        assert found.ledger_url == f"sqlite:///{settings.home}/ledger.db"
        with Connection(found.broker_url) as connection:
            connection.connect()
        assert found.vault_url is not None
        with redis.Redis.from_url(found.vault_url) as client:
            client.set("x", "1")
            told = client.config_get("*")
    assert (told["save"], told["appendonly"], told["port"], told["maxmemory-policy"]) == (
        "",
        "no",
        "0",
        "noeviction",
    )


def test_only_this_user_can_enter(settings: Settings) -> None:
    with Embedded(settings):
        private = Path(str(services_of(settings)["socket"])).parent
        assert (mode(settings.home), mode(private)) == (0o700, 0o700)
        assert mode(settings.home / "vault.keys") == 0o600
        assert mode(settings.home / "services.json") == 0o600


def test_nothing_is_left_but_ledger_key_and_log(settings: Settings) -> None:
    with Embedded(settings):
        told = services_of(settings)
    until_gone(str(told["socket"]))
    assert not Path(str(told["socket"])).parent.exists()
    assert running(settings) is None
    assert {path.name for path in settings.home.iterdir()} == {
        "vault.keys",
        "valkey.log",
        "embedded.lock",
        "embedded.users",
    }
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(told["watchdog"])), 0)


def test_the_key_outlives_the_services(settings: Settings) -> None:
    with Embedded(settings) as first:
        keys = first.settings.vault_keys
    with Embedded(settings) as second:
        assert second.settings.vault_keys == keys


def test_a_second_user_attaches_and_keeps_the_server(
    settings: Settings, user: Callable[[], subprocess.Popen[str]]
) -> None:
    other = user()
    assert other.stdout is not None
    assert other.stdout.readline() == "started\n"
    with Embedded(settings) as services:
        assert services.attached
        assert running(settings) == services.settings
        other.communicate()
        assert other.returncode == 0
        path = str(services_of(settings)["socket"])
        assert services.settings.vault_url is not None
        with redis.Redis.from_url(services.settings.vault_url) as client:
            assert client.ping()
    until_gone(path)


def test_the_starter_may_leave_first(settings: Settings, user: Callable[[], subprocess.Popen[str]]) -> None:
    with Embedded(settings) as services:
        path = str(services_of(settings)["socket"])
        other = user()
        assert other.stdout is not None
        assert other.stdout.readline() == "attached\n"
        assert not services.attached
    assert running(settings) is not None
    other.communicate()
    assert not Path(path).exists()
    assert not (settings.home / "services.json").exists()


def test_a_killed_user_leaves_no_server(
    settings: Settings, user: Callable[[], subprocess.Popen[str]]
) -> None:
    other = user()
    assert other.stdout is not None
    other.stdout.readline()
    told = services_of(settings)
    other.send_signal(signal.SIGKILL)
    other.wait()
    until_gone(str(told["socket"]))
    # What the dead one left behind is recognised: here as nothing, by the next user as a reason to start anew.
    assert running(settings) is None
    with Embedded(settings) as services:
        assert not services.attached
        assert services_of(settings)["socket"] != told["socket"]


def test_a_server_that_died_is_replaced(settings: Settings) -> None:
    with Embedded(settings):
        told = services_of(settings)
        os.kill(int(str(told["server"])), signal.SIGKILL)
        until_gone(str(told["socket"]))
        with Embedded(settings) as second:
            assert not second.attached
            assert running(settings) is not None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"socket": 1}', '{"socket": "/no", "server": 1, "watchdog": 1, "starter": 1}']
)
def test_a_senseless_services_file_is_no_obstacle(settings: Settings, text: str) -> None:
    settings.home.mkdir(mode=0o700)
    (settings.home / "services.json").write_text(text)
    assert running(settings) is None
    with Embedded(settings) as services:
        assert not services.attached


def test_a_long_temporary_folder_does_not_matter(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with Embedded(settings):
        assert running(settings) is not None
    assert list(deep.iterdir()) == []


def test_ledger_and_keys_that_the_user_named_stay(settings: Settings) -> None:
    named = settings.replace(ledger_url="sqlite:////elsewhere/x.db")
    with Embedded(named) as services:
        assert services.settings.ledger_url == "sqlite:////elsewhere/x.db"


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedError, match=r"file/home.* cannot be used .* REMAND_HOME") as caught:
        Embedded(Settings(home=tmp_path / "file" / "home")).start()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_folder_with_other_peoples_files_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "shared"
    home.mkdir()
    home.chmod(0o755)
    (home / "theirs.txt").write_text("")
    with pytest.raises(EmbeddedError, match="already holds files"):
        Embedded(Settings(home=home)).start()
    assert mode(home) == 0o755
    assert [path.name for path in home.iterdir()] == ["theirs.txt"]


def test_without_a_server_program_the_error_says_what_to_install(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EmbeddedError, match=r"pip install 'remand\[embedded\]'"):
        Embedded(settings).start()
    assert not (settings.home / "services.json").exists()


@pytest.mark.parametrize("name", ["valkey-server", "redis-server"])
def test_a_server_on_the_path_serves_where_the_wheel_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / name).write_text("")
    (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded.server_command() == str(tmp_path / name)


def test_a_server_that_ends_at_once_is_reported_at_once(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "valkey-server"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(embedded, "server_command", lambda: str(broken))
    began = time.monotonic()
    with pytest.raises(EmbeddedError, match=r"ended while starting\. Its log is"):
        Embedded(settings).start()
    assert time.monotonic() - began < embedded.PATIENCE.total_seconds() / 2
    assert running(settings) is None


def test_addresses_are_refused_outside_the_block(settings: Settings) -> None:
    with pytest.raises(EmbeddedError, match="not running"):
        _ = Embedded(settings).settings

"""Every error that can be known is one message that says what happened, where, and what to do; none quotes data."""

from __future__ import annotations

import errno
import json
import socket
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import kombu.exceptions
import pytest
import redis.exceptions
from sqlalchemy.exc import OperationalError

from remand import PipelineError
from remand_tasks.state.engine import LedgerError
from remand_tasks.state.submissions import RunError
from remand_tasks.state.vault import KeyRing
from remand_workers.cli import main
from remand_workers.cli.failures import explain, guarded
from remand_workers.settings import SettingsError

SECRET = "MARKER-7f3a"
PLAIN = """
from remand import Pipeline, Produced, Stage, producer
@producer(version="1")
def make(context, correction):
    return Produced(1)
pipeline = Pipeline("plain", version="1", stages=[Stage("make", make)])
"""
CHAT = """
from remand import Pipeline, Stage
from remand.llm import ChatProducer
pipeline = Pipeline("chat", version="1", stages=[Stage("ask", ChatProducer(int, "{x}"%s))])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An own folder with two pipelines and an input; no variables of ours; nothing imported left behind."""
    import os

    for name in os.environ:
        if name.startswith("REMAND_"):
            monkeypatch.delenv(name)
    # What commands export for pipelines is taken back, too.
    for name in ("REMAND_MODEL", "REMAND_MODEL_BASE_URL", "REMAND_MODEL_API_KEY"):
        monkeypatch.setenv(name, "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    Path("plain.py").write_text(PLAIN)
    Path("chat.py").write_text(CHAT % "")
    Path("chat_own.py").write_text(CHAT % ", base_url='http://127.0.0.1:9/v1'")
    Path("in.jsonl").write_text('{"x": 1}\n')
    yield tmp_path
    for name in ("plain", "chat", "chat_own"):
        if name not in before:
            sys.modules.pop(name, None)


def sqlite_error(name: str) -> OperationalError:
    cause = sqlite3.OperationalError(SECRET)
    cause.sqlite_errorname = name
    return OperationalError(f"INSERT {SECRET}", {"body": SECRET}, cause)


@pytest.mark.parametrize(
    ("error", "status", "parts"),
    [
        (PipelineError("stage 'a'", "it has no producer"), 2, ["The pipeline was refused.", "stage 'a'"]),
        (SettingsError(("REMAND_WINDOW", "must be at least 1")), 2, ["REMAND_WINDOW: must be at least 1"]),
        (RunError("there is no run 'x'"), 2, ["There is no run 'x'."]),
        (
            LedgerError("the ledger has no tables yet; run `remand migrate`"),
            1,
            ["The ledger has no tables yet"],
        ),
        (
            redis.exceptions.ConnectionError(SECRET),
            1,
            ["REMAND_VAULT_URL", "REMAND_BROKER_URL", "ConnectionError"],
        ),
        (redis.exceptions.TimeoutError(SECRET), 1, ["REMAND_VAULT_URL", "TimeoutError"]),
        (redis.exceptions.AuthenticationError(SECRET), 1, ["refuses the password", "REMAND_VAULT_URL"]),
        (redis.exceptions.ResponseError(SECRET), 1, ["refused a command", "remand doctor"]),
        (kombu.exceptions.OperationalError(SECRET), 1, ["broker cannot be reached", "REMAND_BROKER_URL"]),
        (sqlite_error("SQLITE_FULL"), 1, ["the disk is full", "REMAND_HOME"]),
        (sqlite_error("SQLITE_READONLY"), 1, ["may not be written", "REMAND_LEDGER_URL"]),
        (sqlite_error("SQLITE_CORRUPT"), 1, ["its file is damaged"]),
        (
            PermissionError(errno.EACCES, SECRET, "/a/file"),
            1,
            ["You may not read or write '/a/file'", "rights"],
        ),
        (OSError(errno.ENOSPC, SECRET), 1, ["The disk is full", "remand resume"]),
        (OSError(errno.EROFS, SECRET, "/a"), 1, ["The disk of '/a' cannot be written"]),
        (OSError(errno.EADDRINUSE, SECRET), 1, ["taken by another program"]),
        (OSError(errno.EIO, SECRET), 1, ["EIO"]),
        (ZeroDivisionError(SECRET), 1, ["ZeroDivisionError", "REMAND_DEBUG=1"]),
    ],
)
def test_each_kind_says_what_happened_and_what_to_do(error: Exception, status: int, parts: list[str]) -> None:
    message, got = explain(error)
    assert got == status
    for part in parts:
        assert part in message
    assert SECRET not in message


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError(SECRET)

    assert guarded(broken) == 1
    monkeypatch.setenv("REMAND_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        guarded(broken)


def test_an_interrupt_is_130() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert guarded(interrupted) == 130


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_a_broker_that_is_not_there_is_said_by_its_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], free_port: int
) -> None:
    monkeypatch.setenv("REMAND_BROKER_URL", f"redis://:{SECRET}@127.0.0.1:{free_port}/0")
    monkeypatch.setenv("REMAND_VAULT_KEYS", KeyRing.generate())
    monkeypatch.setenv("REMAND_LEDGER_URL", "sqlite:///ledger.db")
    assert main(["run", "plain:pipeline", "-i", "in.jsonl", "-o", "out.jsonl", "-q"]) == 1
    said = capsys.readouterr().err
    assert "The Redis server of the vault cannot be reached" in said
    assert "REMAND_BROKER_URL" in said
    assert SECRET not in said
    assert not Path("out.jsonl.partial").exists()

    assert main(["doctor", "--json"]) == 1
    found = {each["part"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["broker"]["health"] == found["vault"]["health"] == "fail"
    assert "REMAND_BROKER_URL" in found["broker"]["todo"]
    assert found["vault keys"]["health"] == "ok"
    assert SECRET not in json.dumps(found)


def test_services_that_are_named_by_half_are_said_all_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REMAND_BROKER_URL", "amqp://localhost")
    assert main(["run", "plain:pipeline", "-i", "in.jsonl", "-o", "out.jsonl"]) == 2
    said = capsys.readouterr().err
    for name in ("REMAND_VAULT_URL", "REMAND_VAULT_KEYS", "REMAND_LEDGER_URL"):
        assert f"{name}: must be set" in said


def test_a_ledger_that_is_no_database_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("ledger.db").write_text("this is no database at all, " * 100)
    monkeypatch.setenv("REMAND_LEDGER_URL", "sqlite:///ledger.db")
    assert main(["status"]) == 1
    assert (
        "The ledger cannot be used: its file is no database. Check REMAND_LEDGER_URL"
        in capsys.readouterr().err
    )
    assert main(["doctor", "--json"]) == 1
    found = {each["part"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["ledger"]["health"] == "fail"


def test_a_home_that_is_a_file_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Path("home").write_text("")
    assert main(["run", "plain:pipeline", "-i", "in.jsonl", "-o", "out.jsonl", "--home", "home", "-q"]) == 1
    assert "REMAND_HOME" in capsys.readouterr().err
    assert main(["doctor", "--home", "home"]) == 1
    assert "is no folder" in capsys.readouterr().out


def test_a_model_server_that_does_not_answer_is_said_before_a_run_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], free_port: int
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    url = f"http://127.0.0.1:{free_port}/v1"
    run = [
        "run",
        "chat:pipeline",
        "-i",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        "m",
        "--model-base-url",
        url,
    ]
    assert main(run) == 1
    said = capsys.readouterr().err
    assert f"The model server cannot be reached: nothing answers at 127.0.0.1:{free_port}" in said
    assert "REMAND_MODEL_BASE_URL" in said
    assert not Path(".remand").exists()

    monkeypatch.setenv("REMAND_MODEL", "m")
    monkeypatch.setenv("REMAND_MODEL_BASE_URL", url)
    assert main(["doctor", "chat:pipeline", "--json"]) == 1
    found = {each["part"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["model server"]["health"] == "fail"
    assert main(["doctor", "chat_own:pipeline", "--json"]) == 0
    found = {each["part"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["model server"]["health"] == "warn", "that pipeline has a server of its own"

    monkeypatch.setenv("REMAND_MODEL_BASE_URL", "nonsense")
    assert main(["run", "chat:pipeline", "-i", "in.jsonl", "-o", "out.jsonl"]) == 2
    assert "REMAND_MODEL_BASE_URL must be an address" in capsys.readouterr().err


def test_the_model_of_the_env_file_reaches_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "chat:pipeline"]) == 1
    assert "no model: set REMAND_MODEL" in capsys.readouterr().out
    sys.modules.pop("chat", None)
    Path(".env").write_text("REMAND_MODEL=m\n")
    assert main(["doctor", "chat:pipeline"]) == 0


def test_config_shows_values_sources_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REMAND_BROKER_URL", f"redis://:{SECRET}@localhost/0")
    monkeypatch.setenv("REMAND_FLOWER_AUTH", f"anna:{SECRET}")
    Path(".env").write_text("REMAND_WINDOW=7\n")
    assert main(["config", "--json"]) == 0
    said = capsys.readouterr().out
    rows = {row["variable"]: row for row in json.loads(said)}
    assert (rows["REMAND_WINDOW"]["value"], rows["REMAND_WINDOW"]["source"]) == ("7", ".env")
    assert rows["REMAND_BROKER_URL"]["source"] == "environment"
    assert main(["config"]) == 0
    assert SECRET not in said + capsys.readouterr().out


def test_migrate_makes_the_tables_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate"]) == 0
    assert "is now at revision" in capsys.readouterr().err
    assert main(["migrate"]) == 0
    assert "was already at revision" in capsys.readouterr().err
    assert main(["status"]) == 0
    assert "there are no runs yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["run"], ["run", "x:y", "--window", "0"], ["worker", "--role", "x"]]
)
def test_bad_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Usage: remand" in capsys.readouterr().err


def test_colours_follow_no_color(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["status", "--home", "nowhere"]) == 2
    assert "\x1b[" not in capsys.readouterr().err


def test_help_of_every_command_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    from remand_workers.cli import commands_setup, commands_watch, commands_work

    for module in (commands_work, commands_watch, commands_setup):
        for function, example in module.COMMANDS:
            assert main([function.__name__.replace("_", "-"), "--help"]) == 0
            said = " ".join(capsys.readouterr().out.split())
            assert "Example:" in said
            assert example.startswith("remand ") or " remand " in example

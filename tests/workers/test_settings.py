"""Settings come from the environment and `.env`, say what is wrong by name, and never quote what they were given."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path

import pytest

from remand.errors import RemandError
from remand_tasks.state.vault import KeyRing
from remand_workers.settings import Settings, SettingsError, without_password

SECRET = "hunter2-very-secret"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder without `.env`, an environment without our variables."""
    import os

    for name in os.environ:
        if name.startswith("REMAND_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_defaults_are_for_embedded_services() -> None:
    settings = Settings()
    assert settings.embedded
    assert settings.home == Path(".remand")
    assert (settings.window, settings.claim_lease, settings.dispatch_lease_max) == (
        256,
        timedelta(seconds=30),
        timedelta(minutes=5),
    )


def test_environment_wins_over_the_file_and_arguments_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("REMAND_WINDOW=8\nREMAND_WORKERS=3\nREMAND_UNKNOWN=1\nOTHER=x\n")
    monkeypatch.setenv("REMAND_WINDOW", "9")
    monkeypatch.setenv("REMAND_CONCURRENCY", "4")
    settings = Settings(concurrency=5)
    assert (settings.window, settings.workers, settings.concurrency) == (9, 3, 5)


@pytest.mark.parametrize(("text", "seconds"), [("45", 45), ("30.5", 30.5), (" 60 ", 60)])
def test_spans_of_time_are_plain_seconds(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setenv("REMAND_CLAIM_LEASE", text)
    assert Settings().claim_lease == timedelta(seconds=seconds)
    assert Settings(claim_lease=timedelta(minutes=2)).claim_lease == timedelta(minutes=2)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("REMAND_WINDOW", "0", "REMAND_WINDOW: must be at least 1"),
        ("REMAND_WINDOW", SECRET, "REMAND_WINDOW: must be a whole number"),
        ("REMAND_CLAIM_LEASE", SECRET, "REMAND_CLAIM_LEASE: must be a number of seconds, such as 30 or 0.5"),
        ("REMAND_CLAIM_GRACE", "-1", "REMAND_CLAIM_GRACE: must be a number of seconds, such as 30 or 0.5"),
        ("REMAND_CLAIM_LEASE", "nan", "REMAND_CLAIM_LEASE: must be a number of seconds, such as 30 or 0.5"),
        ("REMAND_CLAIM_LEASE", "1e300", "REMAND_CLAIM_LEASE: must be a number of seconds, such as 30 or 0.5"),
        ("REMAND_PULSE_INTERVAL", "0", "REMAND_PULSE_INTERVAL: must be more than 0 seconds"),
        ("REMAND_POOL", SECRET, "REMAND_POOL: must be one of threads, prefork"),
        (
            "REMAND_LOG_LEVEL",
            SECRET,
            "REMAND_LOG_LEVEL: must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL",
        ),
        ("REMAND_FLOWER_PORT", "70000", "REMAND_FLOWER_PORT: must be at most 65535"),
        ("REMAND_FLOWER_AUTH", SECRET, "REMAND_FLOWER_AUTH: must be `user:password`"),
        (
            "REMAND_DISPATCH_LEASE_MAX",
            "1",
            "REMAND_DISPATCH_LEASE_MAX: must be at least REMAND_DISPATCH_LEASE",
        ),
    ],
)
def test_an_error_names_the_variable_and_never_quotes(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, problem: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        Settings()
    assert str(caught.value) == problem
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.problems == caught.value.problems
    assert isinstance(again, RemandError)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_every_problem_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAND_WINDOW", "0")
    monkeypatch.setenv("REMAND_WORKERS", "many")
    with pytest.raises(SettingsError) as caught:
        Settings()
    assert [name for name, _ in caught.value.problems] == ["REMAND_WINDOW", "REMAND_WORKERS"]


def test_a_claim_is_renewed_at_least_three_times_in_its_lease() -> None:
    assert Settings(claim_lease=30, claim_renewal=10)
    with pytest.raises(
        SettingsError, match=r"REMAND_CLAIM_RENEWAL: must be at most a third of REMAND_CLAIM_LEASE"
    ):
        Settings(claim_lease=30, claim_renewal=10.1)


@pytest.mark.parametrize(
    ("broker", "vault"),
    [
        ("redis://u:p@host:6380/2", "redis://u:p@host:6380/2"),
        ("rediss://host/0", "rediss://host/0"),
        ("redis+socket:///run/x.sock", "unix:///run/x.sock?db=0"),
        ("redis+socket:///run/x.sock?virtual_host=3", "unix:///run/x.sock?db=3"),
        ("amqp://host//", None),
        ("sentinel://a:1;sentinel://b:2", None),
    ],
)
def test_the_vault_follows_a_redis_broker(broker: str, vault: str | None) -> None:
    assert Settings(broker_url=broker).vault_url == vault
    assert Settings(broker_url=broker, vault_url="redis://other").vault_url == "redis://other"


def test_missing_services_are_named_together() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(broker_url="amqp://host").require_services()
    assert [name for name, _ in caught.value.problems] == [
        "REMAND_VAULT_URL",
        "REMAND_VAULT_KEYS",
        "REMAND_LEDGER_URL",
    ]
    whole = Settings(
        broker_url="redis://host", ledger_url="postgresql+psycopg://host/db", vault_keys=KeyRing.generate()
    )
    whole.require_services()
    with pytest.raises(SettingsError, match="REMAND_VAULT_KEYS") as bad:
        Settings(broker_url="redis://host", ledger_url="sqlite:///x", vault_keys=SECRET).require_services()
    assert SECRET not in str(bad.value)


def test_secrets_and_passwords_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAND_BROKER_URL", f"redis://user:{SECRET}@host:6379/0")
    settings = Settings(
        vault_keys=SECRET,
        model_api_key=SECRET,
        flower_auth=f"me:{SECRET}",
        ledger_url=f"postgresql+psycopg://u:{SECRET}/@x@host/db?password={SECRET}",
        model_base_url=f"https://u:{SECRET}@models/v1?api_key={SECRET}",
    )
    rows = settings.shown()
    assert SECRET not in f"{settings!r} {settings} {rows}"
    shown = {row.variable: row for row in rows}
    assert shown["REMAND_BROKER_URL"].value == "redis://user:********@host:6379/0"
    assert shown["REMAND_VAULT_KEYS"].value == "********"


def test_each_value_tells_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("REMAND_WORKERS=3\nREMAND_BROKER_URL=redis://host\n")
    monkeypatch.setenv("REMAND_WINDOW", "9")
    settings = Settings(concurrency=5).replace(home=Path("/elsewhere"))
    sources = {row.variable: row.source for row in settings.shown()}
    assert sources["REMAND_WORKERS"] == ".env"
    assert sources["REMAND_WINDOW"] == "environment"
    assert sources["REMAND_CONCURRENCY"] == "set by the program"
    assert sources["REMAND_HOME"] == "set by the program"
    assert sources["REMAND_VAULT_URL"] == "REMAND_BROKER_URL"
    assert sources["REMAND_POOL"] == "default"


def test_every_setting_is_described() -> None:
    assert all(row.description for row in Settings().shown())


def test_a_child_process_can_be_given_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(
        broker_url="redis://h", claim_lease=90, vault_keys=SECRET, home="/x", model="m", window=4
    )
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings().model_dump() == settings.model_dump()


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:6379/0",
        "sqlite:////abs/ledger.db",
        "unix:///run/x.sock?db=1",
        "http://127.0.0.1:8080/v1",
    ],
)
def test_addresses_without_password_are_shown_whole(url: str) -> None:
    assert without_password(url) == url

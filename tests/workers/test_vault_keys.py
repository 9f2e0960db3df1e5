"""Keys of the vault on real workers: rotated in the middle of a run, missing, wrong, and made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from remand_tasks.state import canary
from remand_tasks.state.vault import KeyRing, VaultError
from remand_workers.cli import main
from remand_workers.embedded import Embedded
from remand_workers.settings import Settings

K1, K2, K9 = KeyRing.generate("k1"), KeyRing.generate("k2"), KeyRing.generate("k9")

PIPELINE = """
import os
from pathlib import Path

from remand import (
    SINGLE_RESPONSE_V1, ModelResponse, Pipeline, Policy, Produced, Stage, accept, producer, reject, validator,
)

@producer(version="1", correction=SINGLE_RESPONSE_V1, timeout=20)
def make(context, correction):
    with open("generations", "a") as file:
        file.write(f"{context.item} {context.attempt} {'corrected' if correction else 'fresh'}\\n")
    return Produced([context.item, context.attempt], response=ModelResponse("a response"))

@validator(version="1")
def right(value, context):
    return reject("Once more.") if value[1] == 1 else accept()

pipeline = Pipeline("turned", version="1", stages=[Stage("make", make, [right], retries=1, backoff=0)])
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Settings]:
    with Embedded(Settings(_env_file=None, home=tmp_path / "services")) as started:
        yield started.settings


@pytest.fixture
def server(services: Settings) -> Iterator[redis.Redis]:
    assert services.vault_url is not None
    with redis.Redis.from_url(services.vault_url) as client:
        yield client


class Crew:
    """Worker processes on the services, each with keys of its own."""

    def __init__(self, shop: Any, services: Settings) -> None:
        self.shop = shop
        self.variables = {
            **{name: value for name, value in services.environment().items() if name != "REMAND_HOME"},
            "REMAND_DISPATCH_LEASE": "0.5",
            "REMAND_LOG_FORMAT": "json",
        }

    def worker(self, keys: str, *arguments: str) -> subprocess.Popen[str]:
        """A worker that takes work."""
        process: subprocess.Popen[str] = self.shop.start(
            "worker", *arguments, **{**self.variables, "REMAND_VAULT_KEYS": keys}
        )
        assert process.stderr is not None
        while "work is taken" not in (line := process.stderr.readline()):
            assert line, "it ended without a word"
        return process

    def remand(self, keys: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = self.shop.remand(
            *arguments, **{**self.variables, "REMAND_VAULT_KEYS": keys}
        )
        return done


def end(*processes: subprocess.Popen[str]) -> str:
    """End workers in order; what they logged."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    said = ""
    for process in processes:
        said += process.communicate(timeout=40)[1]
        assert process.returncode == 0
    return said


@pytest.mark.workers
def test_a_key_is_replaced_in_the_middle_of_a_run_and_nothing_is_lost(
    shop: Any, services: Settings, server: redis.Redis, until: Callable[..., None]
) -> None:
    (shop.folder / "turned.py").write_text(PIPELINE)
    shop.inputs(*["1"] * 12)
    generations = shop.folder / "generations"
    crew = Crew(shop, services)

    def count() -> int:
        return len(generations.read_text().splitlines()) if generations.exists() else 0

    def used(keys: str) -> dict[str, int]:
        done = crew.remand(keys, "vault-key", "--used", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, int] = json.loads(done.stdout)
        return found

    # With k1 alone: every candidate is made, and waits for a validator that is not there yet.
    first = [crew.worker(K1, "--role", role) for role in ("producer", "coordinator")]
    begun = crew.remand(K1, "submit", "turned:pipeline", "-i", "in.jsonl", "--run-id", "r", "-q")
    assert begun.returncode == 0, begun.stderr
    until(lambda: count() == 12, what="first attempts")
    end(*first)
    assert used(K1) == {"k1": 24}

    # The second crew seals with k2 and reads what k1 sealed: it judges, corrects, produces again.
    both = f"{K2},{K1}"
    second = [crew.worker(both), crew.worker(both, "--role", "validator")]
    facts = json.loads(crew.remand(both, "doctor", "--json").stdout)
    assert {"part": "workers' keys", "health": "ok", "found": "all hold k1, k2", "todo": ""} in facts
    until(
        lambda: '"succeeded"' in crew.remand(both, "status", "r", "--json").stdout, what="the end of the run"
    )
    said = end(*second)
    assert "cannot be opened" not in said
    lines = generations.read_text().splitlines()
    assert sorted(lines) == sorted(f"{n} {words}" for n in range(12) for words in ("1 fresh", "2 corrected"))
    assert used(both) == {"k2": 0, "k1": 0}

    # Nothing is sealed with k1 any more, and the last worker sealed with k2: k1 can go.
    third = crew.worker(K2)
    again = crew.remand(K2, "submit", "turned:pipeline", "-i", "in.jsonl", "--wait", "--no-reuse", "-q")
    assert again.returncode == 0, again.stderr
    assert "cannot be opened" not in end(third)
    assert count() == 48


@pytest.mark.workers
@pytest.mark.parametrize("wrong", [K9, KeyRing.generate("k1")], ids=["another id", "another key of that id"])
def test_a_worker_with_other_keys_says_so_and_takes_no_work(
    shop: Any, services: Settings, server: redis.Redis, wrong: str
) -> None:
    crew = Crew(shop, services)
    end(crew.worker(K1))
    left = server.get(canary.KEY)
    refused = crew.remand(wrong, "worker")
    assert refused.returncode == 2
    assert "REMAND_VAULT_KEYS is not what other workers have" in refused.stderr
    assert "work is taken" not in refused.stderr
    assert "Traceback" not in refused.stderr
    for key in (wrong, K1):
        assert key.partition(":")[2] not in refused.stderr
    assert server.get(canary.KEY) == left, "who cannot open it leaves it as it is"


@pytest.mark.workers
def test_a_worker_without_keys_ends_with_2(shop: Any, services: Settings) -> None:
    crew = Crew(shop, services)
    refused = crew.remand("", "worker")
    assert refused.returncode == 2
    assert "REMAND_VAULT_KEYS: must be set" in refused.stderr


@pytest.mark.workers
def test_a_worker_whose_account_may_not_ask_ends_with_2(
    shop: Any, services: Settings, server: redis.Redis
) -> None:
    server.execute_command("ACL", "SETUSER", "nobody", "on", ">secret", "-@all", "+ping", "+select", "+hello")
    crew = Crew(shop, services)
    assert services.vault_url is not None
    crew.variables["REMAND_VAULT_URL"] = services.vault_url.replace("unix://", "unix://nobody:secret@")
    refused = crew.remand(K1, "worker")
    assert refused.returncode == 2
    assert "check the account in REMAND_VAULT_URL" in refused.stderr


def test_the_word_expires_and_costs_three_commands_at_a_start_and_none_later(server: redis.Redis) -> None:
    ring = KeyRing.parse(K1)
    canary.compare(server, ring)
    assert 0 < server.pttl(canary.KEY) <= canary.EXPIRY * 1000  # type: ignore[operator]
    before = _calls(server)
    canary.compare(server, KeyRing.parse(f"{K2},{K1}"))
    after = _calls(server)
    assert {name: after[name] - before.get(name, 0) for name in after if name in ("set", "get")} == {
        "set": 2,
        "get": 1,
    }
    assert 0 < server.pttl(canary.KEY) <= canary.EXPIRY * 1000  # type: ignore[operator]
    with pytest.raises(VaultError, match="unknown_key"):
        canary.compare(server, ring)
    canary.compare(server, KeyRing.parse(K2))


def _calls(server: redis.Redis) -> dict[str, int]:
    stats: dict[str, dict[str, int]] = server.info("commandstats")  # type: ignore[assignment]
    return {name.removeprefix("cmdstat_"): int(each["calls"]) for name, each in stats.items()}


# ---------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("REMAND_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_a_fresh_key_is_a_ring(nowhere: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vault-key"]) == 0
    made = capsys.readouterr().out.strip()
    assert KeyRing.parse(made).ids == ("k1",)
    assert main(["vault-key"]) == 0
    assert capsys.readouterr().out.strip() != made


@pytest.mark.parametrize(
    ("old", "options", "ids"),
    [
        (K1, ["--add"], ("k2", "k1")),
        (f"{K2},{K1}", ["--add"], ("k3", "k2", "k1")),
        (K1, ["--add", "--behind"], ("k1", "k2")),
        (KeyRing.generate("summer"), ["--add"], ("k2", "summer")),
    ],
    ids=["one key", "two keys", "behind", "a name of its own"],
)
def test_a_key_is_added_to_the_ring_that_is_set(
    nowhere: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    old: str,
    options: list[str],
    ids: tuple[str, ...],
) -> None:
    monkeypatch.setenv("REMAND_VAULT_KEYS", old)
    assert main(["vault-key", *options]) == 0
    said = capsys.readouterr()
    assert KeyRing.parse(said.out).ids == ids
    assert old in said.out
    assert old.partition(":")[2] not in said.err


def test_there_must_be_a_ring_to_add_to(nowhere: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vault-key", "--add"]) == 2
    assert "there is no REMAND_VAULT_KEYS to add to" in capsys.readouterr().err.lower().replace(
        "remand_vault_keys", "REMAND_VAULT_KEYS"
    )
    assert main(["vault-key", "--behind"]) == 2

"""Messages that no worker of ours sent are refused or harmless: the worker goes on, and its log repeats nothing."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from hostile_kit.live import Live, until
from hostile_kit.messages import FORGED, MARKER, MESSAGES, QUEUE, RAW, body, envelope
from hostile_kit.pipeline import pipeline

from remand_workers.client import Client
from remand_workers.consumer import fault_of
from remand_workers.embedded import running
from remand_workers.settings import Settings

pytestmark = pytest.mark.timeout(180)
MEGABYTE = 1024 * 1024


@pytest.mark.workers
def test_foreign_messages_are_refused_and_a_normal_run_is_served(live: Live, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    live.run([{"do": "good"}])
    already = live.log()
    live.reset_peak()
    before = live.memory()
    for make in MESSAGES.values():
        live.broker.lpush(QUEUE, make(touched))
    outcomes = live.run([{"do": "good"}] * 3)
    assert [outcome.status for outcome in outcomes] == ["accepted"] * 3
    until(live.quiet, "empty queues")
    assert live.process.poll() is None
    assert not touched.exists()
    said = live.log()[len(already) :]
    assert MARKER not in said
    assert "Traceback" not in said
    # Those about a run that does not exist are well formed, and two are not even decompressed.
    harmless = [name for name in MESSAGES if name.startswith("unknown run") or "compress" in name]
    assert said.count("refused a message that no worker of ours sent") == len(MESSAGES) - len(harmless)
    assert live.memory() - before < 200 * MEGABYTE


@pytest.mark.workers
@pytest.mark.parametrize("queue", ["remand.produce", "remand.validate", "remand.coordinate", "remand.alone"])
def test_a_message_that_would_end_celerys_own_worker_ends_none_of_ours(live: Live, queue: str) -> None:
    pid = live.process.pid
    live.broker.lpush(queue, MESSAGES["no id"](Path()), MESSAGES["a task that is a list"](Path()))
    (outcome,) = live.run([{"do": "good"}])
    assert outcome.succeeded
    until(live.quiet, "empty queues")
    assert live.process.poll() is None
    assert live.process.pid == pid


@pytest.mark.workers
def test_forged_tokens_of_a_real_run_change_nothing(live: Live) -> None:
    run = live.client.submit(pipeline, [{"do": "good"}, {"do": "nan"}], reuse=False)
    run.wait(60)
    before = [(outcome.status, outcome.generations) for outcome in run.results()]
    for task in ("remand.produce", "remand.validate", "remand.coordinate"):
        for token in (f"{run.id}/0/0/1/1", f"{run.id}/0/0/1/2", f"{run.id}/1/0/2/9", f"{run.id}/0/7/1/1",
                      f"{run.id}/999999/0/1/1", f"{run.id}/0/0/0/0", f"{run.id}/0/0/1/999999999999999"):  # fmt: skip
            live.broker.lpush(task, envelope(body(token), task=task))
    until(live.quiet, "empty queues")
    (outcome,) = live.run([{"do": "good"}])
    assert outcome.succeeded
    assert [(outcome.status, outcome.generations) for outcome in run.results()] == before
    assert live.process.poll() is None
    assert not list(live.broker.scan_iter(f"remand:*{run.id}*"))


@pytest.mark.workers
def test_raw_pushes_cost_a_supervised_worker_a_restart_at_most(live: Live, tmp_path: Path) -> None:
    """Nothing of ours sees what has no envelope: Celery's worker dies of it. Whoever watches it starts another."""
    home = tmp_path / "home"
    environment = {
        name: value
        for name, value in live.environment().items()
        if name
        not in (
            "REMAND_BROKER_URL",
            "REMAND_VAULT_URL",
            "REMAND_LEDGER_URL",
            "REMAND_VAULT_KEYS",
            "REMAND_HOME",
        )
    }
    with (tmp_path / "up.err").open("wb") as err:
        up = subprocess.Popen(
            [sys.executable, "-m", "remand_workers.cli", "up", "--workers", "1", "--home", str(home)],
            env=environment,
            cwd=tmp_path,
            stderr=err,
            stdin=subprocess.DEVNULL,
        )
    try:

        def told() -> str:
            return (tmp_path / "up.err").read_text("utf-8", "replace")

        until(lambda: "ready" in told() or up.poll() is not None, "workers")
        settings = running(Settings(_env_file=None, home=home))
        assert settings is not None, told()
        assert settings.broker_url is not None
        path = settings.broker_url.removeprefix("redis+socket://")
        with Client(settings) as client, redis.Redis.from_url(f"unix://{path}?db=0") as broker:
            for name in ("text", "headers that are text"):
                deaths = told().count("is started again")
                broker.lpush(QUEUE, RAW[name])
                until(
                    lambda deaths=deaths: told().count("is started again") > deaths, f"a restart after {name}"
                )
            broker.lpush(QUEUE, RAW["JSON"])
            run = client.submit(pipeline, [{"do": "good"}], reuse=False)
            run.wait(60)
            assert [outcome.status for outcome in run.results()] == ["accepted"]
            assert not broker.exists(QUEUE)
        log = (home / "worker-1.log").read_text("utf-8", "replace")
        assert MARKER not in log + told()
        assert "Unrecoverable error: JSONDecodeError" in log
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(60)
    assert not re.search(r"\bTraceback\b", told())


def message(content: object, **changes: object) -> SimpleNamespace:
    """What the consumer's check looks at of a message."""
    headers = {"task": QUEUE, "id": "one", "timelimit": [None, None], "retries": 0, "eta": None}
    given = {"content_type": "application/json", "content_encoding": "utf-8", "headers": headers, **changes}
    return SimpleNamespace(body=content, **given)


def test_what_our_own_workers_send_passes() -> None:
    links = [
        {"task": name, "args": [FORGED], "kwargs": {}, "options": {"queue": "own"}, "immutable": True}
        for name in ("remand.coordinate", "remand.validate")
    ]
    embedded = {"callbacks": None, "errbacks": None, "chain": links, "chord": None}
    assert fault_of(message(body(FORGED, embedded=embedded))) is None
    assert fault_of(message(body(FORGED))) is None


@pytest.mark.parametrize(
    ("problem", "given"),
    [
        ("headers", message(body(FORGED), headers="text")),
        ("task", message(body(FORGED), headers={"task": "other"})),
        ("id", message(body(FORGED), headers={"task": QUEUE, "id": "x" * 201})),
        ("content type", message(body(FORGED), content_type="application/x-python-serialize")),
        ("option", message(body(FORGED), headers={"task": QUEUE, "id": "1", "eta": "2999-01-01"})),
        ("size", message(b" " * (MEGABYTE + 1))),
        ("body", message(b"[1]")),
        ("body", message(body())),
        ("token", message(body(MARKER))),
        ("body", message(body(FORGED, keywords={"a": 1}))),
        ("body", message(body(FORGED, embedded={"errbacks": [1]}))),
        ("chain", message(body(FORGED, embedded={"chain": [{"task": QUEUE, "args": ["x"]}]}))),
        ("chain", message(body(FORGED, embedded={"chain": {"a": 1}}))),
        ("token", message(b"[[1], {}, []]")),
    ],
)
def test_what_is_wrong_is_said_in_a_word(problem: str, given: SimpleNamespace) -> None:
    assert fault_of(given) == problem

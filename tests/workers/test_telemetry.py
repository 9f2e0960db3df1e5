"""Metrics have closed labels, undetermined verdicts have their own, and a worker serves them on its port."""

from __future__ import annotations

import logging
import re
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remand_tasks.runtime import Observer
from remand_workers.embedded import Embedded
from remand_workers.settings import Settings
from remand_workers.telemetry import Telemetry, observer, serve


def fetch(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_what_happened_is_counted_under_names_and_codes() -> None:
    telemetry = Telemetry()
    telemetry.produced("shop", "make", "candidate", 0.2, 2)
    for verdict in ("accepted", "rejected", "rejected", "undetermined", "undetermined", "undetermined"):
        telemetry.judged("shop", "make", "right", verdict, 0.01)
    telemetry.decided("shop", "make", "advance:accepted")
    telemetry.closed("shop", "accepted", None)
    telemetry.closed("shop", "rejected", "semantic_rejection")
    telemetry.tokens("shop", "make", 10, 0)
    value = telemetry.registry.get_sample_value
    stage = {"pipeline": "shop", "stage": "make"}
    judged = {**stage, "validator": "right"}
    assert value("remand_verdicts_total", {**judged, "verdict": "rejected"}) == 2
    assert value("remand_verdicts_total", {**judged, "verdict": "undetermined"}) == 3
    assert value("remand_productions_total", {**stage, "production": "candidate"}) == 1
    assert value("remand_generations_total", stage) == 2
    assert value("remand_production_seconds_count", stage) == 1
    assert value("remand_judgement_seconds_count", judged) == 6
    assert value("remand_decisions_total", {**stage, "decision": "advance:accepted"}) == 1
    assert (
        value("remand_items_closed_total", {"pipeline": "shop", "status": "accepted", "reason": "none"}) == 1
    )
    assert value("remand_tokens_total", {**stage, "direction": "input"}) == 10
    assert value("remand_tokens_total", {**stage, "direction": "output"}) is None


def test_the_labels_are_a_closed_set() -> None:
    labels = {
        label
        for collector in Telemetry().registry._collector_to_names
        for label in getattr(collector, "_labelnames", ())
    }
    assert labels == {
        "pipeline", "stage", "validator", "verdict", "production", "decision", "status", "reason", "direction",
        "source", "result",
    }  # fmt: skip


def test_port_0_takes_a_free_one_and_answers() -> None:
    telemetry = Telemetry()
    telemetry.closed("shop", "accepted", None)
    server, port = serve(telemetry, 0)
    try:
        assert 'remand_items_closed_total{pipeline="shop",reason="none",status="accepted"} 1.0' in fetch(port)
    finally:
        server.shutdown()
        server.server_close()


def test_a_taken_port_costs_a_message_and_not_the_work(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        with caplog.at_level(logging.ERROR):
            made = observer(taken.getsockname()[1])
    made.decided("shop", "make", "advance:accepted")
    assert isinstance(made, Telemetry)
    assert "REMAND_METRICS_PORT" in caplog.text


def test_without_a_port_nothing_is_kept() -> None:
    assert type(observer(None)) is Observer


@pytest.mark.workers
def test_a_worker_serves_what_it_did(shop: Any, until: Callable[..., None]) -> None:
    shop.inputs('{"do": "undetermined"}', '{"do": "reject"}', '{"do": "slow", "seconds": 60}')
    shop.start(
        "run", "shop:pipeline", "-i", "in.jsonl", "-o", "out.jsonl", "--run-id", "r", REMAND_METRICS_PORT="0"
    )
    until(lambda: "metrics are served on port" in _log(shop), what="a port in the log")
    found = re.search(r"metrics are served on port (\d+)", _log(shop))
    assert found is not None
    port = int(found[1])
    verdicts = 'remand_verdicts_total{pipeline="shop",stage="make",validator="%s",verdict="%s"} %s.0'
    until(lambda: verdicts % ("right", "rejected", 2) in fetch(port), what="two rejections")
    closed = 'remand_items_closed_total{pipeline="shop",reason="semantic_rejection",status="rejected"} 1.0'
    until(lambda: closed in fetch(port), what="a closed item")
    text = fetch(port)
    assert verdicts % ("judged", "undetermined", 1) in text
    assert 'validator="judged",verdict="rejected"' not in text
    assert "MARKER" not in text


@pytest.mark.workers
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_that_nobody_sent_anything_serves_its_metrics(shop: Any, tmp_path: Path, pool: str) -> None:
    with Embedded(Settings(_env_file=None, home=tmp_path / "services")) as services:
        variables = {**services.settings.environment(), "REMAND_METRICS_PORT": "0", "REMAND_POOL": pool}
        worker = shop.start("worker", "--role", "producer", **variables)
        for line in worker.stderr:
            if found := re.search(r"metrics are served on port (\d+)", line):
                break
        assert found is not None
        assert "remand_items_closed" in fetch(int(found[1]))
        worker.terminate()
        worker.communicate(timeout=30)


def _log(shop: Any) -> str:
    return str(shop.log()) if (shop.folder / ".remand").exists() else ""

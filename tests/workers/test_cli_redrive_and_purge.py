"""Another round for what ended badly, and forgetting: on real workers, through the commands people type."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest


def lines(text: str) -> list[dict[str, Any]]:
    """JSON lines as values."""
    return [json.loads(line) for line in text.splitlines()]


def count(shop: Any, table: str) -> int:
    """Rows of a table of the shop's ledger."""
    with sqlite3.connect(shop.folder / ".remand" / "ledger.db") as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_redrive_takes_what_was_named_and_purge_forgets_what_was_said(shop: Any) -> None:
    shop.inputs('{"do": "good"}', '{"do": "reject"}', '{"do": "raise"}', '{"do": "correct"}')
    first = shop.remand("run", "shop:pipeline", "-i", "in.jsonl", "--run-id", "r")
    assert first.returncode == 3, first.stderr
    assert [line["status"] for line in lines(first.stdout)] == ["accepted", "rejected", "failed", "accepted"]

    nothing = shop.remand("redrive", "r")
    assert nothing.returncode == 2
    assert "Name what to redrive" in nothing.stderr

    preview = shop.remand("redrive", "r", "--quarantined", "--preview", "--json")
    assert lines(preview.stdout) == [{"items": 1, "generations_at_worst": 2}]
    assert "1 item to be done again" in preview.stderr
    unknown = shop.remand("redrive", "r", "--item", "nobody")
    assert unknown.returncode == 2
    assert "no item 'nobody'" in unknown.stderr

    code = (shop.folder / "shop.py").read_text("utf-8")
    (shop.folder / "shop.py").write_text(code.replace('value["do"] == "reject" or ', ""), "utf-8")
    again = shop.remand("redrive", "r", "--quarantined")
    assert [line["status"] for line in lines(again.stdout)] == ["accepted", "accepted", "failed", "accepted"]
    by_reason = shop.remand("redrive", "r", "--reason", "semantic_rejection", "--preview")
    assert "0 items" in by_reason.stderr

    refused = shop.remand("purge")
    assert refused.returncode == 2
    assert "Say what to purge" in refused.stderr
    assert "would purge 1 item" in shop.remand("purge", "--run", "r", "--status", "failed").stderr
    assert count(shop, "payloads WHERE name = 'input'") == 4
    assert shop.remand("purge", "--run", "r", "--status", "failed", "--yes").returncode == 0
    assert count(shop, "payloads WHERE name = 'input'") == 3
    assert "would purge 0 items" in shop.remand("purge", "--older-than", "1d").stderr
    kept = shop.remand("purge", "--older-than", "0s", "--payloads-only", "--yes", "--json")
    assert lines(kept.stdout) == [{"items": 3, "purged": 3}]
    assert count(shop, "payloads") == 0
    assert count(shop, "checkpoints") == 0
    assert count(shop, "receipts") > 0
    assert count(shop, "items") == 4, "the keys stay"
    revived = shop.remand("redrive", "r", "--item", "2", "--preview")
    assert "0 items" in revived.stderr, "a purged item has no input to be done again with"


def test_the_retention_setting_purges_by_itself(shop: Any) -> None:
    shop.inputs('{"do": "good"}')
    assert shop.remand("run", "shop:pipeline", "-i", "in.jsonl", "-o", "out.jsonl").returncode == 0
    assert count(shop, "payloads") == 2
    later = shop.remand(
        "run", "shop:pipeline", "-i", "in.jsonl", "-o", "more.jsonl", "--no-reuse", REMAND_RETENTION="0.01"
    )
    assert later.returncode == 0, later.stderr
    # The pulse purges what is old when it beats in the second run; the second run's own item may or may not be next.
    assert count(shop, "payloads WHERE run_id = (SELECT id FROM runs ORDER BY created_at LIMIT 1)") == 0


@pytest.mark.parametrize("age", ["soon", "-1d", "5y"])
def test_an_age_that_is_none_is_refused(shop: Any, age: str) -> None:
    refused = shop.remand("purge", f"--older-than={age}")
    assert refused.returncode == 2
    assert "--older-than takes a number" in refused.stderr

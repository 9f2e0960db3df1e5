"""What one would write by hand: a Celery chain of a model call, a check and an insert, payloads in the arguments.

It forgets everything when a worker dies, counts nothing and shows texts to everybody; it is the floor of what it costs.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from typing import Any

from celery import Celery, chain
from openai import OpenAI

app = Celery("byhand", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_transport_options={"visibility_timeout": 3600},
)
_local = threading.local()


def _client() -> OpenAI:
    if not hasattr(_local, "client"):
        _local.client = OpenAI(base_url=os.environ["REMAND_MODEL_BASE_URL"], api_key="none", max_retries=0)
    return _local.client


@app.task(ignore_result=True)
def produce(text: str) -> str:
    """One model call."""
    reply = _client().chat.completions.create(
        model=os.environ["REMAND_MODEL"], messages=[{"role": "user", "content": f"Read: {text}"}]
    )
    return reply.choices[0].message.content or ""


@app.task(ignore_result=True)
def check(reply: str) -> dict[str, Any]:
    """Two checks."""
    record = json.loads(reply)
    assert record["name"]
    assert record["year"]
    return record


@app.task(ignore_result=True)
def save(record: dict[str, Any]) -> None:
    """Keep the record."""
    if not hasattr(_local, "database"):
        _local.database = sqlite3.connect(os.environ["BENCH_DATABASE"], timeout=60, isolation_level=None)
        _local.database.execute("PRAGMA journal_mode=WAL")
        _local.database.execute("PRAGMA synchronous=NORMAL")
    _local.database.execute("INSERT INTO records (body) VALUES (?)", (json.dumps(record),))


def send(number: int) -> None:
    """One item."""
    chain(produce.s(f"item {number}"), check.s(), save.s()).apply_async()

"""`remand intake`: a process of its own that takes plain JSON messages of other systems.

They come from a Redis Stream or an AMQP queue that no Celery worker reads: Celery's own queues want envelopes, and
raw JSON on one is lost and can end a worker. Each message is in the ledger before it is acknowledged.
"""

from __future__ import annotations

from .process import Tally, run_intake

__all__ = ["Tally", "run_intake"]

"""A worker process with OpenTelemetry's Celery instrumentation on. `python -m privacy_kit.worker SPANS QUEUE ...`"""

from __future__ import annotations

import os
import sys

from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from remand_workers.process import run_worker
from remand_workers.settings import Settings

from .texts import CONTROL


def main() -> int:
    """Serve until told to stop; spans are appended to a file as they end."""
    spans, *queues = sys.argv[1:]
    with open(spans, "a", encoding="utf-8") as file:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=file)))
        CeleryInstrumentor().instrument(tracer_provider=provider)
        return run_worker(Settings(), queues=queues, name=f"{CONTROL}-{os.getpid()}")


if __name__ == "__main__":
    raise SystemExit(main())

"""Metrics for Prometheus: what happened to productions, verdicts, decisions and items.

Labels are names that a pipeline's author fixed and codes of this program, so their sets are closed: no run, no item,
no text of anybody. An undetermined verdict is a verdict of its own and never counted among the rejections.
"""

from __future__ import annotations

import logging
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from remand_tasks.runtime import Observer

log = logging.getLogger("remand.telemetry")

_PRODUCTION_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
_JUDGEMENT_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Telemetry(Observer):
    """Counts into a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._productions = self._counter(
            "productions", "Attempts of producers, by what they gave.", "pipeline", "stage", "production"
        )
        self._generations = self._counter(
            "generations", "Requests that a model answered or failed on, 429s apart.", "pipeline", "stage"
        )
        self._production_seconds = Histogram(
            "remand_production_seconds", "How long attempts of producers took.", ("pipeline", "stage"),
            buckets=_PRODUCTION_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._verdicts = self._counter(
            "verdicts",
            "Verdicts: accepted, rejected, or undetermined, which is a validator that could not judge.",
            "pipeline", "stage", "validator", "verdict",
        )  # fmt: skip
        self._judgement_seconds = Histogram(
            "remand_judgement_seconds", "How long validators took.", ("pipeline", "stage", "validator"),
            buckets=_JUDGEMENT_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._decisions = self._counter("decisions", "Decisions committed.", "pipeline", "stage", "decision")
        self._closed = self._counter(
            "items_closed", "Items closed, by how and why; the reason is `none` for accepted ones.",
            "pipeline", "status", "reason",
        )  # fmt: skip
        self._tokens = self._counter(
            "tokens", "Tokens as the provider counts them.", "pipeline", "stage", "direction"
        )
        self._delivered = self._counter(
            "intake_messages", "Messages of other systems, by what became of them.", "source", "result"
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"remand_{name}", text, labels, registry=self.registry)

    def produced(self, pipeline: str, stage: str, production: str, seconds: float, generations: int) -> None:
        """An attempt of a producer was published."""
        self._productions.labels(pipeline, stage, production).inc()
        self._generations.labels(pipeline, stage).inc(generations)
        self._production_seconds.labels(pipeline, stage).observe(seconds)

    def judged(self, pipeline: str, stage: str, validator: str, verdict: str, seconds: float) -> None:
        """A validator gave a verdict."""
        self._verdicts.labels(pipeline, stage, validator, verdict).inc()
        self._judgement_seconds.labels(pipeline, stage, validator).observe(seconds)

    def decided(self, pipeline: str, stage: str, decision: str) -> None:
        """A decision was committed."""
        self._decisions.labels(pipeline, stage, decision).inc()

    def closed(self, pipeline: str, status: str, reason: str | None) -> None:
        """An item closed."""
        self._closed.labels(pipeline, status, reason or "none").inc()

    def tokens(self, pipeline: str, stage: str, read: int, written: int) -> None:
        """A production or a judgement used tokens."""
        if read:
            self._tokens.labels(pipeline, stage, "input").inc(read)
        if written:
            self._tokens.labels(pipeline, stage, "output").inc(written)

    def delivered(self, source: str, result: str) -> None:
        """A message of another system was delivered."""
        self._delivered.labels(source, result).inc()


def serve(telemetry: Telemetry, port: int, address: str = "0.0.0.0") -> tuple[WSGIServer, int]:  # noqa: S104
    """Answer `/metrics` in a thread of its own. The server, and the port that it took: with 0, a free one.

    Raises `OSError` where the port is taken or may not be used.
    """
    server, thread = start_http_server(port, addr=address, registry=telemetry.registry)
    thread.name = "remand-metrics"
    return server, server.server_port


def observer(port: int | None) -> Observer:
    """This process's observer: one that keeps nothing without a port, else metrics that are served there.

    A port that is taken (by another worker of this machine, or by another child of a prefork pool) costs a message
    in the log and the metrics, not the work.
    """
    if port is None:
        return Observer()
    telemetry = Telemetry()
    try:
        _, taken = serve(telemetry, port)
    except OSError as error:
        log.error(
            "metrics are not served: port %s is taken or may not be used (%s); give each worker process its own "
            "REMAND_METRICS_PORT, or 0 for a free one",
            port,
            type(error).__name__,
        )
    else:
        log.info("metrics are served on port %s", taken)
    return telemetry

"""Whether the model's server answers: asked before a run begins, so that a wrong address costs one message."""

from __future__ import annotations

import socket
import urllib.request
from urllib.parse import urlsplit

from remand.blocks import BlockProducer
from remand.llm import ChatJudge, ChatProducer
from remand.pipeline import Pipeline

from ..settings import Settings
from .failures import CommandError, UsageError

_PATIENCE = 5.0


def asks_named_server(pipeline: Pipeline) -> bool:
    """Whether something in the pipeline asks the server that REMAND_MODEL_BASE_URL names."""
    for stage in pipeline.stages:
        for given in (stage.producer, *stage.validators):
            part = given.proposer if isinstance(given, BlockProducer) else given
            # A part with a server of its own does not care for the environment's.
            if isinstance(part, ChatProducer | ChatJudge) and not part.model.names_server:
                return True
    return False


def check_model_server(pipeline: Pipeline, settings: Settings) -> None:
    """Refuse to begin where the model's server does not answer. Raises `CommandError` or `UsageError`."""
    if settings.model_base_url is not None and asks_named_server(pipeline):
        problem = unreachable(settings.model_base_url)
        if problem is not None:
            raise CommandError(f"the model server cannot be reached: {problem}. Check REMAND_MODEL_BASE_URL")


def unreachable(base_url: str) -> str | None:
    """Why nothing answers at that address, or `None` where something does (or a proxy stands between)."""
    parts = urlsplit(base_url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError("REMAND_MODEL_BASE_URL must be an address such as http://127.0.0.1:8080/v1")
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return None
    port = port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), _PATIENCE).close()
    except socket.gaierror:
        return f"the name {host!r} is not known"
    except TimeoutError:
        return f"{host}:{port} does not answer within {_PATIENCE:g} seconds"
    except OSError as error:
        return f"nothing answers at {host}:{port} ({type(error).__name__})"
    return None

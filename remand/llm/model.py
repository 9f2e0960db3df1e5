"""A model as producers and judges ask it: settings, sampling, and how the output schema is said to the server.

`auto` sends the schema as `response_format` until a server refuses it; then it asks for a JSON object, then for
text, with the schema in the prompt, and remembers what worked for as long as the process lives. A request whose
format was refused never reached the model: it is no generation, and shares the call's time limit.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, get_args

from pydantic import TypeAdapter

from remand_policy import canonical

from ..errors import Failure, OperationalFailure, PipelineError
from .client import Answer, FormatRefused, prepare, resolve, resolve_model, send
from .messages import Message, well_formed, with_schema

ResponseFormat: TypeAlias = Literal["auto", "json_schema", "json_object", "text"]
_RESERVED: Final = frozenset({"messages", "model", "response_format", "stream", "n"})
_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


class ChatModel:
    """One model with fixed settings. Raises `PipelineError` naming the setting that is wrong.

    `timeout` is in seconds for one call in all, `connect_timeout` for making the connection. `repr` shows neither
    the server nor the key.
    """

    def __init__(
        self,
        where: str,
        adapter: TypeAdapter[Any],
        *,
        model: str | None,
        base_url: str | None,
        api_key: str | None,
        timeout: float,
        connect_timeout: float,
        response_format: ResponseFormat,
        temperature: float | None,
        top_p: float | None,
        max_tokens: int | None,
        seed: int | None,
        extra_body: Mapping[str, Any] | None,
    ) -> None:
        self._where = where
        self._adapter = adapter
        self._given = (
            _setting(where, "model", model),
            _setting(where, "base_url", base_url),
            _setting(where, "api_key", api_key),
        )
        self.names_server = base_url is not None
        """Whether it has a server of its own, whatever the environment names."""
        self._timeout = timeout
        self._connect_timeout = _number(where, "connect_timeout", connect_timeout, 0.001, 86_400)
        if response_format not in get_args(ResponseFormat):
            raise PipelineError(
                where, f"response_format must be one of {', '.join(map(repr, get_args(ResponseFormat)))}"
            )
        self.response_format = response_format
        self._format: ResponseFormat = "json_schema" if response_format == "auto" else response_format
        self._sampling = _sampling(where, temperature, top_p, max_tokens, seed)
        self._extra = _extra(where, extra_body)

    def describe(self) -> dict[str, Any]:
        """What the fingerprint covers: the resolved model and all that shapes its reply; no server, no key."""
        return {
            "model": resolve_model(self._where, self._given[0]),
            "sampling": dict(self._sampling),
            "response_format": self.response_format,
            "extra_body": self._extra,
        }

    def ask(self, ordinary: Sequence[Message], appended: Sequence[Message] = ()) -> Answer | Failure:
        """One model call: the ordinary request with the appended messages after it, within `timeout`.

        Raises `PipelineError` if no model or no server is configured.
        """
        model, endpoint = resolve(self._where, *self._given)
        prepare()
        deadline = time.monotonic() + self._timeout
        wanted = self._format
        while True:
            body = self._body(model, wanted, ordinary, appended)
            answer = send(
                self._where, endpoint, body, deadline=deadline, connect_timeout=self._connect_timeout
            )
            if not isinstance(answer, FormatRefused):
                if isinstance(answer, Answer):
                    # Remembered only now, so that a refusal with another cause changes nothing for later calls.
                    self._format = wanted
                return answer
            simpler = self._simpler(wanted)
            if simpler is None:
                return OperationalFailure("response_format", generations=0)
            wanted = simpler

    def _body(
        self, model: str, wanted: str, ordinary: Sequence[Message], appended: Sequence[Message]
    ) -> dict[str, Any]:
        schema, schema_text, name = self._schema
        messages = ordinary if wanted == "json_schema" else with_schema(ordinary, schema_text)
        body: dict[str, Any] = {"model": model, "messages": well_formed([*messages, *appended])}
        if wanted == "json_schema":
            body["response_format"] = {"type": wanted, "json_schema": {"name": name, "schema": schema}}
        elif wanted == "json_object":
            body["response_format"] = {"type": wanted}
        return {**body, **self._sampling, **self._extra}

    def _simpler(self, refused: str) -> ResponseFormat | None:
        if self.response_format != "auto" or refused == "text":
            return None
        # JSON mode gives objects only: of no use where the output is a list or a scalar.
        if refused == "json_schema" and self._schema[0].get("type") == "object":
            return "json_object"
        return "text"

    @cached_property
    def _schema(self) -> tuple[dict[str, Any], str, str]:
        schema = self._adapter.json_schema()
        name = _NAME.sub("_", str(schema.get("title", "")))[:64].strip("_") or "output"
        return schema, json.dumps(schema, ensure_ascii=False, sort_keys=True, separators=(",", ":")), name


def _setting(where: str, field: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise PipelineError(where, f"{field} must be a non-empty string, or None for the environment's")
    return value


def _number(where: str, field: str, value: object, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PipelineError(where, f"{field} must be a number")
    if not least <= value <= most:
        raise PipelineError(where, f"{field} must be from {least} to {most}")
    return value


def _sampling(
    where: str, temperature: float | None, top_p: float | None, max_tokens: int | None, seed: int | None
) -> dict[str, float | int]:
    made: dict[str, float | int] = {}
    if temperature is not None:
        made["temperature"] = _number(where, "temperature", temperature, 0, 10)
    if top_p is not None:
        made["top_p"] = _number(where, "top_p", top_p, 0, 1)
    for field, value, least in (("max_tokens", max_tokens, 1), ("seed", seed, -(2**63))):
        if value is None:
            continue
        if not isinstance(value, int):
            raise PipelineError(where, f"{field} must be a whole number")
        _number(where, field, value, least, 2**63)
        made[field] = value
    return made


def _extra(where: str, extra: Mapping[str, Any] | None) -> dict[str, Any]:
    if extra is None:
        return {}
    try:
        copied = json.loads(canonical(extra))
    except (TypeError, ValueError, RecursionError):
        copied = None
    if not isinstance(copied, dict):
        raise PipelineError(where, "extra_body must be a mapping of plain JSON values")
    taken = sorted(_RESERVED & copied.keys())
    if taken:
        raise PipelineError(where, f"extra_body must not set {', '.join(map(repr, taken))}")
    return copied

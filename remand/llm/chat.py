"""The producer that asks a chat model for one typed value, with structured-output repair inside the attempt.

A call makes at most `1 + repairs` model requests and says exactly how many it made. The ordinary request is built
anew each time from the context alone; a correction adds its two messages, a repair adds two of its own after those,
and neither ever accumulates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from remand_policy import SINGLE_RESPONSE_V1

from ..authoring import Producer
from ..context import Context, Correction, ModelResponse, Produced, Usage
from ..errors import Failure, StructuralFailure
from . import fault
from .client import Answer
from .messages import Message, Prompt, PromptSource, correction_messages, repair_messages
from .model import ChatModel, ResponseFormat
from .structured import Problem, Typed, read

T = TypeVar("T")


class ChatProducer(Producer[T]):
    """Asks an OpenAI-compatible server for one value of the type `output`.

    `prompt` is a template over the input with `{field}` places (`{{` and `}}` for braces), or a function of the
    context that returns messages; `system` is a system message before either. A function's text is not in the
    fingerprint, its name and this producer's `version` are: raise the version when you change it.

    `model`, `base_url` and `api_key` default to `REMAND_MODEL`, `REMAND_MODEL_BASE_URL` and `REMAND_MODEL_API_KEY`,
    read when needed. `timeout` is in seconds for one model call in all, however slowly the server answers.
    `repairs` is how often one attempt may show the model a reply that could not be read. `response_format` is how
    the schema is said: `json_schema`, `json_object`, `text`, or `auto`, the first of these that the server takes.
    `max_tokens`, `temperature`, `top_p`, `seed` and `extra_body` go into the request as they are.

    Raises `PipelineError` for settings that are wrong. A call raises, with exact `generations` and summed `usage`:
    `StructuralFailure` when no reply could be read (`no_json`, `invalid_json`, `schema_mismatch`, `truncated`,
    `empty_response`, `tool_calls_only`, `refusal`, `content_filter`, ...); `OperationalFailure` (`timeout`,
    `connection`, `http_500`, `bad_response`, `prompt_field`, ...); `Throttled` for a 429.
    """

    def __init__(
        self,
        output: type[T] | Any,
        prompt: Prompt,
        *,
        name: str = "chat",
        version: str | None = None,
        model: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        repairs: int = 1,
        timeout: float = 60.0,
        connect_timeout: float = 5.0,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        system: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        response_format: ResponseFormat = "auto",
        correction: str | None = SINGLE_RESPONSE_V1,
    ) -> None:
        super().__init__(
            name,
            version="1" if version is None else version,
            output=output,
            correction=correction,
            repairs=repairs,
            timeout=timeout,
        )
        self._where = f"producer {self.name!r}"
        self._prompt = PromptSource(self._where, prompt, system=system, versioned=version is not None)
        self._system = system
        self._model = ChatModel(
            self._where,
            self.adapter,
            model=model,
            base_url=base_url,
            api_key=api_key,
            timeout=self.timeout,
            connect_timeout=connect_timeout,
            response_format=response_format,
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            seed=seed,
            extra_body=extra_body,
        )

    keeps_deadline = True
    """Each call ends by its own deadline, so that what was paid for is counted."""

    @property
    def model(self) -> ChatModel:
        """The model that it asks."""
        return self._model

    def describe(self) -> Mapping[str, Any]:
        """What the fingerprint covers. Raises `PipelineError` if no model is configured."""
        return {
            **super().describe(),
            "prompt": dict(self._prompt.source),
            "system": self._system,
            **self._model.describe(),
        }

    def __call__(self, context: Context, correction: Correction | None = None) -> Produced:
        """One attempt. See the class for what it raises."""
        ordinary = self._prompt.messages(context)
        if isinstance(ordinary, Failure):
            raise ordinary
        corrected = [] if correction is None else correction_messages(correction)
        repair: list[Message] = []
        usage: Usage | None = None
        generations, cut_off = 0, False
        while True:
            answer = self._model.ask(ordinary, [*corrected, *repair])
            usage = _sum(usage, answer.usage)
            if isinstance(answer, Failure):
                answer.generations += generations
                answer.usage = usage
                raise answer
            generations += 1
            made = self._read(answer)
            if isinstance(made, Typed):
                response = ModelResponse(answer.text, answer.model, usage, answer.finish_reason)
                return Produced(made.value, response, generations)
            again = made.repairable and generations <= self.repairs
            if not again or (made.code == "truncated" and cut_off):
                raise StructuralFailure(made.code, generations=generations, usage=usage)
            cut_off = cut_off or made.code == "truncated"
            repair = repair_messages(answer.text, made)

    def _read(self, answer: Answer) -> Typed | Problem:
        problem = unusable(answer)
        if problem is not None:
            return problem
        try:
            return read(answer.text, self.adapter)
        except Exception as error:
            # The output type's own code broke. Asking the model again would not mend it.
            fault.warn(self._where, "output type", error)
            return Problem("output_type", repairable=False)


def unusable(answer: Answer) -> Problem | None:
    """Why an answer has no text to read, if it has none. A text that was cut off may be asked for again."""
    if answer.refused:
        return Problem("refusal", repairable=False)
    if answer.finish_reason == "content_filter":
        return Problem("content_filter", repairable=False)
    if answer.finish_reason == "tool_calls" or (answer.tool_calls and not answer.text.strip()):
        return Problem("tool_calls_only", repairable=False)
    if answer.finish_reason == "length":
        return Problem("truncated", repairable=bool(answer.text.strip()))
    if not answer.text.strip():
        return Problem("empty_response", repairable=False)
    return None


def _sum(one: Usage | None, other: Usage | None) -> Usage | None:
    return other if one is None else one if other is None else one + other

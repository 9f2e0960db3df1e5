"""Builds the messages of a request: prompt, schema, correction, repair. The same input gives the same bytes.

A template knows `{field}` and the escapes `{{` and `}}`, and nothing else: no attributes, no indexes, no formats,
so that no prompt runs code and no input is read twice.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ..context import Context, Correction
from ..errors import OperationalFailure, PipelineError
from . import fault
from .structured import Problem

Message: TypeAlias = dict[str, Any]
Prompt: TypeAlias = "str | Callable[[Context], Sequence[Mapping[str, Any]]]"

_TOKEN: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_FIELD: Final = re.compile(r"[\w-]+")
_ROLES: Final = frozenset({"system", "developer", "user", "assistant"})
_WORDS: Final = {
    "no_json": "it holds no JSON",
    "invalid_json": "it is not valid JSON",
    "several_values": "it holds several JSON values where one was asked for",
    "duplicate_key": "a key stands twice in one JSON object",
    "not_a_number": "NaN and Infinity are not JSON",
    "number_range": "a number is out of range",
    "lone_surrogate": "an escaped character is not valid Unicode",
    "too_deep": "the JSON nests too deeply",
    "truncated": "it was cut off before its end: answer more briefly",
    "schema_mismatch": "it does not fit the schema",
}


class Template:
    """A prompt with `{field}` places over the input. Raises `PipelineError` naming the character that is wrong."""

    def __init__(self, where: str, text: str) -> None:
        self.text = text
        self._parts: list[tuple[str, str | None]] = []
        position = 0
        for token in _TOKEN.finditer(text):
            literal, position = text[position : token.start()], token.end()
            name = token.group(1)
            if token.group() in ("{{", "}}"):
                self._parts.append((literal + token.group()[0], None))
            elif name is None:
                raise PipelineError(
                    where,
                    f"prompt has a single {token.group()!r} at character {token.start()}; "
                    f"write {token.group() * 2!r} for the character itself",
                )
            elif _FIELD.fullmatch(name) is None:
                raise PipelineError(
                    where,
                    f"prompt has a bad placeholder at character {token.start()}; between braces only the name of "
                    "an input field may stand: letters, digits, '_' and '-'. Write '{{' and '}}' for braces",
                )
            else:
                self._parts.append((literal, name))
        self._tail = text[position:]

    def render(self, fields: object) -> str | OperationalFailure:
        """The prompt for one input. Text goes in as it is, any other value as JSON with sorted keys.

        An input that is no mapping fails as `prompt_input`, a field that it lacks as `prompt_field`; no model was
        asked.
        """
        made: list[str] = []
        for literal, name in self._parts:
            made.append(literal)
            if name is None:
                continue
            if not isinstance(fields, Mapping):
                return OperationalFailure("prompt_input", generations=0)
            if name not in fields:
                return OperationalFailure("prompt_field", generations=0)
            made.append(text_of(fields[name]))
        made.append(self._tail)
        return "".join(made)


class PromptSource:
    """Where the ordinary messages come from: a template, or a function of the context."""

    def __init__(self, where: str, prompt: Prompt, *, system: str | None, versioned: bool) -> None:
        self._where = where
        self._system = system
        self._template: Template | None = None
        self._function: Callable[[Context], Sequence[Mapping[str, Any]]] | None = None
        if system is not None and (not isinstance(system, str) or not system.strip()):
            raise PipelineError(where, "system must be a non-empty string, or None")
        if isinstance(prompt, str):
            if not prompt.strip():
                raise PipelineError(where, "prompt is empty")
            self._template = Template(where, prompt)
            self.source: Mapping[str, str] = {"template": prompt}
            return
        if not callable(prompt):
            raise PipelineError(
                where, f"prompt must be a template string or a function, not {type(prompt).__name__}"
            )
        if inspect.iscoroutinefunction(prompt):
            raise PipelineError(where, "prompt must be a plain function, not an async one")
        name = getattr(prompt, "__qualname__", None)
        if (name is None or "<lambda>" in name) and not versioned:
            raise PipelineError(where, "prompt is a function without a name: give the producer a version")
        known = prompt if name is not None else type(prompt)
        self._function = prompt
        self.source = {"function": f"{known.__module__}.{known.__qualname__}"}

    def messages(self, context: Context) -> list[Message] | OperationalFailure:
        """The ordinary messages for one context.

        A function that raises fails as `prompt_function`, with the exception's type and place in the log; one that
        returns anything but a non-empty list of messages fails as `prompt_messages`. No model was asked.
        """
        made: list[Message] = [] if self._system is None else [{"role": "system", "content": self._system}]
        if self._template is not None:
            text = self._template.render(context.input)
            if isinstance(text, OperationalFailure):
                return text
            return [*made, {"role": "user", "content": text}]
        assert self._function is not None
        try:
            given = self._function(context)
        except Exception as error:
            fault.warn(self._where, "prompt function", error)
            return OperationalFailure("prompt_function", generations=0)
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            return OperationalFailure("prompt_messages", generations=0)
        for message in given:
            if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
                return OperationalFailure("prompt_messages", generations=0)
            if not isinstance(message.get("content"), str | list):
                return OperationalFailure("prompt_messages", generations=0)
            made.append(dict(message))
        return made


def text_of(value: object) -> str:
    """A value as it stands in a prompt: text as it is, all else as JSON with sorted keys."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def well_formed(value: Any) -> Any:
    """`value` with lone surrogates, which no request can carry, replaced by U+FFFD."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {well_formed(key): well_formed(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [well_formed(entry) for entry in value]
    return value


def with_schema(messages: Sequence[Message], schema_text: str) -> list[Message]:
    """The messages with the output schema said in words, at the end of the last one whose role is `user`."""
    made = [dict(message) for message in messages]
    instruction = (
        "Answer with one JSON value that fits this JSON Schema, and with nothing else:\n" + schema_text
    )
    for message in reversed(made):
        if message["role"] == "user" and isinstance(message["content"], str):
            message["content"] += "\n\n" + instruction
            return made
    return [*made, {"role": "user", "content": instruction}]


def correction_messages(correction: Correction) -> list[Message]:
    """The two messages of `single_response_v1`."""
    return [
        {"role": "assistant", "content": correction.response},
        {"role": "user", "content": correction.guidance},
    ]


def repair_messages(reply: str, problem: Problem) -> list[Message]:
    """The two messages of a repair: the reply that could not be read, and why, in fixed words.

    Of the reply only key names are said again, bounded, on one line each.
    """
    lines = [
        f"Your reply could not be used: {_WORDS.get(problem.code, 'it is not the JSON that was asked for')}."
    ]
    lines += [f"- at `{path}`: {kind}" for path, kind in problem.locations]
    lines.append("Answer the original request again, with one complete JSON value and nothing else.")
    return [{"role": "assistant", "content": reply}, {"role": "user", "content": "\n".join(lines)}]

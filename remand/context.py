"""What producers and validators are given, and what they give back.

All of it may hold sensitive text, so no representation here shows content: kinds and lengths only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any


def _outline(value: object) -> str:
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str | bytes | list | tuple | dict | set):
        return f"<{type(value).__name__}, {len(value)}>"
    return f"<{type(value).__name__}>"


class Redacted:
    """A dataclass whose representation shows kinds and lengths; fields named in `_shown` are shown whole."""

    __slots__ = ()
    _shown: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        parts = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            parts.append(
                f"{field.name}={value!r}" if field.name in self._shown else f"{field.name}={_outline(value)}"
            )
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the provider counts them."""

    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens)

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.input_tokens + self.output_tokens


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, repr=False)
class ModelResponse(Redacted):
    """The exact text of the single model reply that controlled a candidate, and what the provider said of it."""

    text: str
    model: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    _shown = frozenset({"usage"})

    @property
    def usable(self) -> bool:
        """Whether it can be sent back to the model: not empty, and not a tool call alone."""
        return isinstance(self.text, str) and bool(self.text.strip()) and self.finish_reason != "tool_calls"


@dataclass(frozen=True, slots=True, repr=False)
class Produced(Redacted):
    """A candidate. A producer that declares `single_response_v1` gives its exact `response` along."""

    value: Any
    response: ModelResponse | None = None
    generations: int = 1
    _shown = frozenset({"generations"})


@dataclass(frozen=True, slots=True, repr=False)
class RetryRequest(Redacted):
    """A producer asks for another attempt of itself, with a safe `fallback` should none be left.

    `operator_message` is for people and never reaches the model; `guidance` is for the model and needs the exact
    `response` it is about. Of several fallbacks the one with the highest `rank` is kept, the later of equals.
    `diagnostics` are up to eight short codes. A `fallback` of `None` is no fallback.
    """

    reason_code: str
    operator_message: str
    fallback: Any
    guidance: str | None = None
    response: ModelResponse | None = None
    rank: int = 0
    diagnostics: Sequence[str] = ()
    generations: int = 1
    _shown = frozenset({"rank", "generations"})


@dataclass(frozen=True, slots=True, repr=False)
class Correction(Redacted):
    """What `single_response_v1` appends to the ordinary request: the latest response, and what is wrong with it."""

    protocol: str
    response: str
    guidance: str
    _shown = frozenset({"protocol"})


class Validation(str):
    """Whether every validator so far could judge: `complete`, or `incomplete` with their names.

    It compares as its string. `validators` are those that could not judge, as `stage/validator`.
    """

    __slots__ = ("validators",)
    validators: tuple[str, ...]

    def __new__(cls, validators: Sequence[str] = ()) -> Validation:
        made = super().__new__(cls, "incomplete" if validators else "complete")
        made.validators = tuple(validators)
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return Validation, (self.validators,)


COMPLETE = Validation()


@dataclass(frozen=True, slots=True, repr=False)
class Context(Redacted):
    """Where a producer or validator stands.

    `input` is the item's input as JSON gives it, a copy of its own for each call; `item` its number in the run,
    from 0; `attempt` 1 for the first; `previous` the value of the stage before, as JSON gives it.
    """

    input: Any
    run_id: str
    item: int
    stage: str
    attempt: int
    previous: Any = None
    validation: Validation = COMPLETE
    _shown = frozenset({"run_id", "item", "stage", "attempt", "validation"})

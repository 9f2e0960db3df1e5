"""Decorators that make producers and validators of plain functions, and the words a validator answers with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from typing import Any, Generic, TypeVar

from pydantic import PydanticUserError, TypeAdapter

from remand_policy import SINGLE_RESPONSE_V1, Finding, check_budget

from .context import Context, Correction, Produced, RetryRequest, Usage
from .errors import PipelineError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class _Answer:
    """What a validator answers. It has no truth value, so that nobody can take a verdict for a pass by accident."""

    __slots__ = ()

    def __bool__(self) -> bool:
        raise TypeError("A verdict has no truth value. Test isinstance(answer, Accepted) instead.")


@dataclass(frozen=True, slots=True)
class Accepted(_Answer):
    """The candidate is right, as far as this validator can tell."""

    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Rejected(_Answer):
    """The candidate is wrong. `findings` say so to the model."""

    findings: tuple[Finding, ...] = ()
    usage: Usage | None = None


def accept() -> Accepted:
    """The verdict `accepted`."""
    return Accepted()


def reject(
    text: str | Finding | Iterable[Finding], *, path: str | None = None, code: str | None = None
) -> Rejected:
    """The verdict `rejected`, with one finding in words or with several `Finding`s.

    `path` points into the candidate and `code` is for counts; both go with a single text only. Without words the
    validator's description is said instead. Raises `TypeError` for anything that is no text and no finding.
    """
    if isinstance(text, str):
        return Rejected((Finding(text, path=path, code=code),))
    if path is not None or code is not None:
        raise TypeError("reject: path and code go with a text; give each Finding its own")
    findings = (text,) if isinstance(text, Finding) else tuple(text)
    if not all(isinstance(finding, Finding) for finding in findings):
        raise TypeError("reject: expected a text, a Finding, or several Findings")
    return Rejected(findings)


def _text(where: str, field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise PipelineError(
            where,
            f"{field} must be a non-empty string; it is {'empty' if value == '' else type(value).__name__}",
        )
    return value


def _name(where: str, value: object) -> str:
    name = _text(where, "name", value)
    if len(name) > 100 or any(not c.isprintable() or c in "/\\ " for c in name):
        raise PipelineError(
            where, f"name {name[:40]!r} must be at most 100 printable characters without spaces or slashes"
        )
    return name


def _seconds(where: str, field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 86_400:
        raise PipelineError(where, f"{field} must be a number of seconds above 0 and at most 86400")
    return float(value)


def _budget(where: str, field: str, value: object) -> int:
    try:
        return check_budget(where, field, value)
    except ValueError as error:
        raise PipelineError(where, str(error).removeprefix(f"{where}: ")) from None


def _whole(where: str, field: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise PipelineError(where, f"{field} must be a whole number from {least} to {most}")
    return value


def _function(where: str, field: str, value: F) -> F:
    """`value` if it is a plain function with a name, by which fingerprints know it."""
    if not callable(value):
        raise PipelineError(where, f"{field} must be a function, not {type(value).__name__}")
    if inspect.iscoroutinefunction(value):
        raise PipelineError(where, f"{field} must be a plain function, not an async one")
    name = getattr(value, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        what = "a lambda" if name else f"a {type(value).__name__}"
        raise PipelineError(where, f"{field} must be a function with a name, not {what}")
    return value


def _functions(where: str, field: str, given: Sequence[F]) -> tuple[F, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise PipelineError(where, f"{field} must be a list of functions, not {type(given).__name__}")
    made = tuple(_function(where, f"{field}[{place}]", function) for place, function in enumerate(given))
    names = [function.__name__ for function in made]
    for repeated in names:
        if names.count(repeated) > 1:
            raise PipelineError(where, f"{field}: two functions are called {repeated!r}")
    return made


def _describe(function: Callable[..., Any]) -> Mapping[str, str]:
    return {
        "name": function.__name__,
        "qualname": getattr(function, "__qualname__", function.__name__),
        "says": _first_line(function),
    }


class Validator:
    """A judge of candidates: a function with a name, a version, a deadline and a budget of its own.

    Made by `@validator`; calling it calls the function, so that it can be tested as one. `timeout` is in seconds.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str | None = None,
        *,
        version: str,
        description: str | None = None,
        timeout: float = 30.0,
        execution_retries: int = 1,
        queue: str | None = None,
    ) -> None:
        if not callable(function):
            raise PipelineError("validator", f"expected a callable, not {type(function).__name__}")
        self.name = _name("validator", name or getattr(function, "__name__", None))
        where = f"validator {self.name!r}"
        if self.name == "<lambda>":
            raise PipelineError("validator", "a lambda needs a name")
        self.function = function
        self.version = _text(where, "version", version)
        if description is not None:
            _text(where, "description", description)
        self.description = (
            description or _first_line(function) or f"It fails the check {self.name.replace('_', ' ')!r}."
        )
        self.timeout = _seconds(where, "timeout", timeout)
        self.execution_retries = _budget(where, "execution_retries", execution_retries)
        self.queue = None if queue is None else _name(where, queue)
        if self.name:
            update_wrapper(self, function, updated=())

    def __call__(self, value: Any, context: Context) -> Any:
        return self.function(value, context)

    def describe(self) -> Mapping[str, Any]:
        """What the fingerprint covers."""
        return {
            "name": self.name,
            "version": self.version,
            "description": self.description,
            "execution_retries": self.execution_retries,
        }

    def __repr__(self) -> str:
        return f"<validator {self.name!r} version {self.version!r}>"


class Producer(Generic[T]):
    """What makes candidates: usually one call of a language model.

    Subclass it, or use `@producer`. `output` is a pydantic model or anything a `TypeAdapter` takes; without it
    any JSON value passes. `repairs` is how many more model calls one attempt may make, `timeout` seconds for each.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str,
        output: Any = None,
        correction: str | None = None,
        repairs: int = 0,
        timeout: float = 60.0,
    ) -> None:
        self.name = _name("producer", name)
        where = f"producer {self.name!r}"
        self.version = _text(where, "version", version)
        if correction not in (None, SINGLE_RESPONSE_V1):
            raise PipelineError(
                where, f"unknown correction protocol {correction!r}; there is {SINGLE_RESPONSE_V1!r}"
            )
        self.correction = correction
        self.repairs = _budget(where, "repairs", repairs)
        self.timeout = _seconds(where, "timeout", timeout)
        self.output = output

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Turns values of the output type into JSON and back."""
        try:
            return TypeAdapter(Any if self.output is None else self.output)
        except Exception as error:
            raise PipelineError(
                f"producer {self.name!r}", f"output is no type that pydantic takes ({type(error).__name__})"
            ) from None

    def __call__(self, context: Context, correction: Correction | None) -> Any:
        """One attempt: `Produced` or `RetryRequest`, or an awaitable of them. Raises `Failure` kinds."""
        raise TypeError(f"{type(self).__name__} must define __call__(context, correction)")

    @property
    def deadline(self) -> float:
        """Seconds that one attempt may take in all: every call's timeout, repairs included."""
        return (1 + self.repairs) * self.timeout

    def describe(self) -> Mapping[str, Any]:
        """What the fingerprint covers. Subclasses add their prompt, model and sampling parameters."""
        return {
            "name": self.name,
            "version": self.version,
            "correction": self.correction,
            "repairs": self.repairs,
            "output": None if self.output is None else self._schema(),
        }

    def _schema(self) -> Mapping[str, Any]:
        try:
            return self.adapter.json_schema()
        except PydanticUserError as error:
            raise PipelineError(
                f"producer {self.name!r}", f"output has no JSON schema ({type(error).__name__})"
            ) from None

    def __repr__(self) -> str:
        return f"<producer {self.name!r} version {self.version!r}>"


class FunctionProducer(Producer[Any]):
    """A producer made of a function by `@producer`."""

    def __init__(self, function: Callable[..., Any], name: str | None = None, **settings: Any) -> None:
        if not callable(function):
            raise PipelineError("producer", f"expected a callable, not {type(function).__name__}")
        super().__init__(name or str(getattr(function, "__name__", "")), **settings)
        if self.name == "<lambda>":
            raise PipelineError("producer", "a lambda needs a name")
        self.function = function
        update_wrapper(self, function, updated=())

    def __call__(self, context: Context, correction: Correction | None) -> Any:
        return self.function(context, correction)


def validator(
    name: str | None = None,
    *,
    version: str,
    description: str | None = None,
    timeout: float = 30.0,
    execution_retries: int = 1,
    queue: str | None = None,
) -> Callable[[Callable[..., Any]], Validator]:
    """Make a validator of `f(value, context)`, plain or `async`.

    It answers with `accept()` or `reject(...)`. Anything else (an exception, a time-out, another return value)
    is `undetermined`, and it is asked again up to `execution_retries` times about the same candidate. `description`
    is said to the model where a finding has no words. Raises `PipelineError` naming the field that is wrong.
    """

    def make(function: Callable[..., Any]) -> Validator:
        return Validator(
            function,
            name,
            version=version,
            description=description,
            timeout=timeout,
            execution_retries=execution_retries,
            queue=queue,
        )

    return make


ProducerFunction = Callable[[Context, Correction | None], Produced | RetryRequest | Any]


def producer(
    name: str | None = None,
    *,
    version: str,
    output: Any = None,
    correction: str | None = None,
    repairs: int = 0,
    timeout: float = 60.0,
) -> Callable[[ProducerFunction], FunctionProducer]:
    """Make a producer of `f(context, correction)`, plain or `async`, that returns `Produced` or `RetryRequest`.

    `correction=SINGLE_RESPONSE_V1` declares that it takes corrections, and that it gives its exact response with
    every candidate. `repairs` says how many further model calls one attempt may make. Raises `PipelineError`.
    """

    def make(function: ProducerFunction) -> FunctionProducer:
        return FunctionProducer(
            function,
            name,
            version=version,
            output=output,
            correction=correction,
            repairs=repairs,
            timeout=timeout,
        )

    return make


def _first_line(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").strip().split("\n")[0]

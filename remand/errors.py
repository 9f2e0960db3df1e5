"""The errors that Remand raises. Every one can be pickled, and none quotes sensitive text."""

from __future__ import annotations

from .context import Usage


class RemandError(Exception):
    """The base of all errors here. Catch it to catch them all."""


class PipelineError(RemandError):
    """A pipeline was refused when loaded. `where` names the place, `problem` says what to mend."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class BadEntry(RemandError):
    """A registry refused an entry. `code` says why, without a word of the entry.

    Codes are `not_json`, `schema_mismatch` and `too_large` for data; for a function of the registry its field, such
    as `key` or `text`, where it gave what it must not, and the same with `_raised` where it raised.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return f"the entry was refused: {self.code}"


class Failure(RemandError):
    """An attempt failed. Raise one of the kinds below from a producer.

    `code` is a short identifier for people and counts, never text from a model or an input. `generations` is how
    many requests the model answered or failed on in this attempt, `usage` what they cost where it is known.
    """

    def __init__(self, code: str, *, generations: int = 1, usage: Usage | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.generations = generations
        self.usage = usage

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.code, {"generations": self.generations, "usage": self.usage})


class StructuralFailure(Failure):
    """No typed candidate could be formed from what the model said. Spends an outer retry; the next attempt is fresh."""


class OperationalFailure(Failure):
    """The call did not come through: time-out, connection, provider error. Retried after a backoff.

    Any exception that is not one of these kinds counts as an operational failure with one generation.
    """


class Throttled(Failure):
    """The provider asks for patience. The same attempt runs again after `retry_after` seconds; no budget is spent."""

    def __init__(
        self, retry_after: float | None = None, *, generations: int = 0, usage: Usage | None = None
    ) -> None:
        super().__init__("throttled", generations=generations, usage=usage)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (
            type(self),
            self.retry_after,
            {"generations": self.generations, "usage": self.usage},
        )


def _rebuild(kind: type[Failure], first: object, keywords: dict[str, object]) -> Failure:
    return kind(first, **keywords)  # type: ignore[arg-type]

"""How an item ended, as the author's code sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from remand_policy import Disposition, Reason, Status, Verdict

from .context import COMPLETE, NO_USAGE, Redacted, Usage, Validation


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRecord:
    """What one validator said at the end. `tries` counts its calls on the last response.

    An undetermined verdict names the exception's type and its place (`module:function:line`); in the local driver
    `error` is the exception itself.
    """

    validator: str
    verdict: Verdict
    tries: int = 1
    error_type: str | None = None
    error_at: str | None = None
    error: BaseException | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Outcome(Redacted):
    """How one item ended. It is true only if it was accepted.

    `value` is the accepted or incomplete value, in the type of the last stage's output. `attempts` and `generations`
    are of all stages, `verdicts` of the last attempt. `code` refines `reason` for people.
    """

    status: Status
    item: int = 0
    key: str = ""
    value: Any = None
    reason: Reason | None = None
    disposition: Disposition | None = None
    code: str | None = None
    attempts: int = 0
    generations: int = 0
    corrections: int = 0
    verdicts: tuple[VerdictRecord, ...] = ()
    usage: Usage = NO_USAGE
    reused: bool = False
    validation: Validation = COMPLETE
    fallback: bool = False
    diagnostics: tuple[str, ...] = ()
    _shown = frozenset(
        {
            "status", "item", "key", "reason", "disposition", "code", "attempts", "generations", "corrections",
            "verdicts", "usage", "reused", "validation", "fallback", "diagnostics",
        }
    )  # fmt: skip

    @property
    def succeeded(self) -> bool:
        """True for `accepted` alone: what no validator could judge is not a success."""
        return self.status is Status.ACCEPTED

    def __bool__(self) -> bool:
        return self.succeeded

"""The words that every part of Remand shares: verdicts, reasons, dispositions, outcomes.

Plain values only. Each enumeration is a `StrEnum`, so a member equals its string and serializes as it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SINGLE_RESPONSE_V1: Final = "single_response_v1"
"""The one correction protocol: the latest response as `assistant`, one aggregate guidance as `user`."""


class Verdict(StrEnum):
    """What a validator says of one candidate. It has no truth value: compare it."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNDETERMINED = "undetermined"
    """It could not judge. Never a pass, never a rejection."""

    def __bool__(self) -> bool:
        raise TypeError("A verdict has no truth value. Compare it: verdict == 'accepted'.")


class Reason(StrEnum):
    """Why an item closed without being accepted."""

    STRUCTURAL_FAILURE = "structural_failure"
    SEMANTIC_REJECTION = "semantic_rejection"
    VALIDATOR_EXECUTION_FAILURE = "validator_execution_failure"
    OPERATIONAL_FAILURE = "operational_failure"
    CONTRACT_FAILURE = "contract_failure"


class Disposition(StrEnum):
    """What a pipeline's policy does about a reason."""

    FAIL_RUN = "fail_run"
    WARN_CONTINUE = "warn_continue"
    QUARANTINE = "quarantine"


class Status(StrEnum):
    """How an item ended."""

    ACCEPTED = "accepted"
    INCOMPLETE = "incomplete"
    """Advanced by `warn_continue` although a validator could not judge. Never a success."""
    REJECTED = "rejected"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RunStatus(StrEnum):
    """Where a run stands. The last four are ends."""

    RUNNING = "running"
    FAILING = "failing"
    """An item failed the run. Nothing more is admitted; what is in flight finishes."""
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    """Every item was accepted, none by a fallback."""
    DEGRADED = "degraded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen in this run."""
        return self in _ENDS


_ENDS = frozenset({RunStatus.SUCCEEDED, RunStatus.DEGRADED, RunStatus.FAILED, RunStatus.CANCELLED})


class Production(StrEnum):
    """What one execution of a producer gave, as a code."""

    CANDIDATE = "candidate"
    STRUCTURAL = "structural"
    """No typed candidate could be formed, local repair exhausted."""
    OPERATIONAL = "operational"
    """Time-out, connection, provider error, or the producer raised."""
    THROTTLED = "throttled"
    RETRY = "retry"
    """The producer asked for another attempt itself (`RetryRequest`)."""
    CONTRACT = "contract"
    """The producer broke its declared contract."""
    UNREADABLE = "unreadable"
    """The pending correction could not be read back; nothing was called."""
    LOST = "lost"
    """The worker was lost while producing."""
    GONE = "gone"
    """The candidate left the vault before it was judged or committed."""
    NOREC = "norec"
    """The attempt's record was missing."""
    VOID = "void"
    """The run ended before this was produced."""


class Response(StrEnum):
    """Whether the exact reply that controlled a candidate can be sent back to the model."""

    ABSENT = "absent"
    UNUSABLE = "unusable"
    """Empty, or a tool call alone."""
    USABLE = "usable"


class Guidance(StrEnum):
    """Whether a producer's own retry request carries guidance for the model."""

    ABSENT = "absent"
    BLANK = "blank"
    PRESENT = "present"


@dataclass(frozen=True, slots=True)
class Finding:
    """One bounded piece of model-facing guidance.

    `text` is what the model reads; `path` points into the candidate; `code` is for people and counts
    and is never shown to the model. The representation leaves `text` out: findings are sensitive.
    """

    text: str
    path: str | None = None
    code: str | None = None

    def __post_init__(self) -> None:
        for name in ("text", "path", "code"):
            value = getattr(self, name)
            if value is None and name != "text":
                continue
            if not isinstance(value, str):
                raise TypeError(f"Finding.{name} must be a string, not {type(value).__name__}")

    def __repr__(self) -> str:
        path, code = ("set" if value else None for value in (self.path, self.code))
        return f"Finding(<{len(self.text)} characters>, path={path}, code={code})"

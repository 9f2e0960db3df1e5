"""What a policy does about each reason, and how an item and its run end by it.

How two rules agree: `warn_continue` may let a candidate through when a validator could not judge it, and
nothing that got through this way is ever called a success.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta

from .words import Disposition, Reason, Status

_BY_FIELD = {
    "structural_failure": Reason.STRUCTURAL_FAILURE,
    "semantic_rejection": Reason.SEMANTIC_REJECTION,
    "validator_execution_failure": Reason.VALIDATOR_EXECUTION_FAILURE,
    "operational_failure": Reason.OPERATIONAL_FAILURE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One disposition for each reason. `contract_failure` has none: it always fails the run.

    `retain_quarantined` keeps a quarantined candidate with its findings in the vault, encrypted, for that
    long; by default they go when the item closes. Raises `ValueError` for an unknown disposition.
    """

    structural_failure: Disposition | str = Disposition.FAIL_RUN
    semantic_rejection: Disposition | str = Disposition.FAIL_RUN
    validator_execution_failure: Disposition | str = Disposition.WARN_CONTINUE
    operational_failure: Disposition | str = Disposition.FAIL_RUN
    retain_quarantined: timedelta | None = None

    def __post_init__(self) -> None:
        for name in _BY_FIELD:
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, Disposition(value))
            except ValueError:
                choices = ", ".join(Disposition)
                raise ValueError(f"Policy.{name}: {value!r} is not one of {choices}") from None
        keep = self.retain_quarantined
        if keep is not None and (not isinstance(keep, timedelta) or keep <= timedelta(0)):
            raise ValueError("Policy.retain_quarantined must be a positive timedelta, or None")

    def override(self, changes: Mapping[str, Disposition | str]) -> Policy:
        """This policy with single fields replaced. Raises `ValueError` for a field that it does not have."""
        for name in changes:
            if name not in _BY_FIELD:
                raise ValueError(f"{name!r} is not a policy field; there are {', '.join(_BY_FIELD)}")
        return replace(self, **changes)  # type: ignore[arg-type]

    def of(self, reason: Reason) -> Disposition:
        """The disposition for `reason`."""
        if reason is Reason.CONTRACT_FAILURE:
            return Disposition.FAIL_RUN
        return Disposition(getattr(self, reason.value))

    def describe(self) -> dict[str, str | float | None]:
        """All fields as plain values, for fingerprints and for people."""
        described: dict[str, str | float | None] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            described[field.name] = value.total_seconds() if isinstance(value, timedelta) else value
        return described


def closing_status(reason: Reason) -> Status:
    """How an item ends that closes for `reason`."""
    return Status.REJECTED if reason is Reason.SEMANTIC_REJECTION else Status.FAILED

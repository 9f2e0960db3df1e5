"""How long to wait after an operational failure: exponential, capped, with jitter that is passed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds: `base` after the first failure, doubling, at most `cap`."""

    base: float = 1.0
    cap: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.base <= self.cap:
            raise ValueError("Backoff: base must lie between 0 and cap")

    def delay(self, attempt: int, jitter: float) -> float:
        """Seconds to wait after `attempt` (1 for the first) failed. `jitter` in [0, 1) takes off up to a half."""
        full = min(self.cap, self.base * 2.0 ** min(attempt - 1, 32))
        return full * (1.0 - 0.5 * jitter)

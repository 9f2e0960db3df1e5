"""The steps that tasks carry out. They know the ledger, the records and the vault, and nothing of Celery."""

from enum import Enum


class Next(Enum):
    """What the chain does after a step."""

    FORWARD = "forward"
    """Go to the next link."""
    DECIDE = "decide"
    """Go straight to the coordinator: nothing is left to judge."""
    STOP = "stop"
    """Cut the chain: the work is held by another, stale, or not for this process."""

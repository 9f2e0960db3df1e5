"""What `doctor` finds of one part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Health = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one part, and what to do."""

    part: str
    health: Health
    found: str
    todo: str = ""

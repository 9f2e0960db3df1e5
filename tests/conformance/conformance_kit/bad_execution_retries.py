"""A pipeline that must be refused when loaded: a validator's budget is negative."""

from __future__ import annotations

from .parts import judge
from .pipelines import one

pipeline = one(judge("a", execution_retries=-1))

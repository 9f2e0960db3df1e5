"""A pipeline that must be refused when loaded: its outer budget is negative."""

from __future__ import annotations

from .pipelines import one

pipeline = one(retries=-1)

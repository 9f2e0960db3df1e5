"""A pipeline that must be refused when loaded: its repair budget is negative."""

from __future__ import annotations

from .parts import chat
from .pipelines import one

pipeline = one(producer=chat(repairs=-1))

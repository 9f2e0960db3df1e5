"""Operating Remand: the Celery application, settings, embedded services, the command line, Flower, logs, telemetry.

The names below are what other programs use. They are loaded when first asked for, so that importing this package
costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Client, Run
    from .registries import Reconciliation
    from .settings import Settings

__all__ = ["Client", "Reconciliation", "Run", "Settings"]

_HOMES = {"Client": "client", "Reconciliation": "registries", "Run": "client", "Settings": "settings"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)

"""Canonical hashes: what decides whether two stages, or two inputs, are the same.

A fingerprint covers everything that can change a value or a verdict. What cannot be described in plain values
cannot be fingerprinted: it is refused here, and so never matches anything.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from .correction import RENDERER_VERSION, Bounds
from .decision import DECISION_VERSION
from .words import SINGLE_RESPONSE_V1


def canonical(value: object) -> bytes:
    """`value` as canonical JSON: sorted keys, no spaces, UTF-8, numbers as Python prints them.

    Takes `None`, `bool`, `int`, finite `float`, `str`, enumerations of those, and mappings and sequences of them.
    Raises `TypeError` for anything else, `ValueError` for a number that JSON does not have and for values nested
    hundreds deep or within themselves.
    """
    try:
        text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        raise ValueError("a value nested this deeply cannot be fingerprinted") from None
    return text.encode("utf-8", "surrogatepass")


def _plain(value: object) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number that JSON does not have cannot be fingerprinted")
        return value
    if isinstance(value, Mapping):
        plain: dict[str, Any] = {}
        for key, entry in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a key of type {type(key).__name__} cannot be fingerprinted")
            plain[key] = _plain(entry)
        return plain
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(entry) for entry in value]
    raise TypeError(f"a value of type {type(value).__name__} cannot be fingerprinted")


def digest(value: object) -> str:
    """The SHA-256 of `canonical(value)`, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


def stage_fingerprint(description: Mapping[str, object], *, bounds: Bounds, before: Sequence[str]) -> str:
    """The fingerprint of a stage described in plain values, after the stages with the fingerprints `before`.

    The versions of the decision table, the correction protocol and the renderer with its bounds are added here,
    so that no caller can forget them.
    """
    return digest(
        {
            "decision": DECISION_VERSION,
            "protocol": SINGLE_RESPONSE_V1,
            "renderer": {"version": RENDERER_VERSION, "bounds": bounds.describe()},
            "stage": description,
            "before": list(before),
        }
    )


def checkpoint_digest(input_digest: str, previous_digest: str = "") -> str:
    """What a checkpoint is found by besides the stage's fingerprint: the digests of the input and, for a later
    stage, of the value before it.
    """
    return digest({"input": input_digest, "previous": previous_digest}) if previous_digest else input_digest

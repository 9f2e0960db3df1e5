"""Canonical hashes: the same for the same description anywhere, another for every change, and no guessing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remand_policy import (
    Bounds,
    Disposition,
    Policy,
    canonical,
    checkpoint_digest,
    digest,
    fingerprint,
    stage_fingerprint,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)

STAGE: dict[str, Any] = {
    "producer": {
        "name": "extract",
        "version": "1",
        "correction": "single_response_v1",
        "prompt": "Extract the citation.",
        "output": {"type": "object", "properties": {"year": {"type": "integer"}}},
        "model": "m",
        "temperature": 0.5,
        "repairs": 1,
    },
    "validators": [
        {"name": "year", "version": "1", "execution_retries": 1},
        {"name": "title", "version": "1", "execution_retries": 1},
    ],
    "retries": 2,
    "blind_retries": False,
    "policy": Policy().describe(),
}


def stage(
    description: Mapping[str, object] = STAGE, *, bounds: Bounds | None = None, before: Any = ()
) -> str:
    return stage_fingerprint(description, bounds=bounds or Bounds(), before=before)


def changed(*path: str | int, to: object) -> dict[str, Any]:
    """`STAGE` with one value replaced."""
    copy: dict[str, Any] = json.loads(json.dumps(STAGE))
    at: Any = copy
    for step in path[:-1]:
        at = at[step]
    assert at[path[-1]] != to
    at[path[-1]] = to
    return copy


CHANGES: dict[str, str] = {
    "producer's name": stage(changed("producer", "name", to="other")),
    "producer's version": stage(changed("producer", "version", to="2")),
    "capability": stage(changed("producer", "correction", to=None)),
    "prompt": stage(changed("producer", "prompt", to="Extract the citation!")),
    "output schema": stage(changed("producer", "output", "properties", "year", "type", to="string")),
    "model": stage(changed("producer", "model", to="n")),
    "sampling": stage(changed("producer", "temperature", to=0.6)),
    "repairs": stage(changed("producer", "repairs", to=0)),
    "validator's name": stage(changed("validators", 0, "name", to="date")),
    "validator's version": stage(changed("validators", 1, "version", to="2")),
    "validator's budget": stage(changed("validators", 1, "execution_retries", to=2)),
    "validators' order": stage(changed("validators", to=STAGE["validators"][::-1])),
    "one validator less": stage(changed("validators", to=STAGE["validators"][:1])),
    "retries": stage(changed("retries", to=3)),
    "blind retries": stage(changed("blind_retries", to=True)),
    "policy": stage(changed("policy", to=Policy(semantic_rejection="quarantine").describe())),
    "bound of a finding": stage(bounds=Bounds(finding=401)),
    "bound of findings": stage(bounds=Bounds(findings=9)),
    "bound in all": stage(bounds=Bounds(total=4_001)),
    "a stage before": stage(before=["a"]),
    "another stage before": stage(before=["b"]),
    "two stages before": stage(before=["a", "b"]),
    "two stages before, swapped": stage(before=["b", "a"]),
}


def test_every_covered_change_gives_another_fingerprint() -> None:
    assert len({stage(), *CHANGES.values()}) == 1 + len(CHANGES)


@pytest.mark.parametrize("version", ["DECISION_VERSION", "RENDERER_VERSION", "SINGLE_RESPONSE_V1"])
def test_versions_of_the_rules_are_in_every_fingerprint(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stage()
    monkeypatch.setattr(fingerprint, version, "another")
    assert stage() != before


def test_fingerprint_is_a_sha256_in_hexadecimal() -> None:
    assert len(stage()) == 64
    assert set(stage()) <= set("0123456789abcdef")
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_order_of_keys_and_kind_of_containers_make_no_difference() -> None:
    backwards = OrderedDict(reversed(STAGE.items()))
    assert stage(backwards) == stage(MappingProxyType(STAGE)) == stage()
    assert canonical({"b": (1, 2), "a": [3]}) == canonical({"a": (3,), "b": [1, 2]}) == b'{"a":[3],"b":[1,2]}'


def test_same_in_other_processes_with_other_hash_seeds() -> None:
    program = (
        "import json, sys; from remand_policy import Bounds, stage_fingerprint;"
        "d = json.loads(sys.argv[1]); d = {key: d[key] for key in set(d)};"
        "print(stage_fingerprint(d, bounds=Bounds(), before=['a']))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program, json.dumps(STAGE)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("0", "1", "77")
    }
    assert printed == {stage(before=["a"])}


@given(JSON)
def test_canonical_form_is_json_of_the_same_value(value: Any) -> None:
    assert json.loads(canonical(value)) == value


@given(JSON)
def test_canonical_form_survives_a_trip_through_json(value: Any) -> None:
    assert canonical(json.loads(json.dumps(value))) == canonical(value)


@given(st.dictionaries(st.text(), JSON, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_any_order_of_keys_gives_the_same_bytes(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical(dict(items)) == canonical(value)


class _Colour(Enum):
    RED = "red"


class _Level(IntEnum):
    HIGH = 3


def test_enumerations_count_as_their_values() -> None:
    assert canonical([_Colour.RED, _Level.HIGH, Disposition.QUARANTINE]) == b'["red",3,"quarantine"]'
    assert canonical({Disposition.QUARANTINE: 1}) == b'{"quarantine":1}'


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (0, False), (0, None), (1, 1.0), (1, "1"), ("", None), ([], {}), ([1], 1), ("é", "e\u0301")],
)
def test_values_that_differ_in_kind_differ_in_hash(one: object, other: object) -> None:
    assert digest(one) != digest(other)


def test_lone_surrogates_are_hashed_as_they_are() -> None:
    assert digest("\ud800") != digest("\udc00") != digest("?")


@pytest.mark.parametrize(
    "value",
    [
        lambda: None,
        object(),
        b"bytes",
        bytearray(b"bytes"),
        {1, 2},
        frozenset(),
        Decimal(1),
        date(2020, 1, 1),
        1j,
        int,
        iter([1]),
        {1: "a"},
        {None: "a"},
        Policy(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_described_is_refused(value: object) -> None:
    for nested in (value, [value], {"deep": [{"er": value}]}):
        with pytest.raises(TypeError, match="cannot be fingerprinted"):
            digest(nested)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_does_not_have_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="cannot be fingerprinted"):
        digest({"temperature": value})


def test_a_value_nested_too_deeply_or_in_itself_is_refused() -> None:
    itself: list[Any] = []
    itself.append(itself)
    deep: Any = None
    for _ in range(5_000):
        deep = [deep]
    for value in (itself, deep):
        with pytest.raises(ValueError, match="nested"):
            digest(value)


def test_refusals_never_quote_the_value() -> None:
    for value in ({"k": {("MARKER",): 1}}, {"MARKER": object()}, [b"MARKER"]):
        with pytest.raises(TypeError) as refused:
            digest(value)
        assert "MARKER" not in str(refused.value)


def test_first_stage_is_found_by_the_input_and_later_ones_by_the_value_before_too() -> None:
    one, other = digest({"text": "a"}), digest({"text": "b"})
    before, changed_before = digest({"year": 1}), digest({"year": 2})
    assert checkpoint_digest(one) == one
    digests = {
        checkpoint_digest(one),
        checkpoint_digest(other),
        checkpoint_digest(one, before),
        checkpoint_digest(other, before),
        checkpoint_digest(one, changed_before),
        checkpoint_digest(before, one),
    }
    assert len(digests) == 6

"""The three independent budgets and the worst case that they make exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class WorstCase:
    """The most that one item can cost: requests that the model answers or fails on, and calls of each validator.

    429s, recoveries after a lost worker and redeliveries are counted apart. A validator's name is
    `stage/validator`.
    """

    generations: int
    validator_calls: Mapping[str, int]


def check_budget(owner: str, field: str, value: object) -> int:
    """`value` if it is a whole number of at least 0; otherwise raises `ValueError` naming owner and field."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{owner}: {field} must be a whole number, not {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{owner}: {field} must not be negative, it is {value}")
    return value


def worst_case(stages: Sequence[tuple[str, int, int, Mapping[str, int]]]) -> WorstCase:
    """The worst case of stages given as (name, retries, repairs, execution retries by validator)."""
    generations = 0
    calls: dict[str, int] = {}
    for name, retries, repairs, validators in stages:
        generations += (1 + retries) * (1 + repairs)
        for validator, execution_retries in validators.items():
            calls[f"{name}/{validator}"] = (1 + retries) * (1 + execution_retries)
    return WorstCase(generations, MappingProxyType(calls))

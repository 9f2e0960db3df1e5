"""Which queue a step of an item goes to."""

from __future__ import annotations

from typing import Final

from remand.pipeline import Pipeline

from .state.rows import Row, Step

PRODUCE: Final = "remand.produce"
VALIDATE: Final = "remand.validate"
COORDINATE: Final = "remand.coordinate"
RECONCILE: Final = "remand.reconcile"
"""Takes what is to be done for registries: planning blocks, applying what was proposed."""
ALONE: Final = "remand.alone"
"""Takes the last recovery of an item that lost its worker again and again."""


def queue_of(row: Row, pipeline: Pipeline, step: Step, validator: int = 0) -> str:
    """The queue of a step; for `validate` that of the group that `validator` is in."""
    if step == "coordinate":
        return COORDINATE
    if row.alone:
        return ALONE
    if step == "produce":
        return PRODUCE
    return pipeline.stages[row.stage].validators[validator].queue or VALIDATE

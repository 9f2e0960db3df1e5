"""What is measured: one model call and two validators that accept."""

from __future__ import annotations

from pydantic import BaseModel

from remand import Accepted, Context, Pipeline, Stage, accept, validator
from remand.llm import ChatProducer


class Record(BaseModel):
    """What the scripted model says."""

    name: str
    year: int


@validator(version="1")
def has_name(record: Record, context: Context) -> Accepted:
    """The name must be there."""
    assert record.name
    return accept()


@validator(version="1")
def has_year(record: Record, context: Context) -> Accepted:
    """The year must be there."""
    assert record.year
    return accept()


pipeline = Pipeline(
    "bench",
    version="1",
    stages=[Stage("extract", ChatProducer(Record, "Read: {text}"), [has_name, has_year])],
)

"""A pipeline of one chat stage; a prompt holds the input's `do`, by which the scripted model knows what to reply."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from remand import Context, Pipeline, Policy, Stage, accept, validator
from remand.llm import ChatProducer


class Answer(BaseModel):
    """What the model is asked for."""

    n: int
    note: str = ""
    more: Any = None


@validator(version="1")
def fine(value: Answer, context: Context) -> Any:
    """Accepts."""
    return accept()


pipeline = Pipeline(
    "hostile",
    version="1",
    stages=[
        Stage(
            "s",
            ChatProducer(Answer, "[[{do}]]", model="scripted", repairs=1, timeout=30.0),
            [fine],
            retries=0,
            backoff=0.05,
        )
    ],
    policy=Policy(structural_failure="warn_continue", operational_failure="warn_continue"),
)

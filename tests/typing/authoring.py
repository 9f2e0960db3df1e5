# pyright: reportUnnecessaryTypeIgnoreComment=true
"""The public interface as an author uses it, for pyright alone: `make check` reads this file, nothing runs it.

Each `assert_type` fails type checking where the interface gives another type than it promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, assert_type

from pydantic import BaseModel

from remand import (
    SINGLE_RESPONSE_V1,
    Accepted,
    Bounds,
    Context,
    Correction,
    Disposition,
    Feed,
    Finding,
    Forbidden,
    Groups,
    ModelResponse,
    OperationalFailure,
    Outcome,
    Pipeline,
    Policy,
    Produced,
    Producer,
    Proposal,
    Reason,
    Registry,
    Rejected,
    RetryRequest,
    Stage,
    Status,
    StructuralFailure,
    Throttled,
    Usage,
    Validation,
    Validator,
    Verdict,
    VerdictRecord,
    WorstCase,
    accept,
    arun_local,
    load,
    load_registry,
    load_target,
    normal,
    producer,
    reject,
    run_local,
    validator,
)
from remand.llm import ChatJudge, ChatProducer, ChatProposer
from remand.testing import Reply, ScriptedModel, context


class Citation(BaseModel):
    title: str
    year: int | None


@validator(version="1", timeout=5.0, execution_retries=1)
def year_is_printed(citation: Citation, context: Context) -> Accepted | Rejected:
    if citation.year and str(citation.year) not in context.input["text"]:
        return reject("The year is not printed.", path="year", code="year")
    return accept()


@validator("several", version="1", description="Several things.", queue="slow")
async def several(citation: Citation, context: Context) -> Accepted | Rejected:
    return reject([Finding("one", path="title"), Finding("two")])


@producer(version="1", output=Citation, correction=SINGLE_RESPONSE_V1, repairs=1, timeout=30.0)
def extract(context: Context, correction: Correction | None) -> Produced | RetryRequest:
    if correction is not None:
        assert_type(correction.guidance, str)
    if context.attempt > 1:
        raise Throttled(retry_after=3.0)
    if context.validation == "incomplete":
        raise StructuralFailure("no_table", generations=1, usage=Usage(1, 2))
    response = ModelResponse("{}", model="m", usage=Usage(10, 5), finish_reason="stop")
    if context.item:
        return RetryRequest("unsafe", "for people", None, guidance="again", response=response, rank=1)
    return Produced(Citation(title="t", year=None), response, generations=1)


@producer("later", version="1")
async def extract_later(context: Context, correction: Correction | None) -> Produced:
    raise OperationalFailure("down")


class Own(Producer[Citation]):
    def __call__(self, context: Context, correction: Correction | None) -> Produced:
        return Produced(Citation(title="t", year=1))

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "prompt": "p"}


assert_type(year_is_printed, Validator)
assert_type(year_is_printed.name, str)

chat = ChatProducer(output=Citation, prompt="{text}", model="m", base_url="http://127.0.0.1/v1", repairs=1)
judge = ChatJudge("faithful", version="1", rubric="Is it faithful?")


class Work(BaseModel):
    title: str
    year: int | None


def title(work: Work) -> str:
    return work.title


def different_years(one: Work, other: Work) -> bool:
    return normal(one.title) != normal(other.title) and one.year != other.year


def at_most_three(works: Sequence[Work]) -> bool:
    return len(works) <= 3


def with_year(works: Sequence[Work]) -> Work:
    return next((work for work in works if work.year), works[0])


def length(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text))] for text in texts]


@validator(version="1")
def few(proposal: Proposal, context: Context) -> Accepted | Rejected:
    return accept() if len(proposal.groups) < 9 and not proposal.refused else reject("Too many.")


works = Registry(
    "works",
    Work,
    version="1",
    key=title,
    text=title,
    exact=[title],
    cannot_link=[different_years],
    compatible=at_most_three,
    merge=with_year,
    proposer=ChatProposer(description="The same edition.", model="m", temperature=0.0),
    validators=[few],
    retries=1,
    block_size=24,
    accept_incomplete=False,
    policy={"semantic_rejection": "quarantine"},
    neighbours=10,
    max_calls=500,
    embed=length,
)


def to_work(value: Citation, context: Context) -> Work | None:
    return Work(title=value.title, year=value.year) if value.title else None


assert_type(works, Registry[Work])
assert_type(works.parse(b"{}"), Work)
assert_type(works.entry_id(Work(title="t", year=1)), str)
assert_type(works.exact_keys(Work(title="t", year=1)), tuple[str, ...])
assert_type(works.canonical([Work(title="t", year=1)]), Work)
assert_type(works.forbidden([[Work(title="t", year=1)]]), Forbidden | None)
assert_type(works.pipeline, Pipeline)
assert_type(works.fingerprint, str)
assert_type(load_registry("module:works"), Registry[Any])
assert_type(load_target("module:works"), Pipeline)
assert_type(Groups(groups=[["r1", "r2"]]).apart, list[str] | None)
feed = Feed(works, to_work, version="1")
assert_type(feed, Feed[Work])

pipeline = Pipeline(
    name="citations",
    version="1",
    stages=[
        Stage("extract", chat, validators=[year_is_printed, several], retries=2),
        Stage("own", Own("own", version="1"), [judge], deadline=timedelta(hours=1), blind_retries=True),
        Stage("function", extract, policy={"semantic_rejection": "quarantine"}, backoff=0),
        Stage("async", extract_later, policy={"operational_failure": Disposition.WARN_CONTINUE}),
    ],
    policy=Policy(semantic_rejection="quarantine", retain_quarantined=timedelta(days=7)),
    bounds=Bounds(finding=200),
    registries=[feed],
)
assert_type(pipeline.worst_case(), WorstCase)
assert_type(pipeline.worst_case().generations, int)
assert_type(pipeline.fingerprint, str)
assert_type(load("module:pipeline"), Pipeline)

outcomes = run_local(pipeline, [{"id": 1, "text": "t"}], key="id", concurrency=2)
assert_type(outcomes, list[Outcome])
assert_type(asyncio.run(arun_local(pipeline, iter([1, 2]))), list[Outcome])

for outcome in outcomes:
    assert_type(outcome.status, Status)
    assert_type(outcome.succeeded, bool)
    assert_type(outcome.reason, Reason | None)
    assert_type(outcome.disposition, Disposition | None)
    assert_type(outcome.usage.total_tokens, int)
    assert_type(outcome.validation, Validation)
    assert_type(outcome.diagnostics, tuple[str, ...])
    for record in outcome.verdicts:
        assert_type(record, VerdictRecord)
        assert_type(record.verdict, Verdict)
        assert_type(record.error, BaseException | None)

with ScriptedModel([{"title": "t"}, Reply("no", status=500)]) as model:
    assert_type(model.base_url, str)
assert_type(context({"text": "t"}, attempt=2), Context)

# What must not type-check. An ignore that is not needed is an error, so each line proves its refusal.
Stage("wrong", year_is_printed)  # pyright: ignore[reportArgumentType]
Stage("wrong", chat, [extract])  # pyright: ignore[reportArgumentType]
Pipeline("wrong", stages=[])  # pyright: ignore[reportCallIssue]
validator()  # pyright: ignore[reportCallIssue]
reject(5)  # pyright: ignore[reportArgumentType]
Registry("wrong", Work, version="1", key=different_years, text=title, proposer=chat)  # pyright: ignore[reportArgumentType]
Feed(works, title, version="1")  # pyright: ignore[reportArgumentType]
Outcome(Status.ACCEPTED)  # pyright: ignore[reportCallIssue]

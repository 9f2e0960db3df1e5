"""`init`: a small pipeline with its test, a sample and a README, which run as they are, without a model or a service.

It overwrites nothing: a file that is there already ends it before anything is written.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from .console import say
from .failures import UsageError

_PIPELINE: Final = '''"""Reads title and year out of a citation, and judges what it read."""

from __future__ import annotations

import re

from pydantic import BaseModel

from remand import (
    SINGLE_RESPONSE_V1,
    Context,
    Correction,
    ModelResponse,
    Pipeline,
    Policy,
    Produced,
    Stage,
    accept,
    producer,
    reject,
    validator,
)


class Citation(BaseModel):
    """What is wanted of one citation."""

    title: str
    year: int | None


# This stands where your model will, so that everything runs before you have one. With a model (see .env.example):
#
#     from remand.llm import ChatProducer
#
#     extract = ChatProducer(output=Citation, prompt="Read title and year out of this citation:\\n{text}")
@producer(version="1", output=Citation, correction=SINGLE_RESPONSE_V1)
def extract(context: Context, correction: Correction | None) -> Produced:
    """The text before the first full stop as title, the first number as year: which may be wrong."""
    text = context.input["text"]
    years = re.findall(r"\\d{4}", text)
    year = None if not years else int(years[-1] if correction else years[0])
    citation = Citation(title=text.split(".")[0], year=year)
    return Produced(citation, response=ModelResponse(citation.model_dump_json()))


@validator(version="1")
def title_is_printed(citation: Citation, context: Context):
    """The title stands in the citation, word for word."""
    if citation.title not in context.input["text"]:
        return reject("The title is not printed in the citation. Copy it word for word.", path="title")
    return accept()


@validator(version="1")
def year_is_no_page(citation: Citation, context: Context):
    """The year is no part of a range of pages."""
    if citation.year and re.search(rf"{citation.year}\\s*-|-\\s*{citation.year}", context.input["text"]):
        return reject("That number belongs to a range of pages. Use the year, or null.", path="year")
    return accept()


pipeline = Pipeline(
    name="citations",
    version="1",
    stages=[Stage("extract", extract, validators=[title_is_printed, year_is_no_page], retries=2)],
    policy=Policy(semantic_rejection="quarantine"),
)
'''

_TEST: Final = '''"""The pipeline, tried in this process: no service, no model."""

from __future__ import annotations

from citations.pipeline import Citation, pipeline, year_is_no_page
from remand import Rejected, run_local
from remand.testing import context


def test_a_clean_citation_is_accepted_at_once():
    [outcome] = run_local(pipeline, [{"text": "A relational model. CACM 13, 1970."}])
    assert outcome.succeeded
    assert (outcome.value.year, outcome.attempts) == (1970, 1)


def test_a_page_number_taken_for_the_year_is_sent_back_and_corrected():
    [outcome] = run_local(pipeline, [{"text": "Notes on data. Pages 1021-1034, 1979."}])
    assert outcome.succeeded
    assert (outcome.value.year, outcome.attempts, outcome.corrections) == (1979, 2, 1)


def test_the_validator_by_itself():
    verdict = year_is_no_page(Citation(title="x", year=1021), context({"text": "x. Pages 1021-1034, 1979."}))
    assert isinstance(verdict, Rejected)
'''

_SAMPLE: Final = """{"text": "A relational model of data for large shared data banks. CACM 13, 1970."}
{"text": "The entity-relationship model. Pages 1009-1036, 1976."}
{"text": "System R, an overview. 1976."}
{"text": "An untitled and undated note."}
"""

_ENV: Final = """# Copy this to `.env`. Everything may stay unset: services then run in this folder, in .remand.
# A model for ChatProducer and ChatJudge, on any OpenAI-compatible server:
#REMAND_MODEL=the-model
#REMAND_MODEL_BASE_URL=http://127.0.0.1:8080/v1
#REMAND_MODEL_API_KEY=

# Everything else that can be set: remand config
#REMAND_WORKERS=2
#REMAND_CONCURRENCY=16
"""

_README: Final = """# Citations

A pipeline that reads title and year out of citations, judges what it read, and sends back what is wrong.

Test it (needs pytest, no service):

    python -m pytest

Run it over the sample, on services that start and end with the command:

    remand run citations.pipeline:pipeline --input sample.jsonl --output checked.jsonl

The second citation is sent back once: the first number in it is a page. `remand show 1` tells its story,
`remand doctor citations.pipeline:pipeline` checks everything that a run needs.

The pipeline is in `citations/pipeline.py`, and says there where a model goes.
"""

_CONFTEST: Final = '''"""Marks this folder as the one that tests import from."""
'''

FILES: Final = {
    "README.md": _README,
    ".env.example": _ENV,
    "sample.jsonl": _SAMPLE,
    "conftest.py": _CONFTEST,
    "citations/__init__.py": "",
    "citations/pipeline.py": _PIPELINE,
    "tests/test_citations.py": _TEST,
}


def write(folder: Path) -> None:
    """Write all files. Raises `UsageError` where one is there already."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is a file; name a folder")
    there = sorted(name for name in FILES if (folder / name).exists())
    if there:
        raise UsageError(
            f"nothing was written, because {str(folder)!r} already has {', '.join(there)}; name another folder"
        )
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # "x" refuses a file that appeared meanwhile.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        say(f"wrote {path}")
    say("now:")
    if folder != Path("."):
        say(f"  cd {shlex.quote(str(folder))}")
    say("  remand run citations.pipeline:pipeline --input sample.jsonl --output checked.jsonl")

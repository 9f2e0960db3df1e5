"""The registry of works: which of the accepted citations cite the same work.

Most meet without a model, by author and title as they are compared: without case, accents of the typesetter and
punctuation. The model is asked about what only looks alike, and the rules have the last word: works of different
authors, or of different years, stay apart whatever it says.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from remand import Context, Registry, normal
from remand.llm import ChatProposer


class Work(BaseModel):
    """One citation of a work. `id` is the citation's."""

    id: str
    author: str
    title: str
    year: int | None


def citation_id(work: Work) -> str:
    """The id of the citation."""
    return work.id


def as_compared(work: Work) -> str:
    """Author, title and year in one line."""
    return f"{work.author}: {work.title} ({work.year or 'no year'})"


def author_and_title(work: Work) -> str:
    """Two citations with the same author and title cite the same work."""
    return f"{work.author} {work.title}"


def different_authors(one: Work, other: Work) -> bool:
    """The works are by different authors."""
    return normal(one.author) != normal(other.author)


def different_years(one: Work, other: Work) -> bool:
    """The works appeared in different years."""
    return one.year is not None and other.year is not None and one.year != other.year


def with_a_year(works: Sequence[Work]) -> Work:
    """The first record, with the year of the first that has one."""
    year = next((work.year for work in works if work.year is not None), None)
    return works[0].model_copy(update={"year": year})


def to_work(citation: BaseModel, context: Context) -> Work:
    """An accepted citation as an entry."""
    return Work(id=context.input["id"], **citation.model_dump(include={"author", "title", "year"}))


works: Registry[Work] = Registry(
    "works",
    Work,
    version="1",
    key=citation_id,
    text=as_compared,
    exact=[author_and_title],
    cannot_link=[different_authors, different_years],
    merge=with_a_year,
    proposer=ChatProposer(
        description="Two records are the same if they cite one work: the same text by the same author.",
        timeout=120.0,
    ),
    block_size=8,
    max_calls=8,
)

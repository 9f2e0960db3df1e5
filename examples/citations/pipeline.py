"""Citations as records: a model reads each citation, and validators compare what it says with what is printed.

Each validator asks one question that the citation itself can answer. None knows the right answers and none looks
anything up; what they cannot see they let through, and `score.py` counts it.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from pydantic import BaseModel, Field

from remand import Accepted, Context, Feed, Pipeline, Policy, Rejected, Stage, accept, reject, validator
from remand.llm import ChatProducer

from .printed import Span, find, names_start, plain, quoted, years
from .prompt import ALL_EXAMPLES, fresh_messages, messages
from .works import to_work, works

_SEVERAL: Final = re.compile(r"[,;&:\"]|\band\b|\bet al\b", re.IGNORECASE)
_NAME_ENDS: Final = re.compile(r"[,;:.(&{}=]|\band\b|\bet al\b", re.IGNORECASE)
_INITIALS: Final = re.compile(r"(?<![\w'])\w(?:\.|(?![\w']))")
_RUNS_ON: Final = re.compile(r"[a-z]{2}\. [A-Z]|\b(?:vol|no|pp)\. ?\d")
_PARTICLE: Final = re.compile(r"(?:^|\W)(?:van|von|der|den|de|del|di|da|la|le|ter|bin)$", re.IGNORECASE)


class Citation(BaseModel):
    """What one citation says."""

    author: str = Field(description="Family name of the first author, alone")
    title: str = Field(description="The whole title of the cited work, word for word")
    year: int | None = Field(description="Year of the cited edition; null if none is printed")


def _text(context: Context) -> str:
    return plain(context.input["text"])


def _title(citation: Citation) -> str:
    return plain(citation.title).strip(' .,;"')


def _title_span(citation: Citation, text: str) -> Span | None:
    author = find(citation.author, text)
    return find(_title(citation), text, author.end if author else 0)


@validator(version="1")
def author_is_printed(citation: Citation, context: Context) -> Accepted | Rejected:
    """The author must be printed in the citation."""
    if find(citation.author, _text(context)):
        return accept()
    return reject(
        "This author is not printed in the citation. Copy the first author's family name from it.",
        path="author",
    )


@validator(version="1")
def author_is_one_family_name(citation: Citation, context: Context) -> Accepted | Rejected:
    """The author must be one family name: no given names, no initials, no second author."""
    name, text = plain(citation.author), _text(context)
    if _SEVERAL.search(name):
        return reject(
            "The author field holds more than one name. Keep the family name of the first author only.",
            path="author",
        )
    if _INITIALS.search(name):
        return reject("The author field holds initials. Keep the family name only.", path="author")
    span = find(name, text)
    if span is None:
        return accept()
    title = find(_title(citation), text, span.end)
    if _is_given_name(text, span, title) or (" " in name and _is_full_name(text, span, name)):
        return reject("The author field holds a given name. Write the family name only.", path="author")
    if _PARTICLE.search(text[: span.start].rstrip()):
        return reject(
            "The family name begins earlier: it includes the small word printed before it.", path="author"
        )
    return accept()


def _is_given_name(text: str, name: Span, title: Span | None) -> bool:
    """Whether more of the same person's name follows: "Ada" of "Ada Lovelace", "Gordon" of "Gordon E. Moore"."""
    after = text[name.end : title.start if title else None]
    words = _NAME_ENDS.split(after, maxsplit=1)[0].split()
    if any(not re.fullmatch(r"[A-Z]{1,3}", word) for word in words):
        return True
    return bool(re.match(r" (?:[A-Z]\. ?)+[A-Z]\w+", after))


def _is_full_name(text: str, name: Span, words: str) -> bool:
    """Whether several words are given and family name: they are, unless a comma and given names follow."""
    if _PARTICLE.search(words.split()[0]):
        return False
    return not re.match(r", [A-Z][\w-]*(?:\.| [A-Z]\.)", text[name.end :])


@validator(version="1")
def author_comes_first(citation: Citation, context: Context) -> Accepted | Rejected:
    """The author must be the first one that the citation names."""
    text = _text(context)
    span = find(citation.author, text, names_start(text))
    if span is None:
        return accept()
    if _SEVERAL.search(text[names_start(text) : span.start]):
        return reject(
            "Another author is named before this one. Write the first author of the citation.", path="author"
        )
    return accept()


@validator(version="1")
def title_is_printed(citation: Citation, context: Context) -> Accepted | Rejected:
    """The title must be printed in the citation, word for word."""
    if find(_title(citation), _text(context)):
        return accept()
    return reject(
        "This title is not printed in the citation. Copy it word for word, with its subtitle.", path="title"
    )


@validator(version="1")
def title_is_only_the_title(citation: Citation, context: Context) -> Accepted | Rejected:
    """The title must be the title alone: no authors, no journal, no pages, not the whole citation."""
    text, title = _text(context), _title(citation)
    if len(title) < 4:
        return reject("The title is too short to be one. Write the whole title.", path="title")
    if len(title) > 0.9 * len(text):
        return reject("The title field holds the whole citation. Write the title only.", path="title")
    if find(title, text) and _title_span(citation, text) is None:
        return reject(
            "The title field holds an author. Write the title only; it comes after the names.", path="title"
        )
    if _RUNS_ON.search(title):
        return reject("The title field goes on after the title. Stop where the title ends.", path="title")
    return accept()


@validator(version="1")
def title_is_whole(citation: Citation, context: Context) -> Accepted | Rejected:
    """The title must be whole: from where it begins in the citation to where it ends, its subtitle included."""
    text = _text(context)
    span = _title_span(citation, text)
    if span is None:
        return accept()
    begins, ends = _is_bounded(text, span)
    if not begins:
        return reject("The title begins earlier in the citation. Copy it from its first word.", path="title")
    if not ends:
        return reject(
            "The title goes on in the citation. Copy it to its last word, with its subtitle.", path="title"
        )
    return accept()


def _is_bounded(text: str, title: Span) -> tuple[bool, bool]:
    """Whether the title begins where `title` does, and ends where it does."""
    quotes = quoted(text)
    if quotes is not None:
        return title.start == quotes.start, text[title.end : max(quotes.end, title.end)] in ("", ".", ",")
    before, after = text[: title.start].rstrip(), text[title.end :]
    if before.endswith("{"):
        return True, after.startswith("}")
    if before.endswith((".", ")")):
        # What opens after a full stop closes with one: a comma or a colon then stands within the title.
        return True, bool(re.match(r"[.?!](?!\w)|$", after) or text[title.end - 1] in "?!")
    return before.endswith((",", "'")), bool(re.match(r"[.,'?!]|$| \(.*[:,\d]", after))


@validator(version="1")
def nothing_is_from_the_examples(citation: Citation, context: Context) -> Accepted | Rejected:
    """Nothing may be copied from the prompt's examples."""
    text = _text(context)
    for example in ALL_EXAMPLES:
        for path in ("author", "title"):
            copied = str(example.record[path])
            if find(copied, plain(getattr(citation, path))) and not find(copied, text):
                return reject(
                    f"The {path} is copied from an example. Read it from the last citation.", path=path
                )
    return accept()


@validator(version="1")
def year_is_printed(citation: Citation, context: Context) -> Accepted | Rejected:
    """The year must be printed in the citation as the year of the cited edition; null only where none is printed."""
    printed = years(_text(context), _title(citation))
    if citation.year is None:
        if printed:
            return reject("A year is printed in the citation. Write it.", path="year")
        return accept()
    found = [year for year in printed if year.value == citation.year]
    if not found:
        hint = (
            "Write the year of publication that is printed." if printed else "No year is printed: write null."
        )
        return reject(f"This is not a year that the citation prints as its date. {hint}", path="year")
    if all(year.of_another_event for year in found) and not all(year.of_another_event for year in printed):
        return reject(
            "This is the year of a first edition, a preprint or a receipt. Write the year of the cited edition.",
            path="year",
        )
    return accept()


def _stage(producer: ChatProducer[Citation], *, retries: int, blind_retries: bool) -> Stage:
    return Stage(
        "extract",
        producer,
        validators=[
            author_is_printed,
            author_is_one_family_name,
            author_comes_first,
            title_is_printed,
            title_is_only_the_title,
            title_is_whole,
            nothing_is_from_the_examples,
            year_is_printed,
        ],
        retries=retries,
        blind_retries=blind_retries,
    )


# One bad citation fails no run. What is set aside stays readable for a week, encrypted, for the person who looks.
_SET_ASIDE: Final = Policy(
    semantic_rejection="quarantine",
    structural_failure="quarantine",
    operational_failure="quarantine",
    retain_quarantined=timedelta(days=7),
)

# Every accepted citation goes into the registry of works.
_WORKS: Final = Feed(works, to_work, version="1")

# For the small local model. It does not understand corrections, so it is asked afresh, with other examples.
pipeline = Pipeline(
    name="citations",
    version="1",
    stages=[
        _stage(
            ChatProducer(
                Citation,
                fresh_messages,
                name="citation-reader",
                version="1",
                temperature=0.0,
                max_tokens=200,
                timeout=120.0,
                correction=None,
            ),
            retries=3,
            blind_retries=True,
        )
    ],
    policy=_SET_ASIDE,
    registries=[_WORKS],
)

# For a model that follows instructions: what the validators say goes back to it, word for word. Sampling is left to
# the server, because not every model lets itself be told.
corrected = Pipeline(
    name="citations-corrected",
    version="1",
    stages=[
        _stage(
            ChatProducer(Citation, messages, name="citation-reader", version="1", timeout=120.0),
            retries=2,
            blind_retries=False,
        )
    ],
    policy=_SET_ASIDE,
    registries=[_WORKS],
)

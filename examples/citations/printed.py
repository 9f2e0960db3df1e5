"""Reads what is printed in a citation: words whatever their dress, years that are years, names that come first.

Pure functions over text. They know citation styles only as far as punctuation tells, and they look nothing up.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

FIRST_YEAR: Final = 1450
LAST_YEAR: Final = 2035
"""Four digits outside these are no year of a printed work: they are pages, article numbers, versions."""

_DASHES: Final = str.maketrans(dict.fromkeys("‐‑‒–—―−", "-"))
_QUOTES: Final = str.maketrans({**dict.fromkeys("‘’‚‛`´", "'"), **dict.fromkeys("“”„‟«»", '"')})
_TEX_ACCENT: Final = re.compile(r"""\{?\\["'`^~=.]\s*\{?(\w)\}?\}?""")
_YEAR: Final = re.compile(r"(?<![\w.:/-])\d{4}(?![\w/-]|\.\d)")
_NO_YEAR_BEFORE: Final = re.compile(r"(?:\brfc|\bp|\bpp|\bpages|\bno|\bvol)\.?\s*$")
_OTHER_EVENT: Final = re.compile(
    r"(?:(?:first|originally|work) published|received|preprint posted)\W+(?:\w+ ){0,3}$"
)
_QUOTED: Final = re.compile(r'"([^"]{4,}?)[,.]?"')
_LEAD: Final = re.compile(r"@\w+\{[^,]*,\s*author\s*=\s*\{|see (?:also |generally )?|\[?\d{1,3}[\].]\s+")


@dataclass(frozen=True, slots=True)
class Span:
    """Where something stands in a plain text: from `start` up to `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Year:
    """A year that is printed, and whether it is another event's: a first edition, a receipt, a preprint."""

    value: int
    of_another_event: bool


def plain(text: str) -> str:
    """`text` with one kind of dash, quote and space, and without accents, TeX's included."""
    text = _TEX_ACCENT.sub(r"\1", text).translate(_DASHES).translate(_QUOTES)
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return " ".join(re.sub(r"-{2,}", "-", text).split())


def find(words: str, text: str, start: int = 0) -> Span | None:
    """The first place from `start` on where `words` stand in the plain `text` as whole words, whatever their case."""
    wanted = plain(words)
    if not wanted:
        return None
    found = re.compile(rf"(?<!\w){re.escape(wanted)}(?!\w)", re.IGNORECASE).search(text, start)
    return None if found is None else Span(*found.span())


def names_start(text: str) -> int:
    """Where the names begin in the plain `text`: after a BibTeX head, a footnote's "See", a number in brackets."""
    lead = _LEAD.match(text.lower())
    return lead.end() if lead else 0


def years(text: str, title: str) -> list[Year]:
    """The years printed in the plain `text` outside its title. Page ranges and RFC numbers are none."""
    text, span = text.lower(), find(title, text)
    if span is not None:
        # As long as before, so that nothing left and right of it comes to stand together.
        text = text[: span.start] + "\0" * (span.end - span.start) + text[span.end :]
    found = []
    for match in _YEAR.finditer(text):
        value, before = int(match.group()), text[: match.start()]
        if FIRST_YEAR <= value <= LAST_YEAR and not _NO_YEAR_BEFORE.search(before):
            found.append(Year(value, bool(_OTHER_EVENT.search(before))))
    return found


def quoted(text: str) -> Span | None:
    """What stands between the first double quotes in the plain `text`, without the comma or full stop at its end."""
    found = _QUOTED.search(text)
    return None if found is None else Span(*found.span(1))

"""What the model is asked. The examples are invented: no such works exist, so nothing can be copied from them unseen.

A small model that is asked the same question again gives the same answer again. So `fresh_messages` asks another one
at each attempt: other examples, or the same in another order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from remand import Context

SYSTEM: Final = (
    "You read one citation and copy three fields out of it as JSON: "
    "author (the family name of the first author only), "
    "title (the whole title of the work, exactly as printed), "
    "year (the year of publication, or null if none is printed)."
)


@dataclass(frozen=True, slots=True)
class Example:
    """An invented citation and the record that it should give."""

    text: str
    record: dict[str, Any]


def _example(text: str, author: str, title: str, year: int | None) -> Example:
    return Example(text, {"author": author, "title": title, "year": year})


EXAMPLES: Final = (
    _example(
        "Ashford, M. T., & Pell, R. (1987). Slow rivers and the shape of valleys. "
        "Journal of Imaginary Geology, 12(4), 1511–1533.",
        "Ashford",
        "Slow rivers and the shape of valleys",
        1987,
    ),
    _example(
        "J. K. Brandt, L. Osei, and W. Tuck, “Counting sheep with one antenna,” "
        "Proc. Pasture Netw., vol. 3, no. 2, pp. 88–91, Apr. 2011.",
        "Brandt",
        "Counting sheep with one antenna",
        2011,
    ),
    _example(
        "Marisol Quennell. 1999. Lamps, kettles, and other small machines. "
        "Kitchen Comput. 7, 1 (Jan. 1999), 5–19.",
        "Quennell",
        "Lamps, kettles, and other small machines",
        1999,
    ),
    _example(
        "Dorset, Ellen. The Glass Orchard: A Memoir of Winter. Translated by P. Lund. Leeds: Harrow Press.",
        "Dorset",
        "The Glass Orchard: A Memoir of Winter",
        None,
    ),
    _example(
        "@book{tam2003, author = {Iris Tamworth and Leo Grey}, title = {Maps for Beginners}, "
        "publisher = {Quay}, year = {2003}}",
        "Tamworth",
        "Maps for Beginners",
        2003,
    ),
    _example(
        "P. Q. Lindqvist, “A short theory of queues,” J. Wait. Lines, vol. 5, pp. 1–9, 1992.",
        "Lindqvist",
        "A short theory of queues",
        1992,
    ),
    _example(
        "Karen Holbrook, The Salt Road (London: Finch & Son, 1974), p. 12.",
        "Holbrook",
        "The Salt Road",
        1974,
    ),
    _example(
        "Vesper, Paul. “Notes on Ink.” Paper Quarterly 8, no. 2 (1961): 14–30.",
        "Vesper",
        "Notes on Ink",
        1961,
    ),
    _example(
        "Nyberg AL, Costa P. Sleep and the colour of tea. Drowsy Med. 2007;31(2):201-9.",
        "Nyberg",
        "Sleep and the colour of tea",
        2007,
    ),
)

MORE_EXAMPLES: Final = (
    _example(
        "Castell, R. J., & Finch, U. (2015). Moss on stone: A field guide to quiet places. "
        "Journal of Small Plants, 3(1), 1601–1622.",
        "Castell",
        "Moss on stone: A field guide to quiet places",
        2015,
    ),
    _example(
        "Ottoline. The Fisher's Tale. Translated by Mark Hale. Bristol: Anchor Books.",
        "Ottoline",
        "The Fisher's Tale",
        None,
    ),
    _example(
        'Yarrow, T., Ed., "The Parcel Routing Protocol (PRP) Version 2", RFC 1777, '
        "DOI 10.17487/RFC1777, June 1990.",
        "Yarrow",
        "The Parcel Routing Protocol (PRP) Version 2",
        1990,
    ),
    _example(
        "Hannah Brook and Tom Sayer. 1985. The keeper of small bridges. "
        "J. Bridge Eng. 4, 2 (May 1985), 77–83.",
        "Brook",
        "The keeper of small bridges",
        1985,
    ),
)
ALL_EXAMPLES: Final = EXAMPLES + MORE_EXAMPLES
_TURNS: Final = (7, 3)
"""Which example comes first at the third attempt and at the fourth. Found by trying: the last ones weigh most."""


def messages(context: Context) -> list[dict[str, str]]:
    """The request for one citation: the same at every attempt, as corrections need it."""
    return _request(context.input["text"], EXAMPLES)


def fresh_messages(context: Context) -> list[dict[str, str]]:
    """The request for one citation, another at each attempt.

    First the ordinary one; then only the four examples that look most like the citation, without instructions; then
    the ordinary examples in other orders.
    """
    text = context.input["text"]
    if context.attempt == 1:
        return messages(context)
    if context.attempt == 2:
        alike = sorted(ALL_EXAMPLES, key=lambda example: likeness(example.text, text))
        return _request(text, alike[-4:], system=None)
    first = _TURNS[(context.attempt - 3) % len(_TURNS)]
    return _request(text, EXAMPLES[first:] + EXAMPLES[:first])


def likeness(one: str, other: str) -> float:
    """How much two citations look alike, from 0 to 1: their punctuation and case, not their words."""
    first, second = _pieces(one), _pieces(other)
    return len(first & second) / len(first | second)


def _pieces(text: str) -> set[str]:
    letters = re.sub(r"[^\W\d_]", lambda letter: "A" if letter.group().isupper() else "a", text)
    shape = re.sub("a+", "a", re.sub(r"\d", "9", letters))[:160]
    return {shape[start : start + 4] for start in range(max(len(shape) - 3, 1))}


def _request(text: str, examples: Sequence[Example], system: str | None = SYSTEM) -> list[dict[str, str]]:
    made = [] if system is None else [{"role": "system", "content": system}]
    for example in examples:
        made += [
            {"role": "user", "content": f"Citation: {example.text}"},
            {"role": "assistant", "content": json.dumps(example.record, ensure_ascii=False)},
        ]
    return [*made, {"role": "user", "content": f"Citation: {text}"}]

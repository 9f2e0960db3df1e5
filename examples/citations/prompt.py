"""What the model is asked. The examples are invented: no such works exist, so nothing can be copied from them unseen.

`messages` is the same for every attempt, as corrections need it. `fresh_messages` shows other examples at each attempt:
a small model that is asked the same question again gives the same answer again.
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


def messages(context: Context) -> list[dict[str, str]]:
    """The request for one citation, with all examples."""
    return _request(context.input["text"], EXAMPLES)


def fresh_messages(context: Context) -> list[dict[str, str]]:
    """The request for one citation: all examples, then the four that look most like it, then all from another one on."""
    text = context.input["text"]
    match context.attempt:
        case 1:
            return _request(text, EXAMPLES)
        case 2:
            return _request(text, sorted(EXAMPLES, key=lambda example: likeness(example.text, text))[-4:])
        case attempt:
            first = 2 * (attempt - 2) % len(EXAMPLES)
            return _request(text, EXAMPLES[first:] + EXAMPLES[:first])


def likeness(one: str, other: str) -> float:
    """How much two citations look alike, from 0 to 1: their punctuation and case, not their words."""
    first, second = _pieces(one), _pieces(other)
    return len(first & second) / len(first | second)


def _pieces(text: str) -> set[str]:
    letters = re.sub(r"[^\W\d_]", lambda letter: "A" if letter.group().isupper() else "a", text)
    shape = re.sub("a+", "a", re.sub(r"\d", "9", letters))[:160]
    return {shape[start : start + 4] for start in range(max(len(shape) - 3, 1))}


def _request(text: str, examples: Sequence[Example]) -> list[dict[str, str]]:
    made = [{"role": "system", "content": SYSTEM}]
    for example in examples:
        made += [
            {"role": "user", "content": f"Citation: {example.text}"},
            {"role": "assistant", "content": json.dumps(example.record, ensure_ascii=False)},
        ]
    return [*made, {"role": "user", "content": f"Citation: {text}"}]

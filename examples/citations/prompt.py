"""What the model is asked. The examples are invented: no such works exist, so nothing can be copied from them unseen."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from remand import Context

SYSTEM: Final = (
    "You read one citation and copy three fields out of it as JSON: author (the family name of the first author only), "
    "title (the whole title of the work, exactly as printed), year (the year of publication, or null if none is printed)."
)


@dataclass(frozen=True, slots=True)
class Example:
    """An invented citation and the record that it should give."""

    text: str
    record: dict[str, Any]


EXAMPLES: Final = (
    Example(
        "Ashford, M. T., & Pell, R. (1987). Slow rivers and the shape of valleys. Journal of Imaginary Geology, 12(4), 1511–1533.",
        {"author": "Ashford", "title": "Slow rivers and the shape of valleys", "year": 1987},
    ),
    Example(
        "J. K. Brandt, L. Osei, and W. Tuck, “Counting sheep with one antenna,” Proc. Pasture Netw., vol. 3, no. 2, pp. 88–91, Apr. 2011.",
        {"author": "Brandt", "title": "Counting sheep with one antenna", "year": 2011},
    ),
    Example(
        "Marisol Quennell. 1999. Lamps, kettles, and other small machines. Kitchen Comput. 7, 1 (Jan. 1999), 5–19.",
        {"author": "Quennell", "title": "Lamps, kettles, and other small machines", "year": 1999},
    ),
    Example(
        "Dorset, Ellen. The Glass Orchard: A Memoir of Winter. Translated by P. Lund. Leeds: Harrow Press.",
        {"author": "Dorset", "title": "The Glass Orchard: A Memoir of Winter", "year": None},
    ),
    Example(
        "@book{tam2003, author = {Iris Tamworth and Leo Grey}, title = {Maps for Beginners}, publisher = {Quay}, year = {2003}}",
        {"author": "Tamworth", "title": "Maps for Beginners", "year": 2003},
    ),
    Example(
        "P. Q. Lindqvist, “A short theory of queues,” J. Wait. Lines, vol. 5, pp. 1–9, 1992.",
        {"author": "Lindqvist", "title": "A short theory of queues", "year": 1992},
    ),
    Example(
        "Karen Holbrook, The Salt Road (London: Finch & Son, 1974), p. 12.",
        {"author": "Holbrook", "title": "The Salt Road", "year": 1974},
    ),
    Example(
        "Vesper, Paul. “Notes on Ink.” Paper Quarterly 8, no. 2 (1961): 14–30.",
        {"author": "Vesper", "title": "Notes on Ink", "year": 1961},
    ),
    Example(
        "Nyberg AL, Costa P. Sleep and the colour of tea. Drowsy Med. 2007;31(2):201-9.",
        {"author": "Nyberg", "title": "Sleep and the colour of tea", "year": 2007},
    ),
)


def messages(context: Context) -> list[dict[str, str]]:
    """The request for one citation: instructions, then the examples as turns of a conversation, then the citation."""
    made = [{"role": "system", "content": SYSTEM}]
    for example in EXAMPLES:
        made += [
            {"role": "user", "content": f"Citation: {example.text}"},
            {"role": "assistant", "content": json.dumps(example.record, ensure_ascii=False)},
        ]
    return [*made, {"role": "user", "content": f"Citation: {context.input['text']}"}]

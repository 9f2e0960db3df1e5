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


EXAMPLES: Final = ()


def messages(context: Context) -> list[dict[str, str]]:
    """The request for one citation: instructions, then the examples as turns of a conversation, then the citation."""
    made = [{"role": "system", "content": SYSTEM}]
    for example in EXAMPLES:
        made += [
            {"role": "user", "content": f"Citation: {example.text}"},
            {"role": "assistant", "content": json.dumps(example.record, ensure_ascii=False)},
        ]
    return [*made, {"role": "user", "content": f"Citation: {context.input['text']}"}]

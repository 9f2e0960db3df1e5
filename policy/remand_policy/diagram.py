"""The lifecycle page of the documentation, drawn from the decision table.

`python -m remand_policy.diagram` prints the page; a test compares it with the one in the repository, so the page
cannot say anything that the table does not. Rendering is pure: it reads `TABLE` and gives text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from .decision import TABLE, Row, Situation

COMMAND: Final = "python -m remand_policy.diagram > docs/reference/lifecycle.md"

_FROM_JUDGING: Final = frozenset(
    {Situation.ACCEPTED, Situation.REJECTED, Situation.UNDETERMINED, Situation.GONE}
)
"""What comes to light once there is a candidate. Everything else ends an execution of the producer."""


def rows() -> Iterator[tuple[Situation, Row]]:
    """Every row of the decision table with its situation, in order."""
    for situation, rules in TABLE.items():
        for row in rules:
            yield situation, row


def mermaid() -> str:
    """The table as a Mermaid state diagram: one state for each situation, one arrow for each row."""
    ends: dict[str, str] = {}
    arrows = ["    [*] --> producing", "    producing --> judging : candidate"]
    for situation in TABLE:
        origin = "judging" if situation in _FROM_JUDGING else "producing"
        arrows.append(f"    {origin} --> {_state(situation)}")
    for situation, row in rows():
        target = _target(row)
        if target not in ("producing", "judging"):
            ends[target] = row.then
        arrows.append(f"    {_state(situation)} --> {target} : {_label(row)}")
    return "\n".join(
        [
            "stateDiagram-v2",
            "    direction LR",
            '    state "the producer makes a candidate" as producing',
            '    state "the validators judge" as judging',
            *(f'    state "{situation.value}" as {_state(situation)}' for situation in TABLE),
            *(f'    state "{words}" as {end}' for end, words in ends.items()),
            *arrows,
            *(f"    {end} --> [*]" for end in ends),
        ]
    )


def _state(situation: Situation) -> str:
    return f"on_{situation.name.lower()}"


def _target(row: Row) -> str:
    """Where a row leads. An ending is named by the words after its kind, as in `close: cancelled`."""
    kind, _, end = row.then.partition(": ")
    if end:
        return f"{kind}_{end}"
    return "judging" if row.then.startswith("judge") else "producing"


def _label(row: Row) -> str:
    """What stands on a row's arrow: its condition, and what happens unless the target already says so."""
    return row.when if ": " in row.then else f"{row.when} / {row.then}"


def markdown_table() -> str:
    """The table as Markdown: situation, when, then. The first row that applies to a situation decides."""
    lines = ["| situation | when | then |", "|---|---|---|"]
    lines += [f"| {situation.value} | {row.when} | {row.then} |" for situation, row in rows()]
    return "\n".join(lines)


_PAGE: Final = """\
# The lifecycle of an item

<!-- Drawn from the decision table. Do not edit; renew it with
     {command} -->

An item goes through the stages of its pipeline one after the other. In each stage the producer makes a candidate,
every validator of the stage judges it, and then one decision is taken: let it advance, try again, judge again, or
close the item. That decision is one pure function, `remand_policy.decide`; this page is drawn from its table.

What an attempt amounts to is called its *situation*. A situation has one or more rules; the first whose condition
holds decides. `Rules` holds the budgets and limits of a stage, `Policy` what is done about each reason to close.

## The table

{table}

How to read it:

- *Retries* are the stage's `retries`. All kinds of new attempts share them. None are left while a fallback is judged.
- *Execution retries* belong to each validator. *Judge again* asks exactly the validators that could not judge and
  have one left, about the same response; the producer is not called.
- *Same attempt again* spends no retry. Recoveries, reopens and throttles have counters and caps of their own.
- *Corrected* means that the next request carries the latest response and what is wrong with it: the findings of
  validators that rejected, or the producer's own guidance. *Fresh* means the ordinary request. *After backoff*, a
  correction that was pending stays pending.
- *Close* names the reason. What it does to the item and its run is the policy's disposition for that reason;
  `contract_failure` always fails the run.

## Two rules above the table

**The deadline.** Once an item is past its stage's deadline, nothing is produced for it any more. Where the table
asks for more work, the kept fallback is judged instead; without one the item closes as `operational_failure`, code
`deadline`. A fallback that is already being judged is judged to its end. A decision that ends the item stands.

**The end of the run.** When the run is failing or being cancelled, an item that would need more work is
`cancelled`. A value that is final stays, and so does a closing that was reached.

## The picture

```mermaid
{diagram}
```
"""


def page() -> str:
    """The whole of `docs/reference/lifecycle.md`."""
    return _PAGE.format(command=COMMAND, table=markdown_table(), diagram=mermaid())


if __name__ == "__main__":
    sys.stdout.write(page())

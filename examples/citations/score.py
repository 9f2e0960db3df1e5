"""Compares a run's outputs with the answers that a person wrote down: how right is what was accepted?

The validators never see `gold.jsonl`; this script alone reads it. For items that were set aside it can say which
validators rejected the last candidate, not whether they were right to: candidates that fail are not kept.

    python -m examples.citations.score outputs.jsonl
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

HERE: Final = Path(__file__).parent
GOLD: Final = HERE / "gold.jsonl"
FIELDS: Final = ("author", "title", "year")


@dataclass(frozen=True, slots=True)
class Score:
    """Counts of items; `fields_right` of the accepted ones, field by field, `all_right` where every field is."""

    items: int
    accepted: int
    accepted_at_once: int
    accepted_later: int
    all_right: int
    fields_right: dict[str, int]
    wrong: tuple[str, ...]
    """The keys of accepted items with a wrong field: what the validators could not see."""
    set_aside: dict[str, int]
    """Items that were not accepted, by the reason why they closed."""
    rejected_by: dict[str, int]
    """Of those, how many each validator rejected at the end; one item may count for several."""
    generations: int


def score(outputs: Iterable[Mapping[str, Any]], gold: Iterable[Mapping[str, Any]]) -> Score:
    """Score outputs, keyed by the inputs' ids, against gold. Raises `ValueError` for a key that gold does not have."""
    answers = {answer["id"]: answer for answer in gold}
    right, set_aside, rejected_by = Counter[str](), Counter[str](), Counter[str]()
    items = at_once = later = all_right = generations = 0
    wrong: list[str] = []
    for output in outputs:
        items += 1
        generations += output["generations"]
        if output["status"] != "accepted":
            set_aside[output["reason"] or output["status"]] += 1
            rejected_by.update(v["validator"] for v in output["verdicts"] if v["verdict"] == "rejected")
            continue
        answer = answers.get(output["key"])
        if answer is None:
            raise ValueError(
                f"gold has no item {output['key']!r}; run with --key id on the example's own inputs"
            )
        later, at_once = (later + 1, at_once) if output["attempts"] > 1 else (later, at_once + 1)
        correct = [field for field in FIELDS if same(output["value"][field], answer[field])]
        right.update(correct)
        if len(correct) == len(FIELDS):
            all_right += 1
        else:
            wrong.append(output["key"])
    return Score(
        items=items,
        accepted=at_once + later,
        accepted_at_once=at_once,
        accepted_later=later,
        all_right=all_right,
        fields_right={field: right[field] for field in FIELDS},
        wrong=tuple(wrong),
        set_aside=dict(set_aside.most_common()),
        rejected_by=dict(rejected_by.most_common()),
        generations=generations,
    )


def same(one: object, other: object) -> bool:
    """Whether two values are the same but for case, accents and punctuation."""
    return _words(one) == _words(other)


def _words(value: object) -> list[str]:
    text = unicodedata.normalize("NFKD", str(value))
    text = "".join(c for c in text if not unicodedata.combining(c)).casefold()
    return re.findall(r"\w+", text.replace("'", "").replace("’", ""))


@dataclass(frozen=True, slots=True)
class WorksScore:
    """How the registry's clusters compare with the works that gold names. Pairs are of citations of one work."""

    citations: int
    works: int
    with_duplicates: int
    duplicates: int
    pairs_found: int
    pairs_right: int
    pairs_in_gold: int
    """Among the citations that were accepted."""


def score_works(clusters: Iterable[Mapping[str, Any]], gold: Iterable[Mapping[str, Any]]) -> WorksScore:
    """Score exported clusters against gold. Raises `ValueError` for a citation that gold does not have."""
    work_of = {answer["id"]: answer["work"] for answer in gold}
    members = [list(cluster["members"]) for cluster in clusters]
    unknown = [name for group in members for name in group if name not in work_of]
    if unknown:
        raise ValueError(f"gold has no item {unknown[0]!r}")
    right = Counter((place, work_of[name]) for place, group in enumerate(members) for name in group)
    return WorksScore(
        citations=sum(map(len, members)),
        works=len(members),
        with_duplicates=sum(len(group) > 1 for group in members),
        duplicates=sum(len(group) - 1 for group in members),
        pairs_found=_pairs(map(len, members)),
        pairs_right=_pairs(right.values()),
        pairs_in_gold=_pairs(Counter(work_of[name] for group in members for name in group).values()),
    )


def _pairs(sizes: Iterable[int]) -> int:
    return sum(size * (size - 1) // 2 for size in sizes)


def works_table(scored: WorksScore) -> Table:
    """The works for people."""
    made = Table(title="Works", show_header=False, title_justify="left")
    made.add_column()
    made.add_column(justify="right")
    made.add_row("citations accepted", str(scored.citations))
    made.add_row("works found", str(scored.works))
    made.add_row("works cited more than once", str(scored.with_duplicates))
    made.add_row("duplicates", str(scored.duplicates))
    made.add_section()
    made.add_row("pairs found that are right", f"{scored.pairs_right} of {scored.pairs_found}")
    made.add_row("pairs to be found that were", f"{scored.pairs_right} of {scored.pairs_in_gold}")
    return made


def table(scored: Score) -> Table:
    """The score for people."""
    made = Table(title="Citations", show_header=False, title_justify="left")
    made.add_column()
    made.add_column(justify="right")
    made.add_row("citations", str(scored.items))
    made.add_row("accepted at the first attempt", str(scored.accepted_at_once))
    made.add_row("accepted at a later attempt", str(scored.accepted_later))
    for reason, count in scored.set_aside.items():
        made.add_row(f"set aside: {reason.replace('_', ' ')}", str(count))
    made.add_row("model calls", str(scored.generations))
    made.add_section()
    for field, count in scored.fields_right.items():
        made.add_row(f"{field} right, of the accepted", f"{count} of {scored.accepted}")
    made.add_row("all three right, of the accepted", f"{scored.all_right} of {scored.accepted}")
    if scored.wrong:
        made.add_row("accepted though wrong", ", ".join(scored.wrong))
    if scored.rejected_by:
        made.add_section()
        for name, count in scored.rejected_by.items():
            made.add_row(f"set aside by {name}", str(count))
    return made


def read(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file. Raises `OSError`, or `ValueError` naming the line that is no JSON object."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: not a JSON object")
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.citations.score",
        description="Compare the outputs of a run over citations.jsonl with the right answers in gold.jsonl.",
    )
    parser.add_argument("outputs", type=Path, help="what `remand run --key id --output` wrote")
    parser.add_argument("--gold", type=Path, default=GOLD, help="the right answers (default: the example's)")
    parser.add_argument("--works", type=Path, help="what `remand registry export works --output` wrote")
    parser.add_argument("--json", action="store_true", help="JSON for programs")
    options = parser.parse_args(arguments)
    try:
        scored = score(read(options.outputs), read(options.gold))
        works = None if options.works is None else score_works(read(options.works), read(options.gold))
    except (OSError, ValueError, KeyError) as error:
        print(f"Cannot score: {error}", file=sys.stderr)
        return 2
    if options.json:
        found = asdict(scored) | ({} if works is None else {"works": asdict(works)})
        print(json.dumps(found, ensure_ascii=False))
    else:
        Console().print(table(scored))
        if works is not None:
            Console().print(works_table(works))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

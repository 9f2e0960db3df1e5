"""The example's registry of works: what meets without a model, what never does, and how it is scored."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from examples.citations.pipeline import Citation, pipeline
from examples.citations.score import GOLD, read, score_works
from examples.citations.works import Work, to_work, works
from remand import Context
from remand.context import COMPLETE

GOLD_ROWS = read(GOLD)


def _context(identity: str) -> Context:
    return Context(
        input={"id": identity, "text": ""},
        run_id="r",
        item=0,
        stage="extract",
        attempt=1,
        previous=None,
        validation=COMPLETE,
    )


def _work(row: Any, **changed: Any) -> Work:
    return Work(**{name: row[name] for name in ("id", "author", "title", "year")} | changed)


def test_an_accepted_citation_becomes_an_entry_under_its_own_id() -> None:
    (feed,) = pipeline.registries
    made = feed.entry(Citation(author="Codd", title="A relational model", year=1970), _context("c7"))
    assert made == Work(id="c7", author="Codd", title="A relational model", year=1970)
    assert (works.entry_id(made), to_work(Citation(author="a", title="b", year=None), _context("x")).id) == (
        "c7",
        "x",
    )


def test_right_records_of_one_work_meet_by_their_exact_keys_and_no_others() -> None:
    by_key: dict[str, set[str]] = defaultdict(set)
    for row in GOLD_ROWS:
        for key in works.exact_keys(_work(row)):
            by_key[key].add(row["id"])
    by_work: dict[str, set[str]] = defaultdict(set)
    for row in GOLD_ROWS:
        by_work[row["work"]].add(row["id"])
    assert sorted(map(sorted, by_key.values())) == sorted(map(sorted, by_work.values()))


@pytest.mark.parametrize(
    ("changed", "rule"), [({"author": "Dodd"}, "different_authors"), ({"year": 1971}, "different_years")]
)
def test_works_of_other_authors_or_years_are_never_joined(changed: dict[str, Any], rule: str) -> None:
    one = Work(id="a", author="Codd", title="A relational model", year=1970)
    found = works.forbidden([[one], [one.model_copy(update=changed)]])
    assert found is not None
    assert found.rule == rule
    assert works.forbidden([[one], [one.model_copy(update={"year": None})]]) is None


def test_a_work_takes_the_year_of_the_first_citation_that_has_one() -> None:
    one = Work(id="a", author="Codd", title="A relational model", year=None)
    assert works.canonical([one, one.model_copy(update={"id": "b", "year": 1970})]).year == 1970


def test_works_are_scored_by_pairs() -> None:
    by_work: dict[str, list[str]] = defaultdict(list)
    for row in GOLD_ROWS:
        by_work[row["work"]].append(row["id"])
    right = [{"members": members} for members in by_work.values()]
    scored = score_works(right, GOLD_ROWS)
    assert (scored.citations, scored.works) == (len(GOLD_ROWS), len(by_work))
    assert scored.pairs_found == scored.pairs_right == scored.pairs_in_gold > 0
    together = score_works([{"members": [row["id"] for row in GOLD_ROWS]}], GOLD_ROWS)
    assert together.pairs_right == scored.pairs_in_gold < together.pairs_found
    with pytest.raises(ValueError, match="no item 'nobody'"):
        score_works([{"members": ["nobody"]}], GOLD_ROWS)

"""The citations example: its validators against its own gold, and against records that are wrong in one way each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from examples.citations import run
from examples.citations.pipeline import Citation, pipeline
from examples.citations.printed import LAST_YEAR, Year, find, plain, years
from examples.citations.prompt import ALL_EXAMPLES, EXAMPLES, fresh_messages, messages
from examples.citations.score import GOLD, HERE, read, score
from remand import Accepted, Context, Rejected, Status

INPUTS = {row["id"]: row["text"] for row in read(HERE / "citations.jsonl")}
ANSWERS = {row["id"]: row for row in read(GOLD)}
VALIDATORS = {validator.name: validator for validator in pipeline.stages[0].validators}


def _context(text: str, attempt: int = 1) -> Context:
    return Context(input={"id": "x", "text": text}, run_id="r", item=0, stage="extract", attempt=attempt)


def _rejecting(record: dict[str, Any], text: str) -> set[str]:
    names = set()
    for name, validator in VALIDATORS.items():
        verdict = validator(Citation(**record), _context(text))
        assert isinstance(verdict, Accepted | Rejected), name
        if isinstance(verdict, Rejected):
            assert all(finding.text and finding.path for finding in verdict.findings)
            names.add(name)
    return names


def _record(key: str) -> dict[str, Any]:
    return {field: ANSWERS[key][field] for field in ("author", "title", "year")}


def _key_of(work: str) -> str:
    return next(str(key) for key, answer in ANSWERS.items() if answer["work"] == work)


# ------------------------------------------------------------------------------------------------ inputs and gold


def test_every_citation_has_one_answer_and_ids_are_unique() -> None:
    ids = [row["id"] for row in read(HERE / "citations.jsonl")]
    assert len(ids) == len(set(ids)) >= 60
    assert [row["id"] for row in read(GOLD)] == ids
    assert len(set(INPUTS.values())) == len(ids)


def test_gold_has_the_fields_that_scoring_and_deduplication_need() -> None:
    for answer in ANSWERS.values():
        assert set(answer) == {"id", "author", "title", "year", "work"}
        assert answer["year"] is None or isinstance(answer["year"], int)


def test_some_works_are_cited_more_than_once_with_the_same_author_and_year() -> None:
    cited = Counter(answer["work"] for answer in ANSWERS.values())
    assert sum(count > 1 for count in cited.values()) >= 10
    for work in cited:
        same = {
            (a["author"], a["year"], a["title"].casefold()) for a in ANSWERS.values() if a["work"] == work
        }
        assert len(same) == 1, work


@pytest.mark.parametrize("key", INPUTS)
def test_gold_passes_every_validator(key: str) -> None:
    assert _rejecting(_record(key), INPUTS[key]) == set()


# ------------------------------------------------------------------------------------------- what validators catch

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("shannon-1948", {"author": "Shelley"}, "author_is_printed"),
    ("shannon-1948", {"author": "Shannon, C. E."}, "author_is_one_family_name"),
    ("codd-1970", {"author": "E. F. Codd"}, "author_is_one_family_name"),
    ("vaswani-2017", {"author": "Vaswani et al."}, "author_is_one_family_name"),
    ("goodfellow-2016", {"author": "Ian"}, "author_comes_first"),
    ("goodfellow-2016", {"author": "Bengio"}, "author_comes_first"),
    ("rivest-1978", {"author": "Rivest, Shamir"}, "author_is_one_family_name"),
    ("rivest-1978", {"author": "Adleman"}, "author_comes_first"),
    ("page-1999", {"author": "Lawrence Page"}, "author_is_one_family_name"),
    ("page-1999", {"author": "Lawrence"}, "author_is_one_family_name"),
    ("raymond-1999", {"author": "Eric"}, "author_is_one_family_name"),
    ("nakamoto-2008", {"author": "Satoshi Nakamoto"}, "author_is_one_family_name"),
    ("maaten-2008", {"author": "Maaten"}, "author_is_one_family_name"),
    ("stonebraker-1986", {"title": "The design of PostgreSQL"}, "title_is_printed"),
    ("turing-1950", {"title": "Computing machinery"}, "title_is_whole"),
    ("turing-1950", {"title": "machinery and intelligence"}, "title_is_whole"),
    ("kahneman-1979", {"title": "Prospect theory"}, "title_is_whole"),
    ("knuth-1997", {"title": "The Art of Computer Programming"}, "title_is_whole"),
    ("clarke-1968", {"title": "A Space Odyssey"}, "title_is_whole"),
    ("oneil-1996", {"title": "The log-structured merge-tree"}, "title_is_whole"),
    ("hochreiter-1997", {"title": "Long short-term memory. Neural Computation"}, "title_is_only_the_title"),
    ("einstein-1905", {"title": "Einstein"}, "title_is_only_the_title"),
    ("orwell-1949", {"title": "N"}, "title_is_only_the_title"),
    ("hochreiter-1997", {"year": 1735}, "year_is_printed"),
    ("deutsch-1996", {"year": 1951}, "year_is_printed"),
    ("kingma-2015", {"year": 1412}, "year_is_printed"),
    ("kernighan-1988", {"year": 1978}, "year_is_printed"),
    ("turing-1937", {"year": 1936}, "year_is_printed"),
    ("popper-1959", {"year": 1934}, "year_is_printed"),
    ("devlin-2019", {"year": 2018}, "year_is_printed"),
    ("mccullough-2005", {"year": 1776}, "year_is_printed"),
    ("judt-2005", {"year": 1945}, "year_is_printed"),
    ("homer-odyssey", {"year": 2018}, "year_is_printed"),
    ("shannon-1948", {"year": None}, "year_is_printed"),
    ("shannon-1948", {"year": 1949}, "year_is_printed"),
]


@pytest.mark.parametrize(("work", "change", "name"), WRONG)
def test_a_record_that_is_wrong_in_one_field_is_rejected(
    work: str, change: dict[str, Any], name: str
) -> None:
    key = _key_of(work)
    assert name in _rejecting({**_record(key), **change}, INPUTS[key])


def test_the_whole_citation_is_no_title() -> None:
    key = _key_of("nash-1950")
    assert "title_is_only_the_title" in _rejecting({**_record(key), "title": INPUTS[key]}, INPUTS[key])


@pytest.mark.parametrize("example", ALL_EXAMPLES)
def test_what_is_copied_from_an_example_is_rejected(example: Any) -> None:
    key = _key_of("nash-1950")
    copied = {**_record(key), "author": example.record["author"]}
    assert "nothing_is_from_the_examples" in _rejecting(copied, INPUTS[key])
    copied = {**_record(key), "title": example.record["title"]}
    assert "nothing_is_from_the_examples" in _rejecting(copied, INPUTS[key])


def test_no_record_of_another_work_passes() -> None:
    key = _key_of("codd-1970")
    for other, answer in ANSWERS.items():
        if answer["work"] != "codd-1970":
            assert _rejecting(_record(other), INPUTS[key]), other


@pytest.mark.parametrize("example", ALL_EXAMPLES)
def test_the_prompts_own_examples_are_right(example: Any) -> None:
    assert _rejecting(example.record, example.text) <= {"nothing_is_from_the_examples"}


def test_no_example_shares_a_name_or_a_title_with_the_citations() -> None:
    for example in ALL_EXAMPLES:
        for text in INPUTS.values():
            assert find(example.record["author"], plain(text)) is None
            assert find(example.record["title"], plain(text)) is None


# -------------------------------------------------------------------------------------------------- reading print


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mind, 59(236), 433-460, 1950.", [1950]),
        ("Neural Computation 9(8), 1735–1780 (1997)", [1997]),
        ("RFC 1951, May 1996", [1996]),
        ("pp. 1601, 2003", [2003]),
        ("arXiv:1412.6980, 2015", [2015]),
        ("Nature. 1953;171(4356):737-8.", [1953]),
        (f"{LAST_YEAR + 1}", []),
        ("Englewood Cliffs, n.d.", []),
    ],
)
def test_years_are_told_from_pages_and_numbers(text: str, expected: list[int]) -> None:
    assert [year.value for year in years(plain(text), "no such title")] == expected


def test_a_first_edition_is_known_as_another_event() -> None:
    text = plain("2nd ed. Prentice Hall, 1988. First published 1978.")
    assert years(text, "no such title") == [Year(1988, False), Year(1978, True)]


def test_words_are_found_whatever_their_dress() -> None:
    assert find("GODEL", plain("Gödel, Kurt")) is not None
    assert find("Jürgen", plain(r"J{\"u}rgen Schmidhuber")) is not None
    assert find("pages 3–9", plain("pages  3--9")) is not None
    assert find("o’neil", plain("Patrick O'Neil")) is not None
    assert find("art", plain("Earth")) is None


# --------------------------------------------------------------------------------------------------------- prompt


def test_a_request_ends_with_the_citation_and_holds_every_example_once() -> None:
    made = messages(_context("Plato. Republic."))
    assert made[-1]["role"] == "user"
    assert "Plato. Republic." in made[-1]["content"]
    turns = [message["content"] for message in made if message["role"] == "assistant"]
    assert sorted(turns) == sorted(json.dumps(e.record, ensure_ascii=False) for e in EXAMPLES)


def test_a_corrected_attempt_starts_from_the_same_request() -> None:
    assert messages(_context("Plato. Republic.", attempt=1)) == messages(
        _context("Plato. Republic.", attempt=3)
    )


def test_a_fresh_attempt_asks_another_question_about_the_same_citation() -> None:
    text = INPUTS[_key_of("codd-1970")]
    requests = [fresh_messages(_context(text, attempt)) for attempt in range(1, 5)]
    assert requests[0] == messages(_context(text))
    assert len({json.dumps(request) for request in requests}) == len(requests)
    assert all(request[-1]["content"].endswith(text) for request in requests)


def test_the_second_attempt_shows_examples_in_the_style_of_the_citation() -> None:
    rfc = 'Deutsch, P., "DEFLATE Compressed Data Format", RFC 1951, DOI 10.17487/RFC1951, May 1996.'
    assert "RFC 1777" in fresh_messages(_context(rfc, attempt=2))[-3]["content"]


# -------------------------------------------------------------------------------------------------------- scoring


def _outputs() -> Iterator[dict[str, Any]]:
    right, wrong, aside = (_key_of(work) for work in ("nash-1950", "coase-1937", "he-2016"))
    base: dict[str, Any] = {
        "status": "accepted",
        "reason": None,
        "attempts": 1,
        "generations": 1,
        "verdicts": [],
    }
    yield {**base, "key": right, "value": {**_record(right), "title": ANSWERS[right]["title"].upper() + "."}}
    yield {**base, "key": wrong, "value": {**_record(wrong), "year": 1938}, "attempts": 2, "generations": 2}
    verdicts = [
        {"validator": "author_is_printed", "verdict": "accepted"},
        {"validator": "year_is_printed", "verdict": "rejected"},
    ]
    yield {
        **base, "key": aside, "value": None, "status": Status.REJECTED, "reason": "semantic_rejection",
        "generations": 3, "verdicts": verdicts,
    }  # fmt: skip


def test_a_score_counts_fields_of_accepted_items_only() -> None:
    scored = score(_outputs(), ANSWERS.values())
    assert (scored.items, scored.accepted, scored.accepted_at_once, scored.accepted_later) == (3, 2, 1, 1)
    assert scored.fields_right == {"author": 2, "title": 2, "year": 1}
    assert (scored.all_right, scored.wrong) == (1, (_key_of("coase-1937"),))
    assert scored.set_aside == {"semantic_rejection": 1}
    assert scored.rejected_by == {"year_is_printed": 1}
    assert scored.generations == 6


def test_a_score_refuses_outputs_of_other_inputs() -> None:
    stray = {"key": "0", "status": "accepted", "value": {}, "attempts": 1, "generations": 1, "verdicts": []}
    with pytest.raises(ValueError, match="--key id"):
        score([stray], ANSWERS.values())


# --------------------------------------------------------------------------------------------------------- running


def test_half_a_model_configuration_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REMAND_MODEL", "some-model")
    monkeypatch.delenv("REMAND_MODEL_BASE_URL", raising=False)
    assert run.main([]) == 2
    assert "REMAND_MODEL_BASE_URL is not" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "REMAND_MODEL_BASE_URL" in said
    assert "exit status" in said

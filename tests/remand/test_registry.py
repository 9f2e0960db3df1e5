"""Registries as an author writes them: what is refused, what the fingerprint covers, what the rules forbid."""

from __future__ import annotations

import functools
import logging
import math
import pickle
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from remand import (
    SINGLE_RESPONSE_V1,
    BadEntry,
    Context,
    Correction,
    Feed,
    Forbidden,
    Pipeline,
    PipelineError,
    Policy,
    Produced,
    Registry,
    Stage,
    Validator,
    accept,
    load,
    load_registry,
    load_target,
    normal,
    producer,
)
from remand.authoring import FunctionProducer
from remand.testing import context

MARKER = "marker-51ce"


class Work(BaseModel):
    title: str
    year: int | None = None
    doi: str | None = None
    weight: float = 1.0


class Person(BaseModel):
    name: str


def by_doi(work: Work) -> str:
    return work.doi or work.title


def by_title(work: Work) -> str:
    return work.title


def described(work: Work) -> str:
    return f"{work.title} ({work.year})"


def doi(work: Work) -> str | None:
    return work.doi


def title(work: Work) -> str | None:
    return work.title


def different_years(one: Work, other: Work) -> bool:
    """Works of different years are different works."""
    return None not in (one.year, other.year) and one.year != other.year


def different_dois(one: Work, other: Work) -> bool:
    return None not in (one.doi, other.doi) and one.doi != other.doi


def at_most_three(works: Sequence[Work]) -> bool:
    """No work has more than three records."""
    return len(works) <= 3


def with_year(works: Sequence[Work]) -> Work:
    return next((work for work in works if work.year is not None), works[0])


def vectors(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text))] for text in texts]


def check(value: Any, context: Context) -> Any:
    """It must be right."""
    return accept()


def propose(context: Context, correction: Correction | None) -> Produced:
    return Produced([])


def a_proposer(**settings: Any) -> FunctionProducer:
    return FunctionProducer(propose, **{"version": "1", **settings})


def a_registry(name: Any = "works", entry: Any = Work, **settings: Any) -> Registry[Work]:
    given = {"version": "1", "key": by_doi, "text": described, "proposer": a_proposer(), **settings}
    return Registry(name, entry, **given)


def refused(build: Callable[[], object]) -> str:
    with pytest.raises(PipelineError) as caught:
        build()
    return str(caught.value)


def bad(build: Callable[[], object]) -> str:
    with pytest.raises(BadEntry) as caught:
        build()
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    assert pickle.loads(pickle.dumps(error)).code == error.code
    assert MARKER not in f"{error!r}{error}"
    return error.code


# ----------------------------------------------------------------------------------------- refused when made


async def later(*_: Any) -> Any:
    return None


unnamed = functools.partial(different_years)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"entry": dict}, "entry must be a pydantic model class"),
        ({"entry": Work(title="t")}, "entry must be a pydantic model class"),
        ({"version": ""}, "version must be a non-empty string"),
        ({"version": 1}, "version must be a non-empty string"),
        ({"key": None}, "key must be a function, not NoneType"),
        ({"key": lambda work: work.title}, "key must be a function with a name, not a lambda"),
        ({"key": later}, "key must be a plain function, not an async one"),
        ({"text": "title"}, "text must be a function, not str"),
        ({"text": lambda work: work.title}, "text must be a function with a name, not a lambda"),
        ({"exact": doi}, "exact must be a list of functions, not function"),
        ({"exact": [doi, lambda work: work.title]}, "exact[1] must be a function with a name, not a lambda"),
        ({"exact": [doi, doi]}, "exact: two functions are called 'doi'"),
        ({"exact": "doi"}, "exact must be a list of functions, not str"),
        ({"cannot_link": different_years}, "cannot_link must be a list of functions, not function"),
        ({"cannot_link": [unnamed]}, "cannot_link[0] must be a function with a name, not a partial"),
        ({"cannot_link": [lambda a, b: True]}, "cannot_link[0] must be a function with a name, not a lambda"),
        ({"cannot_link": [later]}, "cannot_link[0] must be a plain function, not an async one"),
        ({"cannot_link": [different_years], "compatible": different_years}, "two functions are called"),
        ({"compatible": True}, "compatible must be a function, not bool"),
        ({"compatible": lambda works: True}, "compatible must be a function with a name, not a lambda"),
        ({"merge": lambda works: works[0]}, "merge must be a function with a name, not a lambda"),
        ({"embed": lambda texts: []}, "embed must be a function with a name, not a lambda"),
        ({"proposer": propose}, "proposer must be a Producer, not function; decorate it with @producer(version=...)"),
        ({"proposer": None}, "proposer must be a Producer, not NoneType"),
        ({"validators": [check]}, "validators[0]: 'check' has no version"),
        ({"validators": check}, "validators must be a list, not function"),
        ({"retries": -1}, "retries must not be negative, it is -1"),
        ({"retries": True}, "retries must be a whole number, not bool"),
        ({"block_size": 1}, "block_size must be a whole number from 2 to 100"),
        ({"block_size": 101}, "block_size must be a whole number from 2 to 100"),
        ({"block_size": 24.0}, "block_size must be a whole number from 2 to 100"),
        ({"accept_incomplete": 1}, "accept_incomplete must be True or False"),
        ({"policy": "quarantine"}, "policy must be a Policy or a mapping, not str"),
        ({"policy": {"semantics": "quarantine"}}, "policy: 'semantics' is not a policy field"),
        ({"policy": {"semantic_rejection": "ignore"}}, "'ignore' is not one of"),
        ({"neighbours": 0}, "neighbours must be a whole number from 1 to 1000"),
        ({"max_calls": 0}, "max_calls must be a whole number from 1 to"),
        ({"max_calls": True}, "max_calls must be a whole number from 1 to"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else value[:40],
)  # fmt: skip
def test_a_registry_is_refused_by_the_field_that_is_wrong(settings: dict[str, Any], problem: str) -> None:
    message = refused(lambda: a_registry(**settings))
    assert message.startswith("registry 'works': ")
    assert problem in message


@pytest.mark.parametrize("name", ["", None, "a b", "a/b", "x" * 81, "a\nb"], ids=repr)
def test_names_are_checked(name: Any) -> None:
    assert "name" in refused(lambda: a_registry(name))


def test_no_rule_may_be_called_like_a_fault() -> None:
    def oversized(one: Work, other: Work) -> bool:
        return False

    def kept_apart(works: Sequence[Work]) -> bool:
        return True

    assert "no rule may be called 'oversized'" in refused(lambda: a_registry(cannot_link=[oversized]))
    assert "no rule may be called 'kept_apart'" in refused(lambda: a_registry(compatible=kept_apart))


def test_a_registry_shows_names_only() -> None:
    registry = a_registry(cannot_link=[different_years])
    assert repr(registry) == "<registry 'works' version '1': Work, <producer 'propose' version '1'>>"
    assert "works" in repr(Feed(registry, as_work, version="1"))


# ---------------------------------------------------------------------------------------------- fingerprints


class Bigger(Work):
    pages: int = 0


def renamed_key(work: Work) -> str:
    return by_doi(work)


def renamed_text(work: Work) -> str:
    return described(work)


def explained(work: Work) -> str | None:
    """The DOI is said here."""
    return work.doi


explained.__name__ = explained.__qualname__ = "doi"

COVERED: dict[str, dict[str, Any]] = {
    "name": {"name": "other"},
    "version": {"version": "2"},
    "entry": {"entry": Bigger},
    "key": {"key": renamed_key},
    "text": {"text": renamed_text},
    "exact": {"exact": [doi, title]},
    "order of exact": {"exact": [title]},
    "first line of exact": {"exact": [explained]},
    "cannot_link": {"cannot_link": [different_years, different_dois]},
    "compatible": {"compatible": at_most_three},
    "merge": {"merge": with_year},
    "embed": {"embed": vectors},
    "proposer's name": {"proposer": a_proposer(name="other")},
    "proposer's version": {"proposer": a_proposer(version="2")},
    "proposer's capability": {"proposer": a_proposer(correction=SINGLE_RESPONSE_V1)},
    "proposer's repairs": {"proposer": a_proposer(repairs=3)},
    "validators": {"validators": [Validator(check, version="1")]},
    "retries": {"retries": 2},
    "block_size": {"block_size": 12},
    "accept_incomplete": {"accept_incomplete": True},
    "policy": {"policy": {"semantic_rejection": "quarantine"}},
    "neighbours": {"neighbours": 11},
    "max_calls": {"max_calls": 100},
}


@pytest.mark.parametrize("change", COVERED)
def test_a_covered_change_changes_the_fingerprint(change: str) -> None:
    common: dict[str, Any] = {"exact": [doi], "cannot_link": [different_years]}
    before, after = a_registry(**common), a_registry(**{**common, **COVERED[change]})
    assert after.fingerprint != before.fingerprint
    assert after.pipeline.stage_fingerprints != before.pipeline.stage_fingerprints
    assert a_registry(**common).fingerprint == before.fingerprint


def test_time_outs_are_not_covered() -> None:
    assert a_registry(proposer=a_proposer(timeout=3.0)).fingerprint == a_registry().fingerprint


def test_what_cannot_be_fingerprinted_is_refused_by_the_fingerprint() -> None:
    class Odd(BaseModel):
        model_config = {"arbitrary_types_allowed": True}
        what: Context

    registry = a_registry(entry=Odd)
    assert "registry 'works': entry has no JSON schema" in refused(lambda: registry.fingerprint)


# --------------------------------------------------------------------------------------------------- entries


def strict(work: Work) -> str:
    raise ValueError(MARKER)


class Picky(BaseModel):
    title: str

    @field_validator("title")
    @classmethod
    def break_on_marker(cls, value: str) -> str:
        if value == MARKER:
            raise KeyError(value)
        return value


def picky_title(picky: Picky) -> str:
    return picky.title


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (f'{{"title": "{MARKER}"', "not_json"),
        (b"\xff\xfe", "not_json"),
        ("", "not_json"),
        (f'{{"title": 3, "x": "{MARKER}"}}', "schema_mismatch"),
        (f'["{MARKER}"]', "schema_mismatch"),
        ({"name": MARKER}, "schema_mismatch"),
        (r'{"title": "\ud800"}', "not_json"),
    ],
)
def test_data_that_is_no_entry_is_refused_by_code_alone(data: Any, code: str) -> None:
    assert bad(lambda: a_registry().parse(data)) == code


def test_an_entry_whose_own_code_raises_is_refused_and_its_place_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry: Registry[Picky] = Registry(
        "picky", Picky, version="1", key=picky_title, text=picky_title, proposer=a_proposer()
    )
    assert bad(lambda: registry.parse({"title": MARKER})) == "entry_raised"
    assert "registry picky: entry raised KeyError at" in caplog.text
    assert "break_on_marker" in caplog.text
    assert MARKER not in caplog.text


def test_entries_cross_as_json_and_come_back() -> None:
    registry = a_registry()
    work = Work(title="Été", year=1998)
    text = registry.dump(work)
    assert registry.parse(text) == registry.parse(text.encode()) == work
    assert registry.parse({"title": "Été", "year": 1998}) == work
    assert bad(lambda: registry.dump(Work(title="t", weight=math.nan))) == "not_json"
    assert bad(lambda: registry.dump(registry.parse({"title": "\ud800"}))) == "not_json"


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", 5, None, "\ud800"], ids=repr)
def test_an_entry_without_a_usable_key_is_refused(key: Any) -> None:
    def given(work: Work) -> Any:
        return key

    assert bad(lambda: a_registry(key=given).entry_id(Work(title="t"))) == "key"


@pytest.mark.parametrize(
    "text", ["", " \n", "x" * 10_001, 5, None, "\ud800"], ids=lambda text: repr(text)[:12]
)
def test_an_entry_without_a_usable_text_is_refused(text: Any) -> None:
    def given(work: Work) -> Any:
        return text

    assert bad(lambda: a_registry(text=given).compared(Work(title="t"))) == "text"


def test_keys_and_texts_at_the_edge_are_taken() -> None:
    registry = a_registry(key=by_title, text=by_title)
    assert registry.entry_id(Work(title="x" * 200)) == "x" * 200
    assert registry.compared(Work(title="x" * 10_000)) == "x" * 10_000


def test_a_function_that_raises_refuses_the_entry_and_says_where(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(title=MARKER)
    registry = a_registry(key=strict, text=strict, exact=[strict], merge=strict)
    assert bad(lambda: registry.entry_id(work)) == "key_raised"
    assert bad(lambda: registry.compared(work)) == "text_raised"
    assert bad(lambda: registry.exact_keys(work)) == "exact_raised"
    assert bad(lambda: registry.canonical([work])) == "merge_raised"
    assert caplog.text.count(f"raised ValueError at {__name__}:strict:") == 4
    assert MARKER not in caplog.text


def test_exact_keys_carry_their_functions_names_and_leave_out_what_is_empty() -> None:
    registry = a_registry(exact=[doi, title])
    assert registry.exact_keys(Work(title="The  Title!", doi="10.1/X")) == ("doi:10 1 x", "title:the title")
    assert registry.exact_keys(Work(title="¿¡…!?", doi=None)) == ()
    same = Work(title="10.1/x", doi="10.1/x")
    assert len(set(registry.exact_keys(same))) == 2


def test_a_long_exact_key_is_kept_as_its_hash() -> None:
    registry = a_registry(exact=[title])
    one, other = (registry.exact_keys(Work(title="x" * 500 + end))[0] for end in "ab")
    assert one != other
    assert len(one) == len("title:") + 64
    assert registry.exact_keys(Work(title="X" * 500 + "A!"))[0] == one


def test_an_exact_value_that_is_no_text_is_refused() -> None:
    def year(work: Work) -> Any:
        return work.year

    assert bad(lambda: a_registry(exact=[year]).exact_keys(Work(title="t", year=3))) == "exact"


def test_the_canonical_record_is_the_first_one_or_what_merge_makes() -> None:
    works = [Work(title="a"), Work(title="b", year=2)]
    assert a_registry().canonical(works) is works[0]
    assert a_registry(merge=with_year).canonical(works) == works[1]

    def lost(works: Sequence[Work]) -> Any:
        return {"title": "a"}

    assert bad(lambda: a_registry(merge=lost).canonical(works)) == "merge"


# ------------------------------------------------------------------------------------------------ normal, R8


@pytest.mark.parametrize(
    "spellings",
    [
        ["Café", "CAFE\u0301", unicodedata.normalize("NFD", "café"), " café. ", "ｃａｆé"],
        ["Straße", "STRASSE", "strasse"],
        ["İstanbul", "istanbul", "ISTANBUL", "I\u0307stanbul", "i\u0307stanbul", "ıstanbul", "Ｉstanbul"],
        ["IŞIK", "ışık", "işik"],
        ["O'Brien", "O’Brien", "o‘brien", "O´Brien", "O`Brien"],
        ["Ａ－１：２", "a-1:2", "A 1 2"],
        ["ﬁne", "FINE", "fi\u00adne", "fi\u200bne", "\ufefffine"],
        ["a\u00a0b\u2003c\t\nd", "A b C d"],
        ["Σίσυφος", "ΣΊΣΥΦΟΣ"],
        ["㎆", "MB", "mb"],
        ["ℌ", "H", "ｈ"],
        ["i\u0307\u0301", "Í", "í"],
        ["한국", unicodedata.normalize("NFD", "한국")],
    ],
    ids=lambda spellings: spellings[0],
)
def test_spellings_of_one_text_meet_without_a_model(spellings: list[str]) -> None:
    assert len({normal(spelling) for spelling in spellings}) == 1
    registry = a_registry(exact=[title])
    assert len({registry.exact_keys(Work(title=spelling)) for spelling in spellings}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("café", "cafe"),
        ("C", "C#"),
        ("5%", "5"),
        ("o'brien", "obrien"),
        ("1.5", "15"),
        ("а", "a"),
        ("ö", "o"),
    ],
)
def test_texts_that_differ_stay_apart(one: str, other: str) -> None:
    assert normal(one) != normal(other)


@given(st.text())
def test_normalising_twice_changes_nothing_more(text: str) -> None:
    once = normal(text)
    assert normal(once) == once
    assert once == " ".join(once.split())
    assert unicodedata.is_normalized("NFKC", once)


@given(st.text(alphabet=st.characters(max_codepoint=0x24F)))
def test_composition_and_width_make_no_difference(text: str) -> None:
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)
    assert normal(unicodedata.normalize("NFD", text)) == normal(text)
    assert normal(wide) == normal(text)


# ----------------------------------------------------------------------------------------------------- rules


def forbidden(registry: Registry[Work], *clusters: Sequence[Work]) -> Forbidden | None:
    return registry.forbidden(clusters)


def of(*years: int | None) -> list[Work]:
    return [Work(title="t", year=year) for year in years]


def test_every_pair_across_clusters_is_looked_at_and_none_within() -> None:
    registry = a_registry(cannot_link=[different_dois, different_years])
    assert forbidden(registry, of(1, None), of(None, 1), of(1)) is None
    assert forbidden(registry, of(1, 2)) is None
    found = forbidden(registry, of(None), of(1, None), of(None, None, 2))
    assert found == Forbidden("different_years", "Works of different years are different works.", (1, 2))


def test_a_rule_is_asked_in_both_orders() -> None:
    def later_than(one: Work, other: Work) -> bool:
        return (one.year or 0) > (other.year or 0)

    registry = a_registry(cannot_link=[later_than])
    for clusters in ((of(1), of(2)), (of(2), of(1))):
        found = forbidden(registry, *clusters)
        assert found is not None
        assert (found.rule, found.words) == ("later_than", "They fail the rule 'later than'.")


def test_compatible_sees_all_members_together() -> None:
    registry = a_registry(compatible=at_most_three)
    assert forbidden(registry, of(1, 2), of(3)) is None
    assert forbidden(registry, of(1, 2, 3, 4)) is None
    found = forbidden(registry, of(1), of(2), of(3, 4))
    assert found == Forbidden("at_most_three", "No work has more than three records.", (0, 1, 2))


def test_a_rule_that_raises_forbids_and_the_log_has_its_place_alone(caplog: pytest.LogCaptureFixture) -> None:
    def breaks(one: Work, other: Work) -> bool:
        raise ValueError(one.title)

    def exits(works: Sequence[Work]) -> bool:
        raise SystemExit(works[0].title)

    pair = [Work(title=MARKER)], [Work(title=MARKER)]
    assert forbidden(a_registry(cannot_link=[breaks]), *pair) == Forbidden(
        "breaks", "They fail the rule 'breaks'.", (0, 1)
    )
    found = forbidden(a_registry(compatible=exits), *pair)
    assert found is not None
    assert found.rule == "exits"
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert f"registry works: breaks raised ValueError at {__name__}:breaks:" in caplog.text
    assert MARKER not in caplog.text


# ----------------------------------------------------------------------------------- feeds and the own pipeline


def as_work(value: Any, context: Context) -> Work | None:
    return Work(title=value["title"]) if value["title"] else None


def a_stage(output: Any) -> Stage:
    return Stage("extract", producer("make", version="1", output=output)(propose))


def a_pipeline(*registries: Any, output: Any = Work) -> Pipeline:
    return Pipeline("p", version="1", stages=[a_stage(output)], registries=list(registries))


def test_a_registry_takes_the_values_of_a_pipeline_whose_type_fits() -> None:
    registry = a_registry()
    for output in (Work, Bigger):
        (feed,) = a_pipeline(registry, output=output).registries
        assert feed.registry is registry
        work = Work(title="t")
        assert feed.entry(work, context(None)) is work


@pytest.mark.parametrize("output", [Person, dict, list[Work], None], ids=str)
def test_a_registry_that_the_values_do_not_fit_is_refused_with_what_to_do(output: Any) -> None:
    message = refused(lambda: a_pipeline(a_registry(), output=output))
    assert message.startswith(
        "pipeline 'p': registries[0]: registry 'works' takes Work, but the last stage gives"
    )
    assert "Feed(registry, make, version=...)" in message


@pytest.mark.parametrize(
    ("registries", "problem"),
    [
        ("works", "registries must be a list, not str"),
        (a_registry(), "registries must be a list, not Registry"),
        ([as_work], "registries[0] must be a Registry or a Feed, not function"),
        ([a_registry(), a_registry(version="2")], "two registries are called 'works'"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value[:40],
)
def test_a_pipelines_registries_are_checked(registries: Any, problem: str) -> None:
    message = refused(lambda: Pipeline("p", version="1", stages=[a_stage(Work)], registries=registries))
    assert message == f"pipeline 'p': {problem}"


def test_a_feed_is_refused_by_what_is_wrong() -> None:
    registry = a_registry()
    assert "registry must be a Registry, not str" in refused(lambda: Feed("works", as_work, version="1"))  # type: ignore[arg-type]
    assert "make must be a function, not str" in refused(lambda: Feed(registry, "t", version="1"))  # type: ignore[arg-type]
    assert "make must be a plain function" in refused(lambda: Feed(registry, later, version="1"))
    assert "version must be a non-empty string" in refused(lambda: Feed(registry, as_work, version=""))


def test_a_feed_makes_an_entry_of_a_value_or_none(caplog: pytest.LogCaptureFixture) -> None:
    def whatever(value: Any, context: Context) -> Any:
        if value == MARKER:
            raise KeyError(value)
        return value

    feed = Feed(a_registry(), whatever, version="1")
    where = context({"title": "t"})
    assert Feed(a_registry(), as_work, version="1").entry({"title": "t"}, where) == Work(title="t")
    assert feed.entry(None, where) is None
    assert feed.entry({"title": "t"}, where) == Work(title="t")
    assert bad(lambda: feed.entry({"name": "t"}, where)) == "schema_mismatch"
    assert bad(lambda: feed.entry(Person(name="t"), where)) == "make"
    assert bad(lambda: feed.entry(MARKER, where)) == "make_raised"
    assert MARKER not in caplog.text


def test_a_pipelines_fingerprint_covers_its_feeds_and_its_stages_do_not() -> None:
    def other(value: Any, context: Context) -> Work | None:
        return None

    pipelines = [
        a_pipeline(),
        a_pipeline(a_registry()),
        a_pipeline(a_registry(version="2")),
        a_pipeline(a_registry(block_size=12)),
        a_pipeline(Feed(a_registry(), as_work, version="1")),
        a_pipeline(Feed(a_registry(), as_work, version="2")),
        a_pipeline(Feed(a_registry(), other, version="1")),
        a_pipeline(a_registry(), a_registry("others")),
    ]
    assert len({pipeline.fingerprint for pipeline in pipelines}) == len(pipelines)
    assert len({pipeline.stage_fingerprints for pipeline in pipelines}) == 1


def test_blocks_that_fail_fail_nothing_unless_the_policy_says_so() -> None:
    def dispositions(**settings: Any) -> list[str | float | None]:
        described = a_registry(**settings).pipeline.policy.describe()
        return [described[f"{kind}_failure"] for kind in ("structural", "operational", "validator_execution")]

    assert dispositions() == ["warn_continue"] * 3
    assert dispositions(policy={"operational_failure": "fail_run"}) == [
        "warn_continue",
        "fail_run",
        "warn_continue",
    ]
    assert dispositions(policy=Policy()) == ["fail_run", "fail_run", "warn_continue"]
    assert a_registry().pipeline.policy.semantic_rejection == "warn_continue"


def test_a_registrys_pipeline_is_named_after_it_and_has_its_budgets() -> None:
    registry = a_registry(
        "x" * 80, retries=3, proposer=a_proposer(repairs=2), validators=[Validator(check, version="1")]
    )
    assert registry.pipeline.name == "registry:" + "x" * 80
    worst = registry.pipeline.worst_case()
    assert worst.generations == 4 * 3
    assert dict(worst.validator_calls) == {"propose/check": 4 * 2}


# --------------------------------------------------------------------------------------------------- loading

MODULE = """
from pydantic import BaseModel
from remand import Feed, Pipeline, Producer, Registry, Stage
class Work(BaseModel):
    title: str
def title(work): return work.title
works = Registry("works", Work, version="1", key=title, text=title, proposer=Producer("p", version="1"))
people = Registry("people", Work, version="1", key=title, text=title, proposer=Producer("p", version="1"))
stage = Stage("extract", Producer("make", version="1", output=Work))
pipeline = Pipeline("books", version="1", stages=[stage], registries=[works, people])
plain = Pipeline("plain", version="1", stages=[stage])
class Odd:
    pass
odd = Registry("odd", Work, version="1", key=title, text=title, proposer=Producer("p", version="1", output=Odd))
number = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "load_works.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "load_works", raising=False)


@pytest.mark.usefixtures("module")
def test_a_registry_is_loaded_by_its_own_name_or_through_its_pipeline() -> None:
    assert load_registry("load_works:works").name == "works"
    assert load_registry("load_works:pipeline#people").name == "people"
    assert load_registry("load_works:pipeline#works") is load_registry("load_works:works")
    assert load_target("load_works:works") is load_registry("load_works:works").pipeline
    assert load_target("load_works:pipeline#people").name == "registry:people"
    assert load_target("load_works:pipeline") is load("load_works:pipeline")


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("read", "target", "problem"),
    [
        (load, "load_works:works", "'works' is a registry, not a pipeline; name the pipeline that feeds it"),
        (load, "load_works:number", "expected a Pipeline under 'number', found a int"),
        (load_registry, "load_works:pipeline", "load_works:pipeline#works, load_works:pipeline#people"),
        (load_registry, "load_works:pipeline#none", "it feeds: load_works:pipeline#works, load"),
        (load_registry, "load_works:plain#works", "name one of the registries that it feeds: none"),
        (load_registry, "load_works:works#works", "a Pipeline that feeds registries under 'works', found a Registry"),
        (load_registry, "load_works:number", "expected a Registry under 'number', found a int"),
        (load_registry, "load_works:missing", "expected a Registry under 'missing', found nothing"),
        (load_registry, "load_works", "name a registry as MODULE:ATTRIBUTE, for example shop.pipeline:registry"),
        (load_registry, "__main__:works", "a registry in __main__ cannot be imported by a worker"),
        (load_registry, None, "name a registry as MODULE:ATTRIBUTE, not by a NoneType"),
        (load_registry, "load_works:odd", "output is no type that pydantic takes"),
        (load_target, "load_works:number", "expected a Pipeline under 'number', found a int"),
        (load_target, "load_works:plain#x", "name one of the registries that it feeds: none"),
        (load_target, None, "name a pipeline as MODULE:ATTRIBUTE, not by a NoneType"),
        (load_target, "load_nothing:x", "there is no module 'load_nothing'"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_refused_with_what_to_mend(
    read: Callable[[str], object], target: Any, problem: str
) -> None:
    assert problem in refused(lambda: read(target))

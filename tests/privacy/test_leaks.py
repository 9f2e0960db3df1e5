"""Nobody's words are where they may not be: proved by planting markers, running everything, and looking everywhere.

Generated from `remand_workers.surfaces`: every surface of the table has a reader, every reader a surface.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from privacy_kit.readers import READERS, bodies, task_messages
from privacy_kit.texts import CONTROL, MARKERS, around, kinds_in, planted
from privacy_kit.works import NAME

from remand_tasks.token import Token
from remand_workers.surfaces import SURFACES, Kind, Surface, page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "surfaces.md"

pytestmark = pytest.mark.timeout(300)
each_surface = pytest.mark.parametrize(
    "surface", [pytest.param(each, id=each.name.replace(" ", "-")) for each in SURFACES]
)


def test_every_surface_has_a_reader_and_every_reader_a_surface() -> None:
    assert [each.name for each in SURFACES] == list(READERS)
    assert len(SURFACES) >= 15


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), (
        "make docs, or python -m remand_workers.surfaces > docs/reference/surfaces.md"
    )


@pytest.mark.workers
@each_surface
def test_no_text_is_where_it_may_not_be(surface: Surface, evidence: Path) -> None:
    held = READERS[surface.name](evidence)
    leaked = kinds_in(held) & surface.never
    assert not leaked, "\n".join(f"{kind.value} leaked: {around(held, kind)!r}" for kind in sorted(leaked))


@pytest.mark.workers
@each_surface
def test_every_reader_sees_what_is_there(surface: Surface, evidence: Path) -> None:
    """The names of runs, pipelines, validators and workers hold a word that every surface has by rights."""
    assert CONTROL.lower().encode() in READERS[surface.name](evidence).lower()


@pytest.mark.workers
@pytest.mark.parametrize("surface", [each for each in SURFACES if each.may], ids=lambda each: each.name)
def test_what_may_be_seen_is_seen(surface: Surface, evidence: Path) -> None:
    """What belongs to the user is there: the tests above do not pass because nothing was written at all."""
    assert kinds_in(READERS[surface.name](evidence)) == surface.may


@pytest.mark.workers
def test_every_kind_of_text_was_there_to_leak(evidence: Path) -> None:
    """In the requests to the model, in vault entries opened with the key, in the payload table, or noted."""
    noted = {Kind(line.split("\t")[0]) for line in (evidence / "notes/planted.tsv").read_text().splitlines()}
    opened = {Kind(name) for name in _facts(evidence)["opened"]}
    asked = kinds_in((evidence / "requests").read_bytes())
    assert asked >= {
        Kind.INPUT, Kind.PROMPT, Kind.RESPONSE, Kind.CANDIDATE, Kind.FINDING, Kind.VALUE, Kind.JUDGEMENT,
    }  # fmt: skip
    assert opened >= {Kind.RESPONSE, Kind.CANDIDATE, Kind.VALUE}
    assert noted | asked == frozenset(Kind)
    assert not _facts(evidence)["model_errors"]


@pytest.mark.workers
def test_everything_happened_that_can_leak(evidence: Path) -> None:
    rows = (evidence / "tables/receipts").read_text()
    for production in ("candidate", "structural", "operational", "throttled", "retry", "contract", "lost"):
        assert f"'{production}'" in rows, production
    for decision in (
        "advance:accepted", "advance:accepted:fallback", "advance:incomplete", "retry:findings", "retry:guidance",
        "retry:none", "again", "revalidate", "close:semantic_rejection", "close:structural_failure",
        "close:operational_failure", "close:contract_failure",
    ):  # fmt: skip
        assert f"'{decision}'" in rows, decision
    assert "'TimeoutError'" in rows or '"TimeoutError"' in rows
    assert (evidence / "notes/once-kill").exists()
    items = (evidence / "tables/items").read_text()
    assert "'cancelled'" in items
    assert "'quarantine'" in items
    runs = (evidence / "tables/runs").read_text()
    assert {"'succeeded'", "'degraded'", "'failed'", "'cancelled'"} <= set(re.findall(r"'\w+'", runs))
    assert "task-failed" in (evidence / "events").read_text()
    assert "StepError" in (evidence / "flower-api").read_text()
    letters = (evidence / "tables/intake_dead").read_text()
    for reason in (
        "no_body", "too_large", "not_json", "schema", "id_reused", "unknown_registry", "bad_entry",
    ):  # fmt: skip
        assert f"'{reason}'" in letters, reason
    assert "'error'" not in letters
    assert (evidence / "tables/registry_merges").read_text()


@pytest.mark.workers
def test_task_messages_hold_tokens_and_nothing_else(evidence: Path) -> None:
    seen = 0
    for body in bodies(task_messages(evidence)):
        arguments, keywords, embedded = json.loads(body)
        if arguments != [NAME]:  # A reconciliation says its registry.
            assert [str(Token.parse(each)) for each in arguments] == arguments
        assert len(arguments) == 1
        assert keywords == {}
        assert embedded.keys() <= {"callbacks", "errbacks", "chain", "chord"}
        for link in embedded["chain"] or ():
            assert link["args"] == arguments
            assert link["kwargs"] == {}
        seen += 1
    assert seen > 50


@pytest.mark.workers
def test_the_vault_expires_and_is_empty_in_the_end(evidence: Path) -> None:
    assert not _facts(evidence)["immortal"], "keys without an expiry"
    assert 0 < _facts(evidence)["longest"] <= 25 * 3_600 + 60, "the item's deadline and an hour"
    assert (evidence / "left").read_text() == "[]"


@pytest.mark.workers
def test_no_result_is_kept(evidence: Path) -> None:
    text = READERS["result backend"](evidence).decode()
    assert "DisabledBackend" in text
    assert "celery-task-meta" not in text
    assert "celery-task-meta" not in (evidence / "keys").read_text("utf-8", "replace")


@pytest.mark.parametrize("kind", Kind)
def test_a_marker_is_found_however_it_is_written(kind: Kind) -> None:
    text = planted(kind)
    for written in (
        text.encode(), text.upper().encode(), json.dumps([json.dumps({"a": text})]).encode(), repr(text).encode(),
        text[:40].encode(), text[-40:].encode(), text.encode("utf-16"), text.encode().hex().encode(),
        text[::-1].encode(),
        *(base64.b64encode(b"x" * before + text.encode()) for before in range(6)),
        *(base64.urlsafe_b64encode(b"x" * before + MARKERS[kind].encode() + b"?>" * 3) for before in range(3)),
    ):  # fmt: skip
        assert kinds_in(b"before" + written + b"after") == {kind}, written
    assert kinds_in(CONTROL.encode()) == frozenset()


def _facts(evidence: Path) -> dict[str, object]:
    return dict(json.loads((evidence / "facts.json").read_text()))

"""The shared words: verdicts have no truth value, findings keep their text to themselves, members are strings."""

from __future__ import annotations

import json
import pickle
from enum import StrEnum

import pytest

from remand_policy import (
    Disposition,
    Finding,
    Guidance,
    Production,
    Reason,
    Response,
    RunStatus,
    Situation,
    Source,
    Status,
    Verdict,
)


@pytest.mark.parametrize("verdict", Verdict)
def test_verdict_has_no_truth_value(verdict: Verdict) -> None:
    """V16."""
    with pytest.raises(TypeError, match="no truth value"):
        bool(verdict)
    with pytest.raises(TypeError, match="no truth value"):
        assert verdict
    with pytest.raises(TypeError, match="no truth value"):
        assert not verdict


@pytest.mark.parametrize(
    "words",
    [Disposition, Guidance, Production, Reason, Response, RunStatus, Situation, Source, Status, Verdict],
)
def test_members_are_their_strings(words: type[StrEnum]) -> None:
    for member in words:
        assert member == member.value == str(member)
        assert json.loads(json.dumps(member)) == member.value
        assert words(member.value) is member
        assert pickle.loads(pickle.dumps(member)) is member


def test_a_run_has_ended_only_at_its_four_ends() -> None:
    assert {status for status in RunStatus if status.ended} == {
        "succeeded",
        "degraded",
        "failed",
        "cancelled",
    }


def test_finding_shows_no_content() -> None:
    finding = Finding("MARKER", path="MARKER", code="MARKER")
    assert "MARKER" not in f"{finding!r} {finding}"
    assert repr(finding) == "Finding(<6 characters>, path=set, code=set)"
    assert repr(Finding("")) == "Finding(<0 characters>, path=None, code=None)"


@pytest.mark.parametrize("field", ["text", "path", "code"])
@pytest.mark.parametrize("value", [1, b"MARKER", ["MARKER"]])
def test_finding_of_anything_but_strings_is_refused_without_quoting_it(field: str, value: object) -> None:
    arguments = {"text": "wrong", field: value}
    with pytest.raises(TypeError, match=rf"Finding\.{field} must be a string") as refused:
        Finding(**arguments)  # type: ignore[arg-type]
    assert "MARKER" not in str(refused.value)


def test_finding_without_a_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Finding\.text must be a string, not NoneType"):
        Finding(None)  # type: ignore[arg-type]

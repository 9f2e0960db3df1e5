"""The lifecycle page is drawn from the decision table, whole and current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from remand_policy import TABLE, Situation
from remand_policy.diagram import COMMAND, markdown_table, mermaid, page, rows

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lifecycle.md"


def test_page_in_the_repository_is_current() -> None:
    current = PAGE.read_text(encoding="utf-8") == page()
    assert current, f"{PAGE.name} does not match the decision table any more. Renew it: {COMMAND}"


def test_the_module_prints_the_page() -> None:
    printed = subprocess.run(
        [sys.executable, "-X", "utf8", "-m", "remand_policy.diagram"], capture_output=True, check=True
    )
    assert printed.stdout.decode("utf-8") == page()
    assert COMMAND.startswith("python -m remand_policy.diagram > ")


def test_page_holds_intro_table_diagram_and_the_command_that_renews_it() -> None:
    text = page()
    assert text.startswith("# ")
    assert markdown_table() in text
    assert f"```mermaid\n{mermaid()}\n```" in text
    assert COMMAND in text


def test_rows_are_all_of_the_table_in_order() -> None:
    assert list(rows()) == [(situation, row) for situation in TABLE for row in TABLE[situation]]


def test_every_row_of_the_table_has_a_line_of_its_own() -> None:
    lines = markdown_table().split("\n")[2:]
    assert lines == [f"| {situation} | {row.when} | {row.then} |" for situation, row in rows()]
    assert len(set(lines)) == len(lines)
    assert all(line.count("|") == 4 for line in lines)


@pytest.mark.parametrize("situation", Situation)
def test_every_row_has_an_arrow_that_leads_where_it_says(situation: Situation) -> None:
    state = f"on_{situation.name.lower()}"
    declared = {name: words for words, name in re.findall(r'state "(.+)" as (\w+)', mermaid())}
    assert declared[state] == situation
    arrows = re.findall(rf"^ +{state} --> (\w+) : (.+)$", mermaid(), re.MULTILINE)
    assert len(arrows) == len(TABLE[situation])
    for (target, label), row in zip(arrows, TABLE[situation], strict=True):
        assert label.startswith(row.when)
        assert row.then in (declared[target], label.removeprefix(f"{row.when} / "))
        expected = {"close": "close_", "advan": "advance_", "judge": "judging"}.get(row.then[:5], "producing")
        assert target.startswith(expected)
    assert len(re.findall(rf"--> {state}$", mermaid(), re.MULTILINE)) == 1


def test_every_state_is_declared_and_every_end_ends() -> None:
    declared = set(re.findall(r'state ".+" as (\w+)', mermaid()))
    used = set(re.findall(r"(\w+) -->", mermaid())) | set(re.findall(r"--> (\w+)", mermaid()))
    assert used == declared
    ends = {name for name in declared if name.startswith(("advance_", "close_"))}
    assert set(re.findall(r"(\w+) --> \[\*\]", mermaid())) == ends
    assert not re.search(r"[;#]", mermaid()), "characters that end a statement in Mermaid"

"""The table is complete: every row has a scenario, every scenario a row."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest
from conformance_kit.rows import LOCAL, ROWS, TABLES, WORKERS

FOLDER = Path(__file__).parent


def scenarios() -> dict[str, list[str]]:
    """The tests of each row, by reading the files, so that nothing needs to be collected."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(FOLDER.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.row":
                        assert isinstance(mark.args[0], ast.Constant)
                        assert any(argument.arg == "driver" for argument in node.args.args), node.name
                        found[str(mark.args[0].value)].append(f"{path.name}::{node.name}")
    return found


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_a_scenario(row: str) -> None:
    assert scenarios()[row]


def test_every_scenario_names_a_row() -> None:
    assert scenarios().keys() <= ROWS.keys()


def test_numbers_are_unique_and_every_row_runs_on_real_workers() -> None:
    assert len(ROWS) == sum(len(table) for table in TABLES.values())
    assert all(WORKERS in row.drivers for row in ROWS.values())
    alone = {number for number, row in ROWS.items() if LOCAL not in row.drivers}
    assert alone - TABLES["Registry"].keys() == {"C10", "B9", "D3", "D6", "D7", "D8"}

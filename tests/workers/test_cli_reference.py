"""The reference pages say what the commands and the settings are."""

from __future__ import annotations

from pathlib import Path

import pytest

from remand_workers.cli.reference import PAGES, main

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_page_is_fresh(name: str) -> None:
    written = (FOLDER / name).read_text("utf-8")
    assert written == PAGES[name](), "stale: python -m remand_workers.cli.reference docs/reference"


def test_every_page_is_written(tmp_path: Path) -> None:
    main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(PAGES)

"""What `remand init` writes runs as it is, and nothing is ever overwritten."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remand_workers.cli import main
from remand_workers.cli.scaffold import FILES


@pytest.mark.workers
def test_the_two_commands_of_its_readme_work(shop: Any) -> None:
    assert shop.remand("init", "demo").returncode == 0
    shop.folder = shop.folder / "demo"
    readme = (shop.folder / "README.md").read_text()
    tests, run = re.findall(r"^    (.+)$", readme, re.MULTILINE)
    assert tests == "python -m pytest"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=shop.folder, env=shop.environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
    program, *arguments = shlex.split(run)
    assert program == "remand"
    done = shop.remand(*arguments)
    assert done.returncode == 0, done.stderr
    checked = [json.loads(line) for line in (shop.folder / "checked.jsonl").read_text().splitlines()]
    assert [each["value"]["year"] for each in checked] == [1970, 1976, 1976, None]
    assert [each["attempts"] for each in checked] == [1, 2, 1, 1]


def test_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("mine")
    assert main(["init"]) == 2
    assert "nothing was written, because '.' already has README.md" in capsys.readouterr().err.replace(
        "N", "n", 1
    )
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == "mine"


def test_what_it_writes_is_complete(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "new")]) == 0
    written = {
        str(path.relative_to(tmp_path / "new")) for path in (tmp_path / "new").rglob("*") if path.is_file()
    }
    assert written == set(FILES)

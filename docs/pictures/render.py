"""Render `progress.svg`: what `remand run` shows of a real run, drawn by Rich from the command line's own display.

    python docs/pictures/render.py

A scripted model answers, once wrongly for some citations, and one judge is broken for a few; `remand run` starts its
own services and workers in a temporary folder. The picture is the live view in the middle of the run and the table
at its end. This file is also the pipeline that is run. Nothing leaves this machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from pydantic import BaseModel

from remand import Context, Pipeline, Policy, Stage, accept, reject, validator
from remand.llm import ChatProducer
from remand.testing import RecordedRequest, Reply, ScriptedModel

HERE = Path(__file__).resolve().parent
CITATIONS = HERE.parents[1] / "examples" / "citations"
PICTURE = HERE / "progress.svg"
WIDTH = 112
PATIENCE = 120.0
"""Seconds after which a run that shows nothing is given up."""


class Citation(BaseModel):
    """What is extracted."""

    title: str
    year: int | None


def chance(text: str) -> int:
    """A number from 0 to 99 that always belongs to `text`."""
    return hashlib.sha256(text.encode()).digest()[0] * 100 // 256


@validator(version="1")
def year_is_printed(citation: Citation, context: Context) -> object:
    """The year must be printed in the citation."""
    if citation.year and str(citation.year) not in context.input["text"]:
        return reject("The year is not printed in the citation. Use the printed year, or null.", path="year")
    return accept()


@validator(version="1", execution_retries=1)
def catalogue_knows_it(citation: Citation, context: Context) -> object:
    """The library's catalogue must know the title; sometimes it is down."""
    if chance(context.input["id"]) < 6:
        raise ConnectionError
    return accept()


pipeline = Pipeline(
    name="citations",
    version="1",
    stages=[
        Stage(
            "extract", ChatProducer(Citation, "{id} {text}"), [year_is_printed, catalogue_knows_it], retries=2
        )
    ],
    policy=Policy(semantic_rejection="quarantine"),
)


def script() -> ScriptedModel:
    """Answers from the gold file, with a year that is made up where the citation's own number says so."""
    gold = {line["id"]: line for line in map(json.loads, (CITATIONS / "gold.jsonl").read_text().splitlines())}
    asked: dict[str, int] = {}

    def answer(request: RecordedRequest) -> Reply:
        key = re.findall(r"^\S+", request.messages[0]["content"])[0]
        asked[key] = asked.get(key, 0) + 1
        wrong = chance(key[::-1]) < (30, 12, 4)[min(asked[key], 3) - 1]
        year = 1066 if wrong else gold[key]["year"]
        content = json.dumps({"title": gold[key]["title"], "year": year})
        return Reply(
            content, delay=0.4 + chance(key) / 100, usage=(len(str(request.body)) // 4, len(content) // 4)
        )

    return ScriptedModel(answer)


def main() -> int:
    """Run it, look at it while it runs, and save the picture."""
    from rich.console import Console
    from rich.text import Text

    from remand_workers.cli.context import ledger
    from remand_workers.cli.watching import View
    from remand_workers.settings import Settings

    command = [
        "run",
        "render:pipeline",
        "--input",
        "citations.jsonl",
        "--output",
        "extracted.jsonl",
        "--key",
        "id",
    ]
    console = Console(
        record=True, force_terminal=True, width=WIDTH, file=io.StringIO(), color_system="truecolor"
    )
    with tempfile.TemporaryDirectory() as folder, script() as model:
        for file in (CITATIONS / "citations.jsonl", Path(__file__)):
            (Path(folder) / file.name).write_bytes(file.read_bytes())
        kept = {name: text for name, text in os.environ.items() if not name.startswith("REMAND_")}
        environment = {
            **kept,
            "REMAND_MODEL": "scripted",
            "REMAND_MODEL_BASE_URL": model.base_url,
            "REMAND_CONCURRENCY": "8",
        }
        running = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "remand_workers.cli", *command],
            cwd=folder, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        said: list[str] = []
        assert running.stderr is not None
        reader = threading.Thread(target=said.extend, args=(running.stderr,))
        reader.start()
        view, picture = View(quiet=True), None
        settings = Settings(home=Path(folder) / ".remand", _env_file=None)  # type: ignore[call-arg]
        end = time.monotonic() + PATIENCE
        while running.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
            if not (settings.home / "ledger.db").exists():
                continue
            with ledger(settings) as queries:
                for run in queries.runs(limit=1):
                    progress = queries.progress(run.id)
                    if picture is None:
                        view.show(progress)
                        if progress.closed >= 0.6 * max(progress.total, 1):
                            picture = view._picture(progress, 0, "")
        if running.poll() is None:
            running.kill()
        running.wait()
        reader.join()
    if picture is None or running.returncode not in (0, 3):
        sys.stderr.write(f"the run ended with status {running.returncode}\n{''.join(said)}")
        return 1
    begin = next((place for place, line in enumerate(said) if line.startswith("run ")), len(said))
    heading = [line for line in said[:begin] if "at worst" in line]
    console.print(Text(f"$ remand {' '.join(command)}", style="bold"))
    for line in heading:
        console.print(Text(line.rstrip()), soft_wrap=False)
    console.print()
    console.print(picture)
    console.print(Text("\n… and at the end:\n", style="dim"))
    for line in said[begin + 1 :]:
        # Not the warnings, and not the lines that stand in for the live view where there is no terminal.
        if not re.match(r"warning: |[\d,]+ of [\d,]+ items", line):
            console.print(Text(line.rstrip().replace(f"{os.path.realpath(folder)}/", "")))
    svg = console.export_svg(title="remand run", unique_id="progress")
    # Rich links to fonts on a server; a reader's own monospace font will do.
    PICTURE.write_text(re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL))
    sys.stdout.write(f"{PICTURE} written\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

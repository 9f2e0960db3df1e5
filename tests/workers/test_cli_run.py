"""`remand run` and what looks at its run afterwards: on real services and real workers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.workers

Ended = tuple[Any, "subprocess.CompletedProcess[str]"]
MARKER = "MARKER-7f3a"


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_ends_with_outputs_in_input_order_a_table_and_a_summary(ended: Ended) -> None:
    shop, done = ended
    assert done.returncode == 3, done.stderr
    outputs = lines((shop.folder / "out.jsonl").read_text())
    assert [(o["key"], o["item"], o["status"], o["reason"]) for o in outputs] == [
        ("a", 0, "accepted", None),
        ("b", 1, "accepted", None),
        ("c", 2, "rejected", "semantic_rejection"),
        ("d", 3, "incomplete", None),
        ("e", 4, "failed", "operational_failure"),
    ]
    assert outputs[1]["value"] == {"attempt": 2, "do": "correct", "note": f"{MARKER} in a value"}
    assert (outputs[1]["attempts"], outputs[1]["generations"], outputs[2]["value"]) == (2, 2, None)
    assert outputs[3]["validation"] == "incomplete"
    assert outputs[3]["verdicts"][0] == {
        "validator": "judged",
        "verdict": "undetermined",
        "tries": 1,
        "error_type": "ValueError",
        "error_at": outputs[3]["verdicts"][0]["error_at"],
    }
    assert outputs[3]["verdicts"][0]["error_at"].startswith("shop:judged:")
    assert not (shop.folder / "out.jsonl.partial").exists()

    [told] = lines(done.stdout)
    assert (told["status"], told["exit_status"], told["lines_left_out"]) == ("degraded", 3, 2)
    assert (told["accepted"], told["rejected"], told["quarantined"], told["undetermined_verdicts"]) == (
        2,
        1,
        1,
        1,
    )
    assert "undetermined verdicts" in done.stderr
    assert "set aside" in done.stderr


def test_bad_lines_are_reported_by_number_and_nothing_is_quoted(ended: Ended) -> None:
    shop, done = ended
    assert "line 3 was left out: it is not JSON (column 1)" in done.stderr
    assert "line 8 was left out: key 'id': the record has no such field" in done.stderr
    assert MARKER not in done.stdout + done.stderr + shop.log()


def test_the_worst_case_is_said_before_anything_begins(ended: Ended) -> None:
    _, done = ended
    first, second, *_ = done.stderr.splitlines()
    assert first == "at worst, an item: 2 generations, 2 calls of make/judged, 4 calls of make/right"
    assert second == "at worst, all 7 items: 14 generations, 14 calls of make/judged, 28 calls of make/right"


def test_workers_say_nothing_on_the_commands_output_and_end_with_it(ended: Ended) -> None:
    shop, done = ended
    assert shop.workers() == []
    assert "superuser" not in done.stderr + shop.log()
    assert "Warm shutdown" not in done.stdout + done.stderr + shop.log()
    assert "work is taken" in shop.log()


@pytest.fixture
def here(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Runs a command in this process, in the folder of the ended run."""
    import sys

    from remand_workers.cli import main

    shop, _ = ended
    monkeypatch.chdir(shop.folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    captured = pytest.MonkeyPatch()

    def run(*arguments: str) -> tuple[int, str, str]:
        import io

        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with captured.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            status = main(arguments)
        out.seek(0)
        return status, out.read(), err.getvalue()

    yield run
    sys.modules.pop("shop", None)


def test_show_tells_an_items_story_without_a_sensitive_word(
    here: Callable[..., tuple[int, str, str]],
) -> None:
    status, out, _ = here("show", "all", "b")
    assert status == 0
    assert "attempt 1: candidate" in out
    assert "right: rejected, 1 finding" in out
    assert "sent back with what the validators found" in out
    assert "attempt 2, corrected" in out
    assert MARKER not in out
    assert here("show", "b")[1] == out, "without a run it is the latest"
    assert here("show", "1")[1] == out, "a number will do"
    assert "ValueError at shop:judged:" in here("show", "d")[1]
    assert "RuntimeError at shop:make:" in here("show", "e")[1]
    for key in "cde":
        assert MARKER not in here("show", key)[1] + here("show", key, "--json")[1]


def test_show_gives_the_data_when_it_is_asked_for(here: Callable[..., tuple[int, str, str]]) -> None:
    _, out, _ = here("show", "b", "--payload")
    assert '"do": "correct"' in out
    assert f"{MARKER} in a value" in out
    [told] = lines(here("show", "b", "--payload", "--json")[1])
    assert told["payload"]["value.0"]["attempt"] == 2


def test_results_are_the_outputs(ended: Ended, here: Callable[..., tuple[int, str, str]]) -> None:
    shop, _ = ended
    assert here("results", "all")[1] == (shop.folder / "out.jsonl").read_text()


def test_quarantine_lists_what_was_set_aside(here: Callable[..., tuple[int, str, str]]) -> None:
    [told] = json.loads(here("quarantine", "--json")[1])
    assert (told["key"], told["stage"], told["reason"]) == ("c", "make", "semantic_rejection")
    assert "semantic_rejection" in here("quarantine")[1]


def test_status_lists_runs_and_tells_of_one(here: Callable[..., tuple[int, str, str]]) -> None:
    _, out, _ = here("status")
    assert "undetermined verdicts" in out
    assert "all" in out
    [told] = lines(here("status", "al", "--json")[1])
    assert (told["run"], told["status"], told["notes"]) == ("all", "degraded", [])
    assert "reason: semantic_rejection" in here("status", "all")[1]


def test_cancelling_a_run_that_has_ended_says_so(here: Callable[..., tuple[int, str, str]]) -> None:
    assert here("cancel", "all") == (0, "", "run all had ended already: degraded\n")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["status", "nope"], 2, "There is no run 'nope', or several begin so; `remand status` lists them."),
        (["show", "all", "nope"], 2, "Run 'all' has no item with the key or number 'nope'."),
        (["cancel", "nope"], 2, "There is no run 'nope'"),
        (["run", "shop:nothing", "-i", "in.jsonl"], 2, "expected a Pipeline under 'nothing', found nothing"),
        (["run", "nomodule:x", "-i", "in.jsonl"], 2, "there is no module 'nomodule' here"),
        (["run", "shop", "-i", "in.jsonl"], 2, "name a pipeline as MODULE:ATTRIBUTE"),
        (["run", "shop:pipeline"], 2, "Name the input: --input FILE.jsonl"),
        (["run", "shop:pipeline", "-i", "missing.jsonl"], 2, "There is no input file 'missing.jsonl'."),
        (["run", "shop:pipeline", "-i", "."], 2, "The input '.' is a folder"),
        (["run", "shop:pipeline", "-i", "in.jsonl", "-o", "."], 2, "The output '.' is a folder"),
        (["run", "shop:pipeline", "-i", "in.jsonl", "-o", "no/x"], 2, "There is no folder"),
        (
            ["run", "shop:pipeline", "-i", "in.jsonl", "-o", "in.jsonl"],
            2,
            "Input and output are the same file",
        ),
        (["run", "shop:pipeline", "-i", "in.jsonl", "-o", "-", "--json"], 2, "both want standard output"),
        (["run", "shop:pipeline", "-i", "in.jsonl", "--no-workers"], 2, "REMAND_BROKER_URL"),
        (["resume", "nope"], 2, "There is no run 'nope'"),
        (["submit", "shop:pipeline", "-i", "in.jsonl"], 2, "start them with `remand up`"),
        (["worker"], 2, "start them with `remand up`"),
        (["flower"], 2, "start them with `remand up`"),
        (["run", "shop:pipeline", "-i", "in.jsonl", "--pool", "nonsense"], 2, "REMAND_POOL: must be one of"),
        (["results", "--home", "elsewhere"], 2, "There is no ledger in 'elsewhere' yet"),
    ],
)
def test_what_is_wrong_is_one_clear_message(
    here: Callable[..., tuple[int, str, str]], arguments: list[str], status: int, message: str
) -> None:
    got, out, err = here(*arguments)
    assert got == status, err
    assert message in err
    assert "Traceback" not in err
    assert err.count("error: ") == 1
    assert out == ""


def test_an_empty_input_is_refused(here: Callable[..., tuple[int, str, str]]) -> None:
    Path("empty.jsonl").write_text("\n\n")
    status, _, err = here("run", "shop:pipeline", "-i", "empty.jsonl", "-o", "x.jsonl")
    assert (status, "The input is empty" in err, Path("x.jsonl").exists()) == (2, True, False)


def test_a_broken_module_is_refused_with_the_place(here: Callable[..., tuple[int, str, str]]) -> None:
    Path("broken_shop.py").write_text(f"raise ValueError('{MARKER}')\n")
    status, _, err = here("run", "broken_shop:pipeline", "-i", "in.jsonl")
    assert status == 2
    assert "The pipeline was refused" in err
    assert "ValueError at broken_shop:<module>:1" in err
    assert MARKER not in err

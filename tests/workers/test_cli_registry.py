"""`remand registry …` and registries that a run feeds: real services, real workers, and a model that follows a script.

The model says that works are the same whose titles begin with the same word; of `maybe` it is not sure.
"""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remand.testing import RecordedRequest, Reply, ScriptedModel
from remand_workers import Client, Settings
from remand_workers.embedded import Embedded

pytestmark = pytest.mark.workers

Here = Callable[..., tuple[int, str, str]]
MARKER = "MARKER-7f3a"
LIBRARY = f'''
"""Works, and a pipeline that feeds a registry of them."""

import os

from pydantic import BaseModel

from remand import Feed, Pipeline, Produced, Registry, Stage, producer
from remand.llm import ChatProposer


class Work(BaseModel):
    id: str
    title: str
    doi: str | None = None
    note: str = "{MARKER} in a record"


def by_id(work):
    return work.id


def title(work):
    return work.title


def doi(work):
    return work.doi


def different_years(one, other):
    """Works with different years in their titles are different."""
    return one.title.rpartition(" ")[2] != other.title.rpartition(" ")[2]


def counted(works):
    return works[0].model_copy(update={{"note": f"made of {{len(works)}}"}})


works = Registry(
    "works", Work, version="1", key=by_id, text=title, exact=[doi], cannot_link=[different_years],
    merge=counted, proposer=ChatProposer(model="scripted", repairs=0),
)
other = Registry(
    "other", Work, version=os.environ.get("OTHER_VERSION", "1"), key=by_id, text=title,
    proposer=ChatProposer(model="scripted"),
)


@producer(version="1", output=Work)
def take(context, correction):
    return Produced(Work.model_validate(context.input))


pipeline = Pipeline(
    "library", version=os.environ.get("LIBRARY_VERSION", "1"), stages=[Stage("take", take)],
    registries=[Feed(works, lambda work, context: work, version="1")],
)
'''
WORKS = [
    {"id": "a1", "title": "Turing on computable numbers 1936", "doi": "10.1/A"},
    {"id": "a2", "title": "turing, computable numbers 1936", "doi": "10.1/a"},
    {"id": "a3", "title": "Turing computable numbers 1936"},
    {"id": "a4", "title": "Turing computable numbers 1937"},
    {"id": "b1", "title": "Shannon communication theory 1948"},
    {"id": "b2", "title": "Shannon mathematical communication theory 1948"},
    {"id": "m1", "title": "maybe a theory of games 1944"},
    {"id": "m2", "title": "maybe theory of games 1944"},
]


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def same(request: RecordedRequest) -> dict[str, Any]:
    """Groups by the first word of the title."""
    found: dict[str, list[str]] = {}
    [asked] = [message["content"] for message in request.messages if message["role"] == "user"][:1]
    for line in asked.splitlines():
        if line.startswith("{"):
            record = json.loads(line)
            found.setdefault(record["text"].split()[0].strip(",").lower(), []).append(record["id"])
    groups = {word: ids for word, ids in found.items() if len(ids) > 1}
    unsure = groups.pop("maybe", None)
    return {"groups": list(groups.values()), "unsure": [unsure] if unsure else []}


def open_library(shop: Any, model: ScriptedModel, works: list[dict[str, Any]] | None = None) -> Any:
    """A library in the shop's folder, with works to import, whose model is the scripted one."""
    (shop.folder / "library.py").write_text(LIBRARY)
    shop.inputs(*[json.dumps(work) for work in WORKS if works is None], name="works.jsonl")
    if works is not None:
        shop.inputs(*[json.dumps(work) for work in works], name="works.jsonl")
    shop.environment["REMAND_MODEL_BASE_URL"] = model.base_url
    return shop


def many(count: int) -> list[dict[str, Any]]:
    """Works of which three each are the same."""
    return [{"id": f"w{n:03}", "title": f"word{n // 3} of the treatise 19{n // 3:02}"} for n in range(count)]


def contents(folder: Path) -> list[str]:
    """All rows of the ledger."""
    with sqlite3.connect(folder / ".remand" / "ledger.db") as connection:
        return list(connection.iterdump())


Told = dict[str, "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def library(new_shop: Callable[[str], Any]) -> Iterator[tuple[Any, Told, ScriptedModel]]:
    """A registry that was imported and reconciled, and what the commands said."""
    with ScriptedModel(same) as model:
        shop = open_library(new_shop("library"), model)
        with (shop.folder / "works.jsonl").open("a") as file:
            file.write(f"{MARKER}, and no JSON\n" + '{"id": 5}\n' + '{"id": "x", "title": " "}\n')
        told = {
            "empty": shop.remand("registry", "list"),
            "add": shop.remand("registry", "add", "library:works"),
            "import": shop.remand("registry", "import", "works", "-i", "works.jsonl"),
            "reconcile": shop.remand("registry", "reconcile", "works", "--json"),
        }
        yield shop, told, model


@pytest.fixture
def here(library: tuple[Any, Told, ScriptedModel], monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """Runs a command in this process, in the folder of the reconciled registry."""
    shop, _, model = library
    monkeypatch.chdir(shop.folder)
    monkeypatch.setenv("REMAND_MODEL_BASE_URL", model.base_url)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield commanded
    sys.modules.pop("library", None)


@pytest.fixture
def copy(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """The same with a copy of the ledger that a test may change."""
    source, target = Path(".remand"), tmp_path / "copy"
    target.mkdir()
    with (
        sqlite3.connect(source / "ledger.db") as before,
        sqlite3.connect(target / "ledger.db") as after,
    ):
        before.backup(after)
    shutil.copy(source / "vault.key", target) if (source / "vault.key").exists() else None
    monkeypatch.setenv("REMAND_HOME", str(target))
    return here


def commanded(*arguments: str) -> tuple[int, str, str]:
    from remand_workers.cli import main

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        status = main(arguments)
    out.seek(0)
    return status, out.read(), err.getvalue()


def test_a_registry_is_added_before_anything_was_run_here(library: tuple[Any, Told, ScriptedModel]) -> None:
    _, told, _ = library
    assert told["empty"].returncode == 2
    assert told["add"].returncode == 0
    assert "registry 'works' is known in version '1', at 'library:works'" in told["add"].stderr


def test_bad_lines_of_an_import_are_reported_by_number_and_nothing_is_quoted(
    library: tuple[Any, Told, ScriptedModel],
) -> None:
    _, told, _ = library
    assert told["import"].returncode == 3
    for words in (
        "line 9 was left out: it is not JSON",
        "line 10 was left out: it does not fit the registry's entry model",
        "line 11 was left out: the registry's text gives nothing to compare for it",
        "11 lines read: 8 added, 3 left out",
        "remand registry reconcile works",
    ):
        assert words in told["import"].stderr
    assert MARKER not in told["import"].stdout + told["import"].stderr


def test_reconciling_merges_what_is_the_same_and_says_what_it_cost(
    library: tuple[Any, Told, ScriptedModel],
) -> None:
    shop, told, model = library
    done = told["reconcile"]
    assert done.returncode == 0, done.stderr
    [report] = lines(done.stdout)
    assert (report["entries"], report["clusters"], report["open_reviews"], report["fresh"]) == (8, 5, 1, 0)
    assert (report["merges"], report["merges_without_model"], report["exit_status"]) == (3, 1, 0)
    assert report["generations"] == len(model.requests)
    assert report["calls"] <= report["budget"]
    assert "without the model" in done.stderr
    assert "remand registry review works" in done.stderr
    assert MARKER not in done.stdout + done.stderr + shop.log()
    assert shop.workers() == []


def test_an_unchanged_registry_costs_no_call_and_no_write(library: tuple[Any, Told, ScriptedModel]) -> None:
    shop, _, model = library
    before, asked = contents(shop.folder), len(model.requests)
    again = shop.remand("registry", "reconcile", "works", "--json")
    assert again.returncode == 0
    assert "registry 'works' has nothing new: 8 entries, 5 clusters" in again.stderr
    assert lines(again.stdout)[0]["calls"] == 0
    assert contents(shop.folder) == before
    assert len(model.requests) == asked
    assert shop.remand("registry", "import", "works", "-i", "works.jsonl", "-q").returncode == 3
    assert contents(shop.folder) == before


def test_list_and_show_tell_where_it_stands(here: Here) -> None:
    assert here("registry") == here("registry", "list")
    assert "works" in here("registry", "list")[1]
    [listed] = json.loads(here("registry", "list", "--json")[1])
    assert (listed["registry"], listed["state"], listed["entries"], listed["clusters"]) == (
        "works",
        "idle",
        8,
        5,
    )
    shown = json.loads(here("registry", "show", "works", "--json")[1])
    [job] = shown["jobs"]
    assert (job["state"], job["merges"], job["merges_without_model"], job["fresh"]) == ("done", 3, 1, 8)
    assert job["job"] in here("registry", "show", "works")[1]
    one = json.loads(here("registry", "show", "works", "--job", job["job"][:6], "--json")[1])
    assert [each["number"] for each in one["rounds"]] == list(range(1, job["rounds"] + 1))
    assert sum(each["blocks"] for each in one["rounds"]) == job["calls"]
    assert f"registry-{job['job']}-1-" in here("registry", "show", "works", "--job", job["job"])[1]


def test_entries_are_listed_by_cluster_and_an_alias_leads_to_its_cluster(here: Here) -> None:
    listed = json.loads(here("registry", "entries", "works", "--json")[1])
    assert {each["id"]: each["members"] for each in listed} == {
        "a1": ["a1", "a2", "a3"],
        "a4": ["a4"],
        "b1": ["b1", "b2"],
        "m1": ["m1"],
        "m2": ["m2"],
    }
    status, out, err = here("registry", "entries", "works", "--cluster", "a3", "--json")
    assert (status, json.loads(out)[0]["id"], err) == (0, "a1", "a3 was merged into a1\n")
    assert here("registry", "entries", "works", "--cluster", "a1")[2] == ""
    assert "b1, b2" in here("registry", "entries", "works", "--entry", "b2")[1]
    assert "there are more than 2" in here("registry", "entries", "works", "--limit", "2")[2]


def test_records_are_shown_where_they_are_asked_for_and_nowhere_else(here: Here) -> None:
    commands = [
        ["list"], ["show", "works"], ["entries", "works"], ["review", "works"], ["history", "works"],
    ]  # fmt: skip
    for command in commands:
        for more in ([], ["--json"]):
            status, out, err = here("registry", *command, *more)
            assert status == 0, err
            assert MARKER not in out + err
    for command in ("entries", "review"):
        assert MARKER in here("registry", command, "works", "--records")[1]
        [first, *_] = json.loads(here("registry", command, "works", "--records", "--json")[1])
        assert first["records"][first["members"][0]]["note"] == f"{MARKER} in a record"


def test_history_tells_of_each_merge_where_it_came_from(here: Here) -> None:
    told = json.loads(here("registry", "history", "works", "--json")[1])
    assert Counter(each["rule"] for each in told) == {"model": 2, "exact": 1}
    assert [each["receipt"] for each in told] == [3, 2, 1]
    [exact] = [each for each in told if each["rule"] == "exact"]
    assert (exact["before"], exact["after"]) == ({"a1": ["a1"], "a2": ["a2"]}, {"a1": ["a1", "a2"]})
    [by_model] = json.loads(here("registry", "history", "works", "--cluster", "b2", "--json")[1])
    assert by_model["run"].startswith("registry-")
    assert (by_model["attempt"], by_model["undone_by"]) == (1, None)
    assert "b1 | b2" in here("registry", "history", "works")[1]


def test_export_writes_a_line_a_cluster_with_its_canonical_record(here: Here, tmp_path: Path) -> None:
    status, out, _ = here("registry", "export", "works")
    assert status == 0
    found = {line["id"]: line for line in lines(out)}
    assert found["a1"]["members"] == ["a1", "a2", "a3"]
    assert found["a1"]["record"]["note"] == "made of 3"
    assert len(found) == 5
    file = tmp_path / "out.jsonl"
    assert here("registry", "export", "works", "-o", str(file))[:2] == (0, "")
    assert file.read_text() == out
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_person_settles_a_review(copy: Here) -> None:
    [open_] = json.loads(copy("registry", "review", "works", "--json")[1])
    assert (open_["members"], open_["clusters"], open_["why"]) == (["m1", "m2"], 2, "unsure")
    status, out, _ = copy("registry", "accept", "works", str(open_["review"]), "--json")
    assert (status, json.loads(out)["cluster"]) == (0, "m1")
    assert "m1, m2" in copy("registry", "entries", "works")[1]
    status, _, err = copy("registry", "refuse", "works", str(open_["review"]))
    assert (status, err) == (2, f"error: Review {open_['review']} is accepted already.\n")
    assert "waits for a person" in copy("registry", "review", "works")[2]


def test_a_refused_review_stays_apart(copy: Here) -> None:
    [open_] = json.loads(copy("registry", "review", "works", "--json")[1])
    assert copy("registry", "refuse", "works", str(open_["review"]))[0] == 0
    listed = json.loads(copy("registry", "entries", "works", "--json")[1])
    assert {"m1", "m2"} <= {each["id"] for each in listed}
    assert json.loads(copy("registry", "review", "works", "--json")[1]) == []


def test_a_merge_is_undone_only_after_those_that_stand_on_it(copy: Here) -> None:
    told = json.loads(copy("registry", "history", "works", "--cluster", "a1", "--json")[1])
    above, below = [each["receipt"] for each in told]
    status, _, err = copy("registry", "unmerge", "works", str(below))
    assert (status, err) == (2, f"error: Merge {above} stands on merge {below}; undo {above} first.\n")
    status, out, _ = copy("registry", "unmerge", "works", str(above), "--json")
    assert (status, json.loads(out)["clusters"]) == (0, ["a1", "a3"])
    assert copy("registry", "unmerge", "works", str(below))[0] == 0
    kinds = [each["kind"] for each in json.loads(copy("registry", "history", "works", "--json")[1])]
    assert kinds == ["unmerge", "unmerge", "merge", "merge", "merge"]
    [first] = [each for each in lines(copy("registry", "export", "works")[1]) if each["id"] == "a1"]
    assert first["members"] == ["a1"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["show", "nope"], 2, "There is no registry 'nope'; see `remand registry list`"),
        (["entries", "nope"], 2, "There is no registry 'nope'"),
        (["entries", "works", "--cluster", "nope"], 2, "Registry 'works' has no cluster 'nope'."),
        (["entries", "works", "--entry", "nope"], 2, "Registry 'works' has no entry 'nope'."),
        (
            ["entries", "works", "--entry", "a1", "--cluster", "a1"],
            2,
            "Name a cluster or an entry, not both.",
        ),
        (["show", "works", "--job", "nope"], 2, "Registry 'works' has no job 'nope'"),
        (["history", "works", "--cluster", "nope"], 2, "Registry 'works' has no cluster 'nope'."),
        (["accept", "works", "99"], 2, "Registry 'works' has no review 99"),
        (["unmerge", "works", "99"], 2, "Registry 'works' has no merge 99"),
        (["reconcile", "nope"], 2, "There is no registry 'nope'"),
        (["reconcile", "nomodule:x"], 2, "there is no module 'nomodule' here"),
        (
            ["reconcile", "library:pipeline"],
            2,
            "name one of the registries that it feeds: library:pipeline#works",
        ),
        (["add", "library:Work"], 2, "expected a Registry under 'Work', found a"),
        (["import", "works", "-i", "missing.jsonl"], 2, "There is no input file 'missing.jsonl'."),
        (["export", "works", "-o", "."], 2, "The output '.' is a folder"),
        (["export", "works", "-o", "no/x"], 2, "There is no folder"),
        (["list", "--home", "elsewhere"], 2, "There is no ledger in 'elsewhere' yet"),
    ],
)
def test_what_is_wrong_is_one_clear_message(
    here: Here, arguments: list[str], status: int, message: str
) -> None:
    got, out, err = here("registry", *arguments)
    assert got == status, err
    assert message in err
    assert err.count("error: ") == 1
    assert (out, "Traceback" in err) == ("", False)


def test_a_registry_that_moved_is_looked_for_where_it_was_added_last(copy: Here) -> None:
    assert json.loads(copy("registry", "list", "--json")[1])[0]["target"] == "library:works"
    assert copy("registry", "add", "library:pipeline#works")[0] == 0
    assert json.loads(copy("registry", "list", "--json")[1])[0]["target"] == "library:pipeline#works"


def test_code_of_another_version_takes_nothing_until_it_is_made_known(
    copy: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert copy("registry", "add", "library:other")[0] == 0
    sys.modules.pop("library")
    monkeypatch.setenv("OTHER_VERSION", "2")
    status, _, err = copy("registry", "import", "other", "-i", "works.jsonl")
    assert status == 2
    assert "is known in version '1', and 'library:other' has version '2'" in err
    assert copy("registry", "add", "library:other")[0] == 0
    assert copy("registry", "import", "other", "-i", "works.jsonl")[0] == 3


# ------------------------------------------------------------------------------------------- reconciling for long


def test_the_interrupted_job_goes_on_with_the_same_command(shop: Any, until: Callable[..., None]) -> None:
    hold = [True]

    def answer(request: RecordedRequest) -> Reply:
        return Reply(json.dumps(same(request)), delay=2.0 if hold[0] else 0.0)

    with ScriptedModel(answer) as model:
        open_library(shop, model, many(30))
        shop.remand("registry", "add", "library:works")
        shop.remand("registry", "import", "works", "-i", "works.jsonl")
        run = shop.start("registry", "reconcile", "works")
        until(lambda: model.requests, what="a question")
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
        assert run.returncode == 130, err
        assert "stopping: workers finish what they hold" in err
        assert "It can go on: remand registry reconcile works" in err
        assert shop.workers() == []
        [standing] = json.loads(shop.remand("registry", "list", "--json").stdout)
        assert (standing["state"], standing["clusters"]) == ("proposing", 30)

        hold[0] = False
        done = shop.remand("registry", "reconcile", "library:works", "--json", REMAND_DISPATCH_LEASE="1")
        assert done.returncode == 0, done.stderr
        [report] = lines(done.stdout)
        assert report["jobs"] == [standing["job"]["job"]], "the same job"
        assert (report["clusters"], report["merges"]) == (10, 10)
        assert not model.errors


def test_blocks_that_fail_leave_their_entries_for_the_next_time(shop: Any) -> None:
    works = True

    def answer(request: RecordedRequest) -> Any:
        return same(request) if works else f"{MARKER}, and no groups"

    with ScriptedModel(answer) as model:
        works = False
        open_library(shop, model, many(6))
        shop.remand("registry", "add", "library:works")
        shop.remand("registry", "import", "works", "-i", "works.jsonl")
        failed = shop.remand("registry", "reconcile", "works", "--json", "-q")
        assert failed.returncode == 3, failed.stderr
        [report] = lines(failed.stdout)
        assert (report["fresh"], report["blocks_failed"], report["clusters"]) == (6, report["calls"], 6)
        assert "6 entries were in blocks that failed and are left for the next time" in failed.stderr
        assert MARKER not in failed.stdout + failed.stderr + shop.log()
        works = True
        done = shop.remand("registry", "reconcile", "works", "--json")
        assert (done.returncode, lines(done.stdout)[0]["clusters"]) == (0, 2), done.stderr


def test_a_run_goes_on_to_reconcile_the_registries_that_it_feeds(shop: Any) -> None:
    with ScriptedModel(same) as model:
        open_library(shop, model)
        done = shop.remand("run", "library:pipeline", "-i", "works.jsonl", "-o", "out.jsonl", "--json")
        assert done.returncode == 0, done.stderr
        [told] = lines(done.stdout)
        [fed] = told["registries"]
        assert (fed["registry"], fed["entries"], fed["clusters"], fed["open_reviews"]) == ("works", 8, 5, 1)
        assert "clusters" in done.stderr
        assert MARKER not in done.stdout + done.stderr + shop.log()

        asked = len(model.requests)
        more = {"id": "b3", "title": "Shannon theory of communication 1948"}
        shop.inputs(json.dumps(more), name="more.jsonl")
        left = shop.remand(
            "run", "library:pipeline", "-i", "more.jsonl", "-o", "x.jsonl", "--no-reconcile", "--json"
        )
        assert (left.returncode, lines(left.stdout)[0]["registries"]) == (0, []), left.stderr
        [standing] = json.loads(shop.remand("registry", "list", "--json").stdout)
        assert (standing["state"], standing["runs_to_read"], standing["entries"]) == ("asked", 1, 8)
        assert len(model.requests) == asked
        again = shop.remand("registry", "reconcile", "library:pipeline#works", "--json")
        assert (lines(again.stdout)[0]["entries"], lines(again.stdout)[0]["clusters"]) == (9, 5), again.stderr


def test_a_run_whose_pipeline_has_changed_is_not_read_in_and_that_is_said(shop: Any) -> None:
    with ScriptedModel(same) as model:
        open_library(shop, model)
        shop.remand("run", "library:pipeline", "-i", "works.jsonl", "-o", "out.jsonl", "--no-reconcile")
        changed = shop.remand("registry", "reconcile", "works", "--json", LIBRARY_VERSION="2")
        assert changed.returncode == 3, changed.stderr
        [report] = lines(changed.stdout)
        assert (report["entries"], len(report["jobs"]), report["notes"]) == (0, 1, {"runs_not_served": 1})
        assert "1 runs were not read in, because their pipeline is not here as it was" in changed.stderr
        done = shop.remand("registry", "reconcile", "works", "--json")
        assert (done.returncode, lines(done.stdout)[0]["clusters"]) == (0, 5), done.stderr


def test_workers_that_stay_do_it_and_the_command_and_the_client_watch(
    shop: Any, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = True

    def answer(request: RecordedRequest) -> Any:
        return Reply("later", status=429, headers={"retry-after": "0.2"}) if busy else same(request)

    with ScriptedModel(answer) as model:
        open_library(shop, model)
        up = shop.start("up", "--pipeline", "library:works")
        while "ready" not in (line := up.stderr.readline()):
            assert line, "it ended without a word"
        with Embedded(Settings(home=shop.folder / ".remand")) as services:
            addresses = {**services.settings.environment(), "REMAND_MODEL_BASE_URL": model.base_url}
            shop.remand("registry", "add", "library:works", **addresses)
            shop.remand("registry", "import", "works", "-i", "works.jsonl", **addresses)
            watching = shop.start("registry", "reconcile", "works", "--json", **addresses)
            assert "the workers that serve the broker do it" in watching.stderr.readline()
            busy = False
            out, err = watching.communicate(timeout=60)
            assert watching.returncode == 0, err
            [report] = lines(out)
            assert (report["clusters"], report["fresh"], report["state"]) == (5, 0, "idle")
            assert len(report["jobs"]) == 1

            monkeypatch.chdir(shop.folder)
            monkeypatch.setattr(sys, "path", [*sys.path])
            monkeypatch.setenv("REMAND_MODEL_BASE_URL", model.base_url)
            with Client(services.settings) as client:
                assert client.reconcile("works").wait(5) is None, "nothing is new"
                put = client.put("works", [{"id": "b3", "title": "Shannon theory of communication 1948"}])
                assert (put.added, put.unchanged) == (1, 0)
                asked = client.reconcile("works")
                job = asked.wait(60)
                assert job is not None
                assert job.state == "done"
                assert client.registries.cluster_of("works", "b3") == "b1"
                assert asked.standing().settled
            sys.modules.pop("library", None)

            fed = shop.remand("run", "library:pipeline", "-i", "works.jsonl", "-o", "out.jsonl", **addresses)
            assert "workers that stay reconcile registry 'works'" in fed.stderr
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=60)


def test_the_live_view_goes_round_by_round(shop: Any) -> None:
    def answer(request: RecordedRequest) -> Reply:
        return Reply(json.dumps(same(request)), delay=0.5)

    with ScriptedModel(answer) as model:
        open_library(shop, model, many(30))
        shop.remand("registry", "add", "library:works")
        shop.remand("registry", "import", "works", "-i", "works.jsonl")
        ours, theirs = pty.openpty()
        run = subprocess.Popen(
            [sys.executable, "-m", "remand_workers.cli", "registry", "reconcile", "works"],
            cwd=shop.folder,
            env={**shop.environment, "TERM": "xterm", "COLUMNS": "160"},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        shop.started.append(run)
        os.close(theirs)
        seen = b""
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:  # The terminal's other side is closed.
                break
            if not block:
                break
            seen += block
        os.close(ours)
        assert run.wait(timeout=30) == 0
        text = seen.decode()
        assert "round 1, proposing" in text
        assert "of at most" in text
        assert MARKER not in text

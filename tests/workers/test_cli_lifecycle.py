"""How commands end, and what goes on behind them: interruptions, deaths, streams, services that others use."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.workers

GOOD = '{"do": "good"}'


def slow(seconds: float) -> str:
    return json.dumps({"do": "slow", "seconds": seconds})


def keys(path: Path) -> list[str]:
    return [json.loads(line)["key"] for line in path.read_text().splitlines()]


def servers_of(shop: Any) -> list[int]:
    services = shop.folder / ".remand" / "services.json"
    return [json.loads(services.read_text())["server"]] if services.exists() else []


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_first_interrupt_stops_in_order_and_resume_goes_on(shop: Any, until: Callable[..., None]) -> None:
    shop.inputs(*[GOOD] * 5, *[slow(0.4)] * 12)
    run = shop.start(
        "run", "shop:pipeline", "-i", "in.jsonl", "-o", "out.jsonl", "--run-id", "r", "--concurrency", "2"
    )
    partial = shop.folder / "out.jsonl.partial"
    until(lambda: partial.exists() and len(partial.read_text().splitlines()) >= 5, what="outputs")
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert "stopping: workers finish what they hold" in err
    assert "outputs so far are in" in err
    assert "remand resume r --output out.jsonl" in err
    assert "Traceback" not in err
    assert shop.workers() == []
    assert servers_of(shop) == []
    assert not (shop.folder / "out.jsonl").exists()
    assert keys(partial) == [str(n) for n in range(len(keys(partial)))]

    shown = shop.remand("status", "r")
    assert "No services run in '.remand', so nothing goes on: `remand resume r` starts them." in shown.stderr

    done = shop.remand("resume", "r", "--output", "out.jsonl", REMAND_DISPATCH_LEASE="1")
    assert done.returncode == 0, done.stderr
    assert keys(shop.folder / "out.jsonl") == [str(n) for n in range(17)]
    assert not partial.exists()


def test_the_second_interrupt_ends_at_once(shop: Any, until: Callable[..., None]) -> None:
    shop.inputs(slow(60))
    run = shop.start("run", "shop:pipeline", "-i", "in.jsonl", "-o", "out.jsonl", "--run-id", "r")
    until((shop.folder / "began").exists, what="a step")
    run.send_signal(signal.SIGINT)
    while "stopping" not in (line := run.stderr.readline()):
        assert line, "it ended without a word"
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=20)
    assert run.returncode == 130
    assert "The run can go on: remand resume r" in err
    assert "Traceback" not in err
    assert shop.workers() == []
    assert servers_of(shop) == []


def test_workers_and_server_never_outlive_a_killed_command(shop: Any, until: Callable[..., None]) -> None:
    shop.inputs(slow(60))
    run = shop.start("run", "shop:pipeline", "-i", "in.jsonl", "-o", "out.jsonl")
    until((shop.folder / "began").exists, what="a step")
    [worker] = shop.workers()
    [server] = servers_of(shop)
    os.kill(worker, signal.SIGSTOP)  # Even a frozen one.
    run.kill()
    until(lambda: not alive(worker) and not alive(server), what="the end of worker and server", seconds=20)


def test_a_worker_that_dies_is_started_again_and_that_is_said(shop: Any) -> None:
    shop.inputs('{"do": "die"}', GOOD)
    done = shop.remand(
        "run", "shop:pipeline", "-i", "in.jsonl", "-o", "out.jsonl",
        REMAND_CLAIM_LEASE="3", REMAND_CLAIM_RENEWAL="1", REMAND_DISPATCH_LEASE="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "worker 1 ended (SIGKILL); it is started again" in done.stderr
    assert "recovered after a loss" in done.stderr
    assert keys(shop.folder / "out.jsonl") == ["0", "1"]


def test_workers_that_cannot_begin_end_the_command_with_their_log(shop: Any) -> None:
    shop.inputs(GOOD)
    # The command can import it, its workers cannot.
    (shop.folder / "shy.py").write_text(
        "import os, sys\nif 'worker' in sys.argv: raise ValueError('MARKER-7f3a')\nfrom shop import pipeline\n"
    )
    done = shop.remand("run", "shy:pipeline", "-i", "in.jsonl", "-o", "out.jsonl")
    assert done.returncode == 1
    assert "worker 1 ended (exit status 2) and is not started again" in done.stderr
    assert "No worker stays alive; the last lines of" in done.stderr
    assert "importing its module raised ValueError at shy:<module>:2" in shop.log()
    assert "MARKER" not in done.stderr + shop.log()


def test_an_item_that_fails_the_run_ends_it_with_status_1_and_resume_tries_again(shop: Any) -> None:
    shop.inputs(GOOD, '{"do": "raise"}')
    done = shop.remand("run", "shop:strict", "-i", "in.jsonl", "-o", "out.jsonl", "--run-id", "r", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert keys(shop.folder / "out.jsonl") == ["0", "1"]
    again = shop.remand("resume", "r", "-o", "-")
    assert again.returncode == 1
    assert "run r: 1 unfinished item to be done again" in again.stderr
    assert [json.loads(line)["status"] for line in again.stdout.splitlines()] == ["accepted", "failed"]


def test_a_stream_is_answered_while_it_is_open(shop: Any) -> None:
    run = shop.start("run", "shop:pipeline", "-i", "-")
    run.stdin.write('{"do": "correct"}\n')
    run.stdin.flush()
    first = json.loads(run.stdout.readline())
    assert (first["key"], first["status"], first["attempts"]) == ("0", "accepted", 2)
    out, err = run.communicate(GOOD + "\n", timeout=60)
    assert run.returncode == 0, err
    assert json.loads(out)["key"] == "1"


def test_a_reader_that_goes_away_stops_the_run_in_order(shop: Any, until: Callable[..., None]) -> None:
    shop.inputs(*[GOOD] * 3, *[slow(0.2)] * 50)
    run = shop.start("run", "shop:pipeline", "-i", "in.jsonl", "--run-id", "r")
    assert json.loads(run.stdout.readline())["key"] == "0"
    run.stdout.close()
    run.stdin.close()
    assert run.wait(60) == 1
    err = run.stderr.read()
    assert "Nobody reads the output any more" in err
    assert "remand resume r" in err
    assert "Traceback" not in err
    assert shop.workers() == []


def test_the_live_view_shows_undetermined_verdicts_apart(shop: Any) -> None:
    shop.inputs('{"do": "undetermined"}', *[slow(1)] * 2)
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "remand_workers.cli",
            "run",
            "shop:pipeline",
            "-i",
            "in.jsonl",
            "-o",
            "out.jsonl",
        ],
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
        seen += block
    os.close(ours)
    assert run.wait(30) == 3
    text = seen.decode()
    assert "items/s" in text
    assert "incomplete" in text
    assert "undetermined verdicts" in text
    assert "\x1b[" in text


def test_up_serves_submit_status_worker_doctor_and_cancel(shop: Any, until: Callable[..., None]) -> None:
    shop.inputs(GOOD, '{"do": "correct"}', "[")
    up = shop.start("up", "--pipeline", "shop:pipeline")
    while "ready" not in (line := up.stderr.readline()):
        assert line, "it ended without a word"
    submitted = shop.remand("submit", "shop:pipeline", "-i", "in.jsonl", "--wait", "--run-id", "s")
    assert (submitted.returncode, submitted.stdout) == (3, "s\n"), submitted.stderr

    extra = shop.start("worker", "--role", "producer", "--name", "extra")
    until(lambda: len(shop.workers()) == 2, what="another worker")
    while "work is taken" not in (line := extra.stderr.readline()):
        assert line, "it ended without a word"
    doctor = shop.remand("doctor", "shop:pipeline", "--json")
    found = {each["part"]: each for each in json.loads(doctor.stdout)}
    assert doctor.returncode == 0, doctor.stdout
    assert {each["health"] for each in found.values()} == {"ok"}
    assert found["workers"]["found"].startswith("2 answer")
    assert "own.queue" in found["queues"]["found"]
    extra.send_signal(signal.SIGINT)
    assert extra.wait(30) == 130

    shop.inputs(*[slow(3)] * 40)
    begun = shop.remand(
        "submit", "shop:pipeline", "-i", "in.jsonl", "--run-id", "t", "--json", "--no-reuse", "--window", "4"
    )
    assert json.loads(begun.stdout) == {"run": "t", "items": 40, "lines_left_out": 0}
    assert shop.remand("cancel", "t").returncode == 0
    watched = shop.remand("status", "t", "--watch")
    assert watched.returncode == 1
    assert "cancelled" in watched.stdout

    up.send_signal(signal.SIGTERM)
    _, err = up.communicate(timeout=60)
    assert up.returncode == 130, err
    assert shop.workers() == []
    assert servers_of(shop) == []


def test_status_says_in_plain_words_what_keeps_a_run_from_going_on(
    shop: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from remand_workers import Client, Settings
    from remand_workers.cli import main, standing
    from remand_workers.embedded import Embedded

    monkeypatch.chdir(shop.folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(standing, "_LATE", -1.0)
    with Embedded(Settings()) as services, Client(services.settings) as client:
        client.submissions.feeder_lease = -1.0
        run = client.begin("shop:pipeline")
        client.feed(run, enumerate([{"do": "good"}]))
        assert main(["status", run.id]) == 0
        said = capsys.readouterr().err
        assert "No worker has touched it yet. Start one with `remand worker`" in said
        assert "Its input was not read to the end and nobody reads it now." in said
        assert f"remand resume {run.id} --input FILE" in said
    assert main(["resume", run.id, "-o", "out.jsonl"]) == 2
    assert "was not read to its end. Give it again with --input" in capsys.readouterr().err
    shop.inputs(GOOD)
    other = shop.remand("run", "shop:pipeline", "-i", "in.jsonl", "-o", "other.jsonl")
    assert other.returncode == 0, other.stderr
    stands = json.loads(shop.remand("status", run.id, "--json").stdout)
    assert (stands["pending"], stands["items"]) == (1, 1), "the workers of one command worked for another run"
    done = shop.remand("resume", run.id, "-o", "out.jsonl", "--no-more-input")
    assert done.returncode == 0, done.stderr
    sys.modules.pop("shop", None)

"""Fault points: free when unarmed, exact when armed, bounded across processes, and refused where they mean nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remand_tasks import faults
from remand_tasks.faults import POINTS, BadFaults, InjectedFault, point

SOURCES = Path(faults.__file__).parent


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.arm({})


def arm(text: str, folder: Path | None = None) -> None:
    faults.arm({"REMAND_FAULTS": text, **({"REMAND_FAULTS_ONCE_DIR": str(folder)} if folder else {})})


def breaks(name: str) -> bool:
    try:
        point(name)
    except InjectedFault as fault:
        return fault.point == name
    return False


def test_nothing_happens_unarmed() -> None:
    faults.arm({})
    assert not faults.armed()
    assert not any(breaks(name) for name in POINTS)


def test_every_point_of_the_table_is_in_the_product_and_no_other() -> None:
    placed = {
        name
        for path in SOURCES.rglob("*.py")
        if path.name != "faults.py"
        for name in re.findall(r'\bpoint\("([a-z.]+)"\)', path.read_text("utf-8"))
    }
    assert placed == set(POINTS) - {"send"}


def test_the_nth_time_and_no_other() -> None:
    arm("produce.called=raise#3")
    assert [breaks("produce.called") for _ in range(5)] == [False, False, True, False, False]


def test_a_chance_of_one_in_four() -> None:
    arm("produce.called=raise@0.25")
    assert 300 < sum(breaks("produce.called") for _ in range(2_000)) < 700


def test_so_many_times_in_one_process() -> None:
    arm("produce.called=raise*2")
    assert sum(breaks("produce.called") for _ in range(9)) == 2


def test_so_many_times_across_processes(tmp_path: Path) -> None:
    for _ in range(4):
        arm("produce.called=raise*3", tmp_path)
        breaks("produce.called")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"produce.called.{n}" for n in range(3)]
    assert (tmp_path / "produce.called.0").read_text() == f"{os.getpid()} raise\n"


def test_once_is_the_default_where_a_folder_counts(tmp_path: Path) -> None:
    arm("produce.called=raise", tmp_path)
    assert [breaks("produce.called") for _ in range(3)] == [True, False, False]


def test_other_points_stay_quiet() -> None:
    arm("produce.called=raise;close.begun=raise")
    assert [breaks(name) for name in ("produce.called", "produce.claimed", "close.begun")] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "nowhere=kill",
        "produce.called=explode",
        "produce.called",
        "produce.called=double",
        "send=kill",
        "send=double@x",
    ],
)
def test_a_rule_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadFaults, match=r"REMAND_FAULTS"):
        arm(text)


def test_a_point_that_is_not_in_the_table_is_refused_when_armed() -> None:
    arm("produce.called=raise")
    with pytest.raises(BadFaults):
        point("produce.imagined")


@pytest.mark.parametrize(
    ("text", "times"), [("send=double", 2), ("send=drop", 0), ("produce.called=raise", 1)]
)
def test_messages_of_ours_are_doubled_or_dropped(text: str, times: int) -> None:
    sent: list[str] = []

    def send(producer: Any, name: str, message: Any, **options: Any) -> None:
        sent.append(name)

    arm(text)
    wrapped = faults.sender(send)
    wrapped(None, "remand.produce", None, queue="q")
    wrapped(None, "somebody.elses", None, queue="q")
    assert sent == ["remand.produce"] * times + ["somebody.elses"]


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REMAND_")}
    return subprocess.run(
        [sys.executable, "-c", program], env={**environment, **variables}, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip


def test_kill_is_kill() -> None:
    done = run(
        "from remand_tasks.faults import point; point('close.begun'); print('lived')",
        REMAND_FAULTS="close.begun=kill",
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
    assert "fault injection is armed" in done.stderr


def test_a_stopped_process_waits_to_be_continued(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "REMAND_FAULTS": "close.begun=stop:1.5",
        "REMAND_FAULTS_ONCE_DIR": str(tmp_path),
    }
    program = "from remand_tasks.faults import point; point('close.begun'); print('lived')"
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    )
    with process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert (tmp_path / "close.begun.0").read_text() == f"{process.pid} stop:1.5\n"
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=30)[0] == "lived\n"


def test_the_clock_of_kombu_and_celery_moves() -> None:
    program = (
        "import remand_tasks.faults; import kombu.transport.redis as k, time;"
        "print(round(k.time() - time.clock_gettime(time.CLOCK_REALTIME)))"
    )
    done = run(program, REMAND_FAULTS_CLOCK="900")
    assert done.stdout.split()[0] == "900", done.stderr


def test_a_hundred_thousand_unarmed_points_cost_nothing_to_speak_of() -> None:
    began = time.perf_counter()
    faults.arm({})
    for _ in range(100_000):
        point("produce.called")
    assert time.perf_counter() - began < 2.0

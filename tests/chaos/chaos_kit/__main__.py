"""Print the table: what was done to running workers and services, how often, and what it did to the items.

    python -m chaos_kit [--stack valkey+sqlite|rabbitmq+postgresql] [--only WORD] [--times N] [--simulate N]
    python -m chaos_kit --soak 100000

It ends with the counts of the simulator (`--simulate 0` leaves that out), and with status 1 if any promise was broken.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("REMAND_MODEL_BASE_URL", "http://127.0.0.1:9/v1")  # Replaced for every run.

from . import scenarios
from .checks import Tally
from .crew import TESTS, Zygote
from .scenarios import KILL_POINTS, Ground
from .services import Missing
from .stacks import NAMES, POSTGRES, stack

COLUMNS = ("fault", "times", "items", "lost", "closed twice", "over budget", "extra", "in flight", "s")


def rows(ground: Ground, times: int) -> Iterator[tuple[str, Callable[[], Tally]]]:
    """Every line: its name, and what gives it."""
    for point in KILL_POINTS:
        yield f"kill -9 at {point}", lambda point=point: scenarios.killed_at(ground, point, times=times)  # type: ignore[misc]
    yield "kill -9 at pulse.cancelled", lambda: scenarios.killed_at_cancelling(ground)
    yield "kill -9 anywhere", lambda: scenarios.killed_at_random(ground)
    yield "kill -9 of all at once", lambda: scenarios.all_killed_at_once(ground)
    yield (
        "exception in a step",
        lambda: _together(
            scenarios.broken_at(ground, point, times=1, items=6)
            for point in KILL_POINTS
            if point != "step.forwarded"
        ),
    )
    yield (
        "SIGSTOP past the claim, SIGCONT",
        lambda: _together(
            scenarios.frozen_long(ground, point)
            for point in (
                "produce.claimed",
                "produce.called",
                "validate.judged",
                "coordinate.decided",
                "dispatch.opening",
            )
        ),
    )
    yield "SIGSTOP within the claim", lambda: scenarios.frozen_briefly(ground)
    if ground.stack.name == POSTGRES:  # SQLite serves one machine; there a frozen worker is somebody's doing.
        yield "SIGSTOP in a transaction", lambda: scenarios.frozen_in_a_transaction(ground)
    yield "poison input", lambda: scenarios.poisoned(ground)
    yield "2 poison inputs at once", lambda: scenarios.poisoned(ground, poison=2)
    yield "worker dies in mid-judgement", lambda: scenarios.judged_to_death(ground)
    yield "broker emptied", lambda: scenarios.broker_emptied(ground)
    yield "broker restarted", lambda: scenarios.broker_restarted(ground)
    yield "facts flushed", lambda: scenarios.flushed(ground, "attempt")
    yield "vault flushed", lambda: scenarios.flushed(ground, "vault")
    yield "facts and vault flushed", lambda: scenarios.flushed(ground, "attempt", "vault")
    yield "correction gone before it is read", lambda: scenarios.correction_expired(ground)
    yield "every message twice", lambda: scenarios.doubled(ground)
    yield "a fifth of messages lost", lambda: scenarios.dropped(ground)
    yield "SIGTERM", lambda: scenarios.told_to_stop(ground)
    yield "cancelled while all are down", lambda: scenarios.cancelled_while_down(ground)
    yield "a clock +900 s off", lambda: scenarios.another_clock(ground)
    yield "a clock -900 s off", lambda: scenarios.another_clock(ground, seconds=-900.0)
    yield "worker with another version", lambda: scenarios.another_version(ground)
    yield "odd outputs and exceptions", lambda: scenarios.odd_values(ground)
    yield "2,000 items", lambda: scenarios.long_run(ground)


def _together(tallies: Iterator[Tally]) -> Tally:
    total = next(tallies)
    for tally in tallies:
        total.add(tally)
    return total


def _line(tally: Tally) -> str:
    numbers = (
        tally.times,
        tally.items,
        tally.lost,
        tally.closed_twice,
        tally.over_budget,
        tally.extra,
        tally.in_flight,
    )
    cells = "".join(f"{number:>13,}" for number in numbers)
    return f"{tally.fault:36}{cells}{tally.seconds:>8.0f}{'  BROKEN' if tally.problems else ''}"


def prove(name: str, given: argparse.Namespace) -> tuple[int, int]:
    """The table of one stack. How many lines are broken, and how many processes were killed."""
    broken = kills = 0
    total = Tally(stack=name, fault="together")
    zygote = Zygote()
    try:
        with stack(name) as made:
            ground = Ground(made, zygote)
            print(
                f"\n{name}\n{COLUMNS[0]:36}{''.join(f'{each:>13}' for each in COLUMNS[1:-1])}{COLUMNS[-1]:>8}",
                flush=True,
            )
            lines = (make() for row, make in rows(ground, given.times) if _wanted(row, given.only))
            if given.soak:
                lines = iter(
                    [
                        scenarios.long_run(
                            ground, items=given.soak, report=lambda text: print(text, flush=True)
                        )
                    ]
                )
            for tally in lines:
                print(_line(tally), flush=True)
                for problem in tally.problems:
                    print(f"    {problem}", flush=True)
                broken += bool(tally.problems)
                kills += tally.times if tally.fault.startswith("kill -9") else 0
                total.add(tally)
            total.problems.clear()
            print(_line(total), flush=True)
    except Missing as error:
        print(f"\n{name}\nSKIPPED, and with it half of the proof: {error}", flush=True)
    finally:
        zygote.close()
    return broken, kills


def both(given: argparse.Namespace) -> tuple[int, int]:
    """Both stacks at the same time, for most of it is waiting for claims to expire."""
    words = [
        "--times",
        str(given.times),
        "--simulate",
        "0",
        *(word for only in given.only for word in ("--only", only)),
    ]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "chaos_kit", "--stack", name, *words],
            cwd=TESTS,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in NAMES
    ]
    broken = kills = 0
    for process in running:
        assert process.stdout is not None
        with process:
            for line in process.stdout:
                if line.startswith("="):
                    numbers = [int(word.replace(",", "")) for word in line.split() if word[0].isdigit()]
                    kills, broken = kills + numbers[0], broken + numbers[1]
                else:
                    print(line, end="", flush=True)
        broken += process.returncode not in (0, 1)
    return broken, kills


def _wanted(row: str, words: list[str]) -> bool:
    return not words or any(word in row for word in words)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="chaos_kit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stack", choices=NAMES, help="by default both")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD", help="lines that hold this word"
    )
    parser.add_argument("--times", type=int, default=8, help="kills at each point on each stack")
    parser.add_argument("--simulate", type=int, default=20_000, help="schedules of the simulator at the end")
    parser.add_argument("--soak", type=int, metavar="ITEMS", help="one long run instead of the table")
    given = parser.parse_args()
    began = time.monotonic()
    if given.stack is None and not given.soak:
        broken, kills = both(given)
    else:
        broken, kills = prove(given.stack or NAMES[0], given)
    if given.simulate and not given.soak:
        print(f"\nsimulator: the same code in {given.simulate:,} seeded schedules", flush=True)
        command = [sys.executable, "-m", "simulator", str(given.simulate), "--mode", "all"]
        broken += subprocess.run(command, cwd=TESTS, check=False).returncode != 0
    print(f"= {kills:,} processes killed; {broken} lines broken; {time.monotonic() - began:,.0f} s")
    return int(broken > 0)


if __name__ == "__main__":
    raise SystemExit(main())

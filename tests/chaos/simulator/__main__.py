"""Run schedules, or replay one.

python -m simulator 100000 [--mode normal|poison|redrive|restore|all] [--without RULE] [--seed N] [--processes N]
python -m simulator replay SEED [--mode MODE] [--without RULE]
python -m simulator rules
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

from .checks import CheckedWorld
from .mutations import RULES, without
from .world import Violation, quiet

MODES = ("normal", "redrive", "poison", "restore")


def one(seed: int, mode: str) -> tuple[str | None, int, int, int]:
    """One schedule: the violation if there was one, its steps, faults and generations."""
    world = CheckedWorld(seed, mode)
    try:
        return None, world.go(), world.faults, world.generations
    except Violation as found:
        return str(found).split(":")[0], world.step_number, world.faults, world.generations
    except Exception as found:
        return f"raised {type(found).__name__}", world.step_number, world.faults, world.generations


def chunk(job: tuple[int, int, str, tuple[str, ...]]) -> tuple[int, int, int, int, dict[str, list[int]]]:
    """Some schedules in a row: how many, steps, faults, generations, and seeds by violation."""
    first, count, mode, rules = job
    quiet()
    found: dict[str, list[int]] = collections.defaultdict(list)
    totals = [0, 0, 0]
    with without(*rules):
        for seed in range(first, first + count):
            violation, *numbers = one(seed, mode)
            totals = [a + b for a, b in zip(totals, numbers, strict=True)]
            if violation:
                found[violation].append(seed)
    return count, *totals, dict(found)


def many(
    count: int,
    mode: str,
    rules: tuple[str, ...] = (),
    first: int = 0,
    processes: int | None = None,
    stop: bool = False,
) -> tuple[int, int, int, int, dict[str, list[int]]]:
    """`count` schedules in several processes; with `stop`, no more than needed to see one violation."""
    size = 50 if stop else 250
    jobs = [(first + at, min(size, count - at), mode, rules) for at in range(0, count, size)]
    totals = [0, 0, 0, 0]
    found: dict[str, list[int]] = collections.defaultdict(list)
    with multiprocessing.Pool(processes or os.cpu_count(), maxtasksperchild=40) as pool:
        for done in pool.imap_unordered(chunk, jobs):
            totals = [a + b for a, b in zip(totals, done[:4], strict=True)]
            for violation, seeds in done[4].items():
                found[violation] += seeds
            if stop and found:
                break
    schedules, steps, faults, generations = totals
    return (
        schedules,
        steps,
        faults,
        generations,
        {violation: sorted(seeds) for violation, seeds in found.items()},
    )


def replay(seed: int, mode: str, rules: tuple[str, ...]) -> int:
    """Tell the story of one schedule."""
    quiet()
    story: list[str] = []
    with without(*rules):
        world = CheckedWorld(seed, mode, story)
        try:
            world.go()
            story.append("no violation")
        except Violation as found:
            story.append(f"VIOLATION {found}")
    sys.stdout.write("\n".join(story) + "\n")
    return int(story[-1].startswith("VIOLATION"))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="simulator", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("what", help="how many schedules, or `replay`, or `rules`")
    parser.add_argument("number", nargs="?", type=int, help="the seed to replay")
    parser.add_argument("--mode", choices=(*MODES, "all"), default="all")
    parser.add_argument("--without", action="append", default=[], choices=sorted(RULES), metavar="RULE")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int)
    given = parser.parse_args(arguments)
    rules = tuple(given.without)
    if given.what == "replay":
        return replay(given.number, "normal" if given.mode == "all" else given.mode, rules)
    if given.what == "rules":
        return show_rules(given.seed, given.processes)
    modes = {"normal": 7, "redrive": 1, "poison": 1, "restore": 1} if given.mode == "all" else {given.mode: 1}
    total, bad = int(given.what), 0
    for mode, share in modes.items():
        began = time.monotonic()
        count = total * share // sum(modes.values())
        schedules, steps, faults, generations, found = many(count, mode, rules, given.seed, given.processes)
        seconds = time.monotonic() - began
        sys.stdout.write(
            f"{mode:8} {schedules:>9,} schedules {steps:>12,} steps {faults:>10,} faults "
            f"{generations:>10,} generations {sum(map(len, found.values())):>5} violations  {seconds:,.0f} s\n"
        )
        for violation, seeds in found.items():
            bad += len(seeds)
            command = f"python -m simulator replay {seeds[0]} --mode {mode}"
            sys.stdout.write(f"  {violation}: {len(seeds)}, first by `{command}`\n")
        sys.stdout.flush()
    return int(bad > 0)


def show_rules(first: int, processes: int | None) -> int:
    """Take each rule out and say what breaks."""
    held = 0
    for name, rule in RULES.items():
        count = 4_000
        schedules, *_, found = many(count, rule.mode, (name,), first, processes, stop=True)
        held += bool(found)
        what = (
            "; ".join(f"{violation} (seed {seeds[0]})" for violation, seeds in found.items())
            or "NOTHING BROKE"
        )
        sys.stdout.write(f"{name:20} {rule.says}\n    without it, of {schedules} schedules: {what}\n")
        sys.stdout.flush()
    return int(held < len(RULES))


if __name__ == "__main__":
    raise SystemExit(main())

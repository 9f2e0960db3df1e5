"""`python -m bench.registry DATA [--sets a,b] [--seeds 1,2,3] [--scale] [--json]`: how well registries merge.

Each set goes through the product with three matchers in place of a model: one that is always right, one that errs, and
one that errs and joins whatever its calls connect. Each time in a process of its own, so that the memory is its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from . import scale
from .reconciling import Outcome, measure
from .sets import SETS, load

F1_PERFECT: Final = {
    **dict.fromkeys(("dblp_acm", "abt_buy", "cora", "fake_1000", "febrl1", "febrl2", "febrl3"), 0.995),
    "historical_50k": 0.985,
}
F1_ERRING: Final = {"fake_1000": 0.94, "febrl3": 0.94, "cora": 0.99}
CALLS: Final = {"abt_buy": 150, "cora": 400, "historical_50k": 75}
"""Calls for 1,000 entries, at most: products say little, and of papers and figures there are many that are the same."""
CALLS_ELSE: Final = 60
ENTRIES, ALIKE = 100_000, 20_000
PLAN_CPU_SECONDS, PLAN_MEMORY, NEW_ENTRY_MS = 30.0, 1_024, 10.0


def calls_for(name: str) -> int:
    """The budget of calls for 1,000 entries of a set, as the author of a registry would give it."""
    return CALLS.get(name, CALLS_ELSE)


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """What `function` gives in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def missing(names: Sequence[str], data: Path) -> Iterator[tuple[str, str]]:
    """Sets that cannot be read, and why."""
    for name in names:
        try:
            load(name, data)
        except FileNotFoundError as error:
            yield name, f"there is no {error.filename}"
        except ImportError as error:
            yield name, f"the package {error.name} is missing: install .[bench]"


def at_scale() -> dict[str, Any]:
    """What very many entries take."""
    with tempfile.TemporaryDirectory(prefix="remand-bench-") as folder:
        many, alike = Path(folder) / "many.db", Path(folder) / "alike.db"
        apart(scale.fill, many, "persons", ENTRIES)
        apart(scale.fill, alike, "placeholders", ALIKE)
        return {
            "first_plan": asdict(apart(scale.first_plan, many)),
            "new_entry_ms": apart(scale.one_more, ENTRIES),
            "placeholders": asdict(apart(scale.first_plan, alike)),
        }


def mark(value: float, target: float | None, text: str, *, most: bool = False) -> str:
    """A figure against its target: `most` where it is to be at most that, else at least."""
    if target is None:
        return text
    good = value <= target if most else value >= target
    return f"[green]{text}[/]" if good else f"[bold red]{text} !{'>' if most else '<'} {target:g}[/]"


def spread(outcomes: Sequence[Outcome], target: float | None = None) -> str:
    """Mean F1 over seeds, with its range."""
    if not outcomes:
        return "-"
    found = [outcome.f1 for outcome in outcomes]
    return mark(mean(found), target, f"{mean(found):.4f}") + f" ({min(found):.3f} to {max(found):.3f})"


def print_sets(console: Console, found: Mapping[str, Mapping[str, Sequence[Outcome]]]) -> None:
    """A line a set."""
    table = Table("set", "entries", "F1", "precision", "recall", "calls", "a 1,000", "rounds", "CPU s", "MiB", "again",
                  "erring F1", "closing F1")  # fmt: skip
    for name, by_matcher in found.items():
        (outcome,) = by_matcher["perfect"]
        thousand = 1_000 * outcome.calls / outcome.entries
        again = f"{outcome.again_calls} calls" + (", writes" if outcome.again_writes else "")
        table.add_row(
            name,
            f"{outcome.entries:,}",
            mark(outcome.f1, F1_PERFECT.get(name), f"{outcome.f1:.4f}"),
            f"{outcome.precision:.4f}",
            f"{outcome.recall:.4f}",
            f"{outcome.calls:,}",
            mark(thousand, calls_for(name), f"{thousand:.0f}", most=True),
            str(outcome.rounds),
            f"{outcome.cpu_seconds:.1f}",
            f"{outcome.memory:,}",
            mark(outcome.again_calls + outcome.again_writes, 0, again, most=True),
            spread(by_matcher.get("erring", ()), F1_ERRING.get(name)),
            spread(by_matcher.get("closing", ())),
        )
    console.print(table)


def print_scale(console: Console, found: Mapping[str, Any]) -> None:
    """A line a measurement."""
    plan, alike = found["first_plan"], found["placeholders"]
    table = Table("at scale", "CPU", "MiB", "blocks", "largest", "caps reported")
    for title, each, target in (
        (f"first plan of {ENTRIES:,} entries", plan, PLAN_CPU_SECONDS),
        (f"{ALIKE:,} entries that share 'Unknown'", alike, None),
    ):
        caps = ", ".join(f"{code} {count:,}" for code, count in each["caps"].items())
        memory = mark(each["memory"], PLAN_MEMORY, f"{each['memory']:,}", most=True)
        cpu = mark(each["cpu_seconds"], target, f"{each['cpu_seconds']:.1f} s", most=True)
        table.add_row(title, cpu, memory, f"{each['blocks']:,}", str(each["largest"]), caps)
    new = found["new_entry_ms"]
    title = f"one new entry among {ENTRIES:,}"
    table.add_row(title, mark(new, NEW_ENTRY_MS, f"{new:.1f} ms", most=True), "", "", "", "")
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.registry", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("data", type=Path, help="the folder of the labelled sets")
    parser.add_argument("--sets", default=",".join(SETS), help="which of them, separated by commas")
    parser.add_argument("--seeds", default="1,2,3", help="of the matchers that err; empty for none")
    parser.add_argument("--scale", action="store_true", help="also measure very many entries")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    if not given.data.is_dir():
        parser.error(f"there is no folder {str(given.data)!r}; name the one that holds the labelled sets")
    names = [name for name in given.sets.split(",") if name]
    unknown = [name for name in names if name not in SETS]
    if unknown:
        parser.error(f"unknown sets: {', '.join(unknown)}; there are {', '.join(SETS)}")
    seeds = [int(seed) for seed in given.seeds.split(",") if seed]
    notice = Console(stderr=True)
    absent = dict(missing(names, given.data))
    for name, why in absent.items():
        notice.print(f"{name} is skipped: {why}", markup=False)
    found: dict[str, dict[str, list[Outcome]]] = {}
    for name in (name for name in names if name not in absent):
        for matcher in ["perfect"] + (["erring", "closing"] if name in F1_ERRING else []):
            for seed in [0] if matcher == "perfect" else seeds:
                notice.print(f"{name}, {matcher} matcher {seed or ''}", markup=False)
                outcome = apart(measure, name, given.data, matcher, seed, calls_for(name))
                found.setdefault(name, {}).setdefault(matcher, []).append(outcome)
    large = at_scale() if given.scale else None
    if given.json:
        sets = {
            name: {
                matcher: [{"f1": each.f1, **asdict(each)} for each in outcomes]
                for matcher, outcomes in of.items()
            }
            for name, of in found.items()
        }
        print(json.dumps({"sets": sets, "skipped": absent, "scale": large}, indent=2))
        return 0
    console = Console(width=200)
    if found:
        print_sets(console, found)
    if large is not None:
        print_scale(console, large)
    return 0


if __name__ == "__main__":
    sys.exit(main())

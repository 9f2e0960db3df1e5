"""One run on real workers, with faults armed and something done in the middle of it, and then the checks."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remand_policy import RunStatus
from remand_workers.client import Run

from .checks import Keys, Tally, examine
from .crew import Crew, Zygote
from .model import GENERATIONS, Model
from .services import until
from .stacks import Stack

KINDS = tuple(GENERATIONS)


@dataclass(slots=True)
class Live:
    """A run that is going on: what may be done to it and to its surroundings."""

    stack: Stack
    model: Model
    crew: Crew
    run: Run

    def closed(self) -> int:
        """Items that have closed."""
        return self.run.status().closed

    def ended(self) -> bool:
        """Whether the run is over."""
        return self.run.status().run.ended_at is not None

    def has_moved(self, calls: int) -> bool:
        """Whether the model was asked more than `calls` times in this run, or the run is over."""
        return len(self.model.calls_of(self.run.id)) > calls or self.ended()

    def await_closed(self, count: int) -> None:
        """Wait until so many items have closed."""
        until(lambda: self.closed() >= count, f"{count} items have closed")

    def await_calls(self, count: int) -> None:
        """Wait until the model has been asked so often in this run."""
        until(lambda: len(self.model.calls_of(self.run.id)) >= count, f"{count} model calls")


def inputs_of(count: int, kinds: Sequence[str] = KINDS) -> list[dict[str, Any]]:
    """Inputs of all kinds, one after the other."""
    return [{"do": kinds[number % len(kinds)], "n": number} for number in range(count)]


def scenario(
    stack: Stack,
    zygote: Zygote,
    fault: str,
    *,
    inputs: Sequence[Mapping[str, Any]],
    pipeline: str = "chaos_kit.pipeline:pipeline",
    faults: str = "",
    workers: int = 2,
    window: int = 64,
    delay: float = 0.05,
    environment: Mapping[str, str] | None = None,
    during: Callable[[Live], None] | None = None,
    before: Callable[[Live], None] | None = None,
    after: Callable[[Live, Tally], None] | None = None,
    flushed: bool = False,
    expected_status: str | None = "succeeded",
    scripted: bool = True,
    patience: float = 100.0,
    counted: bool = True,
) -> Tally:
    """Run `inputs` and fill in a line of the table.

    `before` happens before any worker exists, `during` once they are ready, `after` when the checks are done and the
    workers still live. `counted` says that the faults which happened are the line's number of times; else one.
    """
    began = time.monotonic()
    tally = Tally(stack=stack.name, fault=fault)
    folder = Path(tempfile.mkdtemp(prefix="chaos-run-", dir="/tmp"))
    try:
        with Model(delay=delay) as model, Keys(stack) as keys:
            variables = {**stack.environment, "REMAND_MODEL_BASE_URL": model.base_url, **(environment or {})}
            if faults:
                variables["REMAND_FAULTS"] = faults
            with Crew(zygote, folder, variables) as crew:
                run = stack.client.submit(pipeline, inputs, window=window, reuse=False)
                live = Live(stack, model, crew, run)
                try:
                    if before is not None:
                        before(live)
                    crew.hire(workers)
                    if during is not None:
                        crew.await_ready()
                        during(live)
                except TimeoutError as late:
                    tally.problems.append(str(late))
                status = _end(run, patience, tally, crew)
                tally.times = len(crew.faults) if counted else 1
                if status is not None:
                    examine(
                        tally,
                        stack,
                        model,
                        run.id,
                        status.value,
                        count=len(inputs),
                        died=crew.died,
                        flushed=flushed,
                        expected_status=expected_status,
                        scripted=scripted,
                    )
                if status is not None and after is not None:
                    try:
                        after(live, tally)
                    except TimeoutError as late:
                        tally.problems.append(str(late))
            tally.problems += [f"the model's script raised {error!r}" for error in model.errors[:3]]
            if keys.immortal:
                tally.problems.append(f"keys without an expiry: {sorted(keys.immortal)[:3]}")
        stack.put_back()
    finally:
        tally.seconds = time.monotonic() - began
        if tally.problems:
            tally.problems.append(f"logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return tally


def _end(run: Run, patience: float, tally: Tally, crew: Crew) -> RunStatus | None:
    try:
        return run.wait(patience)
    except TimeoutError:
        now = run.status()
        tally.items += now.total
        tally.lost += now.total - now.closed
        tally.problems.append(
            f"the run has not ended: {now.in_flight} in flight, {now.waiting} waiting, {now.pending} pending, "
            f"{len(crew.faults)} faults"
        )
        return None

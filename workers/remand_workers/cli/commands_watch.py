"""Commands for people who watch: status, show, results, quarantine, submit, cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from .commands_work import Home, Input, Json, Key, Model, Quiet, RunId, Target, Window
from .program import finish

MaybeRun = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="A run's id, or how it alone begins. Else the latest."),
]


def submit(
    pipeline: Target,
    input: Input = None,
    key: Key = None,
    window: Window = None,
    no_reuse: Annotated[
        bool, typer.Option("--no-reuse", help="Use no checkpoint of an earlier run.")
    ] = False,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run-id", metavar="ID", help="Name the run. Giving one that exists goes on feeding it."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the run has ended.")] = False,
    model: Model = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Feed a run to services and workers that run already, and print its id.

    They are those of `remand up` in this folder, or of the broker in REMAND_BROKER_URL. The same input under the same
    `--run-id` again adds nothing twice.
    """
    from . import running
    from .context import read_settings

    order = running.Order(
        input=input, output=None, key=key, window=window, reuse=not no_reuse, run_id=run_id,
        workers=False, json=json, quiet=quiet,
    )  # fmt: skip
    finish(running.submit(read_settings(home=home, model=model), pipeline, order, wait=wait))


def status(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run. Without it: the latest runs.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on showing it until the run has ended.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Runs in the list.")] = 20,
    home: Home = None,
    json: Json = False,
) -> None:
    """Where runs stand: items by their end, what they cost, and what keeps a run from going on.

    With `--watch` the exit status is the run's.
    """
    from . import standing
    from .context import ledger, read_settings, run_named

    with ledger(settings := read_settings(home=home)) as queries:
        if watch:
            finish(standing.watch(queries, settings, run_named(queries, run).id))
        elif run is None:
            standing.list_runs(queries, limit, json=json)
        else:
            standing.one_run(queries, settings, run_named(queries, run).id, json=json)


def show(
    run: Annotated[str, typer.Argument(metavar="[RUN] ITEM", help="A run, then an item's key or number.")],
    item: Annotated[str | None, typer.Argument(metavar=" ", show_default=False)] = None,
    payload: Annotated[
        bool,
        typer.Option("--payload", help="Also show the input, the values and operator messages: your data."),
    ] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """The story of one item, attempt by attempt: what was produced, how each validator judged, what was decided.

    `remand show ITEM` looks in the latest run. Codes and counts only, unless `--payload` asks for the data.
    """
    from . import stories
    from .context import ledger, read_settings, run_named

    with ledger(read_settings(home=home)) as queries:
        found = run_named(queries, run if item is not None else None)
        stories.show(queries, found, item if item is not None else run, payload=payload, json=json)


def results(
    run: MaybeRun = None,
    home: Home = None,
) -> None:
    """Outputs of a run as JSON lines, in input order, up to the first item that is still open."""
    from . import standing
    from .context import ledger, read_settings, run_named

    with ledger(read_settings(home=home)) as queries:
        standing.results(queries, run_named(queries, run))


def quarantine(run: MaybeRun = None, home: Home = None, json: Json = False) -> None:
    """Items that were set aside for a person, each with the reason."""
    from . import standing
    from .context import ledger, read_settings, run_named

    with ledger(read_settings(home=home)) as queries:
        standing.quarantine(queries, run_named(queries, run), json=json)


def cancel(run: RunId, home: Home = None) -> None:
    """Stop a run: nothing more begins in it, what is in flight finishes. `remand resume` can go on with it."""
    from . import standing
    from .context import ledger, read_settings, run_named

    with ledger(settings := read_settings(home=home)) as queries:
        standing.cancel(queries, settings, run_named(queries, run))


COMMANDS: list[tuple[Callable[..., None], str]] = [
    (submit, "remand submit shop.pipeline:pipeline --input orders.jsonl --wait"),
    (status, "remand status --watch"),
    (show, "remand show 20260131-120000 order-17"),
    (results, "remand results | jq .value"),
    (quarantine, "remand quarantine 20260131-120000"),
    (cancel, "remand cancel 20260131-120000-1a2b3c4d"),
]

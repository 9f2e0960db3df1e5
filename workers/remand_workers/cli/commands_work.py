"""Commands that do work: run, resume, worker, up, submit, cancel."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from remand_policy import Reason

from .program import finish

Target = Annotated[
    str,
    typer.Argument(metavar="MODULE:PIPELINE", help="Where the pipeline is, such as shop.pipeline:pipeline."),
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or how it alone begins.")]
Input = Annotated[
    str | None,
    typer.Option("--input", "-i", metavar="FILE|-", help="JSON lines to read; `-` is standard input."),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="FILE|-",
        help="Where outputs go as JSON lines. Without it: standard output, unless that is a terminal.",
    ),
]  # fmt: skip
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="PATH",
        help="Dotted path to an input's own key. Without it an input's position is its key.",
    ),
]
Window = Annotated[
    int | None,
    typer.Option(
        "--window", metavar="N", min=1, help="Items in flight or waiting at once. Else REMAND_WINDOW."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Worker processes to start. Else REMAND_WORKERS."),
]
NoWorkers = Annotated[
    bool, typer.Option("--no-workers", help="Start no workers: others serve the broker that is named.")
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency", metavar="N", min=1, help="Steps at once in one worker. Else REMAND_CONCURRENCY."
    ),
]
Pool = Annotated[
    str | None,
    typer.Option("--pool", metavar="threads|prefork", help="The worker's pool. Else REMAND_POOL."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON for programs on standard output.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no table; warnings and errors stay.")
]
Home = Annotated[
    Path | None,
    typer.Option("--home", help="Folder of embedded services. Else REMAND_HOME.", metavar="FOLDER"),
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model's name. Else REMAND_MODEL.")
]
ModelUrl = Annotated[
    str | None,
    typer.Option("--model-base-url", metavar="URL", help="Its server. Else REMAND_MODEL_BASE_URL."),
]
NoReconcile = Annotated[
    bool,
    typer.Option(
        "--no-reconcile", help="Leave the registries that it feeds as they are when the run has ended."
    ),
]
PipelineNames = Annotated[
    list[str] | None,
    typer.Option(
        "--pipeline", metavar="MODULE:PIPELINE",
        help="Load it before any work; its validators' own queues are served, too. May be repeated.",
    ),
]  # fmt: skip


class Role(StrEnum):
    """What a worker does."""

    ALL = "all"
    COORDINATOR = "coordinator"
    PRODUCER = "producer"
    VALIDATOR = "validator"


def run(
    pipeline: Target,
    input: Input = None,
    output: Output = None,
    key: Key = None,
    window: Window = None,
    no_reconcile: NoReconcile = False,
    workers: Workers = None,
    no_workers: NoWorkers = False,
    concurrency: Concurrency = None,
    pool: Pool = None,
    no_reuse: Annotated[
        bool, typer.Option("--no-reuse", help="Make everything anew; use no checkpoint of an earlier run.")
    ] = False,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run-id", metavar="ID", help="Name the run. Giving one that exists goes on feeding it."
        ),
    ] = None,
    model: Model = None,
    model_base_url: ModelUrl = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a pipeline over JSON lines, from the first to the last, with everything that needs to be started.

    Without REMAND_BROKER_URL the services run here, in REMAND_HOME, and registries that the pipeline feeds are
    reconciled at the end. Lines that are no JSON are reported and left out; the exit status is then at least 3. Ctrl-C
    stops in order, a second one at once, and `remand resume` goes on.
    """
    from . import running

    settings = _settings(
        workers=workers,
        concurrency=concurrency,
        pool=pool,
        home=home,
        model=model,
        model_base_url=model_base_url,
    )
    order = running.Order(
        input=input, output=output, key=key, window=window, reuse=not no_reuse, run_id=run_id,
        workers=_with_workers(settings, no_workers), reconcile=not no_reconcile, json=json, quiet=quiet,
    )  # fmt: skip
    finish(running.run(settings, pipeline, order))


def resume(
    run: RunId,
    input: Input = None,
    output: Output = None,
    no_more_input: Annotated[
        bool,
        typer.Option("--no-more-input", help="Finish with what was read, where the input was cut short."),
    ] = False,
    no_reconcile: NoReconcile = False,
    workers: Workers = None,
    no_workers: NoWorkers = False,
    concurrency: Concurrency = None,
    pool: Pool = None,
    model: Model = None,
    model_base_url: ModelUrl = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run: failed and cancelled items get another round with fresh budgets, accepted ones stay.

    The pipeline must be as it was; a changed one is a new run, which reuses the stages that did not change. Where the
    input was not read to its end, give it again: items that the run has are not taken twice.
    """
    from . import running

    settings = _settings(
        workers=workers,
        concurrency=concurrency,
        pool=pool,
        home=home,
        model=model,
        model_base_url=model_base_url,
    )
    order = running.Order(
        input=input,
        output=output,
        workers=_with_workers(settings, no_workers),
        reconcile=not no_reconcile,
        json=json,
        quiet=quiet,
    )
    finish(running.resume(settings, run, order, close_input=no_more_input))


def redrive(
    run: RunId,
    reason: Annotated[
        list[Reason] | None, typer.Option("--reason", help="Items that closed for it. May be repeated.")
    ] = None,
    item: Annotated[
        list[str] | None,
        typer.Option("--item", metavar="ITEM", help="An item's key or number. May be repeated."),
    ] = None,
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="Items that were set aside for a person.")
    ] = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Only say how many items it is, and what they may cost.")
    ] = False,
    output: Output = None,
    no_reconcile: NoReconcile = False,
    workers: Workers = None,
    no_workers: NoWorkers = False,
    concurrency: Concurrency = None,
    pool: Pool = None,
    model: Model = None,
    model_base_url: ModelUrl = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Give chosen items another round with fresh budgets: failed, rejected, cancelled or incomplete ones.

    An item must fit everything that is named. Says what it may cost before it begins. Accepted items stay as they are.
    """
    from . import running

    settings = _settings(
        workers=workers,
        concurrency=concurrency,
        pool=pool,
        home=home,
        model=model,
        model_base_url=model_base_url,
    )
    order = running.Order(
        input=None,
        output=output,
        workers=_with_workers(settings, no_workers),
        reconcile=not no_reconcile,
        json=json,
        quiet=quiet,
    )
    chosen = running.Chosen(
        reasons=tuple(one.value for one in reason or ()), items=tuple(item or ()), quarantined=quarantined
    )
    finish(running.redrive(settings, run, order, chosen, preview=preview))


def worker(
    queues: Annotated[
        str | None,
        typer.Option("--queues", metavar="A,B", help="The queues to serve, in place of a role's."),
    ] = None,
    role: Annotated[
        Role,
        typer.Option(
            "--role",
            metavar="all|coordinator|producer|validator",
            help="What it does, and so which queues it serves.",
        ),
    ] = Role.ALL,
    concurrency: Concurrency = None,
    pool: Pool = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Its name in Flower and logs.")
    ] = None,
    pipeline: PipelineNames = None,
    home: Home = None,
    attend: Annotated[str | None, typer.Option("--attend", hidden=True)] = None,
    lifeline: Annotated[bool, typer.Option("--lifeline", hidden=True)] = False,
) -> None:
    """Serve queues until told to stop. SIGTERM and Ctrl-C finish what is held.

    In a folder where `remand up` or `remand run` works it joins in; elsewhere name the broker in REMAND_BROKER_URL.
    """
    from .serving import serve

    tell = None
    if lifeline:
        from .crew import hold_lifeline

        tell = hold_lifeline()
    settings = _settings(concurrency=concurrency, pool=pool, home=home)
    named = [queue.strip() for queue in queues.split(",") if queue.strip()] if queues else None
    finish(serve(settings, named, role.value, name, pipeline or [], attend, tell))


def up(
    pipeline: PipelineNames = None,
    workers: Workers = None,
    concurrency: Concurrency = None,
    pool: Pool = None,
    home: Home = None,
) -> None:
    """Keep services and workers running in the foreground, for `remand submit` and for programs that use `Client`."""
    from . import running

    finish(
        running.up(_settings(workers=workers, concurrency=concurrency, pool=pool, home=home), pipeline or [])
    )


def _settings(**given: Any) -> Any:
    from .context import read_settings

    return read_settings(**given)


def _with_workers(settings: Any, no_workers: bool) -> bool:
    from .failures import UsageError

    if no_workers and settings.embedded:
        from ..embedded import running

        if running(settings) is None:
            raise UsageError("--no-workers needs a broker that others serve: name it in REMAND_BROKER_URL")
    return not no_workers


COMMANDS: list[tuple[Callable[..., None], str]] = [
    (run, "remand run shop.pipeline:pipeline --input orders.jsonl --output checked.jsonl"),
    (resume, "remand resume 20260131-120000-1a2b3c4d --output checked.jsonl"),
    (redrive, "remand redrive 20260131-120000 --quarantined --reason semantic_rejection"),
    (worker, "remand worker --role producer --concurrency 64 --pipeline shop.pipeline:pipeline"),
    (up, "remand up --workers 4"),
]

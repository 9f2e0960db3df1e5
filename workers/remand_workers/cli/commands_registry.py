"""Commands about registries: `remand registry …`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .commands_work import Concurrency, Home, Json, Model, ModelUrl, Pool, Quiet, Workers
from .program import finish

if TYPE_CHECKING:
    from remand_tasks.registry.reading import RegistryQueries

    from ..settings import Settings

NAME = "registry"
HELP = (
    "Look at registries, look for duplicates in them, settle what is unsure, undo merges.\n\n"
    "Without a command it lists them."
)
DEFAULT = "list"

Name = Annotated[str, typer.Argument(metavar="NAME", help="The registry's name.")]
Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:REGISTRY", help="Where the registry is, or MODULE:PIPELINE#NAME of one that it feeds."
    ),
]
NameOrTarget = Annotated[
    str,
    typer.Argument(
        metavar="NAME|MODULE:REGISTRY",
        help="The registry's name, or where it is; MODULE:PIPELINE#NAME will do.",
    ),
]
ReviewNumber = Annotated[int, typer.Argument(metavar="REVIEW", help="Its number, as `review` lists it.")]
Records = Annotated[bool, typer.Option("--records", help="Also show the entries' records: your data.")]


def add(target: Target, home: Home = None, json: Json = False) -> None:
    """Make a registry known, so that entries can be imported. One that is known is looked for here from now on.

    `remand run` and `remand submit` do that by themselves for registries that their pipeline feeds.
    """
    from .context import ledger, read_settings
    from .registry_changes import add

    with ledger(settings := read_settings(home=home), create=True) as queries:
        add(queries.database, settings, target, json=json)


def list_(home: Home = None, json: Json = False) -> None:
    """Every registry: its entries and clusters, what was not compared yet, what waits for a person."""
    from .registry_stories import list_registries

    with _queries(home) as (queries, _):
        list_registries(queries, json=json)


def show(
    name: Name,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="ID", help="One job, round by round; how its id begins will do."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Jobs in the list.")] = 10,
    home: Home = None,
    json: Json = False,
) -> None:
    """One registry with its last jobs: what they compared and merged, what that cost, which caps they hit."""
    from .registry_stories import show

    with _queries(home) as (queries, _):
        show(queries, name, job=job, limit=limit, json=json)


def entries(
    name: Name,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="ID", help="The cluster with this canonical id, or one it had."),
    ] = None,
    entry: Annotated[
        str | None, typer.Option("--entry", metavar="ID", help="The cluster that this entry is in.")
    ] = None,
    records: Records = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Clusters in the list.")] = 50,
    home: Home = None,
    json: Json = False,
) -> None:
    """Clusters with the ids of their members, the canonical one first."""
    from .registry_stories import entries

    with _queries(home) as (queries, _):
        entries(queries, name, cluster=cluster, entry=entry, records=records, limit=limit, json=json)


def import_(
    name: Name,
    input: Annotated[
        str,
        typer.Option("--input", "-i", metavar="FILE|-", help="JSON lines to read; `-` is standard input."),
    ],
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Store entries from JSON lines, as the registry's entry model has them. An id that is there takes the new record.

    A line that is no entry is reported by its number and left out; the exit status is then at least 3. Nothing is
    compared yet.
    """
    from .registry_changes import import_

    with _queries(home) as (queries, settings):
        finish(import_(queries.database, settings, name, input, quiet=quiet, json=json))


def reconcile(
    registry: NameOrTarget,
    workers: Workers = None,
    concurrency: Concurrency = None,
    pool: Pool = None,
    model: Model = None,
    model_base_url: ModelUrl = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Look for duplicates among what is new: equal exact keys first, then blocks of records that the model is shown.

    Without REMAND_BROKER_URL the services run here; elsewhere the workers that serve the broker do it, and this command
    watches. Ctrl-C leaves the job as it is, and the same command goes on with it. Where nothing is new it says so. The
    exit status is 3 where blocks failed or entries were left for the next time.
    """
    from .context import read_settings
    from .registry_reconciling import reconcile

    settings = read_settings(
        workers=workers,
        concurrency=concurrency,
        pool=pool,
        model=model,
        model_base_url=model_base_url,
        home=home,
    )
    finish(reconcile(settings, registry, quiet=quiet, json=json))


def review(name: Name, records: Records = False, home: Home = None, json: Json = False) -> None:
    """Groups of entries that may be the same and that a person has to decide about."""
    from .registry_stories import reviews

    with _queries(home) as (queries, _):
        reviews(queries, name, records=records, json=json)


def accept(name: Name, review: ReviewNumber, home: Home = None, json: Json = False) -> None:
    """The entries of a review are the same: their clusters become one, unless a rule of the registry forbids it."""
    from .registry_changes import settle

    with _queries(home) as (queries, settings):
        settle(queries.database, settings, name, review, accept=True, json=json)


def refuse(name: Name, review: ReviewNumber, home: Home = None, json: Json = False) -> None:
    """The entries of a review are not the same: they are kept apart from now on."""
    from .registry_changes import settle

    with _queries(home) as (queries, settings):
        settle(queries.database, settings, name, review, accept=False, json=json)


def unmerge(
    name: Name,
    receipt: Annotated[
        int, typer.Argument(metavar="RECEIPT", help="The merge's receipt, as `history` lists it.")
    ],
    home: Home = None,
    json: Json = False,
) -> None:
    """Undo a merge: the clusters are what they were before it, and are kept apart from now on.

    A merge that a later one stands on cannot be undone before that one.
    """
    from .registry_changes import unmerge

    with _queries(home) as (queries, settings):
        unmerge(queries.database, settings, name, receipt, json=json)


def history(
    name: Name,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="ID", help="What this cluster, or an entry of it, had a part in."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Receipts in the list.")] = 50,
    home: Home = None,
    json: Json = False,
) -> None:
    """Receipts of merges and unmerges, newest first: members before and after, the rule, run and attempt."""
    from .registry_stories import history

    with _queries(home) as (queries, _):
        history(queries, name, cluster=cluster, limit=limit, json=json)


def export(
    name: Name,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE|-", help="Where it goes. Without it: standard output."),
    ] = None,
    home: Home = None,
) -> None:
    """Every cluster as a JSON line: `id`, `members`, and the canonical `record` that the registry's `merge` makes."""
    from ..registries import same_version
    from .registry_stories import export

    with _queries(home) as (queries, _):
        registry = same_version(queries.standing(name).row)
        finish(export(queries, registry, name, output))


def _queries(home: Path | None) -> AbstractContextManager[tuple[RegistryQueries, Settings]]:
    from .context import registries

    return registries(home)


COMMANDS: list[tuple[Callable[..., None], str]] = [
    (list_, "remand registry list"),
    (show, "remand registry show works"),
    (entries, "remand registry entries works --cluster 10.1000/182"),
    (add, "remand registry add shop.works:works"),
    (import_, "remand registry import works --input works.jsonl"),
    (reconcile, "remand registry reconcile works"),
    (review, "remand registry review works --records"),
    (accept, "remand registry accept works 3"),
    (refuse, "remand registry refuse works 4"),
    (history, "remand registry history works --cluster 10.1000/182"),
    (unmerge, "remand registry unmerge works 17"),
    (export, "remand registry export works --output works.jsonl"),
]

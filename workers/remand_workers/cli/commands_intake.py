"""Commands about messages of other systems: `remand intake`, and what looks after its dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from .commands_work import Home, Json
from .program import finish

NAME = "intake"
HELP = (
    "Take messages of other systems: entries for a registry, and requests to look for duplicates in it.\n\n"
    "Without a command it runs."
)
DEFAULT = "run"

Numbers = Annotated[
    list[int] | None, typer.Argument(metavar="[ID]...", help="Numbers of dead letters, as `dead` lists them.")
]
Everything = Annotated[bool, typer.Option("--all", help="Every dead letter that there is.")]


def run(
    stream: Annotated[
        str | None,
        typer.Option("--stream", metavar="NAME", help="The Redis Stream. Else REMAND_INTAKE_STREAM."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="NAME", help="Its consumer group. Else REMAND_INTAKE_GROUP."),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="The AMQP queue. Else REMAND_INTAKE_QUEUE.")
    ] = None,
    registry: Annotated[
        list[str] | None,
        typer.Option(
            "--registry",
            metavar="MODULE:REGISTRY",
            help="Load it and make it known before any message. May be repeated.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when no message waits.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Take plain JSON messages from REMAND_INTAKE_URL until told to stop. SIGTERM and Ctrl-C finish the one in hand.

    A message is recorded by its id before it is acknowledged, so that the same one again changes nothing. One that
    cannot be taken becomes a dead letter; with `--once` the exit status is then 3.
    """
    from .context import read_settings
    from .taking_in import take_in

    settings = read_settings(intake_stream=stream, intake_group=group, intake_queue=queue, home=home)
    finish(take_in(settings, registries=registry or [], once=once, json=json))


def schema() -> None:
    """Print the JSON Schema of a message."""
    from remand_tasks.registry.intake import Message

    from .console import write_json

    write_json(Message.model_json_schema())


def dead(
    settled: Annotated[
        bool, typer.Option("--settled", help="Also those that were retried or dropped.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Letters in the list.")] = 100,
    home: Home = None,
    json: Json = False,
) -> None:
    """List dead letters: messages that could not be taken, each with the reason. Nothing of what they say is shown."""
    from . import taking_in
    from .context import ledger, read_settings

    with ledger(read_settings(home=home)) as queries:
        taking_in.list_dead(queries.database, settled=settled, limit=limit, json=json)


def retry(letters: Numbers = None, all_: Everything = False, home: Home = None, json: Json = False) -> None:
    """Take dead letters' messages once more, as far as the vault still has them: mended registries take them now."""
    from . import taking_in
    from .context import read_settings

    finish(taking_in.retry(read_settings(home=home), letters or [], everything=all_, json=json))


def drop(letters: Numbers = None, all_: Everything = False, home: Home = None, json: Json = False) -> None:
    """Delete dead letters' messages and take the letters off the list. That they were there stays recorded."""
    from . import taking_in
    from .context import read_settings

    finish(taking_in.drop(read_settings(home=home), letters or [], everything=all_, json=json))


COMMANDS: list[tuple[Callable[..., None], str]] = [
    (run, "remand intake run --registry shop.works:works"),
    (schema, "remand intake schema > message.schema.json"),
    (dead, "remand intake dead --json"),
    (retry, "remand intake retry 17 18"),
    (drop, "remand intake drop --all"),
]

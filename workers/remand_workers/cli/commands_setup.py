"""Commands that set things up and look after them: init, doctor, config, migrate, flower."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from .commands_work import Home, Json
from .program import finish


def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to write it.")] = Path("."),
) -> None:
    """Write a small pipeline with its test, a sample input and a README, all ready to run. Overwrites nothing."""
    from .scaffold import write

    write(folder)


def doctor(
    pipeline: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:PIPELINE]", help="Also check this pipeline and its model."),
    ] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Check everything that a run needs, and say of each part whether it is well and what to do if not."""
    from .context import read_settings
    from .examination import examine

    finish(examine(read_settings(home=home), pipeline, json=json))


def config(home: Home = None, json: Json = False) -> None:
    """Every setting, its value (secrets hidden), where the value came from, and what it is for."""
    from .console import table, write_json, write_table
    from .context import read_settings

    rows = read_settings(home=home).shown()
    if json:
        write_json(
            [
                {
                    "variable": row.variable,
                    "value": row.value,
                    "source": row.source,
                    "description": row.description,
                }
                for row in rows
            ]
        )
    else:
        write_table(
            table(
                ("variable", "value", "from", "for"),
                [(row.variable, row.value or "-", row.source, row.description) for row in rows],
            )
        )


def migrate(home: Home = None) -> None:
    """Bring the ledger's tables to what this version needs. Safe to run twice, and from several machines at once."""
    from remand_tasks.state.engine import Database
    from remand_tasks.state.migrate import current, upgrade

    from ..embedded import ledger_url
    from .console import say
    from .context import read_settings

    settings = read_settings(home=home)
    if settings.ledger_url is None and settings.embedded:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings = settings.replace(ledger_url=ledger_url(settings.home))
    elif settings.ledger_url is None:
        settings.require_services()
    assert settings.ledger_url is not None
    database = Database(settings.ledger_url)
    try:
        changed = upgrade(database)
        say(f"the ledger {'is now' if changed else 'was already'} at revision {current(database)}")
    finally:
        database.dispose()


def vault_key(
    add: Annotated[
        bool,
        typer.Option(
            "--add", help="Print REMAND_VAULT_KEYS with a new key in front: it encrypts from then on."
        ),
    ] = False,
    behind: Annotated[
        bool,
        typer.Option(
            "--behind", help="With --add: the new key last, so that workers can read with it first."
        ),
    ] = False,
    used: Annotated[
        bool,
        typer.Option("--used", help="Count what is in the vault by the key that sealed it. Prints no key."),
    ] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Print a new key for REMAND_VAULT_KEYS; the output is a secret. With `--used`, say which keys are still needed.

    To replace a key while runs go on: `--add --behind` on all workers, then its order turned round, then, once `--used`
    no longer counts the old key, without it.
    """
    from .context import read_settings
    from .vault_keys import ring, still_used

    settings = read_settings(home=home)
    finish(still_used(settings, json=json) if used else ring(settings, add=add, behind=behind))


def purge(
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Items of this run alone.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Items that ended longer ago: 30d, 12h, 90s."),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help="Items that ended so. May be repeated."),
    ] = None,
    payloads_only: Annotated[
        bool, typer.Option("--payloads-only", help="Keep the receipts: codes and counts of each decision.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without: say how much it would be.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Forget what items of ended runs said: inputs, values, messages, receipts, and checkpoints that stand on them.

    Everything that is named must fit. Keys and how each item ended stay, so that no old message revives it.
    REMAND_RETENTION does the same by itself.
    """
    from .context import read_settings
    from .retaining import purge

    finish(
        purge(
            read_settings(home=home), run=run, older_than=older_than, statuses=status or [],
            payloads_only=payloads_only, yes=yes, json=json,
        )
    )  # fmt: skip


def flower(
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="ADDRESS", help="Where to listen. Else REMAND_FLOWER_ADDRESS."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="N", min=0, max=65535, help="Else REMAND_FLOWER_PORT. 0 takes a free one."
        ),
    ] = None,
    home: Home = None,
) -> None:
    """Open Flower, Celery's web page, on the same broker: which tasks run where, in words, without anybody's data.

    Beyond this machine it needs REMAND_FLOWER_AUTH (`user:password`). Even then `/metrics` and `/healthcheck` stay
    open; close them at a proxy.
    """
    from ..flower import run_flower
    from .console import say
    from .context import attached, read_settings

    with ExitStack() as stack:
        settings = attached(read_settings(flower_address=address, flower_port=port, home=home), stack)
        status = run_flower(settings, lambda where: say(f"Flower is at {where}; Ctrl-C ends it"))
    finish(status)


COMMANDS: list[tuple[Callable[..., None], str]] = [
    (init, "remand init citations"),
    (doctor, "remand doctor shop.pipeline:pipeline"),
    (config, "remand config"),
    (migrate, "REMAND_LEDGER_URL=postgresql+psycopg://… remand migrate"),
    (vault_key, "remand vault-key --add"),
    (purge, "remand purge --older-than 30d --yes"),
    (flower, "remand flower --port 5555"),
]

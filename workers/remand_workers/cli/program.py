"""The commands and their help. What they do is in the modules beside this one, imported when a command runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

PEOPLE = "See what happens"
WORK = "Do the work"
SETUP = "Set up and look after"


def program() -> typer.Typer:
    """The whole command line."""
    from . import commands_intake, commands_registry, commands_setup, commands_watch, commands_work

    app = typer.Typer(
        name="remand",
        help=(
            "Language-model work that must be right: produce, judge, send back, and account for every item.\n\n"
            "Begin with `remand init`, then `remand run`."
        ),
        epilog="Exit status: 0 succeeded, 3 degraded, 1 failed, 2 bad usage or bad pipeline, 130 interrupted.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    for commands, panel in ((commands_work, WORK), (commands_watch, PEOPLE), (commands_setup, SETUP)):
        for function, example in commands.COMMANDS:
            name = function.__name__.rstrip("_").replace("_", "-")
            app.command(name, epilog=f"Example: `{example}`", rich_help_panel=panel)(function)
    app.add_typer(_group(commands_registry), rich_help_panel=PEOPLE)
    app.add_typer(_group(commands_intake), rich_help_panel=WORK)
    app.callback()(_whole)
    return app


def _group(commands: Any) -> typer.Typer:
    """The commands of a module under its `NAME`; without one of them, its `DEFAULT`."""

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
                args = [commands.DEFAULT, *args]
            return super().parse_args(ctx, args)

    group = typer.Typer(name=commands.NAME, help=commands.HELP, cls=Group, rich_markup_mode="markdown")
    for function, example in commands.COMMANDS:
        group.command(function.__name__.rstrip("_"), epilog=f"Example: `{example}`")(function)
    return group


def _version(wanted: bool) -> None:
    if wanted:
        from remand import __version__

        typer.echo(f"remand {__version__}")
        raise typer.Exit


def _whole(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def finish(status: Any) -> None:
    """End a command with an exit status."""
    raise typer.Exit(int(status))

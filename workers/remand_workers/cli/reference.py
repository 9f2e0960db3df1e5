"""The reference pages of command line and settings, made from the commands and the settings themselves.

`python -m remand_workers.cli.reference docs/reference` writes them; a test fails when they are stale.
"""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import typer.main

from ..settings import Settings, variable
from .program import PEOPLE, SETUP, WORK, program

_MADE: Final = "<!-- Made by `python -m remand_workers.cli.reference docs/reference`. Do not edit. -->"

_HEAD: Final = """# The command line

{made}

Data goes to standard output, messages and progress to standard error. `--json` gives programs what tables give people.
Colours and live displays appear on terminals only; `NO_COLOR` turns colours off.

| exit status | means |
|---|---|
| 0 | succeeded: every item was accepted, none by a fallback, and every line could be read |
| 3 | degraded: the run ended with items that are no plain successes, or with lines of the input left out |
| 1 | failed: the run failed or was cancelled, or the command could not do its work |
| 2 | bad usage, a setting that cannot be used, or a pipeline that was refused |
| 130 | interrupted: the run can go on with `remand resume` |

Ctrl-C stops `run`, `resume` and `up` in order: workers finish what they hold. A second one ends everything at once. An
unexpected error is told without its text, which may quote your data; `REMAND_DEBUG=1` shows its traceback.

An output line of `run` and `results` holds: `key`, `item` (its number, from 0), `status`, `value`, `validation`,
`reason`, `disposition`, `code`, `attempts`, `generations`, `fallback`, `reused`, `diagnostics` and `verdicts`, each
with `validator`, `verdict`, `tries`, `error_type` and `error_at`. See [the lifecycle](lifecycle.md) for the words,
[settings](settings.md) for the variables.
"""

_SETTINGS_HEAD: Final = """# Settings

{made}

Every setting is an environment variable, or a line of a `.env` file in the working directory; the environment wins, and
options of the command line win over both. Spans of time are plain numbers of seconds. `remand config` shows the values
in use and where each came from, secrets hidden.

| variable | default | what it is for |
|---|---|---|
"""


def command_line() -> str:
    """The page about commands."""
    group: Any = typer.main.get_command(program())
    parts = [_HEAD.format(made=_MADE)]
    for panel in (WORK, PEOPLE, SETUP):
        parts.append(f"## {panel}\n")
        for name, command in group.commands.items():
            if command.rich_help_panel == panel:
                commands = getattr(command, "commands", None)
                if commands is None:
                    parts.append(_command(name, command))
                else:
                    parts.append(f"### remand {name}\n\n{_paragraphs(command.help)}\n")
                    parts += [_command(f"{name} {each}", under) for each, under in commands.items()]
    return "\n".join(parts)


def _command(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    usage = " ".join(
        ["remand", name, *filter(None, (_metavar(each).strip() for each in arguments)), "[OPTIONS]"]
    )
    lines = [f"### remand {name}\n", f"```text\n{usage}\n```\n", _paragraphs(command.help), ""]
    if command.epilog:
        example = re.sub(r"^Example: `(.*)`$", r"\1", command.epilog)
        lines.append(f"```sh\n{example}\n```\n")
    rows = [(f"`{_metavar(each)}`", each.help) for each in arguments if each.help]
    for each in options:
        if each.name == "help":
            continue
        names = ", ".join(f"`{spelled}`" for spelled in each.opts)
        value = "" if each.is_flag else f" `{each.metavar or 'VALUE'}`"
        rows.append((names + value.replace("|", "\\|"), each.help or ""))
    if rows:
        lines += ["| | |", "|---|---|", *(f"| {left} | {_cell(right)} |" for left, right in rows), ""]
    return "\n".join(lines)


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _paragraphs(text: str | None) -> str:
    return re.sub(r"(?<!\n)\n(?!\n)", "\n", (text or "").strip())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def settings() -> str:
    """The page about settings."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default
        if isinstance(default, timedelta):
            shown = f"`{default.total_seconds():g}`"
        else:
            shown = "" if default is None else f"`{default}`"
        rows.append(f"| `{variable(name)}` | {shown} | {_cell(field.description or '')} |")
    return _SETTINGS_HEAD.format(made=_MADE) + "\n".join(rows) + "\n"


PAGES: Final = {"command-line.md": command_line, "settings.md": settings}


def main(folder: Path) -> None:
    """Write both pages."""
    for name, make in PAGES.items():
        (folder / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

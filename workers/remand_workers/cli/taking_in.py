"""`intake`: running it, and what is done with its dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict

from remand_tasks.registry.intake import MOST_DELIVERIES, Delivery, Intake, Result
from remand_tasks.registry.letters import Letter, listed
from remand_tasks.state.engine import Database
from remand_tasks.state.vault import VaultError

from ..intake import run_intake
from ..intake.process import opened
from ..settings import Settings
from .console import say, table, write_json, write_table
from .context import attached
from .failures import DEGRADED, FAILED, INTERRUPTED, SUCCEEDED, UsageError
from .standing import when


def take_in(settings: Settings, *, registries: Sequence[str], once: bool, json: bool) -> int:
    """Take messages until told to stop, or until none waits. The exit status."""
    with ExitStack() as stack:
        tally, interrupted = run_intake(attached(settings, stack), registries=registries, once=once)
    if json:
        write_json(tally.to_json())
    else:
        say(f"messages: {tally}")
    if interrupted:
        return INTERRUPTED
    return DEGRADED if once and (tally.counts[Result.DEAD] or tally.counts[Result.LATER]) else SUCCEEDED


def list_dead(database: Database, *, settled: bool, limit: int, json: bool) -> None:
    """Dead letters as a table, or as JSON."""
    found = listed(database, settled=settled, limit=limit)
    if json:
        write_json([asdict(letter) for letter in found])
        return
    if not found:
        say("there are no dead letters")
        return
    columns = (
        "id",
        "message",
        "registry",
        "source",
        "reason",
        "detail",
        "#bytes",
        "kept",
        "#times",
        "state",
        "last seen",
    )
    rows = [
        (
            str(each.id), each.message_id or None, each.registry or None, each.source, each.reason, each.detail or None,
            each.size, bool(each.kept), each.times, each.state, when(each.at),
        )
        for each in found
    ]  # fmt: skip
    write_table(table(columns, rows))


def retry(settings: Settings, numbers: Sequence[int], *, everything: bool, json: bool) -> int:
    """Take messages of dead letters once more. The exit status: 1 where one could not be taken."""
    told: list[dict[str, object]] = []
    with _chosen(settings, numbers, everything=everything) as (intake, letters):
        for letter in letters:
            told.append({"id": letter.id, "result": _retried(intake, letter)})
    _tell(told, json=json)
    return SUCCEEDED if all(each["result"] == "retried" for each in told) else FAILED


def _retried(intake: Intake, letter: Letter) -> str:
    """What became of it: `retried`, why it is dead again, or why its message is not there."""
    try:
        body = intake.letters.body(letter.id)
    except VaultError as error:
        return f"cannot be read ({error.code})"
    if body is None:
        return "expired" if letter.kept else "not kept"
    # The last delivery that counts: it is judged now, for good.
    result = intake.take(Delivery(source=letter.source, body=body, number=MOST_DELIVERIES))
    if result is Result.DEAD:
        (again,) = listed(intake.database, settled=True, ids=[letter.id])
        return again.reason
    intake.letters.settle(letter.id, "retried")
    return "retried"


def drop(settings: Settings, numbers: Sequence[int], *, everything: bool, json: bool) -> int:
    """Forget dead letters."""
    told: list[dict[str, object]] = []
    with _chosen(settings, numbers, everything=everything) as (intake, letters):
        for letter in letters:
            intake.letters.settle(letter.id, "dropped")
            told.append({"id": letter.id, "result": "dropped"})
    _tell(told, json=json)
    return SUCCEEDED


def _tell(told: Sequence[dict[str, object]], *, json: bool) -> None:
    if json:
        write_json(told)
        return
    for each in told:
        say(f"dead letter {each['id']}: {each['result']}")
    if not told:
        say("there are no dead letters")


@contextmanager
def _chosen(
    settings: Settings, numbers: Sequence[int], *, everything: bool
) -> Iterator[tuple[Intake, list[Letter]]]:
    """The letters that are named, or all. Raises `UsageError` for a number that is none."""
    if bool(numbers) == everything:
        raise UsageError(
            "name dead letters by their numbers, as `remand intake dead` lists them, or say --all"
        )
    with ExitStack() as stack:
        intake = stack.enter_context(opened(attached(settings, stack)))
        letters = listed(intake.database, ids=numbers)
        missing = sorted(set(numbers) - {letter.id for letter in letters})
        if missing:
            raise UsageError(
                f"no dead letter {', '.join(map(str, missing))}; `remand intake dead` lists them"
            )
        yield intake, letters[::-1]

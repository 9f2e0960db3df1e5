"""The surfaces: every place outside a step's own memory where a text could end up, and what may be there.

One table, for people and for tests. The reference page is made from it, and the leak test plants a marker of each
kind, runs everything, and reads every surface in the table for every kind that it may not hold. This module reads
and guards nothing by itself; what keeps a text off a surface is in the code that writes there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """Kinds of sensitive text."""

    INPUT = "input"
    """What a run or a registry was fed."""
    PROMPT = "prompt"
    """What the model is asked, apart from the input in it."""
    RESPONSE = "response"
    """What the model replied, to a producer."""
    JUDGEMENT = "judgement"
    """What the model replied, to a judge."""
    CANDIDATE = "candidate"
    """A value that was proposed and did not pass."""
    VALUE = "value"
    """A value that passed, by all validators or as incomplete."""
    FINDING = "finding"
    """What a validator says to the model."""
    GUIDANCE = "guidance"
    """What a producer's retry request says to the model."""
    OPERATOR = "operator message"
    """What a producer's retry request says to people."""
    EXCEPTION = "exception"
    """The message of an exception, of its causes and notes, and of a provider's error reply."""


NOTHING: Final[frozenset[Kind]] = frozenset()
USERS_DATA: Final = frozenset({Kind.INPUT, Kind.VALUE, Kind.OPERATOR})
"""What the ledger keeps, in one table, because it belongs to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One place. `where` says how to get at it, `holds` what is ordinarily there, `may` which texts may be."""

    name: str
    where: str
    holds: str
    may: frozenset[Kind] = NOTHING

    @property
    def never(self) -> frozenset[Kind]:
        """The kinds that may not be there."""
        return frozenset(Kind) - self.may


SURFACES: Final = (
    Surface(
        name="server traffic",
        where="`MONITOR` on the Redis server: every command of every client and script",
        holds="task messages, events, claims and codes; vault entries as ciphertext",
    ),
    Surface(
        name="task messages",
        where="bodies, headers and properties on the queues and among the unacknowledged",
        holds="a token, `run/item/stage/attempt/epoch`; in `argsrepr` pipeline, item, stage and attempt",
    ),
    Surface(
        name="redis keys",
        where="names and values of every key that is not the vault's, attempt records included",
        holds="queues, bindings, claims, codes and counts",
    ),
    Surface(
        name="vault bytes",
        where="the raw bytes of the vault's keys, as a server's operator reads them",
        holds="ciphertext that expires, under names made of item and epoch numbers",
    ),
    Surface(
        name="server introspection",
        where="`SLOWLOG`, `CLIENT LIST`, `INFO`, `PUBSUB` and the server's log file",
        holds="commands, addresses, counts",
    ),
    Surface(
        name="task events",
        where="what a consumer of Celery's events receives, failures and tracebacks included",
        holds="task names, states, times; a failed step by its name and the exception's type",
    ),
    Surface(
        name="remote control",
        where="replies to `inspect active`, `reserved`, `conf`, `stats` and the rest",
        holds="what task messages hold; settings with secrets hidden",
    ),
    Surface(
        name="result backend",
        where="results of all tasks, asked for by their ids",
        holds="nothing: results and errors are not stored",
    ),
    Surface(
        name="worker logs",
        where="logs at DEBUG of workers that produce and judge",
        holds="codes, ids, counts; of an exception its type and place",
    ),
    Surface(
        name="pulse logs",
        where="logs at DEBUG of a worker that coordinates, its pulse included",
        holds="decisions, ends of runs; of an exception its type and place",
    ),
    Surface(
        name="intake logs",
        where="logs at DEBUG of `remand intake`",
        holds="codes, sizes, numbers of dead letters, names of registries; of an exception its type and place",
    ),
    Surface(
        name="client logs",
        where="logs at DEBUG of a program that uses `Client`, through handlers of its own",
        holds="what the libraries say about SQL statements and connections, parameters hidden",
    ),
    Surface(
        name="standard streams",
        where="standard output and error of workers and clients",
        holds="logs",
    ),
    Surface(
        name="flower pages",
        where="the HTML that Flower serves, and what fills its tables",
        holds="pipeline, item, stage, attempt, state, times",
    ),
    Surface(
        name="flower api",
        where="`/api/...` and `/metrics` of Flower",
        holds="the same, under Celery's names",
    ),
    Surface(
        name="flower database",
        where="the file that Flower writes with `--persistent`",
        holds="the events that it saw",
    ),
    Surface(
        name="metrics",
        where="`/metrics` of workers",
        holds="counts under names that the pipeline fixes and codes",
    ),
    Surface(
        name="spans",
        where="what OpenTelemetry's Celery instrumentation exports from a worker",
        holds="task names, ids, queues; of a failure its code",
    ),
    Surface(
        name="receipts",
        where="the ledger's table of decisions, one row for each",
        holds="codes, counts, exception types and places",
    ),
    Surface(
        name="checkpoints",
        where="the ledger's table of values that can be used again",
        holds="fingerprints, digests, and which item's payload has the value",
    ),
    Surface(
        name="dead letters",
        where="the ledger's table of messages that could not be taken",
        holds="the message's own id, codes, sizes, digests; its body is in the vault alone",
    ),
    Surface(
        name="ledger",
        where="every other table of the ledger but the payloads",
        holds="states, codes, counts, times; the keys of items and entries, ids of messages",
    ),
    Surface(
        name="payload table",
        where="the ledger's tables of texts: payloads, and the records of registries' entries",
        holds="the user's data",
        may=USERS_DATA,
    ),
    Surface(
        name="errors",
        where="`str`, `repr`, traceback, attributes and pickle of every error raised to a program",
        holds="names, codes, positions; what to do",
    ),
    Surface(
        name="values",
        where="`repr`, `str` and `format` of public values: outcomes, contexts, responses, runs, settings",
        holds="kinds, codes and lengths",
    ),
    Surface(
        name="local driver",
        where="logs at DEBUG, standard streams and warnings of `run_local`, through handlers of a program's own",
        holds="what the libraries say about connections; of an exception its type and place",
    ),
    Surface(
        name="command line",
        where="`status`, `show`, `quarantine`, `cancel`, `doctor`, `config`, `intake`, `registry`, for people and with "
        "`--json`",
        holds="codes, counts, settings with secrets hidden",
    ),
    Surface(
        name="progress",
        where="what `remand run` shows on a terminal while it works, and its summary",
        holds="counts, rates, numbers of lines that were left out",
    ),
    Surface(
        name="outputs",
        where="the output file of `remand run`, and `remand results`",
        holds="outcomes with their values",
        may=frozenset({Kind.VALUE}),
    ),
    Surface(
        name="payload on request",
        where="`remand show --payload`, `remand registry entries --records` and `review --records`, `registry export`",
        holds="the story of one item, and entries of registries, with the user's data",
        may=USERS_DATA,
    ),
    Surface(
        name="files",
        where="files left in the home folder (the ledger apart), the working folder and the temporary folder",
        holds="logs, the vault's key, addresses of services",
    ),
    Surface(
        name="processes",
        where="command lines, titles and thread names in the system's list of processes",
        holds="the programs' names",
    ),
    Surface(
        name="foreign messages",
        where="the stream or queue on which other systems send, until `remand intake` has taken a message",
        holds="messages as they were sent, in plain text: give that server a guard of its own",
        may=frozenset({Kind.INPUT}),
    ),
)  # fmt: skip
"""All of them, from the broker outwards."""

_HEAD: Final = """# Surfaces: what may be seen where

<!-- Made by `python -m remand_workers.surfaces`. Do not edit. -->

Inputs, prompts, replies, candidates, findings, guidance, operator messages and the words of exceptions are *sensitive
text*. A text is in the memory of the step that needs it, in the request to the model, and encrypted in the vault.
Inputs, values that passed and operator messages are also in one table of the ledger, because they are the user's data.
This is every other place that a text could reach, and what may be there. `tests/privacy` plants a marker of each kind,
makes everything happen to a run that can happen, and reads each of these places.

| surface | where to look | what is there | sensitive text |
|---|---|---|---|
"""

_TAIL: Final = """
## What the author of a pipeline decides

- **An item's own key** (`--key`) is shown wherever items are named. Choose a field that is no secret.
- **What the pipeline's own code writes** with `logging`, `print` or into files goes where it sends it. Records about an
  exception lose its words in a worker's log all the same.
- **Names and codes** (of pipelines, stages, validators, findings, retry requests; types of exceptions and the places
  in the code that raised them) are shown. They are made by the author, not by a model.
- **An import that raises** while a pipeline is loaded is chained to the `PipelineError` for the author's own terminal.
- **Digests** of inputs and values are in the ledger: who can read it and guesses a text can see that the guess is
  right.
- **`REMAND_DEBUG=1`** shows tracebacks of unexpected errors on the terminal; they may quote data.
"""


def page() -> str:
    """The reference page."""
    rows = [
        f"| {each.name} | {each.where} | {each.holds} | "
        f"{', '.join(sorted(each.may)) if each.may else 'none'} |"
        for each in SURFACES
    ]
    return _HEAD + "\n".join(rows) + "\n" + _TAIL


def main() -> None:
    """Write the page to standard output."""
    sys.stdout.write(page())


if __name__ == "__main__":
    main()

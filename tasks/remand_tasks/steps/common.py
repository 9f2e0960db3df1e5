"""What the steps share: the checks before any work, the context of a call, the names of vault entries."""

from __future__ import annotations

import json
import logging
from typing import Any

from remand.context import COMPLETE, Context, Validation
from remand.pipeline import Stage

from ..pipelines import Bound
from ..runtime import Runtime
from ..state.ledger import Execution
from ..state.vault import Vault, VaultError
from ..token import Token

log = logging.getLogger("remand.tasks")


def checked(runtime: Runtime, token: Token) -> tuple[Execution, Bound] | None:
    """The item that `token` names and its pipeline, if the token is the one that the ledger waits for."""
    execution = runtime.ledger.execution_with_input(token.run, token.seq, token.stage)
    if execution is None or execution.input is None:
        return None
    if execution.row.state != "in_flight" or execution.row.token != token:
        return None
    bound = runtime.pipelines.of(execution.run)
    return None if bound is None else (execution, bound)


def context_of(execution: Execution, bound: Bound, stage: Stage) -> Context:
    """A context of its own for one call: nothing in it is shared with another."""
    row = execution.row
    previous: Any = None
    if row.stage > 0 and execution.previous is not None:
        previous = bound.pipeline.stages[row.stage - 1].producer.adapter.validate_json(execution.previous)
    unable = json.loads(row.unable)
    return Context(
        input=json.loads(execution.input or "null"),
        run_id=row.run_id,
        item=row.seq,
        stage=stage.name,
        attempt=row.attempt,
        previous=previous,
        validation=Validation(unable) if unable else COMPLETE,
    )


def tell_unreadable(error: VaultError, what: str, vault: Vault) -> None:
    """Log that an entry cannot be opened, by its code, and what to do about it."""
    if error.code == "unknown_key":
        log.error(
            "%s cannot be opened (unknown_key): REMAND_VAULT_KEYS of this worker (%s) lacks the key that sealed it; "
            "add that key behind the new one, and start this worker again",
            what,
            ", ".join(vault.key_ids),
        )
    else:
        log.error(
            "%s cannot be opened (%s): it was changed, moved from another place, or sealed with another key of the "
            "same name; it is not used",
            what,
            error.code,
        )


def findings_entry(validator: int, epoch: int) -> str:
    """Where a validator's findings about the candidate of `epoch` lie."""
    return f"find.{validator}.{epoch}"


def correction_entries(reference: str) -> tuple[str, ...]:
    """The vault entries that a pending correction is made of: first the response, then what is said of it.

    `reference` is the row's: `find.EPOCH:I,J` for the findings of validators I and J, `guid.EPOCH` for guidance.
    """
    if not reference:
        return ()
    kind, rest = reference.split(".", 1)
    epoch, _, validators = rest.partition(":")
    if kind == "guid":
        return (f"resp.{epoch}", f"guid.{epoch}")
    return (f"resp.{epoch}", *(findings_entry(int(index), int(epoch)) for index in validators.split(",")))

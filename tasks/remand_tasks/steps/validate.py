"""Judging a candidate: for each open validator of a group, in order, claim, judge, write."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from secrets import token_hex

from remand.attempt import Judged, judge
from remand_policy import Verdict

from ..faults import point
from ..pipelines import Bound
from ..routing import queue_of
from ..runtime import Runtime
from ..state.attempts import Held
from ..state.ledger import Execution
from ..state.rows import entry_epoch
from ..state.vault import VaultError
from ..token import Token
from . import Next
from .common import checked, context_of, findings_entry, tell_unreadable

log = logging.getLogger("remand.tasks")


def run(runtime: Runtime, token: Token, queue: str | None) -> Next:
    """Judge with the first group that is not done, if it belongs to the queue that this message came from.

    A run that has ended meanwhile does not stop it: the candidate is paid for.
    """
    point("validate.begun")
    found = checked(runtime, token)
    if found is None:
        return Next.STOP
    execution, bound = found
    groups = bound.pipeline.stages[token.stage].groups
    if not groups:
        return Next.DECIDE
    group: tuple[int, ...] | None = groups[0]
    if len(groups) > 1:
        record = runtime.attempts.read(token.run, token.seq)
        if record is None or record.epoch != token.epoch:
            return Next.STOP
        if record.p != "candidate":
            return Next.DECIDE if record.complete else Next.STOP
        unfinished = {i for i, state in enumerate(record.validators) if state.state in ("open", "claimed")}
        group = next((group for group in groups if unfinished.intersection(group)), None)
    if group is None:
        return Next.DECIDE
    if queue is not None and queue != queue_of(execution.row, bound.pipeline, "validate", group[0]):
        # The first group with work belongs to another queue, to which the chain goes on.
        return Next.FORWARD
    return _judge_group(runtime, token, execution, bound, group)


def _judge_group(
    runtime: Runtime, token: Token, execution: Execution, bound: Bound, group: tuple[int, ...]
) -> Next:
    stage = bound.pipeline.stages[token.stage]
    for index in group:
        validator = stage.validators[index]
        owner = token_hex(16)
        point("validate.checked")
        claim = runtime.attempts.claim_validators(
            token,
            owner,
            (index,),
            lease=runtime.times.claim,
            hard=validator.timeout + runtime.times.grace,
        )
        if claim.held is Held.DONE:
            continue
        if claim.held is not Held.CLAIMED:
            return Next.STOP
        point("validate.claimed")
        with runtime.renewal.holding(token, owner, index):
            try:
                candidate = runtime.vault.unseal(
                    token.run, token.seq, claim.candidate, claim.sealed[claim.candidate]
                )
            except VaultError as error:
                return _unreadable(runtime, token, owner, execution, index, claim.candidate, error)
            judged = judge(validator, stage.producer, candidate, lambda: context_of(execution, bound, stage))
            point("validate.judged")
            given = _write(runtime, token, owner, execution, index, judged, entry_epoch(claim.candidate))
        point("validate.written")
        if not given:
            log.warning("late: the verdict of %s is refused, its claim had been given up", validator.name)
            return Next.STOP
        log.info("judged: %s %s", validator.name, judged.verdict.value)
        pipeline = bound.pipeline.name
        runtime.observer.judged(pipeline, stage.name, validator.name, judged.verdict.value, judged.seconds)
        runtime.observer.tokens(pipeline, stage.name, judged.usage.input_tokens, judged.usage.output_tokens)
    return Next.FORWARD


def _unreadable(
    runtime: Runtime,
    token: Token,
    owner: str,
    execution: Execution,
    index: int,
    candidate: str,
    error: VaultError,
) -> Next:
    """Nothing was judged, so no budget is spent: give the claim back, for a worker that has the key.

    A candidate that nobody can open (changed, or moved here from another item) is thrown away, and produced again.
    """
    tell_unreadable(error, "the candidate", runtime.vault)
    lost = error.code != "unknown_key"
    if runtime.attempts.give_back(token, owner, index, drop=(candidate,) if lost else ()):
        point("validate.given_back")
        if not lost:
            return Next.STOP
        # Claiming finds the candidate missing and says so in the record; then there is something to decide.
        again = runtime.attempts.claim_validators(
            token, owner, (index,), lease=runtime.times.claim, hard=runtime.times.claim
        )
        return Next.DECIDE if again.held is Held.DONE else Next.STOP
    judged = Judged(verdict=Verdict.UNDETERMINED, error_type=type(error).__name__, error_at=error.code)
    given = _write(runtime, token, owner, execution, index, judged, entry_epoch(candidate))
    return Next.FORWARD if given else Next.STOP


def _write(
    runtime: Runtime, token: Token, owner: str, execution: Execution, index: int, judged: Judged, epoch: int
) -> bool:
    detail = {
        "ep": token.epoch,
        "n": len(judged.findings),
        "s": round(judged.seconds, 3),
        "i": judged.usage.input_tokens,
        "o": judged.usage.output_tokens,
        "error_type": judged.error_type,
        "error_at": (judged.error_at or "")[:300] or None,
    }
    entries = {}
    if judged.verdict is Verdict.REJECTED:
        name = findings_entry(index, epoch)
        data = json.dumps([asdict(finding) for finding in judged.findings]).encode()
        entries[index] = (name, runtime.vault.seal(token.run, token.seq, name, data))
    return bool(
        runtime.attempts.give_verdicts(
            token,
            owner,
            {index: (judged.verdict.value, json.dumps(detail, separators=(",", ":")))},
            entries=entries,
            expiry=runtime.expiry(execution.row, runtime.attempts.now()),
        )
    )

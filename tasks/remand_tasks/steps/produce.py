"""One attempt of the producer: read, claim, call, publish."""

from __future__ import annotations

import json
import logging
import time
from secrets import token_hex

from remand.attempt import Attempted, produce
from remand.context import Correction
from remand.pipeline import Stage
from remand_policy import (
    SINGLE_RESPONSE_V1,
    Bounds,
    Finding,
    Production,
    Rejection,
    render_findings,
    render_guidance,
)

from ..faults import point
from ..runtime import Runtime
from ..state.attempts import Held
from ..state.rows import Row
from ..state.vault import VaultError, vault_key
from ..token import Token
from . import Next
from .common import checked, context_of, correction_entries, tell_unreadable

log = logging.getLogger("remand.tasks")

_LONGEST_WAIT = 86_400.0


def run(runtime: Runtime, token: Token) -> Next:
    """Carry out the production that `token` names, unless it is stale, held or done."""
    point("produce.begun")
    found = checked(runtime, token)
    if found is None or not found[0].run.running:
        return Next.STOP
    execution, bound = found
    row, stage = execution.row, bound.pipeline.stages[token.stage]
    owner = token_hex(16)
    names = correction_entries(row.correction)
    point("produce.checked")
    claim = runtime.attempts.claim_production(
        token,
        owner,
        lease=runtime.times.claim,
        hard=stage.producer.deadline + runtime.times.grace,
        wanted=names,
    )
    if claim.held is not Held.CLAIMED:
        return Next.FORWARD if claim.held is Held.DONE else Next.STOP
    point("produce.claimed")
    began = time.perf_counter()
    with runtime.renewal.holding(token, owner):
        now = runtime.attempts.now()
        correction = None
        if now >= row.deadline_at:
            attempted = Attempted(production=Production.OPERATIONAL, code="deadline")
        else:
            try:
                correction = _correction(runtime, row, stage, names, claim.sealed, bound.pipeline.bounds)
            except VaultError as error:
                tell_unreadable(error, "the correction", runtime.vault)
                # Another worker may have the key. After some rounds without one, the attempt begins afresh.
                if error.code == "unknown_key" and runtime.attempts.give_back(token, owner, None):
                    point("produce.given_back")
                    return Next.STOP
            if names and correction is None:
                attempted = Attempted(production=Production.UNREADABLE, code="correction")
            else:
                attempted = produce(stage.producer, context_of(execution, bound, stage), correction)
        point("produce.called")
        published = _publish(runtime, token, owner, row, attempted, runtime.expiry(row, now))
    point("produce.published")
    if not published:
        log.warning("late: what was produced is refused, its claim had been given up")
        return Next.STOP
    log.info("produced: %s", attempted.production.value)
    runtime.observer.produced(
        bound.pipeline.name,
        stage.name,
        attempted.production.value,
        time.perf_counter() - began,
        attempted.generations,
    )
    runtime.observer.tokens(
        bound.pipeline.name, stage.name, attempted.usage.input_tokens, attempted.usage.output_tokens
    )
    has_work = attempted.production is Production.CANDIDATE and stage.validators
    return Next.FORWARD if has_work else Next.DECIDE


def _correction(
    runtime: Runtime, row: Row, stage: Stage, names: tuple[str, ...], sealed: dict[str, bytes], bounds: Bounds
) -> Correction | None:
    """The pending correction, rendered; `None` without one, or where it is gone. Raises `VaultError`."""
    if not names:
        return None
    if not sealed.keys() >= set(names):
        log.warning("the correction could not be read back: it is gone; the attempt begins afresh")
        return None
    texts = [json.loads(runtime.vault.unseal(row.run_id, row.seq, name, sealed[name])) for name in names]
    if row.correction.startswith("guid"):
        guidance = render_guidance(texts[1], bounds)
    else:
        validators = row.correction.partition(":")[2].split(",")
        guidance = render_findings(
            [
                Rejection(
                    stage.validators[int(index)].description, tuple(Finding(**entry) for entry in entries)
                )
                for index, entries in zip(validators, texts[1:], strict=True)
            ],
            bounds,
        )
    return Correction(SINGLE_RESPONSE_V1, texts[0], guidance)


def _publish(
    runtime: Runtime, token: Token, owner: str, row: Row, attempted: Attempted, expiry: float
) -> bool:
    epoch = token.epoch
    facts = {
        "born": str(epoch),
        "code": attempted.code or "",
        "response": attempted.response_state.value,
        "guidance": attempted.guidance_state.value,
        "generations": str(attempted.generations),
        "in": str(attempted.usage.input_tokens),
        "out": str(attempted.usage.output_tokens),
        "error_type": attempted.error_type or "",
        "error_at": (attempted.error_at or "")[:300],
    }
    if attempted.retry_after is not None:
        facts["wait"] = repr(min(max(attempted.retry_after, 0.0), _LONGEST_WAIT))
    if attempted.fallback is not None:
        facts["rank"] = str(attempted.rank)
        facts["codes"] = json.dumps(attempted.diagnostics or (attempted.reason_code or "fallback",))
    texts: dict[str, bytes] = {}
    if attempted.candidate is not None:
        texts[f"cand.{epoch}"] = attempted.candidate
    if attempted.response is not None:
        texts[f"resp.{epoch}"] = json.dumps(attempted.response.text).encode()
    if attempted.guidance is not None:
        texts[f"guid.{epoch}"] = json.dumps(attempted.guidance).encode()
    if attempted.fallback is not None:
        texts[f"fall.{epoch}"] = attempted.fallback
    if attempted.operator_message:
        texts[f"oper.{epoch}"] = json.dumps(attempted.operator_message).encode()
    entries = {name: runtime.vault.seal(row.run_id, row.seq, name, text) for name, text in texts.items()}
    return runtime.attempts.publish(
        token,
        owner,
        attempted.production.value,
        facts=facts,
        entries=entries,
        candidate=f"cand.{epoch}" if attempted.candidate is not None else None,
        drop=_superseded(runtime, row, entries) if attempted.response is not None else (),
        expiry=expiry,
    )


def _superseded(runtime: Runtime, row: Row, entries: dict[str, bytes]) -> tuple[str, ...]:
    """Entries of earlier attempts, which a new response supersedes; the kept fallback stays."""
    if row.epoch <= 1:
        return ()
    stored = runtime.redis.hkeys(vault_key(row.run_id, row.seq))
    names = {name.decode() for name in stored}  # type: ignore[union-attr]
    return tuple(names - set(entries) - {row.fallback})

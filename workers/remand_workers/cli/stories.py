"""The story of one item from its receipts: codes and counts; the user's data only where it was asked for."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rich.text import Text
from sqlalchemy import select

from remand_tasks.state.ledger import RunInfo
from remand_tasks.state.queries import ItemSummary, Queries, Receipt
from remand_tasks.state.tables import items

from .console import STYLES, coloured, out, plural, reader, write_json
from .failures import UsageError
from .standing import stage_names, when

DECISIONS = {
    "advance": "passes on",
    "retry:findings": "sent back with what the validators found",
    "retry:guidance": "sent back with the producer's own guidance",
    "retry:kept": "tried again, with the correction that was pending",
    "retry:none": "tried again, afresh",
    "again": "the same attempt once more, no budget spent",
    "revalidate": "those that could not judge are asked again",
    "judgefallback": "the fallback is judged",
    "close": "closed",
}


def show(queries: Queries, run: RunInfo, item: str, *, payload: bool, json: bool) -> None:
    """Tell it."""
    seq = queries.find(run.id, item)
    if seq is None:
        raise UsageError(f"run {run.id!r} has no item with the key or number {item!r}")
    receipts = queries.receipts(run.id, seq)
    summary = _summary(queries, run.id, seq)
    names = stage_names(run)
    stages = sorted({receipt.stage for receipt in receipts} | set(names) | {0})
    wanted = [
        "input",
        *(f"value.{stage}" for stage in stages),
        *(f"operator.{each.epoch}" for each in receipts),
    ]
    payloads = {
        name: body for name in wanted if payload and (body := queries.payload(run.id, seq, name)) is not None
    }
    if json:
        told: dict[str, Any] = {
            "run": run.id, "key": summary.key, "item": seq, "state": summary.state, "status": summary.status,
            "reason": summary.reason, "disposition": summary.disposition, "code": summary.code,
            "generations": summary.generations,
            "receipts": [_plain(receipt, names) for receipt in receipts],
        }  # fmt: skip
        if payload:
            told["payload"] = {name: json_module.loads(body) for name, body in payloads.items()}
        write_json(told)
        return
    lines = [_head(run, summary, seq)]
    life = 0
    for receipt in receipts:
        if receipt.round != life:
            life = receipt.round
            if life > 1:
                lines.append(Text(f"round {life}, after a resume", style="bold"))
        lines += _attempt(receipt, names)
    if not receipts:
        lines.append(
            Text("  no decision about it yet" if summary.state != "closed" else "  nothing had to be done")
        )
    for name, body in payloads.items():
        lines += [Text(_title(name, names), style="bold"), Text(_pretty(body))]
    with reader():
        for line in lines:
            out().print(line, soft_wrap=True)


def _summary(queries: Queries, run_id: str, seq: int) -> ItemSummary:
    columns = [items.c[field.name] for field in fields(ItemSummary)]
    with queries.database.read() as connection:
        found = connection.execute(select(*columns).where(items.c.run_id == run_id, items.c.seq == seq))
        return ItemSummary(**found.mappings().one())


def _head(run: RunInfo, summary: ItemSummary, seq: int) -> Text:
    text = Text.assemble(
        ("item ", "bold"), (f"{seq}", "bold"), f" (key {summary.key}) of run {run.id}: ",
        coloured(summary.status or summary.state),
    )  # fmt: skip
    why = [word for word in (summary.reason, summary.code) if word]
    if why:
        text.append(f", {', '.join(why)}")
    if summary.disposition:
        text.append(f", policy {summary.disposition}")
    text.append(f", {plural(summary.generations, 'generation')}")
    return text


def _attempt(receipt: Receipt, names: Mapping[int, str]) -> list[Text]:
    head = Text.assemble(
        f"  {when(receipt.at)}  ", (names.get(receipt.stage, f"stage {receipt.stage + 1}"), "bold"),
        f", attempt {receipt.attempt}",
    )  # fmt: skip
    if receipt.corrected:
        head.append(", corrected")
    head.append(f": {receipt.production or 'nothing was produced'}")
    if receipt.code:
        head.append(f" ({receipt.code})")
    if receipt.error_type:
        head.append(f", {receipt.error_type} at {receipt.error_at or 'an unknown place'}")
    if receipt.generations:
        head.append(f", {plural(receipt.generations, 'generation')}")
    if receipt.input_tokens or receipt.output_tokens:
        head.append(f", {receipt.input_tokens:,} tokens in, {receipt.output_tokens:,} out")
    lines = [head]
    for verdict in receipt.verdicts:
        lines.append(_verdict(verdict))
    lines.append(Text(f"    → {_decision(receipt.decision)}"))
    return lines


def _decision(code: str) -> str:
    if code in DECISIONS:
        return DECISIONS[code]
    kind, _, rest = code.partition(":")
    return f"{DECISIONS.get(kind, kind)}{', ' + rest.replace(':', ', ') if rest else ''}"


def _verdict(verdict: Mapping[str, Any]) -> Text:
    said = str(verdict["verdict"])
    text = Text.assemble(f"    {verdict['validator']}: ", (said, STYLES.get(said, "")))
    if verdict.get("findings"):
        text.append(f", {plural(verdict['findings'], 'finding')}")
    if verdict.get("tries", 1) > 1:
        text.append(f", {verdict['tries']} tries")
    if verdict.get("error_type"):
        text.append(f", {verdict['error_type']} at {verdict.get('error_at') or 'an unknown place'}")
    return text


def _plain(receipt: Receipt, names: Mapping[int, str]) -> dict[str, Any]:
    return {
        "at": receipt.at, "round": receipt.round, "stage": names.get(receipt.stage, str(receipt.stage + 1)),
        "attempt": receipt.attempt, "epoch": receipt.epoch, "corrected": receipt.corrected,
        "production": receipt.production, "code": receipt.code, "verdicts": [dict(each) for each in receipt.verdicts],
        "decision": receipt.decision, "generations": receipt.generations, "input_tokens": receipt.input_tokens,
        "output_tokens": receipt.output_tokens, "error_type": receipt.error_type, "error_at": receipt.error_at,
    }  # fmt: skip


def _title(name: str, names: Mapping[int, str]) -> str:
    kind, _, number = name.partition(".")
    if kind == "value":
        return f"value of {names.get(int(number), f'stage {int(number) + 1}')}"
    return "input" if kind == "input" else "the producer's message for operators"


def _pretty(body: str) -> str:
    return json_module.dumps(json_module.loads(body), ensure_ascii=False, indent=2)

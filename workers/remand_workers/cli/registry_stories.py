"""What people see of registries: tables and JSON of ids, codes and counts. Records only where they were asked for."""

from __future__ import annotations

import json as json_module
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from rich.table import Table

from remand.errors import BadEntry
from remand.registry import Registry
from remand_tasks.registry.reading import Cluster, Receipt, RegistryQueries, Review, Round, Standing
from remand_tasks.registry.store import Job, note_words, notes

from .console import coloured, plural, reader, say, shown, table, warn, write_json, write_table
from .failures import DEGRADED, SUCCEEDED, UsageError
from .standing import when

_MOST_MEMBERS = 12
"""Members of one cluster that a table names."""


def list_registries(queries: RegistryQueries, *, json: bool) -> None:
    """Every registry."""
    found = queries.all()
    if json:
        write_json([plain(standing) for standing in found])
        return
    if not found:
        say("there are no registries yet; `remand registry add MODULE:REGISTRY` makes one known")
        return
    columns = (
        "name",
        "version",
        "#entries",
        "#clusters",
        "#not compared",
        "#reviews",
        "state",
        "last reconciled",
    )
    rows = [
        (
            each.row.name, each.row.version, each.entries, each.clusters, each.fresh, each.reviews,
            state_words(each), when(None if each.last is None else each.last.ended_at),
        )
        for each in found
    ]  # fmt: skip
    write_table(table(columns, rows))


def show(queries: RegistryQueries, name: str, *, job: str | None, limit: int, json: bool) -> None:
    """One registry and its last jobs, or one job and its rounds."""
    standing = queries.standing(name)
    jobs = queries.jobs(name, limit if job is None else 1_000_000)
    if job is not None:
        named = [each for each in jobs if each.id.startswith(job)]
        if len(named) != 1:
            raise UsageError(f"registry {name!r} has no job {job!r}, or several begin so")
        _show_job(queries, named[0], json=json)
        return
    if json:
        write_json({**plain(standing), "jobs": [plain_job(each) for each in jobs]})
        return
    write_table(
        pairs(
            [
                ("registry", name), ("version", standing.row.version), ("at", standing.row.target),
                ("state", state_words(standing)), ("entries", standing.entries), ("clusters", standing.clusters),
                ("not compared yet", standing.fresh), ("runs to read in", standing.owed),
                ("open reviews", standing.reviews),
            ]
        )
    )  # fmt: skip
    if not jobs:
        return
    columns = (
        "job", "state", "#rounds", "#calls", "#at most", "#new entries", "#merges", "#without the model", "#stale",
        "begun", "ended",
    )  # fmt: skip
    rows = [
        (
            each.id, coloured(each.state), each.round, each.calls, each.budget or None, each.fresh, each.merged,
            each.exact, each.stale, when(each.started_at), when(each.ended_at),
        )
        for each in jobs
    ]  # fmt: skip
    write_table(table(columns, rows))
    for words in note_words(notes(jobs[0])):
        say(f"job {jobs[0].id}: {words}")


def _show_job(queries: RegistryQueries, job: Job, *, json: bool) -> None:
    rounds = queries.rounds(job.id)
    if json:
        write_json({**plain_job(job), "rounds": [asdict(each) for each in rounds]})
        return
    write_table(
        pairs([("job", job.id), ("registry", job.registry), ("state", job.state), *job_rows([job], rounds)])
    )
    columns = ("#round", "run", "status", "#blocks", "#closed", "#failed", "#generations")
    rows = [
        (
            each.number,
            each.run_id,
            coloured(each.status),
            each.blocks,
            each.closed,
            each.failed,
            each.generations,
        )
        for each in rounds
    ]
    if rows:
        write_table(table(columns, rows))
    for words in note_words(notes(job)):
        say(words)


def entries(
    queries: RegistryQueries,
    name: str,
    *,
    cluster: str | None,
    entry: str | None,
    records: bool,
    limit: int,
    json: bool,
) -> None:
    """Clusters with their members; one of them where it, or an entry of it, is named."""
    asked = cluster if cluster is not None else entry
    if cluster is not None and entry is not None:
        raise UsageError("name a cluster or an entry, not both")
    canonical = None if asked is None else queries.cluster_of(name, asked)
    if asked is not None and canonical is None:
        what = "entry" if cluster is None else "cluster"
        raise UsageError(f"registry {name!r} has no {what} {asked!r}")
    if cluster is not None and canonical != cluster:
        say(f"{cluster} was merged into {canonical}")
    found: list[Cluster] = []
    more = False
    for each in queries.clusters(name, only=canonical):
        more = len(found) == limit
        if more:
            break
        found.append(each)
    bodies = queries.records(name, [m for each in found for m in each.members]) if records else {}
    if json:
        write_json([_plain_cluster(each, bodies if records else None) for each in found])
    elif records:
        columns: Sequence[str] = ("cluster", "entry", "record")
        rows = [(each.id, member, _pretty(bodies[member])) for each in found for member in each.members]
        write_table(table(columns, rows))
    elif found:
        write_table(
            table(
                ("cluster", "#entries", "members"),
                [(each.id, len(each.members), _names(each.members)) for each in found],
            )
        )
    else:
        say(f"registry {name!r} has no entries yet")
    if more:
        say(f"there are more than {limit:,}; name one with --cluster or --entry, or raise --limit")


def reviews(queries: RegistryQueries, name: str, *, records: bool, json: bool) -> None:
    """What waits for a person."""
    found = queries.reviews(name)
    members = {member for each in found for member in each.members}
    bodies = queries.records(name, members) if records else {}
    if json:
        write_json([_plain_review(each, bodies if records else None) for each in found])
        return
    if not found:
        say(f"nothing in registry {name!r} waits for a person")
        return
    if records:
        columns: Sequence[str] = ("#review", "entry", "record")
        rows: list[tuple[object, ...]] = [
            (each.number, member, _pretty(bodies[member])) for each in found for member in each.members
        ]
    else:
        columns = ("#review", "entries", "#clusters now", "why", "since")
        rows = [
            (each.number, ", ".join(each.members), each.clusters, each.why, when(each.at)) for each in found
        ]
    write_table(table(columns, rows))
    say(f"they are the same: remand registry accept {name} REVIEW; they are not: refuse")


def history(queries: RegistryQueries, name: str, *, cluster: str | None, limit: int, json: bool) -> None:
    """Receipts, newest first."""
    canonical = None
    if cluster is not None:
        canonical = queries.cluster_of(name, cluster)
        if canonical is None:
            raise UsageError(f"registry {name!r} has no cluster {cluster!r}")
        if canonical != cluster:
            say(f"{cluster} was merged into {canonical}")
    found = queries.history(name, cluster=canonical, limit=limit)
    if json:
        write_json([_plain_receipt(each) for each in found])
        return
    if not found:
        say(f"nothing was merged in registry {name!r} yet")
        return
    columns = ("#receipt", "kind", "before", "after", "rule", "run", "#item", "#attempt", "undone by", "at")
    rows = [
        (
            each.number, each.kind if each.undoes is None else f"{each.kind} of {each.undoes}", _groups(each.before),
            _groups(each.after), each.rule, each.run_id or None, each.seq if each.run_id else None,
            each.attempt or None, each.undone_by, when(each.at),
        )
        for each in found
    ]  # fmt: skip
    write_table(table(columns, rows))
    say(f"to undo one: remand registry unmerge {name} RECEIPT")


def export(queries: RegistryQueries, registry: Registry[Any], name: str, output: str | None) -> int:
    """Every cluster with its canonical record, as a JSON line each. The exit status."""
    revision = queries.standing(name).row.revision
    written = left_out = 0
    with _lines(output) as out, reader():
        for some in _batches(queries.clusters(name)):
            bodies = queries.records(name, [member for each in some for member in each.members])
            for each in some:
                try:
                    record = registry.canonical([registry.parse(bodies[member]) for member in each.members])
                    body = registry.dump(record)
                except BadEntry as error:
                    left_out += 1
                    warn(f"cluster {each.id} was left out: its record cannot be made ({error.code})")
                    continue
                line = {"id": each.id, "members": list(each.members), "record": json_module.loads(body)}
                text = json_module.dumps(line, ensure_ascii=False)
                out.write(text.encode("utf-8", "backslashreplace") + b"\n")
                written += 1
        out.flush()
    if queries.standing(name).row.revision != revision:
        warn("the registry changed meanwhile: entries may be in two lines or in none; export it again")
    if output not in (None, "-"):
        say(f"{plural(written, 'cluster')} in {output!r}")
    return DEGRADED if left_out else SUCCEEDED


@contextmanager
def _lines(output: str | None) -> Iterator[BinaryIO]:
    """Where an export goes: standard output, or a file that takes its name when it is whole."""
    if output in (None, "-"):
        sys.stdout.flush()
        yield sys.stdout.buffer
        return
    path = Path(os.path.realpath(str(output)))
    if path.is_dir():
        raise UsageError(f"the output {output!r} is a folder; name a file")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {str(path.parent)!r} for the output")
    if path.exists() and not path.is_file():
        with path.open("wb") as special:
            yield special
        return
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        yield file
    partial.replace(path)


def _batches(found: Iterable[Cluster]) -> Iterator[list[Cluster]]:
    some: list[Cluster] = []
    for each in found:
        some.append(each)
        if len(some) == 500:
            yield some
            some = []
    if some:
        yield some


# ------------------------------------------------------------------------------------------------------- in words


def state_words(standing: Standing) -> str:
    """What is done with a registry now."""
    job = standing.job
    if job is not None and job.state == "proposing":
        return f"proposing, {job.applied:,} of {plural(job.blocks, 'block')} of round {job.round}"
    return {"asked": "to be reconciled"}.get(standing.state, standing.state)


def job_rows(jobs: Sequence[Job], rounds: Sequence[Round]) -> list[tuple[str, object]]:
    """What jobs did and cost, added up."""
    calls, most = sum(job.calls for job in jobs), sum(job.budget for job in jobs)
    rows: list[tuple[str, object]] = [
        ("entries compared", sum(job.fresh for job in jobs)),
        ("merges", sum(job.merged for job in jobs)),
        ("without the model", sum(job.exact for job in jobs)),
        ("rounds", sum(job.round for job in jobs)),
        ("blocks asked about", f"{calls:,} of at most {most:,}" if most else calls),
        ("generations", sum(each.generations for each in rounds)),
    ]
    failed, stale = sum(each.failed for each in rounds), sum(job.stale for job in jobs)
    rows += [("blocks failed", failed)] if failed else []
    rows += [("groups changed meanwhile", stale)] if stale else []
    return rows


def pairs(rows: Iterable[tuple[str, object]]) -> Table:
    """A table of names and values."""
    made = Table.grid(padding=(0, 2))
    for name, value in rows:
        made.add_row(name, shown(value))
    return made


def _names(members: Sequence[str]) -> str:
    more = len(members) - _MOST_MEMBERS
    return ", ".join(members[:_MOST_MEMBERS]) + (f", and {more:,} more" if more > 0 else "")


def _groups(clusters: Mapping[str, Sequence[str]]) -> str:
    return " | ".join(_names(members) for members in clusters.values())


def _pretty(record: object) -> str:
    return json_module.dumps(record, ensure_ascii=False)


# ------------------------------------------------------------------------------------------------------- as JSON


def plain(standing: Standing) -> dict[str, Any]:
    """Where a registry stands."""
    row, job, last = standing.row, standing.job, standing.last
    return {
        "registry": row.name, "version": row.version, "target": row.target, "state": standing.state,
        "entries": standing.entries, "clusters": standing.clusters, "fresh": standing.fresh,
        "runs_to_read": standing.owed, "open_reviews": standing.reviews, "revision": row.revision,
        "job": None if job is None else plain_job(job),
        "last_job": None if last is None else plain_job(last),
    }  # fmt: skip


def plain_job(job: Job) -> dict[str, Any]:
    """A job."""
    return {
        "job": job.id, "state": job.state, "rounds": job.round, "run": job.run_id or None, "blocks": job.blocks,
        "applied": job.applied, "calls": job.calls, "budget": job.budget, "fresh": job.fresh, "merges": job.merged,
        "merges_without_model": job.exact, "stale": job.stale, "notes": dict(notes(job)),
        "started_at": job.started_at, "ended_at": job.ended_at,
    }  # fmt: skip


def _plain_cluster(cluster: Cluster, bodies: Mapping[str, Any] | None) -> dict[str, Any]:
    told: dict[str, Any] = {"id": cluster.id, "size": len(cluster.members), "members": list(cluster.members)}
    if bodies is not None:
        told["records"] = {member: bodies[member] for member in cluster.members}
    return told


def _plain_review(review: Review, bodies: Mapping[str, Any] | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "review": review.number, "members": list(review.members), "clusters": review.clusters, "why": review.why,
        "run": review.run_id or None, "item": review.seq, "at": review.at,
    }  # fmt: skip
    if bodies is not None:
        told["records"] = {member: bodies[member] for member in review.members}
    return told


def _plain_receipt(receipt: Receipt) -> dict[str, Any]:
    return {
        "receipt": receipt.number, "kind": receipt.kind, "cluster": receipt.cluster,
        "before": {cluster: list(members) for cluster, members in receipt.before.items()},
        "after": {cluster: list(members) for cluster, members in receipt.after.items()},
        "rule": receipt.rule, "run": receipt.run_id or None, "item": receipt.seq if receipt.run_id else None,
        "attempt": receipt.attempt or None, "undoes": receipt.undoes, "undone_by": receipt.undone_by, "at": receipt.at,
    }  # fmt: skip

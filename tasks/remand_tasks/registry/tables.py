"""The tables of registries. Entries' records are in a payload table; no other column holds a word of them.

An entry's id is the caller's key, as an item's is. Judgements and receipts are only ever added to. A cluster is a row
of its own: one that was merged into another stays as an alias that redirects.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Float,
    Index,
    Integer,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from ..state.tables import metadata

WANTED = "(wanted > served OR job <> '')"
"""Said to the letter in index and query."""


def _name() -> Column[str]:
    return Column("registry", String(100), nullable=False)


registries = Table(
    "registries",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("target", String(600), nullable=False, comment="module:attribute, or module:attribute#name"),
    Column("version", String(100), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("revision", Integer, nullable=False, comment="rises with every change of its partition"),
    Column("entries", Integer, nullable=False, comment="how many were ever added: the next ordinal"),
    Column("wanted", Integer, nullable=False, comment="reconciliations asked for"),
    Column("served", Integer, nullable=False, comment="the last request that a finished job answered"),
    Column("job", String(40), nullable=False, comment="the job in progress, or nothing"),
    Column(
        "claim",
        Integer,
        nullable=False,
        comment="rises with each planner that takes over; fences a stale one",
    ),
    Column("claimed_until", Float, nullable=False, comment="until when that planner may be thought alive"),
    Column("due_at", Float, nullable=False, comment="when the pulse looks again"),
    Column("created_at", Float, nullable=False),
    Index("ix_registries_due", "due_at", sqlite_where=text(WANTED), postgresql_where=text(WANTED)),
)

jobs = Table(
    "registry_jobs",
    metadata,
    Column("id", String(40), primary_key=True),
    _name(),
    Column("fingerprint", String(64), nullable=False),
    Column(
        "state", String(12), nullable=False, comment="planning, proposing, or one of the ends done, failed"
    ),
    Column("request", Integer, nullable=False, comment="the requests that it answers, up to this one"),
    Column("round", Integer, nullable=False),
    Column("run_id", String(64), nullable=False, comment="the run of this round's blocks, or nothing"),
    Column("blocks", Integer, nullable=False, comment="of this round"),
    Column("applied", Integer, nullable=False, comment="of this round; the next block to apply"),
    Column("calls", Integer, nullable=False, comment="blocks of all rounds so far"),
    Column("budget", Integer, nullable=False, comment="blocks of all rounds, at most"),
    Column("depth", Integer, nullable=False, comment="how much further than usual candidates are looked for"),
    Column("gain", Float, nullable=False, comment="merges that this round was expected to bring"),
    Column("merges", Integer, nullable=False, comment="merges that this round brought, weighed by size"),
    Column("fresh", Integer, nullable=False, comment="entries that were not compared before"),
    Column("exact", Integer, nullable=False, comment="merges without the model"),
    Column("merged", Integer, nullable=False, comment="merges in all"),
    Column("stale", Integer, nullable=False, comment="groups whose entries changed meanwhile"),
    Column(
        "notes",
        Text,
        nullable=False,
        comment="caps that were hit and what was left out: codes and counts, JSON",
    ),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Index("ix_registry_jobs_registry", "registry", "started_at"),
)

entries = Table(
    "registry_entries",
    metadata,
    _name(),
    Column("id", String(200), nullable=False),
    Column("ordinal", Integer, nullable=False, comment="in which order it came; the oldest names a cluster"),
    Column("cluster", String(200), nullable=False, comment="the canonical id"),
    Column("version", Integer, nullable=False, comment="rises when its record changes"),
    Column("digest", String(64), nullable=False),
    Column("fresh", Integer, nullable=False, comment="1 until it was compared with the others as it is"),
    Column("run_id", String(64), nullable=False, comment="the run that it came from, or nothing"),
    Column("seq", Integer, nullable=False),
    Column("at", Float, nullable=False),
    PrimaryKeyConstraint("registry", "id"),
    Index("ix_registry_entries_cluster", "registry", "cluster"),
    Index(
        "ix_registry_entries_fresh",
        "registry",
        sqlite_where=text("fresh = 1"),
        postgresql_where=text("fresh = 1"),
    ),
)

records = Table(
    "registry_records",
    metadata,
    _name(),
    Column("id", String(200), nullable=False),
    Column("body", Text, nullable=False, comment="the entry's record, as JSON"),
    PrimaryKeyConstraint("registry", "id"),
)

keys = Table(
    "registry_keys",
    metadata,
    _name(),
    Column("digest", String(64), nullable=False, comment="of an exact key"),
    Column("id", String(200), nullable=False),
    PrimaryKeyConstraint("registry", "digest", "id"),
    Index("ix_registry_keys_id", "registry", "id"),
)

clusters = Table(
    "registry_clusters",
    metadata,
    _name(),
    Column("id", String(200), nullable=False),
    Column("version", Integer, nullable=False, comment="rises with every merge and unmerge"),
    Column("size", Integer, nullable=False),
    Column("merged_into", String(200), nullable=False, comment="where an alias redirects to, or nothing"),
    Column("receipt", Integer, nullable=False, comment="the merge that stands on top of it, 0 for none"),
    PrimaryKeyConstraint("registry", "id"),
)

edges = Table(
    "registry_edges",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    _name(),
    Column("one", String(200), nullable=False),
    Column("other", String(200), nullable=False),
    Column("one_version", Integer, nullable=False),
    Column("other_version", Integer, nullable=False),
    Column("judgement", String(10), nullable=False, comment="positive, negative or unsure"),
    Column("source", String(10), nullable=False, comment="model, exact, person or unmerge"),
    Column(
        "prior", Float, comment="the chance that blocking gave the pair; none where it only shared a prompt"
    ),
    Column("score", Float, comment="the same before it was set right by what was judged"),
    Column("run_id", String(64), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Index("ix_registry_edges_one", "registry", "one"),
    Index("ix_registry_edges_registry", "registry", "id"),
)

merges = Table(
    "registry_merges",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    _name(),
    Column("kind", String(10), nullable=False, comment="merge or unmerge"),
    Column(
        "cluster", String(200), nullable=False, comment="the canonical id after a merge, before an unmerge"
    ),
    Column("before", Text, nullable=False, comment="clusters with members, versions and receipts, as JSON"),
    Column("after", Text, nullable=False),
    Column("rule", String(100), nullable=False, comment="model, an exact key's function, person"),
    Column("fingerprint", String(64), nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("key", String(200), nullable=False, comment="what makes doing it twice one"),
    Column("undone_by", Integer, nullable=False, comment="the unmerge, 0 while it stands"),
    Column("at", Float, nullable=False),
    UniqueConstraint("registry", "key"),
    Index("ix_registry_merges_cluster", "registry", "cluster"),
)

reviews = Table(
    "registry_reviews",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    _name(),
    Column("members", Text, nullable=False, comment="entry ids with their versions, as JSON"),
    Column("digest", String(64), nullable=False, comment="of the members: one review of the same at a time"),
    Column("state", String(10), nullable=False, comment="open, accepted or refused"),
    Column("why", String(40), nullable=False, comment="unsure, or a code"),
    Column("run_id", String(64), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("settled_at", Float),
    UniqueConstraint("registry", "digest"),
    Index("ix_registry_reviews_state", "registry", "state"),
)

feeds = Table(
    "registry_feeds",
    metadata,
    _name(),
    Column("run_id", String(64), nullable=False),
    Column("fed_at", Float, nullable=False, comment="the end of the run when it was last read, 0 for never"),
    Column("added", Integer, nullable=False),
    Column("refused", Integer, nullable=False, comment="accepted values that gave no entry"),
    PrimaryKeyConstraint("registry", "run_id"),
    Index("ix_registry_feeds_run_id", "run_id"),
)

messages = Table(
    "intake_messages",
    metadata,
    Column("id", String(200), primary_key=True),
    _name(),
    Column(
        "digest", String(64), nullable=False, comment="of the body: the same id with another body is refused"
    ),
    Column("entries", Integer, nullable=False),
    Column("source", String(20), nullable=False, comment="redis or amqp"),
    Column("at", Float, nullable=False),
)

dead = Table(
    "intake_dead",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column(
        "message_id", String(200), nullable=False, comment="as the message says it, where it could be read"
    ),
    _name(),
    Column("source", String(20), nullable=False),
    Column("reason", String(40), nullable=False),
    Column("detail", String(100), nullable=False, comment="a place and a code, or nothing"),
    Column("size", Integer, nullable=False, comment="bytes"),
    Column("digest", String(64), nullable=False),
    Column("kept", Integer, nullable=False, comment="bytes of its body in the vault, 0 for none"),
    Column("times", Integer, nullable=False, comment="how often the same came"),
    Column("state", String(10), nullable=False, comment="dead, retried or dropped"),
    Column("at", Float, nullable=False),
    UniqueConstraint("source", "digest"),
    Index("ix_intake_dead_state", "state"),
)

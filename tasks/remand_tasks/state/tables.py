"""The ledger's tables. Whatever is true of a run is in here; the broker and Redis can be emptied at any time.

Payloads have a table of their own: no other column holds a word of an input, a value or a model. Times are seconds
since the epoch by the clock of the Redis server. Flags are 0 or 1, so that partial indexes read the same everywhere.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

OPEN = "state IN ('waiting','in_flight')"
"""Said to the letter in index and query, so that SQLite sees that the partial index answers the query."""

UNPURGED = "state = 'closed' AND purged = 0"
"""As `OPEN`: said to the letter."""


def _flag(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default="0")


def _count(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default="0")


runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("target", String(500), nullable=False, comment="module:attribute of the pipeline"),
    Column("pipeline", String(100), nullable=False),
    Column("version", String(100), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column(
        "status", String(20), nullable=False, comment="running, failing, cancelling, or one of the four ends"
    ),
    Column("window", Integer, nullable=False, comment="items in flight or waiting, at most"),
    Column("key_path", String(200), comment="where an input's own key is found"),
    _flag("reuse"),
    _flag("input_done"),
    Column("feeder_until", Float, nullable=False, comment="until when the feeder may be thought alive"),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    Index(
        "ix_runs_open", "id", sqlite_where=text("ended_at IS NULL"), postgresql_where=text("ended_at IS NULL")
    ),
    Index("ix_runs_created_at", "created_at"),
)

items = Table(
    "items",
    metadata,
    Column("run_id", String(64), nullable=False),
    Column("seq", Integer, nullable=False, comment="position in the run, from 0"),
    Column("key", String(200), nullable=False, comment="the caller's key, by default the position"),
    Column("state", String(10), nullable=False, comment="pending, waiting, in_flight or closed"),
    Column(
        "epoch",
        Integer,
        nullable=False,
        comment="rises with every commit and closing; fences off what is stale",
    ),
    Column("since", Integer, nullable=False, comment="the epoch at which this attempt began"),
    Column("round", Integer, nullable=False, comment="lives of the item: resume and redrive begin another"),
    Column("stage", Integer, nullable=False, comment="index of the stage, from 0"),
    Column("attempt", Integer, nullable=False, comment="1 for the first"),
    Column("ask", String(400), nullable=False, comment="validators to ask again, as indices"),
    _count("recoveries"),
    _count("reopens"),
    _count("throttles"),
    _count("kicks"),
    _flag("alone"),
    Column("due_at", Float, nullable=False, comment="waiting: when to go on; in flight: when to look again"),
    Column("deadline_at", Float, nullable=False),
    Column(
        "correction",
        String(400),
        nullable=False,
        comment="names of the vault entries of the pending correction",
    ),
    Column("fallback", String(40), nullable=False, comment="name of the vault entry of the kept fallback"),
    Column("fallback_rank", Integer),
    Column("fallback_codes", String(800), nullable=False),
    _flag("judging_fallback"),
    Column(
        "counted", Integer, nullable=False, comment="epoch of the last production whose cost was added up"
    ),
    Column("unable", Text, nullable=False, comment="validators that could not judge, as a JSON list"),
    Column("input_digest", String(64), nullable=False),
    Column("previous_digest", String(64), nullable=False, comment="of the value of the stage before"),
    Column("status", String(20), comment="how it ended"),
    Column("reason", String(40)),
    Column("disposition", String(20)),
    Column("code", String(64)),
    _flag("used_fallback"),
    Column("diagnostics", String(800), nullable=False),
    _flag("reused"),
    _count("attempts"),
    _count("generations"),
    _count("corrections"),
    _count("undetermined"),
    _count("recovered"),
    _count("input_tokens"),
    _count("output_tokens"),
    Column("closed_at", Float),
    _flag("purged"),
    PrimaryKeyConstraint("run_id", "seq"),
    UniqueConstraint("run_id", "key"),
    ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
    Index("ix_items_due", "due_at", sqlite_where=text(OPEN), postgresql_where=text(OPEN)),
    Index(
        "ix_items_pending",
        "run_id",
        "seq",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
    Index("ix_items_alone", "run_id", sqlite_where=text("alone = 1"), postgresql_where=text("alone = 1")),
    Index("ix_items_unpurged", "closed_at", sqlite_where=text(UNPURGED), postgresql_where=text(UNPURGED)),
    Index(
        "ix_items_unpurged_in_run",
        "run_id",
        "closed_at",
        sqlite_where=text(UNPURGED),
        postgresql_where=text(UNPURGED),
    ),
    Index("ix_items_status", "run_id", "state", "status", "disposition"),
)

payloads = Table(
    "payloads",
    metadata,
    Column("run_id", String(64), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("name", String(40), nullable=False, comment="input, value.STAGE, operator.EPOCH"),
    Column("body", Text, nullable=False),
    PrimaryKeyConstraint("run_id", "seq", "name"),
)

receipts = Table(
    "receipts",
    metadata,
    Column("run_id", String(64), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("stage", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("production", String(20), nullable=False, comment="what the producer gave"),
    Column("code", String(64)),
    Column("decision", String(40), nullable=False),
    Column("verdicts", Text, nullable=False, comment="codes and counts of each validator, as JSON"),
    Column("corrected", Integer, nullable=False, comment="1 where the attempt carried a correction"),
    _count("generations"),
    _count("input_tokens"),
    _count("output_tokens"),
    Column("error_type", String(80)),
    Column("error_at", String(300)),
    Column("at", Float, nullable=False),
    PrimaryKeyConstraint("run_id", "seq", "epoch"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("fingerprint", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("run_id", String(64), nullable=False, comment="whose payload holds the value"),
    Column("seq", Integer, nullable=False),
    Column("stage", Integer, nullable=False),
    Column("value_digest", String(64), nullable=False),
    PrimaryKeyConstraint("fingerprint", "digest"),
    Index("ix_checkpoints_run_id_seq", "run_id", "seq"),
)

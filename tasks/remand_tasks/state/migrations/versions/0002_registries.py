"""registries"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "intake_dead",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column(
            "message_id",
            sa.String(length=200),
            nullable=False,
            comment="as the message says it, where it could be read",
        ),
        sa.Column("registry", sa.String(length=100), nullable=False),
        sa.Column("source", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=False),
        sa.Column("detail", sa.String(length=100), nullable=False, comment="a place and a code, or nothing"),
        sa.Column("size", sa.Integer(), nullable=False, comment="bytes"),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("kept", sa.Integer(), nullable=False, comment="bytes of its body in the vault, 0 for none"),
        sa.Column("times", sa.Integer(), nullable=False, comment="how often the same came"),
        sa.Column("state", sa.String(length=10), nullable=False, comment="dead, retried or dropped"),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_intake_dead")),
        sa.UniqueConstraint("source", "digest", name=op.f("uq_intake_dead_source_digest")),
    )
    with op.batch_alter_table("intake_dead", schema=None) as batch_op:
        batch_op.create_index("ix_intake_dead_state", ["state"], unique=False)

    op.create_table(
        "intake_messages",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("registry", sa.String(length=100), nullable=False),
        sa.Column(
            "digest",
            sa.String(length=64),
            nullable=False,
            comment="of the body: the same id with another body is refused",
        ),
        sa.Column("entries", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(length=20), nullable=False, comment="redis or amqp"),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_intake_messages")),
    )
    op.create_table(
        "registries",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column(
            "target",
            sa.String(length=600),
            nullable=False,
            comment="module:attribute, or module:attribute#name",
        ),
        sa.Column("version", sa.String(length=100), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column(
            "revision", sa.Integer(), nullable=False, comment="rises with every change of its partition"
        ),
        sa.Column(
            "entries", sa.Integer(), nullable=False, comment="how many were ever added: the next ordinal"
        ),
        sa.Column("wanted", sa.Integer(), nullable=False, comment="reconciliations asked for"),
        sa.Column(
            "served", sa.Integer(), nullable=False, comment="the last request that a finished job answered"
        ),
        sa.Column("job", sa.String(length=40), nullable=False, comment="the job in progress, or nothing"),
        sa.Column(
            "claim",
            sa.Integer(),
            nullable=False,
            comment="rises with each planner that takes over; fences a stale one",
        ),
        sa.Column(
            "claimed_until",
            sa.Float(),
            nullable=False,
            comment="until when that planner may be thought alive",
        ),
        sa.Column("due_at", sa.Float(), nullable=False, comment="when the pulse looks again"),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_registries")),
    )
    with op.batch_alter_table("registries", schema=None) as batch_op:
        batch_op.create_index(
            "ix_registries_due",
            ["due_at"],
            unique=False,
            sqlite_where=sa.text("(wanted > served OR job <> '')"),
            postgresql_where=sa.text("(wanted > served OR job <> '')"),
        )

    op.create_table(
        "registry_clusters",
        sa.Column("registry", sa.String(length=100), nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, comment="rises with every merge and unmerge"),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column(
            "merged_into",
            sa.String(length=200),
            nullable=False,
            comment="where an alias redirects to, or nothing",
        ),
        sa.Column(
            "receipt", sa.Integer(), nullable=False, comment="the merge that stands on top of it, 0 for none"
        ),
        sa.PrimaryKeyConstraint("registry", "id", name=op.f("pk_registry_clusters")),
    )
    op.create_table(
        "registry_edges",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("registry", sa.String(length=100), nullable=False),
        sa.Column("one", sa.String(length=200), nullable=False),
        sa.Column("other", sa.String(length=200), nullable=False),
        sa.Column("one_version", sa.Integer(), nullable=False),
        sa.Column("other_version", sa.Integer(), nullable=False),
        sa.Column("judgement", sa.String(length=10), nullable=False, comment="positive, negative or unsure"),
        sa.Column("source", sa.String(length=10), nullable=False, comment="model, exact, person or unmerge"),
        sa.Column(
            "prior",
            sa.Float(),
            nullable=True,
            comment="the chance that blocking gave the pair; none where it only shared a prompt",
        ),
        sa.Column(
            "score", sa.Float(), nullable=True, comment="the same before it was set right by what was judged"
        ),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registry_edges")),
    )
    with op.batch_alter_table("registry_edges", schema=None) as batch_op:
        batch_op.create_index("ix_registry_edges_one", ["registry", "one"], unique=False)
        batch_op.create_index("ix_registry_edges_registry", ["registry", "id"], unique=False)

    op.create_table(
        "registry_entries",
        sa.Column("registry", sa.String(length=100), nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column(
            "ordinal",
            sa.Integer(),
            nullable=False,
            comment="in which order it came; the oldest names a cluster",
        ),
        sa.Column("cluster", sa.String(length=200), nullable=False, comment="the canonical id"),
        sa.Column("version", sa.Integer(), nullable=False, comment="rises when its record changes"),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column(
            "fresh", sa.Integer(), nullable=False, comment="1 until it was compared with the others as it is"
        ),
        sa.Column(
            "run_id", sa.String(length=64), nullable=False, comment="the run that it came from, or nothing"
        ),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("registry", "id", name=op.f("pk_registry_entries")),
    )
    with op.batch_alter_table("registry_entries", schema=None) as batch_op:
        batch_op.create_index("ix_registry_entries_cluster", ["registry", "cluster"], unique=False)
        batch_op.create_index(
            "ix_registry_entries_fresh",
            ["registry"],
            unique=False,
            sqlite_where=sa.text("fresh = 1"),
            postgresql_where=sa.text("fresh = 1"),
        )

    op.create_table(
        "registry_feeds",
        sa.Column("registry", sa.String(length=100), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column(
            "fed_at",
            sa.Float(),
            nullable=False,
            comment="the end of the run when it was last read, 0 for never",
        ),
        sa.Column("added", sa.Integer(), nullable=False),
        sa.Column("refused", sa.Integer(), nullable=False, comment="accepted values that gave no entry"),
        sa.PrimaryKeyConstraint("registry", "run_id", name=op.f("pk_registry_feeds")),
    )
    with op.batch_alter_table("registry_feeds", schema=None) as batch_op:
        batch_op.create_index("ix_registry_feeds_run_id", ["run_id"], unique=False)

    op.create_table(
        "registry_jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("registry", sa.String(length=100), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column(
            "state",
            sa.String(length=12),
            nullable=False,
            comment="planning, proposing, or one of the ends done, failed",
        ),
        sa.Column(
            "request", sa.Integer(), nullable=False, comment="the requests that it answers, up to this one"
        ),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column(
            "run_id",
            sa.String(length=64),
            nullable=False,
            comment="the run of this round's blocks, or nothing",
        ),
        sa.Column("blocks", sa.Integer(), nullable=False, comment="of this round"),
        sa.Column("applied", sa.Integer(), nullable=False, comment="of this round; the next block to apply"),
        sa.Column("calls", sa.Integer(), nullable=False, comment="blocks of all rounds so far"),
        sa.Column("budget", sa.Integer(), nullable=False, comment="blocks of all rounds, at most"),
        sa.Column(
            "depth",
            sa.Integer(),
            nullable=False,
            comment="how much further than usual candidates are looked for",
        ),
        sa.Column("gain", sa.Float(), nullable=False, comment="merges that this round was expected to bring"),
        sa.Column(
            "merges", sa.Integer(), nullable=False, comment="merges that this round brought, weighed by size"
        ),
        sa.Column("fresh", sa.Integer(), nullable=False, comment="entries that were not compared before"),
        sa.Column("exact", sa.Integer(), nullable=False, comment="merges without the model"),
        sa.Column("merged", sa.Integer(), nullable=False, comment="merges in all"),
        sa.Column("stale", sa.Integer(), nullable=False, comment="groups whose entries changed meanwhile"),
        sa.Column(
            "notes",
            sa.Text(),
            nullable=False,
            comment="caps that were hit and what was left out: codes and counts, JSON",
        ),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registry_jobs")),
    )
    with op.batch_alter_table("registry_jobs", schema=None) as batch_op:
        batch_op.create_index("ix_registry_jobs_registry", ["registry", "started_at"], unique=False)

    op.create_table(
        "registry_keys",
        sa.Column("registry", sa.String(length=100), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False, comment="of an exact key"),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("registry", "digest", "id", name=op.f("pk_registry_keys")),
    )
    with op.batch_alter_table("registry_keys", schema=None) as batch_op:
        batch_op.create_index("ix_registry_keys_id", ["registry", "id"], unique=False)

    op.create_table(
        "registry_merges",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("registry", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False, comment="merge or unmerge"),
        sa.Column(
            "cluster",
            sa.String(length=200),
            nullable=False,
            comment="the canonical id after a merge, before an unmerge",
        ),
        sa.Column(
            "before",
            sa.Text(),
            nullable=False,
            comment="clusters with members, versions and receipts, as JSON",
        ),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column(
            "rule", sa.String(length=100), nullable=False, comment="model, an exact key's function, person"
        ),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False, comment="what makes doing it twice one"),
        sa.Column("undone_by", sa.Integer(), nullable=False, comment="the unmerge, 0 while it stands"),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registry_merges")),
        sa.UniqueConstraint("registry", "key", name=op.f("uq_registry_merges_registry_key")),
    )
    with op.batch_alter_table("registry_merges", schema=None) as batch_op:
        batch_op.create_index("ix_registry_merges_cluster", ["registry", "cluster"], unique=False)

    op.create_table(
        "registry_records",
        sa.Column("registry", sa.String(length=100), nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("body", sa.Text(), nullable=False, comment="the entry's record, as JSON"),
        sa.PrimaryKeyConstraint("registry", "id", name=op.f("pk_registry_records")),
    )
    op.create_table(
        "registry_reviews",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("registry", sa.String(length=100), nullable=False),
        sa.Column("members", sa.Text(), nullable=False, comment="entry ids with their versions, as JSON"),
        sa.Column(
            "digest",
            sa.String(length=64),
            nullable=False,
            comment="of the members: one review of the same at a time",
        ),
        sa.Column("state", sa.String(length=10), nullable=False, comment="open, accepted or refused"),
        sa.Column("why", sa.String(length=40), nullable=False, comment="unsure, or a code"),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("settled_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registry_reviews")),
        sa.UniqueConstraint("registry", "digest", name=op.f("uq_registry_reviews_registry_digest")),
    )
    with op.batch_alter_table("registry_reviews", schema=None) as batch_op:
        batch_op.create_index("ix_registry_reviews_state", ["registry", "state"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("registry_reviews", schema=None) as batch_op:
        batch_op.drop_index("ix_registry_reviews_state")

    op.drop_table("registry_reviews")
    op.drop_table("registry_records")
    with op.batch_alter_table("registry_merges", schema=None) as batch_op:
        batch_op.drop_index("ix_registry_merges_cluster")

    op.drop_table("registry_merges")
    with op.batch_alter_table("registry_keys", schema=None) as batch_op:
        batch_op.drop_index("ix_registry_keys_id")

    op.drop_table("registry_keys")
    with op.batch_alter_table("registry_jobs", schema=None) as batch_op:
        batch_op.drop_index("ix_registry_jobs_registry")

    op.drop_table("registry_jobs")
    with op.batch_alter_table("registry_feeds", schema=None) as batch_op:
        batch_op.drop_index("ix_registry_feeds_run_id")

    op.drop_table("registry_feeds")
    with op.batch_alter_table("registry_entries", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_registry_entries_fresh",
            sqlite_where=sa.text("fresh = 1"),
            postgresql_where=sa.text("fresh = 1"),
        )
        batch_op.drop_index("ix_registry_entries_cluster")

    op.drop_table("registry_entries")
    with op.batch_alter_table("registry_edges", schema=None) as batch_op:
        batch_op.drop_index("ix_registry_edges_registry")
        batch_op.drop_index("ix_registry_edges_one")

    op.drop_table("registry_edges")
    op.drop_table("registry_clusters")
    with op.batch_alter_table("registries", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_registries_due",
            sqlite_where=sa.text("(wanted > served OR job <> '')"),
            postgresql_where=sa.text("(wanted > served OR job <> '')"),
        )

    op.drop_table("registries")
    op.drop_table("intake_messages")
    with op.batch_alter_table("intake_dead", schema=None) as batch_op:
        batch_op.drop_index("ix_intake_dead_state")

    op.drop_table("intake_dead")

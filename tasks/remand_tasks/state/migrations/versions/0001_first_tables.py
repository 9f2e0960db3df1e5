"""the first tables"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False, comment="whose payload holds the value"),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("value_digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", "digest", name=op.f("pk_checkpoints")),
    )
    with op.batch_alter_table("checkpoints", schema=None) as batch_op:
        batch_op.create_index("ix_checkpoints_run_id_seq", ["run_id", "seq"], unique=False)

    op.create_table(
        "payloads",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False, comment="input, value.STAGE, operator.EPOCH"),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "seq", "name", name=op.f("pk_payloads")),
    )
    op.create_table(
        "receipts",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("production", sa.String(length=20), nullable=False, comment="what the producer gave"),
        sa.Column("code", sa.String(length=64), nullable=True),
        sa.Column("decision", sa.String(length=40), nullable=False),
        sa.Column(
            "verdicts", sa.Text(), nullable=False, comment="codes and counts of each validator, as JSON"
        ),
        sa.Column(
            "corrected", sa.Integer(), nullable=False, comment="1 where the attempt carried a correction"
        ),
        sa.Column("generations", sa.Integer(), server_default="0", nullable=False),
        sa.Column("input_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("error_type", sa.String(length=80), nullable=True),
        sa.Column("error_at", sa.String(length=300), nullable=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "seq", "epoch", name=op.f("pk_receipts")),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column(
            "target", sa.String(length=500), nullable=False, comment="module:attribute of the pipeline"
        ),
        sa.Column("pipeline", sa.String(length=100), nullable=False),
        sa.Column("version", sa.String(length=100), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column(
            "status",
            sa.String(length=20),
            nullable=False,
            comment="running, failing, cancelling, or one of the four ends",
        ),
        sa.Column("window", sa.Integer(), nullable=False, comment="items in flight or waiting, at most"),
        sa.Column(
            "key_path", sa.String(length=200), nullable=True, comment="where an input's own key is found"
        ),
        sa.Column("reuse", sa.Integer(), server_default="0", nullable=False),
        sa.Column("input_done", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "feeder_until", sa.Float(), nullable=False, comment="until when the feeder may be thought alive"
        ),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index("ix_runs_created_at", ["created_at"], unique=False)
        batch_op.create_index(
            "ix_runs_open",
            ["id"],
            unique=False,
            sqlite_where=sa.text("ended_at IS NULL"),
            postgresql_where=sa.text("ended_at IS NULL"),
        )

    op.create_table(
        "items",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False, comment="position in the run, from 0"),
        sa.Column(
            "key", sa.String(length=200), nullable=False, comment="the caller's key, by default the position"
        ),
        sa.Column(
            "state", sa.String(length=10), nullable=False, comment="pending, waiting, in_flight or closed"
        ),
        sa.Column(
            "epoch",
            sa.Integer(),
            nullable=False,
            comment="rises with every commit and closing; fences off what is stale",
        ),
        sa.Column("since", sa.Integer(), nullable=False, comment="the epoch at which this attempt began"),
        sa.Column(
            "round",
            sa.Integer(),
            nullable=False,
            comment="lives of the item: resume and redrive begin another",
        ),
        sa.Column("stage", sa.Integer(), nullable=False, comment="index of the stage, from 0"),
        sa.Column("attempt", sa.Integer(), nullable=False, comment="1 for the first"),
        sa.Column(
            "ask", sa.String(length=400), nullable=False, comment="validators to ask again, as indices"
        ),
        sa.Column("recoveries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("reopens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("throttles", sa.Integer(), server_default="0", nullable=False),
        sa.Column("kicks", sa.Integer(), server_default="0", nullable=False),
        sa.Column("alone", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "due_at",
            sa.Float(),
            nullable=False,
            comment="waiting: when to go on; in flight: when to look again",
        ),
        sa.Column("deadline_at", sa.Float(), nullable=False),
        sa.Column(
            "correction",
            sa.String(length=400),
            nullable=False,
            comment="names of the vault entries of the pending correction",
        ),
        sa.Column(
            "fallback",
            sa.String(length=40),
            nullable=False,
            comment="name of the vault entry of the kept fallback",
        ),
        sa.Column("fallback_rank", sa.Integer(), nullable=True),
        sa.Column("fallback_codes", sa.String(length=800), nullable=False),
        sa.Column("judging_fallback", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "counted",
            sa.Integer(),
            nullable=False,
            comment="epoch of the last production whose cost was added up",
        ),
        sa.Column(
            "unable", sa.Text(), nullable=False, comment="validators that could not judge, as a JSON list"
        ),
        sa.Column("input_digest", sa.String(length=64), nullable=False),
        sa.Column(
            "previous_digest",
            sa.String(length=64),
            nullable=False,
            comment="of the value of the stage before",
        ),
        sa.Column("status", sa.String(length=20), nullable=True, comment="how it ended"),
        sa.Column("reason", sa.String(length=40), nullable=True),
        sa.Column("disposition", sa.String(length=20), nullable=True),
        sa.Column("code", sa.String(length=64), nullable=True),
        sa.Column("used_fallback", sa.Integer(), server_default="0", nullable=False),
        sa.Column("diagnostics", sa.String(length=800), nullable=False),
        sa.Column("reused", sa.Integer(), server_default="0", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("generations", sa.Integer(), server_default="0", nullable=False),
        sa.Column("corrections", sa.Integer(), server_default="0", nullable=False),
        sa.Column("undetermined", sa.Integer(), server_default="0", nullable=False),
        sa.Column("recovered", sa.Integer(), server_default="0", nullable=False),
        sa.Column("input_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("closed_at", sa.Float(), nullable=True),
        sa.Column("purged", sa.Integer(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_items_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_items")),
        sa.UniqueConstraint("run_id", "key", name=op.f("uq_items_run_id_key")),
    )
    with op.batch_alter_table("items", schema=None) as batch_op:
        batch_op.create_index(
            "ix_items_alone",
            ["run_id"],
            unique=False,
            sqlite_where=sa.text("alone = 1"),
            postgresql_where=sa.text("alone = 1"),
        )
        batch_op.create_index(
            "ix_items_due",
            ["due_at"],
            unique=False,
            sqlite_where=sa.text("state IN ('waiting','in_flight')"),
            postgresql_where=sa.text("state IN ('waiting','in_flight')"),
        )
        batch_op.create_index(
            "ix_items_pending",
            ["run_id", "seq"],
            unique=False,
            sqlite_where=sa.text("state = 'pending'"),
            postgresql_where=sa.text("state = 'pending'"),
        )
        batch_op.create_index("ix_items_status", ["run_id", "state", "status", "disposition"], unique=False)
        batch_op.create_index(
            "ix_items_unpurged",
            ["closed_at"],
            unique=False,
            sqlite_where=sa.text("state = 'closed' AND purged = 0"),
            postgresql_where=sa.text("state = 'closed' AND purged = 0"),
        )
        batch_op.create_index(
            "ix_items_unpurged_in_run",
            ["run_id", "closed_at"],
            unique=False,
            sqlite_where=sa.text("state = 'closed' AND purged = 0"),
            postgresql_where=sa.text("state = 'closed' AND purged = 0"),
        )


def downgrade() -> None:
    with op.batch_alter_table("items", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_items_unpurged_in_run",
            sqlite_where=sa.text("state = 'closed' AND purged = 0"),
            postgresql_where=sa.text("state = 'closed' AND purged = 0"),
        )
        batch_op.drop_index(
            "ix_items_unpurged",
            sqlite_where=sa.text("state = 'closed' AND purged = 0"),
            postgresql_where=sa.text("state = 'closed' AND purged = 0"),
        )
        batch_op.drop_index("ix_items_status")
        batch_op.drop_index(
            "ix_items_pending",
            sqlite_where=sa.text("state = 'pending'"),
            postgresql_where=sa.text("state = 'pending'"),
        )
        batch_op.drop_index(
            "ix_items_due",
            sqlite_where=sa.text("state IN ('waiting','in_flight')"),
            postgresql_where=sa.text("state IN ('waiting','in_flight')"),
        )
        batch_op.drop_index(
            "ix_items_alone", sqlite_where=sa.text("alone = 1"), postgresql_where=sa.text("alone = 1")
        )

    op.drop_table("items")
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_runs_open",
            sqlite_where=sa.text("ended_at IS NULL"),
            postgresql_where=sa.text("ended_at IS NULL"),
        )
        batch_op.drop_index("ix_runs_created_at")

    op.drop_table("runs")
    op.drop_table("receipts")
    op.drop_table("payloads")
    with op.batch_alter_table("checkpoints", schema=None) as batch_op:
        batch_op.drop_index("ix_checkpoints_run_id_seq")

    op.drop_table("checkpoints")

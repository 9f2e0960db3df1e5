"""Runs migrations on the connection that the caller holds: one transaction, no configuration file."""

from alembic import context

from remand_tasks.state.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection, target_metadata=metadata, transactional_ddl=False, render_as_batch=True
)
context.run_migrations()

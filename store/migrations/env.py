"""Run the migrations on the connection, and within the transaction, that `store.database` passes."""

from __future__ import annotations

from alembic import context

from store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table="twofold_version",
)
with context.begin_transaction():
    context.run_migrations()

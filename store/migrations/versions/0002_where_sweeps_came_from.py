"""Which sweeps were added from a bundle, and from which: such a sweep is never taken for one that was run here.

Sweeps that are there already were all run here, as bundles had none before. The new table is guarded as the others
are: see 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLE = "sweep_origins"


def upgrade() -> None:
    op.create_table(
        TABLE,
        sa.Column("sweep", sa.String(64), nullable=False, comment="The sweep."),
        sa.Column("file", sa.Text, nullable=False, comment="Name of the bundle's file, without its folder."),
        sa.Column(
            "manifest",
            sa.String(64),
            sa.CheckConstraint("length(manifest) = 64", name=op.f("ck_sweep_origins_manifest_is_a_sha256")),
            nullable=False,
            comment="SHA-256 of the bundle's manifest.",
        ),
        sa.Column("added_at", sa.String(40), nullable=False, comment="When the sweep was added. UTC, RFC 3339."),
        sa.PrimaryKeyConstraint("sweep", name="pk_sweep_origins"),
        sa.ForeignKeyConstraint(["sweep"], ["sweeps.id"], name="fk_sweep_origins_sweep"),
    )
    if op.get_bind().dialect.name == "sqlite":
        _guard_on_sqlite()
    else:
        _guard_on_postgresql()


def downgrade() -> None:
    raise NotImplementedError("without it an added sweep would be taken for one that was run here")


def _guard_on_sqlite() -> None:
    refuse = f"SELECT RAISE(ABORT, '{TABLE} are append-only');"
    for event in ("UPDATE", "DELETE"):
        op.execute(f"CREATE TRIGGER {TABLE}_refuse_{event.lower()} BEFORE {event} ON {TABLE} BEGIN {refuse} END")
    op.execute(
        f"CREATE TRIGGER {TABLE}_refuse_replace BEFORE INSERT ON {TABLE} "  # noqa: S608  (our own names)
        f"WHEN EXISTS (SELECT 1 FROM {TABLE} WHERE sweep = NEW.sweep OR rowid = NEW.rowid) BEGIN {refuse} END"
    )


def _guard_on_postgresql() -> None:
    op.execute(
        f"CREATE TRIGGER {TABLE}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {TABLE} "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    # Also where session_replication_role switches ordinary triggers off.
    op.execute(f"ALTER TABLE {TABLE} ENABLE ALWAYS TRIGGER {TABLE}_refuse_change")

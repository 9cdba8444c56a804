"""In which order records and sweeps came in, which files brought them and who signed those, and what is excluded.

Until now the order was that of the times in records and sweeps, which whoever writes them chooses. What is there
already gets its place by SQLite's rowid, which counts what was inserted; on PostgreSQL nothing tells, so the times are
the best that is left. Records of sweeps that were added get the origin of their sweep; of other records that no sweep
has, nothing tells a file, and they have no row. The new tables are guarded as the others are: see 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KEYS = {
    "arrivals": (("number",), ("kind", "name")),
    "deliveries": (("number",),),
    "record_origins": (("record", "manifest"),),
    "sweep_files": (("sweep", "manifest"),),
    "exclusions": (("number",),),
}
"""Append-only tables, and which columns of each are unique together."""


def upgrade() -> None:
    _make_tables()
    _number_what_is_there()
    op.execute(
        "INSERT INTO deliveries (number, manifest, file, signer, added_at) "
        "SELECT row_number() OVER (ORDER BY min(added_at), manifest, file), manifest, file, "
        "CAST(NULL AS VARCHAR(64)), min(added_at) FROM sweep_origins GROUP BY manifest, file"
    )
    op.execute(
        "INSERT INTO record_origins (record, manifest) SELECT DISTINCT r.record, o.manifest "
        "FROM sweep_records r JOIN sweep_origins o ON o.sweep = r.sweep"
    )
    op.execute("INSERT INTO sweep_files (sweep, manifest) SELECT sweep, manifest FROM sweep_origins")
    for table, keys in KEYS.items():
        if op.get_bind().dialect.name == "sqlite":
            _guard_on_sqlite(table, keys)
        else:
            _guard_on_postgresql(table)


def downgrade() -> None:
    raise NotImplementedError("without it a record that was added would be taken for one that was run here")


def _make_tables() -> None:
    op.create_table(
        "arrivals",
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False, comment="Counts up, from 1."),
        sa.Column("kind", sa.String(8), nullable=False, comment="What came in: record or sweep."),
        sa.Column("name", sa.String(64), nullable=False, comment="Digest of the record, or id of the sweep."),
        sa.PrimaryKeyConstraint("number", name="pk_arrivals"),
        sa.UniqueConstraint("kind", "name", name="uq_arrivals_kind_name"),
        sa.CheckConstraint("kind IN ('record', 'sweep')", name=op.f("ck_arrivals_kind_is_known")),
    )
    op.create_table(
        "deliveries",
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False, comment="Counts up, from 1."),
        _digest("deliveries", "manifest", "SHA-256 of the bundle's manifest; of a folder, that of its record."),
        sa.Column("file", sa.Text, nullable=False, comment="Name of the bundle's file or folder, without the path."),
        _digest("deliveries", "signer", "Id of the key that signed the bundle. NULL if none did.", nullable=True),
        sa.Column("added_at", sa.String(40), nullable=False, comment="When it was added. UTC, RFC 3339."),
        sa.PrimaryKeyConstraint("number", name="pk_deliveries"),
    )
    op.create_table(
        "record_origins",
        _digest("record_origins", "record", "The record."),
        _digest("record_origins", "manifest", "SHA-256 of the manifest that names it; of a folder, its own."),
        sa.PrimaryKeyConstraint("record", "manifest", name="pk_record_origins"),
        sa.ForeignKeyConstraint(["record"], ["records.digest"], name="fk_record_origins_record"),
    )
    op.create_table(
        "sweep_files",
        sa.Column("sweep", sa.String, nullable=False, comment="The sweep."),
        _digest("sweep_files", "manifest", "SHA-256 of the manifest that has it."),
        sa.PrimaryKeyConstraint("sweep", "manifest", name="pk_sweep_files"),
        sa.ForeignKeyConstraint(["sweep"], ["sweeps.id"], name="fk_sweep_files_sweep"),
    )
    op.create_table(
        "exclusions",
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False, comment="Counts up, from 1."),
        sa.Column("verb", sa.String(8), nullable=False, comment="exclude, or include, which takes it back."),
        sa.Column("kind", sa.String(8), nullable=False, comment="What it is of: record, sweep, file or signer."),
        sa.Column(
            "name",
            sa.String(64),
            nullable=False,
            comment="Digest of the record or of the file's manifest, id of the sweep or of the signer's key.",
        ),
        sa.Column("author", sa.Text, nullable=False, comment="Who says so."),
        sa.Column("why", sa.Text, nullable=False, comment="For which reason."),
        sa.Column("written_at", sa.String(40), nullable=False, comment="When it was written. UTC, RFC 3339."),
        sa.PrimaryKeyConstraint("number", name="pk_exclusions"),
        sa.CheckConstraint("verb IN ('exclude', 'include')", name=op.f("ck_exclusions_verb_is_known")),
        sa.CheckConstraint("kind IN ('record', 'sweep', 'file', 'signer')", name=op.f("ck_exclusions_kind_is_known")),
    )


def _number_what_is_there() -> None:
    if op.get_bind().dialect.name == "sqlite":
        sweeps, records = "SELECT id, rowid AS place FROM sweeps", "SELECT digest, rowid AS place FROM records"
    else:
        sweeps = "SELECT id, row_number() OVER (ORDER BY started_at, id) AS place FROM sweeps"
        records = (
            "SELECT r.digest, row_number() OVER (ORDER BY c.started_at, r.digest) AS place "
            "FROM records r LEFT JOIN cells c ON c.digest = r.digest"
        )
    into = "INSERT INTO arrivals (number, kind, name) SELECT row_number() OVER (ORDER BY place)"
    op.execute(f"{into}, 'sweep', id FROM ({sweeps}) AS known")
    after = f"{into} + (SELECT count(*) FROM sweeps)"  # noqa: S608  (our own names)
    op.execute(f"{after}, 'record', digest FROM ({records}) AS known")


def _digest(table: str, name: str, comment: str, *, nullable: bool = False) -> sa.Column[str]:
    check = sa.CheckConstraint(f"length({name}) = 64", name=op.f(f"ck_{table}_{name}_is_a_sha256"))
    return sa.Column(name, sa.String(64), check, nullable=nullable, comment=comment)


def _guard_on_sqlite(table: str, keys: tuple[tuple[str, ...], ...]) -> None:
    taken = " OR ".join(" AND ".join(f"{name} = NEW.{name}" for name in columns) for columns in (*keys, ("rowid",)))
    refuse = f"SELECT RAISE(ABORT, '{table} are append-only');"
    for event in ("UPDATE", "DELETE"):
        op.execute(f"CREATE TRIGGER {table}_refuse_{event.lower()} BEFORE {event} ON {table} BEGIN {refuse} END")
    op.execute(
        f"CREATE TRIGGER {table}_refuse_replace BEFORE INSERT ON {table} "  # noqa: S608  (our own names)
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {taken}) BEGIN {refuse} END"
    )


def _guard_on_postgresql(table: str) -> None:
    op.execute(
        f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    # Also where session_replication_role switches ordinary triggers off.
    op.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_refuse_change")

"""Records, documents, notes, plans and sweeps, which are append only, and cells, the index over records.

SQLite: triggers refuse UPDATE and DELETE, and an INSERT whose key, unique columns or rowid are taken:
INSERT OR REPLACE removes the old row without firing a DELETE trigger.
PostgreSQL: one trigger per table refuses UPDATE, DELETE and TRUNCATE, ON CONFLICT DO UPDATE included.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEYS = {
    "records": (("digest",),),
    "documents": (("digest",),),
    "notes": (("id",),),
    "plans": (("digest",),),
    "sweeps": (("id",), ("plan", "machine", "number")),
    "sweep_records": (("sweep", "spec"),),
}
"""Append-only tables, and which columns of each are unique together."""


def upgrade() -> None:
    _make_evidence_tables()
    _make_index_table()
    for table, keys in KEYS.items():
        if op.get_bind().dialect.name == "sqlite":
            _guard_on_sqlite(table, keys)
        else:
            _guard_on_postgresql(table)


def downgrade() -> None:
    raise NotImplementedError("there is nothing before the first revision but evidence lost")


def _make_evidence_tables() -> None:
    op.create_table(
        "records",
        _digest("records", "digest", "SHA-256 of the text."),
        sa.Column("text", sa.Text, nullable=False, comment="The record as canonical JSON, exactly as it was written."),
        sa.PrimaryKeyConstraint("digest", name="pk_records"),
    )
    op.create_table(
        "documents",
        _digest("documents", "digest", "SHA-256 of the text as UTF-8."),
        sa.Column("kind", sa.String(16), nullable=False, comment="What it is: machine or source."),
        sa.Column("text", sa.Text, nullable=False, comment="Its content."),
        sa.PrimaryKeyConstraint("digest", name="pk_documents"),
        sa.CheckConstraint("kind IN ('machine', 'source')", name=op.f("ck_documents_kind_is_known")),
    )
    op.create_table(
        "notes",
        sa.Column("id", sa.Integer, nullable=False, comment="Counts up."),
        _digest("notes", "record", "The record it is about."),
        sa.Column("author", sa.Text, nullable=False, comment="Who says so."),
        sa.Column("text", sa.Text, nullable=False, comment="What is said."),
        _moment("written_at", "When the note was written."),
        sa.PrimaryKeyConstraint("id", name="pk_notes"),
        sa.ForeignKeyConstraint(["record"], ["records.digest"], name="fk_notes_record"),
    )
    op.create_index("ix_notes_record", "notes", ["record"])
    op.create_table(
        "plans",
        _digest("plans", "digest", "SHA-256 of the text."),
        sa.Column("text", sa.Text, nullable=False, comment="Canonical JSON list of the specs, in their order."),
        sa.PrimaryKeyConstraint("digest", name="pk_plans"),
    )
    op.create_table(
        "sweeps",
        sa.Column(
            "id",
            sa.String(64),
            nullable=False,
            comment="Beginning of the plan's digest, of the machine's, and the number.",
        ),
        _digest("sweeps", "plan", "The plan that is run."),
        _digest("sweeps", "machine", "SHA-256 that names the machine."),
        sa.Column(
            "number", sa.Integer, nullable=False, comment="Counts the runs of this plan on this machine, from 1."
        ),
        _moment("started_at", "When the sweep was begun."),
        sa.PrimaryKeyConstraint("id", name="pk_sweeps"),
        sa.ForeignKeyConstraint(["plan"], ["plans.digest"], name="fk_sweeps_plan"),
        sa.UniqueConstraint("plan", "machine", "number", name="uq_sweeps_plan_machine_number"),
    )
    op.create_table(
        "sweep_records",
        sa.Column("sweep", sa.String(64), nullable=False, comment="The sweep."),
        _digest("sweep_records", "spec", "SHA-256 of the spec."),
        _digest("sweep_records", "record", "Its record."),
        sa.PrimaryKeyConstraint("sweep", "spec", name="pk_sweep_records"),
        sa.ForeignKeyConstraint(["sweep"], ["sweeps.id"], name="fk_sweep_records_sweep"),
        sa.ForeignKeyConstraint(["record"], ["records.digest"], name="fk_sweep_records_record"),
    )
    op.create_index("ix_sweep_records_record", "sweep_records", ["record"])


def _make_index_table() -> None:
    op.create_table(
        "cells",
        _digest("cells", "digest", "The record."),
        sa.Column("schema", sa.Integer, nullable=False, comment="Version of the record's JSON."),
        _text("scenario", "Folder and name of the scenario."),
        _text("family", "The scenario's folder."),
        _text("case", "Name of the case."),
        _text("label", "The case with its variant in one word."),
        _text("role", "reference, broken, repair or control."),
        _text("device", "Device it ran on."),
        _text("dtype", "In which the case calculates."),
        _text("input_dtype", "To which the inputs were rounded first."),
        sa.Column("seed", sa.BigInteger, nullable=False, comment="Seed of its random numbers."),
        sa.Column("threads", sa.Integer, nullable=False, comment="Compute threads."),
        _text("pass", "How the process looked at the case."),
        _digest("cells", "question_digest", "What was asked."),
        _digest("cells", "case_digest", "What was asked, whatever the pass."),
        _digest("cells", "replay_digest", "The replay it belongs to."),
        _text("environment", "Name of the environment."),
        _text("isolation", "fresh: a new interpreter for each process."),
        _text("sources", "original or copied."),
        sa.Column("repeat", sa.Integer, nullable=False, comment="Number of the replay, from 0."),
        sa.Column("attempt", sa.Integer, nullable=False, comment="Number of the try at it, from 0."),
        _text("outcome", "How the process ended."),
        sa.Column("phase", sa.Text, comment="Phase in which it ended. NULL where none was seen."),
        sa.Column("error", sa.Text, comment="Type of the exception. NULL unless raised."),
        sa.Column("fingerprint", sa.Text, comment="The error's fingerprint. NULL unless raised."),
        _digest("cells", "evidence_digest", "The part a replay must repeat."),
        _digest("cells", "machine", "Facts of the machine. NULL if the process left none.", nullable=True),
        _moment("started_at", "When the process was started."),
        sa.Column("duration", sa.Float, nullable=False, comment="Seconds from start to end."),
        sa.PrimaryKeyConstraint("digest", name="pk_cells"),
        sa.ForeignKeyConstraint(["digest"], ["records.digest"], name="fk_cells_digest"),
    )
    for column in (
        "scenario", "family", "question_digest", "case_digest", "replay_digest", "outcome", "evidence_digest",
        "machine", "started_at",
    ):  # fmt: skip
        op.create_index(f"ix_cells_{column}", "cells", [column])


def _digest(table: str, name: str, comment: str, *, nullable: bool = False) -> sa.Column[str]:
    check = sa.CheckConstraint(f"length({name}) = 64", name=op.f(f"ck_{table}_{name}_is_a_sha256"))
    return sa.Column(name, sa.String(64), check, nullable=nullable, comment=comment)


def _text(name: str, comment: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, comment=comment)


def _moment(name: str, comment: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(40), nullable=False, comment=f"{comment} UTC, RFC 3339.")


def _guard_on_sqlite(table: str, keys: tuple[tuple[str, ...], ...]) -> None:
    # A row that names no rowid has -1 there before it is inserted, which no row has.
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
        "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% are append-only', TG_TABLE_NAME; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    # Also where session_replication_role switches ordinary triggers off.
    op.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_refuse_change")

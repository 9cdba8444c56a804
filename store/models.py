"""The tables. Only the migrations create them; a test checks with Alembic that both agree.

`APPEND_ONLY` tables are evidence: triggers refuse every change to an existing row. `Cell` is an index over them, which
can be dropped and rebuilt.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Float, ForeignKey, Integer, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from store.columns import CONVENTION, digest_column, moment_column

APPEND_ONLY = (
    "records",
    "documents",
    "notes",
    "plans",
    "sweeps",
    "sweep_records",
    "sweep_origins",
    "arrivals",
    "deliveries",
    "record_origins",
    "sweep_files",
    "exclusions",
)


class Base(DeclarativeBase):
    """Base class of all tables."""

    metadata = MetaData(naming_convention=CONVENTION)


class RecordRow(Base):
    """The record of one process. It is the source of truth; everything else is an index over it."""

    __tablename__ = "records"

    digest: Mapped[str] = digest_column("digest", "SHA-256 of the text.", primary_key=True)
    text: Mapped[str] = mapped_column(Text, comment="The record as canonical JSON, exactly as it was written.")


class DocumentRow(Base):
    """A text that many records share: the facts of a machine, or a source file."""

    __tablename__ = "documents"
    __table_args__ = (CheckConstraint("kind IN ('machine', 'source')", name="kind_is_known"),)

    digest: Mapped[str] = digest_column("digest", "SHA-256 of the text as UTF-8.", primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), comment="What it is: machine or source.")
    text: Mapped[str] = mapped_column(Text, comment="Its content.")


class NoteRow(Base):
    """A note about a record, added after the record was written."""

    __tablename__ = "notes"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, comment="Counts up.")
    record: Mapped[str] = digest_column("record", "The record it is about.", ForeignKey("records.digest"), index=True)
    author: Mapped[str] = mapped_column(Text, comment="Who says so.")
    text: Mapped[str] = mapped_column(Text, comment="What is said.")
    written_at: Mapped[str] = moment_column("written_at", "When the note was written.")


class PlanRow(Base):
    """The list of specs that a sweep is to run."""

    __tablename__ = "plans"

    digest: Mapped[str] = digest_column("digest", "SHA-256 of the text.", primary_key=True)
    text: Mapped[str] = mapped_column(Text, comment="Canonical JSON list of the specs, in their order.")


class SweepRow(Base):
    """One run of a plan on one machine. It is finished when every spec of the plan has a record in it."""

    __tablename__ = "sweeps"
    __table_args__ = (UniqueConstraint("plan", "machine", "number"),)

    id: Mapped[str] = mapped_column(
        String(64), primary_key=True, comment="Beginning of the plan's digest, of the machine's, and the number."
    )
    plan: Mapped[str] = digest_column("plan", "The plan that is run.", ForeignKey("plans.digest"))
    machine: Mapped[str] = digest_column("machine", "SHA-256 that names the machine.")
    number: Mapped[int] = mapped_column(Integer, comment="Counts the runs of this plan on this machine, from 1.")
    started_at: Mapped[str] = moment_column("started_at", "When the sweep was begun.")


class SweepRecordRow(Base):
    """The record that a sweep got for a spec."""

    __tablename__ = "sweep_records"

    sweep: Mapped[str] = mapped_column(ForeignKey("sweeps.id"), primary_key=True, comment="The sweep.")
    spec: Mapped[str] = digest_column("spec", "SHA-256 of the spec.", primary_key=True)
    record: Mapped[str] = digest_column("record", "Its record.", ForeignKey("records.digest"), index=True)


class SweepOriginRow(Base):
    """The origin of a sweep that was added from a bundle. A sweep without such a row was run here."""

    __tablename__ = "sweep_origins"

    sweep: Mapped[str] = mapped_column(ForeignKey("sweeps.id"), primary_key=True, comment="The sweep.")
    file: Mapped[str] = mapped_column(Text, comment="Name of the bundle's file, without its folder.")
    manifest: Mapped[str] = digest_column("manifest", "SHA-256 of the bundle's manifest.")
    added_at: Mapped[str] = moment_column("added_at", "When the sweep was added.")


class ArrivalRow(Base):
    """The order in which records and sweeps arrived in the archive. Times in records cannot be trusted for that."""

    __tablename__ = "arrivals"
    __table_args__ = (
        UniqueConstraint("kind", "name"),
        CheckConstraint("kind IN ('record', 'sweep')", name="kind_is_known"),
    )

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False, comment="Counts up, from 1.")
    kind: Mapped[str] = mapped_column(String(8), comment="What came in: record or sweep.")
    name: Mapped[str] = mapped_column(String(64), comment="Digest of the record, or id of the sweep.")


class DeliveryRow(Base):
    """A file that was added. The same contents can arrive again under another name, or signed by another key."""

    __tablename__ = "deliveries"

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False, comment="Counts up, from 1.")
    manifest: Mapped[str] = digest_column(
        "manifest", "SHA-256 of the bundle's manifest; of a folder, that of its record."
    )
    file: Mapped[str] = mapped_column(Text, comment="Name of the bundle's file or folder, without the path.")
    signer: Mapped[str | None] = digest_column("signer", "Id of the key that signed the bundle. NULL if none did.")
    added_at: Mapped[str] = moment_column("added_at", "When it was added.")


class RecordOriginRow(Base):
    """The manifest with which a record was added. A record of a sweep that was run here is ours regardless."""

    __tablename__ = "record_origins"

    record: Mapped[str] = digest_column("record", "The record.", ForeignKey("records.digest"), primary_key=True)
    manifest: Mapped[str] = digest_column(
        "manifest", "SHA-256 of the manifest that names it; of a folder, its own.", primary_key=True
    )


class SweepFileRow(Base):
    """The manifest with which a sweep, or more of it, was added."""

    __tablename__ = "sweep_files"

    sweep: Mapped[str] = mapped_column(ForeignKey("sweeps.id"), primary_key=True, comment="The sweep.")
    manifest: Mapped[str] = digest_column("manifest", "SHA-256 of the manifest that has it.", primary_key=True)


class ExclusionRow(Base):
    """An exclusion of an item, or its reversal. The last row for an item counts."""

    __tablename__ = "exclusions"
    __table_args__ = (
        CheckConstraint("verb IN ('exclude', 'include')", name="verb_is_known"),
        CheckConstraint("kind IN ('record', 'sweep', 'file', 'signer')", name="kind_is_known"),
    )

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False, comment="Counts up, from 1.")
    verb: Mapped[str] = mapped_column(String(8), comment="exclude, or include, which takes it back.")
    kind: Mapped[str] = mapped_column(String(8), comment="What it is of: record, sweep, file or signer.")
    name: Mapped[str] = mapped_column(
        String(64), comment="Digest of the record or of the file's manifest, id of the sweep or of the signer's key."
    )
    author: Mapped[str] = mapped_column(Text, comment="Who says so.")
    why: Mapped[str] = mapped_column(Text, comment="For which reason.")
    written_at: Mapped[str] = moment_column("written_at", "When it was written.")


class Cell(Base):
    """The index: one row per record. Not evidence: `Archive.rebuild` recreates it from the records."""

    __tablename__ = "cells"

    digest: Mapped[str] = digest_column("digest", "The record.", ForeignKey("records.digest"), primary_key=True)
    schema: Mapped[int] = mapped_column(Integer, comment="Version of the record's JSON.")
    scenario: Mapped[str] = mapped_column(Text, index=True, comment="Folder and name of the scenario.")
    family: Mapped[str] = mapped_column(Text, index=True, comment="The scenario's folder.")
    case: Mapped[str] = mapped_column(Text, comment="Name of the case.")
    label: Mapped[str] = mapped_column(Text, comment="The case with its variant in one word.")
    role: Mapped[str] = mapped_column(Text, comment="reference, broken, repair or control.")
    device: Mapped[str] = mapped_column(Text, comment="Device it ran on.")
    dtype: Mapped[str] = mapped_column(Text, comment="In which the case calculates.")
    input_dtype: Mapped[str] = mapped_column(Text, comment="To which the inputs were rounded first.")
    seed: Mapped[int] = mapped_column(BigInteger, comment="Seed of its random numbers.")
    threads: Mapped[int] = mapped_column(Integer, comment="Compute threads.")
    pass_: Mapped[str] = mapped_column("pass", Text, comment="How the process looked at the case.")
    question_digest: Mapped[str] = digest_column("question_digest", "What was asked.", index=True)
    case_digest: Mapped[str] = digest_column("case_digest", "What was asked, whatever the pass.", index=True)
    replay_digest: Mapped[str] = digest_column("replay_digest", "The replay it belongs to.", index=True)
    environment: Mapped[str] = mapped_column(Text, comment="Name of the environment.")
    isolation: Mapped[str] = mapped_column(Text, comment="fresh: a new interpreter for each process.")
    sources: Mapped[str] = mapped_column(Text, comment="original or copied.")
    repeat: Mapped[int] = mapped_column(Integer, comment="Number of the replay, from 0.")
    attempt: Mapped[int] = mapped_column(Integer, comment="Number of the try at it, from 0.")
    outcome: Mapped[str] = mapped_column(Text, index=True, comment="How the process ended.")
    phase: Mapped[str | None] = mapped_column(Text, comment="Phase in which it ended. NULL where none was seen.")
    error: Mapped[str | None] = mapped_column(Text, comment="Type of the exception. NULL unless raised.")
    fingerprint: Mapped[str | None] = mapped_column(Text, comment="The error's fingerprint. NULL unless raised.")
    evidence_digest: Mapped[str] = digest_column("evidence_digest", "The part a replay must repeat.", index=True)
    machine: Mapped[str | None] = digest_column(
        "machine", "Facts of the machine. NULL if the process left none.", index=True
    )
    started_at: Mapped[str] = moment_column("started_at", "When the process was started.", index=True)
    duration: Mapped[float] = mapped_column(Float, comment="Seconds from start to end.")

"""Recompute everything an archive holds and name what does not match.

Detected: changed or missing records, documents, plans and blobs; index rows that differ from their records; sweeps that
do not fit their plan; a damaged database file; a missing guard against changes; commits to a SQLite database that are
lost, and frames of its log that SQLite skips. Not detected: a record that was removed together with everything that
names it, the list of commits next to the database included, and missing stdout or stderr (optional, so it is only
counted).
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import Any, Iterator, Mapping

from sqlalchemy import Connection, LargeBinary, cast, exists, select
from sqlalchemy.orm import InstrumentedAttribute

from experiments.core.canonical_json import digest
from experiments.core.spec import Spec
from store import exclusions, sweeps
from store.blobs import Blobs
from store.database import Database, row_dictionary, storable_values
from store.errors import ArchiveError
from store.index import DOCUMENTS, OPTIONAL, cell_values, read_record, referenced_contents
from store.ledger import Ledger, note_digest, skipped_frames
from store.models import (
    APPEND_ONLY,
    ArrivalRow,
    Base,
    Cell,
    DocumentRow,
    NoteRow,
    PlanRow,
    RecordRow,
    SweepRecordRow,
    SweepRow,
)
from store.origins import deliveries


@dataclass(frozen=True)
class Problem:
    """One mismatch."""

    digest: str
    """Digest or other name of the affected item."""
    what: str
    """The rest of the sentence whose subject is `digest`."""

    def __str__(self) -> str:
        return f"{self.digest}: {self.what}"


@dataclass(frozen=True)
class Counts:
    """How much was examined."""

    records: int = 0
    documents: int = 0
    blobs: int = 0
    sweeps: int = 0
    unreferenced_blobs: int = 0
    """Blobs that no record names, such as an interrupted add leaves."""
    absent_outputs: int = 0
    """Contents of stdout, stderr and unreadable observations that the archive lacks, as after adding a bundle."""

    def __str__(self) -> str:
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in asdict(self).items())


def check_archive(database: Database, blobs: Blobs) -> tuple[list[Problem], Counts]:
    """Return all problems, and how much was examined. Bad content is a problem and never raises."""
    examination = _Examination(blobs)
    examination.problems.extend(_skipped_frames(database))
    try:
        with database.read_transaction() as connection:
            examination.run(connection, sqlite=database.is_sqlite)
            examination.problems.extend(_lost_commits(connection, database))
    except ArchiveError as error:
        examination.problems.append(Problem("database", f"cannot be read on: {error}"))
    return examination.problems, examination.counts()


class _Examination:
    """State of a check: the problems so far, and which contents exist and which are required."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self.problems: list[Problem] = []
        self.specs: dict[str, Spec] = {}
        """Digest of each readable record -> its spec."""
        self.wanted: dict[str, set[str]] = {}
        """Digest of each content that records refer to -> its kinds in them."""
        self.documents: set[str] = set()
        self.kept: set[str] = set()
        self.tally = {"records": 0, "sweeps": 0, "absent_outputs": 0}

    def run(self, connection: Connection, *, sqlite: bool) -> None:
        self.problems.extend(_sqlite_damage(connection) if sqlite else _dangling_keys(connection))
        self.problems.extend(_missing_guards(connection) if sqlite else _weak_guards(connection))
        self._check_documents(connection, sqlite=sqlite)
        self._check_records(connection, sqlite=sqlite)
        self._check_contents()
        self._check_sweeps(connection, sqlite=sqlite)

    def counts(self) -> Counts:
        unreferenced = len(self.kept - self.wanted.keys())
        return Counts(
            documents=len(self.documents), blobs=len(self.kept), unreferenced_blobs=unreferenced, **self.tally
        )

    def _add_problem(self, name: str, what: str) -> None:
        self.problems.append(Problem(name, what))

    def _check_documents(self, connection: Connection, *, sqlite: bool) -> None:
        for name, content in _row_contents(connection, DocumentRow.digest, DocumentRow.text, sqlite=sqlite):
            self.documents.add(name)
            if digest(content) != name:
                self._add_problem(name, f"document has the digest {digest(content)}")

    def _check_records(self, connection: Connection, *, sqlite: bool) -> None:
        cells = {row.digest: row_dictionary(row) for row in connection.execute(select(Cell.__table__)).all()}
        for name, content in _row_contents(connection, RecordRow.digest, RecordRow.text, sqlite=sqlite):
            self.tally["records"] += 1
            self._check_record(name, content, cells.pop(name, None))
        for name in cells:
            self._add_problem(name, "index row of a record that is not there; `Archive.rebuild` mends it")

    def _check_record(self, name: str, content: bytes, indexed: dict[str, Any] | None) -> None:
        if digest(content) != name:
            self._add_problem(name, f"record has the digest {digest(content)}")
        try:
            text = content.decode("utf-8")
            record = read_record(text)
            contents, row = referenced_contents(record), storable_values(cell_values(text, record))
        except (ArchiveError, UnicodeDecodeError) as error:
            self._add_problem(name, f"record cannot be read: {error}")
            return
        self.specs[name] = record.spec
        for asked, kind in contents.items():
            self.wanted.setdefault(asked, set()).add(kind)
        wrong = sorted(key for key in row if indexed is not None and indexed[key] != row[key])
        if indexed is None:
            self._add_problem(name, "record has no index row; `Archive.rebuild` makes it")
        elif wrong:
            self._add_problem(
                name, f"index row differs from the record in {', '.join(wrong)}; `Archive.rebuild` mends it"
            )

    def _check_contents(self) -> None:
        self.kept = set(self.blobs.names())
        for name, kinds in sorted(self.wanted.items()):
            if kinds & set(DOCUMENTS) and name not in self.documents:
                self._add_problem(name, f"{' and '.join(sorted(kinds))} is missing")
            if kinds - set(DOCUMENTS):
                self._check_blob(name, kinds)

    def _check_blob(self, name: str, kinds: set[str]) -> None:
        try:
            content = self.blobs.read(name)
        except ArchiveError as error:
            self._add_problem(name, str(error))
            return
        if content is None and kinds - set(DOCUMENTS) - set(OPTIONAL):
            self._add_problem(name, f"{' and '.join(sorted(kinds))} is missing")
        elif content is None:
            self.tally["absent_outputs"] += 1

    def _check_sweeps(self, connection: Connection, *, sqlite: bool) -> None:
        plans: dict[str, dict[tuple[str, str], int]] = {}
        for name, content in _row_contents(connection, PlanRow.digest, PlanRow.text, sqlite=sqlite):
            if digest(content) != name:
                self._add_problem(name, f"plan has the digest {digest(content)}")
            try:
                plans[name] = sweeps.plan_places(sweeps.read_plan(content.decode("utf-8")))
            except (ArchiveError, UnicodeDecodeError) as error:
                self._add_problem(name, f"plan cannot be read: {error}")
        for row in connection.execute(select(SweepRow.__table__)).all():
            self.tally["sweeps"] += 1
            if row.id != sweeps.sweep_id(row.plan, row.machine, row.number):
                self._add_problem(row.id, "sweep has another id than its plan, machine and number give")
        self._check_arrivals(connection)
        links = select(SweepRecordRow.__table__, SweepRow.plan).join(SweepRow)
        for row in connection.execute(links).all():
            self._check_link(row, plans.get(row.plan))

    def _check_arrivals(self, connection: Connection) -> None:
        """Check that each record and sweep has a place in the order of arrival, and nothing else has one."""
        for kind, column in (("record", RecordRow.digest), ("sweep", SweepRow.id)):
            there = set(connection.scalars(select(column)))
            placed = set(connection.scalars(select(ArrivalRow.name).where(ArrivalRow.kind == kind)))
            for name in sorted(there ^ placed):
                what = "has no place in the order of arrivals" if name in there else "came in, and is not there"
                self._add_problem(name, f"{kind} {what}")

    def _check_link(self, row: Any, places: Mapping[tuple[str, str], int] | None) -> None:
        """Check a record of a sweep against the plan. Unreadable records and plans are already problems: skip them."""
        spec = self.specs.get(row.record)
        if spec is None or places is None:
            return
        if spec.digest() != row.spec:
            self._add_problem(
                row.record, f"sweep {row.sweep} has it for spec {row.spec}, but its spec is {spec.digest()}"
            )
        if sweeps.spec_place(spec) not in places:
            self._add_problem(row.record, f"sweep {row.sweep} has it, but its spec is not in the plan")


def _row_contents(
    connection: Connection, key: InstrumentedAttribute[str], text: InstrumentedAttribute[str], *, sqlite: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield digest and text of every row, as bytes, so that text which is no longer UTF-8 can be checked."""
    # On PostgreSQL text is always UTF-8, and a cast to bytes would read backslashes as escapes.
    column: Any = cast(text, LargeBinary) if sqlite else text
    # Fetch rows in batches: a large archive does not fit into memory.
    for name, content in connection.execute(select(key, column).execution_options(yield_per=500)):
        yield name, content if isinstance(content, bytes) else content.encode("utf-8")


def _skipped_frames(database: Database) -> Iterator[Problem]:
    """Yield a problem if SQLite skips committed frames of its log, because one of them or an earlier one is damaged."""
    if database.file is None:
        return
    log = database.file.with_name(f"{database.file.name}-wal")
    frames, commits = skipped_frames(log)
    if commits:
        # Another process may be writing them now: look again under the write lock.
        with contextlib.suppress(ArchiveError), database.write_transaction():
            frames, commits = skipped_frames(log)
    if commits:
        said = f"{frames} of its frames, with {commits} commits, do not match their checksums: SQLite skips them"
        yield Problem(log.name, f"{said}. {_ADD_AGAIN}")


def _lost_commits(connection: Connection, database: Database) -> Iterator[Problem]:
    """Yield a problem for each commit that the database has lost."""
    if database.file is None:
        return
    there = {("record", name) for name in connection.scalars(select(RecordRow.digest))}
    there |= {("sweep", name) for name in connection.scalars(select(SweepRow.id))}
    there |= {("delivery", one.name()) for ways in deliveries(connection).values() for one in ways}
    there |= {("exclusion", one.digest()) for one in exclusions.read_entries(connection)}
    notes = select(NoteRow.record, NoteRow.author, NoteRow.text, NoteRow.written_at)
    there |= {("note", note_digest(**row)) for row in connection.execute(notes).mappings()}
    for kind, name in Ledger(database.file).missing_commits(there):
        yield Problem(name, f"{kind} was committed to this archive, and is not in it. {_ADD_AGAIN}")


_ADD_AGAIN = (
    "Keep copies of the database and the files beside it, then add what is lost again: from a copy, a bundle, or "
    "what its sweep left in the folder sweeps of its outputs, by the same command that ran it"
)


def _sqlite_damage(connection: Connection) -> Iterator[Problem]:
    for (said,) in connection.exec_driver_sql("PRAGMA integrity_check"):
        if said != "ok":
            yield Problem("database", f"SQLite finds damage: {said}")
    for row in connection.exec_driver_sql("PRAGMA foreign_key_check"):
        yield Problem(f"{row[0]} row {row[1]}", f"names something in {row[2]} that is not there")


def _missing_guards(connection: Connection) -> Iterator[Problem]:
    found = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").scalars().all()
    for table in APPEND_ONLY:
        for guard in ("update", "delete", "replace"):
            if f"{table}_refuse_{guard}" not in found:
                yield Problem(table, f"the trigger that refuses {guard} is missing")


# PostgreSQL.

_GUARD = 2 | 8 | 16 | 32
"""pg_trigger.tgtype of a statement-level trigger before DELETE, UPDATE and TRUNCATE."""

_REFUSAL = "BEGIN RAISE EXCEPTION '% are append-only', TG_TABLE_NAME; END"
"""Body of the guard's function, stripped."""


def _dangling_keys(connection: Connection) -> Iterator[Problem]:
    """Yield dangling foreign keys, which a superuser can create by disabling ordinary triggers."""
    for table in Base.metadata.sorted_tables:
        for key in table.foreign_keys:
            there = exists().where(key.column == key.parent)
            for value in connection.scalars(select(key.parent).where(~there).distinct().order_by(key.parent)):
                yield Problem(str(value), f"{table.name} names it in {key.parent.name}, but it is not there")


def _weak_guards(connection: Connection) -> Iterator[Problem]:
    """Yield guards that are missing, do not fire always or on everything, or do something other than refuse."""
    found = connection.exec_driver_sql(
        "SELECT c.relname, t.tgenabled, t.tgtype, t.tgqual IS NULL AND cardinality(t.tgattr::int2[]) = 0, p.prosrc "
        "FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid "
        "WHERE t.tgname = c.relname || '_refuse_change' AND c.relnamespace = current_schema()::regnamespace"
    )
    guards = {table: rest for table, *rest in found}
    for table in APPEND_ONLY:
        if table not in guards:
            yield Problem(table, "the trigger that refuses changes is missing")
            continue
        enabled, kind, whole, source = guards[table]
        if source.strip() != _REFUSAL:
            yield Problem(table, f"the trigger that refuses changes does something else: {source.strip()}")
        elif (kind, whole) != (_GUARD, True):
            yield Problem(table, "the trigger that refuses changes lets some through")
        elif (enabled.decode() if isinstance(enabled, bytes) else enabled) != "A":
            yield Problem(table, "the trigger that refuses changes does not always fire")

"""Recomputes everything an archive holds and names what does not match.

Found are: changed records, documents, plans and blobs; missing ones; index rows that the records do not give;
sweeps that do not fit their plan; a damaged database file; a missing guard against changes; what was committed to a
SQLite database and is there no longer, and frames of its log that SQLite skips. Not found: a record that was taken out
together with everything that names it, the list beside the database included, and stdout or stderr that is not there
(optional, so it is only counted).
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
from store.database import Database, row_dictionary, storable
from store.errors import ArchiveError
from store.index import DOCUMENTS, OPTIONAL, cell, read_record, wanted
from store.ledger import Ledger, note_digest, skipped
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
    """Something that does not match."""

    digest: str
    """Digest, or other name, of what it is about."""
    what: str
    """A sentence without its subject."""

    def __str__(self) -> str:
        return f"{self.digest}: {self.what}"


@dataclass(frozen=True)
class Counts:
    """How much was looked at."""

    records: int = 0
    documents: int = 0
    blobs: int = 0
    sweeps: int = 0
    unreferenced_blobs: int = 0
    """Blobs that no record names, such as an interrupted add leaves."""
    absent_outputs: int = 0
    """Contents of stdout, stderr and unreadable observations that are not kept, as after a bundle."""

    def __str__(self) -> str:
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in asdict(self).items())


def check(database: Database, blobs: Blobs) -> tuple[list[Problem], Counts]:
    """All problems, and how much was looked at. Bad content is a problem, never an exception."""
    examination = _Examination(blobs)
    examination.problems.extend(_skipped(database))
    try:
        with database.reading() as connection:
            examination.run(connection, sqlite=database.is_sqlite)
            examination.problems.extend(_lost(connection, database))
    except ArchiveError as error:
        examination.problems.append(Problem("database", f"cannot be read on: {error}"))
    return examination.problems, examination.counts()


class _Examination:
    """What is known so far: problems, and which contents are there and which are asked for."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self.problems: list[Problem] = []
        self.specs: dict[str, Spec] = {}
        """Digest of each readable record -> its spec."""
        self.wanted: dict[str, set[str]] = {}
        """Digest of each content that a record rests on -> what it is there."""
        self.documents: set[str] = set()
        self.kept: set[str] = set()
        self.tally = {"records": 0, "sweeps": 0, "absent_outputs": 0}

    def run(self, connection: Connection, *, sqlite: bool) -> None:
        self.problems.extend(_damage(connection) if sqlite else _dangling(connection))
        self.problems.extend(_missing_guards(connection) if sqlite else _weak_guards(connection))
        self._documents(connection, sqlite=sqlite)
        self._records(connection, sqlite=sqlite)
        self._contents()
        self._sweeps(connection, sqlite=sqlite)

    def counts(self) -> Counts:
        unreferenced = len(self.kept - self.wanted.keys())
        return Counts(
            documents=len(self.documents), blobs=len(self.kept), unreferenced_blobs=unreferenced, **self.tally
        )

    def _say(self, name: str, what: str) -> None:
        self.problems.append(Problem(name, what))

    def _documents(self, connection: Connection, *, sqlite: bool) -> None:
        for name, content in _contents(connection, DocumentRow.digest, DocumentRow.text, sqlite=sqlite):
            self.documents.add(name)
            if digest(content) != name:
                self._say(name, f"document has the digest {digest(content)}")

    def _records(self, connection: Connection, *, sqlite: bool) -> None:
        cells = {row.digest: row_dictionary(row) for row in connection.execute(select(Cell.__table__)).all()}
        for name, content in _contents(connection, RecordRow.digest, RecordRow.text, sqlite=sqlite):
            self.tally["records"] += 1
            self._record(name, content, cells.pop(name, None))
        for name in cells:
            self._say(name, "index row of a record that is not there; `Archive.rebuild` mends it")

    def _record(self, name: str, content: bytes, indexed: dict[str, Any] | None) -> None:
        if digest(content) != name:
            self._say(name, f"record has the digest {digest(content)}")
        try:
            text = content.decode("utf-8")
            record = read_record(text)
            contents, row = wanted(record), storable(cell(text, record))
        except (ArchiveError, UnicodeDecodeError) as error:
            self._say(name, f"record cannot be read: {error}")
            return
        self.specs[name] = record.spec
        for asked, kind in contents.items():
            self.wanted.setdefault(asked, set()).add(kind)
        wrong = sorted(key for key in row if indexed is not None and indexed[key] != row[key])
        if indexed is None:
            self._say(name, "record has no index row; `Archive.rebuild` makes it")
        elif wrong:
            self._say(name, f"index row differs from the record in {', '.join(wrong)}; `Archive.rebuild` mends it")

    def _contents(self) -> None:
        self.kept = set(self.blobs.names())
        for name, kinds in sorted(self.wanted.items()):
            if kinds & set(DOCUMENTS) and name not in self.documents:
                self._say(name, f"{' and '.join(sorted(kinds))} is missing")
            if kinds - set(DOCUMENTS):
                self._blob(name, kinds)

    def _blob(self, name: str, kinds: set[str]) -> None:
        try:
            content = self.blobs.read(name)
        except ArchiveError as error:
            self._say(name, str(error))
            return
        if content is None and kinds - set(DOCUMENTS) - set(OPTIONAL):
            self._say(name, f"{' and '.join(sorted(kinds))} is missing")
        elif content is None:
            self.tally["absent_outputs"] += 1

    def _sweeps(self, connection: Connection, *, sqlite: bool) -> None:
        plans: dict[str, dict[tuple[str, str], int]] = {}
        for name, content in _contents(connection, PlanRow.digest, PlanRow.text, sqlite=sqlite):
            if digest(content) != name:
                self._say(name, f"plan has the digest {digest(content)}")
            try:
                plans[name] = sweeps.places(sweeps.read_plan(content.decode("utf-8")))
            except (ArchiveError, UnicodeDecodeError) as error:
                self._say(name, f"plan cannot be read: {error}")
        for row in connection.execute(select(SweepRow.__table__)).all():
            self.tally["sweeps"] += 1
            if row.id != sweeps.sweep_id(row.plan, row.machine, row.number):
                self._say(row.id, "sweep has another id than its plan, machine and number give")
        self._arrivals(connection)
        links = select(SweepRecordRow.__table__, SweepRow.plan).join(SweepRow)
        for row in connection.execute(links).all():
            self._link(row, plans.get(row.plan))

    def _arrivals(self, connection: Connection) -> None:
        """Each record and sweep has a place in the order, and nothing else has one."""
        for kind, column in (("record", RecordRow.digest), ("sweep", SweepRow.id)):
            there = set(connection.scalars(select(column)))
            placed = set(connection.scalars(select(ArrivalRow.name).where(ArrivalRow.kind == kind)))
            for name in sorted(there ^ placed):
                what = "has no place in the order of arrivals" if name in there else "came in, and is not there"
                self._say(name, f"{kind} {what}")

    def _link(self, row: Any, places: Mapping[tuple[str, str], int] | None) -> None:
        """Records and plans that could not be read were named already, so their rows are let be."""
        spec = self.specs.get(row.record)
        if spec is None or places is None:
            return
        if spec.digest() != row.spec:
            self._say(row.record, f"sweep {row.sweep} has it for spec {row.spec}, but its spec is {spec.digest()}")
        if sweeps.place_of(spec) not in places:
            self._say(row.record, f"sweep {row.sweep} has it, but its spec is not in the plan")


def _contents(
    connection: Connection, key: InstrumentedAttribute[str], text: InstrumentedAttribute[str], *, sqlite: bool
) -> Iterator[tuple[str, bytes]]:
    """Every row's digest and its text as bytes, so that text which is no longer UTF-8 can be looked at."""
    # On PostgreSQL text is always UTF-8, and a cast to bytes would read backslashes as escapes.
    column: Any = cast(text, LargeBinary) if sqlite else text
    # Some rows at a time: a large archive does not fit into memory.
    for name, content in connection.execute(select(key, column).execution_options(yield_per=500)):
        yield name, content if isinstance(content, bytes) else content.encode("utf-8")


def _skipped(database: Database) -> Iterator[Problem]:
    """Committed frames of SQLite's log that it takes for none, because one of them or one before was damaged."""
    if database.file is None:
        return
    log = database.file.with_name(f"{database.file.name}-wal")
    frames, commits = skipped(log)
    if commits:
        # Another process may just be writing them.
        with contextlib.suppress(ArchiveError), database.writing():
            frames, commits = skipped(log)
    if commits:
        said = f"{frames} of its frames, with {commits} commits, do not match their checksums: SQLite skips them"
        yield Problem(log.name, f"{said}. {_ADD_AGAIN}")


def _lost(connection: Connection, database: Database) -> Iterator[Problem]:
    """What was committed and is not there."""
    if database.file is None:
        return
    there = {("record", name) for name in connection.scalars(select(RecordRow.digest))}
    there |= {("sweep", name) for name in connection.scalars(select(SweepRow.id))}
    there |= {("delivery", one.name()) for ways in deliveries(connection).values() for one in ways}
    there |= {("exclusion", one.digest()) for one in exclusions.written(connection)}
    notes = select(NoteRow.record, NoteRow.author, NoteRow.text, NoteRow.written_at)
    there |= {("note", note_digest(**row)) for row in connection.execute(notes).mappings()}
    for kind, name in Ledger(database.file).missing(there):
        yield Problem(name, f"{kind} was committed to this archive, and is not in it. {_ADD_AGAIN}")


_ADD_AGAIN = (
    "Keep copies of the database and the files beside it, then add what is lost again: from a copy, a bundle, or "
    "what its sweep left in the folder sweeps of its outputs, by the same command that ran it"
)


def _damage(connection: Connection) -> Iterator[Problem]:
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
"""pg_trigger.tgtype of a trigger before DELETE, UPDATE and TRUNCATE, once for each statement."""

_REFUSAL = "BEGIN RAISE EXCEPTION '% are append-only', TG_TABLE_NAME; END"
"""What the guard does, without the spaces around it."""


def _dangling(connection: Connection) -> Iterator[Problem]:
    """Foreign keys that lead nowhere, as a superuser can make them who switches ordinary triggers off."""
    for table in Base.metadata.sorted_tables:
        for key in table.foreign_keys:
            there = exists().where(key.column == key.parent)
            for value in connection.scalars(select(key.parent).where(~there).distinct().order_by(key.parent)):
                yield Problem(str(value), f"{table.name} names it in {key.parent.name}, but it is not there")


def _weak_guards(connection: Connection) -> Iterator[Problem]:
    """Guards that are missing, do not fire always or on everything, or do something else than refuse."""
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

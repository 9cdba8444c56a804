"""The archive: records and what they rest on, kept under their digests, added only.

    with Archive.open("sqlite:///outputs/archive.db", Path("outputs/blobs")) as archive:
        archive.add(folder)
        for record in archive.records(scenario="checkpoint/*"):
            ...

A record counts from the moment its transaction is committed; its blobs are on disk before that. Whatever
interrupts an add leaves at most blobs that no record names, and adding again completes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import AbstractSet as Set
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, Self, Sequence

from sqlalchemy import Connection, Select, and_, delete, func, insert, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from experiments.core.canonical_json import digest
from experiments.core.record import Record
from experiments.core.spec import Spec
from store import exclusions, origins, sweeps
from store.blobs import Blobs, Contents, is_digest, loose
from store.database import Database, storable
from store.errors import ArchiveError
from store.exclusions import EXCLUDE, Excluded, Exclusion
from store.index import DOCUMENTS, OPTIONAL, cell, read_record, refuse_no_times, wanted
from store.integrity import Counts, Problem, check
from store.ledger import Ledger, note_digest
from store.models import ArrivalRow, Cell, DocumentRow, NoteRow, RecordRow, SweepRecordRow, SweepRow
from store.origins import NOT_TOLD, Origin
from store.regular import read_regular
from store.sweeps import BundledSweep, Sweep, SweepProgress, now

__all__ = [
    "Archive",
    "ArchiveError",
    "BundledSweep",
    "Counts",
    "Excluded",
    "Exclusion",
    "Origin",
    "Problem",
    "Sweep",
    "SweepProgress",
]

LARGEST_RECORD = 1 << 26
"""Bytes of a record.json: more than any process leaves, of which 16 MiB are read."""
_AT_ONCE = 500
"""Digests asked for in one statement; SQLite allows 32766 parameters, older ones 999."""


@dataclass(frozen=True)
class _Taken:
    """A record that was looked at and whose blobs are on disk, about to be inserted."""

    name: str
    """Its digest."""
    row: dict[str, Any]
    """Of the index."""
    spec: str
    documents: dict[str, str]
    """Kinds of the texts that came with it, by digest."""


class Archive:
    """Records by digest. Safe to use from many processes and threads at once."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs
        self._ledger = None if database.file is None else Ledger(database.file)
        self._places: dict[str, Mapping[tuple[str, str], int]] = {}
        self._plans: dict[str, list[Spec]] = {}

    @classmethod
    def open(cls, url: str, blobs: Path, *, create: bool = True) -> Archive:
        """The archive at a database URL with its folder of blobs, brought to the newest revision.

        Raises ArchiveError if it is not an archive, is newer than this code, or cannot be reached; with
        `create` false also if there is none yet.
        """
        return cls(Database(url, create=create), Blobs(blobs))

    @property
    def name(self) -> str:
        """Its URL as it may be shown: without a password."""
        return self._database.name

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Adding.

    def add(self, folder: Path, sweep: str | None = None, origin: Origin | None = None) -> str:
        """Keep ``record.json`` of the folder and the contents under ``blobs/``, and give the record's digest.

        Twice is once. Raises ArchiveError if anything is missing or does not match; then nothing is kept.
        """
        try:
            # A mark at its beginning is the editor's, and no part of the text that was hashed.
            text = read_regular(folder / "record.json", LARGEST_RECORD, "so it is no record").decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ArchiveError(f"{folder / 'record.json'} is not UTF-8 text") from None
        try:
            return self.add_text(text, loose(folder / "blobs"), sweep, origin)
        except ArchiveError as error:
            raise ArchiveError(f"{folder}: {error}") from error.__cause__

    def add_text(self, text: str, blobs: Contents, sweep: str | None = None, origin: Origin | None = None) -> str:
        """Keep a record whose contents `blobs` hands out; contents that are kept already need not be there.

        It is ours if `sweep` was run here; `origin` says where any other came from. Raises ArchiveError as `add` does.
        """
        return self.add_all(lambda: [text], blobs, sweep, origin)[0]

    def add_all(
        self,
        texts: Callable[[], Iterable[str]],
        blobs: Contents,
        sweep: str | None = None,
        origin: Origin | None = None,
        swept: Sequence[tuple[str, BundledSweep]] = (),
    ) -> list[str]:
        """Keep all of these records and then the sweeps `swept`, each with the text of its plan, or none of them.

        `texts` is gone through twice, so that they need not all be in memory. Gives the digests of the records.
        Raises ArchiveError as `add` does, and if the archive has another sweep of the id of one of them.
        """
        taken = []
        for text in texts():
            record = read_record(text)
            row = storable(cell(text, record))
            refuse_no_times(record)
            if sweep is not None:
                self._belongs(sweep, record.spec)
            taken.append(_Taken(str(row["digest"]), row, record.spec.digest(), self._take_in(record, blobs)))
        names = [one.name for one in taken]
        with self._database.writing() as connection:
            if sweep is not None and origin is not None:
                sweeps.extend(connection, sweep, origin)
            # Few statements: over a network each is a way there and back, and others wait meanwhile.
            known = _those_of(connection, RecordRow.digest, names)
            documents = {name for one in taken for name in one.documents}
            kept = _those_of(connection, DocumentRow.digest, sorted(documents))
            for one, text in zip(taken, texts(), strict=True):
                fresh = {name: kind for name, kind in one.documents.items() if name not in kept}
                if fresh:
                    connection.execute(insert(DocumentRow), [_document(name, fresh[name], blobs) for name in fresh])
                    kept |= fresh.keys()
                if one.name not in known:
                    connection.execute(insert(RecordRow).values(digest=one.name, text=text))
                    connection.execute(insert(Cell).values(one.row))
                if sweep is not None:
                    sweeps.link(connection, sweep, one.spec, one.name)
            origins.arrive(connection, "record", [name for name in names if name not in known])
            if origin is not None:
                origins.come_from(connection, names, origin)
            for plan, given in swept:
                sweeps.take_in(connection, plan, given, origin or NOT_TOLD)
        self._committed("record", [name for name in names if name not in known])
        self._committed("delivery", [origin.name()] if origin is not None else [])
        self._committed("sweep", [given.id for _, given in swept])
        return names

    def _committed(self, kind: str, names: Sequence[str]) -> None:
        if self._ledger is not None:
            self._ledger.note(kind, names)

    def settle(self) -> bool:
        """Bring all that was committed to where no damage to a log of the database loses it, and say whether that was
        possible: it is not while somebody reads an older state of it for long. Before it, keep what can be added again.
        """
        return self._database.settle()

    def _belongs(self, sweep: str, spec: Spec) -> None:
        if sweep not in self._places:
            self._places[sweep] = sweeps.places(self.sweep_plan(sweep))
        if sweeps.place_of(spec) not in self._places[sweep]:
            raise ArchiveError(f"the record's spec is not in the plan of sweep {sweep}; add it without the sweep")

    def _take_in(self, record: Record, blobs: Contents) -> dict[str, str]:
        """Check all that the record rests on, then write its blobs. Gives the kinds of its texts at hand, by digest."""
        documents: dict[str, str] = {}
        binary: dict[str, bytes] = {}
        for name, kind in wanted(record).items():
            content = blobs(name)
            if content is None:
                if kind not in OPTIONAL and not self._keeps(name, kind):
                    raise ArchiveError(f"{kind} {name} of the record is missing")
            elif digest(content) != name:
                raise ArchiveError(f"{kind} {name} has the digest {digest(content)}: it is not what was recorded")
            elif kind in DOCUMENTS:
                _decoded(name, kind, content)
                documents[name] = kind
            else:
                binary[name] = content
        for name, content in binary.items():
            self._blobs.write(name, content)
        return documents

    def _keeps(self, name: str, kind: str) -> bool:
        if kind in DOCUMENTS:
            return self.document(name) is not None
        return self._blobs.has(name)

    # Sweeps.

    def begin_sweep(
        self,
        plan: Sequence[Spec],
        machine: str,
        busy: Set[str] = frozenset(),
        unreported: Set[str] = frozenset(),
    ) -> Sweep:
        """Resume the latest unfinished sweep of this plan on this machine (a SHA-256) that was run here, or begin one.

        Those in `busy` are left to the living drivers that are at them; those in `unreported` are unfinished even if
        they have all their records. Raises ArchiveError if the plan is empty or holds a spec twice.
        """
        with self._database.writing() as connection:
            made = sweeps.begin(connection, plan, machine, busy, unreported)
        if not made.resumed:
            self._committed("sweep", [made.id])
        return made

    def sweep(self, name: str) -> SweepProgress:
        """How a sweep stands. Raises ArchiveError if there is none of that id."""
        found = [one for one in self.sweeps(excluded=True) if one.id == name]
        if not found:
            self.sweep_plan(name)
        return found[0]

    def sweeps(self, *, excluded: bool = False) -> list[SweepProgress]:
        """Every sweep, in the order in which they came in; with `excluded` also those that nobody shall see."""
        with self._database.reading() as connection:
            hidden = Excluded() if excluded else exclusions.in_sight(connection)
            return sweeps.progress(connection, hidden.sweeps, hidden.records)

    def sweep_plan(self, name: str) -> list[Spec]:
        """The specs of the sweep's plan, in order. Raises ArchiveError if there is no such sweep."""
        with self._database.reading() as connection:
            return sweeps.planned(connection, name, self._plans)

    def bundled(self, sweep: str) -> tuple[str, BundledSweep]:
        """The exact text of a sweep's plan, and the sweep as a bundle has it, with those of its records that are in
        sight. Raises ArchiveError if there is no such sweep, or it is excluded.
        """
        with self._database.reading() as connection:
            plan, found = sweeps.bundled(connection, sweep)
            hidden = exclusions.in_sight(connection)
        if sweep in hidden.sweeps:
            raise ArchiveError(f"sweep {sweep} is excluded: {exclusions.WHY}")
        kept = {spec: record for spec, record in found.records.items() if record not in hidden.records}
        return plan, replace(found, records=kept)

    def refuse_another(self, given: BundledSweep, origin: Origin) -> None:
        """Raises ArchiveError if a sweep of its id is here that is another, or lacks records of it that a file of this
        origin may not add.
        """
        with self._database.reading() as connection:
            sweeps.refuse_another(connection, given, origin)

    def add_sweep(self, plan: str, given: BundledSweep, origin: Origin) -> None:
        """Keep a sweep that was run elsewhere, all records of which are here, with the text of its plan.

        Twice is once. Raises ArchiveError as `refuse_another` does; then nothing is kept.
        """
        with self._database.writing() as connection:
            origins.come_from(connection, given.records.values(), origin)
            sweeps.take_in(connection, plan, given, origin)
        self._committed("sweep", [given.id])
        self._committed("delivery", [origin.name()])

    # Reading.

    def records(
        self,
        *,
        sweep: str | None = None,
        scenario: str | None = None,
        machine: str | None = None,
        digests: Sequence[str] | None = None,
    ) -> list[Record]:
        """Records that are in sight, in the order of the sweep's plan if one is given, else as they came in.

        `scenario` may hold wildcards (``checkpoint/*``), `machine` is the digest of a machine document.
        Raises ArchiveError if a digest is unknown, or a record does not match its own.
        """
        found = self.cells(sweep=sweep, scenario=scenario, machine=machine, digests=digests)
        with self._database.reading() as connection:
            texts = dict(_texts(connection, [one.digest for one in found]))
        return [_verified(one.digest, texts[one.digest]) for one in found]

    def cells(
        self,
        *,
        sweep: str | None = None,
        scenario: str | None = None,
        machine: str | None = None,
        home: str | None = None,
        outcome: str | None = None,
        digests: Sequence[str] | None = None,
        excluded: bool = False,
    ) -> list[Cell]:
        """The index rows of records, selected and ordered as in `records`, with `excluded` also of what nobody shall
        see.

        `home` is the identity of a machine: only what sweeps have that were run on it, here. What a record says of its
        machine anybody can have written, and no digest of a document is taken for an identity.
        """
        came = and_(ArrivalRow.kind == "record", ArrivalRow.name == Cell.digest)
        query = select(Cell).outerjoin(ArrivalRow, came).order_by(ArrivalRow.number, Cell.digest)
        if digests is not None and len(digests) <= _AT_ONCE:
            query = query.where(Cell.digest.in_(digests))
        if outcome is not None:
            query = query.where(Cell.outcome == outcome)
        if machine is not None:
            query = query.where(Cell.machine == machine)
        if home is not None:
            own = select(SweepRecordRow.record).join(SweepRow).where(SweepRow.machine == home, origins.run_here())
            query = query.where(Cell.digest.in_(own))
        if sweep is not None:
            query = query.join(SweepRecordRow, SweepRecordRow.record == Cell.digest)
            query = query.where(SweepRecordRow.sweep == sweep)
        with self._database.reading() as connection, Session(connection) as session:
            hidden = frozenset[str]() if excluded else exclusions.in_sight(connection).records
            found = list(session.scalars(query))
            session.expunge_all()
        found = [one for one in found if one.digest not in hidden]
        if sweep is not None:
            places = sweeps.places(self.sweep_plan(sweep))
            found.sort(key=lambda one: (places.get((one.question_digest, one.replay_digest), -1), one.attempt))
        if scenario is not None:
            found = [one for one in found if fnmatchcase(one.scenario, scenario)]
        return found if digests is None else _picked(found, set(digests) - hidden)

    def about(self, cases: Collection[str], without: Collection[str] = ()) -> list[Record]:
        """The records in sight of these cases, by their case digest, but for those of the digests `without`."""
        found = [one.digest for one in self.cells() if one.case_digest in cases and one.digest not in without]
        return self.records(digests=found) if found else []

    def sizes(self, digests: Sequence[str]) -> dict[str, int]:
        """Characters of the texts of records, by digest."""
        found: dict[str, int] = {}
        with self._database.reading() as connection:
            for start in range(0, len(digests), _AT_ONCE):
                some = RecordRow.digest.in_(digests[start : start + _AT_ONCE])
                rows = connection.execute(select(RecordRow.digest, func.length(RecordRow.text)).where(some))
                found.update({row[0]: row[1] for row in rows})
        return found

    def record_text(self, prefix: str) -> tuple[str, str]:
        """Digest and exact text of the record whose digest begins so.

        Raises ArchiveError if no record or more than one does.
        """
        if not prefix or not set(prefix) <= set("0123456789abcdef"):
            raise ArchiveError(f"{prefix!r} is not the beginning of a digest")
        query = select(RecordRow.digest, RecordRow.text).where(RecordRow.digest.startswith(prefix)).limit(4)
        with self._database.reading() as connection:
            found = connection.execute(query).all()
        if not found:
            raise ArchiveError(f"no record's digest begins with {prefix!r}; `python -m store list` shows them")
        if len(found) > 1:
            names = ", ".join(sorted(row.digest[: len(prefix) + 8] for row in found))
            raise ArchiveError(f"more than one record's digest begins with {prefix!r}: {names}; give more digits")
        return found[0].digest, found[0].text

    def document(self, name: str) -> str | None:
        """A text by its digest, or None. Raises ArchiveError if it does not match its digest."""
        with self._database.reading() as connection:
            text = connection.scalar(select(DocumentRow.text).where(DocumentRow.digest == name))
        if text is not None and digest(text) != name:
            raise ArchiveError(f"document {name} has the digest {digest(text)}: it is not what was stored")
        return text

    def fetch(self, name: str) -> bytes | None:
        """Blob or document by its digest, or None. Raises ArchiveError if it does not match its digest."""
        if not is_digest(name):
            return None
        content = self._blobs.read(name)
        if content is not None:
            return content
        text = self.document(name)
        return None if text is None else text.encode("utf-8")

    def has(self, name: str) -> bool:
        """Whether a blob or document of this digest is kept; `fetch` says whether it is right."""
        known = select(DocumentRow.digest).where(DocumentRow.digest == name)
        with self._database.reading() as connection:
            return (is_digest(name) and self._blobs.has(name)) or _has(connection, known)

    def origins(self, digests: Collection[str]) -> dict[str, Origin | None]:
        """Where each of these records came from: None if a sweep has it that was run here, else what it was added from
        first, with the others beside it.
        """
        with self._database.reading() as connection:
            own, added = origins.own_records(connection), origins.origins(connection)
        return {name: None if name in own else origins.first_of(added.get(name, [NOT_TOLD])) for name in digests}

    # What nobody shall see.

    def refuse_excluded(self, sweep: str) -> None:
        """Raises ArchiveError if there is no such sweep, or it or every record of it is excluded."""
        with self._database.reading() as connection:
            records = set(sweeps.bundled(connection, sweep)[1].records.values())
            hidden = exclusions.in_sight(connection)
        if sweep in hidden.sweeps:
            raise ArchiveError(f"sweep {sweep} is excluded: {exclusions.WHY}")
        if records and records <= hidden.records:
            raise ArchiveError(f"every record of sweep {sweep} is excluded: {exclusions.WHY}")

    def excluded(self) -> Excluded:
        """What is excluded now, and what that takes out of sight."""
        with self._database.reading() as connection:
            return exclusions.in_sight(connection)

    def exclusions(self) -> list[Exclusion]:
        """Every entry that excluded something or included it again, oldest first."""
        with self._database.reading() as connection:
            return exclusions.written(connection)

    def exclude(self, name: str, why: str, author: str, verb: str = EXCLUDE) -> Exclusion:
        """Take a record, a sweep, or all of a file or signer out of sight, or with `verb` include it again.

        `name` is as `exclusions.named` reads it. Raises ArchiveError if it is nothing here, or nothing would change.
        """
        with self._database.writing() as connection:
            kind, full = exclusions.named(connection, name)
            exclusions.write(connection, verb, kind, full, author, why)
            made = exclusions.written(connection)[-1]
        self._committed("exclusion", [made.digest()])
        self.settle()
        return made

    # Notes.

    def note(self, record: str, text: str, author: str) -> None:
        """Say something about a record, by its full digest. Raises ArchiveError if there is no such record."""
        with self._database.writing() as connection:
            if not _has(connection, select(RecordRow.digest).where(RecordRow.digest == record)):
                raise ArchiveError(f"there is no record {record}")
            row = {"record": record, "author": author, "text": text, "written_at": now()}
            connection.execute(insert(NoteRow).values(**row))
        self._committed("note", [note_digest(**row)])
        self.settle()

    def notes(self, record: str) -> list[NoteRow]:
        """What was said about a record, oldest first."""
        with self._database.reading() as connection, Session(connection) as session:
            found = list(session.scalars(select(NoteRow).where(NoteRow.record == record).order_by(NoteRow.id)))
            session.expunge_all()
        return found

    # Care.

    def check(self) -> list[Problem]:
        """Recompute every digest. Each problem names what does not match; bad content never raises."""
        return self.examine()[0]

    def examine(self) -> tuple[list[Problem], Counts]:
        """`check`, and how much there was to look at."""
        return check(self._database, self._blobs)

    def rebuild(self) -> None:
        """Make the index anew from the records. Raises ArchiveError, changing nothing, if one cannot be read."""
        with self._database.writing() as connection:
            connection.execute(delete(Cell))
            for row in connection.execute(select(RecordRow.digest, RecordRow.text)).all():
                connection.execute(insert(Cell).values(storable(cell(row.text, _verified(row.digest, row.text)))))


def _those_of(connection: Connection, column: InstrumentedAttribute[str], names: Sequence[str]) -> set[str]:
    """Those of the names that a column has."""
    parts = (names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE))
    return {name for some in parts for name in connection.scalars(select(column).where(column.in_(some)))}


def _has(connection: Connection, query: Select[Any]) -> bool:
    return connection.scalar(query) is not None


def _decoded(name: str, kind: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ArchiveError(f"{kind} {name} is not UTF-8 text") from None


def _document(name: str, kind: str, blobs: Contents) -> dict[str, str]:
    content = blobs(name)
    if content is None or digest(content) != name:
        raise ArchiveError(f"{kind} {name} of the record has changed since it was looked at")
    return {"digest": name, "kind": kind, "text": _decoded(name, kind, content)}


def _picked(found: list[Cell], chosen: set[str]) -> list[Cell]:
    kept = [one for one in found if one.digest in chosen]
    missing = chosen - {one.digest for one in kept}
    if missing:
        raise ArchiveError(f"there is no record {min(missing)} among those asked for")
    return kept


def _texts(connection: Connection, digests: Sequence[str]) -> Iterator[tuple[str, str]]:
    for start in range(0, len(digests), _AT_ONCE):
        some = RecordRow.digest.in_(digests[start : start + _AT_ONCE])
        for row in connection.execute(select(RecordRow.digest, RecordRow.text).where(some)):
            yield row.digest, row.text


def _verified(name: str, text: str) -> Record:
    if digest(text) != name:
        raise ArchiveError(f"record {name} has the digest {digest(text)}: it is not what was stored")
    return read_record(text)

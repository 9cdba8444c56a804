"""The archive: records and what they rest on, kept under their digests, added only.

    with Archive.open("sqlite:///outputs/archive.db", Path("outputs/blobs")) as archive:
        archive.add(folder)
        for record in archive.records(scenario="checkpoint/*"):
            ...

A record counts from the moment its transaction is committed; its blobs are on disk before that. Whatever
interrupts an add leaves at most blobs that no record names, and adding again completes it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import AbstractSet as Set
from typing import Any, Collection, Iterator, Mapping, Self, Sequence

from sqlalchemy import Connection, Select, delete, insert, or_, select
from sqlalchemy.orm import Session

from experiments.record import Record, Spec, digest
from store import sweeps
from store.blobs import Blobs, Contents, is_digest, loose
from store.cells import DOCUMENTS, OPTIONAL, cell, read_record, wanted
from store.checks import Counts, Problem, check
from store.database import Database, storable
from store.errors import ArchiveError
from store.models import Cell, DocumentRow, NoteRow, RecordRow, SweepOriginRow, SweepRecordRow, SweepRow
from store.sweeps import BundledSweep, Origin, Sweep, SweepProgress, now

__all__ = ["Archive", "ArchiveError", "BundledSweep", "Counts", "Origin", "Problem", "Sweep", "SweepProgress"]

_AT_ONCE = 500
"""Digests asked for in one statement; SQLite allows 32766 parameters, older ones 999."""


class Archive:
    """Records by digest. Safe to use from many processes and threads at once."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs
        self._places: dict[str, Mapping[tuple[str, str], int]] = {}

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

    def add(self, folder: Path, sweep: str | None = None) -> str:
        """Keep ``record.json`` of the folder and the contents under ``blobs/``, and give the record's digest.

        Twice is once. Raises ArchiveError if anything is missing or does not match; then nothing is kept.
        """
        try:
            text = (folder / "record.json").read_bytes().decode("utf-8")
        except OSError as error:
            raise ArchiveError(f"{folder / 'record.json'} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ArchiveError(f"{folder / 'record.json'} is not UTF-8 text") from None
        try:
            return self.add_text(text, loose(folder / "blobs"), sweep)
        except ArchiveError as error:
            raise ArchiveError(f"{folder}: {error}") from error.__cause__

    def add_text(self, text: str, blobs: Contents, sweep: str | None = None) -> str:
        """Keep a record whose contents `blobs` hands out; contents that are kept already need not be there.

        Raises ArchiveError as `add` does.
        """
        record = read_record(text)
        row = storable(cell(text, record))
        if sweep is not None:
            self._belongs(sweep, record.spec)
        documents = self._take_in(record, blobs)
        with self._database.writing() as connection:
            # Few statements: over a network each is a way there and back, and others wait meanwhile.
            known = set(connection.scalars(select(DocumentRow.digest).where(DocumentRow.digest.in_(documents))))
            fresh = [
                {"digest": name, "kind": kind, "text": content}
                for name, (kind, content) in documents.items()
                if name not in known
            ]
            if fresh:
                connection.execute(insert(DocumentRow), fresh)
            if not _has(connection, select(RecordRow.digest).where(RecordRow.digest == row["digest"])):
                connection.execute(insert(RecordRow).values(digest=row["digest"], text=text))
                connection.execute(insert(Cell).values(row))
            if sweep is not None:
                sweeps.link(connection, sweep, record.spec.digest(), row["digest"])
        return str(row["digest"])

    def _belongs(self, sweep: str, spec: Spec) -> None:
        if sweep not in self._places:
            self._places[sweep] = sweeps.places(self.sweep_plan(sweep))
        if sweeps.place_of(spec) not in self._places[sweep]:
            raise ArchiveError(f"the record's spec is not in the plan of sweep {sweep}; add it without the sweep")

    def _take_in(self, record: Record, blobs: Contents) -> dict[str, tuple[str, str]]:
        """Check all that the record rests on, then write its blobs. Gives its texts: digest -> kind, text."""
        documents: dict[str, tuple[str, str]] = {}
        binary: dict[str, bytes] = {}
        for name, kind in wanted(record).items():
            content = blobs(name)
            if content is None:
                if kind not in OPTIONAL and not self._keeps(name, kind):
                    raise ArchiveError(f"{kind} {name} of the record is missing")
            elif digest(content) != name:
                raise ArchiveError(f"{kind} {name} has the digest {digest(content)}: it is not what was recorded")
            elif kind in DOCUMENTS:
                documents[name] = (kind, _decoded(name, kind, content))
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

    def begin_sweep(self, plan: Sequence[Spec], machine: str, busy: Set[str] = frozenset()) -> Sweep:
        """Resume the latest unfinished sweep of this plan on this machine (a SHA-256) that was run here, or begin one.

        Those in `busy` are left to the living drivers that are at them.
        Raises ArchiveError if the plan is empty or holds a spec twice.
        """
        with self._database.writing() as connection:
            return sweeps.begin(connection, plan, machine, busy)

    def sweep(self, name: str) -> SweepProgress:
        """How a sweep stands. Raises ArchiveError if there is none of that id."""
        found = [one for one in self.sweeps() if one.id == name]
        if not found:
            self.sweep_plan(name)
        return found[0]

    def sweeps(self) -> list[SweepProgress]:
        """Every sweep, oldest first."""
        with self._database.reading() as connection:
            return sweeps.progress(connection)

    def sweep_plan(self, name: str) -> list[Spec]:
        """The specs of the sweep's plan, in order. Raises ArchiveError if there is no such sweep."""
        with self._database.reading() as connection:
            return sweeps.planned(connection, name)

    def bundled(self, sweep: str) -> tuple[str, BundledSweep]:
        """The exact text of a sweep's plan, and the sweep as a bundle has it. Raises ArchiveError if there is none."""
        with self._database.reading() as connection:
            return sweeps.bundled(connection, sweep)

    def refuse_another(self, given: BundledSweep) -> None:
        """Raises ArchiveError if a sweep of its id is here that is another, or was run here and lacks its records."""
        with self._database.reading() as connection:
            sweeps.refuse_another(connection, given)

    def add_sweep(self, plan: str, given: BundledSweep, origin: Origin) -> None:
        """Keep a sweep that was run elsewhere, all records of which are here, with the text of its plan.

        Twice is once. Raises ArchiveError as `refuse_another` does; then nothing is kept.
        """
        with self._database.writing() as connection:
            sweeps.take_in(connection, plan, given, origin)

    # Reading.

    def records(
        self,
        *,
        sweep: str | None = None,
        scenario: str | None = None,
        machine: str | None = None,
        digests: Sequence[str] | None = None,
    ) -> list[Record]:
        """Records, in the order of the sweep's plan if one is given, else by start.

        `scenario` may hold wildcards (``checkpoint/*``). `machine` is that of the record, or of its sweep if that was
        run here: what an added one says of its machine anybody can have written.
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
        outcome: str | None = None,
        digests: Sequence[str] | None = None,
    ) -> list[Cell]:
        """The index rows of records, selected and ordered as in `records`."""
        query = select(Cell).order_by(Cell.started_at, Cell.digest)
        if digests is not None and len(digests) <= _AT_ONCE:
            query = query.where(Cell.digest.in_(digests))
        if outcome is not None:
            query = query.where(Cell.outcome == outcome)
        if machine is not None:
            added = select(SweepOriginRow.sweep).where(SweepOriginRow.sweep == SweepRow.id).exists()
            theirs = select(SweepRecordRow.record).join(SweepRow).where(SweepRow.machine == machine, ~added)
            query = query.where(or_(Cell.machine == machine, Cell.digest.in_(theirs)))
        if sweep is not None:
            query = query.join(SweepRecordRow, SweepRecordRow.record == Cell.digest)
            query = query.where(SweepRecordRow.sweep == sweep)
        with self._database.reading() as connection, Session(connection) as session:
            found = list(session.scalars(query))
            session.expunge_all()
        if sweep is not None:
            places = sweeps.places(self.sweep_plan(sweep))
            found.sort(key=lambda one: (places.get((one.question_digest, one.replay_digest), -1), one.attempt))
        if scenario is not None:
            found = [one for one in found if fnmatchcase(one.scenario, scenario)]
        return found if digests is None else _picked(found, digests)

    def about(self, cases: Collection[str], without: Collection[str] = ()) -> list[Record]:
        """All records of these cases, by their case digest, but for those of the digests `without`."""
        found = [one.digest for one in self.cells() if one.case_digest in cases and one.digest not in without]
        return self.records(digests=found) if found else []

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

    # Notes.

    def note(self, record: str, text: str, author: str) -> None:
        """Say something about a record, by its full digest. Raises ArchiveError if there is no such record."""
        with self._database.writing() as connection:
            if not _has(connection, select(RecordRow.digest).where(RecordRow.digest == record)):
                raise ArchiveError(f"there is no record {record}")
            connection.execute(insert(NoteRow).values(record=record, author=author, text=text, written_at=now()))

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


def _has(connection: Connection, query: Select[Any]) -> bool:
    return connection.scalar(query) is not None


def _decoded(name: str, kind: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ArchiveError(f"{kind} {name} is not UTF-8 text") from None


def _picked(found: list[Cell], digests: Sequence[str]) -> list[Cell]:
    chosen = set(digests)
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

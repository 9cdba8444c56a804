"""The archive: an append-only store of records and the contents that they refer to, under their digests.

    with Archive.open("sqlite:///outputs/archive.db", Path("outputs/blobs")) as archive:
        archive.add(folder)
        for record in archive.records(scenario="checkpoint/*"):
            ...

A record counts once its transaction is committed; its blobs are on disk before that. An interrupted add leaves at most
blobs that no record names, and adding again completes it.
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
from store.blobs import Blobs, Contents, folder_contents, is_digest
from store.database import Database, storable_values
from store.errors import ArchiveError
from store.exclusions import EXCLUDE, Excluded, Exclusion
from store.index import DOCUMENTS, OPTIONAL, cell_values, read_record, referenced_contents, refuse_invalid_times
from store.integrity import Counts, Problem, check_archive
from store.ledger import Ledger, note_digest
from store.models import ArrivalRow, Cell, DocumentRow, NoteRow, RecordRow, SweepRecordRow, SweepRow
from store.origins import UNKNOWN_ORIGIN, Origin
from store.regular import read_regular
from store.sweeps import BundledSweep, Sweep, SweepProgress, current_time

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
"""Most bytes of a record.json: more than any process leaves, of which 16 MiB are read."""
_AT_ONCE = 500
"""Most digests in one statement; SQLite allows 32766 parameters, older versions 999."""


@dataclass(frozen=True)
class _PreparedRecord:
    """A record that has been checked and whose blobs are on disk, ready to be inserted."""

    name: str
    """Digest of the record."""
    row: dict[str, Any]
    """Row of the index."""
    spec: str
    documents: dict[str, str]
    """Digest -> kind of the texts that came with it."""


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
        """Open the archive at a database URL with its folder of blobs, migrated to the newest revision.

        Raises ArchiveError if it is not an archive, is newer than this code, or cannot be reached; with
        `create` false also if there is none yet.
        """
        return cls(Database(url, create=create), Blobs(blobs))

    @property
    def name(self) -> str:
        """The URL without its password, to be shown."""
        return self._database.name

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Adding.

    def add(self, folder: Path, sweep: str | None = None, origin: Origin | None = None) -> str:
        """Add ``record.json`` of the folder and the contents under ``blobs/``. Returns the record's digest. Idempotent.

        Raises ArchiveError if anything is missing or does not match; then nothing is added.
        """
        try:
            # A byte order mark is from an editor, and not part of the hashed text.
            text = read_regular(folder / "record.json", LARGEST_RECORD, "so it is no record").decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ArchiveError(f"{folder / 'record.json'} is not UTF-8 text") from None
        try:
            return self.add_text(text, folder_contents(folder / "blobs"), sweep, origin)
        except ArchiveError as error:
            raise ArchiveError(f"{folder}: {error}") from error.__cause__

    def add_text(self, text: str, blobs: Contents, sweep: str | None = None, origin: Origin | None = None) -> str:
        """Add a record whose contents `blobs` returns; it may lack contents that the archive already has.

        The record is ours if `sweep` was run here; `origin` says where any other came from. Returns its digest. Raises
        ArchiveError as `add` does.
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
        """Add all of these records and then the sweeps `swept`, each with the text of its plan, or none of them.

        `texts` is called twice, so that the texts need not all be in memory. Returns the digests of the records.
        Raises ArchiveError as `add` does, and if the archive has a different sweep with the id of one of them.
        """
        taken = []
        for text in texts():
            record = read_record(text)
            row = storable_values(cell_values(text, record))
            refuse_invalid_times(record)
            if sweep is not None:
                self._refuse_unplanned(sweep, record.spec)
            taken.append(
                _PreparedRecord(str(row["digest"]), row, record.spec.digest(), self._store_contents(record, blobs))
            )
        names = [one.name for one in taken]
        with self._database.write_transaction() as connection:
            if sweep is not None and origin is not None:
                sweeps.extend_sweep(connection, sweep, origin)
            # Use few statements: over a network each is a round trip, and other writers wait meanwhile.
            known = _existing_names(connection, RecordRow.digest, names)
            documents = {name for one in taken for name in one.documents}
            kept = _existing_names(connection, DocumentRow.digest, sorted(documents))
            for one, text in zip(taken, texts(), strict=True):
                fresh = {name: kind for name, kind in one.documents.items() if name not in kept}
                if fresh:
                    connection.execute(insert(DocumentRow), [_document_row(name, fresh[name], blobs) for name in fresh])
                    kept |= fresh.keys()
                if one.name not in known:
                    connection.execute(insert(RecordRow).values(digest=one.name, text=text))
                    connection.execute(insert(Cell).values(one.row))
                if sweep is not None:
                    sweeps.link_record(connection, sweep, one.spec, one.name)
            origins.add_arrivals(connection, "record", [name for name in names if name not in known])
            if origin is not None:
                origins.add_origins(connection, names, origin)
            for plan, given in swept:
                sweeps.add_bundled_sweep(connection, plan, given, origin or UNKNOWN_ORIGIN)
        self._note_commits("record", [name for name in names if name not in known])
        self._note_commits("delivery", [origin.name()] if origin is not None else [])
        self._note_commits("sweep", [given.id for _, given in swept])
        return names

    def _note_commits(self, kind: str, names: Sequence[str]) -> None:
        if self._ledger is not None:
            self._ledger.add_commits(kind, names)

    def flush_log(self) -> bool:
        """Move all commits from the database's log into its file, where damage to the log cannot lose them.

        Returns whether that succeeded: it fails while another process reads an older state for long. Until it has
        succeeded, keep everything from which the records can be added again.
        """
        return self._database.flush_log()

    def _refuse_unplanned(self, sweep: str, spec: Spec) -> None:
        if sweep not in self._places:
            self._places[sweep] = sweeps.plan_places(self.sweep_plan(sweep))
        if sweeps.spec_place(spec) not in self._places[sweep]:
            raise ArchiveError(f"the record's spec is not in the plan of sweep {sweep}; add it without the sweep")

    def _store_contents(self, record: Record, blobs: Contents) -> dict[str, str]:
        """Check all contents of a record, then write its blobs. Returns digest -> kind of the texts among them."""
        documents: dict[str, str] = {}
        binary: dict[str, bytes] = {}
        for name, kind in referenced_contents(record).items():
            content = blobs(name)
            if content is None:
                if kind not in OPTIONAL and not self._is_stored(name, kind):
                    raise ArchiveError(f"{kind} {name} of the record is missing")
            elif digest(content) != name:
                raise ArchiveError(f"{kind} {name} has the digest {digest(content)}: it is not what was recorded")
            elif kind in DOCUMENTS:
                _decode_text(name, kind, content)
                documents[name] = kind
            else:
                binary[name] = content
        for name, content in binary.items():
            self._blobs.write(name, content)
        return documents

    def _is_stored(self, name: str, kind: str) -> bool:
        if kind in DOCUMENTS:
            return self.document(name) is not None
        return self._blobs.has_content(name)

    # Sweeps.

    def begin_sweep(
        self,
        plan: Sequence[Spec],
        machine: str,
        busy: Set[str] = frozenset(),
        unreported: Set[str] = frozenset(),
    ) -> Sweep:
        """Resume the latest unfinished sweep of this plan on this machine (a SHA-256) that was run here, or begin one.

        Sweeps in `busy` have a living driver and are skipped; those in `unreported` are unfinished even if they have
        all their records. Raises ArchiveError if the plan is empty or holds a spec twice.
        """
        with self._database.write_transaction() as connection:
            sweep = sweeps.begin_sweep(connection, plan, machine, busy, unreported)
        if not sweep.resumed:
            self._note_commits("sweep", [sweep.id])
        return sweep

    def sweep(self, name: str) -> SweepProgress:
        """Return the progress of a sweep. Raises ArchiveError if there is none of that id."""
        found = [one for one in self.sweeps(excluded=True) if one.id == name]
        if not found:
            self.sweep_plan(name)
        return found[0]

    def sweeps(self, *, excluded: bool = False) -> list[SweepProgress]:
        """Return the progress of every sweep, in the order of arrival; with `excluded` also of excluded ones."""
        with self._database.read_transaction() as connection:
            hidden = Excluded() if excluded else exclusions.excluded_items(connection)
            return sweeps.sweep_progress(connection, hidden.sweeps, hidden.records)

    def sweep_plan(self, name: str) -> list[Spec]:
        """Return the specs of the sweep's plan, in order. Raises ArchiveError if there is no such sweep."""
        with self._database.read_transaction() as connection:
            return sweeps.planned_specs(connection, name, self._plans)

    def bundled_sweep(self, sweep: str) -> tuple[str, BundledSweep]:
        """Return the exact text of a sweep's plan, and the sweep as a bundle stores it, without its hidden records.

        Raises ArchiveError if there is no such sweep, or it is excluded.
        """
        with self._database.read_transaction() as connection:
            plan, found = sweeps.bundled_sweep(connection, sweep)
            hidden = exclusions.excluded_items(connection)
        if sweep in hidden.sweeps:
            raise ArchiveError(f"sweep {sweep} is excluded: {exclusions.WHY}")
        kept = {spec: record for spec, record in found.records.items() if record not in hidden.records}
        return plan, replace(found, records=kept)

    def refuse_conflicting_sweep(self, given: BundledSweep, origin: Origin) -> None:
        """Raise ArchiveError if the archive has a different sweep of this id, or one to which a file of this origin may
        not add the missing records.
        """
        with self._database.read_transaction() as connection:
            sweeps.refuse_conflicting_sweep(connection, given, origin)

    def add_sweep(self, plan: str, given: BundledSweep, origin: Origin) -> None:
        """Add a sweep that was run elsewhere, all of whose records are already here, with the text of its plan.

        Idempotent. Raises ArchiveError as `refuse_conflicting_sweep` does; then nothing is added.
        """
        with self._database.write_transaction() as connection:
            origins.add_origins(connection, given.records.values(), origin)
            sweeps.add_bundled_sweep(connection, plan, given, origin)
        self._note_commits("sweep", [given.id])
        self._note_commits("delivery", [origin.name()])

    # Reading.

    def records(
        self,
        *,
        sweep: str | None = None,
        scenario: str | None = None,
        machine: str | None = None,
        digests: Sequence[str] | None = None,
    ) -> list[Record]:
        """Return the records that are not hidden, in the order of the sweep's plan if one is given, else of arrival.

        `scenario` may hold wildcards (``checkpoint/*``), `machine` is the digest of a machine document.
        Raises ArchiveError if a digest is unknown, or a record does not match its own.
        """
        found = self.cells(sweep=sweep, scenario=scenario, machine=machine, digests=digests)
        with self._database.read_transaction() as connection:
            texts = dict(_record_texts(connection, [one.digest for one in found]))
        return [_verify_record(one.digest, texts[one.digest]) for one in found]

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
        """Return the index rows of records, selected and ordered as in `records`, with `excluded` also of hidden ones.

        `home` is the identity of a machine, and selects the records of sweeps that were run here on that machine. What
        a record states about its machine could have been written by anyone, so the digest of a machine document is
        never treated as an identity.
        """
        arrival = and_(ArrivalRow.kind == "record", ArrivalRow.name == Cell.digest)
        query = select(Cell).outerjoin(ArrivalRow, arrival).order_by(ArrivalRow.number, Cell.digest)
        if digests is not None and len(digests) <= _AT_ONCE:
            query = query.where(Cell.digest.in_(digests))
        if outcome is not None:
            query = query.where(Cell.outcome == outcome)
        if machine is not None:
            query = query.where(Cell.machine == machine)
        if home is not None:
            own = select(SweepRecordRow.record).join(SweepRow).where(SweepRow.machine == home, origins.is_run_here())
            query = query.where(Cell.digest.in_(own))
        if sweep is not None:
            query = query.join(SweepRecordRow, SweepRecordRow.record == Cell.digest)
            query = query.where(SweepRecordRow.sweep == sweep)
        with self._database.read_transaction() as connection, Session(connection) as session:
            hidden = frozenset[str]() if excluded else exclusions.excluded_items(connection).records
            found = list(session.scalars(query))
            session.expunge_all()
        found = [one for one in found if one.digest not in hidden]
        if sweep is not None:
            places = sweeps.plan_places(self.sweep_plan(sweep))
            found.sort(key=lambda one: (places.get((one.question_digest, one.replay_digest), -1), one.attempt))
        if scenario is not None:
            found = [one for one in found if fnmatchcase(one.scenario, scenario)]
        return found if digests is None else _select_cells(found, set(digests) - hidden)

    def records_of_cases(self, cases: Collection[str], without: Collection[str] = ()) -> list[Record]:
        """Return the records of these case digests that are not hidden, except those of the digests `without`."""
        found = [one.digest for one in self.cells() if one.case_digest in cases and one.digest not in without]
        return self.records(digests=found) if found else []

    def sizes(self, digests: Sequence[str]) -> dict[str, int]:
        """Return digest -> number of characters of the record's text."""
        found: dict[str, int] = {}
        with self._database.read_transaction() as connection:
            for start in range(0, len(digests), _AT_ONCE):
                in_batch = RecordRow.digest.in_(digests[start : start + _AT_ONCE])
                rows = connection.execute(select(RecordRow.digest, func.length(RecordRow.text)).where(in_batch))
                found.update({row[0]: row[1] for row in rows})
        return found

    def record_text(self, prefix: str) -> tuple[str, str]:
        """Return digest and exact text of the record whose digest begins with `prefix`.

        Raises ArchiveError unless exactly one record matches.
        """
        if not prefix or not set(prefix) <= set("0123456789abcdef"):
            raise ArchiveError(f"{prefix!r} is not the beginning of a digest")
        query = select(RecordRow.digest, RecordRow.text).where(RecordRow.digest.startswith(prefix)).limit(4)
        with self._database.read_transaction() as connection:
            found = connection.execute(query).all()
        if not found:
            raise ArchiveError(f"no record's digest begins with {prefix!r}; `python -m store list` shows them")
        if len(found) > 1:
            names = ", ".join(sorted(row.digest[: len(prefix) + 8] for row in found))
            raise ArchiveError(f"more than one record's digest begins with {prefix!r}: {names}; give more digits")
        return found[0].digest, found[0].text

    def document(self, name: str) -> str | None:
        """Return a document by its digest, or None. Raises ArchiveError if it does not match its digest."""
        with self._database.read_transaction() as connection:
            text = connection.scalar(select(DocumentRow.text).where(DocumentRow.digest == name))
        if text is not None and digest(text) != name:
            raise ArchiveError(f"document {name} has the digest {digest(text)}: it is not what was stored")
        return text

    def fetch(self, name: str) -> bytes | None:
        """Return a blob or document by its digest, or None. Raises ArchiveError if it does not match its digest."""
        if not is_digest(name):
            return None
        content = self._blobs.read(name)
        if content is not None:
            return content
        text = self.document(name)
        return None if text is None else text.encode("utf-8")

    def has_content(self, name: str) -> bool:
        """Return whether the archive has a blob or document of this digest; only `fetch` verifies it."""
        known = select(DocumentRow.digest).where(DocumentRow.digest == name)
        with self._database.read_transaction() as connection:
            return (is_digest(name) and self._blobs.has_content(name)) or _has_row(connection, known)

    def origins(self, digests: Collection[str]) -> dict[str, Origin | None]:
        """Return the origin of each of these records, by digest.

        It is None if a sweep that was run here has the record, else the first origin, with the others in `also`.
        """
        with self._database.read_transaction() as connection:
            own, added = origins.own_records(connection), origins.origins(connection)
        return {
            name: None if name in own else origins.first_origin(added.get(name, [UNKNOWN_ORIGIN])) for name in digests
        }

    # Exclusions.

    def refuse_excluded(self, sweep: str) -> None:
        """Raise ArchiveError if there is no such sweep, or the sweep or every record of it is excluded."""
        with self._database.read_transaction() as connection:
            records = set(sweeps.bundled_sweep(connection, sweep)[1].records.values())
            hidden = exclusions.excluded_items(connection)
        if sweep in hidden.sweeps:
            raise ArchiveError(f"sweep {sweep} is excluded: {exclusions.WHY}")
        if records and records <= hidden.records:
            raise ArchiveError(f"every record of sweep {sweep} is excluded: {exclusions.WHY}")

    def excluded_items(self) -> Excluded:
        """Return what is excluded now, and what is hidden as a result."""
        with self._database.read_transaction() as connection:
            return exclusions.excluded_items(connection)

    def exclusions(self) -> list[Exclusion]:
        """Return every entry that excluded an item or included it again, oldest first."""
        with self._database.read_transaction() as connection:
            return exclusions.read_entries(connection)

    def exclude(self, name: str, why: str, author: str, verb: str = EXCLUDE) -> Exclusion:
        """Exclude a record, a sweep, or everything of a file or signer, or with `verb` include it again.

        `name` is resolved by `exclusions.resolve_name`. Returns the entry. Raises ArchiveError unless `name` names
        exactly one item, or if nothing would change.
        """
        with self._database.write_transaction() as connection:
            kind, full = exclusions.resolve_name(connection, name)
            exclusions.write_entry(connection, verb, kind, full, author, why)
            entry = exclusions.read_entries(connection)[-1]
        self._note_commits("exclusion", [entry.digest()])
        self.flush_log()
        return entry

    # Notes.

    def add_note(self, record: str, text: str, author: str) -> None:
        """Add a note to a record, by its full digest. Raises ArchiveError if there is no such record."""
        with self._database.write_transaction() as connection:
            if not _has_row(connection, select(RecordRow.digest).where(RecordRow.digest == record)):
                raise ArchiveError(f"there is no record {record}")
            row = {"record": record, "author": author, "text": text, "written_at": current_time()}
            connection.execute(insert(NoteRow).values(**row))
        self._note_commits("note", [note_digest(**row)])
        self.flush_log()

    def notes(self, record: str) -> list[NoteRow]:
        """Return the notes on a record, oldest first."""
        with self._database.read_transaction() as connection, Session(connection) as session:
            found = list(session.scalars(select(NoteRow).where(NoteRow.record == record).order_by(NoteRow.id)))
            session.expunge_all()
        return found

    # Maintenance.

    def check(self) -> list[Problem]:
        """Recompute every digest. Returns one problem for each mismatch; bad content never raises."""
        return self.examine()[0]

    def examine(self) -> tuple[list[Problem], Counts]:
        """Return the problems that `check` finds, and how much was examined."""
        return check_archive(self._database, self._blobs)

    def rebuild(self) -> None:
        """Recreate the index from the records. Raises ArchiveError, changing nothing, if a record cannot be read."""
        with self._database.write_transaction() as connection:
            connection.execute(delete(Cell))
            for row in connection.execute(select(RecordRow.digest, RecordRow.text)).all():
                connection.execute(
                    insert(Cell).values(storable_values(cell_values(row.text, _verify_record(row.digest, row.text))))
                )


def _existing_names(connection: Connection, column: InstrumentedAttribute[str], names: Sequence[str]) -> set[str]:
    """Return those of the names that a column has."""
    batches = (names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE))
    return {name for batch in batches for name in connection.scalars(select(column).where(column.in_(batch)))}


def _has_row(connection: Connection, query: Select[Any]) -> bool:
    return connection.scalar(query) is not None


def _decode_text(name: str, kind: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ArchiveError(f"{kind} {name} is not UTF-8 text") from None


def _document_row(name: str, kind: str, blobs: Contents) -> dict[str, str]:
    content = blobs(name)
    if content is None or digest(content) != name:
        raise ArchiveError(f"{kind} {name} of the record has changed since it was looked at")
    return {"digest": name, "kind": kind, "text": _decode_text(name, kind, content)}


def _select_cells(found: list[Cell], chosen: set[str]) -> list[Cell]:
    kept = [one for one in found if one.digest in chosen]
    missing = chosen - {one.digest for one in kept}
    if missing:
        raise ArchiveError(f"there is no record {min(missing)} among those asked for")
    return kept


def _record_texts(connection: Connection, digests: Sequence[str]) -> Iterator[tuple[str, str]]:
    for start in range(0, len(digests), _AT_ONCE):
        in_batch = RecordRow.digest.in_(digests[start : start + _AT_ONCE])
        for row in connection.execute(select(RecordRow.digest, RecordRow.text).where(in_batch)):
            yield row.digest, row.text


def _verify_record(name: str, text: str) -> Record:
    if digest(text) != name:
        raise ArchiveError(f"record {name} has the digest {digest(text)}: it is not what was stored")
    return read_record(text)

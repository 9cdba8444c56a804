"""Exclude records from view: single ones, and those of a sweep, a file or a signer.

Nothing is removed. An entry states who excluded what and why, and a later entry may include it again; the last entry
for an item counts. A record is hidden if it is excluded itself, or if every way by which it arrived is: the sweeps run
here that have it, and the files that it was added from.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from experiments.core.canonical_json import canonical, digest
from store.errors import ArchiveError
from store.models import DeliveryRow, ExclusionRow, RecordOriginRow, RecordRow, SweepFileRow, SweepRecordRow, SweepRow
from store.origins import deliveries, quote_file_name
from store.sweeps import current_time

KINDS = ("record", "sweep", "file", "signer")
EXCLUDE, INCLUDE = "exclude", "include"
WHY = "`python -m store exclude` says why, include takes it back"
"""What a user can do about an excluded item."""

_FEW = 3
"""Most names of one file that are shown."""


@dataclass(frozen=True)
class Exclusion:
    """One entry of the list of exclusions."""

    verb: str
    """``exclude``, or ``include``, which takes it back."""
    kind: str
    """Kind of the item: ``record``, ``sweep``, ``file`` or ``signer``."""
    name: str
    """Digest of the record or of the file's manifest, id of the sweep or of the signer's key."""
    author: str
    why: str
    written_at: str
    called: tuple[str, ...] = ()
    """Names under which a file arrived. The author did not write them, so they are not part of the entry."""

    def digest(self) -> str:
        """Return the SHA-256 of the entry: of every field except `called`."""
        return digest(canonical({name: said for name, said in vars(self).items() if name != "called"}))

    def __str__(self) -> str:
        done = "excluded" if self.verb == EXCLUDE else "included again"
        more = f" and {len(self.called) - _FEW} more names" if len(self.called) > _FEW else ""
        called = f" ({', '.join(map(quote_file_name, self.called[:_FEW]))}{more})" if self.called else ""
        return f"{self.kind} {self.name}{called}: {done} by {self.author} at {self.written_at[:19]}Z: {self.why}"


@dataclass(frozen=True)
class Excluded:
    """What is excluded now, and what is hidden as a result."""

    entries: tuple[Exclusion, ...] = ()
    """Exclusions in force, oldest first."""
    records: frozenset[str] = frozenset()
    """Digests of the hidden records of the archive."""
    sweeps: frozenset[str] = frozenset()
    """Ids of the hidden sweeps."""

    def names_of_kind(self, kind: str) -> frozenset[str]:
        """Return the names of the excluded items of a kind."""
        return frozenset(one.name for one in self.entries if one.kind == kind)


def write_entry(connection: Connection, verb: str, kind: str, name: str, author: str, why: str) -> None:
    """Add an entry. Needs the write lock. Raises ArchiveError if it would change nothing."""
    there = name in excluded_items(connection).names_of_kind(kind)
    if there == (verb == EXCLUDE):
        raise ArchiveError(f"{kind} {name} is {'excluded already' if there else 'not excluded'}: nothing was changed")
    number = (connection.scalar(select(func.max(ExclusionRow.number))) or 0) + 1
    row = {"number": number, "verb": verb, "kind": kind, "name": name, "author": author, "why": why}
    connection.execute(insert(ExclusionRow).values(**row, written_at=current_time()))


def read_entries(connection: Connection) -> list[Exclusion]:
    """Return every entry, oldest first."""
    rows = connection.execute(select(ExclusionRow.__table__).order_by(ExclusionRow.number)).all()
    came = deliveries(connection) if any(row.kind == "file" for row in rows) else {}
    return [
        Exclusion(
            *(row.verb, row.kind, row.name, row.author, row.why, row.written_at),
            called=tuple(dict.fromkeys(one.file for one in came.get(row.name, ()) if one.file and row.kind == "file")),
        )
        for row in rows
    ]


def excluded_items(connection: Connection) -> Excluded:
    """Return what is excluded now, and what is hidden as a result."""
    last = {(one.kind, one.name): one for one in read_entries(connection)}
    entries = tuple(one for one in last.values() if one.verb == EXCLUDE)
    if not entries:
        return Excluded()
    excluded = Excluded(entries)
    files = excluded.names_of_kind("file") | _manifests_of_signers(connection, excluded.names_of_kind("signer"))
    hidden = _hidden_sweeps(connection, excluded.names_of_kind("sweep"), files)
    return Excluded(
        entries,
        frozenset(excluded.names_of_kind("record") | _hidden_records(connection, hidden, files)),
        frozenset(hidden),
    )


def _manifests_of_signers(connection: Connection, signers: frozenset[str]) -> set[str]:
    """Return the manifests that only these signers have brought."""
    came = deliveries(connection) if signers else {}
    return {manifest for manifest, ways in came.items() if all(one.signer in signers for one in ways)}


def _hidden_sweeps(connection: Connection, named: frozenset[str], files: frozenset[str] | set[str]) -> set[str]:
    """Return the sweeps in `named`, and those that only these files have brought."""
    return {*named, *(sweep for sweep, brought in _manifests_by_sweep(connection).items() if brought <= files)}


def _manifests_by_sweep(connection: Connection) -> dict[str, set[str]]:
    """Return added sweep -> the manifests that have it."""
    found: dict[str, set[str]] = {}
    for sweep, manifest in connection.execute(select(SweepFileRow.sweep, SweepFileRow.manifest)):
        found.setdefault(sweep, set()).add(manifest)
    return found


def _hidden_records(connection: Connection, sweeps: set[str], files: frozenset[str] | set[str]) -> set[str]:
    """Return the records that arrived by at least one excluded way, and by no other."""
    brought = _manifests_by_sweep(connection)
    hidden, seen, out_with_a_sweep = set[str](), set[str](), set[tuple[str, str]]()
    for record, sweep in connection.execute(select(SweepRecordRow.record, SweepRecordRow.sweep)):
        if sweep in sweeps:
            hidden.add(record)
            out_with_a_sweep |= {(record, manifest) for manifest in brought.get(sweep, ())}
        elif sweep not in brought:
            seen.add(record)  # run here
    for record, manifest in connection.execute(select(RecordOriginRow.record, RecordOriginRow.manifest)):
        out = manifest in files or (record, manifest) in out_with_a_sweep
        (hidden if out else seen).add(record)
    return hidden - seen


def resolve_name(connection: Connection, text: str) -> tuple[str, str]:
    """Return kind and full name of the item that a user names.

    `text` is ``record:DIGEST``, ``sweep:ID``, ``file:NAME`` (or the digest of its manifest) or ``signer:KEY``; the kind
    may be omitted if only one item matches. Digests may be abbreviated. Raises ArchiveError unless exactly one matches.
    """
    kind, colon, name = text.partition(":")
    kinds = (kind,) if colon and kind in KINDS else KINDS
    name = name if colon and kind in KINDS else text
    matches = [(one, full) for one in kinds for full in _matching_names(connection, one, name)]
    if not matches:
        raise ArchiveError(
            f"{text!r} is no record, sweep, file or signer that is here; `python -m store list` shows them"
        )
    if len(matches) > 1:
        several = ", ".join(f"{one}:{full[:20]}" for one, full in matches[:4])
        raise ArchiveError(f"{text!r} may be {several}{', ...' if matches[4:] else ''}: say which")
    return matches[0]


def _matching_names(connection: Connection, kind: str, name: str) -> list[str]:
    """Return the full names of the items of a kind that a name or the beginning of a digest matches, at most 6."""
    if not name:
        return []
    row = DeliveryRow
    column = {"record": RecordRow.digest, "sweep": SweepRow.id, "file": row.manifest, "signer": row.signer}[kind]
    called = column == name if kind == "sweep" else column.startswith(name, autoescape=True)
    if kind == "file":
        called |= row.file == name
    return [str(full) for full in connection.scalars(select(column).where(called).distinct().order_by(column).limit(6))]

"""What nobody shall see: records, and what came in a sweep, from a file or from a signer.

Nothing is removed. An entry says who excluded what and why, and a later one may include it again; of one thing the
last entry counts. A record is out of sight if it is excluded itself, or every way by which it came in is: the sweeps
that have it which were run here, and the files that it was added from.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from experiments.core.canonical_json import canonical, digest
from store.errors import ArchiveError
from store.models import DeliveryRow, ExclusionRow, RecordOriginRow, RecordRow, SweepFileRow, SweepRecordRow, SweepRow
from store.origins import deliveries, quoted
from store.sweeps import now

KINDS = ("record", "sweep", "file", "signer")
EXCLUDE, INCLUDE = "exclude", "include"
WHY = "`python -m store exclude` says why, include takes it back"
"""What can be done about something that is excluded."""

_FEW = 3
"""Names of one file that are shown."""


@dataclass(frozen=True)
class Exclusion:
    """An entry."""

    verb: str
    """``exclude``, or ``include``, which takes it back."""
    kind: str
    """What it is of: ``record``, ``sweep``, ``file`` or ``signer``."""
    name: str
    """Digest of the record or of the file's manifest, id of the sweep or of the signer's key."""
    author: str
    why: str
    written_at: str
    called: tuple[str, ...] = ()
    """Names under which a file came in. Nobody has written them here, so they are no part of the entry."""

    def digest(self) -> str:
        """Of all that it says."""
        return digest(canonical({name: said for name, said in vars(self).items() if name != "called"}))

    def __str__(self) -> str:
        done = "excluded" if self.verb == EXCLUDE else "included again"
        more = f" and {len(self.called) - _FEW} more names" if len(self.called) > _FEW else ""
        called = f" ({', '.join(map(quoted, self.called[:_FEW]))}{more})" if self.called else ""
        return f"{self.kind} {self.name}{called}: {done} by {self.author} at {self.written_at[:19]}Z: {self.why}"


@dataclass(frozen=True)
class Excluded:
    """What is out of sight now."""

    entries: tuple[Exclusion, ...] = ()
    """Those in force, in the order in which they were written."""
    records: frozenset[str] = frozenset()
    """Digests of the records in the archive that are out of sight."""
    sweeps: frozenset[str] = frozenset()
    """Ids likewise."""

    def of(self, kind: str) -> frozenset[str]:
        """Names of what is excluded of a kind."""
        return frozenset(one.name for one in self.entries if one.kind == kind)


def write(connection: Connection, verb: str, kind: str, name: str, author: str, why: str) -> None:
    """Wants the write lock. Raises ArchiveError if there is nothing to be changed."""
    there = name in in_sight(connection).of(kind)
    if there == (verb == EXCLUDE):
        raise ArchiveError(f"{kind} {name} is {'excluded already' if there else 'not excluded'}: nothing was changed")
    number = (connection.scalar(select(func.max(ExclusionRow.number))) or 0) + 1
    row = {"number": number, "verb": verb, "kind": kind, "name": name, "author": author, "why": why}
    connection.execute(insert(ExclusionRow).values(**row, written_at=now()))


def written(connection: Connection) -> list[Exclusion]:
    """Every entry, oldest first."""
    rows = connection.execute(select(ExclusionRow.__table__).order_by(ExclusionRow.number)).all()
    came = deliveries(connection) if any(row.kind == "file" for row in rows) else {}
    return [
        Exclusion(
            *(row.verb, row.kind, row.name, row.author, row.why, row.written_at),
            called=tuple(dict.fromkeys(one.file for one in came.get(row.name, ()) if one.file and row.kind == "file")),
        )
        for row in rows
    ]


def in_sight(connection: Connection) -> Excluded:
    """What is excluded now, and what that takes out of sight."""
    last = {(one.kind, one.name): one for one in written(connection)}
    entries = tuple(one for one in last.values() if one.verb == EXCLUDE)
    if not entries:
        return Excluded()
    told = Excluded(entries)
    files = told.of("file") | _signed_by(connection, told.of("signer"))
    hidden = _sweeps(connection, told.of("sweep"), files)
    return Excluded(entries, frozenset(told.of("record") | _records(connection, hidden, files)), frozenset(hidden))


def _signed_by(connection: Connection, signers: frozenset[str]) -> set[str]:
    """Manifests that nobody else has brought than these."""
    came = deliveries(connection) if signers else {}
    return {manifest for manifest, ways in came.items() if all(one.signer in signers for one in ways)}


def _sweeps(connection: Connection, named: frozenset[str], files: frozenset[str] | set[str]) -> set[str]:
    """Those that are named, and those which nothing else has brought than these files."""
    return {*named, *(sweep for sweep, brought in _brought(connection).items() if brought <= files)}


def _brought(connection: Connection) -> dict[str, set[str]]:
    """Manifests that have each sweep which was added."""
    found: dict[str, set[str]] = {}
    for sweep, manifest in connection.execute(select(SweepFileRow.sweep, SweepFileRow.manifest)):
        found.setdefault(sweep, set()).add(manifest)
    return found


def _records(connection: Connection, sweeps: set[str], files: frozenset[str] | set[str]) -> set[str]:
    """Those of which every way in is excluded, of those that have one which is."""
    brought = _brought(connection)
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


def named(connection: Connection, text: str) -> tuple[str, str]:
    """Kind and name of what somebody means: ``record:DIGEST``, ``sweep:ID``, ``file:NAME`` or the digest of its
    manifest, ``signer:KEY``; without the kind if only one thing is called so. Digests may be cut short.

    Raises ArchiveError if it is nothing that is here, or more than one thing.
    """
    kind, colon, name = text.partition(":")
    asked = (kind,) if colon and kind in KINDS else KINDS
    name = name if colon and kind in KINDS else text
    found = [(one, full) for one in asked for full in _known(connection, one, name)]
    if not found:
        raise ArchiveError(
            f"{text!r} is no record, sweep, file or signer that is here; `python -m store list` shows them"
        )
    if len(found) > 1:
        several = ", ".join(f"{one}:{full[:20]}" for one, full in found[:4])
        raise ArchiveError(f"{text!r} may be {several}{', ...' if found[4:] else ''}: say which")
    return found[0]


def _known(connection: Connection, kind: str, name: str) -> list[str]:
    """Full names of all that is called so."""
    if not name:
        return []
    row = DeliveryRow
    column = {"record": RecordRow.digest, "sweep": SweepRow.id, "file": row.manifest, "signer": row.signer}[kind]
    called = column == name if kind == "sweep" else column.startswith(name, autoescape=True)
    if kind == "file":
        called |= row.file == name
    return [str(full) for full in connection.scalars(select(column).where(called).distinct().order_by(column).limit(6))]

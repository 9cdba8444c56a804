"""Where records and sweeps came from, and in which order they came in.

A record is *ours* if a sweep has it that was run here. Any other was added, from a file or folder that anybody can
have written: it is shown with that origin, and is no witness for what was run here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, func, insert, select

from experiments.core.canonical_json import canonical, digest
from store.models import ArrivalRow, DeliveryRow, RecordOriginRow, SweepOriginRow, SweepRecordRow, SweepRow

_SHORT = 12
"""Digits of a key's id where it stands in a table."""
_FEW = 2
"""Other files of the same contents that are named."""
_PLAIN = re.compile(r"[\w.+@-]+/?")


@dataclass(frozen=True)
class Origin:
    """Where a record or sweep came from that was not run here."""

    file: str
    """Name of the bundle's file, or of a folder, without the path. Empty if it is not told."""
    manifest: str
    """Digest of the bundle's manifest, which names all that is in it; of a folder, that of its record."""
    added_at: str
    """When it was added, UTC, RFC 3339."""
    signer: str | None = None
    """Id of the key that signed the bundle. None if none did, or if it was added before signers were kept."""
    also: tuple[Origin, ...] = ()
    """Where else the same came from, later."""
    share: str = ""
    """How much of a sweep it brought, where that is not all of it."""

    def __str__(self) -> str:
        few = [one.alone() for one in (self, *self.also[:_FEW])]
        more = f" and {len(self.also) - _FEW} more files" if len(self.also) > _FEW else ""
        return "; also ".join(few) + more

    def name(self) -> str:
        """A digest of what tells one delivery from another: its contents, its file and who signed it."""
        return digest(canonical([self.manifest, self.file, self.signer]))

    def alone(self) -> str:
        """The file and who signed it, without where else the same came from."""
        signed = f", signed by key {self.signer[:_SHORT]}" if self.signer else ""
        shared = f" ({self.share})" if self.share else ""
        return (quoted(self.file) if self.file else "added, nobody knows from where") + signed + shared


def quoted(file: str) -> str:
    """The name of a file where other words stand beside it: in quotes if it could be taken for some of those."""
    return file if _PLAIN.fullmatch(file) else json.dumps(file, ensure_ascii=False)


NOT_TOLD = Origin("", "", "")
"""Of a record that was added alone before origins were kept."""


def arrive(connection: Connection, kind: str, names: Sequence[str]) -> None:
    """Give records (by digest) or sweeps (by id) the next places in the order. Wants the write lock."""
    last = connection.scalar(select(func.max(ArrivalRow.number))) or 0
    rows = [{"number": number, "kind": kind, "name": name} for number, name in enumerate(names, last + 1)]
    if rows:
        connection.execute(insert(ArrivalRow), rows)


def come_from(connection: Connection, records: Collection[str], origin: Origin) -> None:
    """Say that these records were added from there. Twice is once. Wants the write lock."""
    if origin.name() not in {one.name() for one in deliveries(connection).get(origin.manifest, ())}:
        number = (connection.scalar(select(func.max(DeliveryRow.number))) or 0) + 1
        row = {"number": number, "manifest": origin.manifest, "file": origin.file, "signer": origin.signer}
        connection.execute(insert(DeliveryRow).values(**row, added_at=origin.added_at))
    there = set(connection.scalars(select(RecordOriginRow.record).where(RecordOriginRow.manifest == origin.manifest)))
    rows = [{"record": name, "manifest": origin.manifest} for name in sorted(set(records) - there)]
    if rows:
        connection.execute(insert(RecordOriginRow), rows)


def run_here() -> ColumnElement[bool]:
    """Whether a row of `SweepRow` is a sweep that was run here."""
    return ~select(SweepOriginRow.sweep).where(SweepOriginRow.sweep == SweepRow.id).exists()


def own_records(connection: Connection) -> set[str]:
    """Digests of the records that sweeps have which were run here."""
    return set(connection.scalars(select(SweepRecordRow.record).join(SweepRow).where(run_here())))


def deliveries(connection: Connection) -> dict[str, list[Origin]]:
    """The files that brought the contents of each manifest, in the order in which they came in."""
    return {manifest: [one for _, one in came] for manifest, came in _numbered(connection).items()}


def origins(connection: Connection) -> dict[str, list[Origin]]:
    """Where each record was added from, by digest, the first one first. Some of them may be ours all the same."""
    came = _numbered(connection)
    ways: dict[str, list[tuple[int, Origin]]] = {}
    for record, manifest in connection.execute(select(RecordOriginRow.record, RecordOriginRow.manifest)):
        ways.setdefault(record, []).extend(came.get(manifest, [(0, Origin("", manifest, ""))]))
    return {record: [one for _, one in sorted(found, key=_place)] for record, found in ways.items()}


def first_of(ways: Sequence[Origin]) -> Origin:
    """The first, with the others beside it."""
    return replace(ways[0], also=tuple(ways[1:]))


def _numbered(connection: Connection) -> dict[str, list[tuple[int, Origin]]]:
    found: dict[str, list[tuple[int, Origin]]] = {}
    for row in connection.execute(select(DeliveryRow.__table__).order_by(DeliveryRow.number)):
        origin = Origin(row.file, row.manifest, row.added_at, row.signer)
        found.setdefault(row.manifest, []).append((row.number, origin))
    return found


def _place(way: tuple[int, Origin]) -> int:
    return way[0]

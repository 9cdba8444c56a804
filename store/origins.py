"""Where records and sweeps came from, and in which order they arrived.

A record is *ours* if a sweep that was run here has it. Any other record was added from a file or folder that anyone
can have written: it is shown with that origin, and is not evidence of what was run here.
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
"""Digits of a key's id that tables show."""
_FEW = 2
"""Most other files of the same contents that are named."""
_PLAIN = re.compile(r"[\w.+@-]+/?")


@dataclass(frozen=True)
class Origin:
    """Where a record or sweep that was not run here came from."""

    file: str
    """Name of the bundle's file, or of a folder, without the path. Empty if unknown."""
    manifest: str
    """Digest of the bundle's manifest, which names all its members; for a folder, the digest of its record."""
    added_at: str
    """When it was added, UTC, RFC 3339."""
    signer: str | None = None
    """Id of the key that signed the bundle. None if it is not signed, or was added before signers were stored."""
    also: tuple[Origin, ...] = ()
    """Later origins of the same record or sweep."""
    share: str = ""
    """How much of a sweep it brought, such as ``3 of 7``. Empty if it brought all of it."""

    def __str__(self) -> str:
        few = [one.description() for one in (self, *self.also[:_FEW])]
        more = f" and {len(self.also) - _FEW} more files" if len(self.also) > _FEW else ""
        return "; also ".join(few) + more

    def name(self) -> str:
        """Return a digest of what identifies a delivery: its contents, its file and its signer."""
        return digest(canonical([self.manifest, self.file, self.signer]))

    def description(self) -> str:
        """Return the file, its signer and its share as text, without the other origins."""
        signed = f", signed by key {self.signer[:_SHORT]}" if self.signer else ""
        shared = f" ({self.share})" if self.share else ""
        return (quote_file_name(self.file) if self.file else "added, nobody knows from where") + signed + shared


def quote_file_name(file: str) -> str:
    """Return the name of a file for use in a sentence, in quotes if it could be mistaken for part of the sentence."""
    return file if _PLAIN.fullmatch(file) else json.dumps(file, ensure_ascii=False)


UNKNOWN_ORIGIN = Origin("", "", "")
"""Origin of a record that was added on its own before origins were stored."""


def add_arrivals(connection: Connection, kind: str, names: Sequence[str]) -> None:
    """Give records (by digest) or sweeps (by id) the next places in the order of arrival. Needs the write lock."""
    last = connection.scalar(select(func.max(ArrivalRow.number))) or 0
    rows = [{"number": number, "kind": kind, "name": name} for number, name in enumerate(names, last + 1)]
    if rows:
        connection.execute(insert(ArrivalRow), rows)


def add_origins(connection: Connection, records: Collection[str], origin: Origin) -> None:
    """Store that these records were added from this origin. Idempotent. Needs the write lock."""
    if origin.name() not in {one.name() for one in deliveries(connection).get(origin.manifest, ())}:
        number = (connection.scalar(select(func.max(DeliveryRow.number))) or 0) + 1
        row = {"number": number, "manifest": origin.manifest, "file": origin.file, "signer": origin.signer}
        connection.execute(insert(DeliveryRow).values(**row, added_at=origin.added_at))
    there = set(connection.scalars(select(RecordOriginRow.record).where(RecordOriginRow.manifest == origin.manifest)))
    rows = [{"record": name, "manifest": origin.manifest} for name in sorted(set(records) - there)]
    if rows:
        connection.execute(insert(RecordOriginRow), rows)


def is_run_here() -> ColumnElement[bool]:
    """Return the SQL condition that a row of `SweepRow` is a sweep that was run here."""
    return ~select(SweepOriginRow.sweep).where(SweepOriginRow.sweep == SweepRow.id).exists()


def own_records(connection: Connection) -> set[str]:
    """Return the digests of the records of all sweeps that were run here."""
    return set(connection.scalars(select(SweepRecordRow.record).join(SweepRow).where(is_run_here())))


def deliveries(connection: Connection) -> dict[str, list[Origin]]:
    """Return manifest -> the files that brought its contents, in the order of arrival."""
    return {manifest: [one for _, one in came] for manifest, came in _numbered_deliveries(connection).items()}


def origins(connection: Connection) -> dict[str, list[Origin]]:
    """Return record digest -> its origins in the order of arrival. Some of these records may still be ours."""
    came = _numbered_deliveries(connection)
    ways: dict[str, list[tuple[int, Origin]]] = {}
    for record, manifest in connection.execute(select(RecordOriginRow.record, RecordOriginRow.manifest)):
        ways.setdefault(record, []).extend(came.get(manifest, [(0, Origin("", manifest, ""))]))
    return {record: [one for _, one in sorted(found, key=_delivery_number)] for record, found in ways.items()}


def first_origin(ways: Sequence[Origin]) -> Origin:
    """Return the first origin, with the others as its `also`."""
    return replace(ways[0], also=tuple(ways[1:]))


def _numbered_deliveries(connection: Connection) -> dict[str, list[tuple[int, Origin]]]:
    found: dict[str, list[tuple[int, Origin]]] = {}
    for row in connection.execute(select(DeliveryRow.__table__).order_by(DeliveryRow.number)):
        origin = Origin(row.file, row.manifest, row.added_at, row.signer)
        found.setdefault(row.manifest, []).append((row.number, origin))
    return found


def _delivery_number(way: tuple[int, Origin]) -> int:
    return way[0]

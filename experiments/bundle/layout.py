"""Layout of a bundle: one zip of records and what they need. store/bundles.py verifies the contents.

    manifest.json              {"schema": 3, "members": {name: {"digest": ..., "bytes": ...}}}
    records/<digest>.json      exact text
    plans/<digest>.json        what a sweep planned to run, and
    sweeps/<digest>.json       which records it produced: core/sweep.py defines both formats
    documents/<digest>.txt     machines and sources
    blobs/<digest>             tensors
    signature.json             optional signature of the manifest; not listed in the manifest

The same records yield the same members and manifest; whole files are equal wherever zlib is the same. The stdout and
stderr of processes are left out, since they may name paths.

The seal is the comment of the zip, the last 64 bytes of the file: the SHA-256 in hexadecimal of all bytes before
it. Anyone can seal a file, so a seal shows only that no byte has changed since; the signature shows who made it.

Schema history:
    1   first.
    2   sealed; may be signed.
    3   may contain sweeps with their plans.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import zipfile
from typing import Any, BinaryIO, Iterable, Iterator, Mapping, NamedTuple

from ..core.bounds import refuse_excess
from ..core.canonical_json import RecordError, canonical, parse
from ..core.record import Record

SCHEMA = 3
"""Version of the manifest that this code writes. It reads 1 to SCHEMA."""
FIRST_SEALED = 2
FIRST_WITH_SWEEPS = 3

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"

LARGEST_FILE = 1 << 30
"""Largest bundle on disk, in bytes; ten thousand records take a tenth of it."""
LARGEST_MEMBER = 1 << 26
"""Largest blob, in bytes."""
LARGEST_TEXT = 1 << 23
"""Largest manifest, record, plan, sweep or document, in bytes. The longest records, lists of operators, take a few
million; the plan of five hundred processes takes half a million. Parsed, a malicious text takes fifty times as much.
"""
LARGEST_SIGNATURE = 1 << 20
LARGEST_TOTAL = 1 << 32
"""Bytes of all members unpacked."""
LARGEST_RECORDS = 1 << 27
"""Bytes of all records, plans and sweeps unpacked."""
MOST_MEMBERS = 40_000
"""Most members. More would not fit into the central directory of a plain zip, nor into a manifest of LARGEST_TEXT."""

assert LARGEST_TEXT < LARGEST_MEMBER < LARGEST_RECORDS < LARGEST_FILE < LARGEST_TOTAL
assert MOST_MEMBERS * 200 < LARGEST_TEXT

DOCUMENTS = ("machine", "source")
"""Kinds of content that are stored as documents; the others are blobs."""
LEFT_BEHIND = ("stdout", "stderr", "unreadable")
"""Kinds of content that are left out of bundles."""
PARSED = ("records/", "plans/", "sweeps/")
"""Folders of the members that are parsed."""
OF_SWEEPS = ("plans/", "sweeps/")
"""Folders that only bundles with sweeps contain."""

REFUSALS: Mapping[str, str] = {
    # About the file.
    "long": "has {bytes} bytes; at most {most} are read",
    "end": "is no bundle, or was cut: it does not end as a zip does, with nothing behind or a seal of 64 digits",
    "other zip": "is a zip of several parts or of the 64-bit kind; a bundle is a plain one: export it again",
    "seal": "was changed or damaged after it was written: its seal is not that of its bytes; get the file again",
    "unsealed": "has schema {schema} and no seal, which that schema asks for: it was damaged or taken off",
    "sealed": "has schema {schema} and a seal, which that schema does not have",
    "many": "there are {count} members; at most {most} are read",
    "list": "the list of members is not as long as it says, or is no list",
    "gap": "there are bytes that belong to no member, or to two",
    "total": "the members say that they unpack to {bytes} bytes; at most {most} are read",
    "records": "the records, plans and sweeps say that they unpack to {bytes} bytes; at most {most} are read",
    "empty": "there is no record in it",
    # About a member before it is unpacked.
    "leaves": "its name leaves the folder",
    "link": "it is a link",
    "special": "it is no regular file",
    "twice": "there are two members of this name",
    "unknown": "a bundle has no such member",
    "encrypted": "it is encrypted",
    "method": "it is packed by method {method}; only stored (0) and deflated (8) are read",
    "headers": "its header before the content is not the one in the list",
    "additions": "its header has additions that a bundle has not",
    "says": "it says that it unpacks from {packed} to {bytes} bytes; at most {most} are read",
    # About an unpacked member.
    "unpacked": "cannot be unpacked: {why}",
    "crc": "has another checksum (CRC-32) than its header says",
    "no manifest": "there is none, so this is not a bundle",
    "manifest": "cannot be read: {why}",
    "schema": "has schema {schema}; this version reads 1 to {newest}: update the project to read it",
    "form": "is not canonical JSON of a schema and members",
    "gone": "is in the manifest but not in the file",
    "unlisted": "is in the file but not in the manifest",
    "content": "has {bytes} bytes with the digest {digest}; the manifest says otherwise",
    "name": "has the digest {digest}, which is not its name",
    "text": "is not UTF-8 text, or has a NUL in it",
    "record": "is no record that can be kept: {why}",
    "often": "is one of more than {most} records of one question; no more are read",
    "facts": "holds facts of a machine that cannot be kept: {why}",
    "sketch": "has {bytes} bytes and is called a sketch, which has {right}",
    "sample": "has {bytes} bytes and is called a sample; at most {most} are read",
    "plan": "is no plan that can be kept: {why}",
    "sweep": "is no sweep that can be kept: {why}",
    "sweep twice": "there is another sweep of its id, {id}",
    "other spec": "it has record {record} for spec {spec}, but the record's spec is {own}",
    "unplanned": "it has record {record}, whose spec is not in its plan",
    "later": "is of a kind that schema {schema} does not have",
    "needed": "a record or sweep needs it, and it is missing",
    "spare": "no record or sweep needs it",
}
"""Every reason to refuse a bundle: a sentence without its subject, which is a member or the file."""

_NAMES = re.compile(r"(?:records|plans|sweeps)/[0-9a-f]{64}\.json|documents/[0-9a-f]{64}\.txt|blobs/[0-9a-f]{64}")
SEAL_LENGTH = 64
_ENCRYPTED = 0x1
_HARMLESS_FLAGS = 0x0806
"""Bits for the compression level and for UTF-8 names."""


class PackError(Exception):
    """A bundle cannot be written or read. The message says what was found and what is allowed."""


def refusal(name: str, **values: Any) -> str:
    """Return the sentence of `REFUSALS` with these values filled in."""
    return REFUSALS[name].format(**values)


def required_members(record: Record) -> dict[str, tuple[str, str]]:
    """Return the members that a bundle of this record must have: name -> kind and digest of the content."""
    kept = [(kind, name) for name, kind in record.blobs().items() if kind not in LEFT_BEHIND]
    return {
        f"documents/{name}.txt" if kind in DOCUMENTS else f"blobs/{name}": (kind, name) for kind, name in sorted(kept)
    }


def read_record(text: str) -> Record:
    """Parse a record.

    Raises PackError if the text is not a record, has a newer schema, is not canonical JSON, or exceeds `core.bounds`.
    """
    try:
        exact, record = is_canonical(text), Record.from_text(text)
        refuse_excess(record)
    except RecordError as error:
        raise PackError(str(error)) from None
    if not exact:
        raise PackError("it is not canonical JSON, so its digest would say nothing")
    return record


def is_canonical(text: str) -> bool:
    """Whether a JSON text equals the `canonical` form of its value. Raises RecordError as `parse` does."""
    return _is_plainly_canonical(text) or canonical(parse(text)) == text


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, check_circular=False)
_LONG_INTEGER = re.compile(r"(?:^|[:,\[-])[0-9]{16}")
_TWO_UNITS = re.compile("[\U00010000-\U0010ffff]")


def _is_plainly_canonical(text: str) -> bool:
    """Return True quickly for nearly all canonical texts, False where this check cannot decide.

    json writes what RFC 8785 requires, except for long numbers and for the order of keys outside the Basic
    Multilingual Plane; `canonical` limits the depth as well.
    """
    if _LONG_INTEGER.search(text) or not (text.isascii() or not _TWO_UNITS.search(text)):
        return False
    try:
        value = json.loads(text, parse_float=_parse_canonical_float, parse_constant=_parse_canonical_float)
        return _ENCODER.encode(value) == text and _is_shallow(value)
    except (ValueError, RecursionError):
        return False


def _parse_canonical_float(literal: str) -> float:
    value = float(literal)
    if canonical(value) != literal:
        raise ValueError
    return value


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(32):
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [one for many in inside for one in many]
    return not level


def file_digest(file: BinaryIO) -> bytes:
    """Return the hexadecimal SHA-256 of all bytes of a file before its seal."""
    left = file.seek(0, 2) - SEAL_LENGTH
    file.seek(0)
    checksum = hashlib.sha256()
    while left > 0:
        part = file.read(min(left, 1 << 20))
        if not part:
            break
        checksum.update(part)
        left -= len(part)
    return checksum.hexdigest().encode("ascii")


def size_refusals(found: Iterable[Member]) -> Iterator[str]:
    """Yield a refusal for each limit that these members exceed together."""
    listed = list(found)
    total = sum(one.size for one in listed)
    records = sum(one.size for one in listed if one.name.startswith(PARSED))
    if len(listed) > MOST_MEMBERS:
        yield refusal("many", count=len(listed), most=MOST_MEMBERS)
    if total > LARGEST_TOTAL:
        yield refusal("total", bytes=total, most=LARGEST_TOTAL)
    if records > LARGEST_RECORDS:
        yield refusal("records", bytes=records, most=LARGEST_RECORDS)


def is_name(name: str) -> bool:
    """Whether a bundle may contain a member of this name."""
    return name in (MANIFEST, SIGNATURE) or _NAMES.fullmatch(name) is not None


# Reading.


class Member(NamedTuple):
    """A member as described in the central directory of a zip."""

    name: str
    size: int
    """Unpacked length in bytes, as declared."""
    packed: int = 0
    start: int = 0
    """Offset of its content in the file."""
    crc: int = 0
    method: int = zipfile.ZIP_STORED
    flags: int = 0
    mode: int = 0
    agrees: bool = True
    """Whether its two headers agree."""
    additions: bool = False
    """Whether a header has extra fields or a comment."""

    def size_limit(self) -> int:
        """Return how many bytes it may unpack to."""
        if self.name == SIGNATURE:
            return LARGEST_SIGNATURE
        return LARGEST_MEMBER if self.name.startswith("blobs/") else LARGEST_TEXT

    def size_refusal(self) -> str | None:
        """Return why it is not read, or None if it is not too long."""
        if max(self.size, self.packed) <= self.size_limit():
            return None
        return refusal("says", packed=self.packed, bytes=self.size, most=self.size_limit())

    def layout_refusal(self) -> str | None:
        """Return why it is not unpacked, or None if its name and headers are those of a bundle member."""
        if self.name.startswith(("/", "\\")) or ":" in self.name or ".." in re.split(r"[/\\]", self.name):
            return refusal("leaves")
        if not is_name(self.name):
            return refusal("unknown")
        if stat.S_ISLNK(self.mode):
            return refusal("link")
        if stat.S_IFMT(self.mode) not in (0, stat.S_IFREG):
            return refusal("special")
        return self._packing_refusal()

    def _packing_refusal(self) -> str | None:
        if self.flags & _ENCRYPTED:
            return refusal("encrypted")
        if self.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return refusal("method", method=self.method)
        if not self.agrees:
            return refusal("headers")
        if self.additions or self.flags & ~_HARMLESS_FLAGS:
            return refusal("additions")
        return self.size_refusal()

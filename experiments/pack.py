"""A bundle as a file: records, and what they rest on, in one zip. What is in it is judged in store/bundle.py.

    manifest.json              {"schema": 3, "members": {name: {"digest": ..., "bytes": ...}}}
    records/<digest>.json      exact text
    plans/<digest>.json        what a sweep set out to run, and
    sweeps/<digest>.json       which records it got: sweep.py says how both are written
    documents/<digest>.txt     machines and sources
    blobs/<digest>             tensors
    signature.json             what somebody signed the manifest with, if anybody did; not in the manifest

The same records give the same members and manifest; whole files are equal wherever zlib is the same. What
processes wrote to stdout and stderr stays behind, since it may name paths.

The seal is the comment of the zip, the last 64 bytes of the file: the SHA-256 in hexadecimal of all bytes before
it. Anybody can seal, so it says only that no byte has changed since; who made a bundle is for the signature to say.

A bundle is read here and not by zipfile, which overlooks what a bundle must not have: bytes that belong to no
member, two headers that differ, additions to them. Nothing is unpacked before the whole layout has been looked at,
and nothing beyond its bound: whoever made it, looking at a bundle takes no more memory than the larger of twice
LARGEST_MEMBER and sixty times LARGEST_TEXT (for JSON that is made to be large when parsed), beside a kilobyte for
each member; and no more time than three seconds for each MiB of records and plans and five for each GiB of the rest.

Only the standard library is imported here, and nothing newer than Python 3.9, so that any program can write one.

Schema history:
    1   first.
    2   sealed; may be signed.
    3   may have sweeps with their plans.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import stat
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, NamedTuple

from .bounds import refuse_excess
from .record import Record, RecordError, canonical, digest, parse
from .sweep import BundledSweep

SCHEMA = 3
"""Version of the manifest that this code writes. It reads 1 to SCHEMA."""
FIRST_SEALED = 2
FIRST_WITH_SWEEPS = 3

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"

LARGEST_FILE = 1 << 30
"""Bytes of a bundle on disk; ten thousand records take a tenth of it."""
LARGEST_MEMBER = 1 << 26
"""Bytes of a blob."""
LARGEST_TEXT = 1 << 23
"""Bytes of the manifest, a record, a plan, a sweep or a document. The longest records, lists of operators, take a few
million; the plan of five hundred processes takes half a million. Parsed, a text made for it takes fifty times as much.
"""
LARGEST_SIGNATURE = 1 << 20
LARGEST_TOTAL = 1 << 32
"""Bytes of all members unpacked."""
LARGEST_RECORDS = 1 << 27
"""Bytes of all records, plans and sweeps unpacked."""
MOST_MEMBERS = 40_000
"""More would not fit into the list of a plain zip, nor their names into a manifest of LARGEST_TEXT."""

assert LARGEST_TEXT < LARGEST_MEMBER < LARGEST_RECORDS < LARGEST_FILE < LARGEST_TOTAL
assert MOST_MEMBERS * 200 < LARGEST_TEXT

DOCUMENTS = ("machine", "source")
"""Kinds of content that are texts; the others are blobs."""
LEFT_BEHIND = ("stdout", "stderr", "unreadable")
"""Kinds of content that no bundle has."""
PARSED = ("records/", "plans/", "sweeps/")
"""Folders of the members that are parsed."""
OF_SWEEPS = ("plans/", "sweeps/")
"""Folders that only a bundle with sweeps has."""

REFUSALS: Mapping[str, str] = {
    # Of the file.
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
    # Of a member, before it is unpacked.
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
    # Of a member, unpacked.
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
"""Every reason for which a bundle is refused. A sentence without its subject, a member or the file."""

_NAMES = re.compile(r"(?:records|plans|sweeps)/[0-9a-f]{64}\.json|documents/[0-9a-f]{64}\.txt|blobs/[0-9a-f]{64}")
_SEAL = 64
_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_ENTRY = 512
_ENCRYPTED = 0x1
_HARMLESS_FLAGS = 0x0806
"""How hard the packer tried, and that names are UTF-8."""


class PackError(Exception):
    """A bundle cannot be written or read. The message says what was found and what is allowed."""


def refusal(name: str, **values: Any) -> str:
    """The sentence of `REFUSALS` with what was found in it."""
    return REFUSALS[name].format(**values)


# Writing.


def members(texts: Iterable[str], fetch: Callable[[str], bytes | None]) -> dict[str, bytes]:
    """What is in a bundle of these records, by name; `fetch` gives the content that has a digest, or None.

    Raises PackError if a text is no record, or a content that it names is missing or another.
    """
    made: dict[str, bytes] = {}
    for text in texts:
        record = read_record(text)
        made[f"records/{digest(text)}.json"] = text.encode("utf-8")
        for name, (kind, found) in needed(record).items():
            if name not in made:
                made[name] = _fetched(fetch, found, kind)
    return made


def sweep_members(
    plan: str, machine: str, number: int, started_at: str, records: Mapping[str, str]
) -> dict[str, bytes]:
    """The members that tell of a sweep, to be put beside those of its records.

    `plan` is its exact text, `records` the record that it got for each spec, both by digest.
    """
    made = BundledSweep(digest(plan), machine, number, started_at, records).text()
    return {f"plans/{digest(plan)}.json": plan.encode("utf-8"), f"sweeps/{digest(made)}.json": made.encode("utf-8")}


def _fetched(fetch: Callable[[str], bytes | None], name: str, kind: str) -> bytes:
    content = fetch(name)
    if content is None:
        raise PackError(f"{kind} {name} is missing; a bundle holds all that its records rest on")
    if digest(content) != name:
        raise PackError(f"{kind} {name} has the digest {digest(content)}: it is not what was recorded")
    return content


def needed(record: Record) -> dict[str, tuple[str, str]]:
    """The members that a bundle of this record must have: name -> kind and digest of the content."""
    kept = [(kind, name) for name, kind in record.blobs().items() if kind not in LEFT_BEHIND]
    return {
        f"documents/{name}.txt" if kind in DOCUMENTS else f"blobs/{name}": (kind, name) for kind, name in sorted(kept)
    }


def read_record(text: str) -> Record:
    """The record of a text. Raises PackError if it is no record, a newer one, not canonical JSON, or holds more than
    `bounds` allows.
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
    """Whether a JSON text is what `canonical` makes of its value. Raises RecordError as `parse` does."""
    return _plainly_canonical(text) or canonical(parse(text)) == text


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, check_circular=False)
_LONG_INTEGER = re.compile(r"(?:^|[:,\[-])[0-9]{16}")
_TWO_UNITS = re.compile("[\U00010000-\U0010ffff]")


def _plainly_canonical(text: str) -> bool:
    """A fast answer for nearly all texts, False where this cannot tell.

    json writes what RFC 8785 asks for, but for long numbers and for the order of keys outside of UTF-16's first
    plane; `canonical` looks at the depth as well.
    """
    if _LONG_INTEGER.search(text) or not (text.isascii() or not _TWO_UNITS.search(text)):
        return False
    try:
        value = json.loads(text, parse_float=_canonical_float, parse_constant=_canonical_float)
        return _ENCODER.encode(value) == text and _is_shallow(value)
    except (ValueError, RecursionError):
        return False


def _canonical_float(literal: str) -> float:
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


def manifest(contents: Mapping[str, bytes]) -> bytes:
    """Canonical JSON that names every member with its digest and length."""
    listed = {name: {"digest": digest(content), "bytes": len(content)} for name, content in contents.items()}
    return canonical({"schema": SCHEMA, "members": listed}).encode("utf-8")


def write(path: Path, contents: Mapping[str, bytes], sign: Callable[[bytes], bytes] | None = None) -> None:
    """Write members as a bundle, with their manifest and what `sign` makes of it, if that is given.

    Raises PackError if it would be larger than what is read, OSError if it cannot be written. Then nothing is
    at `path` that was not there before.
    """
    whole = {**contents, MANIFEST: manifest(contents)}
    if sign is not None:
        whole[SIGNATURE] = sign(whole[MANIFEST])
    _refuse_what_is_too_large(whole)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _zip(beside, whole)
        with beside.open("r+b") as file:
            seal(file)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _zip(path: Path, contents: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "x") as file:
        for name in sorted(contents):
            put(file, name, contents[name], deflated=not name.startswith("blobs/"))
        file.comment = bytes(_SEAL)


def put(file: zipfile.ZipFile, name: str, content: bytes, *, deflated: bool = True) -> None:
    """Add a member with a fixed date, system and mode: nothing of where and when it was made is in the file."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    info.compress_type = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    file.writestr(info, content, compresslevel=9)


def seal(file: BinaryIO) -> None:
    """Make the last 64 bytes of a file the digits of the SHA-256 of those before."""
    made = _digits(file)
    file.seek(-_SEAL, 2)
    file.write(made)


def _digits(file: BinaryIO) -> bytes:
    left = file.seek(0, 2) - _SEAL
    file.seek(0)
    made = hashlib.sha256()
    while left > 0:
        part = file.read(min(left, 1 << 20))
        if not part:
            break
        made.update(part)
        left -= len(part)
    return made.hexdigest().encode("ascii")


def _refuse_what_is_too_large(contents: Mapping[str, bytes]) -> None:
    found = [Member(name, size=len(content)) for name, content in contents.items()]
    problems = list(_too_large(found))
    problems += [f"{one.name}: {one.too_long()}" for one in found if one.too_long()]
    if problems:
        raise PackError(f"this would be more than can be read: {problems[0]}; put fewer records into one bundle")


def _too_large(found: Iterable[Member]) -> Iterator[str]:
    listed = list(found)
    total = sum(one.size for one in listed)
    records = sum(one.size for one in listed if one.name.startswith(PARSED))
    if len(listed) > MOST_MEMBERS:
        yield refusal("many", count=len(listed), most=MOST_MEMBERS)
    if total > LARGEST_TOTAL:
        yield refusal("total", bytes=total, most=LARGEST_TOTAL)
    if records > LARGEST_RECORDS:
        yield refusal("records", bytes=records, most=LARGEST_RECORDS)


# Reading.


class Member(NamedTuple):
    """A member as the list of a zip has it."""

    name: str
    size: int
    """Its length unpacked."""
    packed: int = 0
    start: int = 0
    """Where its content begins."""
    crc: int = 0
    method: int = zipfile.ZIP_STORED
    flags: int = 0
    mode: int = 0
    agrees: bool = True
    """Whether its two headers say the same."""
    additions: bool = False
    """Whether one of them says more than is asked for: extra fields or a comment."""

    def most(self) -> int:
        """Bytes that it may unpack to."""
        if self.name == SIGNATURE:
            return LARGEST_SIGNATURE
        return LARGEST_MEMBER if self.name.startswith("blobs/") else LARGEST_TEXT

    def too_long(self) -> str | None:
        """Why it is not read, if it is too long."""
        if max(self.size, self.packed) <= self.most():
            return None
        return refusal("says", packed=self.packed, bytes=self.size, most=self.most())

    def wrong(self) -> str | None:
        """Why it is not unpacked, if anything about it is not as in a bundle."""
        if self.name.startswith(("/", "\\")) or ":" in self.name or ".." in re.split(r"[/\\]", self.name):
            return refusal("leaves")
        if not is_name(self.name):
            return refusal("unknown")
        if stat.S_ISLNK(self.mode):
            return refusal("link")
        if stat.S_IFMT(self.mode) not in (0, stat.S_IFREG):
            return refusal("special")
        return self._wrongly_packed()

    def _wrongly_packed(self) -> str | None:
        if self.flags & _ENCRYPTED:
            return refusal("encrypted")
        if self.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return refusal("method", method=self.method)
        if not self.agrees:
            return refusal("headers")
        if self.additions or self.flags & ~_HARMLESS_FLAGS:
            return refusal("additions")
        return self.too_long()


def is_name(name: str) -> bool:
    """Whether a bundle may have a member of this name."""
    return name in (MANIFEST, SIGNATURE) or _NAMES.fullmatch(name) is not None


class Packed:
    """A bundle whose file is laid out as it must be; the contents have not been looked at."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises PackError if the file is not what a bundle is; of single members see `wrong`."""
        self._file = file
        count, start, length, self.sealed = _end(file)
        if self.sealed and not _is_sealed(file):
            raise PackError(refusal("seal"))
        if count > MOST_MEMBERS:
            raise PackError(refusal("many", count=count, most=MOST_MEMBERS))
        self._listed = list(_listed(file, count, start, length))
        for problem in _too_large(self._listed):
            raise PackError(problem)
        self.members = {one.name: one for one in self._listed}

    def wrong(self) -> Iterator[tuple[str, str]]:
        """Names of members, and why each is refused. Only if there are none may contents be asked for."""
        seen: set[str] = set()
        for one in self._listed:
            problem = refusal("twice") if one.name in seen else one.wrong()
            if problem:
                yield one.name, problem
            seen.add(one.name)

    def content(self, name: str) -> bytes:
        """A member unpacked. Raises PackError if it is not what its header says, KeyError if there is none."""
        member = self.members[name]
        self._file.seek(member.start)
        packed = self._file.read(member.packed)
        content = packed if member.method == zipfile.ZIP_STORED else _inflated(packed, member.size)
        if len(content) != member.size:
            raise PackError(refusal("unpacked", why=f"it has not the {member.size} bytes that it says"))
        if zlib.crc32(content) != member.crc:
            raise PackError(refusal("crc"))
        return content


def _inflated(packed: bytes, size: int) -> bytes:
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = unpacker.decompress(packed, size + 1)
    except zlib.error:
        raise PackError(refusal("unpacked", why="it is not deflated, or damaged")) from None
    if len(content) > size:
        raise PackError(refusal("unpacked", why=f"it has more than the {size} bytes that it says"))
    if not unpacker.eof or unpacker.unused_data:
        raise PackError(refusal("unpacked", why="it ends before its end, or goes on behind it"))
    return content


def _end(file: BinaryIO) -> tuple[int, int, int, bool]:
    """How many members there are, where their list is and how long, and whether there is a seal."""
    size = file.seek(0, 2)
    if size > LARGEST_FILE:
        raise PackError(refusal("long", bytes=size, most=LARGEST_FILE))
    for comment in (_SEAL, 0):
        place = size - comment - _END.size
        if place >= 0:
            file.seek(place)
            mark, *numbers, length, start, said = _END.unpack(file.read(_END.size))
            if mark == b"PK\x05\x06" and said == comment:
                return _plain_end(numbers, length, start, place), start, length, bool(comment)
    raise PackError(refusal("end"))


def _plain_end(numbers: list[int], length: int, start: int, place: int) -> int:
    disk, first, here, count = numbers
    if disk or first or here != count or count == 0xFFFF or 0xFFFFFFFF in (length, start):
        raise PackError(refusal("other zip"))
    if start + length != place or length > count * _LONGEST_ENTRY:
        raise PackError(refusal("list"))
    return count


def _is_sealed(file: BinaryIO) -> bool:
    made = _digits(file)
    file.seek(-_SEAL, 2)
    return file.read() == made


def _listed(file: BinaryIO, count: int, start: int, length: int) -> Iterator[Member]:
    """The members in the order of the list, which must be that of the file, without a gap."""
    file.seek(start)
    entries = file.read(length)
    place = at = 0
    for _ in range(count):
        if len(entries) - at < _ENTRY.size or entries[at : at + 4] != b"PK\x01\x02":
            raise PackError(refusal("list"))
        fields = _ENTRY.unpack_from(entries, at)
        name, extra, comment = fields[10:13]
        entry = entries[at : at + _ENTRY.size + name]
        at += _ENTRY.size + name + extra + comment
        if fields[16] != place or at > length:
            raise PackError(refusal("gap" if at <= length else "list"))
        member = _member(file, entry, place, start)
        place = member.start + member.packed
        yield member
    if at != length or place != start:
        raise PackError(refusal("list" if at != length else "gap"))


def _member(file: BinaryIO, entry: bytes, place: int, end: int) -> Member:
    """The member of an entry of the list, whose own header is at `place`, before `end`."""
    fields = _ENTRY.unpack_from(entry)
    _, _, _, flags, method, _, _, crc, packed, size, _, extra, comment, disk, inner, outer, _ = fields
    file.seek(place)
    header = file.read(min(_LOCAL.size + len(entry) - _ENTRY.size, end - place))
    if len(header) < _LOCAL.size or header[:4] != b"PK\x03\x04":
        raise PackError(refusal("gap"))
    length, more = _LOCAL.unpack_from(header)[-2:]
    return Member(
        name=entry[_ENTRY.size :].decode("utf-8", "backslashreplace"),
        size=size,
        packed=packed,
        start=place + _LOCAL.size + length + more,
        crc=crc,
        method=method,
        flags=flags,
        mode=outer >> 16,
        agrees=header[4:28] == entry[6:30] and header[_LOCAL.size :] == entry[_ENTRY.size :],
        additions=bool(extra or comment or more or disk or inner),
    )

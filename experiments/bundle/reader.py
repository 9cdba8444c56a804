"""Strict reader of bundles.

zipfile is not used because it accepts what a bundle must not have: bytes that belong to no member, headers that
disagree, additions to headers. Nothing is unpacked before the whole layout has been checked, and nothing beyond its
limit: whoever made a bundle, reading it takes at most the larger of twice LARGEST_MEMBER and sixty times LARGEST_TEXT
of memory (for JSON crafted to be large when parsed), plus a kilobyte for each member; and at most three seconds for
each MiB of records and plans and five for each GiB of the rest.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import BinaryIO, Iterator

from .layout import LARGEST_FILE, MOST_MEMBERS, SEAL_LENGTH, Member, PackError, file_digest, refusal, size_refusals

_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_ENTRY = 512


class Packed:
    """A bundle file with a valid layout; its contents are not verified yet."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises PackError if the file is not a bundle. `member_refusals` checks the single members."""
        self._file = file
        count, start, length, self.sealed = _read_end(file)
        if self.sealed and not _has_valid_seal(file):
            raise PackError(refusal("seal"))
        if count > MOST_MEMBERS:
            raise PackError(refusal("many", count=count, most=MOST_MEMBERS))
        self._listed = list(_read_members(file, count, start, length))
        for problem in size_refusals(self._listed):
            raise PackError(problem)
        self.members = {one.name: one for one in self._listed}

    def member_refusals(self) -> Iterator[tuple[str, str]]:
        """Yield the names of refused members with the reasons. `content` may only be called if there are none."""
        seen: set[str] = set()
        for one in self._listed:
            problem = refusal("twice") if one.name in seen else one.layout_refusal()
            if problem:
                yield one.name, problem
            seen.add(one.name)

    def content(self, name: str) -> bytes:
        """Return a member, unpacked. Raises PackError if it contradicts its header, KeyError if it does not exist."""
        member = self.members[name]
        self._file.seek(member.start)
        packed = self._file.read(member.packed)
        content = packed if member.method == zipfile.ZIP_STORED else _inflate_member(packed, member.size)
        if len(content) != member.size:
            raise PackError(refusal("unpacked", why=f"it has not the {member.size} bytes that it says"))
        if zlib.crc32(content) != member.crc:
            raise PackError(refusal("crc"))
        return content


def _inflate_member(packed: bytes, size: int) -> bytes:
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


def _read_end(file: BinaryIO) -> tuple[int, int, int, bool]:
    """Return the number of members, offset and length of the central directory, and whether there is a seal."""
    size = file.seek(0, 2)
    if size > LARGEST_FILE:
        raise PackError(refusal("long", bytes=size, most=LARGEST_FILE))
    for comment in (SEAL_LENGTH, 0):
        place = size - comment - _END.size
        if place >= 0:
            file.seek(place)
            mark, *numbers, length, start, said = _END.unpack(file.read(_END.size))
            if mark == b"PK\x05\x06" and said == comment:
                return _check_end(numbers, length, start, place), start, length, bool(comment)
    raise PackError(refusal("end"))


def _check_end(numbers: list[int], length: int, start: int, place: int) -> int:
    disk, first, here, count = numbers
    if disk or first or here != count or count == 0xFFFF or 0xFFFFFFFF in (length, start):
        raise PackError(refusal("other zip"))
    if start + length != place or length > count * _LONGEST_ENTRY:
        raise PackError(refusal("list"))
    return count


def _has_valid_seal(file: BinaryIO) -> bool:
    expected = file_digest(file)
    file.seek(-SEAL_LENGTH, 2)
    return file.read() == expected


def _read_members(file: BinaryIO, count: int, start: int, length: int) -> Iterator[Member]:
    """Yield the members in the order of the central directory, which must be their order in the file, without gaps."""
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
        member = _read_member(file, entry, place, start)
        place = member.start + member.packed
        yield member
    if at != length or place != start:
        raise PackError(refusal("list" if at != length else "gap"))


def _read_member(file: BinaryIO, entry: bytes, place: int, end: int) -> Member:
    """Return the member of a central directory entry, whose local header is at `place`, before `end`."""
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

"""A list of what was committed to a SQLite database, in a file next to it: ``archive.db-committed``.

SQLite keeps the latest commits in a separate file, the write-ahead log, and treats its first damaged frame as its end:
a flipped bit, or a missing log, loses committed records silently. So each commit is also written to this list once it
has happened, and `missing_commits` names what the database has lost.

    record <digest>;
    sweep <id>;
    delivery <digest>;
    note <digest>;
    exclusion <digest>;

`skipped_frames` also examines the frames of the log itself. A PostgreSQL server does all of this by itself.
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import AbstractSet as Set
from typing import Iterator, Sequence

from experiments.core.canonical_json import canonical, digest
from store.errors import ArchiveError

_LINE = re.compile(r"^(record|sweep|delivery|note|exclusion) ([0-9a-f-]+);$", re.MULTILINE)
"""A complete line."""
_HEAD, _FRAME = 32, 24
"""Bytes of the log's header and of a frame's header; a page follows each frame header."""
PAGE = 16384
"""Page size of our databases in bytes."""
_PAGES = tuple(2**power for power in range(9, 17))
_MAGIC = 0x377F0682
"""The log's first number; its last bit says that checksums read big-endian."""


class Ledger:
    """The list of commits to the database in `file`."""

    def __init__(self, file: Path) -> None:
        self._path = file.with_name(f"{file.name}-committed")

    def add_commits(self, kind: str, names: Sequence[str]) -> None:
        """Add commits to the list. Raises ArchiveError if the disk refuses; the database has them anyway."""
        if not names:
            return
        # The leading line end terminates a line that was cut off when a process was killed.
        text = "".join(f"\n{kind} {name};" for name in names) + "\n"
        try:
            with self._path.open("ab") as file:
                file.write(text.encode("ascii"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ArchiveError(f"{self._path} cannot be written: {error.strerror}; free or mend the disk") from error

    def missing_commits(self, there: Set[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return kind and name of each commit that is not in `there`, sorted."""
        try:
            text = self._path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ArchiveError(f"{self._path} cannot be read: {error.strerror}") from None
        return sorted(set(_LINE.findall(text)) - there)


def note_digest(*, record: str, author: str, text: str, written_at: str) -> str:
    """Return the name of a note in the list: its row id differs from archive to archive."""
    return digest(canonical([record, author, text, written_at]))


def skipped_frames(log: Path) -> tuple[int, int]:
    """Return how many complete frames of a write-ahead log SQLite skips, and how many commits are in them.

    Both are 0 if the log cannot be read.
    """
    try:
        content = log.read_bytes()
    except OSError:
        return 0, 0
    if len(content) < _HEAD:
        return 0, 0
    magic, _, size = struct.unpack(">3I", content[:12])
    order = ">" if magic & 1 else "<"
    frames = list(_frames(content, size if size in _PAGES else PAGE))
    before = _checksum(order, (0, 0), content[: _HEAD - 8])
    if magic & ~1 != _MAGIC or before != struct.unpack(">2I", content[_HEAD - 8 : _HEAD]):
        return len(frames), sum(_is_commit(frame) for frame in frames)
    for at, frame in enumerate(frames):
        before = _checksum(order, before, frame[:8] + frame[_FRAME:])
        if frame[8:16] != content[16:24] or before != struct.unpack(">2I", frame[16:_FRAME]):
            # Frames left over from before the log was last reset have other salts.
            left = [one for one in frames[at:] if one[8:16] == content[16:24]]
            return len(left), sum(_is_commit(one) for one in left)
    return 0, 0


def _frames(content: bytes, size: int) -> Iterator[bytes]:
    step = _FRAME + size
    for start in range(_HEAD, len(content) - step + 1, step):
        yield content[start : start + step]


def _is_commit(frame: bytes) -> bool:
    return frame[4:8] != b"\0\0\0\0"


def _checksum(order: str, start: tuple[int, int], content: bytes) -> tuple[int, int]:
    """SQLite's checksum of the log (https://sqlite.org/fileformat2.html, "Checksum Algorithm")."""
    first, second = start
    numbers = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(numbers[::2], numbers[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second

"""A list beside a SQLite database of what was committed to it: ``archive.db-committed``.

SQLite keeps what was committed last in a file of its own, the write-ahead log, and takes its first damaged frame for
its end: a flipped bit, or a log that is gone, takes committed records along without a word. So each commit is written
here, too, once it has happened, and `missing` names what the database has no longer.

    record <digest>;
    sweep <id>;
    delivery <digest>;
    note <digest>;
    exclusion <digest>;

Besides, `skipped` looks at the frames of the log itself. A server of PostgreSQL does all of that by itself.
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
"""One that was written to its end."""
_HEAD, _FRAME = 32, 24
"""Bytes of the log's head and of a frame's; a page follows each."""
PAGE = 16384
"""Bytes of a page of our databases."""
_PAGES = tuple(2**power for power in range(9, 17))
_MAGIC = 0x377F0682
"""The log's first number; its last bit says that checksums read big-endian."""


class Ledger:
    """What was committed to the database in `file`."""

    def __init__(self, file: Path) -> None:
        self._path = file.with_name(f"{file.name}-committed")

    def note(self, kind: str, names: Sequence[str]) -> None:
        """Say that these were committed. Raises ArchiveError if the disk refuses; the database has them anyway."""
        if not names:
            return
        # A line that was cut by a kill ends where the next one begins.
        text = "".join(f"\n{kind} {name};" for name in names) + "\n"
        try:
            with self._path.open("ab") as file:
                file.write(text.encode("ascii"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ArchiveError(f"{self._path} cannot be written: {error.strerror}; free or mend the disk") from error

    def missing(self, there: Set[tuple[str, str]]) -> list[tuple[str, str]]:
        """Kind and name of each that was committed and is not among those that are `there`."""
        try:
            text = self._path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ArchiveError(f"{self._path} cannot be read: {error.strerror}") from None
        return sorted(set(_LINE.findall(text)) - there)


def note_digest(*, record: str, author: str, text: str, written_at: str) -> str:
    """How a note is called in the list: nothing else names it in all archives alike."""
    return digest(canonical([record, author, text, written_at]))


def skipped(log: Path) -> tuple[int, int]:
    """Frames of a write-ahead log that SQLite skips though they were written to their end, and the commits in them."""
    try:
        content = log.read_bytes()
    except OSError:
        return 0, 0
    if len(content) < _HEAD:
        return 0, 0
    magic, _, size = struct.unpack(">3I", content[:12])
    order = ">" if magic & 1 else "<"
    frames = list(_frames(content, size if size in _PAGES else PAGE))
    before = _sum(order, (0, 0), content[: _HEAD - 8])
    if magic & ~1 != _MAGIC or before != struct.unpack(">2I", content[_HEAD - 8 : _HEAD]):
        return len(frames), sum(_commits(frame) for frame in frames)
    for at, frame in enumerate(frames):
        before = _sum(order, before, frame[:8] + frame[_FRAME:])
        if frame[8:16] != content[16:24] or before != struct.unpack(">2I", frame[16:_FRAME]):
            # Frames of an earlier round of the log, which are done with, have other salts.
            left = [one for one in frames[at:] if one[8:16] == content[16:24]]
            return len(left), sum(_commits(one) for one in left)
    return 0, 0


def _frames(content: bytes, size: int) -> Iterator[bytes]:
    step = _FRAME + size
    for start in range(_HEAD, len(content) - step + 1, step):
        yield content[start : start + step]


def _commits(frame: bytes) -> bool:
    return frame[4:8] != b"\0\0\0\0"


def _sum(order: str, start: tuple[int, int], content: bytes) -> tuple[int, int]:
    """SQLite's checksum of the log (https://sqlite.org/fileformat2.html, "Checksum Algorithm")."""
    first, second = start
    numbers = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(numbers[::2], numbers[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second

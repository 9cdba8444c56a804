"""A folder of content-addressed blobs, each under its SHA-256: ``ab/abcd...``.

A blob is written to a temporary file in the same folder and renamed into place once it is on disk, so a name that
exists holds the whole content.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Callable, Iterator

from experiments.core.canonical_json import digest
from store.errors import ArchiveError
from store.regular import read_regular

LARGEST = 1 << 30
"""Most bytes of a blob in the folder of a record."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_digest(name: object) -> bool:
    """Return whether `name` is a SHA-256 in lowercase hexadecimal; nothing else becomes a file name."""
    return isinstance(name, str) and _SHA256.fullmatch(name) is not None


Contents = Callable[[str], bytes | None]
"""Return the content that has a digest, or None. The caller verifies it."""


def folder_contents(folder: Path) -> Contents:
    """Return a reader of a flat folder of files named by their digests, as a run leaves them."""

    def read_content(name: str) -> bytes | None:
        if not os.path.lexists(folder / name):
            return None
        return read_regular(folder / name, LARGEST, "so it is no content of a record")

    return read_content


class Blobs:
    """Blobs by digest, in a folder that is created when the first one is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, content: bytes) -> None:
        """Store `content`, whose digest must be `name`. Idempotent; a damaged file is replaced.

        Raises ArchiveError if the digest does not match or the disk refuses.
        """
        if digest(content) != name:
            raise ArchiveError(f"content has the digest {digest(content)}, not {name!r}")
        path = self._path(name)
        try:
            if not (path.is_file() and path.read_bytes() == content):
                _write_durably(path, content)
        except OSError as error:
            raise ArchiveError(f"blob {name} cannot be written: {error}; free or mend the disk, add again") from error

    def read(self, name: str) -> bytes | None:
        """Return the content, or None if there is none. Raises ArchiveError if it does not match its digest."""
        try:
            content = self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ArchiveError(f"blob {name} cannot be read: {error}") from error
        if digest(content) != name:
            raise ArchiveError(f"blob {name} has the digest {digest(content)}: it is not what was stored")
        return content

    def has_content(self, name: str) -> bool:
        """Return whether there is a file of that name; only `read` verifies its content."""
        return self._path(name).is_file()

    def names(self) -> Iterator[str]:
        """Yield the digests of all blobs, sorted. Temporary files of an interrupted write are left out."""
        for path in sorted(self.folder.glob("??/*")):
            if is_digest(path.name) and path.parent.name == path.name[:2]:
                yield path.name

    def _path(self, name: str) -> Path:
        if not is_digest(name):
            raise ArchiveError(f"{name!r} is not a SHA-256 of 64 hexadecimal digits")
        return self.folder / name[:2] / name


def _write_durably(path: Path, content: bytes) -> None:
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        _sync_folder(path.parent.parent)
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable. Otherwise the archive might name a file that is lost in a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

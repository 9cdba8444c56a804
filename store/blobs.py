"""A folder of contents, each under its SHA-256: ``ab/abcd...``.

A content is written beside and renamed into place once it is on disk, so a name that exists holds all of it.
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
"""Bytes of a content that lies in a folder."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_digest(name: object) -> bool:
    """Whether it is a SHA-256 as we write it; anything else never becomes the name of a file."""
    return isinstance(name, str) and _SHA256.fullmatch(name) is not None


Contents = Callable[[str], bytes | None]
"""Gives the content that has a digest, or None. Whoever asks verifies it."""


def loose(folder: Path) -> Contents:
    """Contents of files that lie in a folder under their digests, as a run leaves them."""

    def content(name: str) -> bytes | None:
        if not os.path.lexists(folder / name):
            return None
        return read_regular(folder / name, LARGEST, "so it is no content of a record")

    return content


class Blobs:
    """Contents by digest, in a folder that is made when the first one is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, content: bytes) -> None:
        """Keep `content`, whose digest must be `name`. Twice is once; a damaged file is made good.

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
        """The content, or None if there is none. Raises ArchiveError if it does not match its digest."""
        try:
            content = self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ArchiveError(f"blob {name} cannot be read: {error}") from error
        if digest(content) != name:
            raise ArchiveError(f"blob {name} has the digest {digest(content)}: it is not what was stored")
        return content

    def has(self, name: str) -> bool:
        """Whether there is a file for it; `read` says whether the content is right."""
        return self._path(name).is_file()

    def names(self) -> Iterator[str]:
        """Digests of all that is kept, in order. Leftovers of a write that was killed are not among them."""
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
    beside = path.with_name(f".{secrets.token_hex(8)}")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable. Without it the archive might name a file that a power cut undid."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

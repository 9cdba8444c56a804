"""Open a file that may come from a stranger: regular files only, and without ever blocking."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from store.errors import ArchiveError

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises ArchiveError if it is not a regular file, or cannot be read.

    Reading a pipe would block, and a device may have no end.
    """
    try:
        _refuse_irregular(path, path.stat().st_mode)
        # The path may have been replaced meanwhile; with O_NONBLOCK, opening a pipe does not block.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            _refuse_irregular(path, os.fstat(descriptor).st_mode)
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
    except (OSError, ValueError) as error:
        raise ArchiveError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_regular(path: Path, most: int, what: str) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises ArchiveError if it is longer, with a message that ends in `what`, or cannot be read.
    """
    try:
        with open_regular(path) as file:
            # A sparse file may be long and take no space on disk: do not read it into memory.
            content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read: {error.strerror or error}") from None
    if content is None or len(content) > most:
        raise ArchiveError(f"{path} has more than {most} bytes, {what}")
    return content


def _refuse_irregular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise ArchiveError(f"{path} cannot be read: it is {kind}; give a regular file")

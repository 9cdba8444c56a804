"""Opens a file that somebody else may have put there: only a regular one, and without ever waiting for it."""

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
    """The file, opened for reading. Raises ArchiveError if it is none, or cannot be read.

    A pipe would be waited for, and a device may have no end.
    """
    try:
        _refuse_odd(path, path.stat().st_mode)
        # What it is may have changed since; opened so, a pipe is not waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            _refuse_odd(path, os.fstat(descriptor).st_mode)
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
    except (OSError, ValueError) as error:
        raise ArchiveError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_regular(path: Path, most: int, what: str) -> bytes:
    """All of a file of at most so many bytes; `what` ends the sentence on a longer one."""
    try:
        with open_regular(path) as file:
            # A file may be long and take no room on the disk: what is not read need not fit into memory.
            content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read: {error.strerror or error}") from None
    if content is None or len(content) > most:
        raise ArchiveError(f"{path} has more than {most} bytes, {what}")
    return content


def _refuse_odd(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise ArchiveError(f"{path} cannot be read: it is {kind}; give a regular file")

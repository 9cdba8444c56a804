"""File lock that gives a sweep to one driver at a time and ends with the process that holds it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import IO


def hold(path: Path) -> IO[bytes] | None:
    """Lock the file at `path` and return it; the lock lasts until the file is closed. None if another process holds it.

    Where the system has no such locks (Windows), every caller obtains it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = path.open("ab")
        if sys.platform == "win32":
            return file
        import fcntl  # noqa: PLC0415 - not on Windows

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        if _is_same_file(file, path):
            return file
        # The previous holder has released the lock and removed this file in the meantime.
        file.close()


def release(file: IO[bytes], path: Path) -> None:
    """Release a lock and remove its file."""
    if sys.platform != "win32":  # where an open file cannot be removed
        with contextlib.suppress(OSError):
            path.unlink()
    file.close()
    if sys.platform == "win32":
        with contextlib.suppress(OSError):
            path.unlink()


def _is_same_file(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False

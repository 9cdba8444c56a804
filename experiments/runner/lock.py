"""A sweep belongs to one driver at a time: a lock that ends with the process that holds it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import IO


def hold(path: Path) -> IO[bytes] | None:
    """The lock file at `path`, held until it is closed. None if another process holds it.

    Where the system has no such locks (Windows), every caller gets it.
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
        if _is_at(file, path):
            return file
        # The one who held it has let it go meanwhile, with its file.
        file.close()


def let_go(file: IO[bytes], path: Path) -> None:
    """End the hold on a lock, and take its file away."""
    if sys.platform != "win32":  # where an open file cannot be removed
        with contextlib.suppress(OSError):
            path.unlink()
    file.close()
    if sys.platform == "win32":
        with contextlib.suppress(OSError):
            path.unlink()


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False

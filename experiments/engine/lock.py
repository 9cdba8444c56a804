"""A sweep belongs to one driver at a time: a lock that ends with the process that holds it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO


def hold(path: Path) -> IO[bytes] | None:
    """The lock file at `path`, held until it is closed. None if another process holds it.

    Where the system has no such locks (Windows), every caller gets it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("ab")
    if sys.platform == "win32":
        return file
    import fcntl  # noqa: PLC0415 - not on Windows

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file

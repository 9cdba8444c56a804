"""Open an archive that this process may read but not write: another user's, or one on a read-only mount.

SQLite creates a log and an index next to a file in use, even for readers, and refuses to open the file where it cannot
create them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def is_writable(file: Path) -> bool:
    """Return whether SQLite can write the file, and its log and index next to it."""
    return os.access(file, os.W_OK) and os.access(file.absolute().parent, os.W_OK)


@contextlib.contextmanager
def sqlite_address(file: Path) -> Iterator[str]:
    """Yield the URI by which SQLite opens a file that may not be written. It is valid while the block runs."""
    log, index = (file.with_name(file.name + end) for end in ("-wal", "-shm"))
    if not log.exists() or not log.stat().st_size:
        # The file holds everything, and a process that may not write cannot lock others out either.
        yield f"{file.absolute().as_uri()}?immutable=1"
    elif index.exists() and os.access(index, os.R_OK):
        # Another process may be writing; the index says what can be read.
        yield f"{file.absolute().as_uri()}?mode=ro"
    else:
        with temporary_copy(file) as copy:
            yield copy.as_uri()


@contextlib.contextmanager
def temporary_copy(file: Path) -> Iterator[Path]:
    """Yield a writable copy of the file and its log. It is deleted when the block ends."""
    with tempfile.TemporaryDirectory(prefix="twofold-") as folder:
        for end in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                # Copy contents only: the permissions are the obstacle.
                shutil.copyfile(file.with_name(file.name + end), Path(folder) / f"archive.db{end}")
        yield Path(folder) / "archive.db"

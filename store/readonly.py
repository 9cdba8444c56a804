"""An archive that may be read and not written: another user's, or one on a mount that is read-only.

SQLite keeps a log and an index beside a file in use, also for who only reads; where it cannot make them, it refuses.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def may_be_written(file: Path) -> bool:
    """Whether SQLite can write the file and what it keeps beside it."""
    return os.access(file, os.W_OK) and os.access(file.absolute().parent, os.W_OK)


@contextlib.contextmanager
def address(file: Path) -> Iterator[str]:
    """How SQLite opens a file that may not be written, as long as the block runs."""
    log, index = (file.with_name(file.name + end) for end in ("-wal", "-shm"))
    if not log.exists() or not log.stat().st_size:
        # All of it is in the file, and who may not write cannot lock others out either.
        yield f"{file.absolute().as_uri()}?immutable=1"
    elif index.exists() and os.access(index, os.R_OK):
        # Somebody may be writing, and tells through the index what can be read.
        yield f"{file.absolute().as_uri()}?mode=ro"
    else:
        with copied(file) as copy:
            yield copy.as_uri()


@contextlib.contextmanager
def copied(file: Path) -> Iterator[Path]:
    """A copy with its log, which may be written, as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="twofold-") as folder:
        for end in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                # Contents alone: the rights are what is in the way.
                shutil.copyfile(file.with_name(file.name + end), Path(folder) / f"archive.db{end}")
        yield Path(folder) / "archive.db"

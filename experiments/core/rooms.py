"""The folders of this package, called rooms: which of them a worker loads, and which a capsule carries.

Portable rooms import only each other, the standard library and, in `worker`, torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

WORKER = ("core", "worker")
"""Rooms that a worker may load, in addition to the scenario."""
PORTABLE = (*WORKER, "runner", "bundle", "capsule")
"""Rooms that a capsule contains, and that run on Python 3.9."""
SHARED = ("__init__.py", "scenario.py")
"""Files outside the rooms that each of them may load."""


def program_files(package: Path, rooms: Sequence[str]) -> list[Path]:
    """Return the files of these rooms and the shared files, below the folder of the package, sorted."""
    shared = [package / name for name in SHARED]
    return sorted([*shared, *(path for room in rooms for path in (package / room).rglob("*.py"))])

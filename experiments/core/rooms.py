"""The rooms: which folders of this package a worker loads, and which a capsule carries.

Portable rooms import each other, the standard library, and, in `worker` alone, torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

WORKER = ("core", "worker")
"""What a worker may load, beside the scenario."""
PORTABLE = (*WORKER, "runner", "bundle", "capsule")
"""What travels in a capsule, and runs on Python 3.9."""
SHARED = ("__init__.py", "scenario.py")
"""Files beside the rooms that each of them may load."""


def program_files(package: Path, rooms: Sequence[str]) -> list[Path]:
    """Files of these rooms below the folder of the package, with the shared ones; sorted."""
    shared = [package / name for name in SHARED]
    return sorted([*shared, *(path for room in rooms for path in (package / room).rglob("*.py"))])

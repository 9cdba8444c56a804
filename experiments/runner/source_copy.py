"""Copies of the sources that a worker runs, verified by digest."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

from ..core.canonical_json import digest
from ..core.rooms import WORKER, program_files
from .errors import LaunchError


@dataclass(frozen=True)
class Copied:
    """A copy of the sources, checked against the originals."""

    root: Path
    digests: Mapping[str, str]
    """By path below the root."""


def copy_sources(root: Path, target: Path) -> Copied:
    """Copy what a worker runs into `target` and verify every file by its digest.

    Raises LaunchError if a copy differs from its original.
    """
    package = root / "experiments"
    paths = [*program_files(package, WORKER), *sorted((package / "scenarios").rglob("*.py"))]
    digests: dict[str, str] = {}
    for path in paths:
        name = path.relative_to(root)
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        digests[name.as_posix()] = digest(path.read_bytes())
        if digest(copy.read_bytes()) != digests[name.as_posix()]:
            raise LaunchError(f"the copy of {name} differs from its original")
    return Copied(target, digests)

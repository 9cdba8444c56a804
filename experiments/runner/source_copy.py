"""Copy the sources that a worker runs and verify the copies by digest."""

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
    """A verified copy of the sources."""

    root: Path
    digests: Mapping[str, str]
    """Digest of each file by its path below the root."""


def copy_sources(root: Path, target: Path) -> Copied:
    """Copy the files that a worker runs into `target` and verify each by its digest.

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

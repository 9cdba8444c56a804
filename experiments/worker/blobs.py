"""Content-addressed blobs in the worker's folder, which the parent collects."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


class Blobs:
    """A folder of files named by the SHA-256 of their content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, content: bytes) -> str:
        """Store `content` and return its digest."""
        name = hashlib.sha256(content).hexdigest()
        path = self.folder / name
        if not path.exists():
            partial = self.folder / f"{name}.{os.getpid()}"
            partial.write_bytes(content)
            partial.replace(path)
        return name

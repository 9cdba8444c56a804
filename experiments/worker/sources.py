"""The source files that determine the behaviour: ours with their content, torch's by digest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Iterator

import torch

from ..core.canonical_json import digest
from ..core.observation import Source
from ..core.rooms import WORKER, program_files

TORCH = (
    "version.py",
    "utils/checkpoint.py",
    "nn/attention/__init__.py",
    "nn/functional.py",
    "autograd/graph.py",
    "autograd/function.py",
)
"""Files below torch's own folder that implement the behaviour in question."""


def loaded_sources(root: Path, scenario: str) -> Iterator[tuple[Source, str]]:
    """Yield each source with its content, which is empty for torch, of which only the digest is kept."""
    for path in sorted(loaded_files(root, scenario)):
        content = path.read_bytes().decode("utf-8")
        yield Source(path.relative_to(root).as_posix(), digest(content), kept=True), content
    for name in TORCH:
        path = Path(torch.__file__).parent / name
        if path.is_file():
            yield Source(f"torch/{name}", digest(path.read_bytes()), kept=False), ""


def loaded_files(root: Path, scenario: str) -> Iterator[Path]:
    """Yield the files of this project that the process has loaded, and the scenario file."""
    package = root / "experiments"
    rooms = program_files(package, WORKER)
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    yield from (path for path in rooms if str(path) in loaded)
    yield package / "scenarios" / f"{scenario}.py"

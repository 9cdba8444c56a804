"""The files whose content decided what happened: ours with their content, torch's by digest."""

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
"""Below torch's own folder: where the behaviour in question is written."""


def loaded(root: Path, scenario: str) -> Iterator[tuple[Source, str]]:
    """Each source with its content; torch's content is empty, since only its digest is kept."""
    for path in sorted(files(root, scenario)):
        content = path.read_bytes().decode("utf-8")
        yield Source(path.relative_to(root).as_posix(), digest(content), kept=True), content
    for name in TORCH:
        path = Path(torch.__file__).parent / name
        if path.is_file():
            yield Source(f"torch/{name}", digest(path.read_bytes()), kept=False), ""


def files(root: Path, scenario: str) -> Iterator[Path]:
    """Our files that this process has loaded, and the scenario's."""
    package = root / "experiments"
    rooms = program_files(package, WORKER)
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    yield from (path for path in rooms if str(path) in loaded)
    yield package / "scenarios" / f"{scenario}.py"

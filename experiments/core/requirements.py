"""What a case needs, and whether the machine that an interpreter sees has it.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from .spec import Spec

_VERSION = re.compile(r"torch\s*(>=|<)\s*(\d+)\.(\d+)")


EXECUTED = "inductor, and a folder of the sweep whose files may be executed: it is mounted noexec"
"""What a case lacks that compiles where nothing may be executed."""


class NeedError(Exception):
    """A scenario names a need that is unknown. The message says which are known."""


def missing(specs: Sequence[Spec], machine: Mapping[str, Any], folder: Optional[Path] = None) -> dict[str, str]:
    """By spec digest, the first need of each spec that the machine (its facts) does not meet, or the folder, in or
    below which its process will have its own.

    Raises NeedError for a need that is unknown.
    """
    executes = folder is None or may_execute(folder)
    return {spec.digest(): need for spec in specs for need in _unmet(spec, machine, executes=executes)[:1]}


def may_execute(folder: Path) -> bool:
    """Whether files in a folder, which need not be there yet, may be executed. True where the system does not tell."""
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    if there is None or not hasattr(os, "ST_NOEXEC"):
        return True
    return not os.statvfs(there).f_flag & os.ST_NOEXEC


def _unmet(spec: Spec, machine: Mapping[str, Any], *, executes: bool) -> list[str]:
    needs = [*spec.mark.needs, *(["cuda"] if spec.question.device == "cuda" else [])]
    unmet = [need for need in needs if not _met(need, spec, machine)]
    return unmet if executes or "inductor" not in needs else [*unmet, EXECUTED]


def _met(need: str, spec: Spec, machine: Mapping[str, Any]) -> bool:
    device = spec.question.device
    if need == "cuda":
        return machine["gpu"] is not None and device == "cuda"
    if need == "inductor":
        return compiles(machine, device)
    found = _VERSION.fullmatch(need)
    if found is None:
        raise NeedError(
            f"{spec.question.scenario}: need {need!r} is unknown; known are cuda, inductor, torch>=X.Y and torch<X.Y"
        )
    asked = (int(found.group(2)), int(found.group(3)))
    return version(machine) >= asked if found.group(1) == ">=" else version(machine) < asked


def compiles(machine: Mapping[str, Any], device: str) -> bool:
    """Whether torch's default compiler finds what it needs to write code for the device."""
    compiler = machine["compiler"]
    return compiler["c++"] is not None and (device == "cpu" or compiler["triton"] is not None)


def version(machine: Mapping[str, Any]) -> tuple[int, ...]:
    """The first two numbers of torch's version."""
    return tuple(int(part) for part in re.findall(r"\d+", machine["torch"]["version"])[:2])

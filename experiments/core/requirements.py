"""Requirements of a case, and whether the machine that an interpreter sees meets them.

Imports only the standard library, and runs on Python 3.9.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from .spec import Spec

KNOWN = "cuda, inductor, torch>=X.Y and torch<X.Y"
"""What a case can need, in words."""

_VERSION = re.compile(r"torch\s*(>=|<)\s*(\d+)\.(\d+)")


EXECUTED = "inductor, and a folder of the sweep whose files may be executed: it is mounted noexec"
"""The unmet requirement of a case that compiles, in a folder whose files must not be executed."""


def is_known_need(need: str) -> bool:
    """Return whether a case can need this."""
    return need in ("cuda", "inductor") or _VERSION.fullmatch(need) is not None


class NeedError(Exception):
    """A scenario names an unknown requirement. The message lists the known ones."""


def missing_needs(specs: Sequence[Spec], machine: Mapping[str, Any], folder: Optional[Path] = None) -> dict[str, str]:
    """Return, by spec digest, the first requirement of each spec that is not met.

    `machine` are the facts of the machine; in or below `folder` lies the folder of the process. A spec whose
    requirements are met is left out. Raises NeedError for an unknown requirement.
    """
    executes = folder is None or may_execute(folder)
    return {spec.digest(): need for spec in specs for need in _unmet_needs(spec, machine, executes=executes)[:1]}


def may_execute(folder: Path) -> bool:
    """Return whether files in a folder, which need not exist yet, may be executed. True if the system does not say."""
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    if there is None or not hasattr(os, "ST_NOEXEC"):
        return True
    return not os.statvfs(there).f_flag & os.ST_NOEXEC


def _unmet_needs(spec: Spec, machine: Mapping[str, Any], *, executes: bool) -> list[str]:
    needs = [*spec.mark.needs, *(["cuda"] if spec.question.device == "cuda" else [])]
    unmet = [need for need in needs if not _is_met(need, spec, machine)]
    return unmet if executes or "inductor" not in needs else [*unmet, EXECUTED]


def _is_met(need: str, spec: Spec, machine: Mapping[str, Any]) -> bool:
    device = spec.question.device
    if need == "cuda":
        return machine["gpu"] is not None and device == "cuda"
    if need == "inductor":
        return can_compile(machine, device)
    found = _VERSION.fullmatch(need)
    if found is None:
        raise NeedError(f"{spec.question.scenario}: need {need!r} is unknown; known are {KNOWN}")
    asked = (int(found.group(2)), int(found.group(3)))
    return torch_version(machine) >= asked if found.group(1) == ">=" else torch_version(machine) < asked


def can_compile(machine: Mapping[str, Any], device: str) -> bool:
    """Return whether torch's default compiler has what it needs to generate code for the device."""
    compiler = machine["compiler"]
    return compiler["c++"] is not None and (device == "cpu" or compiler["triton"] is not None)


def torch_version(machine: Mapping[str, Any]) -> tuple[int, ...]:
    """Return major and minor version of torch."""
    return tuple(int(part) for part in re.findall(r"\d+", machine["torch"]["version"])[:2])

"""What a case needs, and whether the machine that an interpreter sees has it.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

from .record import Spec

_VERSION = re.compile(r"torch\s*(>=|<)\s*(\d+)\.(\d+)")


class NeedError(Exception):
    """A scenario names a need that is unknown. The message says which are known."""


def missing(specs: Sequence[Spec], machine: Mapping[str, Any]) -> dict[str, str]:
    """By spec digest, the first need of each spec that the machine (its facts) does not meet.

    Raises NeedError for a need that is unknown.
    """
    return {spec.digest(): need for spec in specs for need in _unmet(spec, machine)[:1]}


def _unmet(spec: Spec, machine: Mapping[str, Any]) -> list[str]:
    needs = [*spec.mark.needs, *(["cuda"] if spec.question.device == "cuda" else [])]
    return [need for need in needs if not _met(need, spec, machine)]


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

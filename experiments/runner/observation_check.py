"""Check the observation that a worker left: a case may have tampered with it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Mapping

from ..core.canonical_json import RecordError, canonical, digest
from ..core.observation import Observation
from ..core.outcome import PHASES
from ..core.spec import Spec

_PLAIN: Mapping[str, Any] = {"str": str, "int": int, "float": float, "bool": bool, "None": type(None)}


def refuse_malformed(seen: Observation) -> None:
    """Raise RecordError for values that no worker writes or that no archive could store."""
    outcome = seen.outcome
    if outcome.kind not in ("finished", "raised", "not_observed") or outcome.phase not in (None, *PHASES):
        raise RecordError(f"a worker does not say {outcome.kind!r} in {outcome.phase!r}")
    operators = [one for listed in (seen.operators or {}).values() for one in listed]
    parts: tuple[Any, ...] = (*seen.tensors, *seen.observed, *seen.state, *seen.memory, *seen.sources, *operators)
    for part in (seen, outcome, *parts):
        for field in fields(part):
            value, kinds = getattr(part, field.name), [_PLAIN.get(name) for name in str(field.type).split(" | ")]
            if (None not in kinds and type(value) not in kinds) or (type(value) is int and abs(value) >= 2**53):
                raise RecordError(f"{field.name} is {value!r:.100}, not {field.type}")
    sizes = [tensor.shape or () for tensor in seen.tensors] + [shape for one in operators for shape in one.shapes]
    if not all(type(size) is int and 0 <= size < 2**53 for shape in sizes for size in shape):
        raise RecordError("a shape holds what is no size")
    if not all(isinstance(name, str) for name in outcome.bases):
        raise RecordError("a base class has no name")
    # Nested as deeply as they will be in the record.
    canonical([[[[one.value for one in seen.observed], [(one.before, one.after) for one in seen.state]]]])


def refuse_missing_blobs(seen: Observation, blobs: Path) -> None:
    """Raise RecordError if a blob that the observation names is missing or does not match its digest."""
    for name, kind in seen.blobs().items():
        path = blobs / name if len(name) == 64 and name.isalnum() else None
        if path is None or not path.is_file() or digest(path.read_bytes()) != name:
            raise RecordError(f"it names the {kind} {name!r:.100}, which is not there")


def find_source_change(spec: Spec, root: Path) -> str | None:
    """Return the unmet requirement if the scenario file has changed since it was planned, else None."""
    try:
        content = (root / "experiments" / "scenarios" / f"{spec.question.scenario}.py").read_bytes()
    except OSError:
        content = b""
    return None if digest(content) == spec.question.source else "the scenario file as it was planned: it has changed"

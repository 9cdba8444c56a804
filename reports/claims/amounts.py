"""Figures for sentences, out of replays: memory, time and counts, with what they were measured in. Pure."""

from __future__ import annotations

import math
import statistics
from typing import Any, Callable, Sequence

from experiments.analysis.series import Fit
from experiments.core.observation import Tensor
from experiments.core.quantities import median_and_range, span, with_error
from experiments.core.record import Record
from experiments.core.replay import Replay

MEBIBYTE = 2**20
SCORES = "score tensor, bytes"
"""What the scenarios on `flex_attention` observe: bytes of the scores of all queries with all keys."""

Amount = Callable[[Record], "float | None"]


def observed(record: Record | None, name: str) -> Any:
    """A value that the case observed. None if it did not."""
    seen = record.observation if record is not None and record.outcome.kind != "not_observed" else None
    return next((one.value for one in (seen.observed if seen else ()) if one.name == name), None)


def observed_number(record: Record | None, name: str) -> float | None:
    """A number that the case observed. None if it is none."""
    value = observed(record, name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def number(name: str) -> Amount:
    """A number that the case observed, as an amount."""
    return lambda record: observed_number(record, name)


def peak(record: Record, phase: str = "forward") -> int | None:
    """Bytes at the peak of a phase above its start. None if the case did not finish, or the system does not tell."""
    return _grown(record, phase, peak=True)


def held(record: Record, phase: str = "forward") -> int | None:
    """Bytes at the end of a phase above its start. None if the case did not finish, or the system does not tell."""
    return _grown(record, phase, peak=False)


def _grown(record: Record, phase: str, *, peak: bool) -> int | None:
    seen = record.observation
    if seen is None or record.outcome.kind != "finished":
        return None
    return next((row.grown(peak=peak) for row in seen.memory if row.phase == phase), None)


def whole_peak(record: Record) -> int | None:
    """Bytes at the peak of forward and backward together, above the start of forward."""
    forward, kept, backward = peak(record), held(record), peak(record, "backward")
    return None if forward is None or kept is None or backward is None else max(forward, kept + backward)


def in_scores(record: Record) -> float | None:
    """The forward peak in score tensors."""
    reached, size = peak(record), observed_number(record, SCORES)
    return reached / size if reached is not None and size else None


def in_outputs(record: Record) -> float | None:
    """The forward peak in outputs of an attention, which are of the size of its query; a case observes a part of it."""
    reached, size = peak(record), sum(_bytes(one) for one in _queries(record))
    return reached / size if reached is not None and size else None


_WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape or ()) * _WIDTHS.get(tensor.dtype or "", 0)


def _queries(record: Record) -> list[Tensor]:
    seen = record.observation
    return [one for one in (seen.tensors if seen else ()) if (one.role, one.name) == ("input", "query")]


def mebibytes(amount: Amount) -> Amount:
    """The same amount in MiB."""

    def scaled(record: Record) -> float | None:
        found = amount(record)
        return None if found is None else found / MEBIBYTE

    return scaled


def values(replays: Sequence[Replay], amount: Amount) -> list[float]:
    """What was measured, of the replays that tell."""
    found = [amount(replay.plain) for replay in replays if replay.plain is not None]
    return [value for value in found if value is not None]


def figure(replays: Sequence[Replay], amount: Amount, unit: str = "") -> str:
    """Of one case its median and range; of several cases the range of all runs."""
    found = values(replays, amount)
    cases = len({replay.spec.question.case_digest() for replay in replays})
    if not found or cases <= 1:
        return median_and_range(found, unit) if found else "no figure"
    return f"{span(found)} {unit}".rstrip() + f" ({len(found)} runs of {cases} cases)"


def middle(replays: Sequence[Replay], amount: Amount) -> float | None:
    """The median. None if nothing was measured."""
    found = values(replays, amount)
    return statistics.median(found) if found else None


def places(replays: Sequence[Replay], parameter: str) -> str:
    """From where to where a parameter goes."""
    found = sorted({int(replay.spec.question.parameters[parameter]) for replay in replays})
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def power(fitted: Fit | None) -> str:
    """A fitted exponent with its standard error."""
    return "unknown" if fitted is None else with_error(fitted.exponent, fitted.error)

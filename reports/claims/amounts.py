"""Figures of replays for sentences: memory, time and counts, with their units. Pure."""

from __future__ import annotations

import math
import statistics
from typing import Any, Callable, Sequence

from experiments.analysis.series import Fit
from experiments.core.observation import Tensor
from experiments.core.quantities import median_and_range, range_text, value_and_error
from experiments.core.record import Record
from experiments.core.replay import Replay

MEBIBYTE = 2**20
SCORES = "score tensor, bytes"
"""Name under which the scenarios on `flex_attention` observe the bytes of the scores of all queries with all keys."""

Amount = Callable[[Record], "float | None"]


def observed_value(record: Record | None, name: str) -> Any:
    """Return a value that the case observed, or None if it did not."""
    seen = record.observation if record is not None and record.outcome.kind != "not_observed" else None
    return next((one.value for one in (seen.observed if seen else ()) if one.name == name), None)


def observed_number(record: Record | None, name: str) -> float | None:
    """Return a number that the case observed, or None if there is no such number."""
    value = observed_value(record, name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def observed_amount(name: str) -> Amount:
    """Return the amount that reads a number which the case observed."""
    return lambda record: observed_number(record, name)


def peak_bytes(record: Record, phase: str = "forward") -> int | None:
    """Return the bytes at the peak of a phase above its start. None if the case did not finish or was not measured."""
    return _memory_growth(record, phase, peak=True)


def held_bytes(record: Record, phase: str = "forward") -> int | None:
    """Return the bytes at the end of a phase above its start. None if the case did not finish or was not measured."""
    return _memory_growth(record, phase, peak=False)


def _memory_growth(record: Record, phase: str, *, peak: bool) -> int | None:
    seen = record.observation
    if seen is None or record.outcome.kind != "finished":
        return None
    return next((row.growth(peak=peak) for row in seen.memory if row.phase == phase), None)


def whole_peak(record: Record) -> int | None:
    """Return the bytes at the peak of forward and backward together, above the start of forward."""
    forward, kept, backward = peak_bytes(record), held_bytes(record), peak_bytes(record, "backward")
    return None if forward is None or kept is None or backward is None else max(forward, kept + backward)


def peak_in_scores(record: Record) -> float | None:
    """Return the forward peak in score tensors."""
    reached, size = peak_bytes(record), observed_number(record, SCORES)
    return reached / size if reached is not None and size else None


def peak_in_outputs(record: Record) -> float | None:
    """Return the forward peak in outputs of an attention. Their size is that of the query: a case records only part."""
    reached, size = peak_bytes(record), sum(_bytes(one) for one in _queries(record))
    return reached / size if reached is not None and size else None


_WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape or ()) * _WIDTHS.get(tensor.dtype or "", 0)


def _queries(record: Record) -> list[Tensor]:
    seen = record.observation
    return [one for one in (seen.tensors if seen else ()) if (one.role, one.name) == ("input", "query")]


def in_mebibytes(amount: Amount) -> Amount:
    """Return the same amount in MiB."""

    def scale_amount(record: Record) -> float | None:
        found = amount(record)
        return None if found is None else found / MEBIBYTE

    return scale_amount


def values(replays: Sequence[Replay], amount: Amount) -> list[float]:
    """Return what was measured, of the replays that have a measurement."""
    found = [amount(replay.plain) for replay in replays if replay.plain is not None]
    return [value for value in found if value is not None]


def figure(replays: Sequence[Replay], amount: Amount, unit: str = "") -> str:
    """Return the median and range of one case, or the range of all runs of several cases."""
    found = values(replays, amount)
    cases = len({replay.spec.question.case_digest() for replay in replays})
    if not found or cases <= 1:
        return median_and_range(found, unit) if found else "no figure"
    return f"{range_text(found)} {unit}".rstrip() + f" ({len(found)} runs of {cases} cases)"


def median_amount(replays: Sequence[Replay], amount: Amount) -> float | None:
    """Return the median. None if nothing was measured."""
    found = values(replays, amount)
    return statistics.median(found) if found else None


def parameter_range(replays: Sequence[Replay], parameter: str) -> str:
    """Return the smallest and the largest value of a parameter."""
    found = sorted({int(replay.spec.question.parameters[parameter]) for replay in replays})
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def exponent_text(fitted: Fit | None) -> str:
    """Return a fitted exponent with its standard error."""
    return "unknown" if fitted is None else value_and_error(fitted.exponent, fitted.error)

"""Numbers in sentences: with as many digits as were measured, and with the number of measurements.

The value of a single run says "one run". That of several runs is their median, with the smallest and the largest value.

Imports only the standard library, and runs on Python 3.9.
"""

from __future__ import annotations

import math
import statistics
from typing import Sequence

DIGITS = 2
"""Significant digits of a measurement that changes from run to run, such as memory or time. One more if the first is 1,
since two would round the value by up to a twentieth."""
MOST = 4
"""Maximum number of digits of a range whose bounds would look equal with fewer."""


def format_significant(value: float, digits: int = DIGITS) -> str:
    """Round to `digits` significant digits, in plain notation below a million: ``3.9``, ``340``, ``107``."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    digits += f"{value:e}".lstrip("-").startswith("1")
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if exponent >= 6 or exponent < -4:
        return f"{value:.{digits - 1}e}"
    return f"{rounded:.{max(0, digits - 1 - exponent)}f}"


def median_and_range(values: Sequence[float], unit: str = "", digits: int = DIGITS) -> str:
    """Return the median of repeated measurements with their range: ``3.9 MiB (median of 5 runs, 3.6 to 4.2)``.

    For a single measurement ``3.9 MiB (one run)``. Raises ValueError if there is none.
    """
    if not values:
        raise ValueError("a figure needs at least one measurement")
    middle = format_significant(statistics.median(values), digits)
    shown = f"{middle} {unit}".rstrip()
    if len(values) == 1:
        return f"{shown} (one run)"
    return f"{shown} (median of {len(values)} runs, {_range_words(values, digits)})"


def range_cell(values: Sequence[float], digits: int = DIGITS) -> str:
    """Return the same for the cell of a table: ``3.9 (5 runs, 3.6 to 4.2)``, ``3.9 (one run)``.

    Raises ValueError if there is no measurement.
    """
    if not values:
        raise ValueError("a figure needs at least one measurement")
    middle, runs = format_significant(statistics.median(values), digits), "one run"
    if len(values) > 1:
        runs = f"{len(values)} runs, {_range_words(values, digits)}"
    return f"{middle} ({runs})"


def range_text(values: Sequence[float], digits: int = DIGITS) -> str:
    """Return the smallest and the largest value: ``3.6 to 4.2``; ``3.3`` if they are equal to the digits shown."""
    return _range_words(values, digits).removeprefix("all ")


def _range_words(values: Sequence[float], digits: int) -> str:
    bounds = min(values), max(values)
    low, high = (format_significant(bound, digits) for bound in bounds)
    while low == high and bounds[0] != bounds[1] and digits < MOST:
        digits += 1
        low, high = (format_significant(bound, digits) for bound in bounds)
    return f"all {low}" if low == high else f"{low} to {high}"


def format_count(value: float) -> str:
    """Return a count, such as units in the last place: all digits of a whole number, else three."""
    return f"{value:.0f}" if math.isfinite(value) and value == round(value) else f"{value:.3g}"


def format_share(part: int, whole: int) -> str:
    """Return a share in percent, which is never rounded to 0 or 100: ``0.3 %``, ``< 0.1 %``, ``> 99.9 %``.

    An empty string if `part` is 0.
    """
    if not part:
        return ""
    percent = 100 * part / whole
    if part < whole and percent > 99.9:
        return "> 99.9 %"
    return "< 0.1 %" if percent < 0.1 else f"{percent:.1f} %"


EXACT = 1e-9
"""Relative error below which it comes from the arithmetic, not from the measurement."""


def value_and_error(value: float, error: float) -> str:
    """Return a value and its standard error, both to the digits that the error justifies: ``1.9964 ± 0.0002``.

    The error has one significant digit, or two if the first is a 1. An error of zero is shown as ``2 (no scatter)``,
    and one that is not a finite number as ``2.0 (error not known)``.
    """
    if not (math.isfinite(value) and math.isfinite(error) and error >= 0):
        return f"{format_significant(value)} (error not known)"
    if error <= EXACT * abs(value):
        return f"{value:.4g} (no scatter)"
    exponent = math.floor(math.log10(error))
    digits = 1 if f"{error:e}".startswith("1") else 0
    decimals = digits - exponent
    shown, scatter = (f"{round(one, decimals) + 0.0:.{max(0, decimals)}f}" for one in (value, error))
    return f"{shown} ± {scatter}"

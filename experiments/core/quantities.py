"""Numbers in sentences: as many digits as were measured, and how often they were measured.

A figure of one run says "one run". A figure of several is their median, with the smallest and the largest beside it.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import math
import statistics
from typing import Sequence

DIGITS = 2
"""Significant digits of a figure that is measured and moves from run to run, such as memory or time: one more where the
first is a 1, since two would round a figure by up to a twentieth."""
MOST = 4
"""Digits of a range that fewer would show as none."""


def significant(value: float, digits: int = DIGITS) -> str:
    """`value` rounded to `digits` significant digits, in plain notation below a million: ``3.9``, ``340``, ``107``."""
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
    """The median of repeated measurements with their range: ``3.9 MiB (median of 5 runs, 3.6 to 4.2)``; of a single
    one ``3.9 MiB (one run)``. Raises ValueError if there is none.
    """
    if not values:
        raise ValueError("a figure needs at least one measurement")
    middle = significant(statistics.median(values), digits)
    shown = f"{middle} {unit}".rstrip()
    if len(values) == 1:
        return f"{shown} (one run)"
    return f"{shown} (median of {len(values)} runs, {_between(values, digits)})"


def with_range(values: Sequence[float], digits: int = DIGITS) -> str:
    """As `median_and_range`, for the cell of a table: ``3.9 (5 runs, 3.6 to 4.2)``, ``3.9 (one run)``. Raises
    ValueError if there is none.
    """
    if not values:
        raise ValueError("a figure needs at least one measurement")
    middle, runs = significant(statistics.median(values), digits), "one run"
    if len(values) > 1:
        runs = f"{len(values)} runs, {_between(values, digits)}"
    return f"{middle} ({runs})"


def span(values: Sequence[float], digits: int = DIGITS) -> str:
    """The smallest and the largest: ``3.6 to 4.2``; ``3.3`` where they are the same to the digits that are shown."""
    return _between(values, digits).removeprefix("all ")


def _between(values: Sequence[float], digits: int) -> str:
    bounds = min(values), max(values)
    low, high = (significant(bound, digits) for bound in bounds)
    while low == high and bounds[0] != bounds[1] and digits < MOST:
        digits += 1
        low, high = (significant(bound, digits) for bound in bounds)
    return f"all {low}" if low == high else f"{low} to {high}"


def counted(value: float) -> str:
    """A number that was counted, such as units in the last place: every digit of a whole number, three of another."""
    return f"{value:.0f}" if math.isfinite(value) and value == round(value) else f"{value:.3g}"


def share(part: int, whole: int) -> str:
    """A share of what was counted, in percent; a part is never shown as nothing or as all: ``0.3 %``, ``< 0.1 %``,
    ``> 99.9 %``. No part at all is the empty string.
    """
    if not part:
        return ""
    percent = 100 * part / whole
    if part < whole and percent > 99.9:
        return "> 99.9 %"
    return "< 0.1 %" if percent < 0.1 else f"{percent:.1f} %"


EXACT = 1e-9
"""Share of a value below which its error is that of the arithmetic, not of what was measured."""


def with_error(value: float, error: float) -> str:
    """A value and its standard error, both to the digits that the error leaves: ``1.9964 ± 0.0002``, ``1.98 ± 0.03``.

    The error has one significant digit, or two where the first is a 1. No error that says nothing is printed: one of
    zero becomes ``2 (no scatter)``, and one that is no number ``2.0 (error not known)``.
    """
    if not (math.isfinite(value) and math.isfinite(error) and error >= 0):
        return f"{significant(value)} (error not known)"
    if error <= EXACT * abs(value):
        return f"{value:.4g} (no scatter)"
    exponent = math.floor(math.log10(error))
    digits = 1 if f"{error:e}".startswith("1") else 0
    decimals = digits - exponent
    shown, scatter = (f"{round(one, decimals) + 0.0:.{max(0, decimals)}f}" for one in (value, error))
    return f"{shown} ± {scatter}"

"""Numbers in sentences: as many digits as were measured, and how often they were measured.

A figure of one run says "one run". A figure of several is their median, with the smallest and the largest beside it.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import math
import statistics
from typing import Sequence

DIGITS = 2
"""Significant digits of a figure that is measured and moves from run to run, such as memory or time."""


def significant(value: float, digits: int = DIGITS) -> str:
    """`value` rounded to `digits` significant digits, in plain notation below a million: ``3.9``, ``340``."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
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
    low, high = (significant(bound, digits) for bound in (min(values), max(values)))
    between = f"all {low}" if low == high else f"{low} to {high}"
    return f"{shown} (median of {len(values)} runs, {between})"

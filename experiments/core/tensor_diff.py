"""Differences of two tensors. The only module that computes differences from stored tensors.

Every number states what was compared: all elements of a tensor that was stored whole, or the fixed sample of one that
was not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .observation import Tensor
from .record import Record
from .sampling import SAMPLES, sample_positions
from .tensor_values import (
    COMPLEX_PARTS,
    ELEMENT_BYTES,
    NUMERIC_DTYPES,
    Fetch,
    Number,
    is_finite,
    is_nan,
    is_rounded,
    ordered_integers,
    real_values,
    ulp,
    values,
)

SKETCH_ERROR = 0.03
"""Relative standard error of a distance estimated from two sketches of 1024 numbers: the root of 1 / 1024."""
SKETCH_ERRORS = 3
"""Number of standard errors by which a sketch may be off."""


# Differences of two records.


PLACES = 4
"""Units in its own last place by which rounding may separate two elements: two on either side."""


@dataclass(frozen=True)
class Difference:
    """How one tensor differs between two records."""

    role: str
    name: str
    dtype: str
    """Dtype of the first record's tensor, whose ULP is the unit of `ulp`."""
    elements: int
    compared: int
    """Elements compared: all, or the sample of a tensor too large to be stored. 0 if neither was available."""
    equal_bits: int
    """Elements compared that have the same bits. 0 where the dtypes differ."""
    absolute: float
    """Largest absolute difference, in the tensor's own unit. Infinite where only one is NaN."""
    relative: float
    """Largest absolute difference over the largest absolute value of the second."""
    ulp: float
    """Largest difference in units in the last place of the first's dtype. NaN if it has none."""
    distance: float | None
    """Estimated square root of the sum of squared differences, from the sketches of large tensors, with a
    relative standard error of about 3 %. None for tensors stored whole."""
    beyond: float = 0.0
    """Largest absolute difference of an element beyond `PLACES` units in the last place of that element itself, so that
    a large element does not excuse a small one. Infinite where only one is NaN."""
    blur: float = 0.0
    """Possible error of `distance` because the sketches are sums, which lose small elements next to very large ones."""

    @property
    def sampled(self) -> str:
        """Words to append to a number that comes from a sample. Empty if every element was compared."""
        return (
            "" if self.compared == self.elements else f" (in a sample of {self.compared} of {self.elements} elements)"
        )

    @property
    def same_bits(self) -> bool:
        """Whether all elements were compared and have the same bits."""
        return not math.isnan(self.absolute) and self.equal_bits == self.compared == self.elements

    @property
    def at_least(self) -> float:
        """Lower bound of the largest absolute difference of all elements, in the tensor's own unit.

        It comes from the elements compared or, for a large tensor, from the sketch of all of them. NaN if nothing could
        be compared.
        """
        if self.distance is None or not self.elements:
            return self.absolute
        spread = (self.distance * (1 - SKETCH_ERRORS * SKETCH_ERROR) - self.blur) / math.sqrt(self.elements)
        return max(self.absolute, spread)

    @property
    def at_most(self) -> float:
        """Upper bound of the largest absolute difference of all elements, in the tensor's own unit.

        Infinite if elements were not compared and no sketch bounds them. NaN if nothing could be compared.
        """
        if self.compared == self.elements or math.isnan(self.absolute):
            return self.absolute
        if self.distance is None or math.isnan(self.distance):
            return math.inf
        return max(self.absolute, self.distance * (1 + SKETCH_ERRORS * SKETCH_ERROR) + self.blur)

    @property
    def seen(self) -> str:
        """The largest difference in words, with where it was observed: all elements, a sample, or the sketch."""
        if self.at_least > self.absolute:
            return (
                f"at least {self.at_least:.3g} somewhere among its {self.elements} elements (from sketches, to "
                f"{SKETCH_ERROR:.0%}; {self.absolute:.3g}{self.sampled})"
            )
        endless = " (one is NaN or infinite there, the other is not or otherwise)" if math.isinf(self.absolute) else ""
        return f"{self.absolute:.3g}{endless}{self.sampled}"


def differences(ours: Record, theirs: Record, fetch: Fetch) -> list[Difference]:
    """Compare the outputs and gradients that both records have.

    Tensors with the same digest are equal whether or not their content is available.
    """
    if ours.observation is None or theirs.observation is None:
        return []
    others = {(tensor.role, tensor.name): tensor for tensor in theirs.observation.tensors}
    pairs = [(tensor, others.get((tensor.role, tensor.name))) for tensor in ours.observation.tensors]
    return [
        difference(first, second, fetch)
        for first, second in pairs
        if second is not None and first.role != "input" and first.digest and second.digest
    ]


def difference(ours: Tensor, theirs: Tensor, fetch: Fetch) -> Difference:
    """Compare two tensors. No elements are compared if shapes or layouts differ or the content is missing."""
    dtype = ours.dtype or ""
    elements = math.prod(ours.shape or ())
    same_form = ours.shape == theirs.shape and ours.layout == theirs.layout
    if ours.digest == theirs.digest and ours.dtype == theirs.dtype and same_form:
        return Difference(ours.role, ours.name, dtype, elements, elements, elements, 0.0, 0.0, 0.0, None)
    whole = ours.whole and theirs.whole
    first, second = stored_bytes(ours, fetch, whole=whole), stored_bytes(theirs, fetch, whole=whole)
    kinds = {ours.dtype, theirs.dtype}
    alike = same_form and kinds <= NUMERIC_DTYPES and len({dtype in COMPLEX_PARTS for dtype in kinds}) == 1
    if first is None or second is None or not alike:
        return Difference(ours.role, ours.name, dtype, elements, 0, 0, math.nan, math.nan, math.nan, None)
    return _cached_difference(ours, theirs, first, second, fetch)


MOST_KNOWN = 20_000
_known: dict[tuple[Tensor, Tensor], Difference] = {}
"""Cache of computed differences: verdicts, ranks and reports request the same pair, whose content cannot change."""


def _cached_difference(ours: Tensor, theirs: Tensor, first: bytes, second: bytes, fetch: Fetch) -> Difference:
    """Return the difference of two tensors from the cache, or compute it."""
    if (ours, theirs) in _known:
        return _known[ours, theirs]
    made = _compare_elements(ours, theirs, first, second, fetch)
    if made.compared == made.elements:  # else it depends on whether the sketches are available
        _known[ours, theirs] = made
        if len(_known) > MOST_KNOWN:
            del _known[next(iter(_known))]
    return made


def stored_bytes(tensor: Tensor, fetch: Fetch, *, whole: bool) -> bytes | None:
    """Return the bytes of all elements if both sides are `whole`, else those of the sample. None if not available."""
    wanted = tensor.digest if tensor.whole else tensor.samples
    content = None if wanted is None else fetch(wanted)
    elements, width = math.prod(tensor.shape or ()), ELEMENT_BYTES.get(tensor.dtype or "", 0)
    kept = elements if tensor.whole else min(elements, SAMPLES)
    if content is None or len(content) != kept * width:
        return None  # A record from elsewhere may refer to content that does not fit the tensor.
    if whole or not tensor.whole:
        return content
    return b"".join(content[at * width : (at + 1) * width] for at in sample_positions(elements))


def ulp_steps(ours: Tensor, theirs: Tensor, fetch: Fetch) -> list[int] | None:
    """Return by how many units in the last place each compared element differs.

    None for tensors that are not floats of the same dtype, or whose content is not available.
    """
    dtype, whole = ours.dtype or "", ours.whole and theirs.whole
    if not is_rounded(dtype) or dtype != theirs.dtype or ours.shape != theirs.shape or ours.layout != theirs.layout:
        return None
    first, second = stored_bytes(ours, fetch, whole=whole), stored_bytes(theirs, fetch, whole=whole)
    if first is None or second is None:
        return None
    return [abs(a - b) for a, b in zip(ordered_integers(first, dtype), ordered_integers(second, dtype))]


def _compare_elements(ours: Tensor, theirs: Tensor, first: bytes, second: bytes, fetch: Fetch) -> Difference:
    dtype, other = ours.dtype or "", theirs.dtype or ""
    left, right = values(first, dtype), values(second, other)
    gaps = [element_gap(a, b) for a, b in zip(left, right)]
    scale = max((magnitude(value) for value in right if is_finite(value)), default=0.0)
    absolute = max(gaps, default=0.0)
    return Difference(
        role=ours.role,
        name=ours.name,
        dtype=dtype,
        elements=math.prod(ours.shape or ()),
        compared=len(gaps),
        equal_bits=_count_equal_bits(first, second, len(gaps)) if dtype == other else 0,
        absolute=absolute,
        relative=absolute / scale if scale else (0.0 if absolute == 0 else math.inf),
        ulp=_largest_ulps(first, second, gaps, right, dtype, same=dtype == other),
        distance=_sketch_distance(ours, theirs, fetch),
        blur=_sketch_blur(ours) + _sketch_blur(theirs),
        beyond=max((gap - PLACES * ulp(magnitude(b), dtype) for gap, b in zip(gaps, right)), default=0.0)
        if is_rounded(dtype)
        else absolute,
    )


def element_gap(first: Number, second: Number) -> float:
    """Return the absolute difference. Infinite if only one is NaN, or infinite."""
    if is_nan(first) or is_nan(second):
        return 0.0 if is_nan(first) and is_nan(second) else math.inf
    if first == second:
        return 0.0
    return magnitude(first - second) if is_finite(first) and is_finite(second) else math.inf


def magnitude(value: Number) -> float:
    """Return the absolute value. Infinite if that of a complex number is larger than any float."""
    try:
        return abs(value)
    except OverflowError:
        return math.inf


def _count_equal_bits(first: bytes, second: bytes, count: int) -> int:
    width = len(first) // count if count else 1
    return sum(first[at : at + width] == second[at : at + width] for at in range(0, len(first), width))


def _largest_ulps(
    first: bytes, second: bytes, gaps: list[float], right: list[Number], dtype: str, *, same: bool
) -> float:
    if not is_rounded(dtype):
        return math.nan
    if same and dtype not in COMPLEX_PARTS:
        steps = zip(ordered_integers(first, dtype), ordered_integers(second, dtype), gaps)
        return float(max((abs(a - b) for a, b, gap in steps if gap), default=0))
    return max((gap / ulp(magnitude(value), dtype) for gap, value in zip(gaps, right)), default=0.0)


def _sketch_distance(ours: Tensor, theirs: Tensor, fetch: Fetch) -> float | None:
    first = fetch(ours.sketch) if ours.sketch else None
    second = fetch(theirs.sketch) if theirs.sketch else None
    if first is None or second is None or len(first) != len(second) or len(first) % 8:
        return None
    pairs = zip(real_values(first, "float64"), real_values(second, "float64"))
    try:
        return math.sqrt(sum((a - b) ** 2 for a, b in pairs))
    except OverflowError:  # a sketch from elsewhere may hold impossible values
        return math.inf


def _sketch_blur(tensor: Tensor) -> float:
    """Return the possible rounding error of the sums of a sketch, which add elements in float64, all together."""
    if not tensor.sketch:
        return 0.0
    if tensor.largest is None or not math.isfinite(tensor.largest):
        return math.inf
    return tensor.largest * math.prod(tensor.shape or ()) * 2.0**-53

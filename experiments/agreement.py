"""Whether two replays agree, by how much they differ, and where first.

The only module that computes differences from stored tensors. What was compared is said with every
number: all elements of a tensor that was kept whole, the fixed sample of one that was not.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import bisect
import math
import struct
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import count, zip_longest
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Tuple, Union

from .record import SAMPLES, Observation, Operator, Outcome, Record, Replay, Tensor, canonical, sample_positions

Fetch = Callable[[str], Optional[bytes]]
"""Content by digest, or None where it is not at hand."""

RANKS = {
    1: "identical",
    2: "equal within rounding",
    3: "same outcome by another path",
    4: "different values",
    5: "different outcome",
    6: "cannot compare",
}

LONGEST = 240
"""Characters of a text that is shown as a first difference."""
SKETCH_ERROR = 0.03
"""Relative standard error of a distance estimated from two sketches of 1024 numbers: the root of 1 / 1024."""
SKETCH_ERRORS = 3
"""Standard errors that a sketch is allowed."""

_FORMATS = {"float32": "f", "float64": "d", "float16": "e"}
_SIGNED = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}
_INTEGERS = {**_SIGNED, "bool": "B", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q"}
_COMPLEX = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""Of which dtype the two parts are."""
_BYTES = {
    **{dtype: struct.calcsize(code) for dtype, code in {**_FORMATS, **_INTEGERS}.items()},
    **{dtype: 2 * struct.calcsize(_FORMATS[part]) for dtype, part in _COMPLEX.items()},
    "bfloat16": 2,
}
"""Of one element."""
_NUMBERS = {*_FORMATS, *_INTEGERS, *_COMPLEX, "bfloat16"}
_MANTISSA = {"float32": 23, "float64": 52, "float16": 10, "bfloat16": 7}
"""Bits of the fraction."""
_SMALLEST = {"float32": -126, "float64": -1022, "float16": -14, "bfloat16": -126}
"""Exponent of the smallest normal number."""
_WIDTH = {"float32": "I", "float64": "Q", "float16": "H", "bfloat16": "H"}


# Numbers out of bytes.

Number = Union[float, complex]


def values(content: bytes, dtype: str) -> list[Number]:
    """The elements of a tensor's raw little-endian bytes. Raises ValueError for a dtype without numbers."""
    if dtype in _COMPLEX:
        parts = _reals(content, _COMPLEX[dtype])
        return [complex(real, imaginary) for real, imaginary in zip(parts[::2], parts[1::2])]
    return [*_reals(content, dtype)]


def _reals(content: bytes, dtype: str) -> list[float]:
    if dtype == "bfloat16":
        halves = struct.unpack(f"<{len(content) // 2}H", content)
        return list(struct.unpack(f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *(h << 16 for h in halves))))
    code = _FORMATS.get(dtype) or _INTEGERS.get(dtype)
    if code is None:
        raise ValueError(f"tensors of {dtype} are compared by digest only")
    return list(struct.unpack(f"<{len(content) // struct.calcsize(code)}{code}", content))


def _is_finite(value: Number) -> bool:
    return math.isfinite(value.real) and math.isfinite(value.imag)


def _is_nan(value: Number) -> bool:
    return math.isnan(value.real) or math.isnan(value.imag)


def is_rounded(dtype: str | None) -> bool:
    """Whether numbers of the dtype are rounded: floats, and complex numbers made of them."""
    return _part(dtype) in _MANTISSA


def _part(dtype: str | None) -> str:
    """The dtype of an element's parts: itself, unless it is complex."""
    return _COMPLEX.get(dtype or "", dtype or "")


def ulp(value: float, dtype: str) -> float:
    """Distance from `value` to the next larger number of `dtype`, in the value's own unit; of a complex dtype the
    dtype of its parts.
    """
    dtype = _part(dtype)
    exponent = math.frexp(abs(value))[1] - 1 if value and math.isfinite(value) else _SMALLEST[dtype]
    return math.ldexp(1.0, max(exponent, _SMALLEST[dtype]) - _MANTISSA[dtype])


def _ordered(content: bytes, dtype: str) -> list[int]:
    """Floats (the parts of complex numbers) as integers in the order of their values, so that neighbours differ by
    one.
    """
    code = _WIDTH[_part(dtype)]
    bits = struct.unpack(f"<{len(content) // struct.calcsize(code)}{code}", content)
    sign = 1 << (8 * struct.calcsize(code) - 1)
    return [sign - bit if bit & sign else bit for bit in bits]


# Differences of two records.


PLACES = 4
"""Units in the last place of its own by which two elements may be rounded apart: two on either side."""


@dataclass(frozen=True)
class Difference:
    """How one tensor differs between two records."""

    role: str
    name: str
    dtype: str
    """Of the first record's tensor, whose ULP is the unit of `ulp`."""
    elements: int
    compared: int
    """Elements looked at: all, or the sample of a tensor too large to be kept. 0 if neither was at hand."""
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
    relative standard error of about 3 %. None for tensors kept whole."""
    beyond: float = 0.0
    """Largest absolute difference of an element beyond `PLACES` units in the last place of that element itself: one
    large element excuses no small one. Infinite where only one is NaN."""
    blur: float = 0.0
    """What `distance` may be off by because the sketches are sums: beside very large elements they lose small ones."""

    @property
    def sampled(self) -> str:
        """Words to put beside a number that was found in a sample. Empty if every element was compared."""
        return (
            "" if self.compared == self.elements else f" (in a sample of {self.compared} of {self.elements} elements)"
        )

    @property
    def same_bits(self) -> bool:
        return not math.isnan(self.absolute) and self.equal_bits == self.compared == self.elements

    @property
    def at_least(self) -> float:
        """What the largest absolute difference of all elements is at least, in the tensor's own unit: as the elements
        compared show it or, of a large tensor, the sketch of all of them. NaN if nothing could be compared.
        """
        if self.distance is None or not self.elements:
            return self.absolute
        spread = (self.distance * (1 - SKETCH_ERRORS * SKETCH_ERROR) - self.blur) / math.sqrt(self.elements)
        return max(self.absolute, spread)

    @property
    def at_most(self) -> float:
        """What the largest absolute difference of all elements is at most, in the tensor's own unit. Infinite where
        elements went unseen and no sketch bounds them; NaN if nothing could be compared.
        """
        if self.compared == self.elements or math.isnan(self.absolute):
            return self.absolute
        if self.distance is None or math.isnan(self.distance):
            return math.inf
        return max(self.absolute, self.distance * (1 + SKETCH_ERRORS * SKETCH_ERROR) + self.blur)

    @property
    def seen(self) -> str:
        """The largest difference in words, with what it was seen in: all elements, a sample, or the sketch."""
        if self.at_least > self.absolute:
            return (
                f"at least {self.at_least:.3g} somewhere among its {self.elements} elements (from sketches, to "
                f"{SKETCH_ERROR:.0%}; {self.absolute:.3g}{self.sampled})"
            )
        endless = " (one is NaN or infinite there, the other is not or otherwise)" if math.isinf(self.absolute) else ""
        return f"{self.absolute:.3g}{endless}{self.sampled}"


def differences(ours: Record, theirs: Record, fetch: Fetch) -> list[Difference]:
    """Outputs and gradients that both records have, compared.

    Tensors of equal digest are equal whether or not their content is at hand.
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
    """How two tensors differ. Nothing is compared if their shapes or layouts differ or their content is missing."""
    dtype = ours.dtype or ""
    elements = math.prod(ours.shape or ())
    same_form = ours.shape == theirs.shape and ours.layout == theirs.layout
    if ours.digest == theirs.digest and ours.dtype == theirs.dtype and same_form:
        return Difference(ours.role, ours.name, dtype, elements, elements, elements, 0.0, 0.0, 0.0, None)
    whole = ours.whole and theirs.whole
    first, second = _content(ours, fetch, whole=whole), _content(theirs, fetch, whole=whole)
    kinds = {ours.dtype, theirs.dtype}
    alike = same_form and kinds <= _NUMBERS and len({dtype in _COMPLEX for dtype in kinds}) == 1
    if first is None or second is None or not alike:
        return Difference(ours.role, ours.name, dtype, elements, 0, 0, math.nan, math.nan, math.nan, None)
    return _remembered(ours, theirs, first, second, fetch)


MOST_KNOWN = 20_000
_known: dict[tuple[Tensor, Tensor], Difference] = {}
"""Differences that were computed: verdicts, ranks and reports ask for the same pair, whose content cannot change."""
_known_rulers: dict[tuple[Tensor, Tensor, str], str] = {}
"""In the same way, why a float64 tensor is no ruler of another."""


def _remembered(ours: Tensor, theirs: Tensor, first: bytes, second: bytes, fetch: Fetch) -> Difference:
    if (ours, theirs) in _known:
        return _known[ours, theirs]
    made = _compare(ours, theirs, first, second, fetch)
    if made.compared == made.elements:  # else it hangs on whether the sketches are at hand
        _known[ours, theirs] = made
        if len(_known) > MOST_KNOWN:
            del _known[next(iter(_known))]
    return made


def _content(tensor: Tensor, fetch: Fetch, *, whole: bool) -> bytes | None:
    """All elements if they are `whole` on both sides, else the sample, which is taken of one that is kept whole."""
    wanted = tensor.digest if tensor.whole else tensor.samples
    content = None if wanted is None else fetch(wanted)
    elements, width = math.prod(tensor.shape or ()), _BYTES.get(tensor.dtype or "", 0)
    kept = elements if tensor.whole else min(elements, SAMPLES)
    if content is None or len(content) != kept * width:
        return None  # A record from elsewhere may name what is no such tensor.
    if whole or not tensor.whole:
        return content
    return b"".join(content[at * width : (at + 1) * width] for at in sample_positions(elements))


def steps(ours: Tensor, theirs: Tensor, fetch: Fetch) -> list[int] | None:
    """How many units in the last place each element compared differs by. None for tensors that are no floats of one
    dtype, or whose content is not at hand.
    """
    dtype, whole = ours.dtype or "", ours.whole and theirs.whole
    if not is_rounded(dtype) or dtype != theirs.dtype or ours.shape != theirs.shape or ours.layout != theirs.layout:
        return None
    first, second = _content(ours, fetch, whole=whole), _content(theirs, fetch, whole=whole)
    if first is None or second is None:
        return None
    return [abs(a - b) for a, b in zip(_ordered(first, dtype), _ordered(second, dtype))]


def _compare(ours: Tensor, theirs: Tensor, first: bytes, second: bytes, fetch: Fetch) -> Difference:
    dtype, other = ours.dtype or "", theirs.dtype or ""
    left, right = values(first, dtype), values(second, other)
    gaps = [_gap(a, b) for a, b in zip(left, right)]
    scale = max((_size(value) for value in right if _is_finite(value)), default=0.0)
    absolute = max(gaps, default=0.0)
    return Difference(
        role=ours.role,
        name=ours.name,
        dtype=dtype,
        elements=math.prod(ours.shape or ()),
        compared=len(gaps),
        equal_bits=_equal_bits(first, second, len(gaps)) if dtype == other else 0,
        absolute=absolute,
        relative=absolute / scale if scale else (0.0 if absolute == 0 else math.inf),
        ulp=_ulps(first, second, gaps, right, dtype, same=dtype == other),
        distance=_distance(ours, theirs, fetch),
        blur=_blur(ours) + _blur(theirs),
        beyond=max((gap - PLACES * ulp(_size(b), dtype) for gap, b in zip(gaps, right)), default=0.0)
        if is_rounded(dtype)
        else absolute,
    )


def _gap(first: Number, second: Number) -> float:
    """Absolute difference. Infinite where only one is NaN, or infinite."""
    if _is_nan(first) or _is_nan(second):
        return 0.0 if _is_nan(first) and _is_nan(second) else math.inf
    if first == second:
        return 0.0
    return _size(first - second) if _is_finite(first) and _is_finite(second) else math.inf


def _size(value: Number) -> float:
    """Absolute value. Infinite where that of a complex number is larger than any float."""
    try:
        return abs(value)
    except OverflowError:
        return math.inf


def _equal_bits(first: bytes, second: bytes, count: int) -> int:
    width = len(first) // count if count else 1
    return sum(first[at : at + width] == second[at : at + width] for at in range(0, len(first), width))


def _ulps(first: bytes, second: bytes, gaps: list[float], right: list[Number], dtype: str, *, same: bool) -> float:
    if not is_rounded(dtype):
        return math.nan
    if same and dtype not in _COMPLEX:
        steps = zip(_ordered(first, dtype), _ordered(second, dtype), gaps)
        return float(max((abs(a - b) for a, b, gap in steps if gap), default=0))
    return max((gap / ulp(_size(value), dtype) for gap, value in zip(gaps, right)), default=0.0)


def _distance(ours: Tensor, theirs: Tensor, fetch: Fetch) -> float | None:
    first = fetch(ours.sketch) if ours.sketch else None
    second = fetch(theirs.sketch) if theirs.sketch else None
    if first is None or second is None or len(first) != len(second) or len(first) % 8:
        return None
    pairs = zip(_reals(first, "float64"), _reals(second, "float64"))
    try:
        return math.sqrt(sum((a - b) ** 2 for a, b in pairs))
    except OverflowError:  # a sketch may hold what no tensor gives
        return math.inf


def _blur(tensor: Tensor) -> float:
    """What the sums of a sketch may be rounded by, together: each of them adds its share of the elements in float64."""
    if not tensor.sketch:
        return 0.0
    if tensor.largest is None or not math.isfinite(tensor.largest):
        return math.inf
    return tensor.largest * math.prod(tensor.shape or ()) * 2.0**-53


# Rounding that the scenario itself shows.


@dataclass(frozen=True)
class Allowance:
    """What counts as rounding for one tensor: measured, never tuned."""

    own_error: float
    """Largest absolute error of the reference against itself in float64, in the tensor's own unit."""
    last_place: float
    """One unit in the last place at the tensor's largest value."""
    carried: float
    """For a single number, which can be right by chance: the share of its value by which the reference's
    other tensors may be off. 0 for a tensor of several elements."""

    @property
    def total(self) -> float:
        """Twice what the reference errs, and is rounded, by."""
        return max(2 * (self.own_error + self.last_place), self.carried)

    @property
    def beyond(self) -> float:
        """What an element may err by beyond last places of its own. A single number is its own largest element."""
        return math.inf if self.carried else 2 * self.own_error

    def holds(self, item: Difference) -> bool:
        """Whether a tensor, as far as it was seen, differs by no more."""
        return item.at_least <= self.total and item.beyond <= self.beyond


Key = Tuple[str, str]
"""Role and name of a tensor."""


@dataclass(frozen=True)
class Ruler:
    """What the float64 reference says of rounding, tensor by tensor."""

    allowed: Mapping[Key, Allowance]
    """Of outputs and gradients that are the same calculation in float64."""
    refused: Mapping[Key, str]
    """Why the float64 reference measures no rounding of a tensor."""


def read_ruler(reference: Record, float64: Record, fetch: Fetch) -> Ruler:
    """For each output and gradient of the reference what counts as rounding, or why that is not known.

    A float64 reference is a ruler only while it is the same calculation: finite where the reference is, and close
    enough that at least half of the significand's digits agree. Noise that is drawn in another dtype, an overflow, or
    a branch that is taken otherwise is no rounding.
    """
    seen = reference.observation
    largest = {(one.role, one.name): _largest_finite(one, fetch) for one in (seen.tensors if seen else ())}
    found = {(d.role, d.name): d for d in differences(reference, float64, fetch) if is_rounded(d.dtype)}
    refused = {key: text for key, d in found.items() for text in [_no_ruler(d, reference, float64, fetch)] if text}
    fit = {key: d for key, d in found.items() if key not in refused}
    shares = [(_allowance(d, largest[key], 0.0).total, largest[key]) for key, d in fit.items() if d.elements > 1]
    share = max((total / scale for total, scale in shares if scale), default=0.0)
    allowed = {key: _allowance(d, largest[key], share if d.elements == 1 else 0.0) for key, d in fit.items()}
    return Ruler(allowed, refused)


def _largest_finite(tensor: Tensor, fetch: Fetch) -> float:
    """The largest absolute value. Where one is infinite or NaN, that of the finite elements at hand."""
    if tensor.largest is None or math.isfinite(tensor.largest):
        return tensor.largest or 0.0
    content = _content(tensor, fetch, whole=tensor.whole)
    numbers = [] if content is None else values(content, tensor.dtype or "")
    return max((_size(one) for one in numbers if _is_finite(one)), default=0.0)


def allowances(reference: Record, float64: Record, fetch: Fetch) -> dict[tuple[str, str], Allowance]:
    """For each output and gradient of the reference, by role and name, what counts as rounding, where that is known."""
    return dict(read_ruler(reference, float64, fetch).allowed)


def _no_ruler(item: Difference, reference: Record, float64: Record, fetch: Fetch) -> str:
    """Why the float64 reference measures no rounding of a tensor. Empty if it does."""
    if item.elements == 0:
        return ""
    pair = [_tensor(record, item) for record in (reference, float64)]
    dtype = _coarser(item.dtype, reference.spec.question.dtype)
    asked = (pair[0], pair[1], dtype)
    if asked in _known_rulers and item.compared == item.elements:
        return _known_rulers[asked]
    ours, exact = (_numbers(tensor, pair, fetch) for tensor in pair)
    if not item.compared or ours is None or exact is None:
        return "its content, or that of the float64 reference, is not at hand"
    unlike = _unlike_numbers(ours, exact, dtype)
    made = f"the float64 reference is another calculation: {unlike}" if unlike else ""
    if item.compared == item.elements:  # else it hangs on whether whole tensors are at hand
        _known_rulers[asked] = made
        if len(_known_rulers) > MOST_KNOWN:
            del _known_rulers[next(iter(_known_rulers))]
    return made


def _coarser(tensor: str, calculated: str) -> str:
    """The dtype with fewer digits: a loss in double precision of a calculation in single precision has those of the
    latter.
    """
    return min((_part(tensor), calculated), key=lambda dtype: _MANTISSA.get(dtype, math.inf))


def _unlike_numbers(ours: Sequence[Number], theirs: Sequence[Number], dtype: str) -> str:
    """Why two tensors are not one calculation, rounded in two ways. Empty if they may be."""
    if any(_is_finite(a) != _is_finite(b) for a, b in zip(ours, theirs)):
        return "one is finite where the other is not"
    if any(_gap(a, b) for a, b in zip(ours, theirs) if not _is_finite(a)):
        return "where one is NaN or infinite, the other is so in another way"
    apart, size = _norms(ours, theirs)
    if apart <= size * 2.0 ** (-(_MANTISSA[dtype] + 1) / 2):
        return ""
    share = apart / size if size else math.inf
    return f"they differ by {share:.2g} of their size, so fewer than half of the digits of {dtype} agree"


def _tensor(record: Record, item: Difference) -> Tensor:
    tensors = record.observation.tensors if record.observation else ()
    return next(tensor for tensor in tensors if (tensor.role, tensor.name) == (item.role, item.name))


def _numbers(tensor: Tensor, pair: Sequence[Tensor], fetch: Fetch) -> list[Number] | None:
    content = _content(tensor, fetch, whole=all(one.whole for one in pair))
    return None if content is None else values(content, tensor.dtype or "")


def _norms(ours: Sequence[Number], exact: Sequence[Number]) -> tuple[float, float]:
    """Euclidean norms of the difference and of the second, over the elements that are finite."""
    pairs = [(a, b) for a, b in zip(ours, exact) if _is_finite(a) and _is_finite(b)]
    return _norm([_size(a - b) for a, b in pairs]), _norm([_size(b) for _, b in pairs])


def _norm(sizes: Sequence[float]) -> float:
    largest = max(sizes, default=0.0)
    return largest * math.sqrt(math.fsum((size / largest) ** 2 for size in sizes)) if largest else 0.0


def _allowance(item: Difference, largest: float, share: float) -> Allowance:
    return Allowance(item.absolute, ulp(largest, item.dtype), share * largest if math.isfinite(largest) else 0.0)


@dataclass(frozen=True)
class Noise:
    """What the replays of one machine show of rounding in one case, by role and name of a tensor."""

    allowed: Mapping[Key, Allowance]
    """Of its reference."""
    refused: Mapping[Key, str]
    """Why the float64 reference measures no rounding of a tensor."""
    own: Mapping[Key, float]
    """What the error of the case itself against float64 is at most, in the tensor's own unit."""
    repeats: Mapping[Key, float]
    """Largest difference among its repeats, in the tensor's own unit. Only of those that differ, and by rounding."""


def noise(
    replay: Replay, reference: Replay | None, float64: Replay | None, repeats: Sequence[Replay], fetch: Fetch
) -> Noise:
    """Measured on the machine of the replay: from its reference (itself, if it is one), the same calculation in
    float64, and its repeats.
    """
    ours, exact = replay.plain, float64.plain if float64 else None
    against = (reference or replay).plain
    if ours is None:
        return Noise({}, {}, {}, {})
    finished = exact is not None and exact.outcome.kind == "finished"
    own = differences(ours, exact, fetch) if exact is not None and finished else []
    ruler = read_ruler(against, exact, fetch) if exact is not None and finished and against is not None else None
    return Noise(
        allowed=ruler.allowed if ruler else {},
        refused=ruler.refused if ruler else {},
        own={(item.role, item.name): item.at_most for item in own if item.compared},
        repeats=_spread(ours, [other.plain for other in repeats if other.plain is not None], fetch),
    )


def _spread(ours: Record, others: Sequence[Record], fetch: Fetch) -> dict[Key, float]:
    """What repeats differ by, of tensors whose repeats all agree in half of their digits: others are not rounded
    otherwise but vary, and measure nothing.
    """
    found: dict[Key, float] = {}
    varying: set[Key] = set()
    for other in others:
        for item in differences(ours, other, fetch):
            key = (item.role, item.name)
            if item.same_bits or not is_rounded(item.dtype):
                continue
            if _no_ruler(item, ours, other, fetch):
                varying.add(key)
            found[key] = max(item.absolute, found.get(key, 0.0))
    return {key: size for key, size in found.items() if key not in varying}


@dataclass(frozen=True)
class Limit:
    """By how much one tensor may differ between two machines and still be equal within rounding."""

    total: float
    """In the tensor's own unit. NaN if it is not known, and `why` says why."""
    why: str
    beyond: float = math.inf
    """What an element may differ by beyond `PLACES` last places of its own: what was measured, without the last place
    of the tensor's largest element."""

    def holds(self, item: Difference) -> bool:
        """Whether a tensor, as far as it was seen, differs by no more."""
        return item.at_least <= self.total and item.beyond <= self.beyond


def limits(ours: Noise, theirs: Noise) -> dict[tuple[str, str], Limit]:
    """For each tensor the widest of what was measured in the two settings; nothing here is a chosen constant.

    Two calculations may differ by what the reference errs and is rounded by in the one setting plus the same in the
    other. If each is right to rounding in its own setting, as a verdict means it, they may differ by both allowances.
    What repeats in one setting differ by is no difference between settings.
    """
    found = {key: _limit(ours.allowed[key], theirs.allowed[key]) for key in ours.allowed if key in theirs.allowed}
    for key, limit in found.items():
        allowed = (ours.allowed[key].total, theirs.allowed[key].total)
        errors = (ours.own.get(key, math.inf), theirs.own.get(key, math.inf))
        if all(error <= total for error, total in zip(errors, allowed)) and sum(allowed) > limit.total:
            found[key] = Limit(sum(allowed), "in each setting it is right to rounding, against float64", limit.beyond)
    for key in {*ours.repeats, *theirs.repeats}:
        spread = max(side.repeats.get(key, 0.0) for side in (ours, theirs))
        if spread > (found[key].total if key in found else 0.0):
            beyond = max(spread, found[key].beyond) if key in found else spread
            found[key] = Limit(spread, "repeats in one setting differ by as much", beyond)
    for key, why in {**theirs.refused, **ours.refused}.items():
        found.setdefault(key, Limit(math.nan, why))
    return found


def _limit(ours: Allowance, theirs: Allowance) -> Limit:
    total = max((ours.total + theirs.total) / 2, ours.carried, theirs.carried)
    return Limit(total, "the reference errs by as much in both settings, against float64", ours.beyond + theirs.beyond)


# Operators.


@dataclass(frozen=True)
class Step:
    """One place of two aligned operator lists."""

    left: Operator | None
    """None where only the right list has an operator."""
    right: Operator | None
    """None where only the left list has an operator."""

    @property
    def same(self) -> bool:
        return self.left == self.right


def align(left: Sequence[Operator], right: Sequence[Operator]) -> list[Step]:
    """Two operator lists side by side, so that one inserted or removed does not shift the rest.

    Takes time in proportion to the lists, whatever is in them: beyond `MOST_PAIRS` the n-th of a name is taken for the
    n-th on the other side, and only what lies between two such places is looked at closely.
    """
    ours, theirs = [_name(o) for o in left], [_name(o) for o in right]
    return [step for block in _blocks(ours, theirs) for step in _steps(left, right, block)]


MOST_PAIRS = 4000
"""Pairs of equal names up to which two lists are compared by difflib, which takes the cube of their lengths at worst.
The lists of the experiments have up to 1,500."""

MOST_PAIRS_BETWEEN = 100
"""The same of a gap between two places that belong together, of which there may be thousands."""

_Name = Tuple[int, str]
_Block = Tuple[int, int, int, int]
"""Beginning and end of what stands side by side, in the left list and in the right one."""


def _blocks(ours: Sequence[_Name], theirs: Sequence[_Name]) -> Iterator[_Block]:
    if ours == theirs:
        yield 0, len(ours), 0, len(theirs)
    elif _equal_pairs(ours, theirs) <= MOST_PAIRS:
        yield from _blocks_of_difflib(ours, theirs)
    else:
        start = next(place for place in count() if ours[place : place + 1] != theirs[place : place + 1])
        yield 0, start, 0, start
        a = c = start
        found = ((start + b, start + d) for b, d in _anchors(ours[start:], theirs[start:]))
        for b, d in [*found, (len(ours), len(theirs))]:
            yield from _between(ours, theirs, (a, b, c, d))
            yield b, min(b + 1, len(ours)), d, min(d + 1, len(theirs))
            a, c = b + 1, d + 1


def _between(ours: Sequence[_Name], theirs: Sequence[_Name], gap: _Block) -> Iterator[_Block]:
    """What lies between two places that belong together: looked at closely if it is small."""
    a, b, c, d = gap
    inside = ours[a:b], theirs[c:d]
    if all(inside) and 0 < _equal_pairs(*inside) <= MOST_PAIRS_BETWEEN:
        yield from ((a + i, a + j, c + k, c + m) for i, j, k, m in _blocks_of_difflib(*inside))
    else:
        yield gap


def _blocks_of_difflib(ours: Sequence[_Name], theirs: Sequence[_Name]) -> Iterator[_Block]:
    for _, a, b, c, d in SequenceMatcher(a=ours, b=theirs, autojunk=False).get_opcodes():
        yield a, b, c, d


def _equal_pairs(ours: Sequence[_Name], theirs: Sequence[_Name]) -> int:
    counts = Counter(theirs)
    return sum(number * counts[name] for name, number in Counter(ours).items())


def _anchors(ours: Sequence[_Name], theirs: Sequence[_Name]) -> list[tuple[int, int]]:
    """Places that belong together: the longest series of the n-th of a name on both sides that keeps their order."""
    known = {one: place for place, one in enumerate(_numbered(theirs))}
    pairs = [(place, known[one]) for place, one in enumerate(_numbered(ours)) if one in known]
    ends: list[int] = []  # smallest last place of a series of each length
    at: list[int] = []  # index of the pair that it is of
    before: list[int] = []
    for index, (_, place) in enumerate(pairs):
        length = bisect.bisect_left(ends, place)
        before.append(at[length - 1] if length else -1)
        ends[length : length + 1] = [place]
        at[length : length + 1] = [index]
    found = []
    index = at[-1] if at else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    return found[::-1]


def _numbered(names: Sequence[_Name]) -> Iterator[tuple[_Name, int]]:
    """Each name with how many equal ones came before."""
    seen: Counter[_Name] = Counter()
    for name in names:
        yield name, seen[name]
        seen[name] += 1


def _steps(left: Sequence[Operator], right: Sequence[Operator], block: _Block) -> Iterator[Step]:
    a, b, c, d = block
    for index in range(max(b - a, d - c)):
        yield Step(
            left[a + index] if a + index < b else None,
            right[c + index] if c + index < d else None,
        )


def _name(operator: Operator) -> tuple[int, str]:
    return operator.depth, operator.name


def first_difference(left: Sequence[Operator], right: Sequence[Operator]) -> tuple[int, Step] | None:
    """The first place, in aligned order, where names or shapes differ. None if the lists are the same."""
    for index, step in enumerate(align(left, right)):
        if not step.same:
            return index, step
    return None


# Agreement of two replays.


@dataclass(frozen=True)
class Agreement:
    """The rank of two replays and the rule that decided it."""

    rank: int
    """A key of `RANKS`; smaller is closer."""
    rule: str
    """Why it is this rank, in one sentence."""
    first: str
    """Where they first differ. Empty when identical."""
    differences: tuple[Difference, ...]
    """Of the plain passes."""

    @property
    def word(self) -> str:
        return RANKS[self.rank]


Limits = Mapping[tuple[str, str], Union[Allowance, Limit]]
"""What counts as rounding, by role and name of a tensor."""


_OPERATORS = "operators"
_WORDING = "wording of the error"


def rank(ours: Replay, theirs: Replay, fetch: Fetch, allowed: Limits | None = None) -> Agreement:
    """How closely two replays of one case agree. `allowed` is what counts as rounding, if it was measured: what the
    reference allows within one machine, `limits` between two.
    """
    hindrance = _hindrance(ours, theirs)
    if hindrance:
        return Agreement(6, hindrance, "", ())
    passes = sorted(ours.records.keys() & theirs.records.keys())
    pairs = [(ours.records[name], theirs.records[name]) for name in passes]
    if all(first.agreement_digest() == second.agreement_digest() for first, second in pairs):
        return Agreement(1, "the evidence digests are equal", "", ())
    outcome = _outcome_difference(passes, pairs)
    if outcome:
        return Agreement(5, "a pass ended otherwise", outcome, ())
    found = tuple(differences(*pairs[passes.index("plain")], fetch))
    undecided = ""
    for first, second in pairs:
        listed = differences(first, second, fetch)
        tensors = _tensor_difference(first.observation, second.observation, listed, allowed)
        if tensors is not None and tensors.beyond:
            return Agreement(4, tensors.rule, tensors.first, found)
        undecided = undecided or (tensors.rule if tensors is not None else "")
    if undecided:
        return Agreement(6, undecided, "", found)
    other = next((text for pair in pairs for text in [_observed_difference(*pair)] if text), "")
    if other:
        return Agreement(4, "an observed value differs", other, found)
    operators = _operator_difference(passes, pairs)
    wording = _wording_difference(passes, pairs)
    if operators or wording:
        what = " and ".join(
            word for word, text in (("operators", operators), ("wording of the error", wording)) if text
        )
        return Agreement(
            3, f"other {what}, no value beyond rounding", "; ".join(filter(None, (wording, operators))), found
        )
    return Agreement(2, _why_within(found, allowed or {}), "", found)


def _why_within(found: Sequence[Difference], allowed: Limits) -> str:
    """The rule, and the tensor that comes closest to what it allows."""
    shares = [
        (item.at_least / limit.total, item, limit)
        for item in found
        for limit in [allowed.get((item.role, item.name))]
        if limit is not None and limit.total > 0 and not item.same_bits
    ]
    if not shares:
        return "no tensor differs"
    _, item, limit = max(shares, key=lambda one: one[0])
    why = limit.why if isinstance(limit, Limit) else "the reference errs by as much, against float64"
    return (
        f"no tensor differs by more than rounding: {item.role} {item.name} by {item.seen}, "
        f"allowed {limit.total:.3g}: {why}"
    )


def _hindrance(ours: Replay, theirs: Replay) -> str:
    if ours.spec.question.case_digest() != theirs.spec.question.case_digest():
        return "they answer different questions"
    first, second = ours.plain, theirs.plain
    if first is None or second is None:
        return "a plain pass is missing"
    for record in (first, second):
        if record.outcome.kind in ("not_run", "not_observed"):
            return f"{record.outcome.kind.replace('_', ' ')}: {record.outcome.detail}"
    if first.varies or second.varies:
        return "results vary from run to run by nature: one run is no evidence of another"
    if first.observation and second.observation and _inputs(first.observation) != _inputs(second.observation):
        return "the inputs differ"
    return ""


def _inputs(seen: Observation) -> list[tuple[str, str | None]]:
    return [(tensor.name, tensor.digest) for tensor in seen.tensors if tensor.role == "input"]


Pairs = Sequence[Tuple[Record, Record]]
"""Records of the passes that two replays share."""


def _outcome_difference(passes: Sequence[str], pairs: Pairs) -> str:
    """The first pass of another kind of ending, exception type or phase, in words. Empty if there is none."""
    for name, (first, second) in zip(passes, pairs):
        left, right = ((one.outcome.kind, one.outcome.phase, one.outcome.named) for one in (first, second))
        if left != right:
            return f"{name} pass: {_ended(first.outcome)} against {_ended(second.outcome)}"
    return ""


def _wording_difference(passes: Sequence[str], pairs: Pairs) -> str:
    """Where the messages of one error first differ. Empty if they say the same."""
    for name, (first, second) in zip(passes, pairs):
        left, right = ((one.outcome.fingerprint() or "").splitlines() for one in (first, second))
        for number, (ours, theirs) in enumerate(zip_longest(left, right, fillvalue="nothing"), 1):
            if ours != theirs:
                where = f"{_ended(first.outcome)}; line {number}: " if number > 1 else ""
                return f"{name} pass: {where}{_cut(ours.strip())} against {_cut(theirs.strip())}"
    return ""


def _ended(outcome: Outcome) -> str:
    """On one line: the first of a message, which says what happened."""
    said = outcome.fingerprint()
    if said is not None:
        return _cut(said.strip().partition("\n")[0])
    return f"{outcome.kind} ({outcome.detail})" if outcome.detail else outcome.kind


@dataclass(frozen=True)
class _Unlike:
    """A tensor that is not the same on both sides."""

    beyond: bool
    """True if it differs by more than rounding, or nobody knows what rounding is; False if that is undecided."""
    rule: str
    first: str


def _tensor_difference(
    ours: Observation | None,
    theirs: Observation | None,
    found: Sequence[Difference],
    allowed: Limits | None,
) -> _Unlike | None:
    """The first tensor that is not the same within rounding, one that is beyond it before one that is undecided."""
    if ours is None or theirs is None:
        return None if ours is theirs else _Unlike(beyond=True, rule="one side left no observation", first="")
    if _present(ours) != _present(theirs):
        first = "other tensors are there, or of other shapes, dtypes or layouts"
        return _Unlike(beyond=True, rule="a tensor is another one", first=first)
    unlike = [one for item in found for one in [_unlike(item, (allowed or {}).get((item.role, item.name)))] if one]
    return min(unlike, key=lambda one: not one.beyond, default=None)


def _unlike(item: Difference, limit: Allowance | Limit | None) -> _Unlike | None:
    """How a tensor differs by more than rounding, or why that cannot be said. None if it does not."""
    name = f"{item.role} {item.name}"
    if item.same_bits:
        return None
    if math.isnan(item.absolute):
        return _Unlike(beyond=False, rule=f"{name} differs, its content is not at hand or has no numbers", first="")
    first = f"{name} differs by {item.seen}{_allows(limit)}"
    if limit is None or math.isnan(limit.total):
        return _Unlike(beyond=True, rule="a tensor differs; what counts as rounding is not known", first=first)
    if not limit.holds(item):
        return _Unlike(beyond=True, rule="a tensor differs by more than rounding", first=first)
    if not item.at_most <= limit.total:
        rule = f"{name}: {item.compared} of {item.elements} elements and the sketch do not decide: {item.seen}"
        return _Unlike(beyond=False, rule=f"{rule}{_allows(limit)}", first="")
    return None


def _allows(limit: Allowance | Limit | None) -> str:
    if limit is None:
        return "; what rounding allows is not known"
    if math.isnan(limit.total):
        return f"; what rounding allows is not known: {limit.why if isinstance(limit, Limit) else ''}"
    return f"; rounding allows {limit.total:.3g}"


def _present(seen: Observation) -> list[tuple[Any, ...]]:
    return [(t.role, t.name, t.dtype, t.shape, t.layout, t.digest is None) for t in seen.tensors]


def _operator_difference(passes: Sequence[str], pairs: Pairs) -> str:
    for name, (first, second) in zip(passes, pairs):
        left, right = ((one.observation and one.observation.operators) or {} for one in (first, second))
        for phase in sorted(set(left) | set(right)):
            found = first_difference(left.get(phase, ()), right.get(phase, ()))
            if found:
                shown = f"{_shown(found[1].left)} against {_shown(found[1].right)}"
                return f"{name} pass, {phase}, operator {found[0]}: {shown}"
    return ""


def _observed_difference(ours: Record, theirs: Record) -> str:
    """The first observed value, or switch left changed, that is not the same."""
    first, second = ours.evidence(), theirs.evidence()
    if first.get("observed") != second.get("observed"):
        left, right = ({name: canonical(value) for name, value in one.get("observed") or ()} for one in (first, second))
        name = next((name for name in sorted({*left, *right}) if left.get(name) != right.get(name)), None)
        if name is None:
            return "values were observed in another order"
        shown = [_cut(one.get(name, "nothing")) for one in (left, right)]
        return f"observed {_cut(name)}: {shown[0]} against {shown[1]}"
    if first.get("state") != second.get("state"):
        return "other switches were left changed"
    return ""


def _shown(operator: Operator | None) -> str:
    return "none" if operator is None else _cut(operator.name)


def _cut(text: str) -> str:
    """As much as a table can hold; the record has the rest."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def audit(replays: Sequence[Replay], fetch: Fetch) -> list[tuple[Replay, Agreement]]:
    """Each forked replay that was run fresh as well, with how the two agree.

    The fresh one ran under another hash seed, so what depends on either shows.
    """
    fresh = {
        (one.spec.question.case_digest(), one.spec.setting.repeat): one
        for one in replays
        if one.spec.setting.isolation == "fresh" and one.spec.setting.sources == "original"
    }
    pairs = (
        (one, fresh.get((one.spec.question.case_digest(), one.spec.setting.repeat)))
        for one in replays
        if one.spec.setting.isolation == "forked"
    )
    return [(one, rank(one, other, fetch)) for one, other in pairs if other is not None]

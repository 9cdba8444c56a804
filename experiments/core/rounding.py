"""Rounding: how far a tensor may be from its reference, measured against the same calculation in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Mapping, Sequence, Tuple

from .observation import Tensor
from .record import Record
from .replay import Replay
from .tensor_diff import MOST_KNOWN, Difference, differences, gap_between, magnitude, stored_bytes
from .tensor_values import MANTISSA_BITS, Fetch, Number, component_dtype, is_finite, is_rounded, ulp, values

_known_rulers: dict[tuple[Tensor, Tensor, str], str] = {}
"""In the same way, why a float64 tensor is no ruler of another."""


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
    content = stored_bytes(tensor, fetch, whole=tensor.whole)
    numbers = [] if content is None else values(content, tensor.dtype or "")
    return max((magnitude(one) for one in numbers if is_finite(one)), default=0.0)


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
    return min((component_dtype(tensor), calculated), key=lambda dtype: MANTISSA_BITS.get(dtype, math.inf))


def _unlike_numbers(ours: Sequence[Number], theirs: Sequence[Number], dtype: str) -> str:
    """Why two tensors are not one calculation, rounded in two ways. Empty if they may be."""
    if any(is_finite(a) != is_finite(b) for a, b in zip(ours, theirs)):
        return "one is finite where the other is not"
    if any(gap_between(a, b) for a, b in zip(ours, theirs) if not is_finite(a)):
        return "where one is NaN or infinite, the other is so in another way"
    apart, size = _norms(ours, theirs)
    if apart <= size * 2.0 ** (-(MANTISSA_BITS[dtype] + 1) / 2):
        return ""
    share = apart / size if size else math.inf
    return f"they differ by {share:.2g} of their size, so fewer than half of the digits of {dtype} agree"


def _tensor(record: Record, item: Difference) -> Tensor:
    tensors = record.observation.tensors if record.observation else ()
    return next(tensor for tensor in tensors if (tensor.role, tensor.name) == (item.role, item.name))


def _numbers(tensor: Tensor, pair: Sequence[Tensor], fetch: Fetch) -> list[Number] | None:
    content = stored_bytes(tensor, fetch, whole=all(one.whole for one in pair))
    return None if content is None else values(content, tensor.dtype or "")


def _norms(ours: Sequence[Number], exact: Sequence[Number]) -> tuple[float, float]:
    """Euclidean norms of the difference and of the second, over the elements that are finite."""
    pairs = [(a, b) for a, b in zip(ours, exact) if is_finite(a) and is_finite(b)]
    return _norm([magnitude(a - b) for a, b in pairs]), _norm([magnitude(b) for _, b in pairs])


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

"""Rounding: how far a tensor may be from its reference, measured with the same calculation in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Mapping, Sequence, Tuple

from .observation import Tensor
from .record import Record
from .replay import Replay
from .tensor_diff import MOST_KNOWN, Difference, differences, element_gap, magnitude, stored_bytes
from .tensor_values import MANTISSA_BITS, Fetch, Number, component_dtype, is_finite, is_rounded, ulp, values

_known_rulers: dict[tuple[Tensor, Tensor, str], str] = {}
"""Cache of why a float64 tensor does not measure the rounding of another, by both tensors and dtype."""


# Rounding that the scenario itself shows.


@dataclass(frozen=True)
class Allowance:
    """What counts as rounding for one tensor. It is measured, never tuned."""

    own_error: float
    """Largest absolute error of the reference against itself in float64, in the tensor's own unit."""
    last_place: float
    """One unit in the last place at the tensor's largest value."""
    carried: float
    """For a single number, which can be right by chance: the share of its value by which the reference's
    other tensors may be off. 0 for a tensor of several elements."""

    @property
    def total(self) -> float:
        """Largest difference that counts as rounding: twice the error of the reference and its last place."""
        return max(2 * (self.own_error + self.last_place), self.carried)

    @property
    def beyond(self) -> float:
        """Largest error of an element beyond last places of its own.

        Infinite for a single number, which is its own largest element.
        """
        return math.inf if self.carried else 2 * self.own_error

    def can_explain(self, item: Difference) -> bool:
        """Return whether the difference, as far as it was observed, is within the allowance."""
        return item.at_least <= self.total and item.beyond <= self.beyond


Key = Tuple[str, str]
"""Role and name of a tensor."""


@dataclass(frozen=True)
class Ruler:
    """Rounding of each tensor, as measured by the float64 reference."""

    allowed: Mapping[Key, Allowance]
    """Allowances of outputs and gradients that are the same calculation in float64."""
    refused: Mapping[Key, str]
    """Why the float64 reference does not measure the rounding of a tensor."""


def read_ruler(reference: Record, float64: Record, fetch: Fetch) -> Ruler:
    """Return, for each output and gradient of the reference, what counts as rounding, or why that is not known.

    A float64 reference measures rounding only if it is the same calculation: finite where the reference is, and so
    close that at least half of the significand's digits agree. Noise drawn in another dtype, an overflow, or another
    branch is not rounding.
    """
    seen = reference.observation
    largest = {(one.role, one.name): _largest_finite_value(one, fetch) for one in (seen.tensors if seen else ())}
    found = {(d.role, d.name): d for d in differences(reference, float64, fetch) if is_rounded(d.dtype)}
    refused = {
        key: text for key, d in found.items() for text in [_refusal_reason(d, reference, float64, fetch)] if text
    }
    fit = {key: d for key, d in found.items() if key not in refused}
    shares = [(_allowance(d, largest[key], 0.0).total, largest[key]) for key, d in fit.items() if d.elements > 1]
    share = max((total / scale for total, scale in shares if scale), default=0.0)
    allowed = {key: _allowance(d, largest[key], share if d.elements == 1 else 0.0) for key, d in fit.items()}
    return Ruler(allowed, refused)


def _largest_finite_value(tensor: Tensor, fetch: Fetch) -> float:
    """Return the largest absolute value. If it is infinite or NaN, that of the finite elements that are available."""
    if tensor.largest is None or math.isfinite(tensor.largest):
        return tensor.largest or 0.0
    content = stored_bytes(tensor, fetch, whole=tensor.whole)
    numbers = [] if content is None else values(content, tensor.dtype or "")
    return max((magnitude(one) for one in numbers if is_finite(one)), default=0.0)


def allowances(reference: Record, float64: Record, fetch: Fetch) -> dict[tuple[str, str], Allowance]:
    """Return what counts as rounding for each output and gradient, by role and name, where that is known."""
    return dict(read_ruler(reference, float64, fetch).allowed)


def _refusal_reason(item: Difference, reference: Record, float64: Record, fetch: Fetch) -> str:
    """Return why the float64 reference does not measure the rounding of a tensor. Empty if it does."""
    if item.elements == 0:
        return ""
    pair = [_find_tensor(record, item) for record in (reference, float64)]
    dtype = _coarser_dtype(item.dtype, reference.spec.question.dtype)
    asked = (pair[0], pair[1], dtype)
    if asked in _known_rulers and item.compared == item.elements:
        return _known_rulers[asked]
    ours, exact = (_tensor_numbers(tensor, pair, fetch) for tensor in pair)
    if not item.compared or ours is None or exact is None:
        return "its content, or that of the float64 reference, is not at hand"
    unlike = _calculation_mismatch(ours, exact, dtype)
    made = f"the float64 reference is another calculation: {unlike}" if unlike else ""
    if item.compared == item.elements:  # else it depends on whether whole tensors are available
        _known_rulers[asked] = made
        if len(_known_rulers) > MOST_KNOWN:
            del _known_rulers[next(iter(_known_rulers))]
    return made


def _coarser_dtype(tensor: str, calculated: str) -> str:
    """Return the dtype with fewer digits: a float64 loss of a float32 calculation has the digits of float32."""
    return min((component_dtype(tensor), calculated), key=lambda dtype: MANTISSA_BITS.get(dtype, math.inf))


def _calculation_mismatch(ours: Sequence[Number], theirs: Sequence[Number], dtype: str) -> str:
    """Return why two tensors are not one calculation, rounded in two ways. Empty if they may be."""
    if any(is_finite(a) != is_finite(b) for a, b in zip(ours, theirs)):
        return "one is finite where the other is not"
    if any(element_gap(a, b) for a, b in zip(ours, theirs) if not is_finite(a)):
        return "where one is NaN or infinite, the other is so in another way"
    apart, size = _norms(ours, theirs)
    if apart <= size * 2.0 ** (-(MANTISSA_BITS[dtype] + 1) / 2):
        return ""
    share = apart / size if size else math.inf
    return f"they differ by {share:.2g} of their size, so fewer than half of the digits of {dtype} agree"


def _find_tensor(record: Record, item: Difference) -> Tensor:
    tensors = record.observation.tensors if record.observation else ()
    return next(tensor for tensor in tensors if (tensor.role, tensor.name) == (item.role, item.name))


def _tensor_numbers(tensor: Tensor, pair: Sequence[Tensor], fetch: Fetch) -> list[Number] | None:
    content = stored_bytes(tensor, fetch, whole=all(one.whole for one in pair))
    return None if content is None else values(content, tensor.dtype or "")


def _norms(ours: Sequence[Number], exact: Sequence[Number]) -> tuple[float, float]:
    """Return the Euclidean norms of the difference and of the second tensor, over the finite elements."""
    pairs = [(a, b) for a, b in zip(ours, exact) if is_finite(a) and is_finite(b)]
    return _norm([magnitude(a - b) for a, b in pairs]), _norm([magnitude(b) for _, b in pairs])


def _norm(sizes: Sequence[float]) -> float:
    largest = max(sizes, default=0.0)
    return largest * math.sqrt(math.fsum((size / largest) ** 2 for size in sizes)) if largest else 0.0


def _allowance(item: Difference, largest: float, share: float) -> Allowance:
    return Allowance(item.absolute, ulp(largest, item.dtype), share * largest if math.isfinite(largest) else 0.0)


@dataclass(frozen=True)
class Noise:
    """Rounding in one case as the replays on one machine show it, by role and name of a tensor."""

    allowed: Mapping[Key, Allowance]
    """Allowances of its reference."""
    refused: Mapping[Key, str]
    """Why the float64 reference does not measure the rounding of a tensor."""
    own: Mapping[Key, float]
    """Upper bound of the error of the case itself against float64, in the tensor's own unit."""
    repeats: Mapping[Key, float]
    """Largest difference among its repeats, in the tensor's own unit. Only of tensors that differ, and by rounding."""


def noise(
    replay: Replay, reference: Replay | None, float64: Replay | None, repeats: Sequence[Replay], fetch: Fetch
) -> Noise:
    """Measure rounding on the machine of the replay.

    It is measured from its reference (the replay itself if it is one), the same calculation in float64, and its
    repeats.
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
        repeats=_repeat_spread(ours, [other.plain for other in repeats if other.plain is not None], fetch),
    )


def _repeat_spread(ours: Record, others: Sequence[Record], fetch: Fetch) -> dict[Key, float]:
    """Return the largest difference among repeats, for tensors whose repeats all agree in half of their digits.

    Other tensors do not differ by rounding but vary, so they measure nothing.
    """
    found: dict[Key, float] = {}
    varying: set[Key] = set()
    for other in others:
        for item in differences(ours, other, fetch):
            key = (item.role, item.name)
            if item.same_bits or not is_rounded(item.dtype):
                continue
            if _refusal_reason(item, ours, other, fetch):
                varying.add(key)
            found[key] = max(item.absolute, found.get(key, 0.0))
    return {key: size for key, size in found.items() if key not in varying}


@dataclass(frozen=True)
class Limit:
    """How much one tensor may differ between two machines and still be equal within rounding."""

    total: float
    """In the tensor's own unit. NaN if it is not known, and `why` says why."""
    why: str
    beyond: float = math.inf
    """How much an element may differ beyond `PLACES` last places of its own: the measured errors, without the last
    place of the tensor's largest element."""

    def can_explain(self, item: Difference) -> bool:
        """Return whether the difference, as far as it was observed, is within the limit."""
        return item.at_least <= self.total and item.beyond <= self.beyond


def limits(ours: Noise, theirs: Noise) -> dict[tuple[str, str], Limit]:
    """Return the limit of each tensor: the widest that was measured in the two settings, without chosen constants.

    Two calculations may differ by the error and rounding of the reference in the one setting plus those in the other.
    If each is right to rounding in its own setting, as verdicts define it, they may differ by the sum of both
    allowances. A difference that also occurs among repeats in one setting is not a difference between settings.
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

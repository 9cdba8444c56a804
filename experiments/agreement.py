"""Whether two replays agree, by how much they differ, and where first.

The only module that computes differences from stored tensors. What was compared is said with every
number: all elements of a tensor that was kept whole, the fixed sample of one that was not.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Callable, Iterator, Mapping, Optional, Sequence, Union

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

_FORMATS = {"float32": "f", "float64": "d", "float16": "e"}
_INTEGERS = {"int8": "b", "uint8": "B", "bool": "B", "int16": "h", "int32": "i", "int64": "q"}
_BYTES = {
    **{dtype: struct.calcsize(code) for dtype, code in {**_FORMATS, **_INTEGERS}.items()},
    "bfloat16": 2,
}
"""Of one element."""
_NUMBERS = {*_FORMATS, *_INTEGERS, "bfloat16"}
_MANTISSA = {"float32": 23, "float64": 52, "float16": 10, "bfloat16": 7}
"""Bits of the fraction."""
_SMALLEST = {"float32": -126, "float64": -1022, "float16": -14, "bfloat16": -126}
"""Exponent of the smallest normal number."""
_WIDTH = {"float32": "I", "float64": "Q", "float16": "H", "bfloat16": "H"}


# Numbers out of bytes.


def values(content: bytes, dtype: str) -> list[float]:
    """The elements of a tensor's raw little-endian bytes. Raises ValueError for a dtype without numbers."""
    if dtype == "bfloat16":
        halves = struct.unpack(f"<{len(content) // 2}H", content)
        return list(struct.unpack(f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *(h << 16 for h in halves))))
    code = _FORMATS.get(dtype) or _INTEGERS.get(dtype)
    if code is None:
        raise ValueError(f"tensors of {dtype} are compared by digest only")
    return list(struct.unpack(f"<{len(content) // struct.calcsize(code)}{code}", content))


def ulp(value: float, dtype: str) -> float:
    """Distance from `value` to the next larger number of `dtype`, in the value's own unit."""
    exponent = math.frexp(abs(value))[1] - 1 if value and math.isfinite(value) else _SMALLEST[dtype]
    return math.ldexp(1.0, max(exponent, _SMALLEST[dtype]) - _MANTISSA[dtype])


def _ordered(content: bytes, dtype: str) -> list[int]:
    """Floats as integers in the order of their values, so that neighbours differ by one."""
    code = _WIDTH[dtype]
    bits = struct.unpack(f"<{len(content) // struct.calcsize(code)}{code}", content)
    sign = 1 << (8 * struct.calcsize(code) - 1)
    return [sign - bit if bit & sign else bit for bit in bits]


# Differences of two records.


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

    @property
    def sampled(self) -> str:
        """Words to put beside a number that was found in a sample. Empty if every element was compared."""
        return (
            "" if self.compared == self.elements else f" (in a sample of {self.compared} of {self.elements} elements)"
        )

    @property
    def same_bits(self) -> bool:
        return not math.isnan(self.absolute) and self.equal_bits == self.compared == self.elements


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
    """How two tensors differ. Nothing is compared if their shapes differ or their content is missing."""
    dtype = ours.dtype or ""
    elements = math.prod(ours.shape or ())
    if ours.digest == theirs.digest and ours.dtype == theirs.dtype and ours.shape == theirs.shape:
        return Difference(ours.role, ours.name, dtype, elements, elements, elements, 0.0, 0.0, 0.0, None)
    whole = ours.whole and theirs.whole
    first, second = _content(ours, fetch, whole=whole), _content(theirs, fetch, whole=whole)
    alike = ours.shape == theirs.shape and {ours.dtype, theirs.dtype} <= _NUMBERS
    if first is None or second is None or not alike:
        return Difference(ours.role, ours.name, dtype, elements, 0, 0, math.nan, math.nan, math.nan, None)
    return _compare(ours, theirs, first, second, fetch)


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
    if dtype not in _MANTISSA or dtype != theirs.dtype or ours.shape != theirs.shape:
        return None
    first, second = _content(ours, fetch, whole=whole), _content(theirs, fetch, whole=whole)
    if first is None or second is None:
        return None
    return [abs(a - b) for a, b in zip(_ordered(first, dtype), _ordered(second, dtype))]


def _compare(ours: Tensor, theirs: Tensor, first: bytes, second: bytes, fetch: Fetch) -> Difference:
    dtype, other = ours.dtype or "", theirs.dtype or ""
    left, right = values(first, dtype), values(second, other)
    gaps = [_gap(a, b) for a, b in zip(left, right)]
    scale = max((abs(value) for value in right if math.isfinite(value)), default=0.0)
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
    )


def _gap(first: float, second: float) -> float:
    if math.isnan(first) or math.isnan(second):
        return 0.0 if math.isnan(first) and math.isnan(second) else math.inf
    return 0.0 if first == second else abs(first - second)


def _equal_bits(first: bytes, second: bytes, count: int) -> int:
    width = len(first) // count if count else 1
    return sum(first[at : at + width] == second[at : at + width] for at in range(0, len(first), width))


def _ulps(first: bytes, second: bytes, gaps: list[float], right: list[float], dtype: str, *, same: bool) -> float:
    if dtype not in _MANTISSA:
        return math.nan
    if same:
        steps = zip(_ordered(first, dtype), _ordered(second, dtype), gaps)
        return float(max((abs(a - b) for a, b, gap in steps if gap), default=0))
    return max((gap / ulp(value, dtype) for gap, value in zip(gaps, right)), default=0.0)


def _distance(ours: Tensor, theirs: Tensor, fetch: Fetch) -> float | None:
    first = fetch(ours.sketch) if ours.sketch else None
    second = fetch(theirs.sketch) if theirs.sketch else None
    if first is None or second is None or len(first) != len(second) or len(first) % 8:
        return None
    pairs = zip(values(first, "float64"), values(second, "float64"))
    return math.sqrt(sum((a - b) ** 2 for a, b in pairs))


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


def allowances(reference: Record, float64: Record, fetch: Fetch) -> dict[tuple[str, str], Allowance]:
    """For each output and gradient of the reference, by role and name, what counts as rounding."""
    seen = reference.observation
    largest = {(tensor.role, tensor.name): tensor.largest or 0.0 for tensor in (seen.tensors if seen else ())}
    found = [d for d in differences(reference, float64, fetch) if d.compared and d.dtype in _MANTISSA]
    shares = [_allowance(d, largest[d.role, d.name], 0.0) for d in found if d.elements > 1]
    scales = [largest[d.role, d.name] for d in found if d.elements > 1]
    share = max((one.total / scale for one, scale in zip(shares, scales) if scale), default=0.0)
    return {(d.role, d.name): _allowance(d, largest[d.role, d.name], share if d.elements == 1 else 0.0) for d in found}


def _allowance(item: Difference, largest: float, share: float) -> Allowance:
    return Allowance(item.absolute, ulp(largest, item.dtype), share * largest)


@dataclass(frozen=True)
class Noise:
    """What the replays of one machine show of rounding in one case, by role and name of a tensor."""

    allowed: Mapping[tuple[str, str], Allowance]
    """Of its reference."""
    own: Mapping[tuple[str, str], float]
    """Largest error of the case itself against float64, in the tensor's own unit."""
    repeats: Mapping[tuple[str, str], float]
    """Largest difference among its repeats, in the tensor's own unit. Only of those that differ."""


def noise(
    replay: Replay, reference: Replay | None, float64: Replay | None, repeats: Sequence[Replay], fetch: Fetch
) -> Noise:
    """Measured on the machine of the replay: from its reference (itself, if it is one), the same calculation in
    float64, and its repeats.
    """
    ours, ruler = replay.plain, float64.plain if float64 else None
    against = (reference or replay).plain
    if ours is None:
        return Noise({}, {}, {})
    finished = ruler is not None and ruler.outcome.kind == "finished"
    own = differences(ours, ruler, fetch) if ruler is not None and finished else []
    return Noise(
        allowed=allowances(against, ruler, fetch) if ruler is not None and finished and against is not None else {},
        own={(item.role, item.name): item.absolute for item in own if item.compared},
        repeats=_spread(ours, [other.plain for other in repeats if other.plain is not None], fetch),
    )


def _spread(ours: Record, others: Sequence[Record], fetch: Fetch) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for other in others:
        for item in differences(ours, other, fetch):
            if item.compared and not item.same_bits:
                found[item.role, item.name] = max(item.absolute, found.get((item.role, item.name), 0.0))
    return found


@dataclass(frozen=True)
class Limit:
    """By how much one tensor may differ between two machines and still be equal within rounding."""

    total: float
    """In the tensor's own unit."""
    why: str


def limits(ours: Noise, theirs: Noise) -> dict[tuple[str, str], Limit]:
    """For each tensor the widest of what was measured on the two machines; nothing here is a chosen constant.

    Two calculations may differ by what the reference errs and is rounded by on the one machine plus the same on the
    other. If each is right to rounding on its own machine, as a verdict means it, they may differ by both allowances.
    What repeats on one machine differ by is no difference between machines.
    """
    found = {key: _limit(ours.allowed[key], theirs.allowed[key]) for key in ours.allowed if key in theirs.allowed}
    for key, limit in found.items():
        allowed = (ours.allowed[key].total, theirs.allowed[key].total)
        errors = (ours.own.get(key, math.inf), theirs.own.get(key, math.inf))
        if all(error <= total for error, total in zip(errors, allowed)) and sum(allowed) > limit.total:
            found[key] = Limit(sum(allowed), "on each machine it is right to rounding, against float64")
    for key in {*ours.repeats, *theirs.repeats}:
        spread = max(side.repeats.get(key, 0.0) for side in (ours, theirs))
        if spread > (found[key].total if key in found else 0.0):
            found[key] = Limit(spread, "repeats on one machine differ by as much")
    return found


def _limit(ours: Allowance, theirs: Allowance) -> Limit:
    total = max((ours.total + theirs.total) / 2, ours.carried, theirs.carried)
    return Limit(total, "the reference errs by as much on both machines, against float64")


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
    """Two operator lists side by side, so that one inserted or removed does not shift the rest."""
    matcher = SequenceMatcher(a=[_name(o) for o in left], b=[_name(o) for o in right], autojunk=False)
    return [step for block in matcher.get_opcodes() for step in _steps(left, right, block)]


def _steps(
    left: Sequence[Operator], right: Sequence[Operator], block: tuple[str, int, int, int, int]
) -> Iterator[Step]:
    _, a, b, c, d = block
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


def rank(ours: Replay, theirs: Replay, fetch: Fetch, allowed: Limits | None = None) -> Agreement:
    """How closely two replays of one case agree. `allowed` is what counts as rounding, if it was measured: what the
    reference allows within one machine, `limits` between two.
    """
    hindrance = _hindrance(ours, theirs)
    if hindrance:
        return Agreement(6, hindrance, "", ())
    if ours.evidence_digest() == theirs.evidence_digest():
        return Agreement(1, _why_identical(ours), "", ())
    outcome = _outcome_difference(ours, theirs)
    if outcome:
        return Agreement(5, "a pass ended otherwise", outcome, ())
    pairs = [(ours.records[name], theirs.records[name]) for name in sorted(ours.records)]
    found = tuple(differences(ours.records["plain"], theirs.records["plain"], fetch))
    for first, second in pairs:
        listed = differences(first, second, fetch)
        lost = next((d for d in listed if math.isnan(d.absolute) and _present_equal(first, second)), None)
        if lost is not None:
            return Agreement(6, f"{lost.role} {lost.name} differs, its content is not at hand", "", found)
        tensors = _tensor_difference(first.observation, second.observation, listed, allowed)
        if tensors:
            return Agreement(4, "a tensor differs by more than rounding", tensors, found)
    operators = _operator_difference(ours, theirs)
    if operators:
        return Agreement(3, "an operator differs, no tensor beyond rounding", operators, found)
    other = next((text for pair in pairs for text in [_other_difference(*pair)] if text), "")
    if other:
        return Agreement(4, "a value that the case observed differs", other, found)
    return Agreement(2, _why_within(found, allowed or {}), "", found)


def _why_identical(replay: Replay) -> str:
    if all(record.evidence() == {"varies": True} for record in replay.records.values()):
        return "results vary from run to run, and only that they do is evidence"
    return "the evidence digests are equal"


def _why_within(found: Sequence[Difference], allowed: Limits) -> str:
    """The rule, and the tensor that comes closest to what it allows."""
    shares = [
        (item.absolute / limit.total, item, limit)
        for item in found
        for limit in [allowed.get((item.role, item.name))]
        if limit is not None and limit.total and not item.same_bits
    ]
    if not shares:
        return "no tensor differs"
    _, item, limit = max(shares, key=lambda one: one[0])
    why = limit.why if isinstance(limit, Limit) else "the reference errs by as much, against float64"
    return (
        f"no tensor differs by more than rounding: {item.role} {item.name} by {item.absolute:.3g}{item.sampled}, "
        f"allowed {limit.total:.3g}: {why}"
    )


def _hindrance(ours: Replay, theirs: Replay) -> str:
    if ours.spec.question.case_digest() != theirs.spec.question.case_digest():
        return "they answer different questions"
    if "plain" not in ours.records or "plain" not in theirs.records:
        return "a plain pass is missing"
    first, second = ours.records["plain"], theirs.records["plain"]
    if "not_run" in (first.outcome.kind, second.outcome.kind):
        return f"not run: {first.outcome.detail or second.outcome.detail}"
    if set(ours.records) != set(theirs.records):
        return "they were looked at in different passes"
    if first.observation and second.observation and _inputs(first.observation) != _inputs(second.observation):
        return "the inputs differ"
    return ""


def _inputs(seen: Observation) -> list[tuple[str, str | None]]:
    return [(tensor.name, tensor.digest) for tensor in seen.tensors if tensor.role == "input"]


def _outcome_difference(ours: Replay, theirs: Replay) -> str:
    for name in sorted(ours.records):
        first, second = ours.records[name].outcome, theirs.records[name].outcome
        left = (first.kind, first.phase, first.fingerprint())
        right = (second.kind, second.phase, second.fingerprint())
        if left != right:
            return f"{name} pass: {_unlike(first, second)}"
    return ""


def _unlike(ours: Outcome, theirs: Outcome) -> str:
    """How two processes ended; of messages that begin alike, the first line in which they differ."""
    left, right = ((one.fingerprint() or "").strip().splitlines() for one in (ours, theirs))
    if not left or not right or left[0] != right[0]:
        return f"{_ended(ours)} against {_ended(theirs)}"
    length = max(len(left), len(right))
    pairs = zip(*(lines + ["nothing"] * (length - len(lines)) for lines in (left, right)))
    for number, (first, second) in enumerate(pairs, 1):
        if first != second:
            return f"{_ended(ours)}; line {number}: {_cut(first.strip())} against {_cut(second.strip())}"
    return f"{_ended(ours)}, in other phases or with other spaces"


def _ended(outcome: Outcome) -> str:
    """On one line: the first of a message, which says what happened."""
    said = outcome.fingerprint()
    if said is not None:
        return _cut(said.strip().partition("\n")[0])
    return f"{outcome.kind} ({outcome.detail})" if outcome.detail else outcome.kind


def _tensor_difference(
    ours: Observation | None,
    theirs: Observation | None,
    found: Sequence[Difference],
    allowed: Limits | None,
) -> str:
    if ours is None or theirs is None:
        return "" if ours is theirs else "one side left no observation"
    if _present(ours) != _present(theirs):
        return "other tensors are there, or of other shapes"
    for item in found:
        limit = (allowed or {}).get((item.role, item.name))
        if item.same_bits:
            continue
        if limit is None or not item.compared or not item.absolute <= limit.total:
            return f"{item.role} {item.name} differs by {item.absolute:.3g}{item.sampled}{_allows(limit)}"
        # The sample is within; the sketch has seen every element.
        if item.distance is not None and item.distance * (1 - 3 * SKETCH_ERROR) > limit.total * item.elements**0.5:
            mean = item.distance / item.elements**0.5
            return (
                f"{item.role} {item.name} differs by {mean:.3g} in the root mean square over all {item.elements} "
                f"elements (estimated from sketches, to {SKETCH_ERROR:.0%}){_allows(limit)}"
            )
    return ""


def _allows(limit: Allowance | Limit | None) -> str:
    return "; what rounding allows is not known" if limit is None else f"; rounding allows {limit.total:.3g}"


def _present_equal(ours: Record, theirs: Record) -> bool:
    first, second = ours.observation, theirs.observation
    return first is not None and second is not None and _present(first) == _present(second)


def _present(seen: Observation) -> list[tuple[str, str, str | None, tuple[int, ...] | None]]:
    return [(t.role, t.name, t.dtype, t.shape) for t in seen.tensors]


def _operator_difference(ours: Replay, theirs: Replay) -> str:
    for name in sorted(ours.records):
        first, second = ours.records[name].observation, theirs.records[name].observation
        left, right = (first and first.operators) or {}, (second and second.operators) or {}
        for phase in sorted(set(left) | set(right)):
            found = first_difference(left.get(phase, ()), right.get(phase, ()))
            if found:
                return f"{phase}, operator {found[0]}: {_shown(found[1].left)} against {_shown(found[1].right)}"
    return ""


def _other_difference(ours: Record, theirs: Record) -> str:
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

"""Whether a replay shows what its scenario says it shows, and what replays say about a claim.

Computed from records, never stored in them. A verdict is one of three words: *as expected*,
*not as expected*, or *cannot say*, with the reasons beside it. What could not be seen is never
counted as either of the first two.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import AbstractSet, Any, Callable, Mapping, Sequence, TypeVar

from .canonical_json import canonical, parse
from .expectations import (
    Agrees,
    Dies,
    Differs,
    Expectation,
    Hangs,
    Holds,
    NoGradient,
    Peaks,
    Raises,
    RecomputesWithout,
    Refuses,
    ScenarioError,
    Shows,
    StateDiffers,
    Varies,
    expectation_from_json,
)
from .fingerprint import normalize_value
from .observation import Observation, Tensor
from .record import Record
from .replay import Replay
from .rounding import Ruler, read_ruler
from .tensor_diff import PLACES, Difference, differences
from .tensor_values import Fetch, is_rounded

AS_EXPECTED = "as expected"
NOT_AS_EXPECTED = "not as expected"
CANNOT_SAY = "cannot say"

Found = TypeVar("Found")

SUPPORTED = "supported"
SUPPORTED_IN_PART = "supported in part"
REFUTED = "refuted"
CANNOT_DECIDE = "cannot decide"
NOT_TESTED = "not tested here"


ENDINGS = (Raises, Refuses, Hangs, Dies, Varies)
"""Expectations that say how a case ends. Without one of them it is to finish, whatever else is expected of it."""


@dataclass(frozen=True)
class Verdict:
    """One of the three words, and why."""

    word: str
    reasons: tuple[str, ...]
    """One sentence for each expectation."""


@dataclass(frozen=True)
class Ruling:
    """What the records say about a published claim."""

    word: str
    reason: str
    digests: tuple[str, ...]
    """Records it rests on. Empty only if nothing was tested."""


@dataclass(frozen=True)
class Context:
    """What a replay is judged against."""

    reference: Replay | None
    """None if it has not run, or for a reference itself."""
    float64: Replay | None
    """The reference in float64 from the same inputs. None if it has not run."""
    repeats: tuple[Replay, ...]
    """All replays of the same case on the same machine, itself included."""
    fetch: Fetch
    """Stored tensors by digest."""
    reference_repeats: tuple[Replay, ...] = ()
    """All replays of the reference in the same environment of the same machine."""
    found: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)
    """What was found of repeats, shared by all contexts of a sweep: it is the same for each of them."""


def contexts(replays: Sequence[Replay], fetch: Fetch) -> list[Context]:
    """For each replay of one sweep, what it is judged against.

    The reference of the same repeat and sources if there is one, else any: it is the same question. Takes time in
    proportion to the number of replays, however many are of one case.
    """
    by_case: dict[str, list[Replay]] = {}
    for replay in replays:
        by_case.setdefault(replay.spec.question.case_digest(), []).append(replay)
    nearest = {case: _Nearest(of_case) for case, of_case in by_case.items()}
    repeats = {case: tuple(of_case) for case, of_case in by_case.items()}
    in_place: dict[tuple[str, object], tuple[Replay, ...]] = {}
    for case, of_case in by_case.items():
        grouped: dict[object, list[Replay]] = {}
        for replay in of_case:
            grouped.setdefault(_place(replay), []).append(replay)
        in_place.update({(case, place): tuple(many) for place, many in grouped.items()})
    nobody, found = _Nearest(()), dict[object, Any]()
    return [
        Context(
            reference=nearest.get(replay.spec.mark.reference or "", nobody).to(replay),
            float64=nearest.get(replay.spec.mark.float64 or "", nobody).to(replay),
            repeats=repeats[replay.spec.question.case_digest()],
            fetch=fetch,
            reference_repeats=in_place.get((replay.spec.mark.reference or "", _place(replay)), ()),
            found=found,
        )
        for replay in replays
    ]


def _place(replay: Replay) -> tuple[str, str]:
    return (replay.machine, replay.spec.setting.environment)


class _Nearest:
    """Finds, among the replays of one case, the one that is run most like another: on the same machine before all, then
    as the same repeat and in the same way; limits and attempts do not count.
    """

    def __init__(self, candidates: Sequence[Replay]) -> None:
        self._candidates = candidates
        self._alike: dict[tuple[object, ...], dict[object, list[Replay]]] = {}
        """By what the earlier properties are (None where no candidate has the value), then by the next one."""

    def to(self, replay: Replay) -> Replay | None:
        """The first of the nearest. None if there is no candidate."""
        left: Sequence[Replay] = self._candidates
        before: tuple[object, ...] = ()
        for at, value in enumerate(_properties(replay)):
            if len(left) < 2:
                break
            if before not in self._alike:
                grouped: dict[object, list[Replay]] = {}
                for candidate in left:
                    grouped.setdefault(_properties(candidate)[at], []).append(candidate)
                self._alike[before] = grouped
            alike = self._alike[before].get(value)
            before = (*before, value if alike else None)
            left = alike or left
        return left[0] if left else None


def _properties(replay: Replay) -> tuple[object, ...]:
    """What makes one replay nearer than another, the first above all."""
    setting = replay.spec.setting
    names = ("environment", "interpreter", "variables", "repeat", "sources", "isolation", "hash_seed")
    values = (
        tuple(sorted(value.items())) if name == "variables" else value
        for name in names
        for value in [getattr(setting, name)]
    )
    return (replay.machine, *values)


def judge(replay: Replay, context: Context) -> Verdict:
    """Compare what the replay shows with what its scenario expects."""
    record = replay.plain
    if record is None:
        return Verdict(CANNOT_SAY, ("the plain pass has not run",))
    if record.outcome.kind == "not_run":
        return Verdict(CANNOT_SAY, (f"not run: {record.outcome.detail}",))
    if record.outcome.kind == "not_observed":
        return Verdict(CANNOT_SAY, (f"not observed: {record.outcome.detail}",))
    if is_ruler(replay) and record.outcome.kind != "finished":
        return Verdict(CANNOT_SAY, (f"the float64 reference measures no rounding: {ending(record)}",))
    try:
        expected = [expectation_from_json(data) for data in replay.spec.mark.expectations]
        found = [_judge(one, replay, record, context) for one in expected] or [_finished(record)]
        if not any(isinstance(one, ENDINGS) for one in expected) and _finished(record) not in found:
            found += [] if record.outcome.kind == "finished" else [_finished(record)]
    except (ScenarioError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        # Somebody else's record may expect anything; ours expects what a scenario could be written with.
        return Verdict(CANNOT_SAY, (f"what is expected cannot be judged: {error}"[:240],))
    words = [word for word, _ in found]
    worst = next((word for word in (NOT_AS_EXPECTED, CANNOT_SAY) if word in words), AS_EXPECTED)
    early = _before_the_case(record, expected)
    if early and worst == AS_EXPECTED:
        return Verdict(CANNOT_SAY, (early,))
    return Verdict(worst, tuple(reason for _, reason in found))


def _before_the_case(record: Record, expected: Sequence[Expectation]) -> str:
    """Why an ending is none of the case's: it came before the case was called, or the worker refused to go on. Empty
    otherwise.
    """
    outcome = record.outcome
    if outcome.kind != "finished" and outcome.phase == "inputs":
        return f"it ended before the case was called: {ending(record)}"
    if outcome.kind in ("timed_out", "died") and outcome.phase is None and record.observation is None:
        return f"it left no word of its phase, so it may have ended before the case was called: {ending(record)}"
    named = any(isinstance(one, Raises) and one.type.endswith("ScenarioError") for one in expected)
    if outcome.kind == "raised" and outcome.type == "experiments.scenario.ScenarioError" and not named:
        return f"the scenario cannot be run as it is written: {ending(record)}"
    return ""


def is_ruler(replay: Replay) -> bool:
    """Whether it is a reference in float64 that only serves to measure rounding: used, and no case."""
    return replay.spec.question.dtype != replay.spec.question.input_dtype


def looking_changed(replay: Replay) -> str:
    """How a pass with an instrument ended other than the plain one. Empty if none did."""
    plain = replay.plain
    if plain is None:
        return ""
    for name, record in sorted(replay.records.items()):
        left = (plain.outcome.kind, plain.outcome.fingerprint())
        right = (record.outcome.kind, record.outcome.fingerprint())
        if left != right:
            return f"{name} pass: {ending(record)}; plain pass: {ending(plain)}"
        if _tensor_digests(plain) != _tensor_digests(record):
            return f"{name} pass: other tensor bits than the plain pass"
    return ""


def _tensor_digests(record: Record) -> list[tuple[str, str, str | None]]:
    seen = record.observation
    return [] if seen is None else [(t.role, t.name, t.digest) for t in seen.tensors]


def ending(record: Record) -> str:
    """The outcome in a few words."""
    outcome = record.outcome
    if outcome.kind == "raised":
        first = (outcome.message or "").strip().splitlines()
        return f"raised {outcome.type} in {outcome.phase}: {first[0] if first else ''}".rstrip(": ")
    return f"{outcome.kind} ({outcome.detail})" if outcome.detail else outcome.kind


def _finished(record: Record) -> tuple[str, str]:
    if record.outcome.kind == "finished":
        return AS_EXPECTED, "finished"
    return NOT_AS_EXPECTED, f"expected to finish: {ending(record)}"


def _judge(expected: Expectation, replay: Replay, record: Record, context: Context) -> tuple[str, str]:
    if isinstance(expected, Raises):
        return _raises(expected, record)
    if isinstance(expected, Refuses):
        return _refuses(expected, record)
    if isinstance(expected, Hangs):
        return _says(record.outcome.kind == "timed_out", ending(record))
    if isinstance(expected, Dies):
        died = record.outcome.kind == "died" and expected.by in ("", record.outcome.detail)
        return _says(died, ending(record))
    if isinstance(expected, Varies):
        return _varies(expected, context)
    if isinstance(expected, RecomputesWithout):
        return _recomputes_without(expected, replay)
    if isinstance(expected, (Peaks, Holds)):
        return _memory(expected, record)
    if isinstance(expected, Shows):
        return _shows(expected, record)
    if isinstance(expected, StateDiffers):
        if record.observation is None:
            return CANNOT_SAY, f"no observation, so no switches: {ending(record)}"
        changed = [change.name for change in record.observation.state]
        return _says(expected.name in changed, f"switches left changed: {', '.join(changed) or 'none'}")
    if record.outcome.kind != "finished":
        return NOT_AS_EXPECTED, f"expected to finish: {ending(record)}"
    if isinstance(expected, NoGradient):
        return _no_gradient(expected, record.observation)
    return _compared(expected, record, context)


def _says(holds: bool, reason: str) -> tuple[str, str]:  # noqa: FBT001 - two callers' words would be longer
    return (AS_EXPECTED if holds else NOT_AS_EXPECTED), reason


def _raises(expected: Raises, record: Record) -> tuple[str, str]:
    outcome = record.outcome
    if outcome.kind != "raised":
        return NOT_AS_EXPECTED, f"expected {expected.type}: {ending(record)}"
    names = (outcome.type or "", *outcome.bases)
    right = any(name == expected.type or name.rpartition(".")[2] == expected.type for name in names)
    if not right or expected.text not in (outcome.message or ""):
        return NOT_AS_EXPECTED, f"expected {expected.type} with {expected.text!r}: {ending(record)}"
    return AS_EXPECTED, ending(record)


_REFUSED = re.compile(r"(?:tried|Tried) to allocate (\d+) bytes")


def _refuses(expected: Refuses, record: Record) -> tuple[str, str]:
    found = _REFUSED.search(record.outcome.message or "")
    types = {name.rpartition(".")[2] for name in (record.outcome.type or "", *record.outcome.bases)}
    if record.outcome.kind != "raised" or found is None or not types & {"RuntimeError", "MemoryError"}:
        return NOT_AS_EXPECTED, f"expected a refused allocation: {ending(record)}"
    return _says(int(found.group(1)) == expected.bytes, f"refused {found.group(1)} bytes, expected {expected.bytes}")


def _varies(expected: Varies, context: Context) -> tuple[str, str]:
    """Of the repeats that ran, how many fail, and how many finish with other values than most do."""
    ran, finished, results, usual = _results(context)
    if not ran:
        return CANNOT_SAY, "no repeat has run"
    failed, other = ran - finished, finished - usual
    if expected.of == "values" and not finished:
        return CANNOT_SAY, f"failed in {failed} of {ran} repeats, so there are no values to compare"
    shown = f"failed in {failed} of {ran} repeats"
    if ran < 2 and expected.of != "endings":
        return CANNOT_SAY, f"{shown}; one result alone does not show whether results vary"
    if finished and expected.of != "endings":
        shown += f"; the {finished} that finished show {results} different results"
    astray = {"endings": failed, "values": other, "results": failed + other}[expected.of]
    return _says(expected.at_least <= astray / ran <= expected.at_most, shown)


def _results(context: Context) -> tuple[int, int, int, int]:
    """How many repeats ran and finished, how many different results those show, and how many show the most common."""

    def count() -> tuple[int, int, int, int]:
        plain = [other.plain for other in context.repeats if other.plain is not None]
        ran = [record for record in plain if record.outcome.kind not in ("not_run", "not_observed")]
        finished = [record for record in ran if record.outcome.kind == "finished"]
        results = Counter(_values(record) for record in finished)
        return len(ran), len(finished), len(results), max(results.values(), default=0)

    return _once(context, "results", context.repeats, count)


def _once(context: Context, what: str, rests_on: Sequence[object], find: Callable[[], Found]) -> Found:
    """What `find` gives, found once for all contexts of a sweep in which it rests on the same objects."""
    key = (what, *map(id, rests_on))
    if key not in context.found:
        # The objects are kept beside it: an id may be given anew only when its object is gone.
        context.found[key] = (rests_on, find())
    made: Found = context.found[key][1]
    return made


def _values(record: Record) -> str:
    """What a process showed: its tensors and observed values."""
    seen = record.observation
    if seen is None:
        return ""
    tensors = [[tensor.role, tensor.name, tensor.digest] for tensor in seen.tensors]
    observed = [[one.name, normalize_value(one.value)] for one in seen.observed if one.kind == "evidence"]
    return canonical([tensors, observed])


_BOOKKEEPING = frozenset(
    f"aten::{name}"
    for name in ("detach", "detach_", "alias", "empty", "empty_like", "empty_strided", "lift_fresh", "set_", "view")
) | {"detach", "detach_"}
"""Operators by which checkpoint itself makes the inputs of a recomputation: none of them does a case's work."""


def _recomputes_without(expected: RecomputesWithout, replay: Replay) -> tuple[str, str]:
    profiled = replay.records.get("profiled")
    plain = replay.plain
    if profiled is not None and plain is not None and profiled.outcome.kind != plain.outcome.kind:
        return CANNOT_SAY, f"the profiled pass ended in another way: {ending(profiled)}"
    if profiled is None or profiled.observation is None or profiled.observation.operators is None:
        return CANNOT_SAY, "no profiled pass, so no operators"
    listed = {
        phase: {operator.name for operator in operators} for phase, operators in profiled.observation.operators.items()
    }
    if "recomputation" not in listed:
        return CANNOT_SAY, "this torch's checkpoint is not known, so what was recomputed is not marked"
    if not listed["recomputation"]:
        return NOT_AS_EXPECTED, "nothing was recomputed"
    forward, again = expected.operator in listed.get("forward", ()), expected.operator in listed["recomputation"]
    first, second = ("in" if there else "not in" for there in (forward, again))
    where = f"{expected.operator}: {first} forward, {second} recomputation"
    instead = listed["recomputation"] - listed.get("forward", set()) - _BOOKKEEPING
    if forward and not again and not instead:
        # It may lie outside the checkpoint, or after what recomputation stops at.
        return NOT_AS_EXPECTED, f"{where}, in which no other operator ran instead"
    return _says(forward and not again, where)


def _sizes(*counts: int) -> list[str]:
    """Bytes in the unit that people read; to the byte where that would show two sizes that differ as one."""
    shown = [_size(count) for count in counts]
    return shown if len(set(shown)) == len(set(counts)) else [f"{count} bytes" for count in counts]


def _size(count: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} bytes"


def _memory(expected: Peaks | Holds, record: Record) -> tuple[str, str]:
    """What a phase took at its peak, or holds at its end, above what was there when it began."""
    rows = [row for row in (record.observation.memory if record.observation else ()) if row.phase == expected.phase]
    if not rows:
        return CANNOT_SAY, f"the {expected.phase} phase was not reached"
    grown = rows[0].grown(peak=isinstance(expected, Peaks))
    word = "peak" if isinstance(expected, Peaks) else "end"
    if grown is None:
        return CANNOT_SAY, f"this system does not tell what is held at the {word} of a phase"
    fits = (expected.at_least is None or grown >= expected.at_least) and (
        expected.at_most is None or grown <= expected.at_most
    )
    bounds = [
        (name, bound)
        for name, bound in (("at least", expected.at_least), ("at most", expected.at_most))
        if bound is not None
    ]
    shown, *limits = _sizes(grown, *(bound for _, bound in bounds))
    allowed = " and ".join(f"{name} {limit}" for (name, _), limit in zip(bounds, limits))
    return _says(fits, f"{expected.phase}: {shown} at its {word} above its start, expected {allowed}")


def _shows(expected: Shows, record: Record) -> tuple[str, str]:
    if record.observation is None:
        return CANNOT_SAY, f"no observation: {ending(record)}"
    seen = {one.name: one.value for one in record.observation.observed}
    wanted = parse(canonical(dict(expected.values)))
    shown = "; ".join(f"{name}: {canonical(seen[name]) if name in seen else 'not observed'}" for name in wanted)
    wrong = [name for name, value in wanted.items() if name not in seen or canonical(seen[name]) != canonical(value)]
    if wrong:
        return NOT_AS_EXPECTED, f"{shown}; expected {', '.join(f'{name}: {canonical(wanted[name])}' for name in wrong)}"
    return AS_EXPECTED, shown


def _no_gradient(expected: NoGradient, seen: Observation | None) -> tuple[str, str]:
    gradients = {tensor.name: tensor.digest for tensor in (seen.tensors if seen else ()) if tensor.role == "gradient"}
    unknown = [name for name in expected.names if name not in gradients]
    if unknown:
        return CANNOT_SAY, f"no input named {', '.join(unknown)} requires a gradient"
    got = [name for name in expected.names if gradients[name] is not None]
    return _says(not got, f"gradient for {', '.join(got)}" if got else f"no gradient for {', '.join(expected.names)}")


def _compared(expected: Agrees | Differs, record: Record, context: Context) -> tuple[str, str]:
    reference = context.reference.plain if context.reference is not None else None
    if reference is None or reference.outcome.kind != "finished":
        return CANNOT_SAY, "the reference has not finished"
    if _gradients(record) != _gradients(reference):
        return (AS_EXPECTED if isinstance(expected, Differs) else NOT_AS_EXPECTED), "other inputs get a gradient"
    form = _other_form(record, reference, bits=isinstance(expected, Agrees) and expected.bitwise)
    if form:
        return (CANNOT_SAY if isinstance(expected, Differs) else NOT_AS_EXPECTED), form
    found = differences(record, reference, context.fetch)
    if not found or _outputs(record) != _outputs(reference):
        return CANNOT_SAY, "the reference has other outputs, or there is nothing to compare"
    unsteady = _unsteady(context, reference, bits=isinstance(expected, Agrees) and expected.bitwise)
    if unsteady:
        return CANNOT_SAY, unsteady
    if isinstance(expected, Differs):
        word, reason = _differs(expected, found, _own_spread(context, reference))
        return word, reason if _was_seen_twice(context) else f"{reason}; the reference ran once"
    return _same_bits(found) if expected.bitwise else _within(record, reference, found, context)


def _gradients(record: Record) -> list[str]:
    seen = record.observation
    return [t.name for t in (seen.tensors if seen else ()) if t.role == "gradient" and t.digest is not None]


def _outputs(record: Record) -> list[str]:
    seen = record.observation
    return [t.name for t in (seen.tensors if seen else ()) if t.role == "output"]


def _other_form(record: Record, reference: Record, *, bits: bool) -> str:
    """The first tensor that has another shape, layout or kind of number than the reference's, in words; where `bits`
    are asked for another dtype. Empty if none has.
    """
    others = {(t.role, t.name): t for t in (reference.observation.tensors if reference.observation else ())}
    for tensor in record.observation.tensors if record.observation else ():
        other = others.get((tensor.role, tensor.name))
        if other is None or tensor.role == "input":
            continue
        ours, theirs = ((one.shape, one.layout, one.digest is None) for one in (tensor, other))
        if ours != theirs:
            return f"{tensor.role} {tensor.name} is {_form(tensor)}, the reference's {_form(other)}"
        rounded = is_rounded(tensor.dtype or "") and is_rounded(other.dtype or "")
        if tensor.dtype != other.dtype and (bits or not rounded):
            return f"{tensor.role} {tensor.name} is of {tensor.dtype}, the reference's of {other.dtype}"
    return ""


def _form(tensor: Tensor) -> str:
    shape = "no tensor" if tensor.shape is None else f"of shape {list(tensor.shape)}"
    return f"{shape}, {tensor.layout}" if tensor.layout else shape


def _unsteady(context: Context, reference: Record, *, bits: bool) -> str:
    """Why the reference is none: it differs from itself, in a repeat or in another pass; where `bits` are asked for by
    as little as rounding. Empty if it does not.
    """
    exact = context.float64.plain if context.float64 is not None else None
    rests_on = (reference, exact, context.reference, *context.reference_repeats)
    return _once(context, f"unsteady, bits={bits}", rests_on, lambda: _itself(context, reference, exact, bits=bits))


def _itself(context: Context, reference: Record, exact: Record | None, *, bits: bool) -> str:
    """In what the reference differs from itself, as `_unsteady` has it."""
    ruler = read_ruler(reference, exact, context.fetch).allowed if _has_finished(exact) and exact is not None else {}
    for other in (context.reference, *context.reference_repeats):
        for name, record in sorted(other.records.items()) if other is not None else ():
            if record.outcome.kind == "not_run":
                continue
            where = f"in repeat {record.spec.setting.repeat}, {name} pass"
            if record.outcome.kind != reference.outcome.kind:
                return f"the reference differs from itself: it {ending(record)} {where}"
            for item in differences(reference, record, context.fetch):
                limit = ruler.get((item.role, item.name))
                within = limit is not None and item.at_most <= limit.total
                if not item.same_bits and (bits or not within):
                    how = "in other bits, within rounding" if within else f"by {item.seen}"
                    return f"the reference differs from itself {how}: {item.role} {item.name} {where}"
    return ""


def _was_seen_twice(context: Context) -> bool:
    """Whether the reference could differ from itself: it ran in two processes."""
    references = {id(one): one for one in (context.reference, *context.reference_repeats) if one is not None}
    ran = [record for one in references.values() for record in one.records.values() if record.outcome.kind != "not_run"]
    return len(ran) > 1


def _has_finished(record: Record | None) -> bool:
    return record is not None and record.outcome.kind == "finished"


def _widest(found: Sequence[Difference]) -> str:
    """The largest difference, in words."""
    known = [item for item in found if not math.isnan(item.absolute)]
    if not known:
        return "nothing has numbers that are at hand"
    largest = max(known, key=lambda item: item.at_least)
    return f"largest difference {largest.seen} in {largest.role} {largest.name}"


def _same_bits(found: Sequence[Difference]) -> tuple[str, str]:
    if all(item.same_bits for item in found):
        return AS_EXPECTED, "same bits as the reference"
    names = ", ".join(f"{item.role} {item.name}" for item in found if not item.same_bits)
    return NOT_AS_EXPECTED, f"other bits than the reference in {names}: {_widest(found)}"


def _own_spread(context: Context, reference: Record) -> dict[tuple[str, str], float]:
    """What the reference's tensors differ by among its own repeats and passes, by role and name."""

    def find() -> dict[tuple[str, str], float]:
        spread: dict[tuple[str, str], float] = {}
        for other in (context.reference, *context.reference_repeats):
            for record in other.records.values() if other is not None else ():
                for item in differences(reference, record, context.fetch):
                    key = (item.role, item.name)
                    spread[key] = max(spread.get(key, 0.0), item.at_most)
        return spread

    return _once(context, "spread", (reference, context.reference, *context.reference_repeats), find)


def _differs(
    expected: Differs, found: Sequence[Difference], spread: Mapping[tuple[str, str], float]
) -> tuple[str, str]:
    """By enough in some element, and by more than twice what the reference differs from itself; what was not seen
    decides nothing.
    """
    shown = f"{_widest(found)}, expected at least {expected.by_at_least:g}"
    enough = [item for item in found if item.at_least >= expected.by_at_least]
    if any(item.at_least > 2 * spread.get((item.role, item.name), 0.0) for item in enough):
        return AS_EXPECTED, shown
    if enough:
        return CANNOT_SAY, f"{shown}; the reference differs from itself by as much"
    undecided = [item for item in found if not item.at_most < expected.by_at_least]
    if undecided:
        names = ", ".join(f"{item.role} {item.name}" for item in undecided)
        return CANNOT_SAY, f"{shown}; not all elements of {names} are at hand"
    return NOT_AS_EXPECTED, shown


def _within(record: Record, reference: Record, found: Sequence[Difference], context: Context) -> tuple[str, str]:
    """Right to rounding: against float64 the case errs at most twice as much as the reference does."""
    shown = _widest(found)
    exact = context.float64.plain if context.float64 is not None else None
    endless = _endless(reference)
    if all(item.same_bits for item in found) and not endless:
        return AS_EXPECTED, "same bits as the reference"
    if exact is None or exact.outcome.kind != "finished":
        return CANNOT_SAY, f"{shown}; the float64 reference has not finished, so rounding is not known"
    ruler = read_ruler(reference, exact, context.fetch)
    measured = {(item.role, item.name): item for item in differences(record, exact, context.fetch)}
    rows = [_row(item, ruler, measured, endless) for item in found]
    for word in (NOT_AS_EXPECTED, CANNOT_SAY):
        reasons = [reason for found_word, reason in rows if found_word == word]
        if reasons:
            return word, reasons[0] if word == NOT_AS_EXPECTED else f"{shown}; {reasons[0]}"
    return AS_EXPECTED, f"{shown}, within rounding"


def _endless(record: Record) -> set[tuple[str, str]]:
    """Role and name of the tensors that hold NaN or an infinity."""
    tensors = record.observation.tensors if record.observation else ()
    return {(one.role, one.name) for one in tensors if one.largest is not None and not math.isfinite(one.largest)}


def _row(
    item: Difference,
    ruler: Ruler,
    measured: Mapping[tuple[str, str], Difference],
    endless: AbstractSet[tuple[str, str]],
) -> tuple[str, str]:
    """One tensor: whether it is right to rounding."""
    key, name = (item.role, item.name), f"{item.role} {item.name}"
    if item.same_bits and key not in endless:
        return AS_EXPECTED, ""
    limit, error = ruler.allowed.get(key), measured.get(key)
    if limit is None or error is None:
        return CANNOT_SAY, f"{name}: {ruler.refused.get(key) or 'there is no float64 value of it'}"
    allows = f"rounding allows {limit.total:.3g} (the reference itself is off by {limit.own_error:.3g})"
    if not error.at_least <= limit.total:
        return NOT_AS_EXPECTED, f"{name} is off by {error.seen} from float64; {allows}"
    if not limit.holds(error):
        reason = f"an element of {name} is off by {error.beyond:.3g} more than {PLACES} of its own last places"
        return NOT_AS_EXPECTED, f"{reason}, from float64; the reference by {limit.own_error:.3g} at most"
    unseen = error.compared < error.elements and not error.at_most <= limit.beyond
    if not error.at_most <= limit.total or unseen:
        return CANNOT_SAY, f"{name} is off by {error.seen} from float64, and not all elements are at hand; {allows}"
    return AS_EXPECTED, ""

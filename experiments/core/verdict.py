"""Verdicts: whether a replay shows what its scenario expects. Also the rulings on a claim.

They are computed from records and never stored in them. A verdict is one of three words, *as expected*,
*not as expected*, or *cannot say*, with reasons. What could not be observed never counts as one of the first two.

Imports only the standard library, and runs on Python 3.9.
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
"""Expectations of how a case ends. Without one of them the case is expected to finish."""


@dataclass(frozen=True)
class Verdict:
    """One of the three words, with the reasons."""

    word: str
    reasons: tuple[str, ...]
    """One sentence for each expectation."""


@dataclass(frozen=True)
class Ruling:
    """The ruling of the records on a published claim."""

    word: str
    reason: str
    digests: tuple[str, ...]
    """Digests of the records that it is based on. Empty only if nothing was tested."""


@dataclass(frozen=True)
class Context:
    """The other replays that a replay is judged by."""

    reference: Replay | None
    """None if it has not run, or for a reference itself."""
    float64: Replay | None
    """The reference in float64 from the same inputs. None if it has not run."""
    repeats: tuple[Replay, ...]
    """All replays of the same case on the same machine, including the replay itself."""
    fetch: Fetch
    """Returns stored tensors by digest."""
    reference_repeats: tuple[Replay, ...] = ()
    """All replays of the reference in the same environment of the same machine."""
    found: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)
    """Cache of results on repeats, shared by all contexts of a sweep, for which they are the same."""


def contexts(replays: Sequence[Replay], fetch: Fetch) -> list[Context]:
    """Return the context of each replay of one sweep.

    The reference is that of the same repeat and sources if there is one, else any, since the question is the same. The
    time is proportional to the number of replays, however many belong to one case.
    """
    by_case: dict[str, list[Replay]] = {}
    for replay in replays:
        by_case.setdefault(replay.spec.question.case_digest(), []).append(replay)
    nearest = {case: _NearestReplay(of_case) for case, of_case in by_case.items()}
    repeats = {case: tuple(of_case) for case, of_case in by_case.items()}
    in_place: dict[tuple[str, object], tuple[Replay, ...]] = {}
    for case, of_case in by_case.items():
        grouped: dict[object, list[Replay]] = {}
        for replay in of_case:
            grouped.setdefault(_machine_environment(replay), []).append(replay)
        in_place.update({(case, place): tuple(many) for place, many in grouped.items()})
    no_replays, found = _NearestReplay(()), dict[object, Any]()
    return [
        Context(
            reference=nearest.get(replay.spec.mark.reference or "", no_replays).find(replay),
            float64=nearest.get(replay.spec.mark.float64 or "", no_replays).find(replay),
            repeats=repeats[replay.spec.question.case_digest()],
            fetch=fetch,
            reference_repeats=in_place.get((replay.spec.mark.reference or "", _machine_environment(replay)), ()),
            found=found,
        )
        for replay in replays
    ]


def _machine_environment(replay: Replay) -> tuple[str, str]:
    """Return machine and environment of a replay."""
    return (replay.machine, replay.spec.setting.environment)


class _NearestReplay:
    """Search among the replays of one case for the one whose setting is nearest to that of another replay.

    The machine counts most, then environment, interpreter, variables, repeat, and so on. Limits and attempts do not
    count.
    """

    def __init__(self, candidates: Sequence[Replay]) -> None:
        self._candidates = candidates
        self._alike: dict[tuple[object, ...], dict[object, list[Replay]]] = {}
        """Candidates by the values of earlier properties (None if no candidate has the value), then by the next one."""

    def find(self, replay: Replay) -> Replay | None:
        """Return the first of the nearest replays. None if there is no candidate."""
        left: Sequence[Replay] = self._candidates
        before: tuple[object, ...] = ()
        for at, value in enumerate(_nearness_properties(replay)):
            if len(left) < 2:
                break
            if before not in self._alike:
                grouped: dict[object, list[Replay]] = {}
                for candidate in left:
                    grouped.setdefault(_nearness_properties(candidate)[at], []).append(candidate)
                self._alike[before] = grouped
            alike = self._alike[before].get(value)
            before = (*before, value if alike else None)
            left = alike or left
        return left[0] if left else None


def _nearness_properties(replay: Replay) -> tuple[object, ...]:
    """Return the properties that make one replay nearer than another, the most important one first."""
    setting = replay.spec.setting
    names = ("environment", "interpreter", "variables", "repeat", "sources", "isolation", "hash_seed")
    values = (
        tuple(sorted(value.items())) if name == "variables" else value
        for name in names
        for value in [getattr(setting, name)]
    )
    return (replay.machine, *values)


def judge(replay: Replay, context: Context) -> Verdict:
    """Judge whether the replay shows what its scenario expects."""
    record = replay.plain
    if record is None:
        return Verdict(CANNOT_SAY, ("the plain pass has not run",))
    if record.outcome.kind == "not_run":
        return Verdict(CANNOT_SAY, (f"not run: {record.outcome.detail}",))
    if record.outcome.kind == "not_observed":
        return Verdict(CANNOT_SAY, (f"not observed: {record.outcome.detail}",))
    if is_ruler(replay) and record.outcome.kind != "finished":
        return Verdict(CANNOT_SAY, (f"the float64 reference measures no rounding: {describe_outcome(record)}",))
    try:
        expected = [expectation_from_json(data) for data in replay.spec.mark.expectations]
        found = [_judge_expectation(one, replay, record, context) for one in expected] or [_judge_finish(record)]
        if not any(isinstance(one, ENDINGS) for one in expected) and _judge_finish(record) not in found:
            found += [] if record.outcome.kind == "finished" else [_judge_finish(record)]
    except (ScenarioError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        # A record from elsewhere may expect anything; one of ours only what a scenario can express.
        return Verdict(CANNOT_SAY, (f"what is expected cannot be judged: {error}"[:240],))
    words = [word for word, _ in found]
    worst = next((word for word in (NOT_AS_EXPECTED, CANNOT_SAY) if word in words), AS_EXPECTED)
    early = _early_ending_reason(record, expected)
    if early and worst == AS_EXPECTED:
        return Verdict(CANNOT_SAY, (early,))
    return Verdict(worst, tuple(reason for _, reason in found))


def _early_ending_reason(record: Record, expected: Sequence[Expectation]) -> str:
    """Return why an ending does not belong to the case, or an empty string if it does.

    The process ended before the case was called, or the worker refused to continue.
    """
    outcome = record.outcome
    if outcome.kind != "finished" and outcome.phase == "inputs":
        return f"it ended before the case was called: {describe_outcome(record)}"
    if outcome.kind in ("timed_out", "died") and outcome.phase is None and record.observation is None:
        return (
            f"it left no word of its phase, so it may have ended before the case was called: {describe_outcome(record)}"
        )
    named = any(isinstance(one, Raises) and one.type.endswith("ScenarioError") for one in expected)
    if outcome.kind == "raised" and outcome.type == "experiments.scenario.ScenarioError" and not named:
        return f"the scenario cannot be run as it is written: {describe_outcome(record)}"
    return ""


def is_ruler(replay: Replay) -> bool:
    """Return whether a replay is a float64 reference, which serves only to measure rounding and is not a case."""
    return replay.spec.question.dtype != replay.spec.question.input_dtype


def instrument_effect(replay: Replay) -> str:
    """Describe how a pass with an instrument differs from the plain pass. Empty if none does."""
    plain = replay.plain
    if plain is None:
        return ""
    for name, record in sorted(replay.records.items()):
        left = (plain.outcome.kind, plain.outcome.fingerprint())
        right = (record.outcome.kind, record.outcome.fingerprint())
        if left != right:
            return f"{name} pass: {describe_outcome(record)}; plain pass: {describe_outcome(plain)}"
        if _tensor_digests(plain) != _tensor_digests(record):
            return f"{name} pass: other tensor bits than the plain pass"
    return ""


def _tensor_digests(record: Record) -> list[tuple[str, str, str | None]]:
    seen = record.observation
    return [] if seen is None else [(t.role, t.name, t.digest) for t in seen.tensors]


def describe_outcome(record: Record) -> str:
    """Return the outcome in a few words."""
    outcome = record.outcome
    if outcome.kind == "raised":
        first = (outcome.message or "").strip().splitlines()
        return f"raised {outcome.type} in {outcome.phase}: {first[0] if first else ''}".rstrip(": ")
    return f"{outcome.kind} ({outcome.detail})" if outcome.detail else outcome.kind


def _judge_finish(record: Record) -> tuple[str, str]:
    """Return word and reason of a case that is expected to finish."""
    if record.outcome.kind == "finished":
        return AS_EXPECTED, "finished"
    return NOT_AS_EXPECTED, f"expected to finish: {describe_outcome(record)}"


def _judge_expectation(expected: Expectation, replay: Replay, record: Record, context: Context) -> tuple[str, str]:
    """Return word and reason of one expectation."""
    if isinstance(expected, Raises):
        return _judge_raises(expected, record)
    if isinstance(expected, Refuses):
        return _judge_refuses(expected, record)
    if isinstance(expected, Hangs):
        return _word_and_reason(record.outcome.kind == "timed_out", describe_outcome(record))
    if isinstance(expected, Dies):
        died = record.outcome.kind == "died" and expected.by in ("", record.outcome.detail)
        return _word_and_reason(died, describe_outcome(record))
    if isinstance(expected, Varies):
        return _judge_varies(expected, context)
    if isinstance(expected, RecomputesWithout):
        return _judge_recomputes_without(expected, replay)
    if isinstance(expected, (Peaks, Holds)):
        return _judge_memory(expected, record)
    if isinstance(expected, Shows):
        return _judge_shows(expected, record)
    if isinstance(expected, StateDiffers):
        if record.observation is None:
            return CANNOT_SAY, f"no observation, so no switches: {describe_outcome(record)}"
        changed = [change.name for change in record.observation.state]
        return _word_and_reason(expected.name in changed, f"switches left changed: {', '.join(changed) or 'none'}")
    if record.outcome.kind != "finished":
        return NOT_AS_EXPECTED, f"expected to finish: {describe_outcome(record)}"
    if isinstance(expected, NoGradient):
        return _judge_no_gradient(expected, record.observation)
    return _compare_with_reference(expected, record, context)


def _word_and_reason(holds: bool, reason: str) -> tuple[str, str]:  # noqa: FBT001 - a keyword would lengthen each call
    return (AS_EXPECTED if holds else NOT_AS_EXPECTED), reason


def _judge_raises(expected: Raises, record: Record) -> tuple[str, str]:
    outcome = record.outcome
    if outcome.kind != "raised":
        return NOT_AS_EXPECTED, f"expected {expected.type}: {describe_outcome(record)}"
    names = (outcome.type or "", *outcome.bases)
    right = any(name == expected.type or name.rpartition(".")[2] == expected.type for name in names)
    if not right or expected.text not in (outcome.message or ""):
        return NOT_AS_EXPECTED, f"expected {expected.type} with {expected.text!r}: {describe_outcome(record)}"
    return AS_EXPECTED, describe_outcome(record)


_REFUSED = re.compile(r"(?:tried|Tried) to allocate (\d+) bytes")


def _judge_refuses(expected: Refuses, record: Record) -> tuple[str, str]:
    found = _REFUSED.search(record.outcome.message or "")
    types = {name.rpartition(".")[2] for name in (record.outcome.type or "", *record.outcome.bases)}
    if record.outcome.kind != "raised" or found is None or not types & {"RuntimeError", "MemoryError"}:
        return NOT_AS_EXPECTED, f"expected a refused allocation: {describe_outcome(record)}"
    return _word_and_reason(
        int(found.group(1)) == expected.bytes, f"refused {found.group(1)} bytes, expected {expected.bytes}"
    )


def _judge_varies(expected: Varies, context: Context) -> tuple[str, str]:
    """Judge how many of the repeats that ran fail, and how many finish with other values than most do."""
    ran, finished, results, usual = _count_results(context)
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
    return _word_and_reason(expected.at_least <= astray / ran <= expected.at_most, shown)


def _count_results(context: Context) -> tuple[int, int, int, int]:
    """Count repeats that ran, that finished, their different results, and those with the most common result."""

    def count() -> tuple[int, int, int, int]:
        plain = [other.plain for other in context.repeats if other.plain is not None]
        ran = [record for record in plain if record.outcome.kind not in ("not_run", "not_observed")]
        finished = [record for record in ran if record.outcome.kind == "finished"]
        results = Counter(_result_text(record) for record in finished)
        return len(ran), len(finished), len(results), max(results.values(), default=0)

    return _find_once(context, "results", context.repeats, count)


def _find_once(context: Context, what: str, rests_on: Sequence[object], find: Callable[[], Found]) -> Found:
    """Return the result of `find`, computed once for all contexts of a sweep with the same `rests_on` objects."""
    key = (what, *map(id, rests_on))
    if key not in context.found:
        # The objects are stored too, since the id of a deleted object may be reused.
        context.found[key] = (rests_on, find())
    made: Found = context.found[key][1]
    return made


def _result_text(record: Record) -> str:
    """Return the tensors and observed values of a process as text, which is equal for equal results."""
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
"""Operators by which checkpoint itself creates the inputs of a recomputation. They are not operators of a case."""


def _judge_recomputes_without(expected: RecomputesWithout, replay: Replay) -> tuple[str, str]:
    profiled = replay.records.get("profiled")
    plain = replay.plain
    if profiled is not None and plain is not None and profiled.outcome.kind != plain.outcome.kind:
        return CANNOT_SAY, f"the profiled pass ended in another way: {describe_outcome(profiled)}"
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
    return _word_and_reason(forward and not again, where)


def _format_sizes(*counts: int) -> list[str]:
    """Return sizes in readable units, or to the byte if different sizes would look equal."""
    shown = [_format_size(count) for count in counts]
    return shown if len(set(shown)) == len(set(counts)) else [f"{count} bytes" for count in counts]


def _format_size(count: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} bytes"


def _judge_memory(expected: Peaks | Holds, record: Record) -> tuple[str, str]:
    """Judge the memory of a phase at its peak, or at its end, above that at its start."""
    rows = [row for row in (record.observation.memory if record.observation else ()) if row.phase == expected.phase]
    if not rows:
        return CANNOT_SAY, f"the {expected.phase} phase was not reached"
    grown = rows[0].growth(peak=isinstance(expected, Peaks))
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
    shown, *limits = _format_sizes(grown, *(bound for _, bound in bounds))
    allowed = " and ".join(f"{name} {limit}" for (name, _), limit in zip(bounds, limits))
    return _word_and_reason(fits, f"{expected.phase}: {shown} at its {word} above its start, expected {allowed}")


def _judge_shows(expected: Shows, record: Record) -> tuple[str, str]:
    if record.observation is None:
        return CANNOT_SAY, f"no observation: {describe_outcome(record)}"
    seen = {one.name: one.value for one in record.observation.observed}
    wanted = parse(canonical(dict(expected.values)))
    shown = "; ".join(f"{name}: {canonical(seen[name]) if name in seen else 'not observed'}" for name in wanted)
    wrong = [name for name, value in wanted.items() if name not in seen or canonical(seen[name]) != canonical(value)]
    if wrong:
        return NOT_AS_EXPECTED, f"{shown}; expected {', '.join(f'{name}: {canonical(wanted[name])}' for name in wrong)}"
    return AS_EXPECTED, shown


def _judge_no_gradient(expected: NoGradient, seen: Observation | None) -> tuple[str, str]:
    gradients = {tensor.name: tensor.digest for tensor in (seen.tensors if seen else ()) if tensor.role == "gradient"}
    unknown = [name for name in expected.names if name not in gradients]
    if unknown:
        return CANNOT_SAY, f"no input named {', '.join(unknown)} requires a gradient"
    got = [name for name in expected.names if gradients[name] is not None]
    return _word_and_reason(
        not got, f"gradient for {', '.join(got)}" if got else f"no gradient for {', '.join(expected.names)}"
    )


def _compare_with_reference(expected: Agrees | Differs, record: Record, context: Context) -> tuple[str, str]:
    reference = context.reference.plain if context.reference is not None else None
    if reference is None or reference.outcome.kind != "finished":
        return CANNOT_SAY, "the reference has not finished"
    if _gradient_names(record) != _gradient_names(reference):
        return (AS_EXPECTED if isinstance(expected, Differs) else NOT_AS_EXPECTED), "other inputs get a gradient"
    form = _form_difference(record, reference, bits=isinstance(expected, Agrees) and expected.bitwise)
    if form:
        return (CANNOT_SAY if isinstance(expected, Differs) else NOT_AS_EXPECTED), form
    found = differences(record, reference, context.fetch)
    if not found or _output_names(record) != _output_names(reference):
        return CANNOT_SAY, "the reference has other outputs, or there is nothing to compare"
    unsteady = _unsteady_reason(context, reference, bits=isinstance(expected, Agrees) and expected.bitwise)
    if unsteady:
        return CANNOT_SAY, unsteady
    if isinstance(expected, Differs):
        word, reason = _judge_differs(expected, found, _reference_spread(context, reference))
        return word, reason if _has_two_runs(context) else f"{reason}; the reference ran once"
    return _judge_bits(found) if expected.bitwise else _judge_rounding(record, reference, found, context)


def _gradient_names(record: Record) -> list[str]:
    seen = record.observation
    return [t.name for t in (seen.tensors if seen else ()) if t.role == "gradient" and t.digest is not None]


def _output_names(record: Record) -> list[str]:
    seen = record.observation
    return [t.name for t in (seen.tensors if seen else ()) if t.role == "output"]


def _form_difference(record: Record, reference: Record, *, bits: bool) -> str:
    """Describe the first tensor whose shape, layout or kind of number differs from the reference. Empty if none does.

    If `bits` must be equal, another dtype counts as well.
    """
    others = {(t.role, t.name): t for t in (reference.observation.tensors if reference.observation else ())}
    for tensor in record.observation.tensors if record.observation else ():
        other = others.get((tensor.role, tensor.name))
        if other is None or tensor.role == "input":
            continue
        ours, theirs = ((one.shape, one.layout, one.digest is None) for one in (tensor, other))
        if ours != theirs:
            return f"{tensor.role} {tensor.name} is {_form_text(tensor)}, the reference's {_form_text(other)}"
        rounded = is_rounded(tensor.dtype or "") and is_rounded(other.dtype or "")
        if tensor.dtype != other.dtype and (bits or not rounded):
            return f"{tensor.role} {tensor.name} is of {tensor.dtype}, the reference's of {other.dtype}"
    return ""


def _form_text(tensor: Tensor) -> str:
    shape = "no tensor" if tensor.shape is None else f"of shape {list(tensor.shape)}"
    return f"{shape}, {tensor.layout}" if tensor.layout else shape


def _unsteady_reason(context: Context, reference: Record, *, bits: bool) -> str:
    """Return how the reference differs from itself, in a repeat or in another pass. Empty if it does not.

    Such a reference cannot be used. If `bits` must be equal, a difference within rounding counts as well.
    """
    exact = context.float64.plain if context.float64 is not None else None
    rests_on = (reference, exact, context.reference, *context.reference_repeats)
    return _find_once(
        context, f"unsteady, bits={bits}", rests_on, lambda: _self_difference(context, reference, exact, bits=bits)
    )


def _self_difference(context: Context, reference: Record, exact: Record | None, *, bits: bool) -> str:
    """Compute the result of `_unsteady_reason`."""
    ruler = read_ruler(reference, exact, context.fetch).allowed if _has_finished(exact) and exact is not None else {}
    for other in (context.reference, *context.reference_repeats):
        for name, record in sorted(other.records.items()) if other is not None else ():
            if record.outcome.kind == "not_run":
                continue
            where = f"in repeat {record.spec.setting.repeat}, {name} pass"
            if record.outcome.kind != reference.outcome.kind:
                return f"the reference differs from itself: it {describe_outcome(record)} {where}"
            for item in differences(reference, record, context.fetch):
                limit = ruler.get((item.role, item.name))
                within = limit is not None and item.at_most <= limit.total
                if not item.same_bits and (bits or not within):
                    how = "in other bits, within rounding" if within else f"by {item.seen}"
                    return f"the reference differs from itself {how}: {item.role} {item.name} {where}"
    return ""


def _has_two_runs(context: Context) -> bool:
    """Return whether the reference ran in more than one process, so that it could differ from itself."""
    references = {id(one): one for one in (context.reference, *context.reference_repeats) if one is not None}
    ran = [record for one in references.values() for record in one.records.values() if record.outcome.kind != "not_run"]
    return len(ran) > 1


def _has_finished(record: Record | None) -> bool:
    return record is not None and record.outcome.kind == "finished"


def _largest_difference_text(found: Sequence[Difference]) -> str:
    """Return the largest difference in words."""
    known = [item for item in found if not math.isnan(item.absolute)]
    if not known:
        return "nothing has numbers that are at hand"
    largest = max(known, key=lambda item: item.at_least)
    return f"largest difference {largest.seen} in {largest.role} {largest.name}"


def _judge_bits(found: Sequence[Difference]) -> tuple[str, str]:
    if all(item.same_bits for item in found):
        return AS_EXPECTED, "same bits as the reference"
    names = ", ".join(f"{item.role} {item.name}" for item in found if not item.same_bits)
    return NOT_AS_EXPECTED, f"other bits than the reference in {names}: {_largest_difference_text(found)}"


def _reference_spread(context: Context, reference: Record) -> dict[tuple[str, str], float]:
    """Return the largest difference of each tensor among repeats and passes of the reference, by role and name."""

    def find() -> dict[tuple[str, str], float]:
        spread: dict[tuple[str, str], float] = {}
        for other in (context.reference, *context.reference_repeats):
            for record in other.records.values() if other is not None else ():
                for item in differences(reference, record, context.fetch):
                    key = (item.role, item.name)
                    spread[key] = max(spread.get(key, 0.0), item.at_most)
        return spread

    return _find_once(context, "spread", (reference, context.reference, *context.reference_repeats), find)


def _judge_differs(
    expected: Differs, found: Sequence[Difference], spread: Mapping[tuple[str, str], float]
) -> tuple[str, str]:
    """Judge whether some element differs enough, and by more than twice what the reference differs from itself.

    Elements that were not compared do not decide it.
    """
    shown = f"{_largest_difference_text(found)}, expected at least {expected.by_at_least:g}"
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


def _judge_rounding(
    record: Record, reference: Record, found: Sequence[Difference], context: Context
) -> tuple[str, str]:
    """Judge whether the case is right to rounding: its error against float64 is at most twice that of the reference."""
    shown = _largest_difference_text(found)
    exact = context.float64.plain if context.float64 is not None else None
    endless = _nonfinite_tensors(reference)
    if all(item.same_bits for item in found) and not endless:
        return AS_EXPECTED, "same bits as the reference"
    if exact is None or exact.outcome.kind != "finished":
        return CANNOT_SAY, f"{shown}; the float64 reference has not finished, so rounding is not known"
    ruler = read_ruler(reference, exact, context.fetch)
    measured = {(item.role, item.name): item for item in differences(record, exact, context.fetch)}
    rows = [_judge_tensor(item, ruler, measured, endless) for item in found]
    for word in (NOT_AS_EXPECTED, CANNOT_SAY):
        reasons = [reason for found_word, reason in rows if found_word == word]
        if reasons:
            return word, reasons[0] if word == NOT_AS_EXPECTED else f"{shown}; {reasons[0]}"
    return AS_EXPECTED, f"{shown}, within rounding"


def _nonfinite_tensors(record: Record) -> set[tuple[str, str]]:
    """Return role and name of the tensors that contain NaN or an infinity."""
    tensors = record.observation.tensors if record.observation else ()
    return {(one.role, one.name) for one in tensors if one.largest is not None and not math.isfinite(one.largest)}


def _judge_tensor(
    item: Difference,
    ruler: Ruler,
    measured: Mapping[tuple[str, str], Difference],
    endless: AbstractSet[tuple[str, str]],
) -> tuple[str, str]:
    """Judge whether one tensor is right to rounding."""
    key, name = (item.role, item.name), f"{item.role} {item.name}"
    if item.same_bits and key not in endless:
        return AS_EXPECTED, ""
    limit, error = ruler.allowed.get(key), measured.get(key)
    if limit is None or error is None:
        return CANNOT_SAY, f"{name}: {ruler.refused.get(key) or 'there is no float64 value of it'}"
    allows = f"rounding allows {limit.total:.3g} (the reference itself is off by {limit.own_error:.3g})"
    if not error.at_least <= limit.total:
        return NOT_AS_EXPECTED, f"{name} is off by {error.seen} from float64; {allows}"
    if not limit.can_explain(error):
        reason = f"an element of {name} is off by {error.beyond:.3g} more than {PLACES} of its own last places"
        return NOT_AS_EXPECTED, f"{reason}, from float64; the reference by {limit.own_error:.3g} at most"
    unseen = error.compared < error.elements and not error.at_most <= limit.beyond
    if not error.at_most <= limit.total or unseen:
        return CANNOT_SAY, f"{name} is off by {error.seen} from float64, and not all elements are at hand; {allows}"
    return AS_EXPECTED, ""

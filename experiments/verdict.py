"""Whether a replay shows what its scenario says it shows, and what replays say about a claim.

Computed from records, never stored in them. A verdict is one of three words: *as expected*,
*not as expected*, or *cannot say*, with the reasons beside it. What could not be seen is never
counted as either of the first two.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Sequence

from .agreement import Fetch, allowances, differences
from .record import Observation, Record, Replay, canonical, parse
from .scenario import (
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
    Shows,
    StateDiffers,
    Varies,
    expectation_from_json,
)

AS_EXPECTED = "as expected"
NOT_AS_EXPECTED = "not as expected"
CANNOT_SAY = "cannot say"

SUPPORTED = "supported"
SUPPORTED_IN_PART = "supported in part"
REFUTED = "refuted"
CANNOT_DECIDE = "cannot decide"
NOT_TESTED = "not tested here"


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


def contexts(replays: Sequence[Replay], fetch: Fetch) -> list[Context]:
    """For each replay of one sweep, what it is judged against.

    The reference of the same repeat and sources if there is one, else any: it is the same question.
    """
    by_case: dict[str, list[Replay]] = {}
    for replay in replays:
        by_case.setdefault(replay.spec.question.case_digest(), []).append(replay)
    return [
        Context(
            reference=_nearest(replay, by_case.get(replay.spec.mark.reference or "", [])),
            float64=_nearest(replay, by_case.get(replay.spec.mark.float64 or "", [])),
            repeats=tuple(by_case[replay.spec.question.case_digest()]),
            fetch=fetch,
        )
        for replay in replays
    ]


def _nearest(replay: Replay, candidates: Sequence[Replay]) -> Replay | None:
    """Of the same machine before all, then of the same repeat and way of running; limits and attempts do not count."""
    return min(candidates, key=lambda other: _distance(replay, other), default=None)


def _distance(replay: Replay, other: Replay) -> tuple[bool, ...]:
    ours, theirs = replay.spec.setting, other.spec.setting
    names = ("environment", "interpreter", "variables", "repeat", "sources", "isolation", "hash_seed")
    return (replay.machine != other.machine, *(getattr(ours, name) != getattr(theirs, name) for name in names))


def judge(replay: Replay, context: Context) -> Verdict:
    """Compare what the replay shows with what its scenario expects."""
    record = replay.plain
    if record is None:
        return Verdict(CANNOT_SAY, ("the plain pass has not run",))
    if record.outcome.kind == "not_run":
        return Verdict(CANNOT_SAY, (f"not run: {record.outcome.detail}",))
    expected = [expectation_from_json(data) for data in replay.spec.mark.expectations]
    found = [_judge(one, replay, record, context) for one in expected] or [_finished(record)]
    words = [word for word, _ in found]
    worst = next((word for word in (NOT_AS_EXPECTED, CANNOT_SAY) if word in words), AS_EXPECTED)
    return Verdict(worst, tuple(reason for _, reason in found))


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
    if record.outcome.kind != "raised" or found is None:
        return NOT_AS_EXPECTED, f"expected a refused allocation: {ending(record)}"
    return _says(int(found.group(1)) == expected.bytes, f"refused {found.group(1)} bytes, expected {expected.bytes}")


def _varies(expected: Varies, context: Context) -> tuple[str, str]:
    endings = [other.plain.outcome.kind for other in context.repeats if other.plain is not None]
    ran = [kind for kind in endings if kind != "not_run"]
    if not ran:
        return CANNOT_SAY, "no repeat has run"
    failed = sum(kind != "finished" for kind in ran)
    shown = f"failed in {failed} of {len(ran)} repeats"
    return _says(expected.at_least <= failed / len(ran) <= expected.at_most, shown)


def _recomputes_without(expected: RecomputesWithout, replay: Replay) -> tuple[str, str]:
    profiled = replay.records.get("profiled")
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
    return _says(forward and not again, where)


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
    bounds = (("at least", expected.at_least), ("at most", expected.at_most))
    allowed = " and ".join(f"{name} {bound}" for name, bound in bounds if bound is not None)
    return _says(fits, f"{expected.phase}: {grown} bytes at its {word} above its start, expected {allowed}")


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
    found = differences(record, reference, context.fetch)
    if _gradients(record) != _gradients(reference):
        return (AS_EXPECTED if isinstance(expected, Differs) else NOT_AS_EXPECTED), "other inputs get a gradient"
    if not found or any(math.isnan(item.absolute) for item in found) or _outputs(record) != _outputs(reference):
        return CANNOT_SAY, "tensors are missing or of other shapes than the reference's"
    largest = max(found, key=lambda item: item.absolute)
    shown = f"largest difference {largest.absolute:.3g} in {largest.role} {largest.name}{largest.sampled}"
    if isinstance(expected, Differs):
        return _says(largest.absolute >= expected.by_at_least, f"{shown}, expected at least {expected.by_at_least:g}")
    if all(item.same_bits for item in found):
        return AS_EXPECTED, "same bits as the reference"
    return (NOT_AS_EXPECTED, shown) if expected.bitwise else _within(record, reference, context, shown)


def _gradients(record: Record) -> list[str]:
    seen = record.observation
    return [t.name for t in (seen.tensors if seen else ()) if t.role == "gradient" and t.digest is not None]


def _outputs(record: Record) -> list[str]:
    seen = record.observation
    return [t.name for t in (seen.tensors if seen else ()) if t.role == "output"]


def _within(record: Record, reference: Record, context: Context, shown: str) -> tuple[str, str]:
    """Right to rounding: against float64 the case errs at most twice as much as the reference does."""
    exact = context.float64.plain if context.float64 is not None else None
    if exact is None or exact.outcome.kind != "finished":
        return CANNOT_SAY, f"{shown}; the float64 reference has not finished, so rounding is not known"
    allowed = allowances(reference, exact, context.fetch)
    measured = {(item.role, item.name): item for item in differences(record, exact, context.fetch)}
    for own in differences(record, reference, context.fetch):
        item = measured.get((own.role, own.name), own)
        limit = allowed.get((item.role, item.name))
        if limit is None:
            return CANNOT_SAY, f"{shown}; no float64 value of {item.role} {item.name}"
        if not item.absolute <= limit.total:
            return NOT_AS_EXPECTED, (
                f"{item.role} {item.name} is off by {item.absolute:.3g} from float64; rounding allows "
                f"{limit.total:.3g} (the reference itself is off by {limit.own_error:.3g})"
            )
    return AS_EXPECTED, f"{shown}, within rounding"

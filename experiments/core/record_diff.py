"""Comparison of two records: question, machine, outcome, and observations. Equal values are counted, not listed.

Differences are not judged: whether one is rounding, or expected, is decided in reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Callable, Iterator, Mapping, Sequence

from experiments.core.canonical_json import RecordError, canonical, parse
from experiments.core.observation import Memory, Operator, Tensor
from experiments.core.operator_diff import align
from experiments.core.outcome import Outcome
from experiments.core.record import Record
from experiments.core.tensor_diff import Difference, difference

Fetch = Callable[[str], "bytes | None"]
Row = tuple[str, str, str]
"""Name, value in the first record, value in the second."""

NOTHING = "-"
"""Shown where one of the two has no value of that name."""
CONTEXT = 3
"""Number of operators shown before and after the first that differs."""
LONGEST = 120
"""Characters of a value that are shown. A longer one is shown from near where it differs."""


@dataclass(frozen=True)
class Section:
    """Comparison of one part of two records."""

    title: str
    said: str
    """How much is equal, or why it cannot be compared."""
    rows: tuple[Row, ...] = ()
    """Values that differ. Of measurements all values, since no two are equal."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of two records."""

    equal: bool
    """Whether they hold the same evidence."""
    sections: tuple[Section, ...]


def compare(ours: Record, theirs: Record, fetch: Fetch) -> Comparison:
    """Return everything in which two records differ. `fetch` returns tensors and machine facts by digest."""
    both = (ours, theirs)
    sections = (
        _machine_section(*(_machine_facts(one, fetch) for one in both)),
        _value_section("question", *(one.spec.to_json()["question"] for one in both)),
        _value_section("setting", *(one.spec.to_json()["setting"] for one in both)),
        _value_section("mark", *(one.spec.to_json()["mark"] for one in both)),
        _outcome_section(ours.outcome, theirs.outcome),
        *_operator_sections(ours, theirs),
        _tensor_section(ours, theirs, fetch),
        _value_section("observed", *map(_observed_evidence, both)),
        _value_section("state left changed", *map(_state_changes, both)),
        _measurement_section(ours, theirs),
    )
    return Comparison(ours.evidence_digest() == theirs.evidence_digest(), sections)


# Parts that consist of names and values.


def _value_section(title: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Section:
    left, right = dict(_flatten(ours)), dict(_flatten(theirs))
    names = sorted({*left, *right})
    rows = tuple(
        _difference_row(name, left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)
    )
    return Section(title, f"{len(names) - len(rows)} equal, {len(rows)} different" if names else "none", rows)


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every value inside a nested value, by its dotted name."""
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _flatten(inside, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if isinstance(value, str) else canonical(value)


def _difference_row(name: str, ours: str | None, theirs: str | None) -> Row:
    """Return the row of two different values, each cut to where they differ."""
    if ours is None or theirs is None:
        return name, *(NOTHING if one is None else _cut_text(one, 0) for one in (ours, theirs))  # type: ignore[return-value]
    start = next((at for at, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs)))
    return name, _cut_text(ours, start), _cut_text(theirs, start)


def _cut_text(text: str, start: int) -> str:
    """Return as much of a text as a table can hold, including the position `start`."""
    begin = max(0, min(start - LONGEST // 3, len(text) - LONGEST))
    shown = text[begin : begin + LONGEST]
    return f"{'…' if begin else ''}{shown}{'…' if begin + LONGEST < len(text) else ''}"


def _machine_facts(record: Record, fetch: Fetch) -> Mapping[str, Any] | None:
    """Return the facts of the machine. None if the process left none that can be read."""
    if record.observation is None:
        return None
    try:
        found = parse((fetch(record.observation.machine) or b"").decode("utf-8"))
        canonical(found)  # refuses values that are nested too deep
    except (RecordError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None


def _machine_section(ours: Mapping[str, Any] | None, theirs: Mapping[str, Any] | None) -> Section:
    if ours is None or theirs is None:
        which = "both" if ours is theirs else "the first" if ours is None else "the second"
        return Section("machine", f"{which} left no facts that can be read")
    return _value_section("machine", ours, theirs)


def _observed_evidence(record: Record) -> dict[str, Any]:
    seen = record.observation
    return {} if seen is None else {one.name: one.value for one in seen.observed if one.kind == "evidence"}


def _state_changes(record: Record) -> dict[str, Any]:
    seen = record.observation
    return (
        {} if seen is None else {one.name: f"{canonical(one.before)} -> {canonical(one.after)}" for one in seen.state}
    )


# Outcomes.


def _outcome_section(ours: Outcome, theirs: Outcome) -> Section:
    left, right = ({name: getattr(one, name) for name in ("kind", "phase", "type", "detail")} for one in (ours, theirs))
    plain = _value_section("outcome", left, right)
    rows = (*plain.rows, *_first_unequal_line("message", ours.message or "", theirs.message or ""))
    said = f"both {ours.kind}" if ours.kind == theirs.kind else f"{ours.kind} against {theirs.kind}"
    return Section("outcome", said, rows)


def _first_unequal_line(title: str, ours: str, theirs: str) -> Iterator[Row]:
    """Yield a row for the first line in which two texts differ, or nothing."""
    left, right = ours.splitlines(), theirs.splitlines()
    for at in range(max(len(left), len(right))):
        first, second = (lines[at] if at < len(lines) else None for lines in (left, right))
        if first != second:
            yield _difference_row(f"{title}, line {at + 1}", first, second)
            return


# Observations.


def _operator_sections(ours: Record, theirs: Record) -> Iterator[Section]:
    """Yield a section for each phase in which at least one of the records has operators."""
    left, right = ((one.observation and one.observation.operators) or {} for one in (ours, theirs))
    if not left and not right:
        yield Section("operators", "neither has any: only a profiled pass does")
    for phase in sorted({*left, *right}):
        yield _phase_section(f"operators of {phase}", left.get(phase, ()), right.get(phase, ()))


def _phase_section(title: str, left: Sequence[Operator], right: Sequence[Operator]) -> Section:
    steps = align(left, right)
    unlike = [at for at, step in enumerate(steps) if not step.same]
    if not unlike:
        return Section(title, f"{len(left)} equal")
    begin, end = max(0, unlike[0] - CONTEXT), unlike[0] + CONTEXT + 1
    rows = tuple(
        (f"{at}{'' if step.same else ' <'}", _operator_text(step.left), _operator_text(step.right))
        for at, step in enumerate(steps[begin:end], begin)
    )
    said = f"{len(left)} and {len(right)}; {len(unlike)} of {len(steps)} places differ, the first is {unlike[0]}"
    return Section(title, said, rows)


def _operator_text(one: Operator | None) -> str:
    if one is None:
        return NOTHING
    shapes = ", ".join("x".join(map(str, shape)) or "()" for shape in one.shapes)
    return _cut_text(f"{'  ' * min(one.depth, 8)}{one.name} ({shapes})", 0)


def _tensor_section(ours: Record, theirs: Record, fetch: Fetch) -> Section:
    left, right = (
        {(one.role, one.name): one for one in record.observation.tensors} if record.observation else {}
        for record in (ours, theirs)
    )
    keys = sorted({*left, *right})
    rows = tuple(row for key in keys for row in _tensor_rows(key, left.get(key), right.get(key), fetch))
    return Section("tensors", f"{len(keys) - len(rows)} equal, {len(rows)} different", rows)


def _tensor_rows(key: tuple[str, str], ours: Tensor | None, theirs: Tensor | None, fetch: Fetch) -> Iterator[Row]:
    """Yield a row if they differ: both tensors, and by how much where their elements are available."""
    alike = ours is not None and theirs is not None and _tensor_identity(ours) == _tensor_identity(theirs)
    if alike or (ours is None and theirs is None):
        return
    shown = [NOTHING if one is None else _tensor_text(one) for one in (ours, theirs)]
    if ours is not None and theirs is not None and ours.digest and theirs.digest:
        shown[1] += f"; {_difference_text(difference(ours, theirs, fetch))}"
    yield " ".join(key), shown[0], shown[1]


def _tensor_identity(one: Tensor) -> tuple[Any, ...]:
    return one.dtype, one.shape, one.digest


def _tensor_text(one: Tensor) -> str:
    if one.digest is None:
        return "no such tensor"
    return f"{one.dtype} {list(one.shape or ())}, norm {one.norm}, {one.digest[:12]}"


def _difference_text(found: Difference) -> str:
    if not found.compared:
        return "not compared: other shapes or kinds, or the elements are not at hand"
    ulps = "" if math.isnan(found.ulp) else f", {found.ulp:.3g} ULP"
    apart = ""
    if found.distance is not None:
        apart = f"; over all elements about {found.distance:.3g} apart, as their sketches have it"
    return (
        f"largest difference {found.absolute:.3g}{ulps}, {found.equal_bits} of {found.compared} with equal bits"
        f"{found.sampled}{apart}"
    )


# Measurements, which a replay need not repeat.


def _measurement_section(ours: Record, theirs: Record) -> Section:
    left, right = dict(_measurements(ours)), dict(_measurements(theirs))
    names = [*left, *(name for name in right if name not in left)]
    rows = tuple((name, left.get(name, NOTHING), right.get(name, NOTHING)) for name in names)
    return Section("measurements, which are no evidence", f"{len(rows)}", rows)


def _measurements(record: Record) -> Iterator[tuple[str, str]]:
    yield "started at", record.ending.started_at
    yield "duration of the process", f"{record.ending.duration:.3g} s"
    seen = record.observation
    if seen is None:
        return
    yield from ((f"duration of {phase}", f"{seconds:.3g} s") for phase, seconds in sorted(seen.durations.items()))
    for row in seen.memory:
        for part in fields(Memory)[1:]:
            value = getattr(row, part.name)
            if value is not None:
                yield f"memory, {row.phase}, {part.name.replace('_', ' ')}", f"{value} bytes"
    yield from ((one.name, _cut_text(canonical(one.value), 0)) for one in seen.observed if one.kind != "evidence")

"""Series: one scenario measured over one of its parameters, with fitted curves and expected exponents.

A series is defined in ``conf/series/``, stored in the mark of each case that is a point of it, and computed from
records, as a verdict is. A curve is one case on one device. At each of its places it has the median of the repeats,
with their range; where both axes are positive numbers, a power law is fitted to all runs by least squares on the
logarithms.

Imports only the standard library, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
from dataclasses import asdict, dataclass, fields
from typing import Any, Iterable, Iterator, Mapping, Sequence, Union

from ..core.canonical_json import RecordError, canonical, number
from ..core.expectations import ScenarioError
from ..core.quantities import value_and_error
from ..core.replay import Replay
from ..core.spec import Question, case_label
from ..core.verdict import AS_EXPECTED, CANNOT_SAY, NOT_AS_EXPECTED

Value = Union[float, str]

MEASURES = re.compile(r"(inputs|forward|backward) (peak|held|seconds)")
"""Measures that every process takes; any other measure is the name of an observed number."""
FEWEST = 3
"""Least number of different places that a fit needs."""


@dataclass(frozen=True)
class Expected:
    """The exponent that a curve should have."""

    value: float
    within: float
    """Largest deviation from it that is still as expected."""


@dataclass(frozen=True)
class Series:
    """Definition of a series: what is measured, over which parameter."""

    name: str
    title: str
    scenario: str
    parameter: str
    """The case's parameter on the horizontal axis, or ``dtype`` or ``threads``."""
    cases: tuple[str, ...]
    measure: str
    """As `MEASURES`, relative to the start of the phase, or the name of an observed number."""
    unit: str
    """``bytes``, ``seconds``, or the thing that is counted. Empty for none."""
    line: str
    """Name of an observed number that is drawn as a line. Empty for none."""
    exponents: Mapping[str, Expected]
    """Expected exponent by case. A case without one is drawn and fitted but not judged."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `from_json` reads."""
        return {**asdict(self), "cases": list(self.cases)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Series:
        """Parse a series. Raises ScenarioError if it is malformed: marks may come from untrusted records."""
        try:
            exponents = {
                case: Expected(number(one["value"]), number(one["within"])) for case, one in data["exponents"].items()
            }
            series = cls(**{**data, "cases": tuple(data["cases"]), "exponents": exponents})
        except (TypeError, KeyError, AttributeError, RecordError) as error:
            raise ScenarioError(f"a mark holds a series that cannot be read: {error}") from None
        words = [getattr(series, one.name) for one in fields(series) if one.name not in ("cases", "exponents")]
        if not all(isinstance(word, str) for word in (*words, *series.cases, *exponents)):
            raise ScenarioError("a mark holds a series that cannot be read: its words are no text")
        return series


@dataclass(frozen=True)
class Point:
    """One measurement of one replay."""

    series: Series
    case: str
    label: str
    """The case, with the parameters that distinguish its variant from others at the same place."""
    device: str
    place: Value
    """Position on the horizontal axis."""
    value: float
    line: float | None
    """None if the series has no line, or the replay did not observe it."""


@dataclass(frozen=True)
class Place:
    """Measurements of the repeats at one place of a curve."""

    at: Value
    values: tuple[float, ...]
    """One for each run, in ascending order; at least one."""
    line: float | None
    """None if the series has no line, or no run observed it."""

    @property
    def value(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def runs(self) -> int:
        """The number of runs at this place."""
        return len(self.values)


@dataclass(frozen=True)
class Fit:
    """``value = factor * place ** exponent``."""

    exponent: float
    error: float
    """Standard error of the exponent, from the residuals of the fit."""
    factor: float

    def __str__(self) -> str:
        """Return the exponent with its error, rounded to significant digits."""
        return value_and_error(self.exponent, self.error)


@dataclass(frozen=True)
class Curve:
    """One case on one device, in one variant apart from the parameter of the series."""

    label: str
    """The case, with its variant if more than that parameter varies."""
    device: str
    places: tuple[Place, ...]
    """In the order of the horizontal axis."""
    fit: Fit | None
    word: str
    """The verdict. Empty if no exponent is expected."""
    reason: str

    @property
    def runs(self) -> str:
        """The number of runs at each place, in words."""
        counts = sorted({place.runs for place in self.places})
        if counts == [1]:
            return "one run at each place"
        ends = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
        return f"medians of {ends} runs at each place"


@dataclass(frozen=True)
class Measured:
    """A series with its curves."""

    series: Series
    curves: tuple[Curve, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the series and all its places as JSON."""
        listed = [[c.label, c.device, p.at, list(p.values), p.line] for c in self.curves for p in c.places]
        return {"series": self.series.to_json(), "places": listed}

    @property
    def line(self) -> list[tuple[Value, float]]:
        """The values of the line, sorted by place."""
        found = {place.at: place.line for curve in self.curves for place in curve.places if place.line is not None}
        return sorted(found.items(), key=_sort_key)


def points(replay: Replay) -> list[Point]:
    """Return a point for each series that the replay belongs to and has a measurement for.

    Series that cannot be read or do not name its case are skipped.
    """
    made = []
    for series in _readable_series(replay):
        place, value = _place(series, replay), _read_measure(series.measure, replay)
        if place is not None and value is not None:
            question = replay.spec.question
            line = _read_measure(series.line, replay) if series.line else None
            label = _label(question, series.parameter)
            made.append(Point(series, question.case, label, question.device, place, value, line))
    return made


def _label(question: Question, parameter: str) -> str:
    rest = {name: value for name, value in question.parameters.items() if name != parameter}
    if parameter == "dtype":
        return case_label(question.case, rest, "float32", "float32")
    return case_label(question.case, rest, question.dtype, question.input_dtype)


def _readable_series(replay: Replay) -> Iterator[Series]:
    for data in replay.spec.mark.series:
        with contextlib.suppress(ScenarioError):
            series = Series.from_json(data)
            if replay.spec.question.case in series.cases:
                yield series


def measured_series(found: Iterable[Point]) -> list[Measured]:
    """Return every series of these points, sorted by name, with its curves in the order of its cases.

    Different series with the same name stay separate.
    """
    grouped: dict[str, list[Point]] = {}
    for point in found:
        grouped.setdefault(canonical([point.series.name, point.series.to_json()]), []).append(point)
    return [_measure_series(listed) for _, listed in sorted(grouped.items())]


def unmeasured_series(replays: Sequence[Replay]) -> list[Series]:
    """Return the series that the replays belong to but none has a measurement for."""
    named = {series.name: series for replay in replays for series in _readable_series(replay)}
    seen = {point.series.name for replay in replays for point in points(replay)}
    return [series for name, series in sorted(named.items()) if name not in seen]


def _measure_series(listed: Sequence[Point]) -> Measured:
    series = listed[0].series
    grouped: dict[tuple[str, int, str], list[Point]] = {}
    for point in listed:
        grouped.setdefault((point.device, series.cases.index(point.case), point.label), []).append(point)
    return Measured(series, tuple(_curve(series, own) for _, own in sorted(grouped.items(), key=lambda item: item[0])))


def _curve(series: Series, listed: Sequence[Point]) -> Curve:
    places = tuple(_places(listed))
    fitted = fit_power_law([(place.at, value) for place in places for value in place.values])
    word, reason = _judge_exponent(series.exponents.get(listed[0].case), fitted, places)
    return Curve(listed[0].label, listed[0].device, places, fitted, word, reason)


def _places(listed: Sequence[Point]) -> Iterator[Place]:
    grouped: dict[Value, list[Point]] = {}
    for point in listed:
        grouped.setdefault(point.place, []).append(point)
    for at, many in sorted(grouped.items(), key=_sort_key):
        lines = sorted(point.line for point in many if point.line is not None)
        yield Place(at, tuple(sorted(point.value for point in many)), statistics.median(lines) if lines else None)


def _judge_exponent(expected: Expected | None, fitted: Fit | None, places: Sequence[Place]) -> tuple[str, str]:
    if expected is None:
        return "", ""
    wanted = f"expected {expected.value:g} within {expected.within:g}"
    if fitted is None:
        positive = sum(place.value > 0 for place in places)
        return CANNOT_SAY, f"{positive} places with a positive value, a fit needs {FEWEST}; exponent {wanted}"
    holds = abs(fitted.exponent - expected.value) <= expected.within
    return (AS_EXPECTED if holds else NOT_AS_EXPECTED), f"exponent {fitted}, {wanted}"


def fit_power_law(pairs: Sequence[tuple[Value, float]]) -> Fit | None:
    """Fit a power law to these points. None with fewer than `FEWEST` places where both values are positive."""
    logs = [(math.log(x), math.log(y)) for x, y in pairs if isinstance(x, (int, float)) and x > 0 and y > 0]
    if len({x for x, _ in logs}) < FEWEST:
        return None
    middle_x, middle_y = (statistics.fmean(column) for column in zip(*logs))
    spread = sum((x - middle_x) ** 2 for x, _ in logs)
    exponent = sum((x - middle_x) * (y - middle_y) for x, y in logs) / spread
    left = sum((y - middle_y - exponent * (x - middle_x)) ** 2 for x, y in logs)
    return Fit(exponent, math.sqrt(left / (len(logs) - 2) / spread), math.exp(middle_y - exponent * middle_x))


def _sort_key(item: tuple[Value, Any]) -> tuple[bool, Any]:
    """Return a sort key that puts numbers first, by size, then texts."""
    return isinstance(item[0], str), item[0]


def _place(series: Series, replay: Replay) -> Value | None:
    question = replay.spec.question
    own = {"dtype": question.dtype, "threads": question.threads, **question.parameters}
    place = own.get(series.parameter)
    return place if isinstance(place, str) or _finite_number(place) is not None else None


def _finite_number(value: Any) -> float | None:
    """Return a finite number, None for anything else: an untrusted record may contain any value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        made = float(value)
    except OverflowError:
        return None
    return made if math.isfinite(made) else None


def _read_measure(measure: str, replay: Replay) -> float | None:
    """Return a phase's memory or time, or a number that the case observed. None if there is no such number."""
    seen = replay.plain.observation if replay.plain else None
    if seen is None or replay.plain is None or replay.plain.outcome.kind != "finished":
        return None
    named = MEASURES.fullmatch(measure)
    if named is None:
        value = next((one.value for one in seen.observed if one.name == measure), None)
        return _finite_number(value)
    phase, what = named.groups()
    if what == "seconds":
        return _finite_number(seen.durations.get(phase))
    rows = [row for row in seen.memory if row.phase == phase]
    grown = rows[0].growth(peak=what == "peak") if rows else None
    return _finite_number(grown)

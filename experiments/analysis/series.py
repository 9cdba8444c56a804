"""Series: one scenario over one of its parameters, as measured points, fitted curves, and what they should show.

A series is written in ``conf/series/``, travels in the mark of each case that is a point of it, and is computed
from records like a verdict is. A curve is one case on one device. At each of its places it has the median of the
repeats there, with their range; where both axes are positive numbers a power law is fitted to every run by least
squares on the logarithms.

Only the standard library is imported here, and nothing newer than Python 3.9.
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
from ..core.quantities import with_error
from ..core.replay import Replay
from ..core.spec import Question, case_label
from ..core.verdict import AS_EXPECTED, CANNOT_SAY, NOT_AS_EXPECTED

Value = Union[float, str]

MEASURES = re.compile(r"(inputs|forward|backward) (peak|held|seconds)")
"""What a process measures by itself; any other measure is the name of an observed number."""
FEWEST = 3
"""Points at different places that a fit needs."""


@dataclass(frozen=True)
class Expected:
    """The exponent that a curve should have."""

    value: float
    within: float
    """Largest distance from it that is still as expected."""


@dataclass(frozen=True)
class Series:
    """What is measured over what."""

    name: str
    title: str
    scenario: str
    parameter: str
    """The case's parameter on the horizontal axis, or ``dtype`` or ``threads``."""
    cases: tuple[str, ...]
    measure: str
    """As `MEASURES`, above what there was when the phase began, or the name of an observed number."""
    unit: str
    """``bytes``, ``seconds``, or what is counted. Empty for none."""
    line: str
    """Name of an observed number that is drawn in as a line. Empty for none."""
    exponents: Mapping[str, Expected]
    """By case. A case without one is drawn and fitted, not judged."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "cases": list(self.cases)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Series:
        """Raises ScenarioError if it is none: a mark may come from anywhere."""
        try:
            exponents = {
                case: Expected(number(one["value"]), number(one["within"])) for case, one in data["exponents"].items()
            }
            made = cls(**{**data, "cases": tuple(data["cases"]), "exponents": exponents})
        except (TypeError, KeyError, AttributeError, RecordError) as error:
            raise ScenarioError(f"a mark holds a series that cannot be read: {error}") from None
        words = [getattr(made, one.name) for one in fields(made) if one.name not in ("cases", "exponents")]
        if not all(isinstance(word, str) for word in (*words, *made.cases, *exponents)):
            raise ScenarioError("a mark holds a series that cannot be read: its words are no text")
        return made


@dataclass(frozen=True)
class Point:
    """What one replay measured."""

    series: Series
    case: str
    label: str
    """The case with what tells its variant from another at the same place."""
    device: str
    place: Value
    """On the horizontal axis."""
    value: float
    line: float | None
    """None if the series has no line, or the replay did not observe it."""


@dataclass(frozen=True)
class Place:
    """What the repeats at one place of a curve measured."""

    at: Value
    values: tuple[float, ...]
    """Of each run, the smallest first; at least one."""
    line: float | None
    """None if the series has no line, or no run observed it."""

    @property
    def value(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def runs(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Fit:
    """``value = factor * place ** exponent``."""

    exponent: float
    error: float
    """Standard error of the exponent, from how far the runs lie off the line."""
    factor: float

    def __str__(self) -> str:
        """The exponent with its error, to the digits that the error leaves."""
        return with_error(self.exponent, self.error)


@dataclass(frozen=True)
class Curve:
    """One case on one device, in one variant but for the parameter that the series is over."""

    label: str
    """The case; with its variant, where more than that parameter varies."""
    device: str
    places: tuple[Place, ...]
    """In order."""
    fit: Fit | None
    word: str
    """The word of a verdict. Empty if nothing is expected of it."""
    reason: str

    @property
    def runs(self) -> str:
        """How many there are at each place, in words."""
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
        listed = [[c.label, c.device, p.at, list(p.values), p.line] for c in self.curves for p in c.places]
        return {"series": self.series.to_json(), "places": listed}

    @property
    def line(self) -> list[tuple[Value, float]]:
        """The line that is drawn in, by place."""
        found = {place.at: place.line for curve in self.curves for place in curve.places if place.line is not None}
        return sorted(found.items(), key=_order)


def points(replay: Replay) -> list[Point]:
    """What the replay measured, for each series that it is a point of; nothing for what it did not, nor for a series
    that cannot be read or does not name its case.
    """
    made = []
    for series in _readable(replay):
        place, value = _place(series, replay), _measured(series.measure, replay)
        if place is not None and value is not None:
            question = replay.spec.question
            line = _measured(series.line, replay) if series.line else None
            label = _label(question, series.parameter)
            made.append(Point(series, question.case, label, question.device, place, value, line))
    return made


def _label(question: Question, parameter: str) -> str:
    rest = {name: value for name, value in question.parameters.items() if name != parameter}
    if parameter == "dtype":
        return case_label(question.case, rest, "float32", "float32")
    return case_label(question.case, rest, question.dtype, question.input_dtype)


def _readable(replay: Replay) -> Iterator[Series]:
    for data in replay.spec.mark.series:
        with contextlib.suppress(ScenarioError):
            series = Series.from_json(data)
            if replay.spec.question.case in series.cases:
                yield series


def measured(found: Iterable[Point]) -> list[Measured]:
    """Every series of these points, by name, with its curves in the order in which it names its cases. Two that
    share a name and are not the same stay apart.
    """
    grouped: dict[str, list[Point]] = {}
    for point in found:
        grouped.setdefault(canonical([point.series.name, point.series.to_json()]), []).append(point)
    return [_one(listed) for _, listed in sorted(grouped.items())]


def unmeasured(replays: Sequence[Replay]) -> list[Series]:
    """Series that replays are to be points of, and of which no replay is: what they measure was not there."""
    named = {series.name: series for replay in replays for series in _readable(replay)}
    seen = {point.series.name for replay in replays for point in points(replay)}
    return [series for name, series in sorted(named.items()) if name not in seen]


def _one(listed: Sequence[Point]) -> Measured:
    series = listed[0].series
    grouped: dict[tuple[str, int, str], list[Point]] = {}
    for point in listed:
        grouped.setdefault((point.device, series.cases.index(point.case), point.label), []).append(point)
    return Measured(series, tuple(_curve(series, own) for _, own in sorted(grouped.items(), key=lambda item: item[0])))


def _curve(series: Series, listed: Sequence[Point]) -> Curve:
    places = tuple(_places(listed))
    fitted = fit([(place.at, value) for place in places for value in place.values])
    word, reason = _judged(series.exponents.get(listed[0].case), fitted, places)
    return Curve(listed[0].label, listed[0].device, places, fitted, word, reason)


def _places(listed: Sequence[Point]) -> Iterator[Place]:
    grouped: dict[Value, list[Point]] = {}
    for point in listed:
        grouped.setdefault(point.place, []).append(point)
    for at, many in sorted(grouped.items(), key=_order):
        lines = sorted(point.line for point in many if point.line is not None)
        yield Place(at, tuple(sorted(point.value for point in many)), statistics.median(lines) if lines else None)


def _judged(expected: Expected | None, fitted: Fit | None, places: Sequence[Place]) -> tuple[str, str]:
    if expected is None:
        return "", ""
    wanted = f"expected {expected.value:g} within {expected.within:g}"
    if fitted is None:
        positive = sum(place.value > 0 for place in places)
        return CANNOT_SAY, f"{positive} places with a positive value, a fit needs {FEWEST}; exponent {wanted}"
    holds = abs(fitted.exponent - expected.value) <= expected.within
    return (AS_EXPECTED if holds else NOT_AS_EXPECTED), f"exponent {fitted}, {wanted}"


def fit(pairs: Sequence[tuple[Value, float]]) -> Fit | None:
    """The power law through these points. None with fewer than `FEWEST` places where both are positive."""
    logs = [(math.log(x), math.log(y)) for x, y in pairs if isinstance(x, (int, float)) and x > 0 and y > 0]
    if len({x for x, _ in logs}) < FEWEST:
        return None
    middle_x, middle_y = (statistics.fmean(column) for column in zip(*logs))
    spread = sum((x - middle_x) ** 2 for x, _ in logs)
    exponent = sum((x - middle_x) * (y - middle_y) for x, y in logs) / spread
    left = sum((y - middle_y - exponent * (x - middle_x)) ** 2 for x, y in logs)
    return Fit(exponent, math.sqrt(left / (len(logs) - 2) / spread), math.exp(middle_y - exponent * middle_x))


def _order(item: tuple[Value, Any]) -> tuple[bool, Any]:
    """Numbers by size, then words."""
    return isinstance(item[0], str), item[0]


def _place(series: Series, replay: Replay) -> Value | None:
    question = replay.spec.question
    own = {"dtype": question.dtype, "threads": question.threads, **question.parameters}
    place = own.get(series.parameter)
    return place if isinstance(place, str) or _finite(place) is not None else None


def _finite(value: Any) -> float | None:
    """A number that can be drawn. None for anything else: a record may hold what no case would measure."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        made = float(value)
    except OverflowError:
        return None
    return made if math.isfinite(made) else None


def _measured(measure: str, replay: Replay) -> float | None:
    """A phase's memory or time, or a number that the case observed. None if there is no such number."""
    seen = replay.plain.observation if replay.plain else None
    if seen is None or replay.plain is None or replay.plain.outcome.kind != "finished":
        return None
    named = MEASURES.fullmatch(measure)
    if named is None:
        value = next((one.value for one in seen.observed if one.name == measure), None)
        return _finite(value)
    phase, what = named.groups()
    if what == "seconds":
        return _finite(seen.durations.get(phase))
    rows = [row for row in seen.memory if row.phase == phase]
    grown = rows[0].grown(peak=what == "peak") if rows else None
    return _finite(grown)

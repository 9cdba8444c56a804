"""Series: points out of records, the fitted power law, what is expected of it, and where it is shown."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import samples
from matplotlib.figure import Figure

from experiments.analysis.series import Expected, Series, fit_power_law, measured_series, points, unmeasured_series
from experiments.core.canonical_json import canonical, parse
from experiments.core.observation import Memory, Observed
from experiments.core.record import Record
from experiments.core.replay import Replay
from experiments.core.verdict import AS_EXPECTED, CANNOT_SAY, NOT_AS_EXPECTED, Verdict
from reports.comparison import compare
from reports.figures import curve_name, draw_series, draw_shares, scale
from reports.markdown.sweep import render_report
from reports.mlflow import run_content
from reports.mlflow.tracking import Tracking

SERIES = Series(
    name="memory",
    title="Memory over keys",
    scenario="checkpoint/policy",
    parameter="keys",
    cases=("dense", "sparse"),
    measure="forward peak",
    unit="bytes",
    line="scores, bytes",
    exponents={"dense": Expected(2.0, 0.1)},
)
KEYS = (1024, 2048, 4096, 8192)


def record(case: str, keys, grown: int | None, series: Series = SERIES, **changes) -> Record:
    """A finished process whose forward phase grew by so many bytes."""
    asked = samples.spec(case, parameters={"keys": keys}, series=(series.to_json(),), **changes)
    made = samples.record(case, asked=asked)
    peak = None if grown is None else 1000 + grown
    seen = replace(
        made.observation,
        memory=(Memory("forward", 1000, peak, 1500, None, None, None, None),),
        observed=(Observed("scores, bytes", 4 * int(keys) ** 2 if not isinstance(keys, str) else 1, "evidence", None),),
    )
    return replace(made, observation=seen)


def replay(case: str, keys, grown: int | None, series: Series = SERIES, **changes) -> Replay:
    return Replay({"plain": record(case, keys, grown, series, **changes)})


def found(*replays: Replay):
    return measured_series(point for one in replays for point in points(one))


def squares(exponent: float = 2.0, case: str = "dense"):
    return [replay(case, keys, round(13 * keys**exponent)) for keys in KEYS]


@pytest.mark.parametrize(("exponent", "factor"), [(2.0, 3.25), (1.0, 1e-6), (0.0, 7.0), (-1.5, 1e12), (3.0, 1.0)])
def test_a_power_law_is_found_exactly(exponent, factor):
    made = fit_power_law([(x, factor * x**exponent) for x in KEYS])
    assert made.exponent == pytest.approx(exponent, abs=1e-9)
    assert made.factor == pytest.approx(factor, rel=1e-9)
    assert made.error == pytest.approx(0, abs=1e-9)


def test_the_error_of_an_exponent_is_about_how_far_it_is_off():
    """Over many noisy draws the true exponent lies within two standard errors in about nineteen of twenty."""
    generator = random.Random(1729)
    inside = 0
    for _ in range(400):
        made = fit_power_law([(x, x**2 * 2 ** generator.gauss(0, 0.1)) for x in range(10, 40)])
        inside += abs(made.exponent - 2) <= 2 * made.error
    assert 360 <= inside <= 396


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(1, 1.0), (2, 4.0)],
        [(1, 1.0), (1, 1.1), (2, 4.0), (2, 4.1)],
        [(1, 1.0), (2, 0.0), (4, 16.0)],
        [(1, 1.0), (2, -4.0), (4, 16.0)],
        [(0, 1.0), (2, 4.0), (4, 16.0)],
        [("float32", 1.0), ("float64", 2.0), ("float16", 0.5)],
    ],
)
def test_too_few_places_give_no_fit(pairs):
    assert fit_power_law(pairs) is None


@pytest.mark.parametrize(
    ("exponent", "word"), [(2.0, AS_EXPECTED), (2.09, AS_EXPECTED), (2.11, NOT_AS_EXPECTED), (1.0, NOT_AS_EXPECTED)]
)
def test_an_expected_exponent_is_judged(exponent, word):
    (one,) = found(*squares(exponent))
    assert one.curves[0].word == word
    assert f"exponent {exponent:g}" in one.curves[0].reason
    assert "expected 2 within 0.1" in one.curves[0].reason


def test_an_exponent_without_a_fit_is_said_to_be_open():
    (one,) = found(*squares()[:2])
    assert one.curves[0].word == CANNOT_SAY
    assert "2 places with a positive value, a fit needs 3" in one.curves[0].reason


def test_a_curve_of_which_nothing_is_expected_has_no_word():
    (one,) = found(*squares(1.0, "sparse"))
    assert (one.curves[0].word, one.curves[0].reason) == ("", "")
    assert one.curves[0].fit.exponent == pytest.approx(1.0, abs=0.01)


def test_curves_and_points_stand_in_order_however_the_records_come():
    made = [*squares(), *squares(1.0, "sparse")]
    random.Random(3).shuffle(made)
    (one,) = found(*made)
    assert [curve.label for curve in one.curves] == ["dense", "sparse"]
    assert all([place.at for place in curve.places] == list(KEYS) for curve in one.curves)
    assert one.line == [(keys, 4.0 * keys**2) for keys in KEYS]
    assert one == found(*sorted(made, key=lambda replay: replay.digest()))[0]


# Repeats.


def repeated(*grown: int, keys: int = 1024, case: str = "dense"):
    return [replay(case, keys, one, repeat=number) for number, one in enumerate(grown)]


def test_repeats_at_one_place_are_their_median_with_its_range():
    (one,) = found(*repeated(30, 10, 20), *repeated(7, keys=2048))
    assert [(place.at, place.value, place.values, place.runs) for place in one.curves[0].places] == [
        (1024, 20, (10, 20, 30), 3),
        (2048, 7, (7,), 1),
    ]
    assert one.curves[0].runs == "medians of 1 to 3 runs at each place"
    assert found(*repeated(30, 10, 20))[0].curves[0].runs == "medians of 3 runs at each place"
    assert found(*squares())[0].curves[0].runs == "one run at each place"


def test_a_power_law_is_fitted_to_medians():
    """One run that is far off moves no exponent."""
    runs = [one for keys in KEYS for one in repeated(*(round(13 * keys**2 * by) for by in (1, 1, 40)), keys=keys)]
    (one,) = found(*runs)
    assert one.curves[0].fit.exponent == pytest.approx(2.0, abs=1e-6)
    assert one.curves[0].word == AS_EXPECTED


def test_another_variant_at_the_same_place_is_another_curve_and_no_repeat():
    series = replace(SERIES, line="")

    def variant(keys, width):
        one = record("dense", keys, keys * width, series)
        question = replace(one.spec.question, parameters={"keys": keys, "width": width})
        return Replay({"plain": replace(one, spec=replace(one.spec, question=question))})

    (one,) = found(*(variant(keys, width) for keys in KEYS for width in (1, 8)))
    assert [(curve.label, curve.runs) for curve in one.curves] == [
        ("dense[width=1]", "one run at each place"),
        ("dense[width=8]", "one run at each place"),
    ]


@pytest.mark.parametrize("exponent", [2.0, 1.9996, 2.04])
def test_no_error_is_printed_as_zero(exponent):
    """ "2.00 ± 0.00" is no error; the digits are those that the error leaves."""
    (one,) = found(
        *(replay("dense", keys, round(13 * keys**exponent * (1 + i % 2 * 1e-4))) for i, keys in enumerate(KEYS))
    )
    shown = str(one.curves[0].fit)
    value, _, error = shown.partition(" ± ")
    assert float(error) > 0
    assert len(value.partition(".")[2]) == len(error.partition(".")[2])
    assert shown in one.curves[0].reason
    assert shown in render_report("s", squares(), replace(compare(squares(), {}.get, {}, {}), series=(one,)), [])


def test_the_report_shows_medians_their_range_and_how_many_runs_there_were():
    runs = [
        one for keys in KEYS for one in repeated(*(13 * keys**2 + more for more in (0, 2**20, 5 * 2**20)), keys=keys)
    ]
    text = render_report("s", runs, compare(runs, {}.get, {}, {}), [])
    assert "| 1024 | 14.0 (3 runs, 13.0 to 18.0) | 4 | 3.5 (3 runs, 3.2 to 4.5) |" in text
    assert "- `dense`, medians of 3 runs at each place: exponent 1.9" in text
    fewer = render_report("s", runs[1:], compare(runs[1:], {}.get, {}, {}), [])
    assert "| 1024 | 16.0 (2 runs, 14.0 to 18.0) |" in fewer
    assert "medians of 2 to 3 runs" in fewer


def test_an_image_shows_the_range_of_several_runs():
    one, several = found(*repeated(20)), found(*repeated(10, 20, 30))
    wider = found(*repeated(5, 20, 30))
    assert len({draw_series(made[0]) for made in (one, several, wider)}) == 3
    assert all(draw_series(made[0]) == draw_series(made[0]) for made in (one, several))


@pytest.mark.parametrize(
    ("places", "grown"),
    [
        (KEYS, (13, 169, 2197)),
        ((0, 1000001, 1000002), (10, 10, 11)),
        ((1e-6, 1e-3, 1.0), (2**30, 2**31, 2**43)),
        (("float32", "float16"), (0, 5)),
        (KEYS, (2, 2, 2)),
    ],
)
def test_ticks_are_plain_numbers(monkeypatch, places, grown):
    """A logarithmic axis writes $\\mathdefault{10^{0}}$ where nobody tells it not to."""
    figures = []
    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), savefig(self, *a, **k))[1])
    draw_series(found(*(replay("dense", at, size, replace(SERIES, line="")) for at, size in zip(places, grown)))[0])
    draw_shares("t", [("a", (1, 2)), ("b", (0, 0))], ("same", "more"), "elements")
    assert len(figures) == 2
    words = ["", "a", "b", *(at for at in places if isinstance(at, str))]
    for axes in (axes for figure in figures for axes in figure.axes):
        labels = [label.get_text() for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels(which="both")]
        numbers = [float(text.replace("\u2212", "-")) for text in labels if text not in words]
        assert all(math.isfinite(number) for number in numbers)
        assert len(numbers) >= 2
        assert axes.xaxis.get_offset_text().get_text() == axes.yaxis.get_offset_text().get_text() == ""


def test_devices_are_curves_of_their_own():
    (one,) = found(*squares(), *(replay("dense", keys, keys, device="cuda") for keys in KEYS))
    assert [(curve.device, round(curve.fit.exponent, 3)) for curve in one.curves] == [("cpu", 2.0), ("cuda", 1.0)]
    assert curve_name(one.curves[1], one.curves) == "dense (cuda)"
    assert curve_name(one.curves[0], one.curves[:1]) == "dense"


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("forward peak", 500.0),
        ("forward held", 500.0),
        ("forward seconds", 0.25),
        ("scores, bytes", 4 * 64.0**2),
        ("backward peak", None),
        ("backward seconds", None),
        ("nothing of the kind", None),
    ],
)
def test_a_measure_is_a_phase_or_an_observed_number(measure, expected):
    series = replace(SERIES, measure=measure)
    made = points(replay("dense", 64, 500, series))
    assert [point.value for point in made] == ([] if expected is None else [expected])


def test_what_did_not_finish_or_was_not_told_is_no_point():
    asked = samples.spec("dense", parameters={"keys": 64}, series=(SERIES.to_json(),))
    assert points(Replay({"plain": samples.record(asked=asked, kind="raised", message="no")})) == []
    assert points(Replay({"plain": samples.record(asked=asked, observed=False)})) == []
    assert points(replay("dense", 64, None)) == []
    assert points(replay("dense", True, 5)) == []
    assert points(Replay({"profiled": record("dense", 64, 5)})) == []


def test_dtype_and_words_are_places_too():
    series = replace(SERIES, parameter="dtype", line="")
    (one,) = found(*(replay("sparse", 64, 5, series, dtype=dtype) for dtype in ("float32", "float16")))
    assert [place.at for place in one.curves[0].places] == ["float16", "float32"]
    assert one.curves[0].fit is None
    assert one.line == []


def test_a_series_survives_its_record():
    text = record("dense", 64, 5).text()
    again = Series.from_json(Record.from_text(text).spec.mark.series[0])
    assert again == SERIES
    assert Series.from_json(parse(canonical(again.to_json()))) == SERIES


# Shown.


def test_an_image_has_the_same_bytes_for_the_same_points_and_others_for_others():
    (one,), (other,) = found(*squares()), found(*squares(1.9))
    assert draw_series(one) == draw_series(one)
    assert draw_series(one) != draw_series(other)
    assert draw_series(one).startswith(b"\x89PNG")


@pytest.mark.parametrize("place", ["float32", 0, -1, 1e-9, 2**60])
def test_every_place_can_be_drawn(place):
    (one,) = found(replay("sparse", place, 5, replace(SERIES, line="")))
    assert draw_series(one).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [
        ("bytes", 5, (1, "bytes")),
        ("bytes", 2**20, (2**20, "MiB")),
        ("bytes", 0, (1, "bytes")),
        ("seconds", 0.25, (1e-3, "ms")),
        ("graphs", 8, (1, "graphs")),
        ("", 8, (1, "")),
    ],
)
def test_a_unit_is_one_that_people_read(unit, value, expected):
    series = replace(SERIES, unit=unit, line="", measure="forward seconds" if unit == "seconds" else "forward peak")
    assert scale(found(replay("sparse", 64, value, series))[0]) == expected


def test_the_report_has_the_figure_its_points_and_its_verdict():
    made = [*squares(), *squares(1.0, "sparse")]
    comparison = compare(made, {}.get, {}, {})
    text = render_report("s", made, comparison, [], images={"memory": "s-memory.png"})
    assert "![Memory over keys](s-memory.png)" in text
    assert "expected 2 within 0.1: **as expected**" in text
    assert "| 8192 | 830 (one run) |" in text
    assert "| 256 | 3.2 (one run) |" in text
    assert "![" not in render_report("s", made, comparison, [])


def test_hostile_names_change_no_structure():
    series = replace(SERIES, title="a](http://x) <b> | `c`\n# d", cases=("`|\n# x", "sparse"))
    made = [replay("`|\n# x", keys, keys, series) for keys in KEYS]
    text = render_report("s", made, compare(made, {}.get, {}, {}), [], images={"memory": "s.png"})
    assert "\n# d" not in text
    assert "\n# x" not in text
    assert "<b>" not in text


class Source:
    """An archive of these records in one sweep."""

    def __init__(self, records):
        self._records = records

    def records(self, *, sweep=None, digests=None):  # noqa: ARG002 - as an archive has it
        return self._records

    def document(self, name):  # noqa: ARG002 - likewise
        return None

    def fetch(self, name):  # noqa: ARG002 - likewise
        return None


class Sweep:
    id, plan, machine, number, started_at = "s-1", "p", "m", 1, "2026-01-02T03:04:05.000000Z"

    def __init__(self, count):
        self.planned = self.done = count


def test_mlflow_has_metrics_over_steps_an_exponent_and_an_image(tmp_path: Path):
    records = [one.records["plain"] for one in (*squares(), *squares(1.0, "sparse"))]
    source, sweep = Source(records), Sweep(len(records))
    with Tracking(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "artifacts") as tracking:
        tracking.prepare()
        for _ in range(2):
            tracking.publish(source, sweep, records)
            tracking.finish(sweep)
        client = tracking._client
        (run,) = client.search_runs(
            [e.experiment_id for e in client.search_experiments()], "tags.`twofold.kind` = 'sweep'"
        )
        history = client.get_metric_history(run.info.run_id, "series/memory/dense/cpu")
        assert [(one.step, one.value) for one in history] == [(keys, 13.0 * keys**2) for keys in KEYS]
        assert run.data.metrics["series/memory/dense/cpu/exponent"] == pytest.approx(2.0, abs=1e-6)
        assert "memory.png" in [one.path for one in client.list_artifacts(run.info.run_id)]
    (image,) = (tmp_path / "artifacts").rglob("memory.png")
    assert image.read_bytes() == draw_series(found(*squares(), *squares(1.0, "sparse"))[0])


def test_mlflow_has_the_medians_of_repeats():
    rows = [_row(one) for one in (*repeated(30, 10, 20), *repeated(7, keys=2048))]
    steps = run_content.summary(Sweep(4), "checkpoint", rows).steps["series/memory/dense/cpu"]
    assert steps == [(1024, 20.0), (2048, 7.0)]


def test_places_that_are_no_whole_numbers_are_numbered():
    series = replace(SERIES, parameter="density", line="")
    made = []
    for place in (0.5, 0.25, 1.0):
        asked = samples.spec("sparse", parameters={"density": place}, series=(series.to_json(),))
        one = samples.record(asked=asked)
        memory = (Memory("forward", 0, round(place * 100), 0, None, None, None, None),)
        made.append(Replay({"plain": replace(one, observation=replace(one.observation, memory=memory))}))
    (steps,) = run_content.summary(Sweep(3), "checkpoint", [_row(one) for one in made]).steps.values()
    assert steps == [(0, 25.0), (1, 50.0), (2, 100.0)]


def _row(one: Replay):
    return run_content.row(one, Verdict(AS_EXPECTED, ()), run_content.record_texts(one))


def test_points_are_part_of_a_pages_digest():
    rows = [_row(one) for one in squares()]
    first, second = (run_content.summary(Sweep(4), "checkpoint", some).digest() for some in (rows, rows[:3]))
    assert first != second


@pytest.mark.parametrize(
    "change",
    [
        {"cases": 5},
        {"cases": ["other"]},
        {"cases": [["dense"]]},
        {"name": {}},
        {"unit": []},
        {"exponents": []},
        {"exponents": {"dense": {"value": "two", "within": 0}}},
        {"exponents": {"dense": {}}},
        {"more": 1},
    ],
)
def test_a_series_that_cannot_be_read_is_drawn_by_nobody_and_stops_nothing(change):
    """A record may come out of a bundle that anybody made."""
    asked = samples.spec("dense", parameters={"keys": 64}, series=({**SERIES.to_json(), **change}, {}))
    one = Replay({"plain": samples.record(asked=asked)})
    assert points(one) == []
    assert "Measured over" not in render_report("s", [one], compare([one], {}.get, {}, {}), [])


def test_two_series_of_one_name_stay_apart():
    other = replace(SERIES, cases=("sparse",), title="another")
    made = found(*squares(), *(replay("sparse", keys, keys, other) for keys in KEYS))
    assert sorted(one.series.title for one in made) == ["Memory over keys", "another"]


@pytest.mark.parametrize("place", [float("nan"), float("inf"), -float("inf"), 10**400, None, [1], {}])
def test_a_place_that_cannot_be_drawn_is_no_point(place):
    asked = samples.spec("dense", parameters={"keys": place}, series=(SERIES.to_json(),))
    assert points(Replay({"plain": samples.record(asked=asked)})) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, True, "5", None])
def test_a_value_that_cannot_be_drawn_is_no_point(value):
    made = record("dense", 64, 5, replace(SERIES, measure="scores, bytes"))
    seen = replace(made.observation, observed=(Observed("scores, bytes", value, "evidence", None),))
    assert points(Replay({"plain": replace(made, observation=seen)})) == []


@pytest.mark.parametrize("text", ["$x_$ {", "\\frac{", "\u4e2d\u6587", "a\nb", "_hidden", ""])
def test_any_text_can_be_drawn(text):
    series = replace(SERIES, title=text, unit=text, line="scores, bytes", cases=(text, "sparse"), parameter="keys")
    made = [replay(text, keys, 13 * keys, series) for keys in KEYS]
    assert draw_series(found(*made)[0]).startswith(b"\x89PNG")


def test_a_series_that_nothing_has_measured_is_said():
    """A misspelt measure is taken for the name of an observed number, which nobody observed."""
    misspelt = replace(SERIES, measure="forward peek")
    made = [replay("dense", keys, keys, misspelt) for keys in KEYS]
    assert unmeasured_series(made) == [misspelt]
    assert unmeasured_series(squares()) == []
    text = render_report("s", made, compare(made, {}.get, {}, {}), [])
    assert "no case of it has measured 'forward peek'" in text
    assert "forward peek" not in render_report("s", squares(), compare(squares(), {}.get, {}, {}), [])

"""Series as images.

Besides `reports.pictures` this is the only module that imports matplotlib, and only when something is drawn, as the
import takes 0.4 s. The same points give the same bytes under the same matplotlib: neither the time nor the machine
goes into the file.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.series import Curve, Measured, Value

SCALES = {
    "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes")),
    "seconds": ((1, "s"), (1e-3, "ms"), (1e-6, "µs")),
}
"""Display units of each measured unit, with their size in it, the largest first."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Distinguishable with colour blindness (Okabe and Ito)."""
MARKERS = ("o", "s", "^", "D", "v", "P")


def draw_series(found: Measured, about: Mapping[str, str] | None = None) -> bytes:
    """Draw a series as a PNG image: medians with ranges, fitted curves as dashed lines, and the series' own line.

    `about` goes into the file as text chunks, by keyword.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - see the module's docstring

    figure = Figure(figsize=(7.0, 4.8), dpi=144, layout="constrained")
    axes = figure.add_subplot()
    per, unit = scale(found)
    for curve, colour, marker in zip(found.curves, COLOURS * len(found.curves), MARKERS * len(found.curves)):
        _plot_curve(axes, curve, per, {"color": colour, "marker": marker})
    line = found.line
    if line:
        values = [value / per for _, value in line]
        axes.plot([place for place, _ in line], values, color="0.45", linewidth=1, label=found.series.line)
    _set_axes(axes, found, unit)
    figure.legend(fontsize=8, loc="outside lower center")
    return render_png(figure, about)


def render_png(figure: Any, about: Mapping[str, str] | None = None) -> bytes:
    """Render a figure as a PNG image with `about` as its text chunks. No text in it is parsed as math."""
    from matplotlib import rc_context  # noqa: PLC0415 - see the module's docstring
    from matplotlib.text import Text  # noqa: PLC0415 - likewise

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a dollar sign in a name is a dollar sign
    buffer = io.BytesIO()
    # Ticks are made while the figure is drawn.
    with rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters that the font lacks
        figure.savefig(buffer, format="png", metadata={"Software": None, **(about or {})})
    return buffer.getvalue()


def scale(found: Measured) -> tuple[float, str]:
    """Return the size of the display unit in measured units, and its name.

    It is the largest unit that does not exceed the highest point.
    """
    highest = max((place.value for curve in found.curves for place in curve.places), default=0.0)
    for per, unit in SCALES.get(found.series.unit, ()):
        if highest >= per:
            return per, unit
    return 1, found.series.unit


def curve_name(curve: Curve, among: Sequence[Curve]) -> str:
    """Return the label of a curve, with its device if the curves have more than one."""
    return f"{curve.label} ({curve.device})" if len({one.device for one in among}) > 1 else curve.label


def _plot_curve(axes: Any, curve: Curve, per: float, look: dict[str, Any]) -> None:
    label = f"{curve.label} on {curve.device}" + (f", exponent {curve.fit}" if curve.fit else "") + f"; {curve.runs}"
    places: list[Value] = [place.at for place in curve.places]
    middle = [place.value / per for place in curve.places]
    axes.plot(places, middle, linestyle="none", label=label, **look)
    if any(place.runs > 1 for place in curve.places):
        below = [(place.value - place.values[0]) / per for place in curve.places]
        above = [(place.values[-1] - place.value) / per for place in curve.places]
        axes.errorbar(places, middle, yerr=[below, above], linestyle="none", capsize=4, color=look["color"])
    if curve.fit is not None:
        numbers = sorted({place for place in places if not isinstance(place, str)})
        values = [curve.fit.factor * place**curve.fit.exponent / per for place in numbers]
        axes.plot(numbers, values, linestyle="--", linewidth=1, color=look["color"])


def _set_axes(axes: Any, found: Measured, unit: str) -> None:
    every = [place for curve in found.curves for place in curve.places]
    places = sorted({place.at for place in every}, key=lambda at: (str(type(at)), at))
    if all(not isinstance(at, str) and at > 0 for at in places):
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [plain_number(at) for at in places if not isinstance(at, str)])
        axes.minorticks_off()
    elif not any(isinstance(at, str) for at in places):
        _set_plain_ticks(axes.xaxis)
    if all(place.values[0] > 0 for place in every):
        axes.set_yscale("log")
        _set_decade_ticks(axes.yaxis)
    else:
        _set_plain_ticks(axes.yaxis)
    axes.set_title(found.series.title, fontsize=11)
    axes.set_xlabel(found.series.parameter)
    axes.set_ylabel(f"{found.series.measure}{f' ({unit})' if unit else ''}")
    axes.grid(visible=True, alpha=0.25)


def plain_number(value: float) -> str:
    """Format a number of an axis without an exponent or trailing zeros."""
    return f"{value:.12g}"


def _set_plain_ticks(axis: Any) -> None:
    """Show plain numbers at the ticks, without an offset next to the axis."""
    from matplotlib.ticker import ScalarFormatter  # noqa: PLC0415 - see the module's docstring

    formatter = ScalarFormatter(useOffset=False, useMathText=False)
    formatter.set_scientific(False)
    axis.set_major_formatter(formatter)


def _set_decade_ticks(axis: Any) -> None:
    """Show plain numbers at 1, 2 and 5 of each decade.

    By default a logarithmic axis writes powers in mathematical markup, and may have no tick at all within a decade.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415 - likewise

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
    axis.set_minor_formatter(NullFormatter())


def draw_shares(
    title: str,
    rows: Sequence[tuple[str, Sequence[int]]],
    names: Sequence[str],
    unit: str,
    note: str = "",
    about: Mapping[str, str] | None = None,
) -> bytes:
    """Draw a PNG image with a bar for each row, split into the shares of the named parts.

    `unit` names what is counted. A row that counts nothing has no bar. `note` is shown small below the title; `about`
    goes into the file as text chunks.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - see the module's docstring

    lines = sum(1 + name.count("\n") for name, _ in rows)
    figure = Figure(figsize=(8.0, 1.8 + 0.13 * len(rows) + 0.2 * lines), dpi=144, layout="constrained")
    _plot_shares(figure.add_subplot(), rows, names)
    axes = figure.axes[0]
    axes.set_xlabel(f"share of {unit} (%)")
    axes.set_title(note, fontsize=8, color="0.35", loc="right")
    figure.suptitle(title, fontsize=11)
    figure.legend(fontsize=8, ncols=len(names), loc="outside lower center")
    return render_png(figure, about)


def _plot_shares(axes: Any, rows: Sequence[tuple[str, Sequence[int]]], names: Sequence[str]) -> None:
    from matplotlib import colormaps  # noqa: PLC0415 - see the module's docstring

    starts = [0.0] * len(rows)
    for part, name in enumerate(names):
        widths = [100 * counts[part] / (sum(counts) or 1) for _, counts in rows]
        shade = colormaps["viridis_r"](part / max(1, len(names) - 1))
        axes.barh(range(len(rows)), widths, left=starts, color=shade, label=name, height=0.55)
        starts = [start + width for start, width in zip(starts, widths)]
    axes.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    _set_plain_ticks(axes.xaxis)

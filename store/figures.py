"""Series as images. The only file that imports matplotlib, and only when something is drawn: that costs 0.4 s.

Same points, same bytes under the same matplotlib: nothing of the time or the machine goes into the file.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

from experiments.series import Curve, Measured, Value

SCALES = {
    "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes")),
    "seconds": ((1, "s"), (1e-3, "ms"), (1e-6, "µs")),
}
"""How much a unit that people read is of the one that is measured, the largest first."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by people who do not see all colours (Okabe and Ito)."""
MARKERS = ("o", "s", "^", "D", "v", "P")


def draw(found: Measured) -> bytes:
    """A PNG image: points, fitted curves as dashed lines, and the series' own line."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - see the module's docstring
    from matplotlib.text import Text  # noqa: PLC0415 - likewise

    figure = Figure(figsize=(7.0, 4.4), dpi=144, layout="constrained")
    axes = figure.add_subplot()
    per, unit = scale(found)
    for curve, colour, marker in zip(found.curves, COLOURS * len(found.curves), MARKERS * len(found.curves)):
        _curve(axes, curve, per, {"color": colour, "marker": marker})
    line = found.line
    if line:
        values = [value / per for _, value in line]
        axes.plot([place for place, _ in line], values, color="0.45", linewidth=1, label=found.series.line)
    _axes(axes, found, unit)
    return _png(figure, Text)


def _png(figure: Any, texts: Any) -> bytes:
    for text in figure.findobj(texts):
        text.set_parse_math(False)  # a dollar sign in a name is a dollar sign
    made = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of characters that the font does not have
        figure.savefig(made, format="png", metadata={"Software": None})
    return made.getvalue()


def scale(found: Measured) -> tuple[float, str]:
    """What one of the unit that people read is in the measured one, and its name: the largest unit of which there
    is more than one at the highest point.
    """
    highest = max((point.value for curve in found.curves for point in curve.points), default=0.0)
    for per, unit in SCALES.get(found.series.unit, ()):
        if highest >= per:
            return per, unit
    return 1, found.series.unit


def curve_name(curve: Curve, among: Sequence[Curve]) -> str:
    """The case; with its device where there is more than one."""
    return f"{curve.case} ({curve.device})" if len({one.device for one in among}) > 1 else curve.case


def exponent(curve: Curve) -> str:
    """The fitted exponent with its standard error. Empty if none was fitted."""
    return "" if curve.fit is None else f"{curve.fit.exponent:.2f} ± {curve.fit.error:.2f}"


def _curve(axes: Any, curve: Curve, per: float, look: dict[str, Any]) -> None:
    fitted = exponent(curve)
    label = f"{curve.case} on {curve.device}" + (f", exponent {fitted}" if fitted else "")
    places: list[Value] = [point.place for point in curve.points]
    axes.plot(places, [point.value / per for point in curve.points], linestyle="none", label=label, **look)
    if curve.fit is not None:
        numbers = sorted({place for place in places if not isinstance(place, str)})
        values = [curve.fit.factor * place**curve.fit.exponent / per for place in numbers]
        axes.plot(numbers, values, linestyle="--", linewidth=1, color=look["color"])


def _axes(axes: Any, found: Measured, unit: str) -> None:
    places = sorted(
        {point.place for curve in found.curves for point in curve.points}, key=lambda place: (str(type(place)), place)
    )
    if all(not isinstance(place, str) and place > 0 for place in places):
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
    if all(point.value > 0 for curve in found.curves for point in curve.points):
        axes.set_yscale("log")
    axes.set_title(found.series.title, fontsize=11)
    axes.set_xlabel(found.series.parameter)
    axes.set_ylabel(f"{found.series.measure}{f' ({unit})' if unit else ''}")
    axes.grid(visible=True, alpha=0.25)
    axes.legend(fontsize=9)


def draw_shares(title: str, rows: Sequence[tuple[str, Sequence[int]]], names: Sequence[str], unit: str) -> bytes:
    """A PNG image: a bar for each row, split into the share of each of the named parts, of what `unit` says."""
    from matplotlib import colormaps  # noqa: PLC0415 - see the module's docstring
    from matplotlib.figure import Figure  # noqa: PLC0415 - likewise
    from matplotlib.text import Text  # noqa: PLC0415 - likewise

    figure = Figure(figsize=(8.0, 1.6 + 0.42 * len(rows)), dpi=144, layout="constrained")
    axes = figure.add_subplot()
    shades = [colormaps["viridis_r"](index / max(1, len(names) - 1)) for index in range(len(names))]
    left = [0.0] * len(rows)
    for part, name in enumerate(names):
        widths = [100 * counts[part] / (sum(counts) or 1) for _, counts in rows]
        axes.barh(range(len(rows)), widths, left=left, color=shades[part], label=name, height=0.7)
        left = [start + width for start, width in zip(left, widths)]
    axes.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"share of {unit} (%)")
    axes.set_title(title, fontsize=11)
    figure.legend(fontsize=8, ncols=len(names), loc="outside lower center")
    return _png(figure, Text)

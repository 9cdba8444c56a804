"""The README's pictures, made from a published report.

    python -m reports.pictures REPORT.md

`make publish` does the same. The pictures are written next to the report under fixed names: ``report.png`` shows the
head of its page on a note, ``machines.png`` is its chart of gradients. Each holds the SHA-256 of its report as a text
chunk under the keyword ``Report``. The same report gives the same bytes under the same matplotlib.

The report's own markdown is drawn, as far as its pages on notes use any: headings, paragraphs, lists, bold, code and
escapes. It is cut between two of its lines, and the picture says so.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.core.canonical_json import digest
from experiments.core.streams import run_program
from reports.build import ReportError, replace_file
from reports.figures import render_png

PAGE, CHART = "report.png", "machines.png"
REPORT, TEXT, DRAWN = "Report", "Text", "Drawn with"
"""Keywords of the text chunks of a picture: the report's SHA-256, the lines shown, the version that drew it."""

WIDTH, MARGIN, HEIGHT = 1240, 36, 960
"""Pixels; `HEIGHT` is the largest height of the page before it is cut."""
DPI = 144
LINE = 1.5
"""Height of a line, relative to its letters."""
SIZES = {"heading": 27.0, "text": 18.0, "code": 15.5, "foot": 14.0}
"""Sizes of letters, in pixels."""
INK, GREY, RULE, SHADE = "#1f2328", "#59636e", "#d1d9e0", "#eff1f3"
CLAIM = re.compile(r"- \*\*[A-Z]+\d+\*\*")
INLINE = re.compile(r"(?P<tick>`+)(?P<code>.+?)(?P=tick)(?!`)|(?P<bold>\*\*)|\\(?P<escaped>.)|&(?P<named>amp|lt|gt);")
NAMED = {"amp": "&", "lt": "<", "gt": ">"}


@dataclass(frozen=True)
class Piece:
    """Letters in one style."""

    text: str
    look: str
    """``text``, ``bold`` or ``code``."""


Word = tuple[Piece, ...]
"""Pieces that are not broken over two lines."""


@dataclass(frozen=True)
class Block:
    """A line of markdown: a heading, a paragraph or a list item."""

    kind: str
    """``heading``, ``text`` or ``item``."""
    words: tuple[Word, ...]
    source: str
    """The line as it is in the report."""


def write_pictures(report: Path) -> list[Path]:
    """Make the pictures of a report, next to it, and return their paths.

    Raise ReportError if the report has no page on a note, or no chart of other settings next to it.
    """
    images = pictures(report)
    for name, content in images.items():
        replace_file(report.with_name(name), content)
    return [report.with_name(name) for name in images]


def pictures(report: Path) -> dict[str, bytes]:
    """Return the pictures by file name. Raise ReportError as `write_pictures` does."""
    content = report.read_bytes()
    chart = report.with_name(f"{report.stem}-{CHART}")
    if not chart.is_file():
        raise ReportError(f"{chart.name} is not beside {report.name}: publish a report that has other settings to show")
    return {PAGE: draw_page(content.decode("utf-8"), report.name), CHART: chart.read_bytes()}


def draw_page(text: str, name: str) -> bytes:
    """Draw the head of the report's last page on a note as a PNG image. `name` is the report's file name."""
    from matplotlib import __version__  # noqa: PLC0415 - only when something is drawn, as in `store.figures`
    from matplotlib.figure import Figure  # noqa: PLC0415 - likewise

    blocks = list(_blocks(_note_lines(text, name)))
    sheet = _Sheet()
    placed = sheet.place_blocks(blocks)
    rest = len(blocks) - placed
    more = f"; {rest} more {'line' if rest == 1 else 'lines'} there" if rest else ""
    foot = f"From {name}, SHA-256 {digest(text)[:12]}{more}."
    height = sheet.place_foot(foot)
    figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    sheet.draw(axes)
    lines = "\n".join(block.source for block in blocks[:placed])
    return render_png(figure, {REPORT: digest(text), TEXT: lines, DRAWN: f"matplotlib {__version__}"})


# Markdown.


def _note_lines(text: str, name: str) -> list[str]:
    """Return the lines of the last section on claims, up to the first that is not a heading, paragraph or item."""
    sections = re.split(r"(?m)^(?=## )", text)
    chosen = [section for section in sections if any(map(CLAIM.match, section.splitlines()))]
    if not chosen:
        raise ReportError(f"{name} has no page on a note, so there is nothing to draw")
    lines = [line for line in chosen[-1].splitlines() if line]
    end = next((at for at, line in enumerate(lines) if line.startswith(("|", "<", "```", "!["))), len(lines))
    return lines[:end]


def _blocks(lines: Sequence[str]) -> Iterator[Block]:
    for line in lines:
        if line.startswith("#"):
            yield Block("heading", tuple(_words(line.lstrip("#").strip())), line)
        elif line.startswith("- "):
            yield Block("item", tuple(_words(line[2:])), line)
        else:
            yield Block("text", tuple(_words(line)), line)


def _words(line: str) -> Iterator[Word]:
    word: list[Piece] = []
    for piece in _pieces(line):
        first, *others = piece.text.split(" ")
        for part, starts in ((first, False), *((other, True) for other in others)):
            if starts and word:
                yield tuple(word)
                word = []
            if part and word and word[-1].look == piece.look != "code":
                word[-1] = Piece(word[-1].text + part, piece.look)
            elif part:
                word.append(Piece(part, piece.look))
    if word:
        yield tuple(word)


def _pieces(line: str) -> Iterator[Piece]:
    look, at = "text", 0
    for found in INLINE.finditer(line):
        yield Piece(line[at : found.start()], look)
        at = found.end()
        if found["bold"]:
            look = "text" if look == "bold" else "bold"
        elif found["code"]:
            yield Piece(found["code"].strip(), "code")
        else:
            yield Piece(found["escaped"] or NAMED[found["named"]], look)
    yield Piece(line[at:], look)


# Layout, in pixels from the top left.


@dataclass(frozen=True)
class _Placed:
    piece: Piece
    x: float
    y: float
    """The baseline of the letters."""
    width: float
    size: float
    colour: str = INK


class _Sheet:
    """The page as it has been laid out so far."""

    def __init__(self) -> None:
        from matplotlib.backends.backend_agg import RendererAgg  # noqa: PLC0415 - only when something is drawn

        # Typed as Any, as matplotlib's stubs lack it.
        renderer: Any = RendererAgg
        self._renderer = renderer(8, 8, DPI)
        self._placed: list[_Placed] = []
        self._rules: list[float] = []
        self._bullets: list[tuple[float, float]] = []
        self._y = float(MARGIN)

    def place_blocks(self, blocks: Sequence[Block]) -> int:
        """Place blocks until the sheet is full and return their number. The first is placed whatever its height."""
        for number, block in enumerate(blocks):
            before = (len(self._placed), len(self._rules), len(self._bullets), self._y)
            self._place_block(block, after=blocks[number - 1].kind if number else "")
            if number and self._y > HEIGHT:
                self._placed, self._rules = self._placed[: before[0]], self._rules[: before[1]]
                self._bullets, self._y = self._bullets[: before[2]], before[3]
                return number
        return len(blocks)

    def place_foot(self, foot: str) -> int:
        """Place the foot and return the height of the sheet."""
        self._y += 10
        self._rules.append(self._y)
        self._y += 4
        self._place_words(tuple((Piece(word, "text"),) for word in foot.split(" ")), MARGIN, SIZES["foot"], GREY)
        return round(self._y + MARGIN / 2)

    def _place_block(self, block: Block, after: str) -> None:
        size = SIZES["heading" if block.kind == "heading" else "text"]
        if after:
            self._y += 3 if block.kind == after == "item" else 12
        if block.kind == "heading":
            words = tuple(tuple(Piece(one.text, "bold") for one in word) for word in block.words)
            self._place_words(words, MARGIN, size)
            self._y += 8
            self._rules.append(self._y)
            return
        left = MARGIN + (34 if block.kind == "item" else 0)
        if block.kind == "item":
            self._bullets.append((left - 14, self._y + LINE * size / 2 + 1))
        self._place_words(block.words, left, size)

    def _place_words(self, words: Sequence[Word], left: float, size: float, colour: str = INK) -> None:
        """Place words one after another, as many on a line as fit."""
        space = self._width(Piece("n n", "text"), size) - self._width(Piece("nn", "text"), size)
        x = left
        for word in words:
            widths = [self._width(piece, size) for piece in word]
            if x > left and x + sum(widths) > WIDTH - MARGIN:
                x, self._y = left, self._y + LINE * size
            for piece, width in zip(word, widths):
                self._placed.append(_Placed(piece, x, self._y + 1.08 * size, width, size, colour))
                x += width
            x += space
        self._y += LINE * size

    def _width(self, piece: Piece, size: float) -> float:
        width, _, _ = self._renderer.get_text_width_height_descent(piece.text, _font(piece, size), ismath=False)
        return float(width) + (10 if piece.look == "code" else 0)

    def draw(self, axes: Any) -> None:
        """Draw everything that was placed."""
        from matplotlib.patches import FancyBboxPatch  # noqa: PLC0415 - only when something is drawn

        for y in self._rules:
            axes.plot([MARGIN, WIDTH - MARGIN], [y, y], color=RULE, linewidth=0.7)
        for x, y in self._bullets:
            axes.plot([x], [y], marker="o", markersize=2.6, color=INK)
        for one in self._placed:
            code = one.piece.look == "code"
            if code:
                corner, height = (one.x + 1, one.y - 0.93 * one.size), 1.25 * one.size
                style = "round,pad=0,rounding_size=5"
                axes.add_patch(FancyBboxPatch(corner, one.width - 2, height, style, color=SHADE, linewidth=0))
            axes.text(
                one.x + (5 if code else 0),
                one.y,
                one.piece.text,
                fontproperties=_font(one.piece, one.size),
                color=one.colour,
                verticalalignment="baseline",
            )


def _font(piece: Piece, size: float) -> Any:
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415 - only when something is drawn

    if piece.look == "code":
        return FontProperties(family="DejaVu Sans Mono", size=size * SIZES["code"] / SIZES["text"] * 72 / DPI)
    weight = "bold" if piece.look == "bold" else "normal"
    return FontProperties(family="DejaVu Sans", weight=weight, size=size * 72 / DPI)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the pictures of one report, print their paths and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.pictures",
        description="Make the README's pictures from a published report.",
        epilog="example: python -m reports.pictures reports/evidence/NAME.md",
    )
    parser.add_argument("report", type=Path, metavar="REPORT.md", help="a report in reports/evidence")
    options = parser.parse_args(arguments)
    try:
        for path in write_pictures(options.report):
            print(path)
    except (ReportError, OSError) as error:
        print(f"reports.pictures: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run_program("reports.pictures", main, "each picture is the old one or the new one"))

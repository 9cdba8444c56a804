"""Elements of markdown: code, blocks, tables. Text from records never becomes markup."""

from __future__ import annotations

import re
from collections.abc import Sequence

from experiments.core.text import cut, visible

_QUOTED = 1500
"""Characters of one quotation within a note."""


def code(text: str, limit: int = _QUOTED) -> str:
    """`text` as code within a line of markdown."""
    shown = cut(visible(text), limit)
    mark = "`" * (1 + _longest_run(shown))
    pad = " " if "`" in shown else ""
    return f"{mark}{pad}{shown}{pad}{mark}" if shown else "(empty)"


def block(text: str, limit: int = _QUOTED) -> str:
    """`text` as a block of code."""
    shown = cut(visible(text.strip("\n"), lines=True), limit)
    mark = "`" * max(3, 1 + _longest_run(shown))
    return f"{mark}\n{shown}\n{mark}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A markdown table. Cells are already safe; a bar in one is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def folded(summary: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{html(summary)}</summary>", "", *lines, "", "</details>"]


def html(text: str) -> str:
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def compared(cases: int, left_out: int, differing: int) -> str:
    """Of how many cases a chart of gradients speaks, and of how many it does not: those without gradients to compare,
    of which `differing` differ.
    """
    shown = count(cases, "case", "cases")
    if not left_out:
        return shown
    which = "none of which differs"
    if differing:
        which = f"of which {count(differing, 'differs', 'differ')}"
    return f"{shown}, {left_out} left out, {which}"


def prose(text: str) -> str:
    """Our own words and numbers, which may quote a record: nothing in them is markup."""
    shown = visible(" ".join(text.split()))
    for mark in "\\`*_[]<>#~":
        shown = shown.replace(mark, f"\\{mark}")
    return shown.replace("&", "&amp;")

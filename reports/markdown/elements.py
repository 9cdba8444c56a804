"""Elements of markdown: code, blocks, tables. Text from records never becomes markup."""

from __future__ import annotations

import re
from collections.abc import Sequence

from experiments.core.text import cut_text, visible_text

_QUOTED = 1500
"""Most characters of one quotation within a note."""


def code(text: str, limit: int = _QUOTED) -> str:
    """Return `text` as code within a line of markdown."""
    printed = cut_text(visible_text(text), limit)
    mark = "`" * (1 + _longest_run(printed))
    pad = " " if "`" in printed else ""
    return f"{mark}{pad}{printed}{pad}{mark}" if printed else "(empty)"


def block(text: str, limit: int = _QUOTED) -> str:
    """Return `text` as a block of code."""
    printed = cut_text(visible_text(text.strip("\n"), lines=True), limit)
    mark = "`" * max(3, 1 + _longest_run(printed))
    return f"{mark}\n{printed}\n{mark}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a markdown table. Cells must be safe markup already; bars in them are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def details(summary: str, lines: Sequence[str]) -> list[str]:
    """Return lines that are folded under a summary."""
    return [f"<details><summary>{html(summary)}</summary>", "", *lines, "", "</details>"]


def html(text: str) -> str:
    """Return `text` escaped for HTML."""
    return visible_text(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def count(number: int, one: str, several: str) -> str:
    """Return a number with its noun in the singular or plural."""
    return f"{number} {one if number == 1 else several}"


def coverage_text(cases: int, left_out: int, differing: int) -> str:
    """Say how many cases a chart of gradients shows, how many it leaves out, and how many of those differ.

    Cases without gradients to compare are left out.
    """
    text = count(cases, "case", "cases")
    if not left_out:
        return text
    which = "none of which differs"
    if differing:
        which = f"of which {count(differing, 'differs', 'differ')}"
    return f"{text}, {left_out} left out, {which}"


def prose(text: str) -> str:
    """Return our own words, which may quote a record, with all markup escaped."""
    escaped = visible_text(" ".join(text.split()))
    for mark in "\\`*_[]<>#~":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped.replace("&", "&amp;")

"""Pieces of markdown that every page is made of: safe whatever a record holds."""

from __future__ import annotations

from typing import Sequence

from experiments.visible import visible


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

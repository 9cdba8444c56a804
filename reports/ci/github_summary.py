"""A sweep for the page of a job on GitHub: markdown appended to the file that GitHub Actions names.

GitHub shows nothing of a file over 1 MiB, so whole sections are left out, and named, before it gets there.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Sequence

from experiments.analysis.causes import PROVEN
from experiments.analysis.settings import label
from experiments.core.verdict import AS_EXPECTED, CANNOT_SAY, NOT_AS_EXPECTED, Verdict
from reports.markdown.elements import code, count, prose, table
from reports.markdown.settings import funnel, pair_row, placed
from reports.setting_comparison import Across

VARIABLE = "GITHUB_STEP_SUMMARY"
LIMIT = 1024 * 1024
"""Bytes that the file stays below, with what other steps have written into it."""
SHOWN = 20
"""Pairs that differ, in the table."""


def sections(sweep: str, verdicts: Sequence[Verdict], found: Across | None, report: Path) -> list[list[str]]:
    """What there is to say, most important first; `found` None says nothing of other settings."""
    head = [f"# Twofold: sweep {code(sweep)}", "", _counted(verdicts), "", f"Report: {code(str(report))}"]
    if found is None or not found.others:
        return [[*head, "", "It was not compared with another setting."]]
    where = ["## This setting among others", "", placed(found)]
    return [part for part in (head, where, funnel(found), _causes(found), _differing(found)) if part]


def _counted(verdicts: Sequence[Verdict]) -> str:
    counts = Counter(one.word for one in verdicts)
    said = ", ".join(f"{counts[word]} {word}" for word in (AS_EXPECTED, NOT_AS_EXPECTED, CANNOT_SAY))
    return f"Of {count(len(verdicts), 'replay', 'replays')}: {said}."


def _causes(found: Across) -> list[str]:
    """What is proven; of two settings with the same bits there is nothing to prove."""
    if not any(found.causes.values()):
        return []
    rows = [
        [
            code(name),
            prose(label(one.factor)),
            code(one.ours),
            code(one.theirs),
            f"{one.followed} of {one.of}",
            code(one.by),
        ]
        for name, listed in found.causes.items()
        for one in listed
        if one.word == PROVEN
    ]
    head = ("setting", "factor", "here", "there", "cases that followed", "counter-replay")
    return [
        "## Proven causes",
        "",
        *(
            table(head, rows)
            if rows
            else ["No cause is proven: that takes a counter-replay, `make replay PROVE=SETTING`."]
        ),
    ]


def _differing(found: Across) -> list[str]:
    rows = [pair_row(pair) for pair in found.differing]
    if not rows:
        return []
    title = f"## {count(len(rows), 'pair differs', 'pairs differ')} beyond rounding"
    head = ("setting", "case", "agreement", "rule", "first difference")
    more = ["", f"And {len(rows) - SHOWN} more: see the report."] if rows[SHOWN:] else []
    return [title, "", *table(head, rows[:SHOWN]), *more]


def append(path: Path, made: Sequence[Sequence[str]], limit: int = LIMIT) -> list[str]:
    """Append the sections that fit, so that the file stays below `limit` bytes, and a note that names the others.
    Gives the titles of those left out. Raises OSError if the file cannot be written.
    """
    there = path.stat().st_size if path.exists() else 0
    room = limit - 1 - there
    kept, left = _fitting(["\n".join(one) for one in made], room)
    text = _joined(kept, left)
    if len(text) <= room:
        with path.open("ab") as file:
            file.write(text)
    return left


def _fitting(parts: Sequence[str], room: int) -> tuple[list[str], list[str]]:
    """The parts that fit beside a note on the others, and the titles of the others."""
    if len(_joined(parts, [])) <= room:
        return list(parts), []
    kept: list[str] = []
    left = list(parts)
    for part in parts:
        others = [one for one in left if one is not part]
        if len(_joined([*kept, part], [_title(one) for one in others])) <= room:
            kept, left = [*kept, part], others
    return kept, [_title(part) for part in left]


def _title(part: str) -> str:
    return part.partition("\n")[0].lstrip("# ")


def _joined(parts: Sequence[str], left: Sequence[str]) -> bytes:
    said = f"**Left out, as the file would grow beyond what GitHub shows: {'; '.join(left)}. See the report.**"
    return ("\n" + "\n\n".join([*parts, *([said] if left else [])]) + "\n").encode("utf-8")

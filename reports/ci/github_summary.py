"""The summary of a sweep on the page of a GitHub job: markdown appended to the file that GitHub Actions names.

GitHub shows nothing of a file over 1 MiB, so whole sections are left out, and named, before the file reaches it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Sequence

from experiments.analysis.causes import PROVEN
from experiments.analysis.settings import label
from experiments.core.verdict import AS_EXPECTED, CANNOT_SAY, NOT_AS_EXPECTED, Verdict
from reports.markdown.elements import code, count, prose, table
from reports.markdown.settings import funnel, pair_row, placement
from reports.setting_comparison import Across

VARIABLE = "GITHUB_STEP_SUMMARY"
LIMIT = 1024 * 1024
"""Bytes that the file stays below, including the output of other steps."""
SHOWN = 20
"""Most rows of the table of pairs that differ."""


def sections(sweep: str, verdicts: Sequence[Verdict], found: Across | None, report: Path) -> list[list[str]]:
    """Return the sections of the summary, most important first; with `found` None, none is on other settings."""
    head = [f"# Twofold: sweep {code(sweep)}", "", _verdict_counts(verdicts), "", f"Report: {code(str(report))}"]
    if found is None or not found.others:
        return [[*head, "", "It was not compared with another setting."]]
    where = ["## This setting among others", "", placement(found)]
    return [part for part in (head, where, funnel(found), _cause_section(found), _difference_section(found)) if part]


def _verdict_counts(verdicts: Sequence[Verdict]) -> str:
    counts = Counter(one.word for one in verdicts)
    counted = ", ".join(f"{counts[word]} {word}" for word in (AS_EXPECTED, NOT_AS_EXPECTED, CANNOT_SAY))
    return f"Of {count(len(verdicts), 'replay', 'replays')}: {counted}."


def _cause_section(found: Across) -> list[str]:
    """Return the proven causes. Empty if no setting has other bits, so that there is nothing to prove."""
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


def _difference_section(found: Across) -> list[str]:
    rows = [pair_row(pair) for pair in found.differing]
    if not rows:
        return []
    title = f"## {count(len(rows), 'pair differs', 'pairs differ')} beyond rounding"
    head = ("setting", "case", "agreement", "rule", "first difference")
    more = ["", f"And {len(rows) - SHOWN} more: see the report."] if rows[SHOWN:] else []
    return [title, "", *table(head, rows[:SHOWN]), *more]


def append_sections(path: Path, made: Sequence[Sequence[str]], limit: int = LIMIT) -> list[str]:
    """Append the sections that fit, so that the file stays below `limit` bytes, and a note that names the others.

    Return the titles of the sections that were left out. Raise OSError if the file cannot be written.
    """
    there = path.stat().st_size if path.exists() else 0
    room = limit - 1 - there
    kept, omitted = _select_fitting(["\n".join(one) for one in made], room)
    text = _join_sections(kept, omitted)
    if len(text) <= room:
        with path.open("ab") as file:
            file.write(text)
    return omitted


def _select_fitting(parts: Sequence[str], room: int) -> tuple[list[str], list[str]]:
    """Return the parts that fit together with a note on the others, and the titles of the others."""
    if len(_join_sections(parts, [])) <= room:
        return list(parts), []
    kept: list[str] = []
    remaining = list(parts)
    for part in parts:
        others = [one for one in remaining if one is not part]
        if len(_join_sections([*kept, part], [_title(one) for one in others])) <= room:
            kept, remaining = [*kept, part], others
    return kept, [_title(part) for part in remaining]


def _title(part: str) -> str:
    return part.partition("\n")[0].lstrip("# ")


def _join_sections(parts: Sequence[str], left: Sequence[str]) -> bytes:
    note = f"**Left out, as the file would grow beyond what GitHub shows: {'; '.join(left)}. See the report.**"
    return ("\n" + "\n\n".join([*parts, *([note] if left else [])]) + "\n").encode("utf-8")

"""Output of the command line: tables and records as text, without control characters for the terminal."""

from __future__ import annotations

from json import dumps
from typing import Any, Mapping, Sequence

from experiments.core.canonical_json import canonical, parse
from experiments.core.outcome import Outcome
from experiments.core.record import Record
from experiments.core.record_diff import Comparison, Section
from experiments.core.text import visible_text
from store.exclusions import Exclusion
from store.models import Cell, NoteRow
from store.origins import Origin
from store.sweeps import SweepProgress

_SHORT = 12
"""Digits of a digest in a table: enough to distinguish millions of records, and short enough to type."""


def format_json(value: Any) -> str:
    """Return `value` as one line of JSON in ASCII.

    Canonical JSON is not enough here: it leaves control characters from U+0080 on unescaped.
    """
    return dumps(parse(canonical(value)), sort_keys=True) + "\n"


def format_cells(found: Sequence[Cell], origins: Mapping[str, Origin | None], *, json: bool) -> str:
    """Return records, one a line, with their `origins` by digest; as JSON, one list."""
    if json:
        return format_json([{**_cell_columns(one), "origin": _origin_values(origins[one.digest])} for one in found])
    head = ("digest", "started", "outcome", "scenario", "case", "pass", "device", "role", "repeat", "run")
    rows = [
        (
            one.digest[:_SHORT],
            one.started_at[:19],
            one.outcome,
            one.scenario,
            one.label,
            one.pass_,
            one.device,
            one.role,
            str(one.repeat),
            _origin_text(origins[one.digest]),
        )
        for one in found
    ]
    return _format_table(head, rows)


def _cell_columns(one: Cell) -> dict[str, Any]:
    return {column.name: getattr(one, "pass_" if column.name == "pass" else column.name) for column in Cell.__table__.c}


def format_sweeps(found: Sequence[SweepProgress], *, json: bool) -> str:
    """Return sweeps, one a line; as JSON, one list."""
    if json:
        return format_json([_sweep_values(one) for one in found])
    rows = [
        (
            one.id,
            one.started_at[:19],
            f"{one.done} of {one.planned}",
            one.machine[:_SHORT],
            _origin_text(one.origin),
        )
        for one in found
    ]
    return _format_table(("sweep", "started", "done", "machine", "run"), rows)


def _sweep_values(one: SweepProgress) -> dict[str, Any]:
    return {**vars(one), "finished": one.finished, "origin": _origin_values(one.origin)}


def _origin_text(origin: Origin | None) -> str:
    return "here" if origin is None else str(origin)


def _origin_values(origin: Origin | None) -> dict[str, Any] | None:
    return None if origin is None else {**vars(origin), "also": [_origin_values(one) for one in origin.also]}


def format_exclusions(found: Sequence[Exclusion], *, json: bool) -> str:
    """Return the entries of the list of exclusions, one a line; as JSON, one list."""
    rows = [{**vars(one), "called": list(one.called)} for one in found]
    return format_json(rows) if json else "".join(f"{visible_text(str(one))}\n" for one in found)


def _format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[visible_text(field) for field in row] for row in (head, *rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    return "".join("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)


def format_record(
    digest: str,
    kept: Record,
    origin: Origin | None,
    notes: Sequence[NoteRow],
    contents: Sequence[tuple[str, str, bool]],
    *,
    excluded: bool,
) -> str:
    """Return a record as text for people: origin, spec, ending, observation, contents and notes.

    `contents` are digest, kind, and whether the archive has the content.
    """
    lines = [("record", digest), ("run", _origin_text(origin)), ("evidence", kept.evidence_digest())]
    if excluded:
        lines.insert(1, ("excluded", "from reports, capsules and MLflow; `python -m store exclude` says why"))
    lines += [*_spec_lines(kept), *_ending_lines(kept), *_observation_lines(kept)]
    lines += [(f"{kind}{'' if there else ' (not kept)'}", name) for name, kind, there in contents]
    lines += [("note", f"{note.written_at[:19]} {note.author}: {note.text}") for note in notes]
    width = max(len(name) for name, _ in lines)
    return "".join(_format_field(name, text, width) for name, text in lines)


def _format_field(name: str, text: str, width: int) -> str:
    first, *more = [visible_text(line) for line in text.split("\n")]
    return f"{visible_text(name):{width}}  {first}\n" + "".join(f"{'':{width}}  {line}\n" for line in more)


def _spec_lines(kept: Record) -> list[tuple[str, str]]:
    question, setting = kept.spec.question, kept.spec.setting
    return [
        ("scenario", question.scenario),
        ("case", f"{question.label()} ({kept.spec.mark.role})"),
        ("pass", question.pass_),
        ("device", f"{question.device}, seed {question.seed}, threads {question.threads}"),
        ("setting", f"{setting.environment}, {setting.isolation}, sources {setting.sources}"),
        ("replay", f"repeat {setting.repeat}, attempt {setting.attempt}: {kept.spec.replay_digest()}"),
    ]


def _ending_lines(kept: Record) -> list[tuple[str, str]]:
    ending = kept.ending
    lines = [
        ("started", f"{ending.started_at}, took {ending.duration:.3f} s"),
        ("outcome", _outcome_text(kept.outcome)),
    ]
    if kept.outcome.message:
        lines.append(("message", kept.outcome.message))
    if kept.outcome.traceback:
        lines.append(("traceback", kept.outcome.traceback))
    return lines


def _outcome_text(outcome: Outcome) -> str:
    where = f" in {outcome.phase}" if outcome.phase else ""
    return f"{outcome.kind}{where}" + "".join(f": {part}" for part in (outcome.type, outcome.detail) if part)


def _observation_lines(kept: Record) -> list[tuple[str, str]]:
    seen = kept.observation
    if seen is None:
        return [("observation", "none that can be read")]
    lines = [
        (one.role, f"{one.name}: {one.dtype} {list(one.shape or ())}, norm {one.norm}, {one.digest}")
        if one.digest
        else (one.role, f"{one.name}: none")
        for one in seen.tensors
    ]
    lines += [("observed", f"{one.name} = {canonical(one.value)} ({one.kind})") for one in seen.observed]
    lines += [("changed", f"{one.name}: {canonical(one.before)} -> {canonical(one.after)}") for one in seen.state]
    return lines + [("operators", f"{phase}: {len(listed)}") for phase, listed in (seen.operators or {}).items()]


def format_difference(digests: Sequence[str], comparison: Comparison, *, json: bool) -> str:
    """Return two records side by side; as JSON, one object."""
    if json:
        sections = [{**vars(one), "rows": [list(row) for row in one.rows]} for one in comparison.sections]
        return format_json({"records": list(digests), "evidence equal": comparison.equal, "sections": sections})
    head = [("", "first", "second"), ("record", *(name[:_SHORT] for name in digests))]
    evidence = f"evidence: {'equal' if comparison.equal else 'different'}\n"
    return _format_table(head[0], [head[1]]) + evidence + "".join(_format_section(one) for one in comparison.sections)


def _format_section(one: Section) -> str:
    table = _format_table(one.rows[0], one.rows[1:]) if one.rows else ""
    indented = "".join(f"  {line}\n" for line in table.splitlines())
    return f"\n{visible_text(one.title)}: {visible_text(one.said)}\n{indented}"

"""What the command line prints: tables and records as text, nothing of which can command the terminal."""

from __future__ import annotations

from json import dumps
from typing import Any, Mapping, Sequence

from experiments.core.canonical_json import canonical, parse
from experiments.core.outcome import Outcome
from experiments.core.record import Record
from experiments.core.record_diff import Comparison, Section
from experiments.core.text import visible
from store.exclusions import Exclusion
from store.models import Cell, NoteRow
from store.origins import Origin
from store.sweeps import SweepProgress

_SHORT = 12
"""Digits of a digest in a table: enough to tell millions of records apart, and to be typed."""


def as_json(value: Any) -> str:
    """`value` as one line of JSON in ASCII: canonical JSON leaves control characters from U+0080 on as they are."""
    return dumps(parse(canonical(value)), sort_keys=True) + "\n"


def cells(found: Sequence[Cell], origins: Mapping[str, Origin | None], *, json: bool) -> str:
    """Records, one a line, with where they came from by digest; as JSON, one list."""
    if json:
        return as_json([{**_columns(one), "origin": _told(origins[one.digest])} for one in found])
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
            _where(origins[one.digest]),
        )
        for one in found
    ]
    return _table(head, rows)


def _columns(one: Cell) -> dict[str, Any]:
    return {column.name: getattr(one, "pass_" if column.name == "pass" else column.name) for column in Cell.__table__.c}


def sweeps(found: Sequence[SweepProgress], *, json: bool) -> str:
    """Sweeps, one a line; as JSON, one list."""
    if json:
        return as_json([_sweep(one) for one in found])
    rows = [
        (
            one.id,
            one.started_at[:19],
            f"{one.done} of {one.planned}",
            one.machine[:_SHORT],
            _where(one.origin),
        )
        for one in found
    ]
    return _table(("sweep", "started", "done", "machine", "run"), rows)


def _sweep(one: SweepProgress) -> dict[str, Any]:
    return {**vars(one), "finished": one.finished, "origin": _told(one.origin)}


def _where(origin: Origin | None) -> str:
    return "here" if origin is None else str(origin)


def _told(origin: Origin | None) -> dict[str, Any] | None:
    return None if origin is None else {**vars(origin), "also": [_told(one) for one in origin.also]}


def exclusions(found: Sequence[Exclusion], *, json: bool) -> str:
    """What was excluded or included again, one a line; as JSON, one list."""
    told = [{**vars(one), "called": list(one.called)} for one in found]
    return as_json(told) if json else "".join(f"{visible(str(one))}\n" for one in found)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[visible(field) for field in row] for row in (head, *rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    return "".join("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)


def record(
    digest: str,
    kept: Record,
    origin: Origin | None,
    notes: Sequence[NoteRow],
    contents: Sequence[tuple[str, str, bool]],
    *,
    excluded: bool,
) -> str:
    """A record for people: where it came from, what was asked, how it ended, what was seen, what it rests on, what was
    said.
    """
    lines = [("record", digest), ("run", _where(origin)), ("evidence", kept.evidence_digest())]
    if excluded:
        lines.insert(1, ("excluded", "from reports, capsules and MLflow; `python -m store exclude` says why"))
    lines += [*_asked(kept), *_ended(kept), *_seen(kept)]
    lines += [(f"{kind}{'' if there else ' (not kept)'}", name) for name, kind, there in contents]
    lines += [("note", f"{note.written_at[:19]} {note.author}: {note.text}") for note in notes]
    width = max(len(name) for name, _ in lines)
    return "".join(_field(name, text, width) for name, text in lines)


def _field(name: str, text: str, width: int) -> str:
    first, *more = [visible(line) for line in text.split("\n")]
    return f"{visible(name):{width}}  {first}\n" + "".join(f"{'':{width}}  {line}\n" for line in more)


def _asked(kept: Record) -> list[tuple[str, str]]:
    question, setting = kept.spec.question, kept.spec.setting
    return [
        ("scenario", question.scenario),
        ("case", f"{question.label()} ({kept.spec.mark.role})"),
        ("pass", question.pass_),
        ("device", f"{question.device}, seed {question.seed}, threads {question.threads}"),
        ("setting", f"{setting.environment}, {setting.isolation}, sources {setting.sources}"),
        ("replay", f"repeat {setting.repeat}, attempt {setting.attempt}: {kept.spec.replay_digest()}"),
    ]


def _ended(kept: Record) -> list[tuple[str, str]]:
    ending = kept.ending
    lines = [("started", f"{ending.started_at}, took {ending.duration:.3f} s"), ("outcome", _outcome(kept.outcome))]
    if kept.outcome.message:
        lines.append(("message", kept.outcome.message))
    if kept.outcome.traceback:
        lines.append(("traceback", kept.outcome.traceback))
    return lines


def _outcome(outcome: Outcome) -> str:
    where = f" in {outcome.phase}" if outcome.phase else ""
    return f"{outcome.kind}{where}" + "".join(f": {part}" for part in (outcome.type, outcome.detail) if part)


def _seen(kept: Record) -> list[tuple[str, str]]:
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


def difference(digests: Sequence[str], made: Comparison, *, json: bool) -> str:
    """Two records side by side; as JSON, one object."""
    if json:
        sections = [{**vars(one), "rows": [list(row) for row in one.rows]} for one in made.sections]
        return as_json({"records": list(digests), "evidence equal": made.equal, "sections": sections})
    head = [("", "first", "second"), ("record", *(name[:_SHORT] for name in digests))]
    said = f"evidence: {'equal' if made.equal else 'different'}\n"
    return _table(head[0], [head[1]]) + said + "".join(_part(one) for one in made.sections)


def _part(one: Section) -> str:
    table = _table(one.rows[0], one.rows[1:]) if one.rows else ""
    indented = "".join(f"  {line}\n" for line in table.splitlines())
    return f"\n{visible(one.title)}: {visible(one.said)}\n{indented}"

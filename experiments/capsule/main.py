"""Program of a capsule: run its cases in fresh processes, compare them with home, write evidence to send back.

    python capsule.pyz [--list] [--only PATTERN] [--device present|cpu|cuda] [--workers N] [--json] [--anonymous]

The table goes to stdout, progress and errors to stderr. Temporary files are in one folder next to the evidence file,
which is removed at the end. Exit status: 0 all agree, 1 something differs, 2 could not run, 130 interrupted.

Imports only the standard library, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fnmatch
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

from ..bundle import layout, writer
from ..core import folders, requirements, streams
from ..core.agreement import RANKS, Agreement, rank
from ..core.canonical_json import digest, parse
from ..core.environment import folder_variables, machine_identity
from ..core.record import Record
from ..core.replay import Replay, replays
from ..core.rounding import limits, noise
from ..core.spec import Spec
from ..core.sweep import MOMENT, plan_text
from ..core.text import visible_text
from ..core.verdict import contexts, describe_outcome
from ..runner import errors, local, supervisor
from ..runner.fork_client import Forks
from . import archive
from .anonymize import NameHider, anonymize_record

OLDEST = (2, 6)
"""The oldest torch version that workers support."""
AGREES = 2
"""Highest rank that counts as agreement: 1 identical, 2 equal within rounding."""
CASE = 64
"""Longest case name in the table, in characters."""


class CannotRunError(Exception):
    """No case can be run. The message says why and what to do."""


@dataclass(frozen=True)
class Row:
    """One case, here and at home."""

    scenario: str
    case: str
    device: str
    here: str
    there: str
    agreement: Agreement
    compared: bool
    """False if it did not run on one of the sides, so that there is nothing to compare."""


def main(arguments: Sequence[str], program: str) -> int:
    """Run a capsule and return the exit status."""
    return streams.run_program("capsule", lambda: _main(arguments, program), "nothing was written")


def _main(arguments: Sequence[str], program: str) -> int:
    asked = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        content = _select_specs(archive.read(Path(program)), asked)
        if asked.list:
            return _list_cases(content)
        with local.interrupt_on_signals(), _working_folder(Path(asked.output)) as folder:
            return _run_cases(content, Path(program), folder, asked)
    except (
        archive.CapsuleError,
        CannotRunError,
        errors.LaunchError,
        requirements.NeedError,
        layout.PackError,
    ) as error:
        _say(f"capsule: {error}")
    except OSError as error:
        _say(f"capsule: {error.strerror or error}: {error.filename}" if error.filename else f"capsule: {error}")
    except KeyboardInterrupt:
        _say("capsule: interrupted; nothing was written")
        return 130
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="capsule.pyz",
        description=(
            "Run the cases in this file in fresh processes of this Python, which needs torch 2.6 or newer and nothing "
            "else, and compare with what they gave where the file was made."
        ),
        epilog=(
            "Ranks: " + ", ".join(f"{number} {word}" for number, word in RANKS.items()) + ". "
            "Exit status: 0 all agree (ranks 1 and 2), 1 something differs, 2 could not run, 130 interrupted. "
            "The evidence file holds records, sources, tensors and facts of this machine; it names no user, and of "
            "the host its file name and a digest: --anonymous leaves these out."
        ),
    )
    parser.add_argument("--list", action="store_true", help="list the cases and run nothing")
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="scenarios or cases, with * and ?; may be repeated"
    )
    parser.add_argument(
        "--device", choices=("present", "cpu", "cuda"), default="present", help="where to run (default: what is here)"
    )
    parser.add_argument(
        "--workers", type=_parse_count, metavar="N", help="processes at a time (default: one for each core)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--output", default=".", metavar="FOLDER", help="where the evidence file goes (default: here)")
    parser.add_argument(
        "--anonymous", action="store_true", help="no host name, user name or path in the evidence or its file name"
    )
    return parser


def _parse_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes; give 1 or more")
    return int(text)


def _say(text: str) -> None:
    print(visible_text(text), file=sys.stderr, flush=True)


# What to run.


def _select_specs(content: archive.Content, asked: argparse.Namespace) -> archive.Content:
    """Return the content with only the specs for the device and patterns, and the references that they need."""
    specs = [spec for spec in content.specs if asked.device in ("present", spec.question.device)]
    if asked.only:
        wanted = [spec for spec in specs if spec.mark.role != "reference" and _is_match(spec, asked.only)]
        if not wanted:
            raise CannotRunError(f"no case matches {' '.join(asked.only)}; --list shows them")
        needed = {name for spec in wanted for name in (spec.mark.reference, spec.mark.float64)}
        cases = {spec.question.case_digest() for spec in wanted} | needed
        specs = [spec for spec in specs if spec.question.case_digest() in cases]
    return replace(content, specs=tuple(specs))


def _is_match(spec: Spec, patterns: Sequence[str]) -> bool:
    scenario, label = spec.question.scenario, spec.question.label()
    texts = (scenario, spec.question.case, label, f"{scenario} {label}")
    return any(fnmatch.fnmatchcase(text, pattern.replace("[", "[[]")) for text in texts for pattern in patterns)


def _list_cases(content: archive.Content) -> int:
    last = ""
    for spec in content.specs:
        question = spec.question
        if question.pass_ != "plain" or question.dtype != question.input_dtype:
            continue
        if question.scenario != last:
            print(visible_text(question.scenario))
            last = question.scenario
        need = f"  needs {', '.join(spec.mark.needs)}" if spec.mark.needs else ""
        print(visible_text(f"  {spec.mark.role:<10}{question.device:<5}{question.label()}{need}"))
    return 0


# Running the cases.


@contextlib.contextmanager
def _working_folder(output: Path) -> Iterator[Path]:
    """Create a temporary folder next to the evidence file, the only place that is written to meanwhile."""
    if not output.is_dir():
        raise CannotRunError(f"--output {output}: there is no such folder")
    with folders.temporary_folder(".capsule-", output.resolve()) as folder:
        before = tempfile.tempdir
        tempfile.tempdir = str(folder)
        try:
            yield folder
        finally:
            tempfile.tempdir = before


def _run_cases(content: archive.Content, program: Path, folder: Path, asked: argparse.Namespace) -> int:
    root = folder / "sources"
    archive.unpack(program, root)
    machine = _machine_facts(root, folder)
    missing = requirements.missing_needs(content.specs, machine, folder)
    specs = [spec for spec in content.specs if asked.device != "present" or _has_device(spec, machine)]
    if not any(spec.digest() not in missing for spec in specs):
        lacks = sorted(set(missing.values()))
        raise CannotRunError(f"nothing can be run here: the cases need {', '.join(lacks) or 'another device'}")
    for sentence in _missing_limits():
        _say(sentence)
    with contextlib.closing(Forks(root)) as forks:
        ended = local.run(
            specs,
            workers=asked.workers or local.cores(),
            roots={"copied": root},
            scratch=folder / "running",
            missing=missing,
            watch=lambda _: None,
            forks=forks,
        )
        found = _collect_records(ended, len(specs))
    return _report_results(content, [record for record, _ in found], folder, machine, asked)


def _machine_facts(root: Path, folder: Path) -> Mapping[str, Any]:
    """Return this machine's facts as a worker reports them. Raises CannotRunError without a recent enough torch."""
    (folder / "describing").mkdir()
    try:
        told = supervisor.describe(root, "", folder / "described.json", folder_variables(str(folder / "describing")))
    except errors.LaunchError as error:
        raise CannotRunError(
            f"{error}. It takes a Python with torch 2.6 or newer: /path/to/python capsule.pyz"
        ) from None
    machine: Mapping[str, Any] = told["machine"]
    if requirements.torch_version(machine) < OLDEST:
        raise CannotRunError(f"torch {machine['torch']['version']} is here, and 2.6 or newer is needed")
    return machine


def _has_device(spec: Spec, machine: Mapping[str, Any]) -> bool:
    return spec.question.device == "cpu" or machine["gpu"] is not None


def _missing_limits() -> Iterator[str]:
    """Yield a sentence for each thing that this system cannot limit or measure."""
    if not Path("/proc/self/statm").is_file():
        yield "this system does not tell the memory of processes: it is not limited here, and null in the evidence"
    if not hasattr(os, "killpg"):
        yield "this system has no process groups: what a case starts and leaves behind is not ended"


def _collect_records(ended: Any, total: int) -> list[tuple[Record, Path]]:
    """Collect all records with their folders while showing progress."""
    found: list[tuple[Record, Path]] = []
    live = sys.stderr.isatty()
    with contextlib.closing(ended):
        for record, place in ended:
            found.append((record, place))
            line = f"{len(found)}/{total} {record.spec.question.scenario} {record.spec.question.label()}"
            if live:
                width = shutil.get_terminal_size().columns - 1
                print(f"\r{visible_text(line)[:width]:<{width}}", end="", file=sys.stderr, flush=True)
            elif len(found) % 25 == 0 or len(found) == total:
                _say(line)
    if live:
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{'':<{width}}\r", end="", file=sys.stderr, flush=True)
    return found


# Results.


def _report_results(
    content: archive.Content, records: Sequence[Record], folder: Path, machine: Mapping[str, Any], asked: Any
) -> int:
    places = list((folder / "running").glob("*/blobs"))

    def fetch(name: str) -> Optional[bytes]:
        found = content.blobs.get(name)
        return found if found is not None else _read_blob(places, name)

    rows = _rows(content, records, fetch)
    other = _differing_facts(machine, content.machine)
    if not any(row.compared for row in rows):
        _say("nothing could be compared: no case ran both here and where the capsule was made")
    if not asked.json:
        _print_results(rows, other)
    # Last, so that the table is printed even if the disk is full.
    evidence, status = _save_evidence(content, _sort_records(content, records), fetch, asked), _exit_status(rows)
    status = 2 if evidence is None else status
    if asked.json:
        print(json.dumps(_as_json(rows, other, evidence, status), indent=2))
    elif evidence is not None:
        print(visible_text(f"evidence: {evidence}"))
    return status


def _sort_records(content: archive.Content, records: Sequence[Record]) -> list[Record]:
    """Return the records in the order of their specs in the capsule."""
    order = {spec.question.digest(): place for place, spec in enumerate(content.specs)}
    return sorted(records, key=lambda one: order.get(one.spec.question.digest(), 0))


def _print_results(rows: Sequence[Row], other: Mapping[str, tuple[str, str]]) -> None:
    _print_table(rows)
    print()
    for name, (here, there) in other.items():
        print(visible_text(f"other than at home: {name}: {here} here, {there} there"))
    print(_summary(rows))


def _save_evidence(
    home: archive.Content, records: Sequence[Record], fetch: Any, asked: argparse.Namespace
) -> Path | None:
    """Write the evidence file and return its path. If that fails, print why and return None."""
    hidden = NameHider.for_this_host(home, records, fetch) if asked.anonymous else None
    try:
        return _write_evidence(records, fetch, Path(asked.output), hidden)
    except OSError as error:
        _say(f"the evidence could not be written to {asked.output}: {error.strerror or error}; give --output FOLDER")
        return None


def _read_blob(places: Sequence[Path], name: str) -> bytes | None:
    for place in places:
        if (place / name).is_file():
            return (place / name).read_bytes()
    return None


def _rows(content: archive.Content, records: Sequence[Record], fetch: Any) -> list[Row]:
    """Return a row for each case that was to run here, without float64 references, which only measure rounding."""
    ours, home = replays(records), content.home
    theirs = dict(zip([one.spec.question.case_digest() for one in home], zip(home, contexts(home, fetch))))
    order = {spec.question.case_digest(): place for place, spec in enumerate(content.specs)}
    pairs = sorted(zip(ours, contexts(ours, fetch)), key=lambda pair: order[pair[0].spec.question.case_digest()])
    rows = []
    for replay, context in pairs:
        question = replay.spec.question
        if question.dtype != question.input_dtype:
            continue
        other, othercontext = theirs.get(question.case_digest(), (None, None))
        if other is None or othercontext is None:
            agreement = Agreement(6, "it was not run where the capsule was made", "", ())
        else:
            measured = [
                noise(one, its.reference, its.float64, its.repeats, fetch)
                for one, its in ((replay, context), (other, othercontext))
            ]
            agreement = rank(replay, other, fetch, limits(*measured))
        ran = [one is not None and _has_run(one) for one in (replay, other)]
        here, there = (_outcome_text(one) for one in (replay, other))
        rows.append(Row(question.scenario, question.label(), question.device, here, there, agreement, all(ran)))
    return rows


def _has_run(replay: Replay) -> bool:
    return replay.plain is not None and replay.plain.outcome.kind != "not_run"


def _outcome_text(replay: Replay | None) -> str:
    """Return how the replay ended, in a few words."""
    if replay is None or replay.plain is None:
        return "no record"
    outcome = replay.plain.outcome
    if outcome.kind == "raised":
        return f"{(outcome.type or '').rpartition('.')[2]} in {outcome.phase}"
    return describe_outcome(replay.plain)


def _exit_status(rows: Sequence[Row]) -> int:
    compared = [row for row in rows if row.compared]
    if not compared:
        return 2
    return 1 if any(row.agreement.rank > AGREES for row in compared) else 0


def _print_table(rows: Sequence[Row]) -> None:
    """Print a block for each scenario: case, here, there, agreement, first difference."""
    head = ("case", "here", "there", "agreement", "first difference")
    cells = [_cells(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(head, *cells)]
    print(_line(head, widths))
    last = ""
    for row, line in zip(rows, cells):
        if row.scenario != last:
            print(f"\n{visible_text(row.scenario)}")
            last = row.scenario
        print(_line(line, widths))


def _cells(row: Row) -> tuple[str, ...]:
    shown = row.case if row.device == "cpu" else f"{row.case} ({row.device})"
    word = row.agreement.word if row.compared else "not compared"
    why = row.agreement.first or ("" if row.compared and row.agreement.rank <= AGREES else row.agreement.rule)
    return (
        textwrap.shorten(visible_text(shown), CASE),
        visible_text(row.here),
        visible_text(row.there),
        word,
        visible_text(why),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths)).rstrip()


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    counts = {word: sum(row.compared and row.agreement.word == word for row in rows) for word in RANKS.values()}
    return {**counts, "not compared": sum(not row.compared for row in rows)}


def _summary(rows: Sequence[Row]) -> str:
    shown = ", ".join(f"{count} {word}" for word, count in _counts(rows).items() if count)
    return f"{len(rows)} cases: {shown or 'none'}"


def _as_json(rows: Sequence[Row], other: Mapping[str, Any], evidence: Path | None, status: int) -> dict[str, Any]:
    cases = [
        {
            "scenario": row.scenario,
            "case": row.case,
            "device": row.device,
            "here": row.here,
            "there": row.there,
            "compared": row.compared,
            "rank": row.agreement.rank,
            "agreement": row.agreement.word,
            "rule": row.agreement.rule,
            "first difference": row.agreement.first,
        }
        for row in rows
    ]
    facts = {name: {"here": here, "there": there} for name, (here, there) in other.items()}
    return {
        "cases": cases,
        "counts": _counts(rows),
        "other facts": facts,
        "evidence": None if evidence is None else str(evidence),
        "exit status": status,
    }


_SHOWN = ("torch", "cpu", "gpu", "system", "python", "variables")
"""Parts of the machine facts whose differences are printed."""


def _differing_facts(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the one-line facts that differ: name -> value here and value at home."""
    here, there = (dict(_flatten_facts({name: facts[name] for name in _SHOWN})) for facts in (ours, theirs))
    names = sorted({*here, *there})
    return {
        name: (here.get(name, "not set"), there.get(name, "not set"))
        for name in names
        if here.get(name) != there.get(name) and "\n" not in here.get(name, "") + there.get(name, "")
    }


def _flatten_facts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from _flatten_facts(inside, f"{name}.{key}" if name else key)
    else:
        yield name, str(value)


# The evidence file.


def _write_evidence(records: Sequence[Record], fetch: Any, output: Path, hidden: Optional[NameHider]) -> Path:
    """Write the records, anonymized if `hidden` is given, as a new bundle and return its path."""
    added: dict[str, bytes] = {}
    if hidden is not None:
        records = [anonymize_record(record, fetch, added, hidden) for record in records]
    host = "anonymous" if hidden is not None else re.sub(r"[^\w.-]", "_", platform.node() or "host")
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    path, number = output / f"evidence-{host}-{date}.zip", 2
    while path.exists():
        path, number = output / f"evidence-{host}-{date}-{number}.zip", number + 1

    def content(name: str) -> Optional[bytes]:
        return added.get(name) or fetch(name)

    texts = [record.text() for record in records]
    writer.write(path, {**writer.members(texts, content), **_sweep_members(records, content)})
    left = (
        [] if hidden is None else hidden.remaining_names([*texts, *(text.decode("utf-8") for text in added.values())])
    )
    if left:
        _say(
            f"--anonymous has left {', '.join(map(repr, left))}, which names this host or user, where it may be a word "
            f"of what is compared: look at {path} before you send it"
        )
    return path


def _sweep_members(records: Sequence[Record], fetch: Any) -> dict[str, bytes]:
    """Return the bundle members that make the records one sweep. Empty if no process left this machine's facts."""
    seen = next((record.observation for record in records if record.observation is not None), None)
    if seen is None:
        return {}
    identity = machine_identity(parse((fetch(seen.machine) or b"{}").decode("utf-8")))
    began = min(_parse_moment(record.ending.started_at) for record in records)
    # Earlier runs cannot be counted here, and two sweeps with the same number would be taken for one.
    number = int((began - _FIRST).total_seconds()) + 1
    plan = plan_text([record.spec for record in records])
    links = {record.spec.digest(): digest(record.text()) for record in records}
    return writer.sweep_members(plan, identity, number, began.strftime(MOMENT), links)


def _parse_moment(text: str) -> datetime.datetime:
    return datetime.datetime.strptime(text, MOMENT).replace(tzinfo=datetime.timezone.utc)


_FIRST = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
"""The number of a sweep is its start in seconds since this moment: a 32-bit integer holds 68 years of them."""

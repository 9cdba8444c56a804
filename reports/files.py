"""Reports as files: written for a sweep, and kept with their records where they are meant to stay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

from experiments.record import Replay, parse, replays
from experiments.verdict import Ruling
from reports.claims import advise, decide
from reports.compare import compare
from reports.markdown import render
from reports.rulings import Claim, gather
from store.archive import Archive, ArchiveError
from store.figures import draw
from store.publisher import key


class ReportError(Exception):
    """There is nothing to report on. The message says what to do."""


@dataclass(frozen=True)
class Report:
    """A report and the images that it shows."""

    text: str
    images: Mapping[str, bytes]
    """By file name, to lie beside the text."""


def write(archive: Archive, sweep: str, folder: Path, stem: str = "") -> Path:
    """Write the report on a sweep into `folder`, as `stem` or under the sweep's name, with its images beside it.
    Gives the path of the text. Same records, same bytes.
    """
    stem = stem or sweep
    made = report(archive, sweep, stem)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in made.images.items():
        _replace(folder / name, content)
    _replace(folder / f"{stem}.md", made.text.encode("utf-8"))
    return folder / f"{stem}.md"


def _replace(path: Path, content: bytes) -> None:
    """All of it or nothing, as nobody reads half a report."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_bytes(content)
    beside.replace(path)


def report(archive: Archive, sweep: str, stem: str) -> Report:
    """The report on a sweep; its images are named after `stem`."""
    made = replays(archive.records(sweep=sweep))
    if not made:
        raise ReportError(f"sweep {sweep} has no records yet; run it with `make run-all`")
    machines = facts(archive, made)
    comparison = compare(made, archive.fetch, machines, titles(archive, made))
    names = {one.series.name: f"{stem}-{key(one.series.name)}.png" for one in comparison.series}
    evidence = gather(made, archive.fetch, machines)
    text = render(sweep, made, comparison, decide(evidence), advise(evidence), names)
    return Report(text, {names[one.series.name]: draw(one) for one in comparison.series})


def rulings(archive: Archive, sweep: str | None) -> list[tuple[Claim, Ruling]]:
    """Every claim decided from one sweep, or from all records if none is given."""
    made = replays(archive.records(sweep=sweep)) if sweep else _every(archive)
    return decide(gather(made, archive.fetch, facts(archive, made)))


def _every(archive: Archive) -> list[Replay]:
    """The replays of every sweep; those of one question on one machine stay apart."""
    return [replay for sweep in archive.sweeps() for replay in replays(archive.records(sweep=sweep.id))]


def latest(archive: Archive) -> str:
    """The sweep that was begun last."""
    found = archive.latest_sweep()
    if found is None:
        raise ReportError("the archive has no sweep yet; run one with `make run-all`")
    return found


def facts(archive: Archive, made: Sequence[Replay]) -> dict[str, Any]:
    """The machine documents of the replays, by digest."""
    names = {record.observation.machine for replay in made for record in replay.records.values() if record.observation}
    found: Mapping[str, str | None] = {name: archive.document(name) for name in sorted(names)}
    missing = [name for name, content in found.items() if content is None]
    if missing:
        raise ArchiveError(f"machine document {missing[0]} is missing; `python -m store check` names what else")
    return {name: parse(content) for name, content in found.items() if content is not None}


def titles(archive: Archive, made: Sequence[Replay]) -> dict[str, str]:
    """First line of each scenario file's docstring, from the source that was run."""
    return {replay.spec.question.scenario: _title(archive.document(replay.spec.question.source)) for replay in made}


def _title(source: str | None) -> str:
    head = (source or "").partition('"""')[2].partition('"""')[0].strip()
    return head.partition("\n")[0].replace("``", "")

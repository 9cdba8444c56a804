"""Reports as files: written for a sweep, and kept with their records where they are meant to stay.

A sweep is compared with other settings and computers: what else the archive holds of the questions it asked, and the
published bundles, which are read where they lie.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from experiments.causes import is_counter_replay, plans_counter_replay
from experiments.record import Record, RecordError, Replay, canonical, digest, parse, replays
from reports import across_page
from reports.across import BIN_NAMES, Across, Distances, Origin, across, as_json
from reports.claims import Decided, advise, decide, decide_all
from reports.compare import compare
from reports.findings import gather
from reports.markdown import render
from reports.pieces import compared
from reports.reported import REPORTED
from store import bundle
from store.archive import Archive, ArchiveError
from store.figures import draw, draw_shares
from store.publisher import key

LEFT_OUT = "Left out are cases without gradients on both sides; counted of them are those that differ beyond rounding."
PUBLISHED = Path(__file__).resolve().parents[1] / "store" / "published"


class ReportError(Exception):
    """There is nothing to report on. The message says what to do."""


@dataclass(frozen=True)
class Report:
    """A report and what lies beside it."""

    text: str
    files: Mapping[str, bytes]
    """Images, and the agreement of every pair as JSON, by file name."""
    across: Across | None
    """The sweep beside other settings. None if it was not compared, or has run nothing."""


def write(archive: Archive, sweep: str, folder: Path, stem: str = "", published: Path | None = PUBLISHED) -> Path:
    """Write the report on a sweep into `folder`, as `stem` or under the sweep's name, with its images beside it.
    Gives the path of the text. Same records, same bytes.
    """
    stem = stem or sweep
    return keep(report(archive, sweep, stem, published), folder, stem)


def keep(made: Report, folder: Path, stem: str) -> Path:
    """Put a report and what lies beside it into `folder`; gives the path of the text."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in made.files.items():
        replace(folder / name, content)
    replace(folder / f"{stem}.md", made.text.encode("utf-8"))
    return folder / f"{stem}.md"


def replace(path: Path, content: bytes) -> None:
    """All of it or nothing, as nobody reads half a report."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_bytes(content)
    beside.replace(path)


def report(archive: Archive, sweep: str, stem: str, published: Path | None = PUBLISHED) -> Report:
    """The report on a sweep; its images are named after `stem`. With `published` None it stands alone: no other
    setting is looked at.

    Raises ReportError if there is nothing to report on, ArchiveError if a published bundle is not as it must be.
    """
    made = replays(archive.records(sweep=sweep))
    if not made:
        raise ReportError(f"sweep {sweep} has no records yet; run it with `make run-all`")
    machines = facts(archive, made)
    comparison = compare(made, archive.fetch, machines, titles(archive, made))
    names = {one.series.name: f"{stem}-{key(one.series.name)}.png" for one in comparison.series}
    found = None if published is None else beside_others(archive, sweep, made, published)
    evidence = gather(made, archive.fetch, machines, {one.name: one.replays for one in found.others} if found else {})
    shown = found is not None and any(one.elements for one in found.distances)
    image = f"{stem}-machines.png" if shown else ""
    others = [] if found is None else across_page.page(found, image)
    elsewhere = {} if found is None or published is None else records_elsewhere(found, published)
    text = render(sweep, made, comparison, decide(evidence), advise(evidence), names, others, elsewhere)
    about = {"Report": digest(text)}
    files = {names[one.series.name]: draw(one, about) for one in comparison.series}
    if found is not None:
        files[f"{stem}.agreement.json"] = as_json(found).encode("utf-8")
        if image:
            files[image] = chart(found.distances, about)
    return Report(text, files, found)


def chart(distances: Sequence[Distances], about: Mapping[str, str]) -> bytes:
    """How far gradients elsewhere are from those of the report, as a PNG image: for each setting with which anything
    was compared, of how many cases that speaks and how many it leaves out.
    """
    rows = [
        (f"{one.setting}\n{compared(one.cases, one.left_out, one.differing_left_out)}", one.counts)
        for one in distances
        if one.cases or one.left_out
    ]
    title = "Gradients against those of this report, by ULP"
    return draw_shares(title, rows, BIN_NAMES, "gradient elements", LEFT_OUT, about)


# Other settings.


def beside_others(archive: Archive, sweep: str, made: Sequence[Replay], published: Path) -> Across | None:
    """The sweep beside the rest of the archive and the published bundles. None if it has run nothing."""
    own = Origin("here", tuple(made), facts(archive, made))
    planned = {
        spec.question.case_digest()
        for spec in archive.sweep_plan(sweep)
        if spec.question.dtype == spec.question.input_dtype
    }
    with contextlib.ExitStack() as open_:
        about = {replay.spec.question.source for replay in made}
        names = {replay.spec.question.scenario for replay in made}
        bundles = [
            (path, open_.enter_context(bundle.read(path, about | names))) for path in sorted(published.glob("*.zip"))
        ]
        fetches = [archive.fetch, *(one.fetch for _, one in bundles)]
        taken = {digest(record.text()) for replay in made for record in replay.records.values()}
        other = [(path, one) for path, one in bundles if not set(one.digests) <= taken]  # not this very sweep
        published_too = {name for _, one in bundles for name in one.digests}
        origins = [_rest(archive, own, published_too), *(_bundled(path, one) for path, one in other)]
        some = [one for one in origins if one.replays]
        return across(own, some, _any(fetches), REPORTED, len(planned), counter_replays(archive, sweep))


def counter_replays(archive: Archive, sweep: str) -> list[Origin]:
    """The sweeps in the archive that explain others, oldest first: of the computer of `sweep`, but not that one. What
    a bundle or a loose record calls itself does not count: a counter-replay is a sweep.
    """
    listed = archive.sweeps()
    computers = {one.machine for one in listed if one.id == sweep}
    found = [
        (one.id, replays(archive.records(sweep=one.id)))
        for one in listed
        if one.id != sweep and one.machine in computers and plans_counter_replay(archive.sweep_plan(one.id))
    ]
    return [Origin(name, tuple(made), facts(archive, made)) for name, made in found]


def records_elsewhere(found: Across, published: Path) -> dict[str, list[str]]:
    """Digests of the records that a sweep is set beside, by where they are: all of a bundle, what was looked at of
    the archive.
    """
    kept: dict[str, list[str]] = {}
    for one in found.others:
        if (published / one.origin).is_file():
            kept[one.origin] = _in_bundle(published / one.origin)
        else:
            listed = [digest(record.text()) for replay in one.replays for record in replay.records.values()]
            kept.setdefault(one.origin, []).extend(listed)
    return {name: sorted(set(listed)) for name, listed in sorted(kept.items())}


def _in_bundle(path: Path) -> list[str]:
    members = parse(bundle.manifest_and_signature(path)[0].decode("utf-8"))["members"]
    return [one["digest"] for name, one in members.items() if name.startswith("records/")]


def _rest(archive: Archive, own: Origin, published: set[str]) -> Origin:
    """What else the archive has of the questions that the sweep asked, but for what is published and was taken in.
    A capsule's evidence is in no sweep.
    """
    asked = {replay.spec.question.case_digest() for replay in own.replays}
    taken = {digest(record.text()) for replay in own.replays for record in replay.records.values()} | published
    cells = archive.cells()
    wanted = [cell.digest for cell in cells if cell.case_digest in asked and cell.digest not in taken]
    found = replays_by_machine(archive.records(digests=wanted) if wanted else [])
    return Origin("archive", found, _told(found, archive.fetch))


def replays_by_machine(records: Sequence[Record]) -> tuple[Replay, ...]:
    """Replays of records that may be of several machines: those of one setting on two machines stay apart.

    A record without facts goes with the machine that has most records of its environment.
    """
    grouped: dict[str, list[Record]] = {}
    mute: list[Record] = []
    for record in records:
        if record.observation is None:
            mute.append(record)
        else:
            grouped.setdefault(record.observation.machine, []).append(record)
    for record in mute:
        environment = record.spec.setting.environment
        fitting = [many for many in grouped.values() if many[0].spec.setting.environment == environment]
        if fitting:
            max(fitting, key=len).append(record)
    return tuple(replay for _, many in sorted(grouped.items()) for replay in replays(many))


def _bundled(path: Path, found: bundle.Bundle) -> Origin:
    made = replays_by_machine(found.records)
    return Origin(path.name, made, _told(made, found.fetch))


def _told(made: Sequence[Replay], fetch: Callable[[str], bytes | None]) -> dict[str, Mapping[str, Any]]:
    """Machine documents by digest. What somebody else wrote and is none says nothing of a machine."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in {replay.machine for replay in made if replay.machine}:
        try:
            document = parse((fetch(name) or b"null").decode("utf-8"))
            canonical(document)  # refuses what is nested too deep
        except (RecordError, UnicodeDecodeError):
            document = {}
        found[name] = document if isinstance(document, dict) else {}
    return found


def _any(fetches: Sequence[Callable[[str], bytes | None]]) -> Callable[[str], bytes | None]:
    def fetch(name: str) -> bytes | None:
        return next((content for one in fetches for content in [one(name)] if content is not None), None)

    return fetch


def rulings(archive: Archive, sweep: str | None) -> Decided:
    """Every claim and all advice, decided from one sweep, or from all records if none is given."""
    made = replays(archive.records(sweep=sweep)) if sweep else _every(archive)
    return decide_all(gather(made, archive.fetch, facts(archive, made)))


def _every(archive: Archive) -> list[Replay]:
    """The replays of every sweep; those of one question on one machine stay apart."""
    return [replay for sweep in archive.sweeps() for replay in replays(archive.records(sweep=sweep.id))]


def latest(archive: Archive) -> str:
    """The sweep that was begun last and is no counter-replay."""
    for sweep in reversed(archive.sweeps()):
        if not is_counter_replay(archive.sweep_plan(sweep.id)[0].setting.environment):
            return sweep.id
    raise ReportError("the archive has no sweep yet; run one with `make run-all`")


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

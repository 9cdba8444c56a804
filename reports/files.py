"""Reports as files: written for a sweep, and kept with their records where they are meant to stay.

A sweep is in the archive or in a bundle. It is compared with other settings and computers: what else is there of the
questions it asked, the published bundles, and others that are named; bundles are read where they lie.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

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
from reports.sources import BundleSource, Source
from store import bundle
from store.archive import Archive, ArchiveError, SweepProgress
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


def write(archive: Source, sweep: str, folder: Path, stem: str = "", published: Path | None = PUBLISHED) -> Path:
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


def report(
    archive: Source, sweep: str, stem: str, published: Path | None = PUBLISHED, beside: Sequence[Path] = ()
) -> Report:
    """The report on a sweep; its images are named after `stem`. `beside` are bundles that it is compared with as
    well. With `published` None and nothing beside it, it stands alone: no other setting is looked at.

    Raises ReportError if there is nothing to report on, ArchiveError if a bundle is not as it must be.
    """
    made = replays(archive.records(sweep=sweep))
    if not made:
        raise ReportError(f"sweep {sweep} has no records yet; run it with `make run-all`")
    machines = facts(archive, made)
    comparison = compare(made, archive.fetch, machines, titles(archive, made))
    names = {one.series.name: f"{stem}-{key(one.series.name)}.png" for one in comparison.series}
    alone = published is None and not beside
    found = None if alone else beside_others(archive, sweep, made, published, beside)
    evidence = gather(made, archive.fetch, machines, {one.name: one.replays for one in found.others} if found else {})
    shown = found is not None and any(one.elements for one in found.distances)
    image = f"{stem}-machines.png" if shown else ""
    others = [] if found is None else across_page.page(found, image)
    elsewhere = {} if found is None else records_elsewhere(found, _others(archive, published, beside))
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


def beside_others(
    archive: Source, sweep: str, made: Sequence[Replay], published: Path | None, beside: Sequence[Path] = ()
) -> Across | None:
    """The sweep beside the rest of where it is, the published bundles and those named. None if it has run nothing."""
    own = Origin("here", tuple(made), facts(archive, made))
    planned = {
        spec.question.case_digest()
        for spec in archive.sweep_plan(sweep)
        if spec.question.dtype == spec.question.input_dtype
    }
    with contextlib.ExitStack() as open_:
        about = {name for replay in made for name in (replay.spec.question.source, replay.spec.question.scenario)}
        bundles = [
            (path, open_.enter_context(bundle.read(path, about))) for path in _others(archive, published, beside)
        ]
        fetches = [archive.fetch, *(one.fetch for _, one in bundles)]
        taken = _taken(archive, made)
        other = [(path, one) for path, one in bundles if not set(one.digests) <= taken]  # not this very sweep
        published_too = {name for _, one in bundles for name in one.digests}
        origins = [_rest(archive, own, published_too), *(_bundled(path, one) for path, one in other)]
        some = [one for one in origins if one.replays]
        return across(own, some, _any(fetches), REPORTED, len(planned), counter_replays(archive, sweep))


def counter_replays(archive: Source, sweep: str) -> list[Origin]:
    """The sweeps in the archive that explain others, oldest first: of the computer of `sweep`, but not that one. What
    a bundle or a loose record calls itself does not count: a counter-replay is a sweep that was run here.
    """
    if not isinstance(archive, Archive):
        return []
    listed = archive.sweeps()
    computers = {one.machine for one in listed if one.id == sweep}
    found = [
        (one.id, replays(archive.records(sweep=one.id)))
        for one in listed
        if one.id != sweep
        and one.origin is None
        and one.machine in computers
        and plans_counter_replay(archive.sweep_plan(one.id))
    ]
    return [Origin(name, tuple(made), facts(archive, made)) for name, made in found]


def records_elsewhere(found: Across, paths: Iterable[Path]) -> dict[str, list[str]]:
    """Digests of the records that a sweep is set beside, by where they are: all of a bundle, what was looked at of
    the archive. `paths` are the bundles.
    """
    bundles = {path.name: path for path in paths}
    kept: dict[str, list[str]] = {}
    for one in found.others:
        if one.origin in bundles:
            kept[one.origin] = _in_bundle(bundles[one.origin])
        else:
            listed = [digest(record.text()) for replay in one.replays for record in replay.records.values()]
            kept.setdefault(one.origin, []).extend(listed)
    return {name: sorted(set(listed)) for name, listed in sorted(kept.items())}


def _in_bundle(path: Path) -> list[str]:
    members = parse(bundle.manifest_and_signature(path)[0].decode("utf-8"))["members"]
    return [one["digest"] for name, one in members.items() if name.startswith("records/")]


def _others(archive: Source, published: Path | None, beside: Sequence[Path]) -> Iterator[Path]:
    """The bundles to be compared with, each file once, and never the one that the sweep is of."""
    seen = {archive.path.resolve()} if isinstance(archive, BundleSource) else set()
    for path in [*([] if published is None else sorted(published.glob("*.zip"))), *beside]:
        if path.resolve() not in seen:
            seen.add(path.resolve())
            yield path


def _taken(archive: Source, made: Sequence[Replay]) -> set[str]:
    """Digests of the sweep's own records, and of all that its bundle has."""
    own = {digest(record.text()) for replay in made for record in replay.records.values()}
    return own | archive.digests if isinstance(archive, BundleSource) else own


def _rest(archive: Source, own: Origin, published: set[str]) -> Origin:
    """What else is there of the questions that the sweep asked, but for what is published and was taken in.
    A capsule's evidence may be in no sweep.
    """
    asked = {replay.spec.question.case_digest() for replay in own.replays}
    taken = {digest(record.text()) for replay in own.replays for record in replay.records.values()} | published
    found = replays_by_machine(archive.about(asked, taken))
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


def rulings(archive: Source, sweep: str | None) -> Decided:
    """Every claim and all advice, decided from one sweep, or from all records if none is given."""
    made = replays(archive.records(sweep=sweep)) if sweep else _every(archive)
    return decide_all(gather(made, archive.fetch, facts(archive, made)))


def _every(archive: Source) -> list[Replay]:
    """The replays of every sweep; those of one question on one machine stay apart."""
    return [replay for sweep in archive.sweeps() for replay in replays(archive.records(sweep=sweep.id))]


def latest(archive: Archive) -> str:
    """The sweep that was begun last of those that were run here and are no counter-replays."""
    own = [one.id for one in _no_flips(archive) if one.origin is None]
    if not own:
        raise ReportError(
            "the archive has no sweep yet that was run here; run one with `make run-all`, or report on a bundle with "
            "`python -m reports FILE.zip`"
        )
    return own[-1]


def latest_of_all(archive: Archive) -> SweepProgress:
    """As `latest`; if none was run here, the one that was added last. Raises ReportError if there is none at all."""
    found = _no_flips(archive)
    if any(one.origin is None for one in found) or not found:
        return archive.sweep(latest(archive))
    return max(found, key=lambda one: (one.origin.added_at if one.origin else "", one.started_at, one.id))


def _no_flips(archive: Archive) -> list[SweepProgress]:
    return [one for one in archive.sweeps() if not is_counter_replay(archive.sweep_plan(one.id)[0].setting.environment)]


def facts(archive: Source, made: Sequence[Replay]) -> dict[str, Any]:
    """The machine documents of the replays, by digest."""
    names = {record.observation.machine for replay in made for record in replay.records.values() if record.observation}
    found: Mapping[str, str | None] = {name: archive.document(name) for name in sorted(names)}
    missing = [name for name, content in found.items() if content is None]
    if missing:
        raise ArchiveError(f"machine document {missing[0]} is missing; `python -m store check` names what else")
    return {name: _machine(name, content) for name, content in found.items() if content is not None}


def _machine(name: str, content: str) -> dict[str, Any]:
    """Facts of a machine, which somebody else may have written. Raises ArchiveError if no report can rest on them."""
    try:
        found = parse(content)
        canonical(found)  # refuses what is nested too deep
    except RecordError as error:
        raise ArchiveError(f"machine document {name} cannot be read: {error}") from None
    torch = found.get("torch") if isinstance(found, dict) else None
    if not isinstance(torch, dict) or not isinstance(torch.get("version"), str):
        raise ArchiveError(f"machine document {name} names no version of torch, so no report can rest on it")
    made: dict[str, Any] = found
    return made


def titles(archive: Source, made: Sequence[Replay]) -> dict[str, str]:
    """First line of each scenario file's docstring, from the source that was run."""
    return {replay.spec.question.scenario: _title(archive.document(replay.spec.question.source)) for replay in made}


def _title(source: str | None) -> str:
    head = (source or "").partition('"""')[2].partition('"""')[0].strip()
    return head.partition("\n")[0].replace("``", "")

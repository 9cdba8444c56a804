"""Reports as files: written for a sweep, and kept with their records where they are meant to stay.

A sweep is in the archive or in a bundle. It is compared with other settings and computers: what else is there of the
questions it asked, the published bundles, and others that are named; bundles are read where they lie.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, Sequence

from experiments.analysis.causes import is_counter_replay, plans_counter_replay
from experiments.core.canonical_json import RecordError, canonical, digest, parse
from experiments.core.record import Record
from experiments.core.replay import Replay, replays
from experiments.core.text import key
from reports.ci import github_summary, junit
from reports.claims.findings import gather
from reports.claims.published_outcomes import REPORTED
from reports.claims.registry import Decided, decide_all
from reports.comparison import compare
from reports.figures import draw, draw_shares
from reports.markdown import settings
from reports.markdown.elements import compared
from reports.markdown.sweep import render
from reports.setting_comparison import BIN_NAMES, CANNOT_BE, Across, Distances, Failed, Origin, across, as_json, why_not
from reports.sources import BundleSource, Source
from store import bundles as bundles_module
from store.archive import Archive, ArchiveError, SweepProgress
from store.archive import Origin as Added
from store.exclusions import WHY
from store.origins import quoted

ADDED = "archive: "
"""How the origin begins of what the archive has and was not run here; the file follows from which it was added."""
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
    """Put a report and what lies beside it into `folder`; gives the path of the text. Raises OSError, whose message
    names the file, if it cannot be written.
    """
    for name, content in made.files.items():
        replace(folder / name, content)
    replace(folder / f"{stem}.md", made.text.encode("utf-8"))
    return folder / f"{stem}.md"


def replace(path: Path, content: bytes) -> None:
    """All of it or nothing, as nobody reads half a report. Raises OSError, whose message names the file."""
    beside = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        where = f": {error.filename}" if error.filename and Path(error.filename) not in (path, beside) else ""
        raise OSError(f"{path} cannot be written: {error.strerror or error}{where}") from error
    finally:
        with contextlib.suppress(OSError):  # as of a folder that may not be looked into
            beside.unlink(missing_ok=True)


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
    decided, found = _decided(made, archive, machines, found)
    shown = found is not None and any(one.elements for one in found.distances)
    image = f"{stem}-machines.png" if shown else ""
    others = [] if found is None else settings.page(found, image)
    elsewhere = {} if found is None else records_elsewhere(found, _others(archive, published, beside))
    hidden = [str(one) for one in archive.excluded().entries]
    text = render(sweep, made, comparison, decided.claims, decided.advice, names, others, elsewhere, hidden)
    about = {"Report": digest(text)}
    files = {names[one.series.name]: draw(one, about) for one in comparison.series}
    if found is not None:
        files[f"{stem}.agreement.json"] = as_json(found).encode("utf-8")
        if image:
            files[image] = chart(found.distances, about)
    return Report(text, files, found)


def _decided(
    made: Sequence[Replay], archive: Source, machines: Mapping[str, Any], found: Across | None
) -> tuple[Decided, Across | None]:
    """What is to be said about the notes: with other settings, unless what these wrote stops it, which is told then."""
    elsewhere = {one.name: one.replays for one in found.others} if found else {}
    try:
        return decide_all(gather(made, archive.fetch, machines, elsewhere)), found
    except Exception as error:
        if found is None or not elsewhere:
            raise
        told = Failed("claims, of all settings but this", why_not(error))
        return decide_all(gather(made, archive.fetch, machines)), replace_fields(found, failed=(*found.failed, told))


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
            (path, open_.enter_context(bundles_module.read(path, about)))
            for path in _others(archive, published, beside)
        ]
        fetch = _any([archive.fetch, *(one.fetch for _, one in bundles)])
        taken = _taken(archive, made)
        other = [(path, one) for path, one in bundles if not set(one.digests) <= taken]  # not this very sweep
        published_too = {name for _, one in bundles for name in one.digests}
        hidden = archive.excluded()
        files = hidden.of("file")
        shown = [(path, one) for path, one in other if not (files and _digest_of_manifest(path) in files)]
        rest, failed = _rest(archive, own, published_too)
        names = _called([path for path, _ in bundles])
        origins = [*rest, *(_bundled(names[path], one, hidden.records) for path, one in shown)]
        counter = counter_replays(archive, sweep)

        def make(some: Sequence[Origin], failed: Sequence[Failed]) -> Across | None:
            found = across(own, some, fetch, REPORTED, len(planned), counter)
            found = found and replace_fields(found, failed=(*found.failed, *failed))
            _look_at(found)
            return found

        return _contained(make, [one for one in origins if one.replays], failed)


def _look_at(found: Across | None) -> None:
    """Make everything that is shown of other settings, to see that it can be made."""
    if found is not None:
        settings.page(found, "")
        as_json(found)
        junit.document("", [], found)
        github_summary.sections("", [], found, Path())


Make = Callable[[Sequence[Origin], Sequence[Failed]], "Across | None"]


def _contained(make: Make, origins: Sequence[Origin], failed: Sequence[Failed]) -> Across | None:
    """What `make` gives of these origins, without those with which it raises: one by one, by the machine document that
    their records name. Whatever somebody else wrote, our own report stands.
    """
    try:
        return make(origins, failed)
    except Exception as error:  # noqa: BLE001 - see above
        told = why_not(error)
    failed, kept = list(failed), list[Origin]()
    for origin in origins:
        whole = set[int]()
        for machine in dict.fromkeys(replay.machine for replay in origin.replays):
            some = tuple(replay for replay in origin.replays if replay.machine == machine)
            try:
                make([replace_fields(origin, replays=some)], ())
                whole.update(map(id, some))
            except Exception as error:  # noqa: BLE001 - see above
                failed.append(Failed(f"{origin.name} (facts {machine[:12]})", why_not(error)))
        kept.append(replace_fields(origin, replays=tuple(one for one in origin.replays if id(one) in whole)))
    try:
        return make([one for one in kept if one.replays], failed)
    except Exception:  # noqa: BLE001 - each by itself can be compared, and all together cannot
        return make([], [*failed, *(Failed(one.name, told) for one in kept if one.replays)])


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
    bundles = {name: path for path, name in _called(list(paths)).items()}
    kept: dict[str, list[str]] = {}
    for one in found.others:
        if one.origin in bundles:
            kept[one.origin] = _in_bundle(bundles[one.origin])
        else:
            listed = [digest(record.text()) for replay in one.replays for record in replay.records.values()]
            kept.setdefault(one.origin, []).extend(listed)
    return {name: sorted(set(listed)) for name, listed in sorted(kept.items())}


def _called(paths: Sequence[Path]) -> dict[Path, str]:
    """How each bundle is called: files of one name are told apart by their manifests, and then by a number."""
    names, taken = dict[Path, str](), set[str]()
    for path in paths:
        alike = sum(other.name == path.name for other in paths) > 1
        name = quoted(path.name) + (f" {_digest_of_manifest(path)[:12]}" if alike else "")
        number = next(number for number in itertools.count(1) if (name, f"{name} ({number})")[number > 1] not in taken)
        names[path] = name if number == 1 else f"{name} ({number})"
        taken.add(names[path])
    return names


def _digest_of_manifest(path: Path) -> str:
    return digest(bundles_module.manifest_and_signature(path)[0])


def _in_bundle(path: Path) -> list[str]:
    members = parse(bundles_module.manifest_and_signature(path)[0].decode("utf-8"))["members"]
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


def _rest(archive: Source, own: Origin, published: set[str]) -> tuple[list[Origin], list[Failed]]:
    """What else is there of the questions that the sweep asked, but for what is published and was taken in: first what
    was run here, then, each by itself, what was added from a file; and what of it cannot be looked at. A capsule's
    evidence may be in no sweep.
    """
    asked = {replay.spec.question.case_digest() for replay in own.replays}
    taken = {digest(record.text()) for replay in own.replays for record in replay.records.values()} | published
    if isinstance(archive, Archive):
        records, failed = _about(archive, asked, taken)
    else:
        records, failed = [*archive.about(asked, taken)], []
    digests = [digest(record.text()) for record in records]
    came = archive.origins(digests)
    grouped: dict[str, list[Record]] = {"archive": []}
    for record, name in zip(records, _named([came[one] for one in digests]), strict=True):
        grouped.setdefault(name, []).append(record)
    made = {name: _as_they_came(some) for name, some in grouped.items()}
    return [Origin(name, found, _told(found, archive.fetch)) for name, found in made.items()], failed


LARGEST_COMPARED = 1 << 25
"""Characters of the records of one machine document from one origin that are looked at: seven times the largest
published sweep.
"""
LARGEST_OF_ARCHIVE = 1 << 27
"""Of all of them. What was run here comes first, then what came last."""


def _about(archive: Archive, asked: Collection[str], taken: Collection[str]) -> tuple[list[Record], list[Failed]]:
    """Records of these cases in the order in which they came, of each the latest of its machine document and origin;
    and those documents whose records cannot be read, or are too many.
    """
    cells = [one for one in archive.cells() if one.case_digest in asked and one.digest not in taken]
    came = archive.origins([one.digest for one in cells])
    latest: dict[tuple[str, str], dict[tuple[str, str, int], str]] = {}
    for one in cells:
        origin = came[one.digest]
        group = latest.setdefault((one.machine or "", "" if origin is None else origin.manifest), {})
        group[one.question_digest, one.replay_digest, one.attempt] = one.digest
    sizes = archive.sizes([name for group in latest.values() for name in group.values()])
    kept, failed, left = dict[str, Record](), list[Failed](), LARGEST_OF_ARCHIVE
    last_first = [*reversed(latest.items())]
    last_first.sort(key=lambda item: item[0][1] != "")
    for (machine, manifest), group in last_first:
        size = sum(sizes[name] for name in group.values())
        most = min(LARGEST_COMPARED, left)
        try:
            if size > most:
                raise ReportError(f"its records of these questions have {size} characters; {most} more are looked at")
            kept.update((digest(one.text()), one) for one in archive.records(digests=list(group.values())))
            left -= size
        except (ReportError, ArchiveError) as error:
            told = f"archive{f', added {manifest[:12]}' if manifest else ''} (facts {machine[:12] or 'not told'})"
            failed.append(Failed(told, f"{CANNOT_BE}: {error}"))
    return [kept[one.digest] for one in cells if one.digest in kept], failed


def _named(origins: Sequence[Added | None]) -> Iterator[str]:
    """How the origin of each record is shown: files of one name are told apart by their manifests."""
    manifests: dict[str, set[str]] = {}
    for one in origins:
        if one is not None:
            manifests.setdefault(str(one), set()).add(one.manifest)
    for one in origins:
        if one is None:
            yield "archive"
        else:
            apart = f" {one.manifest[:12]}" if len(manifests[str(one)]) > 1 else ""
            yield f"{ADDED}{one}{apart}"


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


def _as_they_came(records: Sequence[Record]) -> tuple[Replay, ...]:
    """`replays_by_machine` in the order of their last records."""
    place = {id(record): at for at, record in enumerate(records)}
    made = replays_by_machine(records)
    return tuple(sorted(made, key=lambda one: max(place[id(record)] for record in one.records.values())))


def _bundled(name: str, found: bundles_module.Bundle, hidden: frozenset[str]) -> Origin:
    """What the bundle of this name has, but for the records of these digests."""
    made = replays_by_machine([one for one, name in zip(found.records, found.digests) if name not in hidden])
    return Origin(name, made, _told(made, found.fetch))


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


def rulings(archive: Source, sweep: str) -> Decided:
    """Every claim and all advice, decided from one sweep."""
    return _rulings(archive, [sweep])


def _rulings(archive: Source, sweeps: Sequence[str]) -> Decided:
    """From several; the replays of one question on one machine stay apart, and the same records count once."""
    listed = [replay for sweep in sweeps for replay in replays(archive.records(sweep=sweep))]
    made = list(
        {tuple(sorted(digest(one.text()) for one in replay.records.values())): replay for replay in listed}.values()
    )
    return decide_all(gather(made, archive.fetch, facts(archive, made)))


def rulings_of_all(archive: Source) -> tuple[Decided, list[Failed]]:
    """Every claim and all advice, decided from every sweep that was run here, or in a bundle, and if none was run here
    from every one that was added; and the sweeps from which nothing can be decided, because of what somebody else
    wrote.
    """
    listed = archive.sweeps()
    own = [one for one in listed if not (isinstance(one, SweepProgress) and one.origin is not None)]
    every = [one.id for one in own or listed]
    try:
        return _rulings(archive, every), []
    except Exception:  # noqa: BLE001 - as in `_contained`
        able, failed = list[str](), list[Failed]()
    for name in every:
        try:
            _rulings(archive, [name])
            able.append(name)
        except Exception as error:  # noqa: BLE001 - as in `_contained`
            failed.append(Failed(name, f"nothing can be decided from it: {type(error).__name__}: {error}"[:300]))
    return _rulings(archive, able), failed


def latest(archive: Archive) -> str:
    """The sweep that was begun last of those that were run here and are no counter-replays."""
    own = [one.id for one in _no_flips(archive) if one.origin is None]
    if not own:
        refuse_if_all_is_excluded(archive)
        if any(one.origin is None for one in out_of_sight(archive)):
            raise ReportError(f"every sweep that was run here is excluded: {WHY}")
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
    return found[-1]


def out_of_sight(archive: Archive) -> list[SweepProgress]:
    """Sweeps that are excluded."""
    hidden = archive.excluded().sweeps
    return [one for one in archive.sweeps(excluded=True) if one.id in hidden] if hidden else []


def refuse_if_all_is_excluded(archive: Archive) -> None:
    """Raises ReportError if there are sweeps, and none of them is in sight."""
    if out_of_sight(archive) and not archive.sweeps():
        raise ReportError(f"every sweep in the archive is excluded: {WHY}")


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

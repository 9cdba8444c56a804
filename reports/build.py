"""Reports as files: made from a sweep, and written with everything that belongs to them.

A sweep is in the archive or in a bundle. It is compared with other settings and computers: with the other records of
its questions in the archive, with the published bundles, and with further bundles that are named. Bundles are read in
place.
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
from experiments.core.text import safe_key
from reports.ci import github_summary, junit
from reports.claims.findings import gather
from reports.claims.published_outcomes import REPORTED
from reports.claims.registry import Decided, decide_all
from reports.comparison import compare
from reports.figures import draw_series, draw_shares
from reports.markdown import settings
from reports.markdown.elements import coverage_text
from reports.markdown.sweep import render_report
from reports.setting_comparison import (
    BIN_NAMES,
    CANNOT_BE,
    Across,
    Distances,
    Failed,
    Origin,
    agreement_json,
    compare_settings,
    failure_reason,
)
from reports.sources import BundleSource, Source
from store import bundles as bundles_module
from store.archive import Archive, ArchiveError, SweepProgress
from store.archive import Origin as Added
from store.exclusions import WHY
from store.origins import quote_file_name

ADDED = "archive: "
"""Prefix of the origin of archived records that were not run here; the file that they were added from follows."""
LEFT_OUT = "Left out are cases without gradients on both sides; counted of them are those that differ beyond rounding."
PUBLISHED = Path(__file__).resolve().parents[1] / "store" / "published"


class ReportError(Exception):
    """There is nothing to report on. The message says what to do."""


@dataclass(frozen=True)
class Report:
    """A report and the files that belong to it."""

    text: str
    files: Mapping[str, bytes]
    """Images, and the agreement of every pair as JSON, by file name."""
    across: Across | None
    """The comparison with other settings. None if there was no comparison, or the sweep has run nothing."""


def write_report(archive: Source, sweep: str, folder: Path, stem: str = "", published: Path | None = PUBLISHED) -> Path:
    """Write the report on a sweep, with its images, into `folder` under the name `stem`, by default the sweep's id.

    Return the path of the text. The same records give the same bytes.
    """
    stem = stem or sweep
    return save_report(make_report(archive, sweep, stem, published), folder, stem)


def save_report(report: Report, folder: Path, stem: str) -> Path:
    """Write a report and its files into `folder` and return the path of the text.

    Raise OSError, with the name of the file in its message, if a file cannot be written.
    """
    for name, content in report.files.items():
        replace_file(folder / name, content)
    replace_file(folder / f"{stem}.md", report.text.encode("utf-8"))
    return folder / f"{stem}.md"


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically, as half a report is of no use. Raise OSError, with the file's name in its message."""
    beside = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        where = f": {error.filename}" if error.filename and Path(error.filename) not in (path, beside) else ""
        raise OSError(f"{path} cannot be written: {error.strerror or error}{where}") from error
    finally:
        with contextlib.suppress(OSError):  # the folder may be unreadable
            beside.unlink(missing_ok=True)


def make_report(
    archive: Source, sweep: str, stem: str, published: Path | None = PUBLISHED, beside: Sequence[Path] = ()
) -> Report:
    """Make the report on a sweep; its images are named after `stem`.

    The sweep is compared with the bundles in the folder `published` and with those of `beside`. With `published` None
    and no bundles in `beside`, it is not compared with any other setting.

    Raise ReportError if there is nothing to report on, ArchiveError if a bundle is invalid.
    """
    sweep_replays = replays(archive.records(sweep=sweep))
    if not sweep_replays:
        raise ReportError(f"sweep {sweep} has no records yet; run it with `make run-all`")
    machines = facts(archive, sweep_replays)
    comparison = compare(sweep_replays, archive.fetch, machines, titles(archive, sweep_replays))
    names = {one.series.name: f"{stem}-{safe_key(one.series.name)}.png" for one in comparison.series}
    alone = published is None and not beside
    found = None if alone else compare_with_others(archive, sweep, sweep_replays, published, beside)
    decided, found = _decide_claims(sweep_replays, archive, machines, found)
    has_chart = found is not None and any(one.elements for one in found.distances)
    image = f"{stem}-machines.png" if has_chart else ""
    others = [] if found is None else settings.page(found, image)
    elsewhere = (
        {} if found is None else digests_of_other_records(found, _bundles_to_compare(archive, published, beside))
    )
    hidden = [str(one) for one in archive.excluded_items().entries]
    text = render_report(
        sweep, sweep_replays, comparison, decided.claims, decided.advice, names, others, elsewhere, hidden
    )
    about = {"Report": digest(text)}
    files = {names[one.series.name]: draw_series(one, about) for one in comparison.series}
    if found is not None:
        files[f"{stem}.agreement.json"] = agreement_json(found).encode("utf-8")
        if image:
            files[image] = chart(found.distances, about)
    return Report(text, files, found)


def _decide_claims(
    sweep_replays: Sequence[Replay], archive: Source, machines: Mapping[str, Any], found: Across | None
) -> tuple[Decided, Across | None]:
    """Decide the claims of the notes, and return the comparison as well.

    If the records of the other settings raise, decide without them and note the failure in the comparison.
    """
    elsewhere = {one.name: one.replays for one in found.others} if found else {}
    try:
        return decide_all(gather(sweep_replays, archive.fetch, machines, elsewhere)), found
    except Exception as error:
        if found is None or not elsewhere:
            raise
        failure = Failed("claims, of all settings but this", failure_reason(error))
        return decide_all(gather(sweep_replays, archive.fetch, machines)), replace_fields(
            found, failed=(*found.failed, failure)
        )


def chart(distances: Sequence[Distances], about: Mapping[str, str]) -> bytes:
    """Draw how far the gradients of other settings are from those of the report, as a PNG image.

    Each compared setting is labelled with the number of cases that are shown and that are left out.
    """
    rows = [
        (f"{one.setting}\n{coverage_text(one.cases, one.left_out, one.differing_left_out)}", one.counts)
        for one in distances
        if one.cases or one.left_out
    ]
    title = "Gradients against those of this report, by ULP"
    return draw_shares(title, rows, BIN_NAMES, "gradient elements", LEFT_OUT, about)


# Other settings.


def compare_with_others(
    archive: Source, sweep: str, sweep_replays: Sequence[Replay], published: Path | None, beside: Sequence[Path] = ()
) -> Across | None:
    """Compare the sweep with the rest of its archive or bundle, the published bundles and those of `beside`.

    Return None if the sweep has run nothing.
    """
    own = Origin("here", tuple(sweep_replays), facts(archive, sweep_replays))
    planned = {
        spec.question.case_digest()
        for spec in archive.sweep_plan(sweep)
        if spec.question.dtype == spec.question.input_dtype
    }
    with contextlib.ExitStack() as open_:
        about = {
            name for replay in sweep_replays for name in (replay.spec.question.source, replay.spec.question.scenario)
        }
        bundles = [
            (path, open_.enter_context(bundles_module.read_bundle(path, about)))
            for path in _bundles_to_compare(archive, published, beside)
        ]
        fetch = _fetch_from_any([archive.fetch, *(one.fetch for _, one in bundles)])
        own_digests = _own_record_digests(archive, sweep_replays)
        other_bundles = [
            (path, one) for path, one in bundles if not set(one.digests) <= own_digests
        ]  # not the sweep itself
        published_too = {name for _, one in bundles for name in one.digests}
        hidden = archive.excluded_items()
        files = hidden.names_of_kind("file")
        shown_bundles = [(path, one) for path, one in other_bundles if not (files and _manifest_digest(path) in files)]
        rest, failed = _other_origins(archive, own, published_too)
        names = _bundle_names([path for path, _ in bundles])
        origins = [*rest, *(_bundle_origin(names[path], one, hidden.records) for path, one in shown_bundles)]
        counter = counter_replays(archive, sweep)

        def compare_origins(some: Sequence[Origin], failed: Sequence[Failed]) -> Across | None:
            found = compare_settings(own, some, fetch, REPORTED, len(planned), counter)
            found = found and replace_fields(found, failed=(*found.failed, *failed))
            _try_rendering(found)
            return found

        return _compare_usable_origins(compare_origins, [one for one in origins if one.replays], failed)


def _try_rendering(found: Across | None) -> None:
    """Render everything that shows other settings, to find out whether it raises."""
    if found is not None:
        settings.page(found, "")
        agreement_json(found)
        junit.document("", [], found)
        github_summary.sections("", [], found, Path())


Make = Callable[[Sequence[Origin], Sequence[Failed]], "Across | None"]


def _compare_usable_origins(make: Make, origins: Sequence[Origin], failed: Sequence[Failed]) -> Across | None:
    """Return what `make` returns for these origins, without the replays for which it raises.

    If it raises for all of them, each origin is tried by itself, one machine document at a time. Foreign records can
    hold anything, and must not prevent our own report.
    """
    try:
        return make(origins, failed)
    except Exception as error:  # noqa: BLE001 - see above
        reason = failure_reason(error)
    failed, kept = list(failed), list[Origin]()
    for origin in origins:
        whole = set[int]()
        for machine in dict.fromkeys(replay.machine for replay in origin.replays):
            machine_replays = tuple(replay for replay in origin.replays if replay.machine == machine)
            try:
                make([replace_fields(origin, replays=machine_replays)], ())
                whole.update(map(id, machine_replays))
            except Exception as error:  # noqa: BLE001 - see above
                failed.append(Failed(f"{origin.name} (facts {machine[:12]})", failure_reason(error)))
        kept.append(replace_fields(origin, replays=tuple(one for one in origin.replays if id(one) in whole)))
    try:
        return make([one for one in kept if one.replays], failed)
    except Exception:  # noqa: BLE001 - each by itself can be compared, and all together cannot
        return make([], [*failed, *(Failed(one.name, reason) for one in kept if one.replays)])


def counter_replays(archive: Source, sweep: str) -> list[Origin]:
    """Return the counter-replay sweeps of the archive, oldest first: those of the computer of `sweep`, except itself.

    Only a sweep that was run here is a counter-replay, whatever a bundle or a loose record calls itself.
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


def digests_of_other_records(found: Across, paths: Iterable[Path]) -> dict[str, list[str]]:
    """Return the digests of the records that a sweep was compared with, by origin.

    Of a bundle these are all its records, of the archive those that were compared. `paths` are the bundles.
    """
    bundles = {name: path for path, name in _bundle_names(list(paths)).items()}
    kept: dict[str, list[str]] = {}
    for one in found.others:
        if one.origin in bundles:
            kept[one.origin] = _record_digests_in_bundle(bundles[one.origin])
        else:
            listed = [digest(record.text()) for replay in one.replays for record in replay.records.values()]
            kept.setdefault(one.origin, []).extend(listed)
    return {name: sorted(set(listed)) for name, listed in sorted(kept.items())}


def _bundle_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Return a unique name for each bundle: files of the same name are distinguished by manifest, then by number."""
    names, taken = dict[Path, str](), set[str]()
    for path in paths:
        alike = sum(other.name == path.name for other in paths) > 1
        name = quote_file_name(path.name) + (f" {_manifest_digest(path)[:12]}" if alike else "")
        number = next(number for number in itertools.count(1) if (name, f"{name} ({number})")[number > 1] not in taken)
        names[path] = name if number == 1 else f"{name} ({number})"
        taken.add(names[path])
    return names


def _manifest_digest(path: Path) -> str:
    return digest(bundles_module.manifest_and_signature(path)[0])


def _record_digests_in_bundle(path: Path) -> list[str]:
    members = parse(bundles_module.manifest_and_signature(path)[0].decode("utf-8"))["members"]
    return [one["digest"] for name, one in members.items() if name.startswith("records/")]


def _bundles_to_compare(archive: Source, published: Path | None, beside: Sequence[Path]) -> Iterator[Path]:
    """Yield the bundles to compare with, each file once, and never the bundle that holds the sweep."""
    seen = {archive.path.resolve()} if isinstance(archive, BundleSource) else set()
    for path in [*([] if published is None else sorted(published.glob("*.zip"))), *beside]:
        if path.resolve() not in seen:
            seen.add(path.resolve())
            yield path


def _own_record_digests(archive: Source, sweep_replays: Sequence[Replay]) -> set[str]:
    """Return the digests of the sweep's own records, and of all records of its bundle."""
    own = {digest(record.text()) for replay in sweep_replays for record in replay.records.values()}
    return own | archive.digests if isinstance(archive, BundleSource) else own


def _other_origins(archive: Source, own: Origin, published: set[str]) -> tuple[list[Origin], list[Failed]]:
    """Return the other records of the sweep's questions as origins, and what of them cannot be read.

    Records that are published are left out, as they are compared already. The records that were run here come first;
    each file that records were added from is an origin of its own. A capsule's evidence may belong to no sweep.
    """
    asked = {replay.spec.question.case_digest() for replay in own.replays}
    known_digests = {digest(record.text()) for replay in own.replays for record in replay.records.values()} | published
    if isinstance(archive, Archive):
        records, failed = _read_records_of_cases(archive, asked, known_digests)
    else:
        records, failed = [*archive.records_of_cases(asked, known_digests)], []
    digests = [digest(record.text()) for record in records]
    record_origins = archive.origins(digests)
    grouped: dict[str, list[Record]] = {"archive": []}
    for record, name in zip(records, _origin_names([record_origins[one] for one in digests]), strict=True):
        grouped.setdefault(name, []).append(record)
    replays_by_origin = {name: _replays_in_arrival_order(some) for name, some in grouped.items()}
    return [
        Origin(name, found, _machine_documents(found, archive.fetch)) for name, found in replays_by_origin.items()
    ], failed


LARGEST_COMPARED = 1 << 25
"""Most characters of records that are read for one machine document of one origin: seven times the largest published
sweep.
"""
LARGEST_OF_ARCHIVE = 1 << 27
"""Most characters over all origins. Records that were run here come first, then the latest arrivals."""


def _read_records_of_cases(
    archive: Archive, asked: Collection[str], taken: Collection[str]
) -> tuple[list[Record], list[Failed]]:
    """Return the records of these cases in order of arrival, and the machine documents whose records are left out.

    Of each replay, the latest attempt for its machine document and origin is read. A document is left out if its
    records cannot be read or are too large.
    """
    cells = [one for one in archive.cells() if one.case_digest in asked and one.digest not in taken]
    cell_origins = archive.origins([one.digest for one in cells])
    latest: dict[tuple[str, str], dict[tuple[str, str, int], str]] = {}
    for one in cells:
        origin = cell_origins[one.digest]
        group = latest.setdefault((one.machine or "", "" if origin is None else origin.manifest), {})
        group[one.question_digest, one.replay_digest, one.attempt] = one.digest
    sizes = archive.sizes([name for group in latest.values() for name in group.values()])
    kept, failed, budget = dict[str, Record](), list[Failed](), LARGEST_OF_ARCHIVE
    last_first = [*reversed(latest.items())]
    last_first.sort(key=lambda item: item[0][1] != "")
    for (machine, manifest), group in last_first:
        size = sum(sizes[name] for name in group.values())
        most = min(LARGEST_COMPARED, budget)
        try:
            if size > most:
                raise ReportError(f"its records of these questions have {size} characters; {most} more are looked at")
            kept.update((digest(one.text()), one) for one in archive.records(digests=list(group.values())))
            budget -= size
        except (ReportError, ArchiveError) as error:
            label = f"archive{f', added {manifest[:12]}' if manifest else ''} (facts {machine[:12] or 'not told'})"
            failed.append(Failed(label, f"{CANNOT_BE}: {error}"))
    return [kept[one.digest] for one in cells if one.digest in kept], failed


def _origin_names(origins: Sequence[Added | None]) -> Iterator[str]:
    """Yield the name of the origin of each record; files of the same name are distinguished by their manifests."""
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
    """Group records of several machines into replays; those of one setting on two machines stay separate.

    A record without facts is assigned to the machine with the most records of its environment.
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


def _replays_in_arrival_order(records: Sequence[Record]) -> tuple[Replay, ...]:
    """Return `replays_by_machine` in the order of their last records."""
    place = {id(record): at for at, record in enumerate(records)}
    grouped = replays_by_machine(records)
    return tuple(sorted(grouped, key=lambda one: max(place[id(record)] for record in one.records.values())))


def _bundle_origin(name: str, found: bundles_module.Bundle, hidden: frozenset[str]) -> Origin:
    """Return the records of a bundle as an origin of this name, without those whose digests are hidden."""
    bundle_replays = replays_by_machine([one for one, name in zip(found.records, found.digests) if name not in hidden])
    return Origin(name, bundle_replays, _machine_documents(bundle_replays, found.fetch))


def _machine_documents(listed: Sequence[Replay], fetch: Callable[[str], bytes | None]) -> dict[str, Mapping[str, Any]]:
    """Return machine documents by digest; a document that cannot be read as one is empty."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in {replay.machine for replay in listed if replay.machine}:
        try:
            document = parse((fetch(name) or b"null").decode("utf-8"))
            canonical(document)  # raises RecordError if it is nested too deep
        except (RecordError, UnicodeDecodeError):
            document = {}
        found[name] = document if isinstance(document, dict) else {}
    return found


def _fetch_from_any(fetches: Sequence[Callable[[str], bytes | None]]) -> Callable[[str], bytes | None]:
    """Return a fetch that tries each of these in turn."""

    def fetch(name: str) -> bytes | None:
        return next((content for one in fetches for content in [one(name)] if content is not None), None)

    return fetch


def rulings(archive: Source, sweep: str) -> Decided:
    """Decide every claim and all advice from one sweep."""
    return _decide_from_sweeps(archive, [sweep])


def _decide_from_sweeps(archive: Source, sweeps: Sequence[str]) -> Decided:
    """Decide from several sweeps; replays of one question on one machine stay separate, equal records count once."""
    listed = [replay for sweep in sweeps for replay in replays(archive.records(sweep=sweep))]
    distinct = list(
        {tuple(sorted(digest(one.text()) for one in replay.records.values())): replay for replay in listed}.values()
    )
    return decide_all(gather(distinct, archive.fetch, facts(archive, distinct)))


def rulings_of_all(archive: Source) -> tuple[Decided, list[Failed]]:
    """Decide every claim and all advice from all sweeps that were run here, or from all sweeps of a bundle.

    If none was run here, decide from all sweeps that were added. Return the sweeps from which nothing can be decided
    as well: foreign records can hold anything.
    """
    listed = archive.sweeps()
    own = [one for one in listed if not (isinstance(one, SweepProgress) and one.origin is not None)]
    every = [one.id for one in own or listed]
    try:
        return _decide_from_sweeps(archive, every), []
    except Exception:  # noqa: BLE001 - as in `_compare_usable_origins`
        able, failed = list[str](), list[Failed]()
    for name in every:
        try:
            _decide_from_sweeps(archive, [name])
            able.append(name)
        except Exception as error:  # noqa: BLE001 - as in `_compare_usable_origins`
            failed.append(Failed(name, f"nothing can be decided from it: {type(error).__name__}: {error}"[:300]))
    return _decide_from_sweeps(archive, able), failed


def latest_own_sweep(archive: Archive) -> str:
    """Return the id of the latest sweep that was run here and is not a counter-replay.

    Raise ReportError if there is none.
    """
    own = [one.id for one in _sweeps_without_counter_replays(archive) if one.origin is None]
    if not own:
        refuse_if_all_are_excluded(archive)
        if any(one.origin is None for one in excluded_sweeps(archive)):
            raise ReportError(f"every sweep that was run here is excluded: {WHY}")
        raise ReportError(
            "the archive has no sweep yet that was run here; run one with `make run-all`, or report on a bundle with "
            "`python -m reports FILE.zip`"
        )
    return own[-1]


def latest_sweep(archive: Archive) -> SweepProgress:
    """Return the latest sweep that was run here, or the latest that was added if none was.

    Counter-replays do not count. Raise ReportError if there is no sweep at all.
    """
    found = _sweeps_without_counter_replays(archive)
    if any(one.origin is None for one in found) or not found:
        return archive.sweep(latest_own_sweep(archive))
    return found[-1]


def excluded_sweeps(archive: Archive) -> list[SweepProgress]:
    """Return the sweeps that are excluded."""
    hidden = archive.excluded_items().sweeps
    return [one for one in archive.sweeps(excluded=True) if one.id in hidden] if hidden else []


def refuse_if_all_are_excluded(archive: Archive) -> None:
    """Raise ReportError if there are sweeps and all of them are excluded."""
    if excluded_sweeps(archive) and not archive.sweeps():
        raise ReportError(f"every sweep in the archive is excluded: {WHY}")


def _sweeps_without_counter_replays(archive: Archive) -> list[SweepProgress]:
    return [one for one in archive.sweeps() if not is_counter_replay(archive.sweep_plan(one.id)[0].setting.environment)]


def facts(archive: Source, listed: Sequence[Replay]) -> dict[str, Any]:
    """Return the machine documents of the replays, by digest. Raise ArchiveError if one is missing or invalid."""
    names = {
        record.observation.machine for replay in listed for record in replay.records.values() if record.observation
    }
    found: Mapping[str, str | None] = {name: archive.document(name) for name in sorted(names)}
    missing = [name for name, content in found.items() if content is None]
    if missing:
        raise ArchiveError(f"machine document {missing[0]} is missing; `python -m store check` names what else")
    return {name: _parse_machine_facts(name, content) for name, content in found.items() if content is not None}


def _parse_machine_facts(name: str, content: str) -> dict[str, Any]:
    """Parse the facts of a machine. Raise ArchiveError if they are invalid: they may be foreign."""
    try:
        found = parse(content)
        canonical(found)  # raises RecordError if it is nested too deep
    except RecordError as error:
        raise ArchiveError(f"machine document {name} cannot be read: {error}") from None
    torch = found.get("torch") if isinstance(found, dict) else None
    if not isinstance(torch, dict) or not isinstance(torch.get("version"), str):
        raise ArchiveError(f"machine document {name} names no version of torch, so no report can rest on it")
    document: dict[str, Any] = found
    return document


def titles(archive: Source, listed: Sequence[Replay]) -> dict[str, str]:
    """Return the first line of each scenario file's docstring, from the source that was run, by scenario."""
    return {replay.spec.question.scenario: _title(archive.document(replay.spec.question.source)) for replay in listed}


def _title(source: str | None) -> str:
    head = (source or "").partition('"""')[2].partition('"""')[0].strip()
    return head.partition("\n")[0].replace("``", "")

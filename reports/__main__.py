"""Evidence reports from the archive, or from bundles alone.

python -m reports [write] [FILE.zip ...] [--sweep ID] [--to FOLDER] [--alone] [--junit FILE] [--github-summary]
                          [--gate [SETTING]]
python -m reports claims [FILE.zip ...] [--json] [--sweep ID | --all]
python -m reports publish [--sweep ID] [--name NAME]
"""

from __future__ import annotations

from experiments.core import streams

if __name__ == "__main__":
    streams.handle_early_interrupt("reports: stopped; nothing was begun yet")

import argparse
import contextlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Iterator, Sequence

from experiments.core.canonical_json import RecordError
from experiments.core.environment import machine_identity
from experiments.core.masking import mask_secrets
from experiments.core.replay import Replay, replays
from experiments.core.text import visible_text
from experiments.core.verdict import Verdict, contexts, judge
from reports import build, pictures
from reports.build import ReportError
from reports.ci import github_summary, junit
from reports.claims.registry import Decided, claim_rows, claims_text
from reports.setting_comparison import CANNOT, Across, Pair
from reports.sources import BundleSource, Source
from store import bundles
from store.archive import Archive, ArchiveError

ROOT = Path(__file__).resolve().parents[1]
KEPT_REPORTS = ROOT / "reports" / "evidence"
KEPT_RECORDS = ROOT / "store" / "published"
UNPUBLISHED = ("here", "archive")
"""Origins of settings that were not published."""
GATE_SHOWN = 3
"""Differing pairs that the gate prints."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given if _has_command(given) else ["write", *given])
    try:
        return int(options.run(options))
    except (ReportError, ArchiveError, RecordError, OSError) as error:
        print(f"reports: {visible_text(mask_secrets(str(error)))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"reports: stopped; {_STOPPED.get(options.run, 'nothing was changed')}", file=sys.stderr)
        return streams.INTERRUPTED


@contextlib.contextmanager
def _wrap_foreign_errors(what: str) -> Iterator[None]:
    """Turn any error raised by foreign content into a ReportError, so that it is reported in one sentence.

    Content written elsewhere can be anything, even where the report is about it.
    """
    try:
        yield
    except (ReportError, ArchiveError, RecordError, OSError):
        raise
    except Exception as error:
        raise ReportError(f"nothing can be made of {what}: {type(error).__name__}: {error}"[:500]) from error


def _has_command(given: Sequence[str]) -> bool:
    """Return whether the arguments begin with a command.

    Options and bundles alone belong to `write`. Anything else goes to argparse, which reports what was expected.
    """
    if not given or given[0].endswith(".zip"):
        return False
    return not given[0].startswith("-") or given[0] in ("-h", "--help")


def _open_archive(options: argparse.Namespace) -> Archive:
    return Archive.open(options.archive, Path(options.blobs), create=False)


def _wrap_errors_of_added_sweep(archive: Archive, sweep: str) -> contextlib.AbstractContextManager[None]:
    """Wrap errors as foreign only for a sweep that was added: an error of a sweep that was run here is our own."""
    origin = archive.sweep(sweep).origin
    return (
        contextlib.nullcontext() if origin is None else _wrap_foreign_errors(f"sweep {sweep}, added from {origin.file}")
    )


@contextlib.contextmanager
def _open_archive_sweep(options: argparse.Namespace) -> Iterator[tuple[Archive, str]]:
    """Yield the archive and the requested sweep, by default the latest. If that was not run here, stderr says so."""
    with _open_archive(options) as archive:
        if options.sweep:
            archive.refuse_excluded(options.sweep)
            yield archive, options.sweep
            return
        chosen = build.latest_sweep(archive)
        archive.refuse_excluded(chosen.id)
        if chosen.origin is not None:
            hidden = any(one.origin is None for one in build.excluded_sweeps(archive))
            ours = "every sweep that was run here is excluded" if hidden else "no sweep was run here"
            sentence = f"{ours}; taken is {chosen.id}, added from {chosen.origin.file}"
            print(f"reports: {visible_text(sentence)} at {chosen.origin.added_at[:19]}Z", file=sys.stderr)
        yield archive, chosen.id


@contextlib.contextmanager
def _open_file_sweep(path: Path, options: argparse.Namespace) -> Iterator[tuple[BundleSource, str]]:
    """Yield a bundle and the requested sweep, by default its latest."""
    with BundleSource(path) as source:
        sweep = options.sweep or source.latest_sweep()
        if not source.carries_sweeps:
            sentence = f"{path.name} carries no sweep; its {len(source.records(sweep=sweep))} records are taken as one"
            print(f"reports: {visible_text(sentence)}", file=sys.stderr)
        yield source, sweep


def _parser() -> argparse.ArgumentParser:
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--archive", default="sqlite:///outputs/archive.db", help="SQLAlchemy URL (default: %(default)s)"
    )
    where.add_argument("--blobs", default="outputs/blobs", help="folder of tensors (default: %(default)s)")
    where.add_argument("--sweep", help="id of the sweep (default: the latest that was run here)")
    parser = argparse.ArgumentParser(
        prog="python -m reports",
        description="Reports and rulings on claims, from the archive or bundles. Without COMMAND: write.",
        epilog="Exit status: 0 done, 1 something differs (write --gate), 2 could not, 130 interrupted. "
        "`python -m store list --sweeps` lists the sweeps.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_write_command(commands, where)
    claims = commands.add_parser(
        "claims", parents=[where], help="print every claim and piece of advice, its ruling, why, and its records"
    )
    claims.add_argument(
        "files", nargs="*", type=_bundle_path, metavar="FILE.zip", help="decide from each of these bundles"
    )
    claims.add_argument(
        "--json",
        action="store_true",
        help="as JSON: id, note, kind, claim, ruling, why, digests; with files, an object of them by file",
    )
    claims.add_argument("--all", action="store_true", help="decide from every sweep in the archive, or in the file")
    claims.set_defaults(run=_run_claims)
    publish = commands.add_parser("publish", parents=[where], help="keep a report and its records in the checkout")
    publish.add_argument("--name", help="name of the two files (default: what the machine is)")
    publish.set_defaults(run=_run_publish)
    return parser


WRITE_EXAMPLES = """\
examples:
  python -m reports                                     the latest sweep, beside other settings
  python -m reports --alone                             and no other setting
  python -m reports --junit outputs/junit.xml --gate    for a job that shall fail if something differs
  python -m reports --gate linux-avx2                   held against that setting alone
  python -m reports --github-summary                    in GitHub Actions
  python -m reports one.zip                             a bundle's sweep, without an archive
  python -m reports one.zip two.zip                     compared with that of another bundle as well

exit status: 0 written, 1 written and something differs (--gate only), 2 could not, 130 interrupted. Whether verdicts
are as expected does not show in it. The path of the report goes to stdout, all else to stderr.
"""


def _add_write_command(commands: Any, where: argparse.ArgumentParser) -> None:
    write = commands.add_parser(
        "write",
        parents=[where],
        help="write the report on a sweep (the default)",
        description="Write the report on a sweep of the archive or of a bundle, and what is asked for beside it.",
        epilog=WRITE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    write.add_argument(
        "files",
        nargs="*",
        type=_bundle_path,
        metavar="FILE.zip",
        help="report on this bundle instead of the archive, and compare it with the others that are named",
    )
    write.add_argument("--to", default="outputs/reports", help="folder (default: %(default)s)")
    write.add_argument("--alone", action="store_true", help="look at no other setting and computer")
    write.add_argument("--junit", type=Path, metavar="FILE", help="also write verdicts and agreement as JUnit XML")
    write.add_argument(
        "--github-summary",
        action="store_true",
        help=f"also append a summary to the file that {github_summary.VARIABLE} names",
    )
    write.add_argument(
        "--gate",
        nargs="?",
        const="",
        metavar="SETTING",
        help="exit with 1 if a case differs beyond rounding from what was published: from any setting of a published "
        "bundle, or from SETTING, by its name in the report",
    )
    write.set_defaults(run=_run_write)


def _bundle_path(name: str) -> Path:
    """Return the path of a bundle that was given as an argument."""
    if not name.endswith(".zip"):
        raise argparse.ArgumentTypeError(f"{name!r} is no bundle (FILE.zip)")
    return Path(name)


def _run_write(options: argparse.Namespace) -> int:
    page = _summary_file() if options.github_summary else None
    if options.alone and (options.gate is not None or options.files[1:]):
        wish = "--gate has nothing to hold it against" if options.gate is not None else "it is not compared with others"
        raise ReportError(f"--alone looks at no other setting, so {wish}: give one")
    if options.gate and options.gate.endswith(".zip"):
        raise ReportError("--gate takes the name of a setting; name FILE.zip before the options")
    if not options.files:
        with _open_archive_sweep(options) as (archive, sweep), _wrap_errors_of_added_sweep(archive, sweep):
            return _write_outputs(archive, sweep, sweep, page, options)
    with _wrap_foreign_errors(options.files[0].name), _open_file_sweep(options.files[0], options) as (source, sweep):
        return _write_outputs(source, sweep, source.stem, page, options)


def _write_outputs(source: Source, sweep: str, stem: str, page: Path | None, options: argparse.Namespace) -> int:
    """Write the report first: it is then available even if one of the other outputs fails."""
    report = build.make_report(source, sweep, stem, None if options.alone else build.PUBLISHED, options.files[1:])
    with _suggest_other_place("--to FOLDER"):
        path = build.save_report(report, Path(options.to), stem)
    print(visible_text(str(path)))
    if options.junit is not None or page is not None:
        judged = _judge_sweep(source, sweep)
        if options.junit is not None:
            with _suggest_other_place("--junit FILE"):
                build.replace_file(options.junit, junit.document(sweep, judged, report.across))
        if page is not None:
            _append_summary(
                page, github_summary.sections(sweep, [verdict for _, verdict in judged], report.across, path)
            )
    return 0 if options.gate is None else _gate_status(report.across, options.gate)


@contextlib.contextmanager
def _suggest_other_place(option: str) -> Iterator[None]:
    """Turn an OSError into a ReportError that suggests another place."""
    try:
        yield
    except OSError as error:
        raise ReportError(f"{error}; name another place with {option}") from error


def _judge_sweep(archive: Source, sweep: str) -> list[tuple[Replay, Verdict]]:
    sweep_replays = replays(archive.records(sweep=sweep))
    return [
        (replay, judge(replay, context))
        for replay, context in zip(sweep_replays, contexts(sweep_replays, archive.fetch))
    ]


def _summary_file() -> Path:
    """Return the file in which GitHub Actions expects the summary. Raise ReportError if the variable is not set."""
    name = os.environ.get(github_summary.VARIABLE)
    if not name:
        raise ReportError(
            f"--github-summary: {github_summary.VARIABLE} is not set. GitHub Actions sets it to the file that a "
            f"summary is appended to; elsewhere set it to a file, or leave --github-summary out"
        )
    return Path(name)


def _append_summary(page: Path, sections: Sequence[Sequence[str]]) -> None:
    omitted = github_summary.append_sections(page, sections)
    if omitted:
        print(f"reports: left out of the summary, which is full: {'; '.join(omitted)}", file=sys.stderr)


def _gate_status(found: Across | None, name: str) -> int:
    """Return 1 if a case differs beyond rounding from a published setting, or from the one of that name; else 0.

    Raise ReportError if there is no such setting, or if no case was compared with it.
    """
    pairs = [pair for pair in _published_pairs(found, name) if pair.compared and pair.agreement.rank < CANNOT]
    if not pairs:
        raise ReportError(
            f"--gate: no case was compared with {name or 'a published setting'}, so there is nothing to hold it "
            f"against: run what was published, or publish this sweep with `make publish`"
        )
    differing = [pair for pair in pairs if pair.differs]
    if not differing:
        return 0
    print(f"reports: {len(differing)} of {len(pairs)} differ from what was published, beyond rounding", file=sys.stderr)
    for pair in differing[:GATE_SHOWN]:
        print(f"  {_pair_sentence(pair)}", file=sys.stderr)
    return 1


def _published_pairs(found: Across | None, name: str) -> list[Pair]:
    published = [one.name for one in (found.others if found else ()) if _is_published(one.origin)]
    if name and name not in published:
        known = ", ".join(visible_text(one) for one in published) or "none"
        raise ReportError(
            f"--gate {name}: no published setting that has run something of this sweep is called so. Published: {known}"
        )
    return [pair for pair in (found.pairs if found else ()) if pair.setting in ([name] if name else published)]


def _is_published(origin: str) -> bool:
    return origin not in UNPUBLISHED and not origin.startswith(build.ADDED)


def _pair_sentence(pair: Pair) -> str:
    why = pair.agreement.first or pair.agreement.rule
    return visible_text(f"{pair.setting}: {pair.scenario} {pair.label}: {pair.agreement.word}: {why}")


def _run_claims(options: argparse.Namespace) -> int:
    if not options.files:
        found = _claims_of_archive(options)
        print(json.dumps(claim_rows(found), indent=2) if options.json else claims_text(found))
        return 0
    by_file = {str(path): _claims_of_file(path, options) for path in options.files}
    if options.json:
        print(json.dumps({path: claim_rows(found) for path, found in by_file.items()}, indent=2))
        return 0
    for path, found in by_file.items():
        if len(by_file) > 1:
            print(f"{visible_text(path)}:\n")
        print(claims_text(found))
    return 0


def _claims_of_archive(options: argparse.Namespace) -> Decided:
    if options.all:
        with _open_archive(options) as archive, _wrap_foreign_errors("every sweep of the archive together"):
            build.refuse_if_all_are_excluded(archive)
            return _rulings_of_all(archive)
    with _open_archive_sweep(options) as (archive, sweep), _wrap_errors_of_added_sweep(archive, sweep):
        return build.rulings(archive, sweep)


def _claims_of_file(path: Path, options: argparse.Namespace) -> Decided:
    with _wrap_foreign_errors(path.name), _open_file_sweep(path, options) as (source, sweep):
        return _rulings_of_all(source) if options.all else build.rulings(source, sweep)


def _rulings_of_all(source: Source) -> Decided:
    found, failed = build.rulings_of_all(source)
    for one in failed:
        print(f"reports: sweep {visible_text(one.name)} is left out: {visible_text(one.reason)}", file=sys.stderr)
    return found


def _run_publish(options: argparse.Namespace) -> int:
    """Write a report and its records under one name into the folders that are committed.

    For a sweep in the environment `default`, make the README's pictures as well.
    """
    with _open_archive(options) as archive:
        sweep = options.sweep or build.latest_own_sweep(archive)
        archive.refuse_excluded(sweep)
        name = options.name or _publication_name(archive, sweep)
        if not re.fullmatch(r"[\w.-]+", name):
            raise ReportError(f"--name {name!r}: use letters, digits, dots, hyphens and underscores")
        KEPT_RECORDS.mkdir(parents=True, exist_ok=True)
        records = KEPT_RECORDS / f"{name}.zip"
        bundles.export_bundle(archive, [], records, sweeps=[sweep])
        report = build.write_report(archive, sweep, KEPT_REPORTS, name)
        images = _make_pictures(report) if _is_default(archive, sweep) else []
    print("\n".join(str(path.relative_to(ROOT)) for path in (report, records, *images)))
    return 0


def _make_pictures(report: Path) -> list[Path]:
    """Make the README's pictures. If there is nothing to draw, the report stays published and stderr says why."""
    try:
        return pictures.write_pictures(report)
    except ReportError as error:
        print(f"reports: the README's pictures stay as they are: {error}", file=sys.stderr)
        return []


def _is_default(archive: Archive, sweep: str) -> bool:
    return {spec.setting.environment for spec in archive.sweep_plan(sweep)} == {"default"}


def _publication_name(archive: Archive, sweep: str) -> str:
    """Return a name made of the machine's facts that sorts well: ``linux-x86_64-avx512-torch-2.13.0-cpu-1a2b3c4d``."""
    sweep_replays = replays(archive.records(sweep=sweep))
    documents = build.facts(archive, sweep_replays)
    if not documents:
        raise ReportError(f"nothing of sweep {sweep} has run, so there is nothing to publish")
    machine: Any = next(iter(documents.values()))
    kind = "cuda" if machine["gpu"] else "cpu"
    version = str(machine["torch"]["version"]).partition("+")[0]
    parts = (machine["system"]["name"], machine["cpu"]["architecture"], machine["cpu"]["capability"], "torch", version)
    environment = sweep_replays[0].spec.setting.environment
    named = [] if environment == "default" else [re.sub(r"[^\w.-]", "_", environment)]
    return "-".join([*parts, kind, machine_identity(machine)[:8], *named]).lower().replace(" ", "_")


_KEPT = "each file is the old one or the new one, and none is there in part; the same command writes them all"
_STOPPED = {_run_write: _KEPT, _run_publish: _KEPT}
"""What Ctrl-C leaves behind, for the commands that may have changed something."""


if __name__ == "__main__":
    sys.exit(streams.run_program("reports", main))

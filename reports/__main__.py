"""Evidence reports from the archive, or from bundles alone.

python -m reports [write] [FILE.zip ...] [--sweep ID] [--to FOLDER] [--alone] [--junit FILE] [--github-summary]
                          [--gate [SETTING]]
python -m reports claims [FILE.zip ...] [--json] [--sweep ID | --all]
python -m reports publish [--sweep ID] [--name NAME]
"""

from __future__ import annotations

from experiments.core import streams

if __name__ == "__main__":
    streams.begin("reports: stopped; nothing was begun yet")

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
from experiments.core.masking import masked
from experiments.core.replay import Replay, replays
from experiments.core.text import visible
from experiments.core.verdict import Verdict, contexts, judge
from reports import build, pictures
from reports.build import ReportError
from reports.ci import github_summary, junit
from reports.claims.registry import Decided, as_rows, as_text
from reports.setting_comparison import CANNOT, Across, Pair
from reports.sources import BundleSource, Source
from store import bundles
from store.archive import Archive, ArchiveError

ROOT = Path(__file__).resolve().parents[1]
KEPT_REPORTS = ROOT / "reports" / "evidence"
KEPT_RECORDS = ROOT / "store" / "published"
UNPUBLISHED = ("here", "archive")
"""Origins of settings that nobody has published."""
GATE_SHOWN = 3


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given if _names_a_command(given) else ["write", *given])
    try:
        return int(options.run(options))
    except (ReportError, ArchiveError, RecordError, OSError) as error:
        print(f"reports: {visible(masked(str(error)))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"reports: stopped; {_STOPPED.get(options.run, 'nothing was changed')}", file=sys.stderr)
        return streams.INTERRUPTED


@contextlib.contextmanager
def _of_somebody_else(what: str) -> Iterator[None]:
    """What a stranger wrote may be anything, also where it is what the report is about: that is a sentence, too."""
    try:
        yield
    except (ReportError, ArchiveError, RecordError, OSError):
        raise
    except Exception as error:
        raise ReportError(f"nothing can be made of {what}: {type(error).__name__}: {error}"[:500]) from error


def _names_a_command(given: Sequence[str]) -> bool:
    """Options and bundles alone are those of `write`. Anything else goes to argparse, which says what it should have
    been.
    """
    if not given or given[0].endswith(".zip"):
        return False
    return not given[0].startswith("-") or given[0] in ("-h", "--help")


def _archive(options: argparse.Namespace) -> Archive:
    return Archive.open(options.archive, Path(options.blobs), create=False)


def _whose(archive: Archive, sweep: str) -> contextlib.AbstractContextManager[None]:
    """A sweep that was run here is our own, and what fails is ours to mend."""
    origin = archive.sweep(sweep).origin
    return contextlib.nullcontext() if origin is None else _of_somebody_else(f"sweep {sweep}, added from {origin.file}")


@contextlib.contextmanager
def _sweep_of_archive(options: argparse.Namespace) -> Iterator[tuple[Archive, str]]:
    """The archive and the sweep asked for, or else the latest. If that was not run here, stderr says so."""
    with _archive(options) as archive:
        if options.sweep:
            archive.refuse_excluded(options.sweep)
            yield archive, options.sweep
            return
        chosen = build.latest_of_all(archive)
        archive.refuse_excluded(chosen.id)
        if chosen.origin is not None:
            hidden = any(one.origin is None for one in build.out_of_sight(archive))
            ours = "every sweep that was run here is excluded" if hidden else "no sweep was run here"
            told = f"{ours}; taken is {chosen.id}, added from {chosen.origin.file}"
            print(f"reports: {visible(told)} at {chosen.origin.added_at[:19]}Z", file=sys.stderr)
        yield archive, chosen.id


@contextlib.contextmanager
def _sweep_of_file(path: Path, options: argparse.Namespace) -> Iterator[tuple[BundleSource, str]]:
    """A bundle and the sweep asked for, or else its latest."""
    with BundleSource(path) as source:
        sweep = options.sweep or source.latest()
        if not source.carries_sweeps:
            told = f"{path.name} carries no sweep; its {len(source.records(sweep=sweep))} records are taken as one"
            print(f"reports: {visible(told)}", file=sys.stderr)
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
    _add_write(commands, where)
    claims = commands.add_parser(
        "claims", parents=[where], help="print every claim and piece of advice, its ruling, why, and its records"
    )
    claims.add_argument("files", nargs="*", type=_bundle, metavar="FILE.zip", help="decide from each of these bundles")
    claims.add_argument(
        "--json",
        action="store_true",
        help="as JSON: id, note, kind, claim, ruling, why, digests; with files, an object of them by file",
    )
    claims.add_argument("--all", action="store_true", help="decide from every sweep in the archive, or in the file")
    claims.set_defaults(run=_claims)
    publish = commands.add_parser("publish", parents=[where], help="keep a report and its records in the checkout")
    publish.add_argument("--name", help="name of the two files (default: what the machine is)")
    publish.set_defaults(run=_publish)
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


def _add_write(commands: Any, where: argparse.ArgumentParser) -> None:
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
        type=_bundle,
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
    write.set_defaults(run=_write)


def _bundle(name: str) -> Path:
    """A bundle's path, as an argument."""
    if not name.endswith(".zip"):
        raise argparse.ArgumentTypeError(f"{name!r} is no bundle (FILE.zip)")
    return Path(name)


def _write(options: argparse.Namespace) -> int:
    page = _summary_file() if options.github_summary else None
    if options.alone and (options.gate is not None or options.files[1:]):
        wish = "--gate has nothing to hold it against" if options.gate is not None else "it is not compared with others"
        raise ReportError(f"--alone looks at no other setting, so {wish}: give one")
    if options.gate and options.gate.endswith(".zip"):
        raise ReportError("--gate takes the name of a setting; name FILE.zip before the options")
    if not options.files:
        with _sweep_of_archive(options) as (archive, sweep), _whose(archive, sweep):
            return _written(archive, sweep, sweep, page, options)
    with _of_somebody_else(options.files[0].name), _sweep_of_file(options.files[0], options) as (source, sweep):
        return _written(source, sweep, source.stem, page, options)


def _written(source: Source, sweep: str, stem: str, page: Path | None, options: argparse.Namespace) -> int:
    """The report first: what is asked for beside it may fail, and then it is there to look at."""
    made = build.report(source, sweep, stem, None if options.alone else build.PUBLISHED, options.files[1:])
    with _elsewhere("--to FOLDER"):
        path = build.keep(made, Path(options.to), stem)
    print(visible(str(path)))
    if options.junit is not None or page is not None:
        judged = _judged(source, sweep)
        if options.junit is not None:
            with _elsewhere("--junit FILE"):
                build.replace(options.junit, junit.document(sweep, judged, made.across))
        if page is not None:
            _summarize(page, github_summary.sections(sweep, [verdict for _, verdict in judged], made.across, path))
    return 0 if options.gate is None else _gate(made.across, options.gate)


@contextlib.contextmanager
def _elsewhere(option: str) -> Iterator[None]:
    """What cannot be written may be written elsewhere."""
    try:
        yield
    except OSError as error:
        raise ReportError(f"{error}; name another place with {option}") from error


def _judged(archive: Source, sweep: str) -> list[tuple[Replay, Verdict]]:
    made = replays(archive.records(sweep=sweep))
    return [(replay, judge(replay, context)) for replay, context in zip(made, contexts(made, archive.fetch))]


def _summary_file() -> Path:
    """Where GitHub Actions wants the summary. Raises ReportError if it does not say."""
    name = os.environ.get(github_summary.VARIABLE)
    if not name:
        raise ReportError(
            f"--github-summary: {github_summary.VARIABLE} is not set. GitHub Actions sets it to the file that a "
            f"summary is appended to; elsewhere set it to a file, or leave --github-summary out"
        )
    return Path(name)


def _summarize(page: Path, sections: Sequence[Sequence[str]]) -> None:
    left = github_summary.append(page, sections)
    if left:
        print(f"reports: left out of the summary, which is full: {'; '.join(left)}", file=sys.stderr)


def _gate(found: Across | None, name: str) -> int:
    """1 if a case differs beyond rounding from a published setting, or from the one of that name; else 0. Raises
    ReportError if there is no such setting, or no case was compared with it.
    """
    pairs = [pair for pair in _held_against(found, name) if pair.compared and pair.agreement.rank < CANNOT]
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
        print(f"  {_said(pair)}", file=sys.stderr)
    return 1


def _held_against(found: Across | None, name: str) -> list[Pair]:
    published = [one.name for one in (found.others if found else ()) if _is_published(one.origin)]
    if name and name not in published:
        known = ", ".join(visible(one) for one in published) or "none"
        raise ReportError(
            f"--gate {name}: no published setting that has run something of this sweep is called so. Published: {known}"
        )
    return [pair for pair in (found.pairs if found else ()) if pair.setting in ([name] if name else published)]


def _is_published(origin: str) -> bool:
    return origin not in UNPUBLISHED and not origin.startswith(build.ADDED)


def _said(pair: Pair) -> str:
    why = pair.agreement.first or pair.agreement.rule
    return visible(f"{pair.setting}: {pair.scenario} {pair.label}: {pair.agreement.word}: {why}")


def _claims(options: argparse.Namespace) -> int:
    if not options.files:
        found = _claims_of_archive(options)
        print(json.dumps(as_rows(found), indent=2) if options.json else as_text(found))
        return 0
    by_file = {str(path): _claims_of_file(path, options) for path in options.files}
    if options.json:
        print(json.dumps({path: as_rows(found) for path, found in by_file.items()}, indent=2))
        return 0
    for path, found in by_file.items():
        if len(by_file) > 1:
            print(f"{visible(path)}:\n")
        print(as_text(found))
    return 0


def _claims_of_archive(options: argparse.Namespace) -> Decided:
    if options.all:
        with _archive(options) as archive, _of_somebody_else("every sweep of the archive together"):
            build.refuse_if_all_is_excluded(archive)
            return _rulings_of_all(archive)
    with _sweep_of_archive(options) as (archive, sweep), _whose(archive, sweep):
        return build.rulings(archive, sweep)


def _claims_of_file(path: Path, options: argparse.Namespace) -> Decided:
    with _of_somebody_else(path.name), _sweep_of_file(path, options) as (source, sweep):
        return _rulings_of_all(source) if options.all else build.rulings(source, sweep)


def _rulings_of_all(source: Source) -> Decided:
    found, failed = build.rulings_of_all(source)
    for one in failed:
        print(f"reports: sweep {visible(one.name)} is left out: {visible(one.reason)}", file=sys.stderr)
    return found


def _publish(options: argparse.Namespace) -> int:
    """Report and records beside each other, under one name, in the folders that are committed; and, where it is a
    sweep of this computer as it is, the README's pictures.
    """
    with _archive(options) as archive:
        sweep = options.sweep or build.latest(archive)
        archive.refuse_excluded(sweep)
        name = options.name or _name(archive, sweep)
        if not re.fullmatch(r"[\w.-]+", name):
            raise ReportError(f"--name {name!r}: use letters, digits, dots, hyphens and underscores")
        KEPT_RECORDS.mkdir(parents=True, exist_ok=True)
        records = KEPT_RECORDS / f"{name}.zip"
        bundles.export(archive, [], records, sweeps=[sweep])
        report = build.write(archive, sweep, KEPT_REPORTS, name)
        shown = _pictures(report) if _is_default(archive, sweep) else []
    print("\n".join(str(path.relative_to(ROOT)) for path in (report, records, *shown)))
    return 0


def _pictures(report: Path) -> list[Path]:
    """The README's pictures. What is published stays published where there is nothing to draw."""
    try:
        return pictures.write(report)
    except ReportError as error:
        print(f"reports: the README's pictures stay as they are: {error}", file=sys.stderr)
        return []


def _is_default(archive: Archive, sweep: str) -> bool:
    return {spec.setting.environment for spec in archive.sweep_plan(sweep)} == {"default"}


def _name(archive: Archive, sweep: str) -> str:
    """What the machine is, in a word that sorts well: ``linux-x86_64-avx512-torch-2.13.0-cpu-1a2b3c4d``."""
    made = replays(archive.records(sweep=sweep))
    documents = build.facts(archive, made)
    if not documents:
        raise ReportError(f"nothing of sweep {sweep} has run, so there is nothing to publish")
    machine: Any = next(iter(documents.values()))
    kind = "cuda" if machine["gpu"] else "cpu"
    version = str(machine["torch"]["version"]).partition("+")[0]
    parts = (machine["system"]["name"], machine["cpu"]["architecture"], machine["cpu"]["capability"], "torch", version)
    environment = made[0].spec.setting.environment
    named = [] if environment == "default" else [re.sub(r"[^\w.-]", "_", environment)]
    return "-".join([*parts, kind, machine_identity(machine)[:8], *named]).lower().replace(" ", "_")


_KEPT = "each file is the old one or the new one, and none is there in part; the same command writes them all"
_STOPPED = {_write: _KEPT, _publish: _KEPT}
"""What is left of a command that Ctrl-C ended, where it may have changed something."""


if __name__ == "__main__":
    sys.exit(streams.status("reports", main))

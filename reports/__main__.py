"""Evidence reports from the archive.

python -m reports [write] [--sweep ID] [--to FOLDER]
python -m reports claims [--json] [--sweep ID | --all]
python -m reports publish [--sweep ID] [--name NAME]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any, Sequence

from experiments.record import machine_identity, replays
from reports import files
from reports.files import ReportError
from store import bundle
from store.archive import Archive, ArchiveError

ROOT = Path(__file__).resolve().parents[1]
KEPT_REPORTS = ROOT / "reports" / "evidence"
KEPT_RECORDS = ROOT / "store" / "published"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        with Archive.open(options.archive, Path(options.blobs), create=False) as archive:
            return int(options.run(archive, options))
    except (ReportError, ArchiveError, OSError) as error:
        print(f"reports: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--archive", default="sqlite:///outputs/archive.db", help="SQLAlchemy URL (default: %(default)s)"
    )
    where.add_argument("--blobs", default="outputs/blobs", help="folder of tensors (default: %(default)s)")
    where.add_argument("--sweep", help="id of the sweep (default: the latest)")
    parser = argparse.ArgumentParser(
        prog="python -m reports",
        description="Evidence reports, and rulings on claims, from the archive.",
        epilog="Exit status: 0 done, 2 could not. `python -m store list --sweeps` lists the sweeps.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    write = commands.add_parser("write", parents=[where], help="write the report on a sweep")
    write.add_argument("--to", default="outputs/reports", help="folder (default: %(default)s)")
    write.set_defaults(run=_write)
    claims = commands.add_parser("claims", parents=[where], help="print every claim with its ruling and records")
    claims.add_argument("--json", action="store_true", help="as JSON: id, ruling, why, digests")
    claims.add_argument("--all", action="store_true", help="decide from every sweep in the archive")
    claims.set_defaults(run=_claims)
    publish = commands.add_parser("publish", parents=[where], help="keep a report and its records in the checkout")
    publish.add_argument("--name", help="name of the two files (default: what the machine is)")
    publish.set_defaults(run=_publish)
    return parser


def _write(archive: Archive, options: argparse.Namespace) -> int:
    print(files.write(archive, options.sweep or files.latest(archive), Path(options.to)))
    return 0


def _claims(archive: Archive, options: argparse.Namespace) -> int:
    found = files.rulings(archive, None if options.all else options.sweep or files.latest(archive))
    rows = [
        {"id": claim.id, "ruling": ruling.word, "why": ruling.reason, "digests": list(ruling.digests)}
        for claim, ruling in found
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print(f"{row['id']:<4}{row['ruling']:<20}{row['why']}")
            print(f"    records: {', '.join(str(name)[:12] for name in row['digests']) or 'none'}")
    return 0


def _publish(archive: Archive, options: argparse.Namespace) -> int:
    """Report and records beside each other, under one name, in the folders that are committed."""
    sweep = options.sweep or files.latest(archive)
    name = options.name or _name(archive, sweep)
    if not re.fullmatch(r"[\w.-]+", name):
        raise ReportError(f"--name {name!r}: use letters, digits, dots, hyphens and underscores")
    KEPT_RECORDS.mkdir(parents=True, exist_ok=True)
    records = KEPT_RECORDS / f"{name}.zip"
    bundle.export(archive, [cell.digest for cell in archive.cells(sweep=sweep)], records)
    report = files.write(archive, sweep, KEPT_REPORTS, name)
    print(f"{report.relative_to(ROOT)}\n{records.relative_to(ROOT)}")
    return 0


def _name(archive: Archive, sweep: str) -> str:
    """What the machine is, in a word that sorts well: ``linux-x86_64-avx512-torch-2.13.0-cpu-1a2b3c4d``."""
    documents = files.facts(archive, replays(archive.records(sweep=sweep)))
    if not documents:
        raise ReportError(f"nothing of sweep {sweep} has run, so there is nothing to publish")
    machine: Any = next(iter(documents.values()))
    kind = "cuda" if machine["gpu"] else "cpu"
    version = str(machine["torch"]["version"]).partition("+")[0]
    parts = (machine["system"]["name"], machine["cpu"]["architecture"], machine["cpu"]["capability"], "torch", version)
    return "-".join([*parts, kind, machine_identity(machine)[:8]]).lower().replace(" ", "_")


if __name__ == "__main__":
    sys.exit(main())

"""The archive from the command line: list, show, diff, check, add, note, exclude, export, key, grant.

Results go to stdout, everything else to stderr. Exit status: 0 as expected, 1 something does not match, two records
differ, 2 the command could not run, 130 interrupted.
"""

from __future__ import annotations

from experiments.core import streams

if __name__ == "__main__":
    streams.handle_early_interrupt("store: stopped; nothing was begun yet")

import argparse
import contextlib
import getpass
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Sequence

from experiments.core.canonical_json import digest, printable_text
from experiments.core.masking import mask_secrets
from experiments.core.record import Record
from experiments.core.record_diff import compare
from experiments.core.text import visible_text
from store import formatting
from store.archive import LARGEST_RECORD, Archive
from store.bundles import (
    Added,
    check_bundle,
    export_bundle,
    import_bundle,
    manifest_and_signature,
    read_bundle,
    refuse_excess_of_folder,
)
from store.database import ARCHIVE, default_blob_folder, sqlite_url
from store.errors import ArchiveError
from store.exclusions import EXCLUDE, INCLUDE, WHY
from store.index import read_record, referenced_contents
from store.integrity import Problem
from store.origins import Origin
from store.postgres_roles import OWNER, grant_rights
from store.regular import read_regular
from store.ro_crate import export_crate
from store.signing import (
    Signature,
    make_key,
    read_private_key,
    sign_manifest,
    signature_problem,
    trusted_keys,
    verify_signature,
)
from store.sweeps import current_time

_IN_BUNDLE = re.compile(r"(?P<file>.+\.zip)(?::(?P<prefix>[0-9a-f]*))?")
"""How a record of a bundle is named on the command line of `diff`."""

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    asked = _parser().parse_args(arguments)
    # A message of torch may contain characters that the terminal's encoding lacks.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    command: Command = asked.command
    try:
        return command(asked)
    except ArchiveError as error:
        print(f"store: {visible_text(mask_secrets(str(error)))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"store: stopped; {_STOPPED.get(command, 'nothing was changed')}", file=sys.stderr)
        return streams.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m store", description=__doc__, formatter_class=plain)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Command, summary: str, examples: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(
            name, help=summary, description=f"{summary}.", epilog=f"examples:\n{examples}", formatter_class=plain
        )
        subparser.set_defaults(command=command)
        subparser.add_argument("--json", action="store_true", help="print JSON")
        subparser.add_argument("--archive", default=ARCHIVE, metavar="URL", help="the archive (default: %(default)s)")
        subparser.add_argument(
            "--blobs", type=Path, metavar="DIR", help="its blobs (default: blobs beside the archive)"
        )
        return subparser

    _add_reading_commands(add)
    _add_writing_commands(add)
    subparser = add(
        "key",
        _make_key_pair,
        "Make a pair of keys to sign bundles with",
        "  python -m store key lab    # lab.key signs and stays here, lab.pub is for everybody who checks",
    )
    subparser.add_argument("name", type=Path, metavar="NAME", help="writes NAME.key and NAME.pub")
    subparser = add(
        "grant",
        _grant_rights,
        "Set up who may do what with an archive on PostgreSQL",
        "  python -m store grant --archive postgresql://admin@host/archive --writer lab --reader everybody",
    )
    subparser.add_argument("--writer", required=True, metavar="NAME", help="role that may insert and read")
    subparser.add_argument("--reader", metavar="NAME", help="role that may read")
    subparser.add_argument("--owner", default=OWNER, metavar="NAME", help="role that owns it (default: %(default)s)")
    return parser


def _add_reading_commands(add: Callable[[str, Command, str, str], argparse.ArgumentParser]) -> None:
    subparser = add(
        "list",
        _list_rows,
        "List records, or sweeps",
        "  python -m store list --scenario 'checkpoint/*' --outcome raised\n  python -m store list --sweeps",
    )
    subparser.add_argument("--sweeps", action="store_true", help="list sweeps instead of records")
    subparser.add_argument("--scenario", metavar="PATTERN", help="only these scenarios; may hold wildcards")
    subparser.add_argument("--outcome", metavar="KIND", help="only records that ended so, such as raised")
    subparser.add_argument("--sweep", metavar="ID", help="only records of this sweep, in the order of its plan")
    subparser.add_argument("--excluded", action="store_true", help="also what is excluded")
    subparser = add(
        "show",
        _show_record,
        "Show one record, its notes, and what it rests on",
        "  python -m store show 3f9a0c\n  python -m store show --json 3f9a0c | sha256sum    # the digest again",
    )
    subparser.add_argument("digest", metavar="DIGEST", help="the record's digest, or its beginning")
    subparser = add(
        "diff",
        _diff_records,
        "Show two records side by side, without judging: exit 0 if their evidence is equal, 1 if not",
        "  python -m store diff 3f9a0c 77b1d2\n  python -m store diff 3f9a0c store/published/somewhere.zip:77b1d2",
    )
    for which in ("first", "second"):
        subparser.add_argument(
            which,
            metavar="DIGEST|FILE.zip[:DIGEST]",
            help="a record by its digest or the beginning of it; a bundle of one record needs none",
        )
    subparser = add(
        "check",
        _check_digests,
        "Recompute every digest of the archive, or of a bundle, and name what does not match",
        "  python -m store check\n  python -m store check store/published/somewhere.zip --trust lab.pub",
    )
    subparser.add_argument("what", nargs="?", metavar="FILE", help="a bundle (.zip), or the file of another archive")
    subparser.add_argument(
        "--trust",
        nargs="+",
        action="extend",
        type=Path,
        default=[],
        metavar="KEYS",
        help="public keys, or folders of them: who signed? May be repeated",
    )


def _add_writing_commands(add: Callable[[str, Command, str, str], argparse.ArgumentParser]) -> None:
    subparser = add(
        "add",
        _add_paths,
        "Add records of folders or bundles; adding twice is adding once",
        "  python -m store add outputs/sweeps/SWEEP\n  python -m store add store/published/somewhere.zip",
    )
    subparser.add_argument("paths", nargs="+", type=Path, metavar="FOLDER|FILE.zip")
    which = subparser.add_mutually_exclusive_group()
    which.add_argument("--sweep", metavar="ID", help="the sweep that the records belong to, whatever a bundle says")
    which.add_argument("--no-sweep", action="store_true", help="leave out the sweeps that a bundle has")
    subparser = add(
        "note",
        _add_note,
        "Say something about a record that was learned later",
        "  python -m store note 3f9a0c 'the machine was under load'",
    )
    subparser.add_argument("digest", metavar="DIGEST", help="the record's digest, or its beginning")
    subparser.add_argument("text", metavar="TEXT")
    subparser.add_argument("--author", help="who says so (default: the user's name)")
    for verb, summary, example in (
        (
            EXCLUDE,
            "Take records, or all of a sweep, file or signer, out of sight; without a name, list what was excluded",
            "  python -m store exclude evidence-somebody-2026-01-02.zip --why 'made up'\n"
            "  python -m store exclude record:3f9a0c --why 'the machine was broken'\n  python -m store exclude",
        ),
        (
            INCLUDE,
            "Take an exclusion back",
            "  python -m store include evidence-somebody-2026-01-02.zip --why 'it was real'",
        ),
    ):
        subparser = add(verb, _write_exclusion, summary, example)
        subparser.add_argument(
            "names",
            nargs="*" if verb == EXCLUDE else "+",
            metavar="DIGEST|ORIGIN",
            help="record:DIGEST, sweep:ID, file:NAME (or the digest of its manifest) or signer:KEY; the kind may be "
            "left out, digests may be cut short",
        )
        subparser.add_argument("--why", metavar="TEXT", help="the reason, which reports show")
        subparser.add_argument("--author", help="who says so (default: the user's name)")
        subparser.set_defaults(verb=verb)
    subparser = add(
        "export",
        _export_records,
        "Write records and what they rest on as a bundle",
        "  python -m store export 3f9a0c 77b1d2 two.zip\n  python -m store export --sweep ID --sign lab.key sweep.zip\n"
        "  python -m store export --ro-crate --sweep ID folder",
    )
    subparser.add_argument("digests", nargs="*", metavar="DIGEST", help="records, by digest or its beginning")
    subparser.add_argument("file", type=Path, metavar="FILE.zip", help="with --ro-crate a folder, too")
    subparser.add_argument(
        "--sweep", metavar="ID", action="append", default=[], help="this sweep and all its records; may be repeated"
    )
    how = subparser.add_mutually_exclusive_group()
    how.add_argument("--sign", type=Path, metavar="KEY", help="sign the bundle with this private key")
    how.add_argument("--ro-crate", action="store_true", help="write a Process Run Crate instead, for archives of data")


def _open_archive(asked: argparse.Namespace, *, create: bool = False) -> Archive:
    return Archive.open(asked.archive, asked.blobs or default_blob_folder(asked.archive), create=create)


def _list_rows(asked: argparse.Namespace) -> int:
    with _open_archive(asked) as archive:
        if asked.sweeps:
            print(formatting.format_sweeps(archive.sweeps(excluded=asked.excluded), json=asked.json), end="")
        else:
            found = archive.cells(
                sweep=asked.sweep, scenario=asked.scenario, outcome=asked.outcome, excluded=asked.excluded
            )
            print(
                formatting.format_cells(found, archive.origins([one.digest for one in found]), json=asked.json), end=""
            )
    return 0


def _show_record(asked: argparse.Namespace) -> int:
    with _open_archive(asked) as archive:
        digest, text = archive.record_text(asked.digest)
        if asked.json:
            # Exactly the text, without a line end, so that its SHA-256 is the digest. On a terminal, escape controls.
            print(visible_text(text) if sys.stdout.isatty() else text, end="")
            return 0
        record = read_record(text)
        kept = [(name, kind, archive.has_content(name)) for name, kind in referenced_contents(record).items()]
        origin = archive.origins([digest])[digest]
        hidden = digest in archive.excluded_items().records
        print(formatting.format_record(digest, record, origin, archive.notes(digest), kept, excluded=hidden), end="")
    return 0


def _diff_records(asked: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        archive = (
            _open_archive(asked) if any(not _IN_BUNDLE.fullmatch(one) for one in (asked.first, asked.second)) else None
        )
        if archive is not None:
            stack.enter_context(archive)
        sides = [_read_side(one, archive, stack) for one in (asked.first, asked.second)]
        comparison = compare(sides[0].record, sides[1].record, _combine_fetches([one.fetch for one in sides]))
    print(formatting.format_difference([one.digest for one in sides], comparison, json=asked.json), end="")
    return 0 if comparison.equal else 1


@dataclass(frozen=True)
class _Side:
    """A record to compare, and how to fetch its contents."""

    digest: str
    record: Record
    fetch: Callable[[str], bytes | None]


def _read_side(name: str, archive: Archive | None, stack: contextlib.ExitStack) -> _Side:
    named = _IN_BUNDLE.fullmatch(name)
    if named is None:
        assert archive is not None, "it was opened for this"
        digest, text = archive.record_text(name)
        return _Side(digest, read_record(text), archive.fetch)
    path, prefix = Path(named["file"]), named["prefix"] or ""
    bundle = stack.enter_context(read_bundle(path))
    known = [one for one in bundle.digests if one.startswith(prefix)]
    if len(known) != 1:
        few = ", ".join(one[: len(prefix) + 8] for one in known[:4])
        more = f": {few}{', ...' if known[4:] else ''}; name one as FILE.zip:DIGEST" if known else ""
        count = f"{len(known)} records" if known else "no record"
        raise ArchiveError(f"{path.name} has {count} whose digest begins with {prefix!r}{more}")
    return _Side(known[0], bundle.records[bundle.digests.index(known[0])], bundle.fetch)


def _combine_fetches(fetches: Sequence[Callable[[str], bytes | None]]) -> Callable[[str], bytes | None]:
    def fetch(name: str) -> bytes | None:
        return next((content for one in fetches for content in [one(name)] if content is not None), None)

    return fetch


def _check_digests(asked: argparse.Namespace) -> int:
    what = asked.what
    signature: Signature | None = None
    if what is not None and what.endswith(".zip"):
        looked_at = what
        problems, signature = _check_bundle_and_signature(Path(what), asked.trust)
    elif asked.trust:
        raise ArchiveError("--trust asks who signed a bundle: name its FILE.zip before it")
    else:
        if what is not None:
            asked.archive = what if "://" in what else sqlite_url(what)
        with _open_archive(asked) as archive:
            problems, counts = archive.examine()
            looked_at = f"{archive.name}: {counts}"
    if asked.json:
        rows = [{"digest": problem.digest, "what": problem.what} for problem in problems]
        signed = None if signature is None else vars(signature)
        print(formatting.format_json({"problems": rows, "looked_at": looked_at, "signature": signed}), end="")
        return 1 if problems else 0
    for line in (*problems, *([signature] if signature else [])):
        print(visible_text(str(line)))
    print(f"{visible_text(looked_at)}: {len(problems) or 'no'} problems", file=sys.stderr if problems else sys.stdout)
    return 1 if problems else 0


def _check_bundle_and_signature(path: Path, keys: Sequence[Path]) -> tuple[list[Problem], Signature | None]:
    """Return the problems of a bundle and, if there are none, its signature."""
    names = trusted_keys(keys)
    problems = check_bundle(path)
    if problems:
        # A signature says nothing about a bundle that is damaged.
        return problems, None
    try:
        return [], verify_signature(*manifest_and_signature(path), names)
    except ArchiveError as error:
        return [signature_problem(error)], None


def _add_paths(asked: argparse.Namespace) -> int:
    added: list[str] = []
    refused = 0
    with _open_archive(asked, create=True) as archive:
        for path in _expand_paths(asked.paths):
            try:
                added += _add_path(archive, path, asked)
            except ArchiveError as error:
                # The other paths are evidence too, so go on with them.
                print(f"store: {visible_text(mask_secrets(str(error)))}", file=sys.stderr)
                refused += 1
    print(formatting.format_json(added) if asked.json else "".join(f"{name}\n" for name in added), end="")
    print(f"{len(added)} records are in the archive, {refused} of what was given was refused", file=sys.stderr)
    return 2 if refused else 0


def _add_path(archive: Archive, path: Path, asked: argparse.Namespace) -> list[str]:
    if path.suffix != ".zip":
        refuse_excess_of_folder(path)
        return [archive.add(path, asked.sweep, _folder_origin(path))]
    try:
        signature = verify_signature(*manifest_and_signature(path), {})
    except ArchiveError as error:
        # Report another problem of the bundle first, as it may be the cause of the invalid signature.
        problem = next(iter(check_bundle(path)), signature_problem(error))
        raise ArchiveError(f"{path.name} is refused and nothing was added: {problem}") from None
    added = import_bundle(archive, path, asked.sweep, sweeps=not asked.no_sweep, signer=signature.key)
    if asked.sweep is None and not asked.no_sweep:
        print(f"store: {visible_text(_report_advice(path, added, asked))}", file=sys.stderr)
    return added.records


def _folder_origin(folder: Path) -> Origin | None:
    """Return the origin of a folder's record, or None if it cannot be read, which is reported when it is added."""
    try:
        content = read_regular(folder / "record.json", LARGEST_RECORD, "so it is no record")
    except ArchiveError:
        return None
    return Origin(printable_text(f"{folder.resolve().name}/"), digest(content), current_time())


def _report_advice(path: Path, added: Added, asked: argparse.Namespace) -> str:
    """Return a sentence on how to report on an added bundle. Its command names the archive if the user named one."""
    if added.sweeps:
        where = [] if asked.archive == ARCHIVE else ["--archive", mask_secrets(asked.archive, asked.archive)]
        if where or asked.blobs is not None:
            where += ["--blobs", str(asked.blobs or default_blob_folder(asked.archive))]
        commands = [shlex.join(["python", "-m", "reports", "--sweep", name, *where]) for name in added.sweeps]
        ways = " and ".join(f"`{one}`" for one in commands)
        return f"{path.name} has a sweep, too: {ways} reports on it"
    return f"{path.name} carries no sweep, only records: `python -m reports {shlex.quote(str(path))}` reports on them"


def _expand_paths(paths: Sequence[Path]) -> list[Path]:
    """Return bundles and folders of a record, with each folder of such folders replaced by what it contains."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(record.parent for record in path.glob("*/record.json"))
        if path.suffix == ".zip" or (path / "record.json").exists():
            found.append(path)
        elif inside:
            found += inside
        else:
            raise ArchiveError(f"{path} is no bundle (.zip) and holds no record.json, nor do its folders")
    return found


def _add_note(asked: argparse.Namespace) -> int:
    with _open_archive(asked) as archive:
        digest, _ = archive.record_text(asked.digest)
        archive.add_note(digest, asked.text, asked.author or getpass.getuser())
    return 0


def _write_exclusion(asked: argparse.Namespace) -> int:
    with _open_archive(asked) as archive:
        if not asked.names:
            print(formatting.format_exclusions(archive.exclusions(), json=asked.json), end="")
            return 0
        if not (asked.why or "").strip():
            raise ArchiveError(f"{asked.verb}: give the reason with --why: reports show it")
        author = asked.author or getpass.getuser()
        entries = [archive.exclude(name, asked.why, author, asked.verb) for name in asked.names]
    print(formatting.format_exclusions(entries, json=asked.json), end="")
    hint = "reports show it from the next one on; `python -m reports.mlflow sync` brings MLflow up to date"
    print(f"store: {hint}", file=sys.stderr)
    return 0


def _export_records(asked: argparse.Namespace) -> int:
    if bool(asked.digests) == bool(asked.sweep):
        raise ArchiveError("name either records or a sweep to export, then the FILE.zip to write")
    key = _signer(asked.sign) if asked.sign else None
    with _open_archive(asked) as archive:
        digests = [archive.record_text(name)[0] for name in asked.digests]
        hidden = sorted(archive.excluded_items().records.intersection(digests))
        if hidden:
            raise ArchiveError(f"record {hidden[0]} is excluded: {WHY}")
        digests += [one.digest for sweep in asked.sweep for one in archive.cells(sweep=sweep)]
        if asked.ro_crate:
            export_crate(archive, digests, asked.file)
        else:
            export_bundle(archive, digests, asked.file, key, asked.sweep)
    file = str(asked.file)
    print(
        formatting.format_json({"file": file, "records": digests}) if asked.json else f"{visible_text(file)}\n", end=""
    )
    return 0


def _signer(path: Path) -> Callable[[bytes], bytes]:
    key = read_private_key(path, getpass.getpass if sys.stdin.isatty() else None)
    return lambda manifest: sign_manifest(manifest, key)


def _make_key_pair(asked: argparse.Namespace) -> int:
    private, public, key = make_key(asked.name)
    pair = {"private": str(private), "public": str(public), "key": key}
    print(formatting.format_json(pair) if asked.json else f"{private} {public} (key {key})\n", end="")
    return 0


def _grant_rights(asked: argparse.Namespace) -> int:
    grant_rights(asked.archive, writer=asked.writer, reader=asked.reader, owner=asked.owner)
    reads = f", {asked.reader} may read" if asked.reader else ""
    print(f"{asked.owner} owns the archive and cannot log in, {asked.writer} may insert and read{reads}")
    return 0


_STOPPED: dict[Command, str] = {
    _add_paths: "each record or bundle is in the archive whole or not at all; the same command adds the rest",
    _add_note: "the note is there whole or not at all: `python -m store show` shows it",
    _write_exclusion: "what was not written yet is not in force: `python -m store exclude` lists what is",
    _export_records: "no file is there in part; the same command writes it anew",
    _make_key_pair: "a key without its .pub beside it is none: delete NAME.key before you make it anew",
    _grant_rights: "what was not set up is as it was; the same command sets it up",
}
"""What to tell the user of a command that Ctrl-C ended, where it may have changed something."""


if __name__ == "__main__":
    sys.exit(streams.run_program("store", lambda: main(sys.argv[1:])))

"""Records and what they rest on as one zip file, to be published or sent.

    manifest.json              {"schema": 1, "members": {name: {"digest": ..., "bytes": ...}}}
    records/<digest>.json      exact text
    documents/<digest>.txt     machines and sources
    blobs/<digest>             tensors

The same records give the same members and manifest; whole files are equal wherever zlib is the same. What
processes wrote to stdout and stderr stays behind, since it may name paths.

A bundle comes from somebody else: nothing of it is believed before all of it has been looked at, no member
is ever written to a path that the file names, and if one thing is wrong nothing is added.

Schema history:
    1   first.
"""

from __future__ import annotations

import re
import secrets
import stat
import zipfile
import zlib
from pathlib import Path
from typing import Any, Iterator, Sequence

from experiments.record import Record, RecordError, canonical, digest, parse
from store.archive import Archive
from store.cells import DOCUMENTS, OPTIONAL, cell, read_record, wanted
from store.checks import Problem
from store.errors import ArchiveError

SCHEMA = 1
"""Version of the manifest that this code writes. It reads 1 to SCHEMA."""

MANIFEST = "manifest.json"

LARGEST_FILE = 1 << 30
"""Bytes of a bundle on disk; ten thousand records take a tenth of it."""
LARGEST_MEMBER = 1 << 26
"""Bytes of one member unpacked; the longest records, lists of operators, take a few million."""
LARGEST_TOTAL = 1 << 32
"""Bytes of all members unpacked."""
MOST_MEMBERS = 200_000

assert LARGEST_MEMBER < LARGEST_FILE < LARGEST_TOTAL

_NAMES = re.compile(r"(?:records/([0-9a-f]{64})\.json|documents/([0-9a-f]{64})\.txt|blobs/([0-9a-f]{64}))")
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1


def export(archive: Archive, digests: Sequence[str], path: Path) -> None:
    """Write the records of these digests, and what they rest on, as a bundle.

    Raises ArchiveError if there are none, or one of them lacks something.
    """
    if not digests:
        raise ArchiveError("there is no record to export")
    members: dict[str, bytes] = {}
    for name in sorted(set(digests)):
        full, text = archive.record_text(name)
        members[f"records/{full}.json"] = text.encode("utf-8")
        members.update(_contents(archive, read_record(text)))
    listed = {name: {"digest": digest(content), "bytes": len(content)} for name, content in members.items()}
    members[MANIFEST] = canonical({"schema": SCHEMA, "members": listed}).encode("utf-8")
    try:
        _write(path, members)
    except OSError as error:
        raise ArchiveError(f"{path} cannot be written: {error.strerror or error}") from error


def _contents(archive: Archive, record: Record) -> Iterator[tuple[str, bytes]]:
    for name, kind in wanted(record).items():
        if kind in OPTIONAL:
            continue
        content = archive.fetch(name)
        if content is None:
            raise ArchiveError(f"{kind} {name} is missing from the archive; `python -m store check` names what else")
        yield _member(name, kind), content


def _member(name: str, kind: str) -> str:
    return f"documents/{name}.txt" if kind in DOCUMENTS else f"blobs/{name}"


def _write(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with zipfile.ZipFile(beside, "x") as file:
            for name in sorted(members):
                # A fixed date, system and mode: nothing of where and when it was made is in the file.
                info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                info.create_system = 3
                info.external_attr = (stat.S_IFREG | 0o644) << 16
                info.compress_type = zipfile.ZIP_STORED if name.startswith("blobs/") else zipfile.ZIP_DEFLATED
                file.writestr(info, members[name], compresslevel=9)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def add_bundle(archive: Archive, path: Path, sweep: str | None = None) -> list[str]:
    """Add every record of a bundle, and give their digests, sorted. Twice is once.

    Raises ArchiveError, with nothing added, if anything in it is not as `check_bundle` wants it.
    """
    problems = check_bundle(path)
    if problems:
        more = f" (and {len(problems) - 1} more: `python -m store check {path.name}`)" if problems[1:] else ""
        raise ArchiveError(f"{path.name} is refused and nothing was added: {problems[0]}{more}")
    with zipfile.ZipFile(path) as file:
        names = set(file.namelist())

        def content(name: str) -> bytes | None:
            # A digest that both a text and a tensor have is in the bundle as either.
            found = sorted({f"documents/{name}.txt", f"blobs/{name}"} & names)
            return _unpacked(file, found[0]) if found else None

        records = sorted(name for name in names if name.startswith("records/"))
        return [archive.add_text(_unpacked(file, name).decode("utf-8"), content, sweep) for name in records]


def check_bundle(path: Path) -> list[Problem]:
    """Everything in a bundle that is not as it must be. Raises ArchiveError if there is no such file."""
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            return [Problem(path.name, f"has {size} bytes; at most {LARGEST_FILE} are read")]
        with zipfile.ZipFile(path) as file:
            return list(_shape(file)) or _substance(file)
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read: {error.strerror or error}") from None
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        return [Problem(path.name, f"is not a zip file that can be read: {error}")]


def _shape(file: zipfile.ZipFile) -> Iterator[Problem]:
    """What is wrong with the list of members, found without unpacking any."""
    members = file.infolist()
    total = sum(info.file_size for info in members)
    if len(members) > MOST_MEMBERS:
        yield Problem(MANIFEST, f"there are {len(members)} members; at most {MOST_MEMBERS} are read")
    if total > LARGEST_TOTAL:
        yield Problem(MANIFEST, f"the members say they unpack to {total} bytes; at most {LARGEST_TOTAL} are read")
    seen: set[str] = set()
    for info in members:
        wrong = _wrong_with(info, seen)
        if wrong:
            yield Problem(repr(info.filename), wrong)
        seen.add(info.filename)


def _wrong_with(info: zipfile.ZipInfo, seen: set[str]) -> str | None:
    name = info.orig_filename
    if name.startswith(("/", "\\")) or ":" in name or ".." in re.split(r"[/\\]", name):
        return "its name leaves the folder"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "it is a link"
    if info.filename in seen:
        return "there are two members of this name"
    if name != MANIFEST and not _NAMES.fullmatch(name):
        return "a bundle has no such member"
    if info.flag_bits & _ENCRYPTED:
        return "it is encrypted"
    if info.compress_type not in _METHODS:
        return f"it is packed by method {info.compress_type}; only stored and deflated are read"
    if info.file_size > LARGEST_MEMBER:
        return f"it says that it unpacks to {info.file_size} bytes; at most {LARGEST_MEMBER} are read"
    return None


def _substance(file: zipfile.ZipFile) -> list[Problem]:
    """What is wrong with the contents, each of which is unpacked once."""
    try:
        manifest = _manifest(file)
    except ArchiveError as error:
        return [Problem(MANIFEST, str(error))]
    names = set(file.namelist()) - {MANIFEST}
    problems = [Problem(name, "is in the manifest but not in the file") for name in sorted(manifest.keys() - names)]
    problems += [Problem(name, "is in the file but not in the manifest") for name in sorted(names - manifest.keys())]
    needed: set[str] = set()
    for name in sorted(names & manifest.keys()):
        wrong, members = _look_at(file, name, manifest[name])
        problems += [Problem(name, wrong)] if wrong else []
        needed |= members
    problems += [Problem(name, "a record needs it, and it is missing") for name in sorted(needed - names)]
    extra = sorted(name for name in names - needed if not name.startswith("records/"))
    # Without every record it cannot be said what is needed.
    return problems or [Problem(name, "no record needs it") for name in extra]


def _look_at(file: zipfile.ZipFile, name: str, listed: Any) -> tuple[str | None, set[str]]:
    """What is wrong with a member, if anything, and the names of the members that it needs."""
    try:
        content = _unpacked(file, name)
        if {"digest": digest(content), "bytes": len(content)} != listed:
            return f"has {len(content)} bytes with the digest {digest(content)}; the manifest says otherwise", set()
        if digest(content) not in name:
            return f"has the digest {digest(content)}, which is not its name", set()
        if name.startswith("blobs/"):
            return None, set()
        text = content.decode("utf-8")
        if name.startswith("documents/"):
            return None, set()
        record = read_record(text)
        cell(text, record)
        return None, {_member(one, kind) for one, kind in wanted(record).items() if kind not in OPTIONAL}
    except UnicodeDecodeError:
        return "is not UTF-8 text", set()
    except ArchiveError as error:
        return str(error), set()


def _unpacked(file: zipfile.ZipFile, name: str) -> bytes:
    """The content. Raises ArchiveError if it cannot be unpacked or is longer than it says."""
    try:
        with file.open(name) as member:
            content = member.read(LARGEST_MEMBER + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
        raise ArchiveError(f"cannot be unpacked: {error}") from None
    if len(content) > LARGEST_MEMBER:
        raise ArchiveError(f"unpacks to more than {LARGEST_MEMBER} bytes")
    return content


def _manifest(file: zipfile.ZipFile) -> dict[str, Any]:
    """Member -> what the manifest says of it. Raises ArchiveError if this is no manifest that we read."""
    if MANIFEST not in file.namelist():
        raise ArchiveError("there is none, so this is not a bundle")
    try:
        text = _unpacked(file, MANIFEST).decode("utf-8")
        data = parse(text)
    except (UnicodeDecodeError, RecordError) as error:
        raise ArchiveError(f"cannot be read: {error}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, bool) or not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise ArchiveError(f"has schema {schema!r}; this version reads 1 to {SCHEMA}: update the project to read it")
    members = data.get("members")
    if set(data) != {"schema", "members"} or not isinstance(members, dict) or canonical(data) != text:
        raise ArchiveError("is not canonical JSON of a schema and members")
    return members

"""Writes a bundle: the members that records need, the manifest, the zip, the seal."""

from __future__ import annotations

import secrets
import stat
import zipfile
from pathlib import Path
from typing import BinaryIO, Callable, Iterable, Mapping

from ..core.canonical_json import canonical, digest
from ..core.sweep import BundledSweep
from .layout import (
    MANIFEST,
    SCHEMA,
    SEAL_LENGTH,
    SIGNATURE,
    Member,
    PackError,
    file_digest,
    needed,
    oversized_members,
    read_record,
)

# Writing.


def members(texts: Iterable[str], fetch: Callable[[str], bytes | None]) -> dict[str, bytes]:
    """What is in a bundle of these records, by name; `fetch` gives the content that has a digest, or None.

    Raises PackError if a text is no record, or a content that it names is missing or another.
    """
    made: dict[str, bytes] = {}
    for text in texts:
        record = read_record(text)
        made[f"records/{digest(text)}.json"] = text.encode("utf-8")
        for name, (kind, found) in needed(record).items():
            if name not in made:
                made[name] = _fetched(fetch, found, kind)
    return made


def sweep_members(
    plan: str, machine: str, number: int, started_at: str, records: Mapping[str, str]
) -> dict[str, bytes]:
    """The members that tell of a sweep, to be put beside those of its records.

    `plan` is its exact text, `records` the record that it got for each spec, both by digest.
    """
    made = BundledSweep(digest(plan), machine, number, started_at, records).text()
    return {f"plans/{digest(plan)}.json": plan.encode("utf-8"), f"sweeps/{digest(made)}.json": made.encode("utf-8")}


def _fetched(fetch: Callable[[str], bytes | None], name: str, kind: str) -> bytes:
    content = fetch(name)
    if content is None:
        raise PackError(f"{kind} {name} is missing; a bundle holds all that its records rest on")
    if digest(content) != name:
        raise PackError(f"{kind} {name} has the digest {digest(content)}: it is not what was recorded")
    return content


def manifest(contents: Mapping[str, bytes]) -> bytes:
    """Canonical JSON that names every member with its digest and length."""
    listed = {name: {"digest": digest(content), "bytes": len(content)} for name, content in contents.items()}
    return canonical({"schema": SCHEMA, "members": listed}).encode("utf-8")


def write(path: Path, contents: Mapping[str, bytes], sign: Callable[[bytes], bytes] | None = None) -> None:
    """Write members as a bundle, with their manifest and what `sign` makes of it, if that is given.

    Raises PackError if it would be larger than what is read, OSError if it cannot be written. Then nothing is
    at `path` that was not there before.
    """
    whole = {**contents, MANIFEST: manifest(contents)}
    if sign is not None:
        whole[SIGNATURE] = sign(whole[MANIFEST])
    _refuse_what_is_too_large(whole)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _zip(beside, whole)
        with beside.open("r+b") as file:
            seal(file)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _zip(path: Path, contents: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "x") as file:
        for name in sorted(contents):
            put(file, name, contents[name], deflated=not name.startswith("blobs/"))
        file.comment = bytes(SEAL_LENGTH)


def put(file: zipfile.ZipFile, name: str, content: bytes, *, deflated: bool = True) -> None:
    """Add a member with a fixed date, system and mode: nothing of where and when it was made is in the file."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    info.compress_type = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    file.writestr(info, content, compresslevel=9)


def seal(file: BinaryIO) -> None:
    """Make the last 64 bytes of a file the digits of the SHA-256 of those before."""
    made = file_digest(file)
    file.seek(-SEAL_LENGTH, 2)
    file.write(made)


def _refuse_what_is_too_large(contents: Mapping[str, bytes]) -> None:
    found = [Member(name, size=len(content)) for name, content in contents.items()]
    problems = list(oversized_members(found))
    problems += [f"{one.name}: {one.too_long()}" for one in found if one.too_long()]
    if problems:
        raise PackError(f"this would be more than can be read: {problems[0]}; put fewer records into one bundle")

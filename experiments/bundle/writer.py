"""Write a bundle: the members that records need, the manifest, the zip, the seal."""

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
    read_record,
    required_members,
    size_refusals,
)

# Writing.


def members(texts: Iterable[str], fetch: Callable[[str], bytes | None]) -> dict[str, bytes]:
    """Return the members of a bundle of these records, by name; `fetch` returns the content for a digest, or None.

    Raises PackError if a text is not a record, or if a content that it names is missing or has another digest.
    """
    contents: dict[str, bytes] = {}
    for text in texts:
        record = read_record(text)
        contents[f"records/{digest(text)}.json"] = text.encode("utf-8")
        for name, (kind, found) in required_members(record).items():
            if name not in contents:
                contents[name] = _fetch_content(fetch, found, kind)
    return contents


def sweep_members(
    plan: str, machine: str, number: int, started_at: str, records: Mapping[str, str]
) -> dict[str, bytes]:
    """Return the members that describe a sweep, to be added to those of its records.

    `plan` is the exact text; `records` maps the digest of each spec to that of its record.
    """
    sweep = BundledSweep(digest(plan), machine, number, started_at, records).text()
    return {f"plans/{digest(plan)}.json": plan.encode("utf-8"), f"sweeps/{digest(sweep)}.json": sweep.encode("utf-8")}


def _fetch_content(fetch: Callable[[str], bytes | None], name: str, kind: str) -> bytes:
    content = fetch(name)
    if content is None:
        raise PackError(f"{kind} {name} is missing; a bundle holds all that its records rest on")
    if digest(content) != name:
        raise PackError(f"{kind} {name} has the digest {digest(content)}: it is not what was recorded")
    return content


def manifest(contents: Mapping[str, bytes]) -> bytes:
    """Return canonical JSON that lists every member with its digest and length."""
    listed = {name: {"digest": digest(content), "bytes": len(content)} for name, content in contents.items()}
    return canonical({"schema": SCHEMA, "members": listed}).encode("utf-8")


def write(path: Path, contents: Mapping[str, bytes], sign: Callable[[bytes], bytes] | None = None) -> None:
    """Write members as a bundle, with their manifest and, if `sign` is given, the signature that it returns.

    Raises PackError if the bundle would exceed what the reader accepts, OSError if it cannot be written. In both cases
    `path` is left as it was.
    """
    whole = {**contents, MANIFEST: manifest(contents)}
    if sign is not None:
        whole[SIGNATURE] = sign(whole[MANIFEST])
    _refuse_oversize(whole)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write_zip(partial, whole)
        with partial.open("r+b") as file:
            seal(file)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_zip(path: Path, contents: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "x") as file:
        for name in sorted(contents):
            put_member(file, name, contents[name], deflated=not name.startswith("blobs/"))
        file.comment = bytes(SEAL_LENGTH)


def put_member(file: zipfile.ZipFile, name: str, content: bytes, *, deflated: bool = True) -> None:
    """Add a member with a fixed date, system and mode, so that the file does not show where or when it was made."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    info.compress_type = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    file.writestr(info, content, compresslevel=9)


def seal(file: BinaryIO) -> None:
    """Overwrite the last 64 bytes of a file with the hexadecimal SHA-256 of those before."""
    checksum = file_digest(file)
    file.seek(-SEAL_LENGTH, 2)
    file.write(checksum)


def _refuse_oversize(contents: Mapping[str, bytes]) -> None:
    found = [Member(name, size=len(content)) for name, content in contents.items()]
    problems = list(size_refusals(found))
    problems += [f"{one.name}: {one.size_refusal()}" for one in found if one.size_refusal()]
    if problems:
        raise PackError(f"this would be more than can be read: {problems[0]}; put fewer records into one bundle")

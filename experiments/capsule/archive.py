"""Write and read capsules: scenarios in one file that runs anywhere with torch.

    __main__.py                 imports the package below under its own name and starts `capsule.main`
    twofold_capsule/...         the portable packages and the chosen scenarios, byte for byte as they are here
    content.json                specs, and the evidence that they produced at home
    content.bin                 tensors of that evidence, concatenated

"Home" is the machine where the capsule was made. Its records are reduced to what replays are compared by: no times,
no memory, no output. So two sweeps with equal evidence produce the same capsule, wherever zlib is the same.

Imports only the standard library, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import io
import secrets
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

from ..bundle.writer import put_member
from ..core.canonical_json import canonical, digest, parse
from ..core.observation import Ending, Output
from ..core.record import Record
from ..core.replay import Replay, replays
from ..core.rooms import PORTABLE, program_files
from ..core.schema_history import SCHEMA
from ..core.spec import Spec

LARGEST = 8 * 2**20
"""Largest capsule, in bytes: what can be attached to a bug report."""

PACKAGE = "twofold_capsule"
"""The name under which `experiments` is imported, chosen not to collide with other packages."""

_MAIN = f"""import os
import sys

if sys.version_info < (3, 9):
    sys.exit("capsule: this is Python %d.%d, and 3.9 or newer is needed" % sys.version_info[:2])
sys.dont_write_bytecode = True

from {PACKAGE}.capsule.main import main

sys.exit(main(sys.argv[1:], os.path.dirname(os.path.abspath(__file__))))
"""

Fetch = Callable[[str], Optional[bytes]]


class CapsuleError(Exception):
    """A capsule cannot be written or read. The message says what to do."""


@dataclass(frozen=True)
class Content:
    """The data in a capsule, in addition to the program."""

    specs: tuple[Spec, ...]
    """One for each process, in the order in which they run."""
    records: tuple[Record, ...]
    """Records of the processes that ran at home, reduced to evidence."""
    machine: Mapping[str, Any]
    """Machine facts of the home machine."""
    blobs: Mapping[str, bytes]
    """Tensors of the records, by digest."""

    @property
    def home(self) -> list[Replay]:
        """The replays that ran at home."""
        return replays(self.records)


# Writing a capsule.


def capsule_spec(spec: Spec) -> Spec:
    """Return the spec with the setting of a capsule: the current interpreter, verified copies of the sources."""
    setting = replace(
        spec.setting,
        environment="capsule",
        interpreter="",
        variables={},
        isolation="fresh",
        sources="copied",
        threads=None,
        matmul_precision="",
        repeat=0,
        attempt=0,
    )
    return replace(spec, setting=setting)


def write(path: Path, root: Path, content: Content) -> int:
    """Write a capsule with the program below `root` and return its size in bytes.

    Raises CapsuleError if it would be larger than `LARGEST`, or cannot be written.
    """
    packed = _pack_members(_members(root, content))
    if len(packed) > LARGEST:
        raise CapsuleError(
            f"the capsule would have {len(packed)} bytes, and may have {LARGEST}: choose fewer scenarios, "
            "such as SCENARIO='checkpoint/*'"
        )
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        partial.write_bytes(packed)
        partial.chmod(0o755)
        partial.replace(path)
    except OSError as error:
        raise CapsuleError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
    return len(packed)


def _members(root: Path, content: Content) -> dict[str, bytes]:
    folder = root / "experiments"
    names = {f"scenarios/{spec.question.scenario}.py" for spec in content.specs}
    paths = [*program_files(folder, PORTABLE), *(folder / name for name in names)]
    program = {f"{PACKAGE}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in paths}
    listed, binary = _encode_content(content)
    return {"__main__.py": _MAIN.encode(), **program, "content.json": listed, "content.bin": binary}


def _encode_content(content: Content) -> tuple[bytes, bytes]:
    reduced = [_reduce_record(record, content.machine) for record in content.records]
    wanted = sorted({name for record in reduced for name in _tensor_digests(record)})
    blobs = [content.blobs[name] for name in wanted]
    listed = {
        "schema": SCHEMA,
        "specs": [spec.to_json() for spec in content.specs],
        "records": [record.to_json() for record in reduced],
        "machine": content.machine,
        "blobs": [[name, len(blob)] for name, blob in zip(wanted, blobs)],
    }
    return canonical(listed).encode("utf-8"), b"".join(blobs)


def _reduce_record(record: Record, machine: Mapping[str, Any]) -> Record:
    """Return a record reduced to what replays are compared by and what is shown of them."""
    nothing = Output(digest(b""), 0, 0)
    seen = record.observation
    if seen is not None:
        seen = replace(seen, memory=(), durations={}, sources=(), machine=digest(canonical(machine)))
    return Record(
        spec=capsule_spec(record.spec),
        outcome=replace(record.outcome, traceback=None if record.outcome.traceback is None else ""),
        observation=seen,
        ending=Ending(None, None, "", 0.0, nothing, nothing, None),
    )


def _tensor_digests(record: Record) -> list[str]:
    """Return digests of the contents that differences are computed from: outputs and gradients of the plain pass."""
    seen = record.observation
    if seen is None or record.spec.question.pass_ != "plain":
        return []
    kept = [tensor for tensor in seen.tensors if tensor.role != "input"]
    named = [part for one in kept for part in (one.digest if one.whole else None, one.samples, one.sketch)]
    return [name for name in named if name is not None]


def _pack_members(members: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    made.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(made, "a") as file:
        for name in sorted(members):
            put_member(file, name, members[name])
    return made.getvalue()


# Reading a capsule.


def read(path: Path) -> Content:
    """Return the content of the capsule at `path`. Raises CapsuleError if it is not a capsule, or is damaged."""
    try:
        with zipfile.ZipFile(path) as file:
            data, binary = parse(file.read("content.json").decode("utf-8")), file.read("content.bin")
        blobs, start = {}, 0
        for name, length in data["blobs"]:
            blobs[name] = binary[start : start + length]
            start += length
        if any(digest(blob) != name for name, blob in blobs.items()):
            raise CapsuleError(f"{path} is damaged: a tensor has not its digest; get the capsule again")
        return Content(
            specs=tuple(Spec.from_json(one) for one in data["specs"]),
            records=tuple(Record.from_text(canonical(one)) for one in data["records"]),
            machine=data["machine"],
            blobs=blobs,
        )
    except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise CapsuleError(f"{path} cannot be read: {type(error).__name__}: {error}; get the capsule again") from None


def unpack(path: Path, root: Path) -> None:
    """Extract the program of the capsule below `root`, laid out as in the project, for workers to run."""
    with zipfile.ZipFile(path) as file:
        for name in file.namelist():
            package, _, inside = name.partition("/")
            if package == PACKAGE and ".." not in inside.split("/"):
                target = root / "experiments" / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read(name))

"""Scenarios as one file that runs anywhere with torch: what is in a capsule, and how it is read.

    __main__.py                 imports the package below under its own name and starts `capsule.main`
    twofold_capsule/...         the portable rooms and the chosen scenarios: byte for byte as they are here
    content.json                specs, and the evidence that they gave at home
    content.bin                 tensors of that evidence, one after the other

A record of home is reduced to what a replay is compared by: no times, no memory, no output. So two sweeps of equal
evidence make the same capsule, wherever zlib is the same.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import io
import secrets
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

from ..bundle.writer import put
from ..core.canonical_json import canonical, digest, parse
from ..core.observation import Ending, Output
from ..core.record import Record
from ..core.replay import Replay, replays
from ..core.rooms import PORTABLE, program_files
from ..core.schema_history import SCHEMA
from ..core.spec import Spec

LARGEST = 8 * 2**20
"""Bytes of a capsule: what can be attached to a report of a fault."""

PACKAGE = "twofold_capsule"
"""The name under which `experiments` is mounted, which nobody else's folder has."""

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
    """A capsule cannot be made or read. The message says what to do."""


@dataclass(frozen=True)
class Content:
    """What a capsule carries beside the program."""

    specs: tuple[Spec, ...]
    """One process each, in the order in which they run."""
    records: tuple[Record, ...]
    """What those that were run at home gave, reduced to evidence."""
    machine: Mapping[str, Any]
    """Facts of the machine at home."""
    blobs: Mapping[str, bytes]
    """Tensors of the records, by digest."""

    @property
    def home(self) -> list[Replay]:
        return replays(self.records)


# Making one.


def carried(spec: Spec) -> Spec:
    """The same question, in the setting of a capsule: this interpreter, verified copies of the sources."""
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
    """Write a capsule with the program that lies below `root`, and give its size in bytes.

    Raises CapsuleError if it would be larger than `LARGEST`, or cannot be written.
    """
    made = _packed(_members(root, content))
    if len(made) > LARGEST:
        raise CapsuleError(
            f"the capsule would have {len(made)} bytes, and may have {LARGEST}: choose fewer scenarios, "
            "such as SCENARIO='checkpoint/*'"
        )
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.write_bytes(made)
        beside.chmod(0o755)
        beside.replace(path)
    except OSError as error:
        raise CapsuleError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        beside.unlink(missing_ok=True)
    return len(made)


def _members(root: Path, content: Content) -> dict[str, bytes]:
    folder = root / "experiments"
    names = {f"scenarios/{spec.question.scenario}.py" for spec in content.specs}
    paths = [*program_files(folder, PORTABLE), *(folder / name for name in names)]
    program = {f"{PACKAGE}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in paths}
    listed, binary = _content(content)
    return {"__main__.py": _MAIN.encode(), **program, "content.json": listed, "content.bin": binary}


def _content(content: Content) -> tuple[bytes, bytes]:
    reduced = [_reduced(record, content.machine) for record in content.records]
    wanted = sorted({name for record in reduced for name in _tensors(record)})
    blobs = [content.blobs[name] for name in wanted]
    listed = {
        "schema": SCHEMA,
        "specs": [spec.to_json() for spec in content.specs],
        "records": [record.to_json() for record in reduced],
        "machine": content.machine,
        "blobs": [[name, len(blob)] for name, blob in zip(wanted, blobs)],
    }
    return canonical(listed).encode("utf-8"), b"".join(blobs)


def _reduced(record: Record, machine: Mapping[str, Any]) -> Record:
    """What a replay is compared by, and what to show of it."""
    nothing = Output(digest(b""), 0, 0)
    seen = record.observation
    if seen is not None:
        seen = replace(seen, memory=(), durations={}, sources=(), machine=digest(canonical(machine)))
    return Record(
        spec=carried(record.spec),
        outcome=replace(record.outcome, traceback=None if record.outcome.traceback is None else ""),
        observation=seen,
        ending=Ending(None, None, "", 0.0, nothing, nothing, None),
    )


def _tensors(record: Record) -> list[str]:
    """Contents that differences are computed from: those of outputs and gradients, in the plain pass."""
    seen = record.observation
    if seen is None or record.spec.question.pass_ != "plain":
        return []
    kept = [tensor for tensor in seen.tensors if tensor.role != "input"]
    named = [part for one in kept for part in (one.digest if one.whole else None, one.samples, one.sketch)]
    return [name for name in named if name is not None]


def _packed(members: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    made.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(made, "a") as file:
        for name in sorted(members):
            put(file, name, members[name])
    return made.getvalue()


# Reading it.


def read(path: Path) -> Content:
    """What the capsule at `path` carries. Raises CapsuleError if it is none, or damaged."""
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
    """Put the program of the capsule below `root`, as it lies in the project, for workers to start from."""
    with zipfile.ZipFile(path) as file:
        for name in file.namelist():
            package, _, inside = name.partition("/")
            if package == PACKAGE and ".." not in inside.split("/"):
                target = root / "experiments" / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read(name))

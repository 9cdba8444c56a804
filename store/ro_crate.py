"""Export records as an RO-Crate for research data archives: a Process Run Crate, in which each process is an action.

    ro-crate-metadata.json     what is here and how it came about, as JSON-LD
    records/<digest>.json      exact text
    specs/<digest>.json        the spec of the process, as in the record
    documents/<digest>.txt     machines and sources

A process that did not finish is a failed action, even where that was expected: the crate states how processes ended,
reports judge. A process that was not run is not an action; its record is included and says why.

The same records give the same metadata. Tensors and outputs are left out; a bundle of the records has the tensors.
"""

from __future__ import annotations

import secrets
import shutil
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence
from urllib.parse import quote

from experiments.bundle.writer import put_member
from experiments.core.canonical_json import RecordError, canonical, digest, parse
from experiments.core.outcome import Outcome
from experiments.core.record import Record
from store.archive import Archive
from store.errors import ArchiveError
from store.index import read_record

PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
LICENSE = "https://spdx.org/licenses/Apache-2.0"

_AGENT = "#whoever-ran-it"
_LONGEST = 1000
"""Most characters of an error in the metadata; the record has all of it."""


@dataclass(frozen=True)
class _Run:
    """A record, and what the metadata needs in addition to it."""

    digest: str
    text: str
    record: Record
    spec: str
    """The spec as the record's text has it, which never changes, and not as this version would write it."""
    torch: str | None
    """Version of torch. None if the process left no facts of its machine, or they lack it."""

    @property
    def performed(self) -> bool:
        return self.record.outcome.kind != "not_run"

    @property
    def file(self) -> str:
        return f"records/{self.digest}.json"

    @property
    def spec_file(self) -> str:
        return f"specs/{digest(self.spec)}.json"

    @property
    def action(self) -> str:
        return f"#run-{self.digest}"

    @property
    def source(self) -> str:
        return str(self.record.spec.question.source)


def export_crate(archive: Archive, digests: Sequence[str], path: Path) -> None:
    """Write the records of these digests, their machines and sources as a crate.

    It is a zip file if `path` ends in ``.zip``, else a new folder. Raises ArchiveError if there are no digests, a
    record lacks a content, or `path` is an existing folder.
    """
    if not digests:
        raise ArchiveError("there is no record to export")
    if path.suffix != ".zip" and path.exists():
        raise ArchiveError(f"{path} is there already, and is left as it is; name a new folder, or a FILE.zip")
    runs = [_load_run(archive, name) for name in sorted(set(digests))]
    files = _files(archive, runs)
    members = {**files, "ro-crate-metadata.json": _metadata(runs, files)}
    try:
        _write_crate(path, members)
    except OSError as error:
        raise ArchiveError(f"{path} cannot be written: {error.strerror or error}") from error


def _load_run(archive: Archive, name: str) -> _Run:
    full, text = archive.record_text(name)
    record = read_record(text)
    seen = record.observation
    torch = None if seen is None else _torch_version(_document_text(archive, seen.machine, "machine"))
    return _Run(full, text, record, canonical(parse(text)["spec"]), torch)


def _torch_version(machine: str) -> str | None:
    try:
        version = parse(machine)["torch"]["version"]
    except (RecordError, KeyError, TypeError):
        return None
    return version if isinstance(version, str) else None


def _document_text(archive: Archive, name: str, kind: str) -> str:
    text = archive.document(name)
    if text is None:
        raise ArchiveError(f"{kind} {name} is missing from the archive; `python -m store check` names what else")
    return text


def _files(archive: Archive, runs: Sequence[_Run]) -> dict[str, bytes]:
    """Return file name -> content, without the metadata."""
    files: dict[str, bytes] = {}
    for run in runs:
        files[run.file] = run.text.encode("utf-8")
        if run.performed:
            files[run.spec_file] = run.spec.encode("utf-8")
    for name, kind in {**_machines(runs), **dict.fromkeys(_sources(runs), "source")}.items():
        files[_document_member(name)] = _document_text(archive, name, kind).encode("utf-8")
    return files


def _document_member(name: str) -> str:
    return f"documents/{name}.txt"


def _machines(runs: Sequence[_Run]) -> dict[str, str]:
    return {run.record.observation.machine: "machine" for run in runs if run.record.observation}


def _sources(runs: Sequence[_Run]) -> dict[str, str]:
    """Return digest -> name of the sources that processes ran and that are stored.

    Of several names for one content, it is the alphabetically first.
    """
    seen = {
        (source.digest, source.name)
        for run in runs
        if run.record.observation
        for source in run.record.observation.sources
        if source.kept
    }
    return dict(sorted(seen, reverse=True))


# Metadata.


def _metadata(runs: Sequence[_Run], files: Mapping[str, bytes]) -> bytes:
    # Slow to import, and needed only here.
    from rocrate.rocrate import ROCrate  # noqa: PLC0415

    crate = ROCrate(version="1.1")
    for name, entity in _entities(runs, files):
        if name in files:
            crate.add_file(dest_path=name, properties={**entity, "contentSize": str(len(files[name]))})
        else:
            crate.add_jsonld({"@id": name, **entity})
    for name, value in _root_properties(runs).items():
        crate.root_dataset[name] = value
    return b"".join(chunk for _, chunk in crate.metadata.stream())


def _entities(runs: Sequence[_Run], files: Mapping[str, bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield id and properties of every entity of the crate: files by name, then the rest by id."""
    kept = _sources(runs)
    entities = {**_document_entities(runs, kept), **_instrument_entities(runs, kept)}
    for run in runs:
        entities.update(_run_entities(run, kept))
    for version in {run.torch for run in runs if run.torch}:
        about = {"name": "PyTorch", "softwareVersion": version, "url": "https://pytorch.org"}
        entities[_application_id(version)] = {"@type": "SoftwareApplication", **about}
    entities.update(_FIXED)
    yield from sorted(entities.items(), key=lambda one: (one[0] not in files, one[0]))


_FIXED: Mapping[str, dict[str, Any]] = {
    LICENSE: {"@type": "CreativeWork", "name": "Apache License 2.0", "description": "SPDX: Apache-2.0"},
    PROFILE: {"@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
    _AGENT: {
        "@type": "Organization",
        "name": "Whoever ran the processes",
        "description": "Records name no people; where a process ran, the facts of its machine say.",
    },
}


def _root_properties(runs: Sequence[_Run]) -> dict[str, Any]:
    actions = [{"@id": run.action} for run in runs if run.performed]
    about = {
        "name": f"Twofold: records of {len(runs)} runs",
        "description": "Records of calculations done twice, each in a process of its own: what was asked, what was"
        f" seen, how it ended. Processes that were started: {len(actions)}; not run, for a reason that the record"
        f" tells: {len(runs) - len(actions)}. Tensors are named by digest and are not part of the crate.",
        "datePublished": max(_times(run)[0] for run in runs)[:10],
        "author": {"@id": _AGENT},
        "license": {"@id": LICENSE},
        "conformsTo": {"@id": PROFILE},
    }
    return {**about, "mentions": _unwrap_single(actions)} if actions else about


def _document_entities(runs: Sequence[_Run], kept: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    machine = {"@type": "File", "name": "Facts of a machine", "encodingFormat": "application/json"}
    documents = {_document_member(name): machine for name in _machines(runs)}
    sources = {_document_member(name): {"@type": "File", "name": path, **_PYTHON} for name, path in kept.items()}
    return {**documents, **sources}


_PYTHON = {"encodingFormat": "text/x-python"}


def _instrument_entities(runs: Sequence[_Run], kept: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return id -> properties of each scenario, with its file only where the archive has it."""
    entities: dict[str, dict[str, Any]] = {}
    for source, scenario in {run.source: run.record.spec.question.scenario for run in runs if run.performed}.items():
        code = {"version": source[:12], "programmingLanguage": "Python"}
        if source in kept:
            about = {"@type": ["File", "SoftwareSourceCode"], "name": kept[source], **_PYTHON, **code}
        else:
            about = {"@type": "SoftwareSourceCode", "name": scenario, **code}
        entities[_instrument_id(source, kept)] = about
    for source, versions in _torch_versions(runs).items():
        applications = [{"@id": _application_id(version)} for version in sorted(versions)]
        entities[_instrument_id(source, kept)]["softwareRequirements"] = _unwrap_single(applications)
    return entities


def _torch_versions(runs: Sequence[_Run]) -> dict[str, set[str]]:
    """Return digest of a scenario's file -> the versions of torch with which the scenario was run."""
    found: dict[str, set[str]] = {}
    for run in runs:
        if run.performed and run.torch:
            found.setdefault(run.source, set()).add(run.torch)
    return found


def _instrument_id(source: str, kept: Mapping[str, str]) -> str:
    return _document_member(source) if source in kept else f"#source-{quote(source)}"


def _application_id(version: str) -> str:
    return f"#torch-{quote(version)}"


def _run_entities(run: _Run, kept: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield id and properties of a record, of its spec, and of the process as an action."""
    plain = {"@type": "File", "encodingFormat": "application/json"}
    question, outcome = run.record.spec.question, run.record.outcome
    title = f"{question.scenario}, {question.label()}, {question.pass_} pass"
    ended = outcome.kind.replace("_", " ") + (f" in {outcome.phase}" if outcome.phase else "")
    yield run.file, {**plain, "name": f"Record of {title}", "description": f"{ended}. {outcome.detail}".strip()}
    if run.performed:
        yield run.spec_file, {**plain, "name": f"What was asked of {title}"}
        description = f"{title}, on {question.device}{f' with torch {run.torch}' if run.torch else ''}: {ended}"
        yield run.action, {"name": f"Run of {title}", "description": description, **_action(run, kept)}


def _action(run: _Run, kept: Mapping[str, str]) -> dict[str, Any]:
    started, ended = _times(run)
    seen = run.record.observation
    results = [run.file, *([_document_member(seen.machine)] if seen else [])]
    return {
        "@type": "CreateAction",
        "agent": {"@id": _AGENT},
        "instrument": {"@id": _instrument_id(run.source, kept)},
        "object": {"@id": run.spec_file},
        "result": _unwrap_single([{"@id": name} for name in results]),
        "startTime": started,
        "endTime": ended,
        **_status(run.record.outcome),
    }


def _status(outcome: Outcome) -> dict[str, str]:
    if outcome.kind == "finished":
        return {"actionStatus": "http://schema.org/CompletedActionStatus"}
    error = ": ".join(part for part in (outcome.type or outcome.kind, outcome.message or outcome.detail) if part)
    cut = error if len(error) <= _LONGEST else f"{error[:_LONGEST]}..."
    return {"actionStatus": "http://schema.org/FailedActionStatus", "error": cut}


def _times(run: _Run) -> tuple[str, str]:
    """Return when the process started and ended: UTC, ISO 8601, to the millisecond."""
    ending = run.record.ending
    try:
        started = datetime.fromisoformat(ending.started_at).astimezone(UTC)
        ended = started + timedelta(seconds=ending.duration)
    except (TypeError, ValueError, OverflowError):
        raise ArchiveError(f"record {run.digest} says no time that can be read: {ending.started_at!r}") from None
    return started.isoformat(timespec="milliseconds"), ended.isoformat(timespec="milliseconds")


def _unwrap_single(values: list[Any]) -> Any:
    # Flattened JSON-LD has no lists of one element.
    return values[0] if len(values) == 1 else values


# Writing.


def _write_crate(path: Path, members: Mapping[str, bytes]) -> None:
    """Write all members or nothing: to a temporary name next to `path`, which is then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        if path.suffix == ".zip":
            _write_zip(temporary, members)
        else:
            _write_folder(temporary, members)
        temporary.replace(path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)


def _write_folder(path: Path, members: Mapping[str, bytes]) -> None:
    for name, content in members.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)


def _write_zip(path: Path, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "x") as file:
        for name in sorted(members):
            put_member(file, name, members[name])

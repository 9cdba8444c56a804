"""Export records and sweeps of an archive as a bundle, one file to be published or sent, and import it.

`experiments.bundle.layout` defines the file format.

A bundle comes from a stranger: nothing in it is trusted before all of it has been checked, no member is ever written to
a path that the file names, nothing is unpickled, and if one thing is wrong nothing is added. The reason for refusing a
bundle is one of the sentences of `layout.REFUSALS`; the limits on its size are defined there, too.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Callable, Collection, Iterable, Iterator, Mapping, Self, Sequence, Union

from sqlalchemy import BigInteger, Integer, String

from experiments.bundle import layout, writer
from experiments.bundle.layout import MANIFEST, SIGNATURE, PackError, refusal
from experiments.bundle.reader import Packed
from experiments.core import bounds
from experiments.core.canonical_json import RecordError, canonical, digest, parse, printable_text
from experiments.core.record import Record
from experiments.core.spec import Spec
from experiments.core.sweep import BundledSweep, SweepError, read_plan, spec_place
from store.archive import Archive, Origin
from store.blobs import is_digest
from store.errors import ArchiveError
from store.index import cell_values, referenced_contents, refuse_invalid_times
from store.integrity import Problem
from store.models import Cell
from store.regular import open_regular, read_regular
from store.sweeps import current_time

_LONGEST_REASON = 300
_FEW = 10
"""Most problems that are reported for one sweep."""
_SOME_TEXT = canonical({"schema": 1})

Sign = Callable[[bytes], bytes]
"""Return the content of ``signature.json`` for the bytes of a manifest."""


Plan = tuple[Spec, ...]
Kept = Union[Record, Plan, BundledSweep]
Keep = Callable[[str, Kept], None]
"""Receive the digest and content of each record, plan and sweep, once it has been checked."""


def export_bundle(
    archive: Archive, digests: Sequence[str], path: Path, sign: Sign | None = None, sweeps: Sequence[str] = ()
) -> None:
    """Write the records of these digests and their contents as a bundle, signed if `sign` is given.

    The bundle also gets these `sweeps`, each with its plan and all its records. Raises ArchiveError if there are no
    records, one of them lacks a content, or they are too many for one bundle.
    """
    chosen = [archive.bundled_sweep(name) for name in dict.fromkeys(sweeps)]
    wanted = {*digests, *(record for _, sweep in chosen for record in sweep.records.values())}
    if not wanted:
        raise ArchiveError("there is no record to export")
    contents = _members(archive, [_record_text(archive, name) for name in sorted(wanted)])
    for plan, sweep in chosen:
        if not sweep.records:
            raise ArchiveError(f"sweep {sweep.id} has no records yet, so there is nothing of it to export")
        contents |= writer.sweep_members(plan, sweep.machine, sweep.number, sweep.started_at, sweep.records)
    try:
        writer.write(path, contents, sign)
    except PackError as error:
        raise ArchiveError(str(error)) from error
    except OSError as error:
        raise ArchiveError(f"{path} cannot be written: {error.strerror or error}") from error


def _members(archive: Archive, texts: Sequence[str]) -> dict[str, bytes]:
    try:
        return writer.members(texts, archive.fetch)
    except PackError as error:
        raise ArchiveError(f"{error} (`python -m store check` names what else is wrong)") from error


def _record_text(archive: Archive, name: str) -> str:
    full, text = archive.record_text(name)
    if digest(text) != full:
        raise ArchiveError(f"record {full} has the digest {digest(text)}: it is not what was stored")
    return text


def add_bundle(archive: Archive, path: Path, sweep: str | None = None) -> list[str]:
    """Import a bundle as `import_bundle` does, and return only the digests of its records."""
    return import_bundle(archive, path, sweep).records


@dataclass(frozen=True)
class Added:
    """What an import added to the archive, or found there already."""

    records: list[str]
    """Digests, sorted."""
    sweeps: list[str]
    """Ids of the imported sweeps."""


def import_bundle(
    archive: Archive, path: Path, sweep: str | None = None, *, sweeps: bool = True, signer: str | None = None
) -> Added:
    """Add every record of a bundle, and its sweeps, or nothing. Idempotent.

    With `sweep` the records belong to that sweep, and with `sweeps` false to none: in both cases the sweeps of the
    bundle are left out. `signer` is the id of the key that signed the bundle, as `signing.verify_signature` returns it.
    Raises ArchiveError, with nothing added, if `check_bundle` finds a problem, the archive has a different sweep with
    the id of one of the sweeps, or `sweep` was run here.
    """
    found: list[BundledSweep] = []
    otherwise = "is refused and nothing was added"

    def keep(_: str, kept: Kept) -> None:
        if isinstance(kept, BundledSweep) and sweeps and sweep is None:
            found.append(kept)

    with _open_bundle(path) as file:
        packed = _accept_bundle(path, file, otherwise, keep)
        if sweep is not None and archive.sweep(sweep).origin is None:
            raise ArchiveError(
                f"{path.name} {otherwise}: sweep {sweep} was run here, and what a file brings is none of its records"
            )
        origin = Origin(printable_text(path.name), digest(packed.content(MANIFEST)), current_time(), signer)
        for one in found:
            try:
                archive.refuse_conflicting_sweep(one, origin)
            except ArchiveError as error:
                raise ArchiveError(f"{path.name} {otherwise}: {error}") from None
        names = sorted(name for name in packed.members if name.startswith("records/"))
        swept = [(_reread_member(packed, f"plans/{one.plan}.json").decode("utf-8"), one) for one in found]

        def texts() -> Iterator[str]:
            return (_reread_member(packed, name).decode("utf-8") for name in names)

        records = archive.add_all(texts, _contents_reader(packed), sweep, origin, swept)
    return Added(records, sorted(one.id for one in found))


def check_bundle(path: Path) -> list[Problem]:
    """Return all problems of a bundle. Raises ArchiveError if the file cannot be read.

    A signature is not verified.
    """
    with _open_bundle(path) as file:
        return _examine_bundle(path, file, _discard_member)[1]


def refuse_excess_of_folder(folder: Path) -> None:
    """Raise ArchiveError if the record of a folder, or one of its contents, exceeds the limits of a bundle, or the
    record is not a regular file. Any other unreadable content is ignored here, and reported when the folder is added.
    """

    def document(name: str) -> str | None:
        if not size(name):
            return None
        return read_regular(folder / "blobs" / name, layout.LARGEST_TEXT, "so it is no facts").decode("utf-8")

    def size(name: str) -> int | None:
        path = folder / "blobs" / name
        return path.stat().st_size if is_digest(name) and path.is_file() else None

    try:
        content = read_regular(folder / "record.json", layout.LARGEST_TEXT, "so it is no record of somebody else's")
        record = Record.from_text(content.decode("utf-8-sig"))
    except (UnicodeDecodeError, RecordError):
        return
    rest = _ContentBounds()
    try:
        bounds.refuse_excess(record)
        rest.note_record(record)
        problem = next(rest.problems(document, size), None)
    except RecordError as error:
        problem = Problem("its record", refusal("record", why=str(error)[:_LONGEST_REASON]))
    except (OSError, UnicodeDecodeError):
        return
    if problem:
        raise ArchiveError(f"{folder}: {problem}")


def manifest_and_signature(path: Path) -> tuple[bytes, bytes | None]:
    """Return the bytes of a bundle's manifest, and those of its signature or None. Nothing else is unpacked.

    Raises ArchiveError if the file is not a bundle, or one of the two cannot be read.
    """
    with _open_bundle(path) as file:
        try:
            packed, problems = _check_layout(path, file)
            if packed is not None and not problems:
                return _manifest_content(packed), _signature_content(packed)
        except PackError as error:
            problems = [Problem(MANIFEST, str(error))]
        except OSError as error:
            raise _unreadable_error(path, error) from None
        raise _refusal_error(path, "is refused", problems)


class Bundle:
    """A checked bundle: its records and sweeps, and the contents of its records as long as it is open."""

    def __init__(self, path: Path, about: Collection[str] | None) -> None:
        """Read a bundle as `read_bundle` does. Raises ArchiveError if anything in it is invalid."""
        found: dict[str, Kept] = {}
        self._file = _open_bundle(path)
        try:
            if about is None:
                self._packed = _accept_bundle(path, self._file, "is refused", found.__setitem__)
            else:
                self._packed = _read_matching_records(path, self._file, found.__setitem__, about)
        except BaseException:
            self._file.close()
            raise
        records = {name: one for name, one in sorted(found.items()) if isinstance(one, Record)}
        self.digests = tuple(records)
        self.records = tuple(records.values())
        """In the same order as `digests`, which is sorted."""
        swept = [one for one in found.values() if isinstance(one, BundledSweep)]
        self.sweeps = tuple(sorted(swept, key=lambda one: (one.started_at, one.id)))
        """Oldest first. Empty if only some records were requested."""
        self.plans: Mapping[str, Plan] = {name: one for name, one in found.items() if isinstance(one, tuple)}
        """Plans of the sweeps, by digest."""

    def fetch(self, name: str) -> bytes | None:
        """Return a tensor, machine or source by its digest, or None if it is not in the bundle.

        Raises ArchiveError if the file has changed since it was opened.
        """
        return _contents_reader(self._packed)(name)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_bundle(path: Path, about: Collection[str] | None = None) -> Bundle:
    """Open and check a bundle. Raises ArchiveError if anything in it is invalid.

    All its records stay in memory: they take about four times their text, at worst thirty times layout.LARGEST_RECORDS.
    With `about` (names of scenarios, digests of their files), only records that name one of these are parsed, kept and
    checked in full; of everything else, sweeps included, only the seal, the layout and the digests are checked, which
    takes a fraction of the time.
    """
    return Bundle(path, about)


def _read_matching_records(path: Path, file: BinaryIO, keep: Keep, about: Collection[str]) -> Packed:
    """Return the bundle, and pass to `keep` only the records that name one of these scenarios."""
    wanted = [one.encode("utf-8") for one in about]
    try:
        packed, problems = _check_layout(path, file)
        if packed is None or problems:
            raise _refusal_error(path, "is refused", problems)
        name = MANIFEST
        listed, rest = _manifest_members(packed), _ContentBounds()
        for name in sorted(packed.members.keys() - {MANIFEST, SIGNATURE}):
            content = _read_member(packed, name, listed.get(name))
            if name.startswith("records/") and any(one in content for one in wanted):
                record = _parse_record(_decode_text(content))
                rest.note_record(record)
                keep(_member_digest(name), record)
        problems = rest.bundle_problems(packed)
        if problems:
            raise _refusal_error(path, "is refused", problems)
    except PackError as error:
        raise _refusal_error(path, "is refused", [Problem(name, str(error))]) from None
    except OSError as error:
        raise _unreadable_error(path, error) from None
    return packed


def _discard_member(name: str, kept: Kept) -> None:
    """Drop a member that is only checked."""


def _open_bundle(path: Path) -> BinaryIO:
    """Open the file. Raises ArchiveError if it is not a regular file, such as a pipe, which would block."""
    return open_regular(path)


def _unreadable_error(path: Path, error: OSError) -> ArchiveError:
    return ArchiveError(f"{path} cannot be read: {error.strerror or error}")


def _accept_bundle(path: Path, file: BinaryIO, otherwise: str, keep: Keep = _discard_member) -> Packed:
    packed, problems = _examine_bundle(path, file, keep)
    if packed is None or problems:
        raise _refusal_error(path, otherwise, problems)
    return packed


def _refusal_error(path: Path, what: str, problems: Sequence[Problem]) -> ArchiveError:
    more = f" (and {len(problems) - 1} more: `python -m store check {shlex.quote(path.name)}`)" if problems[1:] else ""
    return ArchiveError(f"{path.name} {what}: {problems[0]}{more}")


def _examine_bundle(path: Path, file: BinaryIO, keep: Keep) -> tuple[Packed | None, list[Problem]]:
    """Return the bundle, or None if the file is not one, and all its problems. Pass valid members to `keep`."""
    try:
        packed, problems = _check_layout(path, file)
        return packed, problems if packed is None or problems else _check_contents(packed, keep)
    except OSError as error:
        raise _unreadable_error(path, error) from None


def _check_layout(path: Path, file: BinaryIO) -> tuple[Packed | None, list[Problem]]:
    """Return the bundle, or None if the file is not one, and the problems that can be found without unpacking."""
    try:
        packed = Packed(file)
    except PackError as error:
        return None, [Problem(path.name, str(error))]
    return packed, [Problem(_display_name(name), wrong) for name, wrong in packed.member_refusals()]


def _display_name(name: str) -> str:
    """Return a member's name to be shown: it may be any text."""
    return name if layout.is_name(name) else repr(name[:100])


def _check_contents(packed: Packed, keep: Keep) -> list[Problem]:
    """Return the problems of the contents, each of which is unpacked once and each text parsed."""
    try:
        schema, listed = _parse_manifest(packed)
    except PackError as error:
        return [Problem(MANIFEST, str(error))]
    names = packed.members.keys() - {MANIFEST, SIGNATURE}
    problems = [Problem(_display_name(name), refusal("gone")) for name in sorted(listed.keys() - names)]
    problems += [Problem(name, refusal("unlisted")) for name in sorted(names - listed.keys())]
    problems += list(_signature_problems(packed))
    look = _Examination(schema, names, keep)
    # Sweeps come last, as they are compared with the plans and the records.
    for name in sorted(names & listed.keys()):
        try:
            problems += look.examine_member(name, _read_member(packed, name, listed[name]))
        except PackError as error:
            problems.append(Problem(name, str(error)))
    problems += [Problem(name, refusal("needed")) for name in sorted(look.needed - names)]
    problems += look.rest.bundle_problems(packed)
    # Which members are needed is known only if every record and sweep is valid.
    return problems or list(_unneeded_members(names, look.needed))


def _signature_problems(packed: Packed) -> Iterator[Problem]:
    """Yield a problem if the signature cannot be unpacked. Its content is not verified here."""
    try:
        _signature_content(packed)
    except PackError as error:
        yield Problem(SIGNATURE, str(error))


def _signature_content(packed: Packed) -> bytes | None:
    return packed.content(SIGNATURE) if SIGNATURE in packed.members else None


def _unneeded_members(names: set[str], needed: set[str]) -> Iterator[Problem]:
    if not any(name.startswith("records/") for name in names):
        yield Problem(MANIFEST, refusal("empty"))
    for name in sorted(name for name in names - needed if not name.startswith(("records/", "sweeps/"))):
        yield Problem(name, refusal("spare"))


def _read_member(packed: Packed, name: str, listed: Any) -> bytes:
    """Return the content of a member. Raises PackError if it does not match its name and the manifest."""
    content = packed.content(name)
    actual = digest(content)
    if {"digest": actual, "bytes": len(content)} != listed:
        raise PackError(refusal("content", bytes=len(content), digest=actual))
    if actual not in name:
        raise PackError(refusal("name", digest=actual))
    return content


def _decode_text(content: bytes) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise PackError(refusal("text")) from None
    if "\0" in text:
        raise PackError(refusal("text"))
    return text


def _member_digest(name: str) -> str:
    return name.partition("/")[2].partition(".")[0]


class _ContentBounds:
    """Limits on the contents of records: only records say which members are machine facts, sketches and samples."""

    def __init__(self) -> None:
        self._facts: set[str] = set()
        self._sketches: set[str] = set()
        self._samples: set[str] = set()

    def note_record(self, record: Record) -> None:
        if record.observation is not None:
            self._facts.add(record.observation.machine)
            self._sketches |= {tensor.sketch for tensor in record.observation.tensors if tensor.sketch}
            self._samples |= {tensor.samples for tensor in record.observation.tensors if tensor.samples}

    def problems(self, document: Callable[[str], str | None], size: Callable[[str], int | None]) -> Iterator[Problem]:
        """Yield a problem for each available content that exceeds its limit.

        `document` returns a text by digest, and `size` the bytes of a blob; each returns None if it is not available.
        """
        for name in sorted(self._facts):
            try:
                bounds.refuse_excess_facts(document(name) or "")
            except RecordError as error:
                yield Problem(f"documents/{name}.txt", refusal("facts", why=str(error)[:_LONGEST_REASON]))
        for name in sorted(self._sketches):
            if size(name) not in (None, bounds.SKETCH):
                yield Problem(f"blobs/{name}", refusal("sketch", bytes=size(name), right=bounds.SKETCH))
        for name in sorted(self._samples):
            if (size(name) or 0) > bounds.LARGEST_SAMPLE:
                yield Problem(f"blobs/{name}", refusal("sample", bytes=size(name), most=bounds.LARGEST_SAMPLE))

    def bundle_problems(self, packed: Packed) -> list[Problem]:
        def document(name: str) -> str | None:
            try:
                return _decode_text(packed.content(f"documents/{name}.txt"))
            except (PackError, KeyError):
                return None  # Reported where members are checked.

        def size(name: str) -> int | None:
            member = packed.members.get(f"blobs/{name}")
            return None if member is None else member.size

        return list(self.problems(document, size))


class _Examination:
    """State of a check: what the members examined so far contain."""

    def __init__(self, schema: int, names: Collection[str], keep: Keep) -> None:
        self.needed: set[str] = set()
        """Names of the members that others need, except the records that sweeps name."""
        self.rest = _ContentBounds()
        self._schema = schema
        self._names = names
        self._keep = keep
        self._asked: dict[str, int] = {}
        """Digest of a question -> number of its records."""
        self._specs: dict[str, tuple[str, tuple[str, str]]] = {}
        """Digest of a record -> digest and place of its spec."""
        self._places: dict[str, frozenset[tuple[str, str]]] = {}
        """Digest of a plan -> places of its specs."""
        self._sweeps: set[str] = set()
        """Ids of the sweeps."""

    def examine_member(self, name: str, content: bytes) -> Iterable[Problem]:
        """Return the problems of a member in relation to others. Raises PackError if it is invalid by itself."""
        if name.startswith(layout.OF_SWEEPS) and self._schema < layout.FIRST_WITH_SWEEPS:
            raise PackError(refusal("later", schema=self._schema))
        if name.startswith("blobs/"):
            return ()
        text, known = _decode_text(content), _member_digest(name)
        if name.startswith("records/"):
            self._examine_record(known, _parse_record(text))
        elif name.startswith("plans/"):
            self._examine_plan(known, _parse_plan(text))
        elif name.startswith("sweeps/"):
            # A sweep that was made large on purpose may name a million missing records.
            return list(islice(self._examine_sweep(name, _parse_sweep(text)), _FEW))
        return ()

    def _examine_record(self, known: str, record: Record) -> None:
        question = record.spec.question.digest()
        self._asked[question] = self._asked.get(question, 0) + 1
        if self._asked[question] > bounds.MOST_OF_A_QUESTION:
            raise PackError(refusal("often", most=bounds.MOST_OF_A_QUESTION))
        self._keep(known, record)
        self.needed |= set(layout.required_members(record))
        self.rest.note_record(record)
        self._specs[known] = record.spec.digest(), spec_place(record.spec)

    def _examine_plan(self, known: str, plan: Plan) -> None:
        self._keep(known, plan)
        self._places[known] = frozenset(map(spec_place, plan))

    def _examine_sweep(self, name: str, sweep: BundledSweep) -> Iterator[Problem]:
        """Yield the problems of a sweep. Nothing more is reported about a record or plan that was itself refused."""
        self._keep(_member_digest(name), sweep)
        self.needed.add(f"plans/{sweep.plan}.json")
        if sweep.id in self._sweeps:
            yield Problem(name, refusal("sweep twice", id=sweep.id))
        self._sweeps.add(sweep.id)
        planned = self._places.get(sweep.plan)
        for spec, record in sorted(sweep.records.items()):
            own, place = self._specs.get(record, (spec, None))
            if f"records/{record}.json" not in self._names:
                yield Problem(f"records/{record}.json", refusal("needed"))
            elif own != spec:
                yield Problem(name, refusal("other spec", record=record, spec=spec, own=own))
            elif planned is not None and place is not None and place not in planned:
                yield Problem(name, refusal("unplanned", record=record))


def _parse_plan(text: str) -> Plan:
    """Return the specs of a plan. Raises PackError if no archive could store it."""
    try:
        specs = tuple(read_plan(text))
    except SweepError as error:
        raise PackError(refusal("plan", why=str(error)[:_LONGEST_REASON])) from None
    if not _is_canonical(text):
        raise PackError(refusal("plan", why="it is not canonical JSON"))
    return specs


def _parse_sweep(text: str) -> BundledSweep:
    """Return a sweep. Raises PackError if no archive could store it."""
    try:
        sweep = BundledSweep.from_text(text)
    except SweepError as error:
        raise PackError(refusal("sweep", why=str(error)[:_LONGEST_REASON])) from None
    if not _is_canonical(text):
        raise PackError(refusal("sweep", why="it is not canonical JSON"))
    return sweep


def _parse_record(text: str) -> Record:
    """Return the record of a text. Raises PackError if no archive could store it."""
    try:
        record = layout.read_record(text)
        referenced_contents(record)
        _refuse_oversized(cell_values(_SOME_TEXT, record))
        refuse_invalid_times(record)
    except (PackError, ArchiveError) as error:
        raise PackError(refusal("record", why=str(error)[:_LONGEST_REASON])) from None
    except (RecordError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        # Types of values are checked where they are used, and a stranger's record may hold any.
        why = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        raise PackError(refusal("record", why=why)) from None
    return record


def _refuse_oversized(row: dict[str, Any]) -> None:
    """Raise ArchiveError if a value is too large for its column on some database."""
    for column in Cell.__table__.columns:
        value, kind = row[column.name], column.type
        bits = 63 if isinstance(kind, BigInteger) else 31
        if isinstance(kind, Integer) and not -(2**bits) <= value < 2**bits:
            raise ArchiveError(f"{column.name} of the record does not fit into {bits + 1} bits")
        if isinstance(kind, String) and kind.length and len(value or "") > kind.length:
            raise ArchiveError(f"{column.name} of the record has more than {kind.length} characters")


def _manifest_content(packed: Packed) -> bytes:
    if MANIFEST not in packed.members:
        raise PackError(refusal("no manifest"))
    return packed.content(MANIFEST)


def _manifest_members(packed: Packed) -> dict[str, Any]:
    """Return member -> its entry in the manifest. Raises PackError if the manifest is invalid."""
    return _parse_manifest(packed)[1]


def _parse_manifest(packed: Packed) -> tuple[int, dict[str, Any]]:
    """Return the schema and the members of the manifest. Raises PackError if it is invalid."""
    try:
        text = _manifest_content(packed).decode("utf-8")
        data = parse(text)
    except (UnicodeDecodeError, RecordError) as error:
        raise PackError(refusal("manifest", why=error)) from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, bool) or not isinstance(schema, int) or not 1 <= schema <= layout.SCHEMA:
        raise PackError(refusal("schema", schema=repr(schema)[:_LONGEST_REASON], newest=layout.SCHEMA))
    if packed.sealed != (schema >= layout.FIRST_SEALED):
        raise PackError(refusal("sealed" if packed.sealed else "unsealed", schema=schema))
    members = data.get("members")
    if set(data) != {"schema", "members"} or not isinstance(members, dict) or not _is_canonical(text):
        raise PackError(refusal("form"))
    if len(members) > layout.MOST_MEMBERS:
        raise PackError(refusal("many", count=len(members), most=layout.MOST_MEMBERS))
    return schema, members


def _is_canonical(text: str) -> bool:
    try:
        return layout.is_canonical(text)
    except RecordError:
        return False


def _reread_member(packed: Packed, name: str) -> bytes:
    """Return the content of a member that has been checked. Raises ArchiveError if the file has changed since."""
    try:
        content = packed.content(name)
    except (PackError, OSError, ValueError) as error:
        raise ArchiveError(f"{name} of the bundle cannot be read again: {error}") from None
    if digest(content) not in name:
        raise ArchiveError(f"{name} of the bundle has the digest {digest(content)}: the file has changed")
    return content


def _contents_reader(packed: Packed) -> Callable[[str], bytes | None]:
    def content(name: str) -> bytes | None:
        # A text and a tensor of the same digest are in the bundle only once, as either of them.
        found = next((one for one in (f"documents/{name}.txt", f"blobs/{name}") if one in packed.members), None)
        return None if found is None else _reread_member(packed, found)

    return content

"""Bundles: records and sweeps of an archive as one file, to be published or sent, and back. The file is
`experiments.bundle.layout`'s.

A bundle comes from somebody else: nothing of it is believed before all of it has been looked at, no member
is ever written to a path that the file names, nothing is unpickled, and if one thing is wrong nothing is added.
Why one is refused is one of the sentences of `pack.REFUSALS`; what it may take is bounded there.
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
from experiments.core.canonical_json import RecordError, canonical, digest, parse, printable
from experiments.core.record import Record
from experiments.core.spec import Spec
from experiments.core.sweep import BundledSweep, SweepError, place_of, read_plan
from store.archive import Archive, Origin
from store.blobs import is_digest
from store.errors import ArchiveError
from store.index import cell, refuse_no_times, wanted
from store.integrity import Problem
from store.models import Cell
from store.regular import open_regular, read_regular
from store.sweeps import now

_LONGEST_REASON = 300
_FEW = 10
"""Problems that are told of one sweep."""
_SOME_TEXT = canonical({"schema": 1})

Sign = Callable[[bytes], bytes]
"""Gives what is kept as ``signature.json`` for the bytes of a manifest."""


Plan = tuple[Spec, ...]
Kept = Union[Record, Plan, BundledSweep]
Keep = Callable[[str, Kept], None]
"""Gets each member that says something, under its digest, once it has been looked at."""


def export(
    archive: Archive, digests: Sequence[str], path: Path, sign: Sign | None = None, sweeps: Sequence[str] = ()
) -> None:
    """Write the records of these digests, and what they rest on, as a bundle, signed if `sign` is given.

    With it go these sweeps, each with its plan and all its records. Raises ArchiveError if there is no record, or
    one of them lacks something, or they are too many for one bundle.
    """
    told = [archive.bundled(name) for name in dict.fromkeys(sweeps)]
    wanted = {*digests, *(record for _, sweep in told for record in sweep.records.values())}
    if not wanted:
        raise ArchiveError("there is no record to export")
    contents = _members(archive, [_text(archive, name) for name in sorted(wanted)])
    for plan, sweep in told:
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


def _text(archive: Archive, name: str) -> str:
    full, text = archive.record_text(name)
    if digest(text) != full:
        raise ArchiveError(f"record {full} has the digest {digest(text)}: it is not what was stored")
    return text


def add_bundle(archive: Archive, path: Path, sweep: str | None = None) -> list[str]:
    """`add_whole`, which gives the digests of the records alone."""
    return add_whole(archive, path, sweep).records


@dataclass(frozen=True)
class Added:
    """What the archive has of a bundle."""

    records: list[str]
    """Digests, sorted."""
    sweeps: list[str]
    """Ids of the sweeps that the bundle has."""


def add_whole(
    archive: Archive, path: Path, sweep: str | None = None, *, sweeps: bool = True, signer: str | None = None
) -> Added:
    """Add every record of a bundle, and its sweeps, or nothing. Twice is once.

    With `sweep` the records belong to that one, and with `sweeps` false to none: then those of the bundle are left
    out. `signer` is the id of the key that signed it, as `signature.judged` has found. Raises ArchiveError, with
    nothing added, if anything in it is not as `check_bundle` wants it, the archive has another sweep of the id of one
    of them, or `sweep` was run here.
    """
    found: list[BundledSweep] = []
    otherwise = "is refused and nothing was added"

    def keep(_: str, kept: Kept) -> None:
        if isinstance(kept, BundledSweep) and sweeps and sweep is None:
            found.append(kept)

    with _open(path) as file:
        packed = _accepted(path, file, otherwise, keep)
        if sweep is not None and archive.sweep(sweep).origin is None:
            raise ArchiveError(
                f"{path.name} {otherwise}: sweep {sweep} was run here, and what a file brings is none of its records"
            )
        origin = Origin(printable(path.name), digest(packed.content(MANIFEST)), now(), signer)
        for one in found:
            try:
                archive.refuse_another(one, origin)
            except ArchiveError as error:
                raise ArchiveError(f"{path.name} {otherwise}: {error}") from None
        names = sorted(name for name in packed.members if name.startswith("records/"))
        swept = [(_again(packed, f"plans/{one.plan}.json").decode("utf-8"), one) for one in found]

        def texts() -> Iterator[str]:
            return (_again(packed, name).decode("utf-8") for name in names)

        records = archive.add_all(texts, _contents(packed), sweep, origin, swept)
    return Added(records, sorted(one.id for one in found))


def check_bundle(path: Path) -> list[Problem]:
    """Everything in a bundle that is not as it must be. Raises ArchiveError if the file cannot be read.

    A signature is not judged.
    """
    with _open(path) as file:
        return _look_at(path, file, _forget)[1]


def refuse_excess_of_folder(folder: Path) -> None:
    """Raises ArchiveError if the record of a folder, or what it rests on, is larger than one of a bundle may be, or the
    record is no regular file. What else cannot be read is left to whoever adds it.
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
    rest = _Rest()
    try:
        bounds.refuse_excess(record)
        rest.note(record)
        problem = next(rest.excess(document, size), None)
    except RecordError as error:
        problem = Problem("its record", refusal("record", why=str(error)[:_LONGEST_REASON]))
    except (OSError, UnicodeDecodeError):
        return
    if problem:
        raise ArchiveError(f"{folder}: {problem}")


def manifest_and_signature(path: Path) -> tuple[bytes, bytes | None]:
    """The bytes of a bundle's manifest, and what it was signed with, if it was. The rest is not looked at.

    Raises ArchiveError if the file is no bundle, or one of both cannot be read.
    """
    with _open(path) as file:
        try:
            packed, problems = _laid_out(path, file)
            if packed is not None and not problems:
                return _manifest(packed), _signature(packed)
        except PackError as error:
            problems = [Problem(MANIFEST, str(error))]
        except OSError as error:
            raise _unreadable(path, error) from None
        raise _refused(path, "is refused", problems)


class Bundle:
    """The records of a bundle, all of which has been looked at, and what they rest on as long as it is open."""

    def __init__(self, path: Path, about: Collection[str] | None) -> None:
        """Raises ArchiveError as `add_whole` does."""
        found: dict[str, Kept] = {}
        self._file = _open(path)
        try:
            if about is None:
                self._packed = _accepted(path, self._file, "is refused", found.__setitem__)
            else:
                self._packed = _glanced_at(path, self._file, found.__setitem__, about)
        except BaseException:
            self._file.close()
            raise
        records = {name: one for name, one in sorted(found.items()) if isinstance(one, Record)}
        self.digests = tuple(records)
        self.records = tuple(records.values())
        """In the order of their digests, which are `digests`."""
        swept = [one for one in found.values() if isinstance(one, BundledSweep)]
        self.sweeps = tuple(sorted(swept, key=lambda one: (one.started_at, one.id)))
        """Oldest first. Empty if only some records were asked for."""
        self.plans: Mapping[str, Plan] = {name: one for name, one in found.items() if isinstance(one, tuple)}
        """Of the sweeps, by digest."""

    def fetch(self, name: str) -> bytes | None:
        """Tensor, machine or source by its digest, or None if it is not in the bundle.

        Raises ArchiveError if the file has changed since it was opened.
        """
        return _contents(self._packed)(name)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path, about: Collection[str] | None = None) -> Bundle:
    """A bundle, opened. Raises ArchiveError, as `add_whole` does, if anything in it is not as it must be.

    All its records are kept: they take about four times their text, at worst thirty times pack.LARGEST_RECORDS. With
    `about` (names of scenarios, digests of their files), only those that name one of them are parsed, kept and looked
    at closely; of the rest, sweeps included, the seal, the layout and the digests are checked, which takes a fraction
    of the time.
    """
    return Bundle(path, about)


def _glanced_at(path: Path, file: BinaryIO, keep: Keep, about: Collection[str]) -> Packed:
    """The bundle, with the records kept that are about these scenarios."""
    wanted = [one.encode("utf-8") for one in about]
    try:
        packed, problems = _laid_out(path, file)
        if packed is None or problems:
            raise _refused(path, "is refused", problems)
        name = MANIFEST
        listed, rest = _listed(packed), _Rest()
        for name in sorted(packed.members.keys() - {MANIFEST, SIGNATURE}):
            content = _matching(packed, name, listed.get(name))
            if name.startswith("records/") and any(one in content for one in wanted):
                record = _record(_decoded(content))
                rest.note(record)
                keep(_digest_in(name), record)
        problems = rest.excess_in(packed)
        if problems:
            raise _refused(path, "is refused", problems)
    except PackError as error:
        raise _refused(path, "is refused", [Problem(name, str(error))]) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    return packed


def _forget(name: str, kept: Kept) -> None:
    """Of what is only checked nothing is kept."""


def _open(path: Path) -> BinaryIO:
    """Raises ArchiveError if it is no regular file, such as a pipe that would be waited for."""
    return open_regular(path)


def _unreadable(path: Path, error: OSError) -> ArchiveError:
    return ArchiveError(f"{path} cannot be read: {error.strerror or error}")


def _accepted(path: Path, file: BinaryIO, otherwise: str, keep: Keep = _forget) -> Packed:
    packed, problems = _look_at(path, file, keep)
    if packed is None or problems:
        raise _refused(path, otherwise, problems)
    return packed


def _refused(path: Path, what: str, problems: Sequence[Problem]) -> ArchiveError:
    more = f" (and {len(problems) - 1} more: `python -m store check {shlex.quote(path.name)}`)" if problems[1:] else ""
    return ArchiveError(f"{path.name} {what}: {problems[0]}{more}")


def _look_at(path: Path, file: BinaryIO, keep: Keep) -> tuple[Packed | None, list[Problem]]:
    """The bundle, if its file is one at all, and all that is wrong with it; `keep` gets what is right."""
    try:
        packed, problems = _laid_out(path, file)
        return packed, problems if packed is None or problems else _substance(packed, keep)
    except OSError as error:
        raise _unreadable(path, error) from None


def _laid_out(path: Path, file: BinaryIO) -> tuple[Packed | None, list[Problem]]:
    """What can be said without unpacking anything."""
    try:
        packed = Packed(file)
    except PackError as error:
        return None, [Problem(path.name, str(error))]
    return packed, [Problem(_shown(name), wrong) for name, wrong in packed.wrong()]


def _shown(name: str) -> str:
    """A member's name, which may be anything."""
    return name if layout.is_name(name) else repr(name[:100])


def _substance(packed: Packed, keep: Keep) -> list[Problem]:
    """What is wrong with the contents, each of which is unpacked once and each text parsed."""
    try:
        schema, listed = _manifest_of(packed)
    except PackError as error:
        return [Problem(MANIFEST, str(error))]
    names = packed.members.keys() - {MANIFEST, SIGNATURE}
    problems = [Problem(_shown(name), refusal("gone")) for name in sorted(listed.keys() - names)]
    problems += [Problem(name, refusal("unlisted")) for name in sorted(names - listed.keys())]
    problems += list(_wrong_signature(packed))
    look = _Look(schema, names, keep)
    # Sweeps come last: they are held against the plans and the records.
    for name in sorted(names & listed.keys()):
        try:
            problems += look.at(name, _matching(packed, name, listed[name]))
        except PackError as error:
            problems.append(Problem(name, str(error)))
    problems += [Problem(name, refusal("needed")) for name in sorted(look.needed - names)]
    problems += look.rest.excess_in(packed)
    # Without every record and sweep it cannot be said what is needed.
    return problems or list(_spare(names, look.needed))


def _wrong_signature(packed: Packed) -> Iterator[Problem]:
    """What it says is not looked at here, only whether it can be unpacked."""
    try:
        _signature(packed)
    except PackError as error:
        yield Problem(SIGNATURE, str(error))


def _signature(packed: Packed) -> bytes | None:
    return packed.content(SIGNATURE) if SIGNATURE in packed.members else None


def _spare(names: set[str], needed: set[str]) -> Iterator[Problem]:
    if not any(name.startswith("records/") for name in names):
        yield Problem(MANIFEST, refusal("empty"))
    for name in sorted(name for name in names - needed if not name.startswith(("records/", "sweeps/"))):
        yield Problem(name, refusal("spare"))


def _matching(packed: Packed, name: str, listed: Any) -> bytes:
    """The content of a member. Raises PackError if it is not what its name and the manifest say."""
    content = packed.content(name)
    made = digest(content)
    if {"digest": made, "bytes": len(content)} != listed:
        raise PackError(refusal("content", bytes=len(content), digest=made))
    if made not in name:
        raise PackError(refusal("name", digest=made))
    return content


def _decoded(content: bytes) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise PackError(refusal("text")) from None
    if "\0" in text:
        raise PackError(refusal("text"))
    return text


def _digest_in(name: str) -> str:
    return name.partition("/")[2].partition(".")[0]


class _Rest:
    """What records rest on: only they say which of the members are facts of a machine, sketches and samples."""

    def __init__(self) -> None:
        self._facts: set[str] = set()
        self._sketches: set[str] = set()
        self._samples: set[str] = set()

    def note(self, record: Record) -> None:
        if record.observation is not None:
            self._facts.add(record.observation.machine)
            self._sketches |= {tensor.sketch for tensor in record.observation.tensors if tensor.sketch}
            self._samples |= {tensor.samples for tensor in record.observation.tensors if tensor.samples}

    def excess(self, document: Callable[[str], str | None], size: Callable[[str], int | None]) -> Iterator[Problem]:
        """What is larger than it can be, of what is at hand."""
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

    def excess_in(self, packed: Packed) -> list[Problem]:
        def document(name: str) -> str | None:
            try:
                return _decoded(packed.content(f"documents/{name}.txt"))
            except (PackError, KeyError):
                return None  # That is said where members are looked at.

        def size(name: str) -> int | None:
            member = packed.members.get(f"blobs/{name}")
            return None if member is None else member.size

        return list(self.excess(document, size))


class _Look:
    """What the members that were looked at so far say."""

    def __init__(self, schema: int, names: Collection[str], keep: Keep) -> None:
        self.needed: set[str] = set()
        """Names of the members that others need, but for the records that sweeps name."""
        self.rest = _Rest()
        self._schema = schema
        self._names = names
        self._keep = keep
        self._asked: dict[str, int] = {}
        """Digest of a question -> how many records answer it."""
        self._specs: dict[str, tuple[str, tuple[str, str]]] = {}
        """Digest of a record -> digest and place of its spec."""
        self._places: dict[str, frozenset[tuple[str, str]]] = {}
        """Digest of a plan -> places of its specs."""
        self._sweeps: set[str] = set()
        """Ids."""

    def at(self, name: str, content: bytes) -> Iterable[Problem]:
        """What is wrong with a member beside others. Raises PackError if it is not as it must be by itself."""
        if name.startswith(layout.OF_SWEEPS) and self._schema < layout.FIRST_WITH_SWEEPS:
            raise PackError(refusal("later", schema=self._schema))
        if name.startswith("blobs/"):
            return ()
        text, known = _decoded(content), _digest_in(name)
        if name.startswith("records/"):
            self._record(known, _record(text))
        elif name.startswith("plans/"):
            self._plan(known, _plan(text))
        elif name.startswith("sweeps/"):
            # A sweep that was made to be large may name a million records that are missing.
            return list(islice(self._sweep(name, _sweep(text)), _FEW))
        return ()

    def _record(self, known: str, record: Record) -> None:
        question = record.spec.question.digest()
        self._asked[question] = self._asked.get(question, 0) + 1
        if self._asked[question] > bounds.MOST_OF_A_QUESTION:
            raise PackError(refusal("often", most=bounds.MOST_OF_A_QUESTION))
        self._keep(known, record)
        self.needed |= set(layout.needed(record))
        self.rest.note(record)
        self._specs[known] = record.spec.digest(), place_of(record.spec)

    def _plan(self, known: str, plan: Plan) -> None:
        self._keep(known, plan)
        self._places[known] = frozenset(map(place_of, plan))

    def _sweep(self, name: str, sweep: BundledSweep) -> Iterator[Problem]:
        """What is wrong with a sweep. Of a record or plan that was itself refused nothing more is said."""
        self._keep(_digest_in(name), sweep)
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


def _plan(text: str) -> Plan:
    """The specs of a plan. Raises PackError if no archive could keep it."""
    try:
        specs = tuple(read_plan(text))
    except SweepError as error:
        raise PackError(refusal("plan", why=str(error)[:_LONGEST_REASON])) from None
    if not _is_canonical(text):
        raise PackError(refusal("plan", why="it is not canonical JSON"))
    return specs


def _sweep(text: str) -> BundledSweep:
    """A sweep. Raises PackError if no archive could keep it."""
    try:
        sweep = BundledSweep.from_text(text)
    except SweepError as error:
        raise PackError(refusal("sweep", why=str(error)[:_LONGEST_REASON])) from None
    if not _is_canonical(text):
        raise PackError(refusal("sweep", why="it is not canonical JSON"))
    return sweep


def _record(text: str) -> Record:
    """The record of a text. Raises PackError if no archive could keep it."""
    try:
        record = layout.read_record(text)
        wanted(record)
        _fit(cell(_SOME_TEXT, record))
        refuse_no_times(record)
    except (PackError, ArchiveError) as error:
        raise PackError(refusal("record", why=str(error)[:_LONGEST_REASON])) from None
    except (RecordError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        # Kinds of values are looked at where they are used, and a stranger's may be any.
        why = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        raise PackError(refusal("record", why=why)) from None
    return record


def _fit(row: dict[str, Any]) -> None:
    """Raises ArchiveError if a value is too large for its column on some database."""
    for column in Cell.__table__.columns:
        value, kind = row[column.name], column.type
        bits = 63 if isinstance(kind, BigInteger) else 31
        if isinstance(kind, Integer) and not -(2**bits) <= value < 2**bits:
            raise ArchiveError(f"{column.name} of the record does not fit into {bits + 1} bits")
        if isinstance(kind, String) and kind.length and len(value or "") > kind.length:
            raise ArchiveError(f"{column.name} of the record has more than {kind.length} characters")


def _manifest(packed: Packed) -> bytes:
    if MANIFEST not in packed.members:
        raise PackError(refusal("no manifest"))
    return packed.content(MANIFEST)


def _listed(packed: Packed) -> dict[str, Any]:
    """Member -> what the manifest says of it. Raises PackError if this is no manifest that we read."""
    return _manifest_of(packed)[1]


def _manifest_of(packed: Packed) -> tuple[int, dict[str, Any]]:
    """Schema and members."""
    try:
        text = _manifest(packed).decode("utf-8")
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


def _again(packed: Packed, name: str) -> bytes:
    """A member that has been looked at. Raises ArchiveError if the file has changed since."""
    try:
        content = packed.content(name)
    except (PackError, OSError, ValueError) as error:
        raise ArchiveError(f"{name} of the bundle cannot be read again: {error}") from None
    if digest(content) not in name:
        raise ArchiveError(f"{name} of the bundle has the digest {digest(content)}: the file has changed")
    return content


def _contents(packed: Packed) -> Callable[[str], bytes | None]:
    def content(name: str) -> bytes | None:
        # A digest that both a text and a tensor have is in the bundle as either.
        found = next((one for one in (f"documents/{name}.txt", f"blobs/{name}") if one in packed.members), None)
        return None if found is None else _again(packed, found)

    return content

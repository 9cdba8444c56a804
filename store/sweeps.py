"""Sweeps: which specs of a plan have a record, which run of the plan this is, and whether it was run here.

A sweep that was added from a bundle is somebody else's: it is never resumed, never counted, and never called ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import AbstractSet as Set
from typing import Any, Mapping, MutableMapping, Sequence

from sqlalchemy import Connection, and_, insert, select

from experiments.core.canonical_json import digest
from experiments.core.spec import Spec
from experiments.core.sweep import BundledSweep, SweepError, place_of, places, plan_text, sweep_id
from experiments.core.sweep import read_plan as read_specs
from store.blobs import is_digest
from store.errors import ArchiveError
from store.models import ArrivalRow, PlanRow, RecordOriginRow, SweepFileRow, SweepOriginRow, SweepRecordRow, SweepRow
from store.origins import Origin, arrive, deliveries, first_of, run_here

__all__ = ["BundledSweep", "Origin", "Sweep", "SweepProgress", "place_of", "places", "sweep_id"]


@dataclass(frozen=True)
class Sweep:
    """A sweep that a run works on."""

    id: str
    number: int
    """Counts the runs of this plan on this machine, from 1."""
    resumed: bool
    """True if an earlier run left it unfinished."""
    done: frozenset[str]
    """Digests of the planned specs that already have a record in it."""


@dataclass(frozen=True)
class SweepProgress:
    """A sweep as it stands."""

    id: str
    plan: str
    """Digest of the plan."""
    machine: str
    number: int
    started_at: str
    planned: int
    """Specs of the plan."""
    done: int
    """Specs of the plan that have a record."""
    origin: Origin | None = None
    """None if it was run here."""

    @property
    def finished(self) -> bool:
        return self.done == self.planned


def now() -> str:
    """The present moment: UTC, RFC 3339, always equally long so that text sorts by time."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def begin(
    connection: Connection,
    plan: Sequence[Spec],
    machine: str,
    busy: Set[str] = frozenset(),
    unreported: Set[str] = frozenset(),
) -> Sweep:
    """The latest unfinished sweep of this plan on this machine, or else a new one. Wants the write lock.

    `busy` are sweeps that a living driver is at: those are left to it. One of those in `unreported` is unfinished even
    if it has all its records.
    """
    specs = _checked(plan, machine)
    content = plan_text(plan)
    name = digest(content)
    _keep_plan(connection, name, content)
    own = _own_numbers(connection, name, machine)
    for earlier in reversed(own):
        known = sweep_id(name, machine, earlier)
        done = frozenset(links(connection, known)) & specs
        if (done != specs or known in unreported) and known not in busy:
            return Sweep(known, earlier, resumed=True, done=done)
    number = _free_number(connection, name, machine, max(own, default=0) + 1)
    fresh = sweep_id(name, machine, number)
    connection.execute(insert(SweepRow).values(id=fresh, plan=name, machine=machine, number=number, started_at=now()))
    arrive(connection, "sweep", [fresh])
    return Sweep(fresh, number, resumed=False, done=frozenset())


def _keep_plan(connection: Connection, name: str, content: str) -> None:
    if connection.scalar(select(PlanRow.digest).where(PlanRow.digest == name)) is None:
        connection.execute(insert(PlanRow).values(digest=name, text=content))


def _own_numbers(connection: Connection, plan: str, machine: str) -> list[int]:
    """Numbers of the sweeps of this plan on this machine that were run here, in order.

    An added one may name the same machine: anybody can write that into a file.
    """
    mine = select(SweepRow.number).where(SweepRow.plan == plan, SweepRow.machine == machine, run_here())
    return list(connection.scalars(mine.order_by(SweepRow.number)))


def _free_number(connection: Connection, plan: str, machine: str, first: int) -> int:
    """The next number whose id no sweep has, also none of a machine whose digest begins alike."""
    start = sweep_id(plan, machine, 0).removesuffix("0")
    taken = set(connection.scalars(select(SweepRow.id).where(SweepRow.id.startswith(start, autoescape=True))))
    number = first
    while f"{start}{number}" in taken:
        number += 1
    return number


def _checked(plan: Sequence[Spec], machine: str) -> frozenset[str]:
    if not is_digest(machine):
        raise ArchiveError(f"machine {machine!r} is not a SHA-256")
    specs = frozenset(spec.digest() for spec in plan)
    if not specs:
        raise ArchiveError("the plan is empty: there is nothing to sweep")
    if len(specs) != len(plan):
        raise ArchiveError(f"the plan holds {len(plan) - len(specs)} specs twice; each must differ from the others")
    return specs


def links(connection: Connection, sweep: str) -> dict[str, str]:
    """Digest of the spec -> digest of its record, for every record of the sweep."""
    rows = connection.execute(select(SweepRecordRow.spec, SweepRecordRow.record).where(SweepRecordRow.sweep == sweep))
    return {spec: record for spec, record in rows}  # noqa: C416  (rows are not pairs to a type checker)


def planned(connection: Connection, sweep: str, known: MutableMapping[str, list[Spec]]) -> list[Spec]:
    """The specs of the sweep's plan, in order; `known` keeps the last plans that were read, by digest. Raises
    ArchiveError if there is no such sweep.
    """
    name = connection.scalar(select(SweepRow.plan).where(SweepRow.id == sweep)) or ""
    if name not in known:
        read = read_plan(_plan_of(connection, sweep))
        while len(known) >= _PLANS:
            known.pop(next(iter(known)))
        known[name] = read
    return list(known[name])


_PLANS = 8
"""Plans that are kept at hand."""


def _plan_of(connection: Connection, sweep: str) -> str:
    row = connection.execute(
        select(PlanRow.digest, PlanRow.text).join(SweepRow, SweepRow.plan == PlanRow.digest).where(SweepRow.id == sweep)
    ).one_or_none()
    if row is None:
        known = connection.scalars(_in_order(select(SweepRow.id), newest_first=True).limit(3)).all()
        raise ArchiveError(f"there is no sweep {sweep!r}; the latest are {', '.join(known) or 'none at all'}")
    if digest(row.text) != row.digest:
        raise ArchiveError(f"plan {row.digest} does not match its digest: `python -m store check` names what else")
    return str(row.text)


def read_plan(content: str) -> list[Spec]:
    """The specs of a stored plan. Raises ArchiveError if they cannot be read."""
    try:
        return read_specs(content)
    except SweepError as error:
        raise ArchiveError(f"plan {digest(content)} cannot be read: {error}") from None


def link(connection: Connection, sweep: str, spec: str, record: str) -> None:
    """Say that the sweep got this record for the spec. Wants the write lock.

    Raises ArchiveError if it already has another one.
    """
    there = connection.scalar(
        select(SweepRecordRow.record).where(SweepRecordRow.sweep == sweep, SweepRecordRow.spec == spec)
    )
    if there is None:
        connection.execute(insert(SweepRecordRow).values(sweep=sweep, spec=spec, record=record))
    elif there != record:
        raise ArchiveError(
            f"sweep {sweep} already has record {there} for this spec; add {record} without a sweep to keep both"
        )


# From bundles, and into them.


def bundled(connection: Connection, sweep: str) -> tuple[str, BundledSweep]:
    """The plan's text, and the sweep as a bundle has it. Raises ArchiveError if there is no such sweep."""
    plan = _plan_of(connection, sweep)
    row = connection.execute(select(SweepRow.__table__).where(SweepRow.id == sweep)).one()
    return plan, BundledSweep(row.plan, row.machine, row.number, row.started_at, links(connection, sweep))


def refuse_another(connection: Connection, given: BundledSweep, origin: Origin) -> None:
    """Raises ArchiveError if a sweep of its id is there, and is another, or lacks what this one has: only whoever
    signed all that it came in adds to it, and to one that nobody signed only a file that nobody signed.
    """
    row = connection.execute(select(SweepRow.__table__).where(SweepRow.id == given.id)).one_or_none()
    if row is None:
        return
    there = links(connection, given.id)
    came = _came(connection).get(given.id, [])
    more = len(given.records.keys() - there.keys())
    if (row.plan, row.machine, row.started_at) != (given.plan, given.machine, given.started_at):
        found = f"was begun at {row.started_at}, this one at {given.started_at}"
    elif any(there.get(spec, record) != record for spec, record in given.records.items()):
        found = "has other records for the same specs"
    elif not came and more:
        found = f"was run here, and {more} of the records of this one are not its own"
    elif more and _is_of_others(came, origin):
        found = f"came from {first_of(came)}, and {more} of the records of this one are not in it. {_ONE_KEY}"
    else:
        return
    raise ArchiveError(
        f"the archive has another sweep {given.id}: it {found}. `python -m store add --no-sweep` adds the records "
        "alone, and `python -m reports FILE.zip` reports on the file"
    )


_ONE_KEY = "Only who signed all that a sweep came in adds to it, and to one that nobody signed, what nobody signed"


def _is_of_others(came: Sequence[Origin], origin: Origin) -> bool:
    return {one.signer for one in came} != {origin.signer}


def extend(connection: Connection, sweep: str, origin: Origin) -> None:
    """Say that some records of a sweep which was added came from there, too. Wants the write lock.

    Raises ArchiveError if it was run here, or came from somebody else.
    """
    came = _came(connection).get(sweep, [])
    if not came:
        raise ArchiveError(
            f"sweep {sweep} was run here, and what a file or folder brings is none of its records: add it without "
            "--sweep, or run the sweep's own command again, which takes in what it left below outputs/sweeps"
        )
    if _is_of_others(came, origin):
        raise ArchiveError(f"sweep {sweep} came from {first_of(came)}. {_ONE_KEY}: add the records without --sweep")
    _brought(connection, sweep, origin)


def _brought(connection: Connection, sweep: str, origin: Origin) -> None:
    known = select(SweepFileRow.sweep).where(SweepFileRow.sweep == sweep, SweepFileRow.manifest == origin.manifest)
    if connection.scalar(known) is None:
        connection.execute(insert(SweepFileRow).values(sweep=sweep, manifest=origin.manifest))


def take_in(connection: Connection, plan: str, given: BundledSweep, origin: Origin) -> None:
    """Keep a sweep of a bundle, whose records are there and were said to come from `origin`, with its plan. Twice is
    once. Wants the write lock.

    Raises ArchiveError as `refuse_another` does.
    """
    refuse_another(connection, given, origin)
    _keep_plan(connection, given.plan, plan)
    if connection.scalar(select(SweepRow.id).where(SweepRow.id == given.id)) is None:
        row = {"plan": given.plan, "machine": given.machine, "number": given.number, "started_at": given.started_at}
        connection.execute(insert(SweepRow).values(id=given.id, **row))
        told = {"file": origin.file, "manifest": origin.manifest, "added_at": origin.added_at}
        connection.execute(insert(SweepOriginRow).values(sweep=given.id, **told))
        arrive(connection, "sweep", [given.id])
    own = connection.scalar(select(SweepOriginRow.sweep).where(SweepOriginRow.sweep == given.id)) is None
    if not own:
        _brought(connection, given.id, origin)
    there = links(connection, given.id)
    fresh = [
        {"sweep": given.id, "spec": spec, "record": record}
        for spec, record in sorted(given.records.items())
        if spec not in there
    ]
    if fresh:
        connection.execute(insert(SweepRecordRow), fresh)


def _came(connection: Connection) -> dict[str, list[Origin]]:
    """The files that brought each sweep which was added, in the order in which they came in."""
    found: dict[str, set[str]] = {}
    for sweep, manifest in connection.execute(select(SweepFileRow.sweep, SweepFileRow.manifest)):
        found.setdefault(sweep, set()).add(manifest)
    came = deliveries(connection)
    return {
        sweep: [one for manifest, ways in came.items() if manifest in brought for one in ways]
        for sweep, brought in found.items()
    }


# How they stand.


def _in_order(query: Any, *, newest_first: bool = False) -> Any:
    """Sweeps in the order in which they came in: a time in one that was added is whatever its writer chose."""
    query = query.outerjoin(ArrivalRow, and_(ArrivalRow.kind == "sweep", ArrivalRow.name == SweepRow.id))
    place = ArrivalRow.number
    return query.order_by(place.desc() if newest_first else place, SweepRow.id)


def progress(
    connection: Connection, without: Set[str] = frozenset(), records: Set[str] = frozenset()
) -> list[SweepProgress]:
    """Every sweep but those `without`, in the order in which they came in, as if these `records` were not there. Each
    plan is read once, however many sweeps have it.
    """
    came, linked = _came(connection), _linked(connection)
    brought: dict[str, set[str]] = {}
    for record, manifest in connection.execute(select(RecordOriginRow.record, RecordOriginRow.manifest)):
        brought.setdefault(manifest, set()).add(record)
    planned: dict[str, frozenset[str]] = {}
    found = []
    for row in connection.execute(_in_order(select(SweepRow))).all():
        if row.id in without:
            continue
        if row.plan not in planned:
            text = connection.scalar(select(PlanRow.text).where(PlanRow.digest == row.plan))
            planned[row.plan] = frozenset(spec.digest() for spec in read_plan(text or ""))
        specs = planned[row.plan]
        done = {spec: record for spec, record in linked.get(row.id, ()) if spec in specs and record not in records}
        origin = _origin(came[row.id], set(done.values()), brought) if row.id in came else None
        told = (row.id, row.plan, row.machine, row.number, row.started_at)
        found.append(SweepProgress(*told, len(specs), len(done), origin))
    return found


def _linked(connection: Connection) -> dict[str, list[tuple[str, str]]]:
    """Spec and record of all that each sweep has."""
    found: dict[str, list[tuple[str, str]]] = {}
    for sweep, spec, record in connection.execute(
        select(SweepRecordRow.sweep, SweepRecordRow.spec, SweepRecordRow.record)
    ):
        found.setdefault(sweep, []).append((spec, record))
    return found


def _origin(came: Sequence[Origin], records: Set[str], brought: Mapping[str, Set[str]]) -> Origin:
    """Where a sweep came from: each file with how many of its records it brought, unless all of them did."""
    shares = {one.manifest: len(records & brought.get(one.manifest, set())) for one in came}
    if set(shares.values()) == {len(records)}:
        return first_of(came)
    return first_of([replace(one, share=f"{shares[one.manifest]} of {len(records)}") for one in came])

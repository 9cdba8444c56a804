"""Sweeps: which specs of a plan have a record, which run of the plan this is, and whether it was run here.

A sweep that was added from a bundle is not ours: it is never resumed, and never counted among the runs of a plan here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import AbstractSet as Set
from typing import Any, Mapping, MutableMapping, Sequence

from sqlalchemy import Connection, and_, insert, select

from experiments.core.canonical_json import digest
from experiments.core.spec import Spec
from experiments.core.sweep import BundledSweep, SweepError, plan_places, plan_text, spec_place, sweep_id
from experiments.core.sweep import read_plan as read_specs
from store.blobs import is_digest
from store.errors import ArchiveError
from store.models import ArrivalRow, PlanRow, RecordOriginRow, SweepFileRow, SweepOriginRow, SweepRecordRow, SweepRow
from store.origins import Origin, add_arrivals, deliveries, first_origin, is_run_here

__all__ = ["BundledSweep", "Origin", "Sweep", "SweepProgress", "plan_places", "spec_place", "sweep_id"]


@dataclass(frozen=True)
class Sweep:
    """A sweep that a run starts or resumes."""

    id: str
    number: int
    """Counts the runs of this plan on this machine, from 1."""
    resumed: bool
    """True if an earlier run left it unfinished."""
    done: frozenset[str]
    """Digests of the planned specs that already have a record in it."""


@dataclass(frozen=True)
class SweepProgress:
    """A sweep and how much of it is done."""

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
        """Whether every spec of the plan has a record."""
        return self.done == self.planned


def current_time() -> str:
    """Return the current time in UTC, RFC 3339, with a fixed length, so that the text sorts by time."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def begin_sweep(
    connection: Connection,
    plan: Sequence[Spec],
    machine: str,
    busy: Set[str] = frozenset(),
    unreported: Set[str] = frozenset(),
) -> Sweep:
    """Return the latest unfinished sweep of this plan on this machine, or else a new one. Needs the write lock.

    Sweeps in `busy` have a living driver and are skipped. A sweep in `unreported` is unfinished even if it has all its
    records. Raises ArchiveError if the plan is empty or holds a spec twice, or `machine` is not a SHA-256.
    """
    specs = _spec_digests(plan, machine)
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
    connection.execute(
        insert(SweepRow).values(id=fresh, plan=name, machine=machine, number=number, started_at=current_time())
    )
    add_arrivals(connection, "sweep", [fresh])
    return Sweep(fresh, number, resumed=False, done=frozenset())


def _keep_plan(connection: Connection, name: str, content: str) -> None:
    if connection.scalar(select(PlanRow.digest).where(PlanRow.digest == name)) is None:
        connection.execute(insert(PlanRow).values(digest=name, text=content))


def _own_numbers(connection: Connection, plan: str, machine: str) -> list[int]:
    """Return the numbers of the sweeps of this plan on this machine that were run here, in order.

    An added sweep may name the same machine: anyone can write that into a file.
    """
    mine = select(SweepRow.number).where(SweepRow.plan == plan, SweepRow.machine == machine, is_run_here())
    return list(connection.scalars(mine.order_by(SweepRow.number)))


def _free_number(connection: Connection, plan: str, machine: str, first: int) -> int:
    """Return the next number whose id is free, also among sweeps of a machine whose digest has the same beginning."""
    start = sweep_id(plan, machine, 0).removesuffix("0")
    taken = set(connection.scalars(select(SweepRow.id).where(SweepRow.id.startswith(start, autoescape=True))))
    number = first
    while f"{start}{number}" in taken:
        number += 1
    return number


def _spec_digests(plan: Sequence[Spec], machine: str) -> frozenset[str]:
    if not is_digest(machine):
        raise ArchiveError(f"machine {machine!r} is not a SHA-256")
    specs = frozenset(spec.digest() for spec in plan)
    if not specs:
        raise ArchiveError("the plan is empty: there is nothing to sweep")
    if len(specs) != len(plan):
        raise ArchiveError(f"the plan holds {len(plan) - len(specs)} specs twice; each must differ from the others")
    return specs


def links(connection: Connection, sweep: str) -> dict[str, str]:
    """Return digest of the spec -> digest of its record, for every record of the sweep."""
    rows = connection.execute(select(SweepRecordRow.spec, SweepRecordRow.record).where(SweepRecordRow.sweep == sweep))
    return {spec: record for spec, record in rows}  # noqa: C416  (rows are not pairs to a type checker)


def planned_specs(connection: Connection, sweep: str, known: MutableMapping[str, list[Spec]]) -> list[Spec]:
    """Return the specs of the sweep's plan, in order. `known` caches the last plans by digest.

    Raises ArchiveError if there is no such sweep.
    """
    name = connection.scalar(select(SweepRow.plan).where(SweepRow.id == sweep)) or ""
    if name not in known:
        read = read_plan(_plan_text(connection, sweep))
        while len(known) >= _PLANS:
            known.pop(next(iter(known)))
        known[name] = read
    return list(known[name])


_PLANS = 8
"""Most plans in the cache."""


def _plan_text(connection: Connection, sweep: str) -> str:
    row = connection.execute(
        select(PlanRow.digest, PlanRow.text).join(SweepRow, SweepRow.plan == PlanRow.digest).where(SweepRow.id == sweep)
    ).one_or_none()
    if row is None:
        known = connection.scalars(_order_by_arrival(select(SweepRow.id), newest_first=True).limit(3)).all()
        raise ArchiveError(f"there is no sweep {sweep!r}; the latest are {', '.join(known) or 'none at all'}")
    if digest(row.text) != row.digest:
        raise ArchiveError(f"plan {row.digest} does not match its digest: `python -m store check` names what else")
    return str(row.text)


def read_plan(content: str) -> list[Spec]:
    """Return the specs of a stored plan. Raises ArchiveError if they cannot be read."""
    try:
        return read_specs(content)
    except SweepError as error:
        raise ArchiveError(f"plan {digest(content)} cannot be read: {error}") from None


def link_record(connection: Connection, sweep: str, spec: str, record: str) -> None:
    """Store that the sweep got this record for the spec. Needs the write lock.

    Raises ArchiveError if the sweep already has another record for it.
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


# Import from and export to bundles.


def bundled_sweep(connection: Connection, sweep: str) -> tuple[str, BundledSweep]:
    """Return the plan's text, and the sweep as a bundle stores it.

    Raises ArchiveError if there is no such sweep.
    """
    plan = _plan_text(connection, sweep)
    row = connection.execute(select(SweepRow.__table__).where(SweepRow.id == sweep)).one()
    return plan, BundledSweep(row.plan, row.machine, row.number, row.started_at, links(connection, sweep))


def refuse_conflicting_sweep(connection: Connection, given: BundledSweep, origin: Origin) -> None:
    """Raise ArchiveError if the archive has a different sweep of this id, or one that lacks records of this one.

    A sweep that was run here takes no records. An added one takes them only from a file that is signed by the same key
    as all files that brought the sweep, or is unsigned as all of them are.
    """
    row = connection.execute(select(SweepRow.__table__).where(SweepRow.id == given.id)).one_or_none()
    if row is None:
        return
    there = links(connection, given.id)
    came = _origins_by_sweep(connection).get(given.id, [])
    more = len(given.records.keys() - there.keys())
    if (row.plan, row.machine, row.started_at) != (given.plan, given.machine, given.started_at):
        reason = f"was begun at {row.started_at}, this one at {given.started_at}"
    elif any(there.get(spec, record) != record for spec, record in given.records.items()):
        reason = "has other records for the same specs"
    elif not came and more:
        reason = f"was run here, and {more} of the records of this one are not its own"
    elif more and _has_other_signers(came, origin):
        reason = f"came from {first_origin(came)}, and {more} of the records of this one are not in it. {_ONE_KEY}"
    else:
        return
    raise ArchiveError(
        f"the archive has another sweep {given.id}: it {reason}. `python -m store add --no-sweep` adds the records "
        "alone, and `python -m reports FILE.zip` reports on the file"
    )


_ONE_KEY = "Only who signed all that a sweep came in adds to it, and to one that nobody signed, what nobody signed"


def _has_other_signers(came: Sequence[Origin], origin: Origin) -> bool:
    return {one.signer for one in came} != {origin.signer}


def extend_sweep(connection: Connection, sweep: str, origin: Origin) -> None:
    """Store that records of an added sweep also came from this origin. Needs the write lock.

    Raises ArchiveError if the sweep was run here, or came from another signer.
    """
    came = _origins_by_sweep(connection).get(sweep, [])
    if not came:
        raise ArchiveError(
            f"sweep {sweep} was run here, and what a file or folder brings is none of its records: add it without "
            "--sweep, or run the sweep's own command again, which takes in what it left below outputs/sweeps"
        )
    if _has_other_signers(came, origin):
        raise ArchiveError(f"sweep {sweep} came from {first_origin(came)}. {_ONE_KEY}: add the records without --sweep")
    _add_sweep_file(connection, sweep, origin)


def _add_sweep_file(connection: Connection, sweep: str, origin: Origin) -> None:
    known = select(SweepFileRow.sweep).where(SweepFileRow.sweep == sweep, SweepFileRow.manifest == origin.manifest)
    if connection.scalar(known) is None:
        connection.execute(insert(SweepFileRow).values(sweep=sweep, manifest=origin.manifest))


def add_bundled_sweep(connection: Connection, plan: str, given: BundledSweep, origin: Origin) -> None:
    """Store a sweep of a bundle with the text of its plan. Idempotent. Needs the write lock.

    Its records and their `origin` must already be stored. Raises ArchiveError as `refuse_conflicting_sweep` does.
    """
    refuse_conflicting_sweep(connection, given, origin)
    _keep_plan(connection, given.plan, plan)
    if connection.scalar(select(SweepRow.id).where(SweepRow.id == given.id)) is None:
        row = {"plan": given.plan, "machine": given.machine, "number": given.number, "started_at": given.started_at}
        connection.execute(insert(SweepRow).values(id=given.id, **row))
        source = {"file": origin.file, "manifest": origin.manifest, "added_at": origin.added_at}
        connection.execute(insert(SweepOriginRow).values(sweep=given.id, **source))
        add_arrivals(connection, "sweep", [given.id])
    own = connection.scalar(select(SweepOriginRow.sweep).where(SweepOriginRow.sweep == given.id)) is None
    if not own:
        _add_sweep_file(connection, given.id, origin)
    there = links(connection, given.id)
    fresh = [
        {"sweep": given.id, "spec": spec, "record": record}
        for spec, record in sorted(given.records.items())
        if spec not in there
    ]
    if fresh:
        connection.execute(insert(SweepRecordRow), fresh)


def _origins_by_sweep(connection: Connection) -> dict[str, list[Origin]]:
    """Return added sweep -> the files that brought it, in the order of arrival."""
    found: dict[str, set[str]] = {}
    for sweep, manifest in connection.execute(select(SweepFileRow.sweep, SweepFileRow.manifest)):
        found.setdefault(sweep, set()).add(manifest)
    came = deliveries(connection)
    return {
        sweep: [one for manifest, ways in came.items() if manifest in brought for one in ways]
        for sweep, brought in found.items()
    }


# Progress.


def _order_by_arrival(query: Any, *, newest_first: bool = False) -> Any:
    """Order a query of sweeps by arrival: the time in an added sweep is whatever its writer chose."""
    query = query.outerjoin(ArrivalRow, and_(ArrivalRow.kind == "sweep", ArrivalRow.name == SweepRow.id))
    place = ArrivalRow.number
    return query.order_by(place.desc() if newest_first else place, SweepRow.id)


def sweep_progress(
    connection: Connection, without: Set[str] = frozenset(), records: Set[str] = frozenset()
) -> list[SweepProgress]:
    """Return the progress of every sweep except those in `without`, in the order of arrival.

    The `records` given are treated as absent. Each plan is read once, however many sweeps have it.
    """
    came, linked = _origins_by_sweep(connection), _links_by_sweep(connection)
    brought: dict[str, set[str]] = {}
    for record, manifest in connection.execute(select(RecordOriginRow.record, RecordOriginRow.manifest)):
        brought.setdefault(manifest, set()).add(record)
    planned: dict[str, frozenset[str]] = {}
    rows = []
    for row in connection.execute(_order_by_arrival(select(SweepRow))).all():
        if row.id in without:
            continue
        if row.plan not in planned:
            text = connection.scalar(select(PlanRow.text).where(PlanRow.digest == row.plan))
            planned[row.plan] = frozenset(spec.digest() for spec in read_plan(text or ""))
        specs = planned[row.plan]
        done = {spec: record for spec, record in linked.get(row.id, ()) if spec in specs and record not in records}
        origin = _sweep_origin(came[row.id], set(done.values()), brought) if row.id in came else None
        columns = (row.id, row.plan, row.machine, row.number, row.started_at)
        rows.append(SweepProgress(*columns, len(specs), len(done), origin))
    return rows


def _links_by_sweep(connection: Connection) -> dict[str, list[tuple[str, str]]]:
    """Return sweep -> pairs of spec and record."""
    found: dict[str, list[tuple[str, str]]] = {}
    for sweep, spec, record in connection.execute(
        select(SweepRecordRow.sweep, SweepRecordRow.spec, SweepRecordRow.record)
    ):
        found.setdefault(sweep, []).append((spec, record))
    return found


def _sweep_origin(came: Sequence[Origin], records: Set[str], brought: Mapping[str, Set[str]]) -> Origin:
    """Return the origin of a sweep, with the share of records of each file, unless every file brought all of them."""
    shares = {one.manifest: len(records & brought.get(one.manifest, set())) for one in came}
    if set(shares.values()) == {len(records)}:
        return first_origin(came)
    return first_origin([replace(one, share=f"{shares[one.manifest]} of {len(records)}") for one in came])

"""Sweeps: which specs of a plan have a record, and which run of the plan this is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import AbstractSet as Set
from typing import Sequence

from sqlalchemy import Connection, func, insert, select

from experiments.record import RecordError, Spec, canonical, digest, parse, upgraded_spec
from store.blobs import is_digest
from store.errors import ArchiveError
from store.models import PlanRow, SweepRecordRow, SweepRow


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

    @property
    def finished(self) -> bool:
        return self.done == self.planned


def now() -> str:
    """The present moment: UTC, RFC 3339, always equally long so that text sorts by time."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def sweep_id(plan: str, machine: str, number: int) -> str:
    """Name of a sweep, readable enough to type."""
    return f"{plan[:12]}-{machine[:8]}-{number}"


def begin(connection: Connection, plan: Sequence[Spec], machine: str, busy: Set[str] = frozenset()) -> Sweep:
    """The latest unfinished sweep of this plan on this machine, or else a new one. Wants the write lock.

    `busy` are sweeps that a living driver is at: those are left to it.
    """
    specs = _checked(plan, machine)
    text = canonical([spec.to_json() for spec in plan])
    name = digest(text)
    if connection.scalar(select(PlanRow.digest).where(PlanRow.digest == name)) is None:
        connection.execute(insert(PlanRow).values(digest=name, text=text))
    mine = (SweepRow.plan == name, SweepRow.machine == machine)
    number = connection.scalar(select(func.max(SweepRow.number)).where(*mine)) or 0
    for earlier in range(number, 0, -1):
        known = sweep_id(name, machine, earlier)
        done = frozenset(links(connection, known)) & specs
        if done != specs and known not in busy:
            return Sweep(known, earlier, resumed=True, done=done)
    fresh = sweep_id(name, machine, number + 1)
    connection.execute(
        insert(SweepRow).values(id=fresh, plan=name, machine=machine, number=number + 1, started_at=now())
    )
    return Sweep(fresh, number + 1, resumed=False, done=frozenset())


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


def planned(connection: Connection, sweep: str) -> list[Spec]:
    """The specs of the sweep's plan, in order. Raises ArchiveError if there is no such sweep."""
    row = connection.execute(
        select(PlanRow.digest, PlanRow.text).join(SweepRow, SweepRow.plan == PlanRow.digest).where(SweepRow.id == sweep)
    ).one_or_none()
    if row is None:
        known = connection.scalars(select(SweepRow.id).order_by(SweepRow.started_at.desc()).limit(3)).all()
        raise ArchiveError(f"there is no sweep {sweep!r}; the latest are {', '.join(known) or 'none at all'}")
    if digest(row.text) != row.digest:
        raise ArchiveError(f"plan {row.digest} does not match its digest: `python -m store check` names what else")
    return read_plan(row.text)


def read_plan(text: str) -> list[Spec]:
    """The specs of a stored plan. Raises ArchiveError if they cannot be read."""
    try:
        return [Spec.from_json(upgraded_spec(data)) for data in parse(text)]
    except (RecordError, TypeError, KeyError) as error:
        raise ArchiveError(f"plan {digest(text)} cannot be read: {error}") from None


def place_of(spec: Spec) -> tuple[str, str]:
    """What a spec has in common with its further attempts: the question, and the replay it belongs to."""
    return spec.question.digest(), spec.replay_digest()


def places(plan: Sequence[Spec]) -> dict[tuple[str, str], int]:
    """Position in the plan by `place_of`."""
    return {place_of(spec): position for position, spec in enumerate(plan)}


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


def progress(connection: Connection) -> list[SweepProgress]:
    """Every sweep, oldest first."""
    rows = connection.execute(
        select(SweepRow, PlanRow.text)
        .join(PlanRow, SweepRow.plan == PlanRow.digest)
        .order_by(SweepRow.started_at, SweepRow.id)
    )
    return [
        SweepProgress(row.id, row.plan, row.machine, row.number, row.started_at, *_count(connection, row.id, row.text))
        for row in rows.all()
    ]


def _count(connection: Connection, sweep: str, plan: str) -> tuple[int, int]:
    specs = frozenset(spec.digest() for spec in read_plan(plan))
    return len(specs), len(specs & links(connection, sweep).keys())

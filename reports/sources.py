"""Sources of the sweep that is reported on: the archive, or a bundle, which is read in place.

A bundle without sweeps (of an early schema, or of selected records) is treated as one sweep: all its records of the
computer with the most records, each spec once. The sweep is named after the file, as no run is known to have made it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Collection, Mapping, Protocol, Self, Sequence

from experiments.analysis.causes import is_counter_replay
from experiments.core.canonical_json import RecordError, digest, parse
from experiments.core.environment import machine_identity
from experiments.core.record import Record
from experiments.core.spec import Spec
from experiments.core.sweep import plan_places, spec_place
from store import bundles
from store.archive import ArchiveError, Excluded, Origin


class Named(Protocol):
    """A sweep that can be selected by its id."""

    @property
    def id(self) -> str: ...


class Source(Protocol):
    """What a report reads from an archive or from a bundle."""

    def sweeps(self) -> Sequence[Named]: ...
    def sweep_plan(self, name: str, /) -> Sequence[Spec]: ...
    def records(self, *, sweep: str) -> Sequence[Record]: ...
    def records_of_cases(self, cases: Collection[str], without: Collection[str], /) -> Sequence[Record]: ...
    def origins(self, digests: Collection[str], /) -> Mapping[str, Origin | None]: ...
    def excluded_items(self) -> Excluded: ...
    def document(self, name: str, /) -> str | None: ...
    def fetch(self, name: str, /) -> bytes | None: ...


@dataclass(frozen=True)
class SweepOfFile:
    """A sweep of a bundle."""

    id: str
    plan: tuple[Spec, ...]
    records: tuple[Record, ...]
    """In the order of the plan."""


class BundleSource:
    """The sweeps of an open bundle."""

    def __init__(self, path: Path) -> None:
        """Open the bundle. Raise ArchiveError if anything in the file is invalid."""
        self.path = path
        self._bundle = bundles.read_bundle(path)
        self.digests = frozenset(self._bundle.digests)
        """Digests of all its records."""
        self.carries_sweeps = bool(self._bundle.sweeps)
        """False if it has no sweep, so that its records are treated as one."""
        sweeps = _sweeps(self._bundle) if self.carries_sweeps else [_sweep_of_all_records(path.stem, self._bundle)]
        self._sweeps = {one.id: one for one in sweeps}

    @property
    def stem(self) -> str:
        """The file name of a report on it, without suffix."""
        return re.sub(r"[^\w.-]", "_", self.path.stem)

    def sweeps(self) -> Sequence[SweepOfFile]:
        """Return the sweeps, oldest first."""
        return list(self._sweeps.values())

    def latest_sweep(self) -> str:
        """Return the id of the latest sweep that is not a counter-replay, or else of the latest sweep."""
        own = [one.id for one in self._sweeps.values() if not is_counter_replay(one.plan[0].setting.environment)]
        return [*self._sweeps, *own][-1]

    def sweep_plan(self, name: str, /) -> Sequence[Spec]:
        """Return the plan of a sweep. Raise ArchiveError if there is no such sweep."""
        return self._sweep(name).plan

    def records(self, *, sweep: str) -> Sequence[Record]:
        """Return the records of a sweep, in the order of its plan. Raise ArchiveError if there is no such sweep."""
        return self._sweep(sweep).records

    def _sweep(self, name: str) -> SweepOfFile:
        if name not in self._sweeps:
            raise ArchiveError(f"there is no sweep {name!r} in {self.path.name}; it has {', '.join(self._sweeps)}")
        return self._sweeps[name]

    def records_of_cases(self, cases: Collection[str], without: Collection[str], /) -> Sequence[Record]:
        """Return all records of the cases with these case digests, except those with a digest in `without`."""
        pairs = zip(self._bundle.digests, self._bundle.records, strict=True)
        return [one for name, one in pairs if name not in without and one.spec.question.case_digest() in cases]

    def origins(self, digests: Collection[str], /) -> Mapping[str, Origin | None]:
        """Return no origin for each digest: all records are of this file."""
        return dict.fromkeys(digests)

    def excluded_items(self) -> Excluded:
        """Return no exclusions: a file is read as it is."""
        return Excluded()

    def document(self, name: str, /) -> str | None:
        """Return a text by its digest, or None if the bundle does not have it."""
        content = self._bundle.fetch(name)
        return None if content is None else content.decode("utf-8", "backslashreplace")

    def fetch(self, name: str, /) -> bytes | None:
        """Return content by its digest, or None if the bundle does not have it."""
        return self._bundle.fetch(name)

    def close(self) -> None:
        """Close the bundle."""
        self._bundle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sweeps(found: bundles.Bundle) -> list[SweepOfFile]:
    records = dict(zip(found.digests, found.records, strict=True))
    sweeps = []
    for sweep in found.sweeps:
        plan = found.plans[sweep.plan]
        order = plan_places(plan)
        own = [records[name] for name in sweep.records.values()]
        own.sort(key=lambda one: (order[spec_place(one.spec)], one.spec.setting.attempt))
        sweeps.append(SweepOfFile(sweep.id, plan, tuple(own)))
    return sweeps


def _sweep_of_all_records(name: str, found: bundles.Bundle) -> SweepOfFile:
    """Return the records of a bundle without sweeps as one sweep, ordered by their start."""
    latest = {
        one.spec.digest(): one
        for one in sorted(_records_of_one_computer(found), key=lambda one: (one.ending.started_at, digest(one.text())))
    }
    return SweepOfFile(name, tuple(one.spec for one in latest.values()), tuple(latest.values()))


def _records_of_one_computer(found: bundles.Bundle) -> list[Record]:
    """Return the records of the computer that has the most, and those without machine facts."""
    by_computer: dict[str, list[Record]] = {}
    mute = []
    for record in found.records:
        if record.observation is None:
            mute.append(record)
        else:
            by_computer.setdefault(_computer_key(found, record.observation.machine), []).append(record)
    most = max(sorted(by_computer.items()), key=lambda one: len(one[1]), default=("", []))
    return [*most[1], *mute]


def _computer_key(found: bundles.Bundle, machine: str) -> str:
    """Return a key of the computer: its identity, or else the digest of its machine document.

    The two are never confused: anyone could write a text whose digest equals an identity.
    """
    try:
        return f"identity {machine_identity(parse((found.fetch(machine) or b'').decode('utf-8')))}"
    except (RecordError, UnicodeDecodeError, KeyError, TypeError):
        return f"document {machine}"

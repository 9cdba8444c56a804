"""Where a sweep is that is reported on: in the archive, or in a bundle, which is read where it lies.

A bundle of before there were sweeps in them, or of chosen records, is taken as one sweep: all its records of the
computer that has most of them, each spec once. It bears the name of the file, as no run is known to have made it.
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
from experiments.core.sweep import place_of, places
from store import bundles
from store.archive import ArchiveError, Excluded, Origin


class Named(Protocol):
    """A sweep, as far as it is chosen by name."""

    @property
    def id(self) -> str: ...


class Source(Protocol):
    """What a report needs of the archive, and what a bundle has as well."""

    def sweeps(self) -> Sequence[Named]: ...
    def sweep_plan(self, name: str, /) -> Sequence[Spec]: ...
    def records(self, *, sweep: str) -> Sequence[Record]: ...
    def about(self, cases: Collection[str], without: Collection[str], /) -> Sequence[Record]: ...
    def origins(self, digests: Collection[str], /) -> Mapping[str, Origin | None]: ...
    def excluded(self) -> Excluded: ...
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
    """The sweeps of a bundle, as long as it is open."""

    def __init__(self, path: Path) -> None:
        """Raises ArchiveError if anything in the file is not as it must be."""
        self.path = path
        self._bundle = bundles.read(path)
        self.digests = frozenset(self._bundle.digests)
        """Of all its records."""
        self.carries_sweeps = bool(self._bundle.sweeps)
        """False if its records are taken as one sweep for want of another."""
        made = _sweeps(self._bundle) if self.carries_sweeps else [_one_sweep(path.stem, self._bundle)]
        self._sweeps = {one.id: one for one in made}

    @property
    def stem(self) -> str:
        """How a report on it is called, as a file."""
        return re.sub(r"[^\w.-]", "_", self.path.stem)

    def sweeps(self) -> Sequence[SweepOfFile]:
        """Oldest first."""
        return list(self._sweeps.values())

    def latest(self) -> str:
        """The sweep that was begun last and is no counter-replay, if there is one."""
        own = [one.id for one in self._sweeps.values() if not is_counter_replay(one.plan[0].setting.environment)]
        return [*self._sweeps, *own][-1]

    def sweep_plan(self, name: str, /) -> Sequence[Spec]:
        return self._sweep(name).plan

    def records(self, *, sweep: str) -> Sequence[Record]:
        return self._sweep(sweep).records

    def _sweep(self, name: str) -> SweepOfFile:
        if name not in self._sweeps:
            raise ArchiveError(f"there is no sweep {name!r} in {self.path.name}; it has {', '.join(self._sweeps)}")
        return self._sweeps[name]

    def about(self, cases: Collection[str], without: Collection[str], /) -> Sequence[Record]:
        """All records of these cases, by their case digest, but for those of the digests `without`."""
        pairs = zip(self._bundle.digests, self._bundle.records, strict=True)
        return [one for name, one in pairs if name not in without and one.spec.question.case_digest() in cases]

    def origins(self, digests: Collection[str], /) -> Mapping[str, Origin | None]:
        """All are of this file."""
        return dict.fromkeys(digests)

    def excluded(self) -> Excluded:
        """Nothing: a file is read as it is."""
        return Excluded()

    def document(self, name: str, /) -> str | None:
        content = self._bundle.fetch(name)
        return None if content is None else content.decode("utf-8", "backslashreplace")

    def fetch(self, name: str, /) -> bytes | None:
        return self._bundle.fetch(name)

    def close(self) -> None:
        self._bundle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sweeps(found: bundles.Bundle) -> list[SweepOfFile]:
    records = dict(zip(found.digests, found.records, strict=True))
    made = []
    for sweep in found.sweeps:
        plan = found.plans[sweep.plan]
        order = places(plan)
        own = [records[name] for name in sweep.records.values()]
        own.sort(key=lambda one: (order[place_of(one.spec)], one.spec.setting.attempt))
        made.append(SweepOfFile(sweep.id, plan, tuple(own)))
    return made


def _one_sweep(name: str, found: bundles.Bundle) -> SweepOfFile:
    """The records of a bundle that has no sweep, by their start."""
    latest = {
        one.spec.digest(): one
        for one in sorted(_of_one_computer(found), key=lambda one: (one.ending.started_at, digest(one.text())))
    }
    return SweepOfFile(name, tuple(one.spec for one in latest.values()), tuple(latest.values()))


def _of_one_computer(found: bundles.Bundle) -> list[Record]:
    """The records of the computer that has most of them, and those that left no facts of theirs."""
    by_computer: dict[str, list[Record]] = {}
    mute = []
    for record in found.records:
        if record.observation is None:
            mute.append(record)
        else:
            by_computer.setdefault(_computer(found, record.observation.machine), []).append(record)
    most = max(sorted(by_computer.items()), key=lambda one: len(one[1]), default=("", []))
    return [*most[1], *mute]


def _computer(found: bundles.Bundle, machine: str) -> str:
    """Its identity; for facts that do not tell one, which document they are. A document's digest is never taken for an
    identity: anybody can write the text of which an identity is the digest.
    """
    try:
        return f"identity {machine_identity(parse((found.fetch(machine) or b'').decode('utf-8')))}"
    except (RecordError, UnicodeDecodeError, KeyError, TypeError):
        return f"document {machine}"

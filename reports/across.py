"""What there is to say about one sweep beside other machines, as values: no file is read, nothing is rendered here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from typing import Any, Container, Iterator, Mapping, Sequence

from experiments.agreement import Agreement, Fetch, Noise, limits, noise, rank, steps
from experiments.classes import (
    CAPABILITY,
    FLIP,
    INTERPRETER,
    THREADS,
    Cause,
    Class,
    Machine,
    Split,
    causes,
    classes,
    machines,
    splits,
)
from experiments.record import Replay, canonical
from experiments.verdict import contexts
from reports.reported import Reported

AGREES = 2
"""Ranks up to this one agree: identical, and equal within rounding."""
CANNOT = 6
"""The rank of what cannot be compared."""


@dataclass(frozen=True)
class Origin:
    """Replays from one place: a sweep, the rest of the archive, a bundle."""

    name: str
    """``here``, ``archive``, or the name of a bundle."""
    replays: tuple[Replay, ...]
    facts: Mapping[str, Mapping[str, Any]]
    """Machine documents by digest."""


@dataclass(frozen=True)
class Pair:
    """One case here and on another machine."""

    machine: str
    ours: Replay
    theirs: Replay | None
    """None if it was not run there."""
    agreement: Agreement

    @property
    def compared(self) -> bool:
        """Whether it ran on both sides, so that there is something to say."""
        return self.theirs is not None and _ran(self.ours) and _ran(self.theirs)

    @property
    def differs(self) -> bool:
        """By more than rounding. What ran on both sides and still cannot be compared is no finding."""
        return self.compared and AGREES < self.agreement.rank < CANNOT

    @property
    def scenario(self) -> str:
        return self.ours.spec.question.scenario

    @property
    def label(self) -> str:
        return self.ours.spec.question.label()


@dataclass(frozen=True)
class Distances:
    """Gradients of one pair of machines, element by element, in units in the last place of their own dtype."""

    machine: str
    counts: tuple[int, ...]
    """Elements by bin, as in `BINS`."""
    largest: int
    tensors: int
    """Gradients compared."""
    cases: int
    """Cases whose gradients were compared."""
    left_out: int
    """Cases that ran on both sides and have no gradients to compare."""
    differing_left_out: int
    """Of those, cases that differ beyond rounding or in outcome."""

    @property
    def elements(self) -> int:
        return sum(self.counts)


BINS = ((0, "same bits"), (1, "1"), (3, "2 to 3"), (15, "4 to 15"), (255, "16 to 255"), (65535, "256 to 65535"))
"""Largest number of ULP in each bin, and its name. What is beyond is in one more."""
BIN_NAMES = (*(name for _, name in BINS), "more")


@dataclass(frozen=True)
class Across:
    """One sweep beside other machines."""

    here: Machine
    others: tuple[Machine, ...]
    known: tuple[Machine, ...]
    """The others, and those that only a counter-replay has made, which prove causes."""
    pairs: tuple[Pair, ...]
    classes: tuple[Class, ...]
    splits: tuple[Split, ...]
    causes: Mapping[str, tuple[Cause, ...]]
    """By name of the other machine."""
    distances: tuple[Distances, ...]
    reported: tuple[Reported, ...]
    planned: int
    """Cases that the sweep set out to run."""

    @cached_property
    def by_machine(self) -> dict[str, list[Pair]]:
        found: dict[str, list[Pair]] = {machine.name: [] for machine in self.others}
        for pair in self.pairs:
            found[pair.machine].append(pair)
        return found

    @property
    def differing(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.differs]


def _ran(replay: Replay) -> bool:
    return replay.plain is not None and replay.plain.outcome.kind != "not_run"


def is_ruler(replay: Replay) -> bool:
    """A reference in float64 that only serves to measure rounding: used, and not compared."""
    return replay.spec.question.dtype != replay.spec.question.input_dtype


def across(
    sweep: Origin, others: Sequence[Origin], fetch: Fetch, reported: Sequence[Reported], planned: int
) -> Across | None:
    """The sweep's machine beside those of the other origins. None if the sweep has run nothing."""
    own = machines(sweep.replays, sweep.facts)
    if not own:
        return None
    key = max(own, key=lambda one: len(own[one][1]))
    here = Machine("here", "here", own[key][0], tuple(own[key][1]))
    asked = {replay.spec.question.case_digest() for replay in here.replays}
    known = list(_others(here, key, others, asked))
    listed = [machine for machine in known if not _is_flip(machine)]
    ours = _Measured(here, fetch)
    pairs = tuple(pair for machine in listed for pair in _pairs(here, ours, machine, fetch))
    whole = [here, *listed]
    return Across(
        here=here,
        others=tuple(listed),
        known=tuple(known),
        pairs=pairs,
        classes=tuple(classes(whole)),
        splits=tuple(splits(whole)),
        causes={machine.name: tuple(causes(here, machine, known)) for machine in listed},
        distances=tuple(distances(machine.name, pairs, fetch) for machine in listed),
        reported=tuple(reported),
        planned=planned,
    )


def _is_flip(machine: Machine) -> bool:
    return all(replay.spec.setting.environment.startswith(FLIP) for replay in machine.replays)


def _others(here: Machine, key: tuple[str, str], others: Sequence[Origin], asked: set[str]) -> Iterator[Machine]:
    """Machines that have run something of what is asked here, each under a name of its own. What the archive has of
    this very machine is its own past, and no other machine.
    """
    taken = {here.name}
    for origin in others:
        for own, (factors, replays) in sorted(machines(origin.replays, origin.facts).items()):
            mine = origin.name == "archive" and own == key
            if mine or not any(replay.spec.question.case_digest() in asked for replay in replays):
                continue
            name = _free(_name(own[0], factors, here), taken)
            taken.add(name)
            yield Machine(name, origin.name, factors, tuple(replays))


def _free(name: str, taken: Container[str]) -> str:
    """The name, numbered if another machine has it."""
    return next(one for one in chain([name], (f"{name}-{number}" for number in count(2))) if one not in taken)


def _name(environment: str, factors: Mapping[str, Mapping[str, str]], here: Machine) -> str:
    """The environment, and what a reader tells machines apart by where that does not say it."""
    other = Machine("", "", factors, ())
    parts = [environment]
    if _fact(other, INTERPRETER, "torch.version") != _fact(here, INTERPRETER, "torch.version"):
        parts.append(f"torch-{_fact(other, INTERPRETER, 'torch.version').partition('+')[0]}")
    if environment in ("default", "capsule", "interpreter"):
        for factor, fact in ((CAPABILITY, "cpu.capability"), (THREADS, "switches.threads")):
            if _fact(other, factor, fact) != _fact(here, factor, fact):
                parts.append(f"{fact.rpartition('.')[2]}-{_fact(other, factor, fact)}".lower())
    if "gpu.name" in other.factors.get("GPU", {}):
        parts.append("cuda")
    if _fact(other, "host", "host") != _fact(here, "host", "host"):
        parts.append(_fact(other, "host", "host")[:4])
    return "-".join(part.replace(" ", "_") for part in parts)


def _fact(machine: Machine, factor: str, name: str) -> str:
    return machine.factors.get(factor, {}).get(name, "")


class _Measured:
    """What the replays of a machine show of rounding, by case: measured when it is first asked for."""

    def __init__(self, machine: Machine, fetch: Fetch) -> None:
        self._fetch, self._found = fetch, dict[str, Noise]()
        self._replays = machine.by_case
        every = dict(zip(map(id, machine.replays), contexts(machine.replays, fetch)))
        self._contexts = {case: every[id(replay)] for case, replay in machine.by_case.items()}

    def noise(self, case: str) -> Noise:
        if case not in self._found:
            its = self._contexts[case]
            self._found[case] = noise(self._replays[case], its.reference, its.float64, its.repeats, self._fetch)
        return self._found[case]


def _pairs(here: Machine, ours: _Measured, other: Machine, fetch: Fetch) -> Iterator[Pair]:
    theirs = _Measured(other, fetch)
    for case, replay in here.by_case.items():
        if is_ruler(replay):
            continue
        found = other.by_case.get(case)
        if found is None:
            yield Pair(other.name, replay, None, Agreement(CANNOT, _absent(replay, other), "", ()))
            continue
        agreement = rank(replay, found, fetch)
        if agreement.rank not in (1, CANNOT):
            agreement = rank(replay, found, fetch, limits(ours.noise(case), theirs.noise(case)))
        yield Pair(other.name, replay, found, agreement)


def _absent(replay: Replay, other: Machine) -> str:
    """Why a case is not there."""
    question = replay.spec.question
    asked = [one.spec.question for one in other.replays]
    sources = {one.source for one in asked if one.scenario == question.scenario}
    if not sources:
        return "the scenario was not run there"
    if question.source not in sources:
        return "the scenario file was another when it was run there"
    return "the case was not run there"


def distances(machine: str, pairs: Sequence[Pair], fetch: Fetch) -> Distances:
    """How far the gradients of a machine are from ours, and of how many cases that says nothing."""
    counts, tensors = Counter[int](), 0
    largest, used, left = 0, 0, list[Pair]()
    for pair in pairs:
        if pair.machine != machine or not pair.compared:
            continue
        found = list(_gradients(pair, fetch)) if pair.agreement.rank <= 4 else []
        if not found:
            left.append(pair)
            continue
        used, tensors = used + 1, tensors + len(found)
        largest = max(largest, *(max(many, default=0) for many in found))
        counts.update(_bin(number) for many in found for number in many)
    by_bin = tuple(counts[at] for at in range(len(BIN_NAMES)))
    return Distances(machine, by_bin, largest, tensors, used, len(left), sum(pair.differs for pair in left))


def _bin(number: int) -> int:
    return next((at for at, (most, _) in enumerate(BINS) if number <= most), len(BINS))


def _gradients(pair: Pair, fetch: Fetch) -> Iterator[list[int]]:
    ours, theirs = (
        replay.plain.observation if replay and replay.plain else None for replay in (pair.ours, pair.theirs)
    )
    if ours is None or theirs is None:
        return
    others = {tensor.name: tensor for tensor in theirs.tensors if tensor.role == "gradient"}
    for tensor in ours.tensors:
        other = others.get(tensor.name)
        if tensor.role == "gradient" and other is not None and tensor.digest and other.digest:
            found = steps(tensor, other, fetch)
            if found is not None:
                yield found


def as_json(found: Across) -> str:
    """Every pair with the rule that decided it, and the classes: canonical JSON."""
    return canonical(
        {
            "machines": [
                {"name": one.name, "origin": one.origin, "factors": {k: dict(v) for k, v in one.factors.items()}}
                for one in (found.here, *found.others)
            ],
            "pairs": [_pair(pair) for pair in found.pairs],
            "classes": [[member.name for member in one.members] for one in found.classes],
            "splits": [[one.factor, one.decides, one.of, one.values, one.along, one.pairs] for one in found.splits],
            "causes": {
                name: [[one.factor, one.ours, one.theirs, one.word, one.followed, one.of, one.by] for one in listed]
                for name, listed in found.causes.items()
            },
        }
    )


def _largest(agreement: Agreement) -> dict[str, Any] | None:
    """Of the tensors that were compared. None if all have the same bits, or none was compared."""
    found = [one for one in agreement.differences if not one.same_bits and one.compared]
    if not found:
        return None
    one = max(found, key=lambda each: each.absolute)
    return {"tensor": f"{one.role} {one.name}", "absolute": one.absolute, "relative": one.relative, "ulp": one.ulp}


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "machine": pair.machine,
        "scenario": pair.scenario,
        "case": pair.label,
        "device": pair.ours.spec.question.device,
        "ours": pair.ours.content_digest(),
        "theirs": None if pair.theirs is None else pair.theirs.content_digest(),
        "compared": pair.compared,
        "rank": pair.agreement.rank,
        "rule": pair.agreement.rule,
        "first difference": pair.agreement.first,
        "largest difference": _largest(pair.agreement),
    }

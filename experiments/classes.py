"""Machines, the agreement classes that they fall into, and which of their facts decides the bits.

A machine is a computer in one environment: the same computer under another CPU capability is another machine. What
tells machines apart is sorted into *factors*: facts that change together, because one thing sets them. A factor is
the *cause* of a difference if a machine that differs from ours in that factor alone has the bits of the other.

Pure: replays in, values out. Only the standard library is imported here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Mapping, Sequence

from .record import VARIABLES, Replay, digest, printable

CAPABILITY = "CPU capability"
MKL = "MKL mode"
THREADS = "threads"
PRECISION = "matmul precision"
INTERPRETER = "interpreter"
SOURCES = "sources"
VARIABLE = "variable "
SWITCH = "switch "

_FACTORS: Mapping[str, str] = {
    "cpu.capability": CAPABILITY,
    "variables.MKL_CBWR": MKL,
    "switches.threads": THREADS,
    "switches.matmul_precision": PRECISION,
    "switches.tf32.matmul": PRECISION,
    "setting.sources": SOURCES,
    "host": "host",
}
_FAMILIES = (
    ("torch.", INTERPRETER),
    ("python.", INTERPRETER),
    ("compiler.triton", INTERPRETER),
    ("cpu.mkl", INTERPRETER),
    ("cpu.", "processor"),
    ("gpu", "GPU"),
    ("system.", "system"),
    ("compiler.", "system"),
)
_DERIVED = (
    "cpu.cores",
    "cpu.usable_cores",
    "switches.threads.interop",
    "torch.build",
    "torch.parallel",
    "variables.ATEN_CPU_CAPABILITY",
    "variables.OMP_NUM_THREADS",
)
"""Facts that follow from others, or that no calculation with a given number of threads depends on."""

MOST = 300
"""Facts of a machine that are looked at; a worker tells of 75."""
_UNREADABLE = "not readable"


@dataclass(frozen=True)
class Machine:
    """A computer in one environment, as its replays show it."""

    name: str
    """As it is shown: unique among the machines that are compared."""
    origin: str
    """``here``, ``archive``, or the name of the bundle it comes from."""
    factors: Mapping[str, Mapping[str, str]]
    """Facts by factor."""
    replays: tuple[Replay, ...]

    @cached_property
    def by_case(self) -> dict[str, Replay]:
        """The latest first replay of each case that ran, by the digest of what was asked; one that could not run
        stands only where none did.
        """
        ordered = sorted(self.replays, key=lambda one: (_ran(one), -one.spec.setting.repeat, _started(one)))
        return {replay.spec.question.case_digest(): replay for replay in ordered}

    @cached_property
    def evidence(self) -> dict[str, str]:
        """Evidence digest by case and passes, of cases that were run and repeat their results."""
        return {
            f"{case} {' '.join(sorted(replay.records))}": replay.evidence_digest()
            for case, replay in self.by_case.items()
            if _says_something(replay)
        }


def _ran(replay: Replay) -> bool:
    return replay.plain is not None and replay.plain.outcome.kind != "not_run"


def _started(replay: Replay) -> str:
    return min((record.ending.started_at for record in replay.records.values()), default="")


# Facts and factors.


def flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Facts of a machine by dotted name. Texts of several lines are told by digest."""
    found: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}."))
        else:
            text = str(value)
            found[prefix + name] = f"SHA-256 {digest(printable(text))[:12]}" if "\n" in text else text
    return found


def factors(facts: Mapping[str, Any], sources: str) -> dict[str, dict[str, str]]:
    """Facts sorted by what sets them; `sources` is the setting's."""
    found: dict[str, dict[str, str]] = {}
    told = dict(sorted(flat(facts).items())[:MOST])
    for name, value in {**told, "setting.sources": sources}.items():
        if name not in _DERIVED and value != _UNREADABLE:
            found.setdefault(_factor(name), {})[name] = value
    return found


def _factor(name: str) -> str:
    if name in _FACTORS:
        return _FACTORS[name]
    if name.startswith("variables."):
        return VARIABLE + name.partition(".")[2]
    if name.startswith("switches."):
        return SWITCH + name.partition(".")[2]
    return next((factor for start, factor in _FAMILIES if name.startswith(start)), name)


def differing(ours: Machine, theirs: Machine) -> list[str]:
    """The factors in which two machines differ, sorted.

    A switch that one of them cannot read does not count, nor does a fact that one of them does not tell: an older
    version may not have asked. A variable that is not told is not set.
    """
    names = {*ours.factors, *theirs.factors}
    return sorted(name for name in names if _differs(name, ours.factors.get(name), theirs.factors.get(name)))


def _differs(name: str, ours: Mapping[str, str] | None, theirs: Mapping[str, str] | None) -> bool:
    if ours is None or theirs is None:
        return ours is not theirs and not name.startswith(SWITCH)
    both = ours.keys() & theirs.keys()
    return not both or any(ours[fact] != theirs[fact] for fact in both)


def value(machine: Machine, factor: str, other: Machine | None = None) -> str:
    """A factor's facts in words; beside another machine only those that differ."""
    ours = machine.factors.get(factor, {})
    theirs = other.factors.get(factor, {}) if other is not None else {}
    shown = [name for name in sorted({*ours, *theirs}) if other is None or ours.get(name) != theirs.get(name)]
    if len(shown) < 2:
        return ours.get(shown[0], "not set") if shown else "not set"
    shown.sort(key=lambda name: (not name.endswith(".version"), name != "torch.version", name))
    return ", ".join(f"{name} {ours.get(name, 'not set')}" for name in shown)


# Machines out of replays.


def machines(
    replays: Sequence[Replay], facts: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[str, str], tuple[Mapping[str, Mapping[str, str]], list[Replay]]]:
    """Replays by machine: environment and factors. `facts` are machine documents by digest.

    A replay that left no facts (it never ran, or died first) belongs to the machine with most replays among those of
    its environment; if there is none, to nobody.
    """
    found: dict[tuple[str, str], tuple[Mapping[str, Mapping[str, str]], list[Replay]]] = {}
    mute: list[Replay] = []
    whole = _only_copied(replays)
    for replay in replays:
        document = facts.get(replay.machine)
        if not isinstance(document, Mapping):
            mute.append(replay)
            continue
        environment = replay.spec.setting.environment
        sorted_ = factors(document, "copied" if environment in whole else "original")
        key = (environment, digest(repr(sorted(sorted_.items()))))
        found.setdefault(key, (sorted_, []))[1].append(replay)
    for replay in mute:
        own = [many for (environment, _), (_, many) in found.items() if environment == replay.spec.setting.environment]
        if own:
            max(own, key=len).append(replay)
    return found


def _only_copied(replays: Sequence[Replay]) -> set[str]:
    """Environments all of whose replays ran from copied sources; one copy among originals is a repeat. A capsule
    always runs from a copy, which is no choice of anybody's.
    """
    seen: dict[str, set[str]] = {}
    for replay in replays:
        seen.setdefault(replay.spec.setting.environment, set()).add(replay.spec.setting.sources)
    return {name for name, kinds in seen.items() if kinds == {"copied"} and name != "capsule"}


# Agreement classes.


@dataclass(frozen=True)
class Class:
    """Machines that have the same evidence in every case that they share."""

    members: tuple[Machine, ...]
    """The first is the representative."""
    cases: int
    """Cases that the representative has run."""

    @property
    def representative(self) -> Machine:
        return self.members[0]


def _says_something(replay: Replay) -> bool:
    """A float64 reference is a ruler: used, and not compared."""
    plain, question = replay.plain, replay.spec.question
    if plain is None or question.dtype != question.input_dtype:
        return False
    return _ran(replay) and plain.evidence() != {"varies": True}


def classes(listed: Sequence[Machine]) -> list[Class]:
    """Each machine joins the first class whose representative it shares a case with and agrees with in all shared
    ones; the order of the machines decides who represents.
    """
    seen = {machine.name: machine.evidence for machine in listed}
    groups: list[list[Machine]] = []
    for machine in listed:
        if not seen[machine.name]:
            continue
        fitting = (group for group in groups if _same(seen[group[0].name], seen[machine.name]))
        group = next(fitting, None)
        if group is None:
            groups.append([machine])
        else:
            group.append(machine)
    return [Class(tuple(group), len(seen[group[0].name])) for group in groups]


def _same(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Of equal passes: one that was looked at in fewer is not the same question."""
    shared = ours.keys() & theirs.keys()
    return bool(shared) and all(ours[case] == theirs[case] for case in shared)


# Which facts go with the classes.


@dataclass(frozen=True)
class Split:
    """A factor, and for how many of the cases whose evidence is not the same everywhere it would decide it."""

    factor: str
    decides: int
    """Cases in which machines of one value always have one evidence."""
    of: int
    """Cases whose evidence is not the same on all machines."""
    values: int
    """Values that the factor has among the machines."""
    along: int
    """Pairs of the first machine with another, case by case, that differ in evidence and in the factor."""
    pairs: int
    """Those pairs that differ in evidence."""


def splits(listed: Sequence[Machine]) -> list[Split]:
    """Factors ranked: by the cases of the first machine that they would decide, then by how many differences from it
    they go along with, then by how few values they need for it, as a fact that is different on every machine goes with
    any difference; the host, which explains nothing, after its equals.
    """
    seen = {machine.name: machine.evidence for machine in listed}
    cases = sorted(seen[listed[0].name]) if listed else []
    open_ = [case for case in cases if len({found[case] for found in seen.values() if case in found}) > 1]
    names = sorted({name for machine in listed for name in machine.factors})
    made = []
    for name in names:
        # As in `differing`: a switch that a machine cannot read says nothing.
        able = [machine for machine in listed if name in machine.factors or not name.startswith(SWITCH)]
        values = {machine.name: repr(machine.factors.get(name)) for machine in able}
        if len(set(values.values())) < 2:
            continue
        decides = sum(_decided(case, seen, values) for case in open_)
        along, pairs = _along(name, listed, open_)
        if decides or along:
            made.append(Split(name, decides, len(open_), len(set(values.values())), along, pairs))
    return sorted(made, key=lambda one: (-one.decides, -one.along, one.values, one.factor == "host", one.factor))


def _along(name: str, listed: Sequence[Machine], cases: Sequence[str]) -> tuple[int, int]:
    """How many differences from the first machine the factor goes along with, and how many there are."""
    first = listed[0]
    numbers = {
        other.name: sum(case in other.evidence and other.evidence[case] != first.evidence[case] for case in cases)
        for other in listed[1:]
    }
    along = sum(numbers[other.name] for other in listed[1:] if name in differing(first, other))
    return along, sum(numbers.values())


def _decided(case: str, seen: Mapping[str, Mapping[str, str]], values: Mapping[str, str]) -> bool:
    """Whether the evidence is a function of the value, of more than one."""
    by_value: dict[str, set[str]] = {}
    for name, found in seen.items():
        if case in found and name in values:
            by_value.setdefault(values[name], set()).add(found[case])
    return len(by_value) > 1 and all(len(digests) == 1 for digests in by_value.values())


# Proven causes.


PROVEN = "proven"
IN_PART = "proven in part"
NOT_THE_CAUSE = "not the cause"
OTHER_BITS = "changes the bits, but not to these"
OPEN = "not flipped yet"
CANNOT = "cannot be flipped here"


@dataclass(frozen=True)
class Cause:
    """What flipping one factor did to the cases in which another machine differs from ours."""

    factor: str
    ours: str
    theirs: str
    word: str
    followed: int
    """Cases whose evidence became the other machine's when this factor alone was flipped."""
    of: int
    """Cases that differ, and that were run with this factor flipped."""
    by: str
    """Name of the machine that shows it: ours but for this factor. Empty if there is none."""
    why: str
    """Why it cannot be flipped. Empty otherwise."""


def causes(ours: Machine, theirs: Machine, listed: Sequence[Machine]) -> list[Cause]:
    """Each factor in which the two differ, and whether the bits follow it: first what is proven."""
    first, second = ours.evidence, theirs.evidence
    unlike = sorted(case for case in first.keys() & second.keys() if first[case] != second[case])
    if not unlike:
        return []
    found = [_cause(factor, ours, theirs, listed, unlike) for factor in differing(ours, theirs)]
    return sorted(found, key=lambda one: (-one.followed, _ORDER.index(one.word), one.factor))


_ORDER = (PROVEN, IN_PART, OTHER_BITS, OPEN, CANNOT, NOT_THE_CAUSE)


def _cause(factor: str, ours: Machine, theirs: Machine, listed: Sequence[Machine], unlike: Sequence[str]) -> Cause:
    shown = (value(ours, factor, theirs), value(theirs, factor, ours))
    first, second = ours.evidence, theirs.evidence
    best: Cause | None = None
    for machine in [theirs, *listed]:
        if differing(ours, machine) != [factor] or factor in differing(machine, theirs):
            continue
        seen = machine.evidence
        tried = [case for case in unlike if case in seen]
        followed = sum(seen[case] == second[case] for case in tried)
        stayed = sum(seen[case] == first[case] for case in tried)
        if tried and (best is None or (followed, len(tried)) > (best.followed, best.of)):
            best = Cause(factor, *shown, _word(followed, stayed, len(tried)), followed, len(tried), machine.name, "")
    if best is not None:
        return best
    why = hindrance(factor, ours, theirs)
    return Cause(factor, *shown, CANNOT if why else OPEN, 0, len(unlike), "", why)


def _word(followed: int, stayed: int, tried: int) -> str:
    if followed == tried:
        return PROVEN
    if followed:
        return IN_PART
    return NOT_THE_CAUSE if stayed == tried else OTHER_BITS


# Flipping.

FLIP = "flip-"
"""How the environment of a counter-replay is called: it proves causes, and is no machine of its own."""

MOST_THREADS = 1024
_WORD = re.compile(r"(?=\W*\w)[\w.,:;=+-]{1,200}")
_CAPABILITIES = ("DEFAULT", "AVX2", "AVX512")
"""What x86-64 processors can play, in this order: each can play those before its own."""


@dataclass(frozen=True)
class Flip:
    """How to run ours with one factor as it is on another machine."""

    factor: str
    variables: Mapping[str, str]
    threads: int | None
    matmul_precision: str
    sources: str
    interpreter: bool
    """True if it takes another interpreter, which somebody must give."""


def hindrance(factor: str, ours: Machine, theirs: Machine) -> str:
    """Why the factor cannot be flipped on this machine to what it is on the other. Empty if it can."""
    if factor == CAPABILITY:
        here, there = (one.factors.get(factor, {}).get("cpu.capability", "") for one in (ours, theirs))
        if here not in _CAPABILITIES or there not in _CAPABILITIES:
            return f"no processor is told to be {there} by a variable"
        if _CAPABILITIES.index(there) > _CAPABILITIES.index(here):
            return f"this processor, as it was run, has no {there}"
        return ""
    facts = theirs.factors.get(factor, {})
    if factor == MKL or factor.startswith(VARIABLE):
        return _not_to_be_set(facts)
    if factor == THREADS:
        told = facts.get("switches.threads", "")
        return "" if told.isdecimal() and 0 < int(told[:9]) <= MOST_THREADS else "it does not tell how many it has"
    if factor == PRECISION:
        known = facts.get("switches.matmul_precision") in ("highest", "high", "medium")
        return "" if known else "it tells no precision that torch has"
    if factor in (INTERPRETER, SOURCES):
        return ""
    return "it is another computer" if factor in ("host", "processor", "GPU", "system") else "no setting changes it"


def _not_to_be_set(facts: Mapping[str, str]) -> str:
    """Facts come from strangers: what they say is set here only if it is one of the variables that are recorded, with
    a value that is a word.
    """
    if not facts:
        return "it is set here and not there: unset it and sweep again"
    names = [name.partition(".")[2] for name in facts]
    if not all(name in VARIABLES for name in names) or not all(_WORD.fullmatch(text) for text in facts.values()):
        return "it is no variable that a calculation depends on, or has an odd value: set it yourself and sweep"
    return ""


def flips(ours: Machine, theirs: Machine, listed: Sequence[Machine]) -> list[Flip]:
    """Settings that would tell more about why the two differ: one for each factor that can be flipped and was not."""
    return [_flip(cause.factor, theirs) for cause in causes(ours, theirs, listed) if cause.word == OPEN]


def _flip(factor: str, theirs: Machine) -> Flip:
    facts = theirs.factors.get(factor, {})
    variables: dict[str, str] = {}
    if factor == CAPABILITY:
        variables["ATEN_CPU_CAPABILITY"] = facts["cpu.capability"].lower()
    elif factor == MKL or factor.startswith(VARIABLE):
        variables = {name.partition(".")[2]: text for name, text in facts.items()}
    return Flip(
        factor=factor,
        variables=variables,
        threads=int(facts["switches.threads"]) if factor == THREADS else None,
        matmul_precision=facts.get("switches.matmul_precision", "") if factor == PRECISION else "",
        sources=facts.get("setting.sources", "original") if factor == SOURCES else "original",
        interpreter=factor == INTERPRETER,
    )

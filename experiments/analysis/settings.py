"""Settings of computers: which replays belong to one, and the facts in which two of them differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Mapping, Sequence

from ..core.canonical_json import digest, printable
from ..core.replay import Replay

CAPABILITY = "CPU capability"
MKL = "MKL mode"
THREADS = "threads"
PRECISION = "matmul precision"
INTERPRETER = "interpreter"
PROCESSOR = "processor"
SYSTEM = "system"
GPU = "GPU"
HOST = "host"
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
    "host": HOST,
}
_FAMILIES = (
    ("torch.", INTERPRETER),
    ("python.", INTERPRETER),
    ("compiler.triton", INTERPRETER),
    ("cpu.mkl", INTERPRETER),
    ("cpu.", PROCESSOR),
    ("gpu", GPU),
    ("system.", SYSTEM),
    ("compiler.", SYSTEM),
)
_DERIVED = (
    "cpu.cores",
    "cpu.usable_cores",
    "switches.threads.interop",
    "torch.parallel",
    "variables.ATEN_CPU_CAPABILITY",
    "variables.OMP_NUM_THREADS",
)
"""Facts that follow from others, or that no calculation with a given number of threads depends on."""

_ASKED = (CAPABILITY, THREADS, INTERPRETER, PROCESSOR, SYSTEM, GPU, HOST, SOURCES)
"""Factors that every version has asked for: who does not tell them may differ in them."""
_BUNDLED: Mapping[str, str] = {
    INTERPRETER: "interpreter (torch, its build, Python)",
    SYSTEM: "system (kernel, libc, compilers)",
    HOST: "host identity",
}
"""Factors whose name alone would be taken for one fact."""
_BUILD = "torch.build"
_MAIN = (("torch.version", "torch"), (_BUILD, "build"), ("python.version", "Python"))
"""What an interpreter is always told by, and the words for it."""

MOST = 300
"""Facts of one document that are looked at; a worker tells of 75."""
_UNREADABLE = "not readable"


@dataclass(frozen=True)
class ComputerSetting:
    """A computer under one setting, as its replays show it."""

    name: str
    """As it is shown: unique among those that are compared."""
    origin: str
    """``here``, ``archive``, ``archive: `` and the file from which it was added, or the bundle it comes from."""
    factors: Mapping[str, Mapping[str, str]]
    """Facts by factor."""
    replays: tuple[Replay, ...]

    @property
    def environment(self) -> str:
        return next((replay.spec.setting.environment for replay in self.replays), "")

    @property
    def computer(self) -> str:
        """Its host identity, which a copy of its image has too. Empty if it is not told."""
        return self.factors.get(HOST, {}).get("host", "")

    @cached_property
    def by_case(self) -> dict[str, Replay]:
        """The last first replay of each case that ran, by the digest of what was asked; one that could not run
        stands only where none did. The last is that of the replays as they are given: a time in a record is whatever
        its writer chose.
        """
        ordered = sorted(self.replays, key=lambda one: (_ran(one), -one.spec.setting.repeat))
        return {replay.spec.question.case_digest(): replay for replay in ordered}

    @cached_property
    def evidence(self) -> dict[str, str]:
        """Evidence digest by case and passes, of cases that were run and repeat their results."""
        return {_looked_at(one): one.evidence_digest() for one in self.by_case.values() if _says_something(one)}

    @cached_property
    def repeats(self) -> dict[str, list[str]]:
        """Evidence digests of all replays by case and passes, of the cases that `evidence` tells of."""
        found: dict[str, list[str]] = {}
        for replay in self.replays:
            if _says_something(replay):
                found.setdefault(_looked_at(replay), []).append(replay.evidence_digest())
        return found


def _looked_at(replay: Replay) -> str:
    return f"{replay.spec.question.case_digest()} {' '.join(sorted(replay.records))}"


def _ran(replay: Replay) -> bool:
    return replay.plain is not None and replay.plain.outcome.kind != "not_run"


def _says_something(replay: Replay) -> bool:
    """A float64 reference is a ruler: used, and not compared."""
    plain, question = replay.plain, replay.spec.question
    if plain is None or question.dtype != question.input_dtype:
        return False
    return _ran(replay) and plain.evidence() != {"varies": True}


# Facts and factors.


def flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Facts of a machine document by dotted name. Texts of several lines are told by digest."""
    found: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}."))
        else:
            text = _own(prefix + name, str(value))
            found[prefix + name] = f"SHA-256 {digest(printable(text))[:12]}" if "\n" in text else text
    return found


def _own(name: str, text: str) -> str:
    """The text of a fact without what others say: torch's build also tells the CPU capability that is in use."""
    return text if name != _BUILD else "\n".join(one for one in text.split("\n") if "CPU capability usage" not in one)


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


def label(factor: str) -> str:
    """A factor as a reader sees it: one that bundles several facts says which."""
    return _BUNDLED.get(factor, factor)


def differing(ours: ComputerSetting, theirs: ComputerSetting) -> list[str]:
    """The factors in which two differ, sorted.

    A fact that one of them does not tell does not count: an older version may not have asked, or cannot read it. A
    variable that is not told is not set.
    """
    return _differing(ours.factors, theirs.factors)


_Factors = Mapping[str, Mapping[str, str]]


def _differing(ours: _Factors, theirs: _Factors) -> list[str]:
    return sorted(name for name in {*ours, *theirs} if values_differ(name, ours.get(name), theirs.get(name)))


def values_differ(name: str, ours: Mapping[str, str] | None, theirs: Mapping[str, str] | None) -> bool:
    if ours is None or theirs is None:
        return ours is not theirs and (name in (*_ASKED, MKL) or name.startswith(VARIABLE))
    both = ours.keys() & theirs.keys()
    return not both or any(ours[fact] != theirs[fact] for fact in both)


def value(one: ComputerSetting, factor: str, other: ComputerSetting | None = None) -> str:
    """A factor's facts in words; beside another setting those that differ, and what an interpreter is told by."""
    ours = one.factors.get(factor, {})
    theirs = other.factors.get(factor, {}) if other is not None else {}
    names = [name for name in sorted({*ours, *theirs}) if other is None or ours.get(name) != theirs.get(name)]
    if factor == INTERPRETER and ours:
        main = [f"{word} {ours.get(name, 'not told').removeprefix('SHA-256 ')}" for name, word in _MAIN]
        rest = [name for name in names if name not in dict(_MAIN) and other is not None]
        return ", ".join([*main, *(f"{name} {ours.get(name, 'not told')}" for name in rest)])
    if len(names) < 2:
        return ours.get(names[0], "not set") if names else "not set"
    return ", ".join(f"{name} {ours.get(name, 'not set')}" for name in names)


# Settings out of replays.


@dataclass
class _Group:
    environment: str
    factors: dict[str, dict[str, str]]
    replays: list[Replay] = field(default_factory=list)

    def fits(self, environment: str, told: _Factors) -> bool:
        """Whether the facts may be of the same computer and setting."""
        return self.environment == environment and not _differing(self.factors, told)

    def take(self, told: _Factors, replays: Sequence[Replay]) -> None:
        for name, facts in told.items():
            self.factors[name] = {**facts, **self.factors.get(name, {})}
        self.replays.extend(replays)


def computer_settings(replays: Sequence[Replay], facts: Mapping[str, Mapping[str, Any]]) -> tuple[ComputerSetting, ...]:
    """Replays by computer and setting: same environment, and no fact in which they differ of those that both tell.
    `facts` are machine documents by digest. Names and origins are left open.

    A replay that left no facts (it never ran, or died first) belongs to the setting with most replays among those of
    its environment; if there is none, to nobody.
    """
    mute, documents = _by_document(replays, facts)
    groups: list[_Group] = []
    # What tells most comes first, so that who tells less finds its place whatever the order of the replays.
    for (environment, _), (told, own) in sorted(documents.items(), key=lambda one: (-_told(one[1][0]), one[0])):
        group = next((one for one in groups if one.fits(environment, told)), None)
        if group is None:
            groups.append(group := _Group(environment, {}))
        group.take(told, own)
    for replay in mute:
        fitting = [one for one in groups if one.environment == replay.spec.setting.environment]
        if fitting:
            max(fitting, key=lambda one: len(one.replays)).replays.append(replay)
    groups.sort(key=lambda one: (one.environment, digest(repr(sorted(one.factors.items())))))
    return tuple(ComputerSetting("", "", one.factors, _in_order(one.replays, replays)) for one in groups)


def _told(told: _Factors) -> int:
    return sum(map(len, told.values()))


def _in_order(some: Sequence[Replay], all_: Sequence[Replay]) -> tuple[Replay, ...]:
    chosen = set(map(id, some))
    return tuple(replay for replay in all_ if id(replay) in chosen)


_Documents = dict[tuple[str, str], tuple[dict[str, dict[str, str]], list[Replay]]]


def _by_document(replays: Sequence[Replay], facts: Mapping[str, Mapping[str, Any]]) -> tuple[list[Replay], _Documents]:
    """Replays without facts, and the others with their factors by environment and machine document."""
    mute: list[Replay] = []
    found: _Documents = {}
    whole = _only_copied(replays)
    for replay in replays:
        document, environment = facts.get(replay.machine), replay.spec.setting.environment
        if not isinstance(document, Mapping):
            mute.append(replay)
            continue
        key = (environment, replay.machine)
        if key not in found:
            found[key] = (factors(document, "copied" if environment in whole else "original"), [])
        found[key][1].append(replay)
    return mute, found


def _only_copied(replays: Sequence[Replay]) -> set[str]:
    """Environments all of whose replays ran from copied sources; one copy among originals is a repeat. A capsule
    always runs from a copy, which is no choice of anybody's.
    """
    seen: dict[str, set[str]] = {}
    for replay in replays:
        seen.setdefault(replay.spec.setting.environment, set()).add(replay.spec.setting.sources)
    return {name for name, kinds in seen.items() if kinds == {"copied"} and name != "capsule"}

"""Computer settings: which replays belong to each, and the facts in which two of them differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Mapping, Sequence

from ..core.canonical_json import digest, printable_text
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
"""Facts that follow from others, or that do not affect a calculation with a given number of threads."""

_ASKED = (CAPABILITY, THREADS, INTERPRETER, PROCESSOR, SYSTEM, GPU, HOST, SOURCES)
"""Factors that every version of this project records: a setting without them may differ in them."""
_BUNDLED: Mapping[str, str] = {
    INTERPRETER: "interpreter (torch, its build, Python)",
    SYSTEM: "system (kernel, libc, compilers)",
    HOST: "host identity",
}
"""Labels of factors that combine several facts, which their names alone do not show."""
_BUILD = "torch.build"
_MAIN = (("torch.version", "torch"), (_BUILD, "build"), ("python.version", "Python"))
"""Facts that always describe an interpreter, with their labels."""

MOST = 300
"""Most facts of one document that are compared; a worker records 75."""
_UNREADABLE = "not readable"


@dataclass(frozen=True)
class ComputerSetting:
    """A computer under one setting, as described by its replays."""

    name: str
    """Displayed name, unique among the settings that are compared."""
    origin: str
    """``here``, ``archive``, ``archive: `` and the file from which it was added, or the bundle that it comes from."""
    factors: Mapping[str, Mapping[str, str]]
    """Facts by factor."""
    replays: tuple[Replay, ...]

    @property
    def environment(self) -> str:
        """Name of the environment of its replays."""
        return next((replay.spec.setting.environment for replay in self.replays), "")

    @property
    def computer(self) -> str:
        """Its host identity, shared by copies of the same system image. Empty if it is not recorded."""
        return self.factors.get(HOST, {}).get("host", "")

    @cached_property
    def by_case(self) -> dict[str, Replay]:
        """One replay for each case digest: one that ran, if any did, with the lowest repeat; of several, the last.

        The last is that in the given order, as the time in a record may be anything that its writer chose.
        """
        ordered = sorted(self.replays, key=lambda one: (_has_run(one), -one.spec.setting.repeat))
        return {replay.spec.question.case_digest(): replay for replay in ordered}

    @cached_property
    def evidence(self) -> dict[str, str]:
        """Evidence digest by case and passes, for cases that ran and repeat their results."""
        return {_evidence_key(one): one.evidence_digest() for one in self.by_case.values() if _is_comparable(one)}

    @cached_property
    def repeats(self) -> dict[str, list[str]]:
        """Evidence digests of all replays by case and passes, for the cases that `evidence` contains."""
        found: dict[str, list[str]] = {}
        for replay in self.replays:
            if _is_comparable(replay):
                found.setdefault(_evidence_key(replay), []).append(replay.evidence_digest())
        return found


def _evidence_key(replay: Replay) -> str:
    return f"{replay.spec.question.case_digest()} {' '.join(sorted(replay.records))}"


def _has_run(replay: Replay) -> bool:
    return replay.plain is not None and replay.plain.outcome.kind != "not_run"


def _is_comparable(replay: Replay) -> bool:
    """Whether the replay's evidence is compared. A float64 reference is not: it only measures rounding."""
    plain, question = replay.plain, replay.spec.question
    if plain is None or question.dtype != question.input_dtype:
        return False
    return _has_run(replay) and plain.evidence() != {"varies": True}


# Facts and factors.


def flatten_facts(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the facts of a machine document by dotted name. Multi-line texts are replaced by their digest."""
    found: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            found.update(flatten_facts(value, f"{prefix}{name}."))
        else:
            text = _strip_capability(prefix + name, str(value))
            found[prefix + name] = f"SHA-256 {digest(printable_text(text))[:12]}" if "\n" in text else text
    return found


def _strip_capability(name: str, text: str) -> str:
    """Return a fact's text without other facts: torch's build information also contains the CPU capability in use."""
    return text if name != _BUILD else "\n".join(one for one in text.split("\n") if "CPU capability usage" not in one)


def factors(facts: Mapping[str, Any], sources: str) -> dict[str, dict[str, str]]:
    """Group facts by the factor that sets them; `sources` is the kind of sources in the setting."""
    found: dict[str, dict[str, str]] = {}
    told = dict(sorted(flatten_facts(facts).items())[:MOST])
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
    """Return the displayed name of a factor, which lists its facts if it combines several."""
    return _BUNDLED.get(factor, factor)


def differing_factors(ours: ComputerSetting, theirs: ComputerSetting) -> list[str]:
    """Return the factors in which two settings differ, sorted.

    A fact that one of them does not record does not count: an older version may not have asked for it, or could not
    read it. A variable that is not recorded is not set.
    """
    return _differing_names(ours.factors, theirs.factors)


_Factors = Mapping[str, Mapping[str, str]]


def _differing_names(ours: _Factors, theirs: _Factors) -> list[str]:
    return sorted(name for name in {*ours, *theirs} if has_different_values(name, ours.get(name), theirs.get(name)))


def has_different_values(name: str, ours: Mapping[str, str] | None, theirs: Mapping[str, str] | None) -> bool:
    """Whether two settings differ in the factor `name`, given its facts in each, None where it is not recorded."""
    if ours is None or theirs is None:
        return ours is not theirs and (name in (*_ASKED, MKL) or name.startswith(VARIABLE))
    both = ours.keys() & theirs.keys()
    return not both or any(ours[fact] != theirs[fact] for fact in both)


def value(one: ComputerSetting, factor: str, other: ComputerSetting | None = None) -> str:
    """Return a factor's facts as text; with `other`, those that differ and the main facts of an interpreter."""
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


# Building settings from replays.


@dataclass
class _Group:
    """Replays of one computer setting, while it is being built."""

    environment: str
    factors: dict[str, dict[str, str]]
    replays: list[Replay] = field(default_factory=list)

    def is_match(self, environment: str, told: _Factors) -> bool:
        """Whether the facts may belong to the same computer and setting."""
        return self.environment == environment and not _differing_names(self.factors, told)

    def add_replays(self, told: _Factors, replays: Sequence[Replay]) -> None:
        """Add replays and the facts by factor that they record."""
        for name, facts in told.items():
            self.factors[name] = {**facts, **self.factors.get(name, {})}
        self.replays.extend(replays)


def computer_settings(replays: Sequence[Replay], facts: Mapping[str, Mapping[str, Any]]) -> tuple[ComputerSetting, ...]:
    """Group replays by computer and setting: same environment, and no difference in facts that both record.

    `facts` maps digests to machine documents. Names and origins are left empty. A replay without facts (it never ran,
    or died first) joins the setting with most replays among those of its environment; without one, it is left out.
    """
    mute, documents = _group_by_document(replays, facts)
    groups: list[_Group] = []
    # Documents with most facts come first, so that the grouping does not depend on the order of the replays.
    for (environment, _), (told, own) in sorted(documents.items(), key=lambda one: (-_count_facts(one[1][0]), one[0])):
        group = next((one for one in groups if one.is_match(environment, told)), None)
        if group is None:
            groups.append(group := _Group(environment, {}))
        group.add_replays(told, own)
    for replay in mute:
        fitting = [one for one in groups if one.environment == replay.spec.setting.environment]
        if fitting:
            max(fitting, key=lambda one: len(one.replays)).replays.append(replay)
    groups.sort(key=lambda one: (one.environment, digest(repr(sorted(one.factors.items())))))
    return tuple(ComputerSetting("", "", one.factors, _order_replays(one.replays, replays)) for one in groups)


def _count_facts(told: _Factors) -> int:
    return sum(map(len, told.values()))


def _order_replays(some: Sequence[Replay], all_: Sequence[Replay]) -> tuple[Replay, ...]:
    chosen = set(map(id, some))
    return tuple(replay for replay in all_ if id(replay) in chosen)


_Documents = dict[tuple[str, str], tuple[dict[str, dict[str, str]], list[Replay]]]


def _group_by_document(
    replays: Sequence[Replay], facts: Mapping[str, Mapping[str, Any]]
) -> tuple[list[Replay], _Documents]:
    """Return replays without facts, and the others with their factors by environment and machine document."""
    mute: list[Replay] = []
    found: _Documents = {}
    whole = _copied_environments(replays)
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


def _copied_environments(replays: Sequence[Replay]) -> set[str]:
    """Return the environments in which all replays ran from copied sources; a copy among originals is a repeat.

    Capsules are excluded: they always run from a copy, which is not a choice of setting.
    """
    seen: dict[str, set[str]] = {}
    for replay in replays:
        seen.setdefault(replay.spec.setting.environment, set()).add(replay.spec.setting.sources)
    return {name for name, kinds in seen.items() if kinds == {"copied"} and name != "capsule"}

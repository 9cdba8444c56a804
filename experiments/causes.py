"""Why the bits under another setting differ from ours, and what a counter-replay has shown of it.

A *counter-replay* is a sweep of its own, run here, of the cases that differ: each is run several times under our
setting again, which is its *control*, and several times with one factor flipped to what it is there. The factor is
the *cause* if in every one of these cases the control gives our bits again and the flipped run gives those from there,
each time. Nothing else proves a cause: no record is its own witness, so neither those that are to be explained nor
any that somebody brought count, however alone the factor is in which they differ.

Pure: replays in, values out. Only the standard library is imported here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Mapping, Sequence

from .classes import (
    CAPABILITY,
    GPU,
    HOST,
    INTERPRETER,
    MKL,
    PRECISION,
    PROCESSOR,
    SOURCES,
    SYSTEM,
    THREADS,
    VARIABLE,
    ComputerSetting,
    computer_settings,
    differing,
    label,
    value,
)
from .record import Replay, Spec, digest

CONTROL = "control-"
FLIP = "flip-"
"""How the two environments of a counter-replay are called; the factor follows."""
REPEATS = 2
"""Times that each case is run on either side, at least."""


def environment(kind: str, factor: str) -> str:
    """Name of the control or the flipped environment of a factor."""
    return kind + re.sub(r"[^\w.-]+", "-", factor)


def is_counter_replay(name: str) -> bool:
    """Whether an environment of this name is part of a counter-replay, and nothing that somebody asked to compare."""
    return name.startswith((CONTROL, FLIP))


def plans_counter_replay(specs: Sequence[Spec]) -> bool:
    """Whether a sweep of these specs has one control and one flip, and nothing else."""
    names = sorted({spec.setting.environment for spec in specs})
    return len(names) == 2 and names[0].startswith(CONTROL) and names[1].startswith(FLIP)


@dataclass(frozen=True)
class CounterReplay:
    """What one sweep that was run here shows: our setting again, and with one factor flipped."""

    sweep: str
    control: ComputerSetting
    flipped: ComputerSetting

    @property
    def records(self) -> set[str]:
        """Digests of all its records."""
        return _records(self.control) | _records(self.flipped)


def counter_replay(
    sweep: str, replays: Sequence[Replay], facts: Mapping[str, Mapping[str, Any]]
) -> CounterReplay | None:
    """The counter-replay of a sweep. None if a side has not run, or did so on more than one computer or setting."""
    found = computer_settings(replays, facts)
    control = [one for one in found if one.environment.startswith(CONTROL)]
    flipped = [one for one in found if one.environment.startswith(FLIP)]
    if len(control) != 1 or len(flipped) != 1 or len(found) != 2:
        return None
    return CounterReplay(sweep, control[0], flipped[0])


def _records(one: ComputerSetting) -> set[str]:
    return {digest(record.text()) for replay in one.replays for record in replay.records.values()}


# Causes.


PROVEN = "proven"
IN_PART = "proven in part"
NOT_THE_CAUSE = "not the cause"
OTHER_BITS = "changes the bits, but not to these"
CONTROL_DIFFERS = "cannot decide: the control itself differs from our first run"
VARIES = "cannot decide: a case that differs does not repeat its own result in one of the settings"
UNDECIDED = "cannot decide: not every case was run twice on both sides"
OPEN = "not flipped yet"
CANNOT = "cannot be flipped here"

_ORDER = (PROVEN, IN_PART, OTHER_BITS, VARIES, CONTROL_DIFFERS, UNDECIDED, OPEN, CANNOT, NOT_THE_CAUSE)
_WEAKEST = (VARIES, CONTROL_DIFFERS, UNDECIDED, NOT_THE_CAUSE, OTHER_BITS, IN_PART, PROVEN)


@dataclass(frozen=True)
class Cause:
    """A factor in which another setting differs from ours, and what flipping it alone has shown."""

    factor: str
    ours: str
    theirs: str
    alone: bool
    """Whether the two differ in nothing else. That proves nothing."""
    word: str
    followed: int
    """Cases in which the control gave our bits each time, and the flipped run those from there each time."""
    tried: int
    """Cases that were run at least `REPEATS` times on both sides."""
    of: int
    """Cases that differ."""
    by: str
    """Sweep of the counter-replay that shows it. Empty if there is none."""
    why: str
    """Why it cannot be flipped, or why what was run shows nothing. Empty otherwise."""

    @property
    def words(self) -> str:
        """What is known of it, as a reader is told."""
        return f"differs in this alone; {self.word}" if self.alone and not self.by else self.word

    @property
    def open(self) -> bool:
        """Whether a counter-replay could tell more than is known."""
        return self.word == OPEN or (
            bool(self.by) and self.tried < self.of and self.word not in (VARIES, CONTROL_DIFFERS)
        )


def causes(ours: ComputerSetting, theirs: ComputerSetting, shown: Sequence[CounterReplay]) -> list[Cause]:
    """Each factor in which the two differ, and whether the bits follow it: first what is proven."""
    unlike = _unlike(ours, theirs)
    if not unlike:
        return []
    found = [_cause(factor, ours, theirs, shown) for factor in differing(ours, theirs)]
    return sorted(found, key=lambda one: (-one.followed, _ORDER.index(one.word), one.factor))


def _unlike(ours: ComputerSetting, theirs: ComputerSetting) -> list[str]:
    """Cases and passes that both have run, with other evidence."""
    first, second = ours.evidence, theirs.evidence
    return sorted(case for case in first.keys() & second.keys() if first[case] != second[case])


def differing_cases(ours: ComputerSetting, theirs: ComputerSetting) -> set[str]:
    """Digests of the cases in which the two differ, and which a counter-replay must therefore run."""
    return {case.partition(" ")[0] for case in _unlike(ours, theirs)}


def _cause(factor: str, ours: ComputerSetting, theirs: ComputerSetting, shown: Sequence[CounterReplay]) -> Cause:
    decided = [_decided(factor, ours, theirs, one) for one in shown if _bears(one, factor, ours, theirs)]
    if decided:
        # A control that has failed outweighs all, then what was run in most cases, then what speaks against a proof:
        # nobody gets a proof by running until one comes out.
        return min(
            decided, key=lambda one: (one.word not in (VARIES, CONTROL_DIFFERS), -one.tried, _WEAKEST.index(one.word))
        )
    why = hindrance(factor, ours, theirs)
    word = CANNOT if why else OPEN
    return _made(factor, ours, theirs, word, why=why or _failure(factor, ours, shown))


def _made(
    factor: str,
    ours: ComputerSetting,
    theirs: ComputerSetting,
    word: str,
    followed: int = 0,
    tried: int = 0,
    by: str = "",
    why: str = "",
) -> Cause:
    values = value(ours, factor, theirs), value(theirs, factor, ours)
    alone = differing(ours, theirs) == [factor]
    return Cause(factor, *values, alone, word, followed, tried, len(_unlike(ours, theirs)), by, why)


def _bears(one: CounterReplay, factor: str, ours: ComputerSetting, theirs: ComputerSetting) -> bool:
    """Whether the counter-replay is of this factor alone, from our value to theirs, on this computer, and none of its
    records is among those that are to be explained.
    """
    return (
        _is_control(one, ours)
        and differing(one.control, one.flipped) == differing(ours, one.flipped) == [factor]
        and factor not in differing(one.flipped, theirs)
        and not one.records & (_records(ours) | _records(theirs))
    )


def _is_control(one: CounterReplay, ours: ComputerSetting) -> bool:
    """Whether its control ran on our computer as we did."""
    return bool(ours.computer) and one.control.computer == ours.computer and not differing(ours, one.control)


def _decided(factor: str, ours: ComputerSetting, theirs: ComputerSetting, one: CounterReplay) -> Cause:
    first, second, unlike = ours.evidence, theirs.evidence, _unlike(ours, theirs)
    control, flipped = one.control.repeats, one.flipped.repeats
    varying = [case for case in unlike if any(len(set(side.repeats.get(case, ()))) > 1 for side in (ours, theirs))]
    astray = [case for case in unlike if any(found != first[case] for found in control.get(case, ()))]
    tried = [case for case in unlike if min(len(side.get(case, ())) for side in (control, flipped)) >= REPEATS]
    followed = [case for case in tried if case not in astray and set(flipped[case]) == {second[case]}]
    stayed = [case for case in tried if set(flipped[case]) == {first[case]}]
    if varying:
        word = VARIES
    elif astray:
        word = CONTROL_DIFFERS
    elif followed:
        word = PROVEN if len(followed) == len(unlike) else IN_PART
    elif len(tried) < len(unlike):
        word = UNDECIDED
    else:
        word = NOT_THE_CAUSE if len(stayed) == len(unlike) else OTHER_BITS
    return _made(factor, ours, theirs, word, len(followed), len(tried), one.sweep)


def _failure(factor: str, ours: ComputerSetting, shown: Sequence[CounterReplay]) -> str:
    """What a counter-replay of the factor has changed instead. Empty if there was none."""
    for one in reversed(shown):
        if one.flipped.environment != environment(FLIP, factor):
            continue
        if not _is_control(one, ours):
            return _than(f"the control of {one.sweep} did not run as ours", differing(ours, one.control))
        changed = differing(one.control, one.flipped)
        if changed != [factor]:
            return _than(f"{one.sweep} did not flip it alone", changed)
    return ""


def _than(said: str, factors: Sequence[str]) -> str:
    return f"{said}: {', '.join(map(label, factors)) or 'nothing'} changed"


# Flipping.


THREAD_COUNTS = range(1, 1025)
_INTEGERS = range(2**31)
_FLAG = "0|1|true|false|yes|no|on|off"
_ISA = "all|default|sse41|avx2?(_vnni(_2)?)?|avx512_core(_[a-z0-9]{1,8}){0,2}|avx10_[0-9](_[a-z0-9]{1,8}){0,3}"
_FPMATH = "strict|bf16|f16|tf32|any"
_LEVEL = "sse2|ssse3|sse4_[12]|avx|avx2|avx512(_mic)?(_e[1-5])?"
_PLACING = "none|compact|scatter|balanced|disabled|physical|logical|granularity=(fine|thread|core|tile|socket)|[0-9]"
_CUDA_ALLOCATOR = (
    "backend:(native|cudaMallocAsync)|expandable_segments:(true|false)|garbage_collection_threshold:0[.][0-9]{1,4}|"
    "max_split_size_mb:[0-9]{1,6}|roundup_power2_divisions:[0-9]{1,3}"
)


def _listed(one: str, most: int = 16) -> str:
    """A pattern of up to so many of these, with commas between them."""
    return f"({one})(,({one})){{0,{most - 1}}}"


BOUNDS: Mapping[str, str | range] = {
    "ATEN_CPU_CAPABILITY": "default|avx2|avx512",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8|:16:8|:4096:2:16:8|:0:0",
    "CUDA_LAUNCH_BLOCKING": _FLAG,
    "CUDA_VISIBLE_DEVICES": _listed("[0-9]{1,2}"),
    "DNNL_DEFAULT_FPMATH_MODE": _FPMATH,
    "DNNL_MAX_CPU_ISA": _ISA,
    "GOMP_CPU_AFFINITY": _listed("[0-9]{1,4}(-[0-9]{1,4}(:[0-9]{1,3})?)?", 64),
    "GOMP_SPINCOUNT": "infinite|infinity|[0-9]{1,9}",
    "KMP_AFFINITY": _listed(_PLACING, 5),
    "KMP_BLOCKTIME": "infinite|[0-9]{1,9}",
    "KMP_SETTINGS": _FLAG,
    "MKL_CBWR": f"(auto|compatible|{_LEVEL})(,strict)?",
    "MKL_DEBUG_CPU_TYPE": range(10),
    "MKL_DYNAMIC": _FLAG,
    "MKL_ENABLE_INSTRUCTIONS": _LEVEL,
    "MKL_NUM_THREADS": THREAD_COUNTS,
    "MKL_THREADING_LAYER": "intel|gnu|sequential|tbb|pgi",
    "NVIDIA_TF32_OVERRIDE": _FLAG,
    "OMP_DYNAMIC": _FLAG,
    "OMP_MAX_ACTIVE_LEVELS": range(256),
    "OMP_NESTED": _FLAG,
    "OMP_NUM_THREADS": THREAD_COUNTS,
    "OMP_PLACES": "threads|cores|sockets|ll_caches|numa_domains",
    "OMP_PROC_BIND": _listed("true|false|master|primary|close|spread", 8),
    "OMP_SCHEDULE": "((non)?monotonic:)?(static|dynamic|guided|auto)(,[0-9]{1,9})?",
    "OMP_STACKSIZE": "[0-9]{1,9}b|[0-9]{1,6}k?|[0-9]{1,3}m|1g",
    "OMP_THREAD_LIMIT": _INTEGERS,
    "OMP_WAIT_POLICY": "active|passive",
    "ONEDNN_DEFAULT_FPMATH_MODE": _FPMATH,
    "ONEDNN_MAX_CPU_ISA": _ISA,
    "OPENBLAS_CORETYPE": "[a-z][a-z0-9]{1,19}",
    "OPENBLAS_NUM_THREADS": THREAD_COUNTS,
    "PYTORCH_CUDA_ALLOC_CONF": _listed(_CUDA_ALLOCATOR, 8),
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": _FLAG,
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": _FLAG,
    "TORCH_BLAS_PREFER_CUBLASLT": _FLAG,
}
"""What each variable that is recorded may be set to in a counter-replay: one of these numbers, or a text that this
pattern is of, in small or capital letters. The value comes from a stranger."""
_CAPABILITIES = ("DEFAULT", "AVX2", "AVX512")
"""What x86-64 processors can play, in this order: each can play those before its own."""
_FIXED: Mapping[str, str] = {
    HOST: "it is the computer itself",
    PROCESSOR: "it is the computer's",
    GPU: "it is the computer's",
    SYSTEM: "it is the computer's",
}


@dataclass(frozen=True)
class Flip:
    """How to run ours with one factor as it is under another setting."""

    factor: str
    variables: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    matmul_precision: str = ""
    """Empty: as ours."""
    sources: str = ""
    """``original`` or ``copied``. Empty: as ours."""
    interpreter: bool = False
    """True if it takes another interpreter, which somebody must give."""


def hindrance(factor: str, ours: ComputerSetting, theirs: ComputerSetting) -> str:
    """Why the factor cannot be flipped here to what it is under the other setting. Empty if it can."""
    made = _flip(factor, ours, theirs)
    return made if isinstance(made, str) else ""


def _flip(factor: str, ours: ComputerSetting, theirs: ComputerSetting) -> Flip | str:
    """How to run ours with the factor as it is there, or why not. The one place that reads what they tell of it."""
    facts, flip = theirs.factors.get(factor, {}), Flip(factor)
    if factor == CAPABILITY:
        here, there = (one.factors.get(factor, {}).get("cpu.capability", "") for one in (ours, theirs))
        return _incapable(here, there) or replace(flip, variables={"ATEN_CPU_CAPABILITY": there.lower()})
    if factor == MKL or factor.startswith(VARIABLE):
        variables = {name.partition(".")[2]: text for name, text in facts.items()}
        return _not_to_be_set(variables) or replace(flip, variables=variables)
    if factor == THREADS:
        number = _one_of(THREAD_COUNTS, facts.get("switches.threads", ""))
        return "it does not tell how many it has" if number is None else replace(flip, threads=number)
    if factor == PRECISION:
        told = facts.get("switches.matmul_precision", "")
        known = told in ("highest", "high", "medium")
        return replace(flip, matmul_precision=told) if known else "it tells no precision that torch has"
    if factor == SOURCES:
        return replace(flip, sources=facts.get("setting.sources", "original"))
    if factor == INTERPRETER:
        return replace(flip, interpreter=True)
    return _FIXED.get(factor, "no setting changes it")


def _one_of(numbers: range, text: str) -> int | None:
    """The number that the text is, as Python writes it. None if it is none of these."""
    if not re.fullmatch("0|[1-9][0-9]{0,9}", text):
        return None
    return int(text) if int(text) in numbers else None


def _incapable(here: str, there: str) -> str:
    if here not in _CAPABILITIES or there not in _CAPABILITIES:
        return f"no processor is told to be {there} by a variable"
    if _CAPABILITIES.index(there) > _CAPABILITIES.index(here):
        return f"this processor, as it was run, has no {there}"
    return ""


def _not_to_be_set(variables: Mapping[str, str]) -> str:
    """Facts come from strangers: what they say is set here only within `BOUNDS`."""
    if not variables:
        return "it is set here and not there: unset it and sweep again"
    if not all(_is_within_bounds(name, text) for name, text in variables.items()):
        return "it is no variable that a calculation depends on, or has an odd value: set it yourself and sweep"
    return ""


def _is_within_bounds(name: str, text: str) -> bool:
    bounds = BOUNDS.get(name)
    if isinstance(bounds, range):
        return _one_of(bounds, text) is not None
    return bounds is not None and re.fullmatch(bounds, text, re.IGNORECASE | re.ASCII) is not None


def flips(ours: ComputerSetting, theirs: ComputerSetting, shown: Sequence[CounterReplay]) -> list[Flip]:
    """Counter-replays that would tell more about why the two differ: one for each factor that can be flipped and was
    not, or not in every case.
    """
    made = [_flip(cause.factor, ours, theirs) for cause in causes(ours, theirs, shown) if cause.open]
    return [one for one in made if isinstance(one, Flip)]

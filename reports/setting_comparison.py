"""The comparison of one sweep with other settings and computers, as values.

No file is read and nothing is rendered here.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from typing import Any, Iterator, Mapping, Sequence

from experiments.analysis.agreement_classes import Class, Split, classes, splits
from experiments.analysis.causes import Cause, CounterReplay, causes, counter_replay, is_counter_replay
from experiments.analysis.settings import (
    CAPABILITY,
    GPU,
    HOST,
    INTERPRETER,
    THREADS,
    ComputerSetting,
    computer_settings,
    differing_factors,
)
from experiments.core.agreement import Agreement, rank
from experiments.core.canonical_json import canonical
from experiments.core.replay import Replay
from experiments.core.rounding import Noise, limits, noise
from experiments.core.tensor_diff import ulp_steps
from experiments.core.tensor_values import Fetch
from experiments.core.verdict import contexts
from reports.claims.published_outcomes import Reported

EVERY = "all"
"""The name that stands for every setting where one is expected, so no setting has it."""
LONGEST_NAME = 80
"""Most characters of a setting's name."""
AGREES = 2
"""The largest rank that agrees: identical, or equal within rounding."""
CANNOT = 6
"""The rank of a pair that cannot be compared."""


@dataclass(frozen=True)
class Origin:
    """Replays from one place: a sweep, the rest of the archive, a bundle."""

    name: str
    """``here``, ``archive``, ``archive: `` and the file from which it was added, the name of a bundle, or the id of a
    counter-replay's sweep.
    """
    replays: tuple[Replay, ...]
    facts: Mapping[str, Mapping[str, Any]]
    """Machine documents by digest."""


CANNOT_BE = "cannot be compared"
MOST_SETTINGS = 24
"""Most settings of one origin that are compared with a sweep."""
LARGEST_FETCHED = 1 << 26
"""Most bytes of tensors that are read to compare with one bundle; for the rest of the archive four times as many. Of
the published bundles, the one that differs in most cases takes 26 million."""


@dataclass(frozen=True)
class Failed:
    """Something that a sweep could not be compared with."""

    name: str
    """Name of an origin, or of a setting or computer of one."""
    reason: str
    """Begins with `CANNOT_BE`."""


def failure_reason(error: Exception) -> str:
    """Return in one sentence why something cannot be compared."""
    return f"{CANNOT_BE}: {type(error).__name__}: {error}"[:300]


class _TooLargeError(Exception):
    """More bytes would have to be read than are allowed."""

    def __init__(self, origin: str) -> None:
        super().__init__(f"too much of the tensors of {origin} would have to be looked at")


class _Metered:
    """Content by digest, up to `LARGEST_FETCHED` bytes: foreign records decide how much is requested."""

    def __init__(self, origin: str, fetch: Fetch) -> None:
        most = 4 * LARGEST_FETCHED if origin == "archive" else LARGEST_FETCHED
        self._origin, self._fetch, self._left = origin, fetch, most
        self._counted: set[str] = set()

    def __call__(self, name: str) -> bytes | None:
        if self._left < 0:
            raise _TooLargeError(self._origin)
        content = self._fetch(name)
        if name not in self._counted:
            self._counted.add(name)
            self._left -= len(content or b"")
        return content


@dataclass(frozen=True)
class Pair:
    """One case here and under another setting."""

    setting: str
    """Name of the other setting."""
    ours: Replay
    theirs: Replay | None
    """None if it was not run there."""
    agreement: Agreement

    @property
    def compared(self) -> bool:
        """Whether it ran on both sides, so that it can be compared."""
        return self.theirs is not None and _has_run(self.ours) and _has_run(self.theirs)

    @property
    def differs(self) -> bool:
        """Whether it differs by more than rounding. A pair that ran but cannot be compared does not count."""
        return self.compared and AGREES < self.agreement.rank < CANNOT

    @property
    def scenario(self) -> str:
        """The name of the scenario."""
        return self.ours.spec.question.scenario

    @property
    def label(self) -> str:
        """The name of the case with its parameters."""
        return self.ours.spec.question.label()


@dataclass(frozen=True)
class Distances:
    """Distances between the gradients here and under another setting, by element, in ULP of their own dtype."""

    setting: str
    """Name of the other setting."""
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
        """The number of elements compared."""
        return sum(self.counts)


BINS = ((0, "same bits"), (1, "1"), (3, "2 to 3"), (15, "4 to 15"), (255, "16 to 255"), (65535, "256 to 65535"))
"""Largest number of ULP in each bin, and its name. One more bin holds everything beyond."""
BIN_NAMES = (*(name for _, name in BINS), "more")


@dataclass(frozen=True)
class Across:
    """One sweep compared with other settings, of this computer and of others."""

    here: ComputerSetting
    others: tuple[ComputerSetting, ...]
    """Grouped by computer, those of this computer first."""
    counter_replays: tuple[CounterReplay, ...]
    """Used to prove causes only: not settings to compare with."""
    pairs: tuple[Pair, ...]
    classes: tuple[Class, ...]
    splits: tuple[Split, ...]
    causes: Mapping[str, tuple[Cause, ...]]
    """By name of the other setting."""
    distances: tuple[Distances, ...]
    reported: tuple[Reported, ...]
    planned: int
    """Number of cases that the sweep planned."""
    failed: tuple[Failed, ...]
    """What it could not be compared with at all."""

    @cached_property
    def by_setting(self) -> dict[str, list[Pair]]:
        """Pairs by name of the other setting."""
        found: dict[str, list[Pair]] = {one.name: [] for one in self.others}
        for pair in self.pairs:
            found[pair.setting].append(pair)
        return found

    @cached_property
    def computers(self) -> tuple[str, ...]:
        """Host identities, this computer's first. Empty for settings without one."""
        return tuple(dict.fromkeys(one.computer for one in (self.here, *self.others)))

    def is_same_host(self, one: ComputerSetting) -> bool:
        """Return whether a setting has the host identity of this computer, which a copy of its image has as well."""
        return bool(one.computer) and one.computer == self.here.computer

    def host_description(self, one: ComputerSetting) -> str:
        """Describe the host identity of a setting in words."""
        if not one.computer:
            return "host identity not told"
        return "same host identity as here" if self.is_same_host(one) else "another host identity"

    @property
    def differing(self) -> list[Pair]:
        """The pairs that differ beyond rounding."""
        return [pair for pair in self.pairs if pair.differs]


def _has_run(replay: Replay) -> bool:
    return replay.plain is not None and replay.plain.outcome.kind != "not_run"


def is_ruler(replay: Replay) -> bool:
    """Return whether a replay is a float64 reference that only serves to measure rounding, and is not compared."""
    return replay.spec.question.dtype != replay.spec.question.input_dtype


def compare_settings(
    sweep: Origin,
    others: Sequence[Origin],
    fetch: Fetch,
    reported: Sequence[Reported],
    planned: int,
    counter: Sequence[Origin] = (),
) -> Across | None:
    """Compare the sweep with the settings of the other origins. Return None if the sweep has run nothing.

    `counter` are the counter-replay sweeps that were run here, oldest first: only they can prove a cause.
    """
    own = computer_settings(sweep.replays, sweep.facts)
    if not own:
        return None
    here = replace(max(own, key=lambda one: len(one.replays)), name="here", origin="here")
    own_cases = {replay.spec.question.case_digest() for replay in here.replays}
    every = _other_settings(here, others, own_cases)
    listed = tuple(one for one in every if _place_in_origin(one, every) < MOST_SETTINGS)
    candidates = [counter_replay(one.name, one.replays, one.facts) for one in counter]
    proofs = tuple(one for one in candidates if one is not None)
    ours = _Measured(here, fetch)
    metered = {one.origin: _Metered(one.origin, fetch) for one in listed}
    pairs = tuple(pair for one in listed for pair in _pairs(here, ours, one, metered[one.origin]))
    whole = [here, *listed]
    return Across(
        here=here,
        others=listed,
        counter_replays=proofs,
        pairs=pairs,
        classes=tuple(classes(whole)),
        splits=tuple(splits(whole)),
        causes={one.name: tuple(causes(here, one, proofs)) for one in listed},
        distances=tuple(distances(one.name, pairs, fetch) for one in listed),
        reported=tuple(reported),
        planned=planned,
        failed=tuple(_uncompared_origins(every)),
    )


def _place_in_origin(one: ComputerSetting, every: Sequence[ComputerSetting]) -> int:
    """Return the index of a setting within its origin, from 0."""
    return [other.name for other in every if other.origin == one.origin].index(one.name)


def _uncompared_origins(every: Sequence[ComputerSetting]) -> Iterator[Failed]:
    for origin, number in Counter(one.origin for one in every).items():
        if number > MOST_SETTINGS:
            why = f"it has {number} settings; the first {MOST_SETTINGS} are compared"
            yield Failed(origin, f"{CANNOT_BE}: {why}")


def _other_settings(here: ComputerSetting, others: Sequence[Origin], asked: set[str]) -> tuple[ComputerSetting, ...]:
    """Return the settings under which cases of this sweep were run, each under a unique name.

    Archived records of this same setting are its own past and are left out, as are counter-replays, which only prove
    causes.
    """
    found = [
        replace(one, name=_setting_name(one, here), origin=origin.name)
        for origin in others
        for one in computer_settings(origin.replays, origin.facts)
        if any(replay.spec.question.case_digest() in asked for replay in one.replays)
        and not is_counter_replay(one.environment)
        and not (origin.name == "archive" and _is_own_past(one, here))
    ]
    order = list(dict.fromkeys([here.computer, *(one.computer for one in found)]))
    return tuple(_make_names_unique(sorted(found, key=lambda one: order.index(one.computer)), here.name))


def _is_own_past(one: ComputerSetting, here: ComputerSetting) -> bool:
    return one.environment == here.environment and not differing_factors(one, here)


def _make_names_unique(listed: Sequence[ComputerSetting], here: str) -> Iterator[ComputerSetting]:
    """Yield the settings, with a number added to each name that is taken."""
    used_names = {here, EVERY}
    for one in listed:
        name = next(
            name
            for name in chain([one.name], (f"{one.name}-{number}" for number in count(2)))
            if name not in used_names
        )
        used_names.add(name)
        yield replace(one, name=name)


def _setting_name(one: ComputerSetting, here: ComputerSetting) -> str:
    """Return the environment's name, with the facts that distinguish the setting where that name does not."""
    parts = [one.environment]
    if _fact(one, INTERPRETER, "torch.version") != _fact(here, INTERPRETER, "torch.version"):
        parts.append(f"torch-{_fact(one, INTERPRETER, 'torch.version').partition('+')[0]}")
    if one.environment in ("default", "capsule", "interpreter"):
        for factor, fact in ((CAPABILITY, "cpu.capability"), (THREADS, "switches.threads")):
            if _fact(one, factor, fact) != _fact(here, factor, fact):
                parts.append(f"{fact.rpartition('.')[2]}-{_fact(one, factor, fact)}".lower())
    if "gpu.name" in one.factors.get(GPU, {}):
        parts.append("cuda")
    if _fact(one, HOST, "host") != _fact(here, HOST, "host"):
        parts.append(_fact(one, HOST, "host")[:4])
    return _safe_name("-".join(part.replace(" ", "_") for part in parts))


def _safe_name(name: str) -> str:
    """Reduce a setting's name to letters, digits and marks without a special meaning.

    The name is typed after PROVE= and printed anywhere, and foreign records may have chosen it.
    """
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", name)[:LONGEST_NAME] or "_"


def _fact(one: ComputerSetting, factor: str, name: str) -> str:
    return one.factors.get(factor, {}).get(name, "")


class _Measured:
    """Rounding of the replays under a setting, by case, measured when it is first requested."""

    def __init__(self, one: ComputerSetting, fetch: Fetch) -> None:
        self._fetch, self._found = fetch, dict[str, Noise]()
        self._replays = one.by_case
        every = dict(zip(map(id, one.replays), contexts(one.replays, fetch)))
        self._contexts = {case: every[id(replay)] for case, replay in one.by_case.items()}

    def noise(self, case: str) -> Noise:
        """Return the rounding of a case."""
        if case not in self._found:
            its = self._contexts[case]
            self._found[case] = noise(self._replays[case], its.reference, its.float64, its.repeats, self._fetch)
        return self._found[case]


def _pairs(here: ComputerSetting, ours: _Measured, other: ComputerSetting, fetch: Fetch) -> Iterator[Pair]:
    theirs = _Measured(other, fetch)
    for case, replay in here.by_case.items():
        if is_ruler(replay):
            continue
        found = other.by_case.get(case)
        if found is None:
            yield Pair(other.name, replay, None, Agreement(CANNOT, _absence_reason(replay, other), "", ()))
            continue
        yield Pair(other.name, replay, found, _agreement(case, ours, theirs, replay, found, fetch))


def _agreement(case: str, ours: _Measured, theirs: _Measured, replay: Replay, found: Replay, fetch: Fetch) -> Agreement:
    """Return how closely a case agrees. Foreign records can hold anything, so no error from them stops a report."""
    try:
        agreement = rank(replay, found, fetch)
        if agreement.rank not in (1, CANNOT):
            agreement = rank(replay, found, fetch, limits(ours.noise(case), theirs.noise(case)))
    except Exception as error:  # noqa: BLE001 - see above
        return Agreement(CANNOT, failure_reason(error), "", ())
    return agreement


def _absence_reason(replay: Replay, other: ComputerSetting) -> str:
    """Return why a case was not run under another setting."""
    question = replay.spec.question
    questions = [one.spec.question for one in other.replays]
    sources = {one.source for one in questions if one.scenario == question.scenario}
    if not sources:
        return "the scenario was not run there"
    if question.source not in sources:
        return "the scenario file was another when it was run there"
    return "the case was not run there"


def distances(setting: str, pairs: Sequence[Pair], fetch: Fetch) -> Distances:
    """Measure how far the gradients under a setting are from ours, and count the cases without a measurement."""
    counts, tensors = Counter[int](), 0
    largest, used, unmeasured = 0, 0, list[Pair]()
    for pair in pairs:
        if pair.setting != setting or not pair.compared:
            continue
        found = list(_gradient_distances(pair, fetch)) if pair.agreement.rank <= 4 else []
        if not found:
            unmeasured.append(pair)
            continue
        used, tensors = used + 1, tensors + len(found)
        largest = max(largest, *(max(many, default=0) for many in found))
        counts.update(_bin_index(number) for many in found for number in many)
    by_bin = tuple(counts[at] for at in range(len(BIN_NAMES)))
    return Distances(setting, by_bin, largest, tensors, used, len(unmeasured), sum(pair.differs for pair in unmeasured))


def _bin_index(number: int) -> int:
    return next((at for at, (most, _) in enumerate(BINS) if number <= most), len(BINS))


def _gradient_distances(pair: Pair, fetch: Fetch) -> Iterator[list[int]]:
    ours, theirs = (
        replay.plain.observation if replay and replay.plain else None for replay in (pair.ours, pair.theirs)
    )
    if ours is None or theirs is None:
        return
    others = {tensor.name: tensor for tensor in theirs.tensors if tensor.role == "gradient"}
    for tensor in ours.tensors:
        other = others.get(tensor.name)
        if tensor.role == "gradient" and other is not None and tensor.digest and other.digest:
            found = ulp_steps(tensor, other, fetch)
            if found is not None:
                yield found


def agreement_json(found: Across) -> str:
    """Return every pair with the rule that decided it, and the classes, as canonical JSON."""
    return canonical(
        {
            "settings": [_setting_json(one) for one in (found.here, *found.others)],
            "pairs": [_pair_json(pair) for pair in found.pairs],
            "classes": [[member.name for member in one.members] for one in found.classes],
            "splits": [[one.factor, one.decides, one.of, one.values, one.along, one.pairs] for one in found.splits],
            "causes": {
                name: [
                    [one.factor, one.ours, one.theirs, one.alone, one.word, one.followed, one.tried, one.of, one.by]
                    for one in listed
                ]
                for name, listed in found.causes.items()
            },
        }
    )


def _setting_json(one: ComputerSetting) -> dict[str, Any]:
    factors = {factor: dict(facts) for factor, facts in one.factors.items()}
    return {"name": one.name, "computer": one.computer, "origin": one.origin, "factors": factors}


def _largest_difference(agreement: Agreement) -> dict[str, Any] | None:
    """Return the largest difference of the compared tensors. None if none was compared or all bits are the same."""
    found = [one for one in agreement.differences if not one.same_bits and one.compared]
    if not found:
        return None
    one = max(found, key=lambda each: each.absolute)
    return {"tensor": f"{one.role} {one.name}", "absolute": one.absolute, "relative": one.relative, "ulp": one.ulp}


def _pair_json(pair: Pair) -> dict[str, Any]:
    return {
        "setting": pair.setting,
        "scenario": pair.scenario,
        "case": pair.label,
        "device": pair.ours.spec.question.device,
        "ours": pair.ours.content_digest(),
        "theirs": None if pair.theirs is None else pair.theirs.content_digest(),
        "compared": pair.compared,
        "rank": pair.agreement.rank,
        "rule": pair.agreement.rule,
        "first difference": pair.agreement.first,
        "largest difference": _largest_difference(pair.agreement),
    }

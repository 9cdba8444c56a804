"""Causes: why the bits under another setting differ from ours, as shown by counter-replays.

A *counter-replay* is a separate sweep, run here, of the cases that differ: each is run several times under our
setting again, which is the *control*, and several times with one factor flipped to its value under the other setting.
The factor is the *cause* if in each of these cases the control reproduces our bits and the flipped run the other
setting's bits, each time. Nothing else proves a cause: neither the records to be explained nor records added from
elsewhere count, even if they differ in that factor alone.

Pure functions of replays. Imports only the standard library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from ..core.canonical_json import digest
from ..core.replay import Replay
from ..core.spec import Spec
from .flips import Flip, find_flip, hindrance
from .settings import ComputerSetting, computer_settings, differing_factors, label, value

CONTROL = "control-"
FLIP = "flip-"
"""Prefixes of the names of a counter-replay's two environments; the factor follows."""
REPEATS = 2
"""Least number of times that each case is run on either side."""


def environment(kind: str, factor: str) -> str:
    """Return the name of a factor's environment; `kind` is `CONTROL` or `FLIP`."""
    return kind + re.sub(r"[^\w.-]+", "-", factor)


def is_counter_replay(name: str) -> bool:
    """Whether an environment of this name belongs to a counter-replay, so that it is not compared as a setting."""
    return name.startswith((CONTROL, FLIP))


def plans_counter_replay(specs: Sequence[Spec]) -> bool:
    """Whether a sweep of these specs has one control and one flip, and nothing else."""
    names = sorted({spec.setting.environment for spec in specs})
    return len(names) == 2 and names[0].startswith(CONTROL) and names[1].startswith(FLIP)


@dataclass(frozen=True)
class CounterReplay:
    """One counter-replay that was run here: our setting again, and with one factor flipped."""

    sweep: str
    control: ComputerSetting
    flipped: ComputerSetting

    @property
    def records(self) -> set[str]:
        """Digests of all its records."""
        return _record_digests(self.control) | _record_digests(self.flipped)


def counter_replay(
    sweep: str, replays: Sequence[Replay], facts: Mapping[str, Mapping[str, Any]]
) -> CounterReplay | None:
    """Return the counter-replay of a sweep. None if a side did not run, or ran on several computers or settings."""
    found = computer_settings(replays, facts)
    control = [one for one in found if one.environment.startswith(CONTROL)]
    flipped = [one for one in found if one.environment.startswith(FLIP)]
    if len(control) != 1 or len(flipped) != 1 or len(found) != 2:
        return None
    return CounterReplay(sweep, control[0], flipped[0])


def _record_digests(one: ComputerSetting) -> set[str]:
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
    """A factor in which another setting differs from ours, and the result of flipping it alone."""

    factor: str
    ours: str
    theirs: str
    alone: bool
    """Whether the settings differ in nothing else. By itself that is not a proof."""
    word: str
    followed: int
    """Cases in which the control gave our bits each time and the flipped run the other setting's bits each time."""
    tried: int
    """Cases that were run at least `REPEATS` times on both sides."""
    of: int
    """Number of cases that differ."""
    by: str
    """Id of the counter-replay's sweep. Empty if there is none."""
    why: str
    """Why it cannot be flipped, or why the counter-replays that were run do not count. Empty otherwise."""

    @property
    def words(self) -> str:
        """The result, as reports print it."""
        return f"differs in this alone; {self.word}" if self.alone and not self.by else self.word

    @property
    def open(self) -> bool:
        """Whether another counter-replay could show more."""
        return self.word == OPEN or (
            bool(self.by) and self.tried < self.of and self.word not in (VARIES, CONTROL_DIFFERS)
        )


def causes(ours: ComputerSetting, theirs: ComputerSetting, shown: Sequence[CounterReplay]) -> list[Cause]:
    """Return each factor in which the two differ, with what `shown` says about it, proven causes first."""
    unlike = _differing_keys(ours, theirs)
    if not unlike:
        return []
    found = [_cause(factor, ours, theirs, shown) for factor in differing_factors(ours, theirs)]
    return sorted(found, key=lambda one: (-one.followed, _ORDER.index(one.word), one.factor))


def _differing_keys(ours: ComputerSetting, theirs: ComputerSetting) -> list[str]:
    """Return the cases with passes that both have run, with different evidence."""
    first, second = ours.evidence, theirs.evidence
    return sorted(case for case in first.keys() & second.keys() if first[case] != second[case])


def differing_cases(ours: ComputerSetting, theirs: ComputerSetting) -> set[str]:
    """Return the digests of the cases in which the two differ, which a counter-replay must therefore run."""
    return {case.partition(" ")[0] for case in _differing_keys(ours, theirs)}


def _cause(factor: str, ours: ComputerSetting, theirs: ComputerSetting, shown: Sequence[CounterReplay]) -> Cause:
    decided = [
        _judge_counter_replay(factor, ours, theirs, one) for one in shown if _is_relevant(one, factor, ours, theirs)
    ]
    if decided:
        # A failed control outweighs everything, then the one with most cases, then evidence against a proof: repeating
        # counter-replays until one succeeds must not count as a proof.
        return min(
            decided, key=lambda one: (one.word not in (VARIES, CONTROL_DIFFERS), -one.tried, _WEAKEST.index(one.word))
        )
    why = hindrance(factor, ours, theirs)
    word = CANNOT if why else OPEN
    return _make_cause(factor, ours, theirs, word, why=why or _failure_reason(factor, ours, shown))


def _make_cause(
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
    alone = differing_factors(ours, theirs) == [factor]
    return Cause(factor, *values, alone, word, followed, tried, len(_differing_keys(ours, theirs)), by, why)


def _is_relevant(one: CounterReplay, factor: str, ours: ComputerSetting, theirs: ComputerSetting) -> bool:
    """Whether the counter-replay flips this factor alone, from our value to theirs, on this computer.

    None of its records may be among those to be explained.
    """
    return (
        _is_control(one, ours)
        and differing_factors(one.control, one.flipped) == differing_factors(ours, one.flipped) == [factor]
        and factor not in differing_factors(one.flipped, theirs)
        and not one.records & (_record_digests(ours) | _record_digests(theirs))
    )


def _is_control(one: CounterReplay, ours: ComputerSetting) -> bool:
    """Whether its control ran on our computer under our setting."""
    return bool(ours.computer) and one.control.computer == ours.computer and not differing_factors(ours, one.control)


def _judge_counter_replay(factor: str, ours: ComputerSetting, theirs: ComputerSetting, one: CounterReplay) -> Cause:
    first, second, unlike = ours.evidence, theirs.evidence, _differing_keys(ours, theirs)
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
    return _make_cause(factor, ours, theirs, word, len(followed), len(tried), one.sweep)


def _failure_reason(factor: str, ours: ComputerSetting, shown: Sequence[CounterReplay]) -> str:
    """Return what a counter-replay of the factor changed instead. Empty if there was none."""
    for one in reversed(shown):
        if one.flipped.environment != environment(FLIP, factor):
            continue
        if not _is_control(one, ours):
            return _failure_text(
                f"the control of {one.sweep} did not run as ours", differing_factors(ours, one.control)
            )
        changed = differing_factors(one.control, one.flipped)
        if changed != [factor]:
            return _failure_text(f"{one.sweep} did not flip it alone", changed)
    return ""


def _failure_text(said: str, factors: Sequence[str]) -> str:
    return f"{said}: {', '.join(map(label, factors)) or 'nothing'} changed"


def flips(ours: ComputerSetting, theirs: ComputerSetting, shown: Sequence[CounterReplay]) -> list[Flip]:
    """Return the flips that would show more about why the two differ.

    There is one for each factor that can be flipped and was not flipped yet, or not in every case.
    """
    made = [find_flip(cause.factor, ours, theirs) for cause in causes(ours, theirs, shown) if cause.open]
    return [one for one in made if isinstance(one, Flip)]

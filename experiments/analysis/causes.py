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
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from ..core.canonical_json import digest
from ..core.replay import Replay
from ..core.spec import Spec
from .flips import Flip, find_flip, hindrance
from .settings import ComputerSetting, computer_settings, differing, label, value

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


def flips(ours: ComputerSetting, theirs: ComputerSetting, shown: Sequence[CounterReplay]) -> list[Flip]:
    """Counter-replays that would tell more about why the two differ: one for each factor that can be flipped and was
    not, or not in every case.
    """
    made = [find_flip(cause.factor, ours, theirs) for cause in causes(ours, theirs, shown) if cause.open]
    return [one for one in made if isinstance(one, Flip)]

"""Agreement classes: settings that gave the same evidence, and the facts that tell the classes apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Sequence

from .settings import HOST, ComputerSetting, differing, values_differ

# Agreement classes.


@dataclass(frozen=True)
class Class:
    """Settings that have the same evidence in every case that they share."""

    members: tuple[ComputerSetting, ...]
    """The first is the representative."""
    cases: int
    """Cases that the representative has run."""

    @property
    def representative(self) -> ComputerSetting:
        return self.members[0]

    @property
    def computers(self) -> int:
        """How many computers its members are known to be of; all that tell no host identity may be one."""
        return len({member.computer for member in self.members})


def classes(listed: Sequence[ComputerSetting]) -> list[Class]:
    """Each setting joins the first class whose representative it shares a case with and agrees with in all shared
    ones; the order of the settings decides who represents.
    """
    seen = {one.name: one.evidence for one in listed}
    groups: list[list[ComputerSetting]] = []
    for one in listed:
        if not seen[one.name]:
            continue
        fitting = (group for group in groups if _same(seen[group[0].name], seen[one.name]))
        group = next(fitting, None)
        if group is None:
            groups.append([one])
        else:
            group.append(one)
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
    """Cases in which settings of one value always have one evidence."""
    of: int
    """Cases whose evidence is not the same under all settings."""
    values: int
    """Values that the factor has among the settings."""
    along: int
    """Pairs of the first setting with another, case by case, that differ in evidence and in the factor."""
    pairs: int
    """Those pairs that differ in evidence."""


def splits(listed: Sequence[ComputerSetting]) -> list[Split]:
    """Factors ranked: by the cases of the first setting that they would decide, then by how many differences from it
    they go along with, then by how few values they need for it, as a fact that is different everywhere goes with
    any difference; the host, which explains nothing, after its equals.
    """
    seen = {one.name: one.evidence for one in listed}
    cases = sorted(seen[listed[0].name]) if listed else []
    open_ = [case for case in cases if len({found[case] for found in seen.values() if case in found}) > 1]
    names = sorted({name for one in listed for name in one.factors})
    numbers = _numbers(listed, open_)
    unlike = {one.name: set(differing(listed[0], one)) for one in listed}
    made = []
    for name in names:
        # As in `differing`: what a setting cannot tell says nothing.
        able = [one for one in listed if name in one.factors or values_differ(name, None, {})]
        values = _values(name, able)
        if len(set(values.values())) < 2:
            continue
        decides = sum(_decided(case, seen, values) for case in open_)
        along, pairs = _along(name, unlike, numbers)
        if decides or along:
            made.append(Split(name, decides, len(open_), len(set(values.values())), along, pairs))
    return sorted(made, key=lambda one: (-one.decides, -one.along, one.values, one.factor == HOST, one.factor))


def _values(factor: str, listed: Sequence[ComputerSetting]) -> dict[str, str]:
    """The factor's value by name of the setting, by the facts that all of them tell if there are any."""
    told = [one.factors[factor] for one in listed if factor in one.factors]
    shared = set[str]().union(*told).intersection(*told)
    return {
        one.name: repr(
            [fact for fact in sorted(one.factors.get(factor, {}).items()) if fact[0] in shared or not shared]
        )
        for one in listed
    }


def _numbers(listed: Sequence[ComputerSetting], cases: Sequence[str]) -> dict[str, int]:
    """In how many of the cases each setting differs from the first, by its name."""
    first = listed[0].evidence if listed else {}
    return {
        other.name: sum(case in other.evidence and other.evidence[case] != first[case] for case in cases)
        for other in listed[1:]
    }


def _along(name: str, unlike: Mapping[str, set[str]], numbers: Mapping[str, int]) -> tuple[int, int]:
    """How many differences from the first setting the factor goes along with, and how many there are. `unlike` are the
    factors in which each setting differs from it.
    """
    return sum(number for other, number in numbers.items() if name in unlike[other]), sum(numbers.values())


def _decided(case: str, seen: Mapping[str, Mapping[str, str]], values: Mapping[str, str]) -> bool:
    """Whether the evidence is a function of the value, of more than one."""
    by_value: dict[str, set[str]] = {}
    for name, found in seen.items():
        if case in found and name in values:
            by_value.setdefault(values[name], set()).add(found[case])
    return len(by_value) > 1 and all(len(digests) == 1 for digests in by_value.values())

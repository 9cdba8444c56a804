"""Agreement classes: settings that produced the same evidence, and the facts that separate the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Sequence

from .settings import HOST, ComputerSetting, differing_factors, has_different_values

# Agreement classes.


@dataclass(frozen=True)
class Class:
    """Settings with the same evidence in every case that they share with the representative."""

    members: tuple[ComputerSetting, ...]
    """The first is the representative."""
    cases: int
    """Number of cases that the representative has run."""

    @property
    def representative(self) -> ComputerSetting:
        """The member that the others are compared with."""
        return self.members[0]

    @property
    def computers(self) -> int:
        """Number of distinct computers among its members; those without a host identity count as one."""
        return len({member.computer for member in self.members})


def classes(listed: Sequence[ComputerSetting]) -> list[Class]:
    """Group settings into agreement classes.

    Each setting joins the first class whose representative it shares a case with and agrees with in all shared cases.
    The order of the settings decides which ones are representatives.
    """
    seen = {one.name: one.evidence for one in listed}
    groups: list[list[ComputerSetting]] = []
    for one in listed:
        if not seen[one.name]:
            continue
        fitting = (group for group in groups if _has_same_evidence(seen[group[0].name], seen[one.name]))
        group = next(fitting, None)
        if group is None:
            groups.append([one])
        else:
            group.append(one)
    return [Class(tuple(group), len(seen[group[0].name])) for group in groups]


def _has_same_evidence(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Whether two settings agree in all shared cases. A case that ran in other passes is not shared."""
    shared = ours.keys() & theirs.keys()
    return bool(shared) and all(ours[case] == theirs[case] for case in shared)


# Factors that separate the classes.


@dataclass(frozen=True)
class Split:
    """A factor, and how many of the cases whose evidence differs between settings it would explain."""

    factor: str
    decides: int
    """Number of cases in which all settings with the same value have the same evidence."""
    of: int
    """Number of cases whose evidence is not the same under all settings."""
    values: int
    """Number of values that the factor has among the settings."""
    along: int
    """Differences in evidence from the first setting, counted by case, in which the factor differs as well."""
    pairs: int
    """All differences in evidence from the first setting, counted by case."""


def splits(listed: Sequence[ComputerSetting]) -> list[Split]:
    """Return the factors, ranked by how well they explain the differences between the settings.

    Ranked by the number of cases of the first setting that they would decide, then by how many differences from it they
    coincide with, then by how few values they have, as a fact that is different everywhere coincides with any
    difference; among equals the host, which explains nothing, comes last.
    """
    seen = {one.name: one.evidence for one in listed}
    cases = sorted(seen[listed[0].name]) if listed else []
    open_ = [case for case in cases if len({found[case] for found in seen.values() if case in found}) > 1]
    names = sorted({name for one in listed for name in one.factors})
    numbers = _difference_counts(listed, open_)
    unlike = {one.name: set(differing_factors(listed[0], one)) for one in listed}
    made = []
    for name in names:
        # As in `differing_factors`: a fact that a setting does not record counts for nothing.
        able = [one for one in listed if name in one.factors or has_different_values(name, None, {})]
        values = _factor_values(name, able)
        if len(set(values.values())) < 2:
            continue
        decides = sum(_is_decided(case, seen, values) for case in open_)
        along, pairs = _count_along(name, unlike, numbers)
        if decides or along:
            made.append(Split(name, decides, len(open_), len(set(values.values())), along, pairs))
    return sorted(made, key=lambda one: (-one.decides, -one.along, one.values, one.factor == HOST, one.factor))


def _factor_values(factor: str, listed: Sequence[ComputerSetting]) -> dict[str, str]:
    """Return the factor's value by setting name, from the facts that all of them record, if there are any."""
    told = [one.factors[factor] for one in listed if factor in one.factors]
    shared = set[str]().union(*told).intersection(*told)
    return {
        one.name: repr(
            [fact for fact in sorted(one.factors.get(factor, {}).items()) if fact[0] in shared or not shared]
        )
        for one in listed
    }


def _difference_counts(listed: Sequence[ComputerSetting], cases: Sequence[str]) -> dict[str, int]:
    """Return in how many of the cases each setting differs from the first, by setting name."""
    first = listed[0].evidence if listed else {}
    return {
        other.name: sum(case in other.evidence and other.evidence[case] != first[case] for case in cases)
        for other in listed[1:]
    }


def _count_along(name: str, unlike: Mapping[str, set[str]], numbers: Mapping[str, int]) -> tuple[int, int]:
    """Return how many differences from the first setting the factor coincides with, and how many there are in all.

    `unlike` maps each setting to the factors in which it differs from the first.
    """
    return sum(number for other, number in numbers.items() if name in unlike[other]), sum(numbers.values())


def _is_decided(case: str, seen: Mapping[str, Mapping[str, str]], values: Mapping[str, str]) -> bool:
    """Whether the evidence of the case is a function of the factor's value, with at least two values."""
    by_value: dict[str, set[str]] = {}
    for name, found in seen.items():
        if case in found and name in values:
            by_value.setdefault(values[name], set()).add(found[case])
    return len(by_value) > 1 and all(len(digests) == 1 for digests in by_value.values())

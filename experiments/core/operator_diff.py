"""Operators of two passes side by side, and the first that differs."""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import count
from typing import Iterator, Sequence, Tuple

from .observation import Operator

# Operators.


@dataclass(frozen=True)
class Step:
    """One place of two aligned operator lists."""

    left: Operator | None
    """None where only the right list has an operator."""
    right: Operator | None
    """None where only the left list has an operator."""

    @property
    def same(self) -> bool:
        return self.left == self.right


def align(left: Sequence[Operator], right: Sequence[Operator]) -> list[Step]:
    """Two operator lists side by side, so that one inserted or removed does not shift the rest.

    Takes time in proportion to the lists, whatever is in them: beyond `MOST_PAIRS` the n-th of a name is taken for the
    n-th on the other side, and only what lies between two such places is looked at closely.
    """
    ours, theirs = [_name(o) for o in left], [_name(o) for o in right]
    return [step for block in _blocks(ours, theirs) for step in _steps(left, right, block)]


MOST_PAIRS = 4000
"""Pairs of equal names up to which two lists are compared by difflib, which takes the cube of their lengths at worst.
The lists of the experiments have up to 1,500."""

MOST_PAIRS_BETWEEN = 100
"""The same of a gap between two places that belong together, of which there may be thousands."""

_Name = Tuple[int, str]
_Block = Tuple[int, int, int, int]
"""Beginning and end of what stands side by side, in the left list and in the right one."""


def _blocks(ours: Sequence[_Name], theirs: Sequence[_Name]) -> Iterator[_Block]:
    if ours == theirs:
        yield 0, len(ours), 0, len(theirs)
    elif _equal_pairs(ours, theirs) <= MOST_PAIRS:
        yield from _blocks_of_difflib(ours, theirs)
    else:
        start = next(place for place in count() if ours[place : place + 1] != theirs[place : place + 1])
        yield 0, start, 0, start
        a = c = start
        found = ((start + b, start + d) for b, d in _anchors(ours[start:], theirs[start:]))
        for b, d in [*found, (len(ours), len(theirs))]:
            yield from _between(ours, theirs, (a, b, c, d))
            yield b, min(b + 1, len(ours)), d, min(d + 1, len(theirs))
            a, c = b + 1, d + 1


def _between(ours: Sequence[_Name], theirs: Sequence[_Name], gap: _Block) -> Iterator[_Block]:
    """What lies between two places that belong together: looked at closely if it is small."""
    a, b, c, d = gap
    inside = ours[a:b], theirs[c:d]
    if all(inside) and 0 < _equal_pairs(*inside) <= MOST_PAIRS_BETWEEN:
        yield from ((a + i, a + j, c + k, c + m) for i, j, k, m in _blocks_of_difflib(*inside))
    else:
        yield gap


def _blocks_of_difflib(ours: Sequence[_Name], theirs: Sequence[_Name]) -> Iterator[_Block]:
    for _, a, b, c, d in SequenceMatcher(a=ours, b=theirs, autojunk=False).get_opcodes():
        yield a, b, c, d


def _equal_pairs(ours: Sequence[_Name], theirs: Sequence[_Name]) -> int:
    counts = Counter(theirs)
    return sum(number * counts[name] for name, number in Counter(ours).items())


def _anchors(ours: Sequence[_Name], theirs: Sequence[_Name]) -> list[tuple[int, int]]:
    """Places that belong together: the longest series of the n-th of a name on both sides that keeps their order."""
    known = {one: place for place, one in enumerate(_numbered(theirs))}
    pairs = [(place, known[one]) for place, one in enumerate(_numbered(ours)) if one in known]
    ends: list[int] = []  # smallest last place of a series of each length
    at: list[int] = []  # index of the pair that it is of
    before: list[int] = []
    for index, (_, place) in enumerate(pairs):
        length = bisect.bisect_left(ends, place)
        before.append(at[length - 1] if length else -1)
        ends[length : length + 1] = [place]
        at[length : length + 1] = [index]
    found = []
    index = at[-1] if at else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    return found[::-1]


def _numbered(names: Sequence[_Name]) -> Iterator[tuple[_Name, int]]:
    """Each name with how many equal ones came before."""
    seen: Counter[_Name] = Counter()
    for name in names:
        yield name, seen[name]
        seen[name] += 1


def _steps(left: Sequence[Operator], right: Sequence[Operator], block: _Block) -> Iterator[Step]:
    a, b, c, d = block
    for index in range(max(b - a, d - c)):
        yield Step(
            left[a + index] if a + index < b else None,
            right[c + index] if c + index < d else None,
        )


def _name(operator: Operator) -> tuple[int, str]:
    return operator.depth, operator.name


def first_difference(left: Sequence[Operator], right: Sequence[Operator]) -> tuple[int, Step] | None:
    """The first place, in aligned order, where names or shapes differ. None if the lists are the same."""
    for index, step in enumerate(align(left, right)):
        if not step.same:
            return index, step
    return None

"""Alignment of the operators of two passes, and the first that differs."""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import count
from typing import Iterator, Sequence, Tuple

from .observation import Operator


@dataclass(frozen=True)
class Step:
    """One position of two aligned operator lists."""

    left: Operator | None
    """None where only the right list has an operator."""
    right: Operator | None
    """None where only the left list has an operator."""

    @property
    def same(self) -> bool:
        """Whether both lists have the same operator here."""
        return self.left == self.right


def align(left: Sequence[Operator], right: Sequence[Operator]) -> list[Step]:
    """Align two operator lists, so that an inserted or removed operator does not shift the rest.

    The time is proportional to the lengths of the lists, whatever they contain: beyond `MOST_PAIRS`, the n-th operator
    of a name is matched with the n-th of that name in the other list, and only the gaps between such matches are
    aligned exactly.
    """
    ours, theirs = [_operator_key(o) for o in left], [_operator_key(o) for o in right]
    return [step for block in _blocks(ours, theirs) for step in _steps(left, right, block)]


MOST_PAIRS = 4000
"""Pairs of equal names up to which two lists are aligned by difflib, whose time is cubic in their lengths at worst.
The lists of the experiments have up to 1,500."""

MOST_PAIRS_BETWEEN = 100
"""The same limit for a gap between two matches, of which there may be thousands."""

_Name = Tuple[int, str]
_Block = Tuple[int, int, int, int]
"""Start and end of a stretch of the left list, and of the stretch of the right list that is aligned with it."""


def _blocks(ours: Sequence[_Name], theirs: Sequence[_Name]) -> Iterator[_Block]:
    if ours == theirs:
        yield 0, len(ours), 0, len(theirs)
    elif _equal_pairs(ours, theirs) <= MOST_PAIRS:
        yield from _difflib_blocks(ours, theirs)
    else:
        start = next(place for place in count() if ours[place : place + 1] != theirs[place : place + 1])
        yield 0, start, 0, start
        a = c = start
        found = ((start + b, start + d) for b, d in _anchors(ours[start:], theirs[start:]))
        for b, d in [*found, (len(ours), len(theirs))]:
            yield from _gap_blocks(ours, theirs, (a, b, c, d))
            yield b, min(b + 1, len(ours)), d, min(d + 1, len(theirs))
            a, c = b + 1, d + 1


def _gap_blocks(ours: Sequence[_Name], theirs: Sequence[_Name], gap: _Block) -> Iterator[_Block]:
    """Yield the blocks of a gap between two matches: aligned exactly if it is small, else as one block."""
    a, b, c, d = gap
    inside = ours[a:b], theirs[c:d]
    if all(inside) and 0 < _equal_pairs(*inside) <= MOST_PAIRS_BETWEEN:
        yield from ((a + i, a + j, c + k, c + m) for i, j, k, m in _difflib_blocks(*inside))
    else:
        yield gap


def _difflib_blocks(ours: Sequence[_Name], theirs: Sequence[_Name]) -> Iterator[_Block]:
    for _, a, b, c, d in SequenceMatcher(a=ours, b=theirs, autojunk=False).get_opcodes():
        yield a, b, c, d


def _equal_pairs(ours: Sequence[_Name], theirs: Sequence[_Name]) -> int:
    counts = Counter(theirs)
    return sum(number * counts[name] for name, number in Counter(ours).items())


def _anchors(ours: Sequence[_Name], theirs: Sequence[_Name]) -> list[tuple[int, int]]:
    """Return the matches: the longest increasing sequence of pairs that are the n-th of a name in both lists."""
    known = {one: place for place, one in enumerate(_numbered_names(theirs))}
    pairs = [(place, known[one]) for place, one in enumerate(_numbered_names(ours)) if one in known]
    ends: list[int] = []  # smallest last position of a sequence of each length
    at: list[int] = []  # index of the pair at that position
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


def _numbered_names(names: Sequence[_Name]) -> Iterator[tuple[_Name, int]]:
    """Yield each name with the number of equal names before it."""
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


def _operator_key(operator: Operator) -> tuple[int, str]:
    return operator.depth, operator.name


def first_difference(left: Sequence[Operator], right: Sequence[Operator]) -> tuple[int, Step] | None:
    """Return the first position, in aligned order, where names or shapes differ. None if the lists are equal."""
    for index, step in enumerate(align(left, right)):
        if not step.same:
            return index, step
    return None

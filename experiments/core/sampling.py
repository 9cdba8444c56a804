"""Which elements are kept of a tensor that is too large to be kept whole."""

from __future__ import annotations

SAMPLES = 1024
"""Elements kept of a tensor that is too large to be kept whole."""


def sample_positions(elements: int) -> list[int]:
    """Positions, in row-major order, of the elements kept of a large tensor: the same on all machines.

    One from each of `SAMPLES` equal stretches, so that no part of the tensor goes unseen; where in its
    stretch is scattered by a fixed hash (splitmix64), so that no regular pattern does either.
    """
    if elements <= SAMPLES:
        return list(range(elements))
    edges = [index * elements // SAMPLES for index in range(SAMPLES + 1)]
    return [low + _scatter(index) % (high - low) for index, (low, high) in enumerate(zip(edges, edges[1:]))]


def _scatter(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & (2**64 - 1)
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return value ^ (value >> 31)

"""Choice of the elements that are stored of a tensor that is too large to be stored whole."""

from __future__ import annotations

SAMPLES = 1024
"""Number of elements stored of a tensor that is too large to be stored whole."""


def sample_positions(elements: int) -> list[int]:
    """Return the positions, in row-major order, of the elements stored of a tensor. They are the same on all machines.

    A large tensor is divided into `SAMPLES` stretches of equal length, and one element is taken from each, so that no
    part of the tensor is skipped. A fixed hash (splitmix64) chooses it, so that no regular pattern is missed either.
    """
    if elements <= SAMPLES:
        return list(range(elements))
    edges = [index * elements // SAMPLES for index in range(SAMPLES + 1)]
    return [low + _scatter(index) % (high - low) for index, (low, high) in enumerate(zip(edges, edges[1:]))]


def _scatter(value: int) -> int:
    """Return the splitmix64 hash of a number, below 2**64."""
    value = (value + 0x9E3779B97F4A7C15) & (2**64 - 1)
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return value ^ (value >> 31)

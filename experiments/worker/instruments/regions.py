"""Marks in the profile where a checkpointed function runs: its forward run, and each recomputation.

Hooks what `torch.utils.checkpoint.checkpoint` looks up when it is called (the generator of the non-reentrant variant,
the autograd function of the reentrant one), so code that imported `checkpoint` earlier is covered. Used only in the
profiled pass. Does not cover `checkpoint` inside a compiled function, which the compiler expands itself.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Callable, Generator, Iterator

import torch
from torch.utils import checkpoint as module

FORWARD, RECOMPUTATION = "twofold::region forward", "twofold::region recomputation"


def _mark_calls(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a mark of this name around each call."""

    def run(*arguments: Any, **options: Any) -> Any:
        with torch.profiler.record_function(name):
            return function(*arguments, **options)

    return run


def _mark_generator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the generator function behind the non-reentrant variant, with marks."""

    def generate(function: Callable[..., Any], *arguments: Any, **options: Any) -> Generator[None, None, None]:
        # `checkpoint` itself calls the function between the two steps of the generator. The function that it passes
        # to the generator is called when gradients are computed.
        inner = original(_mark_calls(RECOMPUTATION, function), *arguments, **options)
        next(inner, None)
        with torch.profiler.record_function(FORWARD):
            try:
                yield
            except BaseException as error:
                inner.throw(error)
                raise
        yield from inner

    return generate


class _Reentrant:
    """Replaces `CheckpointFunction`, of which `checkpoint` only calls `apply`."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the original `apply` with a function that marks its first call as forward, others as recomputation."""
        runs = itertools.count()

        def run(*inner: Any, **options: Any) -> Any:
            return _mark_calls(RECOMPUTATION if next(runs) else FORWARD, function)(*inner, **options)

        return self._original.apply(run, *arguments)


_HOOKS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("_checkpoint_without_reentrant_generator_impl", _mark_generator),  # what `checkpoint` calls from torch 2.14 on
    ("_checkpoint_without_reentrant_generator", _mark_generator),  # up to 2.13; later, it calls the other one
    ("CheckpointFunction", _Reentrant),
)


def has_hooks() -> bool:
    """Return whether this torch has what the marks need. If not, it is unknown what was recomputed."""
    return hasattr(module, "CheckpointFunction") and any(hasattr(module, name) for name, _ in _HOOKS[:2])


@contextlib.contextmanager
def mark_regions() -> Iterator[None]:
    """Make both variants of checkpoint leave their marks in the profile within the block."""
    there = [(name, getattr(module, name)) for name, _ in _HOOKS if hasattr(module, name)]
    if there and there[0][0] == _HOOKS[0][0]:
        there = [pair for pair in there if pair[0] != _HOOKS[1][0]]
    for name, original in there:
        setattr(module, name, dict(_HOOKS)[name](original))
    try:
        yield
    finally:
        for name, original in there:
            setattr(module, name, original)

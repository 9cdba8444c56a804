"""Marks in the profile where a checkpointed function runs: its forward run, and each recomputation.

Hooks what `torch.utils.checkpoint.checkpoint` looks up when it is called (the generator behind the
non-reentrant kind, the autograd function behind the reentrant one), so code that imported `checkpoint`
earlier is covered. Used in the profiled pass only. Does not cover `checkpoint` inside a compiled function,
which the compiler expands by itself.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Callable, Generator, Iterator

import torch
from torch.utils import checkpoint as module

FORWARD, RECOMPUTATION = "twofold::region forward", "twofold::region recomputation"


def _marked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        with torch.profiler.record_function(name):
            return function(*arguments, **options)

    return run


def _generator(original: Callable[..., Any]) -> Callable[..., Any]:
    def marked(function: Callable[..., Any], *arguments: Any, **options: Any) -> Generator[None, None, None]:
        # `checkpoint` itself calls the function between the two steps; what it hands in is called again
        # when gradients are computed.
        inner = original(_marked(RECOMPUTATION, function), *arguments, **options)
        next(inner, None)
        with torch.profiler.record_function(FORWARD):
            try:
                yield
            except BaseException as error:
                inner.throw(error)
                raise
        yield from inner

    return marked


class _Reentrant:
    """Stands for `CheckpointFunction`: `checkpoint` only asks it to `apply`."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        runs = itertools.count()

        def run(*inner: Any, **options: Any) -> Any:
            return _marked(RECOMPUTATION if next(runs) else FORWARD, function)(*inner, **options)

        return self._original.apply(run, *arguments)


_HOOKS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("_checkpoint_without_reentrant_generator_impl", _generator),  # what `checkpoint` calls from torch 2.14 on
    ("_checkpoint_without_reentrant_generator", _generator),  # up to 2.13; later, who calls it calls the other
    ("CheckpointFunction", _Reentrant),
)


def known() -> bool:
    """Whether this torch has what the marks hang on. If not, nobody can tell what was recomputed."""
    return hasattr(module, "CheckpointFunction") and any(hasattr(module, name) for name, _ in _HOOKS[:2])


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Within the block, both kinds of checkpoint leave their marks in the profile."""
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

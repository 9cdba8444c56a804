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


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Within the block, both kinds of checkpoint leave their marks in the profile."""
    generator, function = module._checkpoint_without_reentrant_generator, module.CheckpointFunction  # noqa: SLF001
    module._checkpoint_without_reentrant_generator = _generator(generator)  # noqa: SLF001
    module.CheckpointFunction = _Reentrant(function)  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        module._checkpoint_without_reentrant_generator = generator  # noqa: SLF001
        module.CheckpointFunction = function  # type: ignore[misc]

"""Reentrant ``checkpoint`` refuses keyword arguments for its function, and most options of its own.

What the reentrant kind calls in the end is ``apply`` of an autograd function, which has no keyword arguments. So
``checkpoint`` says ``ValueError`` for every keyword that it does not know, and for ``context_fn`` and ``debug``,
which hang on the saved tensors that only the non-reentrant kind watches. All of it is refused at the call.
"""

import contextlib
import functools

import torch
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, raises

scenario = Scenario(
    source="reported in the DFlash compile-checkpoint note (claim B12); docs.pytorch.org/docs/stable/checkpoint.html",
    rounding=True,
)


@scenario.inputs
def inputs(seed):
    """Hidden states (positions 8, width 4) and a weight (width, width)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-16, 17, shape, generator=generator) / 16).requires_grad_()
        for name, shape in (("hidden", (8, 4)), ("weight", (4, 4)))
    }


def block(hidden, weight, scale=1.0):
    return torch.tanh(scale * hidden @ weight)


def loss(mixed):
    return mixed.square().sum()


def both_runs():
    return contextlib.nullcontext(), contextlib.nullcontext()


@scenario.reference(profiled=False)
def not_checkpointed(hidden, weight):
    return loss(block(hidden, weight, scale=0.5))


@scenario.broken(raises(ValueError, "Unexpected keyword arguments: scale"), cause="reentrant limit", profiled=False)
def passed_by_keyword(hidden, weight):
    return loss(checkpoint(block, hidden, weight, scale=0.5, use_reentrant=True))


@scenario.broken(raises(ValueError, "only supported when use_reentrant=False"), cause="reentrant limit", profiled=False)
def given_contexts_for_both_runs(hidden, weight):
    return loss(checkpoint(block, hidden, weight, 0.5, use_reentrant=True, context_fn=both_runs))


@scenario.repair(agrees(bitwise=True), profiled=False)
def not_reentrant(hidden, weight):
    return loss(checkpoint(block, hidden, weight, scale=0.5, use_reentrant=False, context_fn=both_runs))


@scenario.repair(agrees(bitwise=True), profiled=False)
def bound_to_the_function(hidden, weight):
    return loss(checkpoint(functools.partial(block, scale=0.5), hidden, weight, use_reentrant=True))

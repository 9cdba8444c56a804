"""Reentrant ``checkpoint`` works with a plain ``backward()`` only.

Its backward recomputes the function and calls ``backward()`` on that, which fills in the gradient of every leaf it
meets. ``torch.autograd.grad`` and ``backward(inputs=...)`` ask for some gradients and no other, and the inner call
knows nothing of what was asked. So both are refused as soon as the backward reaches the block.

The calculation is a gradient penalty, which needs the gradient as a tensor to go on with.
"""

import torch
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, raises

scenario = Scenario(
    source="reported in the DFlash compile-checkpoint note (claim B12); docs.pytorch.org/docs/stable/checkpoint.html",
    rounding=True,
)

REFUSED = "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad()"


@scenario.inputs
def inputs(seed):
    """Hidden states (positions 8, width 4) and a weight (width, width)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-16, 17, shape, generator=generator) / 16).requires_grad_()
        for name, shape in (("hidden", (8, 4)), ("weight", (4, 4)))
    }


def block(hidden, weight):
    return torch.tanh(hidden @ weight)


def penalty(mixed, hidden):
    """The squared size of the gradient of the summed squares."""
    (gradient,) = torch.autograd.grad(mixed.square().sum(), hidden, create_graph=True)
    return gradient.square().sum()


def penalty_by_backward(mixed, hidden):
    mixed.square().sum().backward(inputs=[hidden], create_graph=True)
    gradient, hidden.grad = hidden.grad, None
    return gradient.square().sum()


@scenario.reference(profiled=False)
def not_checkpointed(hidden, weight):
    return penalty(block(hidden, weight), hidden)


@scenario.broken(raises(RuntimeError, REFUSED), cause="reentrant limit", profiled=False)
def asked_by_grad(hidden, weight):
    return penalty(checkpoint(block, hidden, weight, use_reentrant=True), hidden)


@scenario.broken(raises(RuntimeError, REFUSED), cause="reentrant limit", profiled=False)
def asked_by_backward_with_inputs(hidden, weight):
    return penalty_by_backward(checkpoint(block, hidden, weight, use_reentrant=True), hidden)


@scenario.repair(agrees(bitwise=True), profiled=False)
def not_reentrant_by_grad(hidden, weight):
    return penalty(checkpoint(block, hidden, weight, use_reentrant=False), hidden)


@scenario.repair(agrees(bitwise=True), profiled=False)
def not_reentrant_by_backward_with_inputs(hidden, weight):
    return penalty_by_backward(checkpoint(block, hidden, weight, use_reentrant=False), hidden)

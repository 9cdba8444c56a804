"""Reentrant ``checkpoint`` returns gradients that cannot be differentiated again.

``torch.autograd.grad`` being refused, a gradient of the gradient is asked for by ``backward(create_graph=True)``.
The reentrant kind does not pass that on to the backward that it runs itself: the gradients come out right and
without a graph. Where a part of the model is checkpointed, the second derivative lacks what goes through that part,
and nothing is said. Only where all of it is, there is nothing left to differentiate.

The calculation is a gradient penalty on a residual block. What the documentation lists does not name this limit.
"""

import torch
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, differs, raises

scenario = Scenario(source="beside claim B12 of the DFlash compile-checkpoint note", rounding=True)


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


def energy(hidden, mixed):
    return (hidden + mixed).square().sum()


def penalty(total, hidden, weight):
    """The squared size of the gradient of ``total``. The first gradients are taken away again."""
    total.backward(create_graph=True)
    gradient, hidden.grad, weight.grad = hidden.grad, None, None
    return gradient.square().sum()


@scenario.reference(profiled=False)
def not_checkpointed(hidden, weight):
    return penalty(energy(hidden, block(hidden, weight)), hidden, weight)


@scenario.broken(differs(by_at_least=1e-3), cause="reentrant limit", profiled=False)
def block_checkpointed(hidden, weight):
    mixed = checkpoint(block, hidden, weight, use_reentrant=True)
    return penalty(energy(hidden, mixed), hidden, weight)


@scenario.broken(raises(RuntimeError, "does not require grad"), cause="reentrant limit", profiled=False)
def all_of_it_checkpointed(hidden, weight):
    def whole(hidden, weight):
        return energy(hidden, block(hidden, weight))

    return penalty(checkpoint(whole, hidden, weight, use_reentrant=True), hidden, weight)


@scenario.repair(agrees(bitwise=True), profiled=False)
def not_reentrant(hidden, weight):
    mixed = checkpoint(block, hidden, weight, use_reentrant=False)
    return penalty(energy(hidden, mixed), hidden, weight)

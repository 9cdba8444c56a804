"""A tensor detached inside a reentrant region comes out attached again.

Reentrant ``checkpoint`` is one autograd function: all of its floating results require a gradient, whatever the
function did to them. The documentation says that a backward through a region with detached tensors then raises an
error. It does if nothing that the region returns requires a gradient when it is recomputed. With one such result
beside it, a detached one does no harm to the gradients, but it says of itself that it requires one: ``numpy()``
refuses it, and it will not pass for the constant target that it was meant to be.
"""

import torch
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, observe, raises, shows

scenario = Scenario(
    source="beside claim B12 of the DFlash compile-checkpoint note; docs.pytorch.org/docs/stable/checkpoint.html",
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


def block(hidden, weight):
    return torch.tanh(hidden @ weight)


def block_and_target(hidden, weight):
    """Mixed states, and the same as a target that nothing learns from."""
    mixed = block(hidden, weight)
    return mixed, mixed.detach()


def loss(hidden, mixed, target):
    observe("target requires a gradient", target.requires_grad)
    return mixed.square().sum() + (hidden - target).square().sum()


@scenario.reference(profiled=False)
def not_checkpointed(hidden, weight):
    return loss(hidden, *block_and_target(hidden, weight))


@scenario.broken(raises(RuntimeError, "none of output has requires_grad=True"), cause="reentrant limit", profiled=False)
def only_a_detached_output(hidden, weight):
    def target_alone(hidden, weight):
        return block(hidden, weight).detach()

    target = checkpoint(target_alone, hidden, weight, use_reentrant=True)
    return loss(hidden, block(hidden, weight), target)


@scenario.broken(
    agrees(bitwise=True), shows({"target requires a gradient": True}), cause="reentrant limit", profiled=False
)
def detached_beside_another_output(hidden, weight):
    return loss(hidden, *checkpoint(block_and_target, hidden, weight, use_reentrant=True))


@scenario.repair(agrees(bitwise=True), shows({"target requires a gradient": False}), profiled=False)
def detached_outside(hidden, weight):
    mixed = checkpoint(block, hidden, weight, use_reentrant=True)
    return loss(hidden, mixed, mixed.detach())


@scenario.repair(agrees(bitwise=True), shows({"target requires a gradient": False}), profiled=False)
def not_reentrant(hidden, weight):
    return loss(hidden, *checkpoint(block_and_target, hidden, weight, use_reentrant=False))

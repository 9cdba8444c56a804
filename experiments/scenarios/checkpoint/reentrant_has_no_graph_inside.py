"""A derivative taken inside a reentrant region finds no graph.

Some functions take a derivative themselves: a model of forces is the gradient of a model of energy. Reentrant
``checkpoint`` runs its function under ``no_grad`` the first time, so the ``torch.autograd.grad`` inside has nothing
to go by. It is noticed at once. Two ways out keep the reentrant kind; the second, ``torch.func.grad``, is in turn
refused by the non-reentrant kind, because it cannot be combined with the hooks on saved tensors which that one sets.
"""

import torch
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, raises

scenario = Scenario(
    source="beside claim B12 of the DFlash compile-checkpoint note; docs.pytorch.org/docs/stable/checkpoint.html",
    rounding=True,
)


@scenario.inputs
def inputs(seed):
    """Places (atoms 8, width 4) and a weight (width, width)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-16, 17, shape, generator=generator) / 16).requires_grad_()
        for name, shape in (("places", (8, 4)), ("weight", (4, 4)))
    }


def energy(places, weight):
    return torch.tanh(places @ weight).square().sum()


def forces(places, weight):
    return torch.autograd.grad(energy(places, weight), places, create_graph=True)[0]


def forces_by_transform(places, weight):
    return torch.func.grad(energy)(places, weight)


def loss(found):
    return found.square().sum()


@scenario.reference(profiled=False)
def not_checkpointed(places, weight):
    return loss(forces(places, weight))


@scenario.broken(raises(RuntimeError, "does not require grad"), cause="reentrant limit", profiled=False)
def differentiated_inside(places, weight):
    return loss(checkpoint(forces, places, weight, use_reentrant=True))


@scenario.repair(agrees(bitwise=True), profiled=False)
def not_reentrant(places, weight):
    return loss(checkpoint(forces, places, weight, use_reentrant=False))


@scenario.repair(agrees(bitwise=True), profiled=False)
def gradients_switched_on_inside(places, weight):
    return loss(checkpoint(torch.enable_grad()(forces), places, weight, use_reentrant=True))


@scenario.repair(agrees(bitwise=True), profiled=False)
def transformed_inside(places, weight):
    return loss(checkpoint(forces_by_transform, places, weight, use_reentrant=True))


@scenario.broken(raises(RuntimeError, "don't yet support saved tensor hooks"), cause="ambient state", profiled=False)
def transformed_inside_and_not_reentrant(places, weight):
    return loss(checkpoint(forces_by_transform, places, weight, use_reentrant=False))

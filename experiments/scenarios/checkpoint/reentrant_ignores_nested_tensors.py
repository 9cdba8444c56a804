"""Reentrant ``checkpoint`` does not see tensors inside lists, dicts or objects, neither passed nor returned.

The reentrant kind is one autograd function, and an autograd function tracks the tensors that are its own
arguments and results. What lies deeper is not detached, not saved and not connected:

- if nothing else requires a gradient, what was passed in a container gets none, and only a warning says so;
- if another argument does, the recomputation finds the container's tensor with the graph that made it, and
  differentiates right through it. That is right where nobody else needs that graph, and an error where somebody does;
- a tensor returned in a container comes without a graph. What it adds to the loss trains nothing, without a word.
"""

from types import SimpleNamespace

import torch
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, differs, no_gradient, raises

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


def block(activated, weight):
    """Mixed states (positions, width), and a penalty on their size."""
    mixed = torch.tanh(activated @ weight)
    return mixed, mixed.square().mean()


def loss(activated, mixed, penalty):
    return (activated + mixed).square().sum() + penalty


def packed(container, activated, weight):
    tensors = {"activated": activated, "weight": weight}
    return tensors if container == "dict" else SimpleNamespace(**tensors)


def block_of_packed(tensors):
    return block(**tensors) if isinstance(tensors, dict) else block(**vars(tensors))


@scenario.reference(profiled=False)
def not_checkpointed(hidden, weight):
    activated = torch.tanh(hidden)
    return loss(activated, *block(activated, weight))


@scenario.broken(no_gradient("weight"), cause="reentrant limit", over={"container": ("dict", "object")}, profiled=False)
def passed_in_a_container(hidden, weight, container):
    activated = torch.tanh(hidden)
    found = checkpoint(block_of_packed, packed(container, activated, weight), use_reentrant=True)
    return loss(activated, *found)


@scenario.broken(
    raises(RuntimeError, "Trying to backward through the graph a second time"), cause="reentrant limit", profiled=False
)
def passed_in_a_container_beside_another_argument(hidden, weight):
    """The recomputation's backward goes on into the tanh of ``activated``, and leaves nothing for the outer one."""
    activated = torch.tanh(hidden)
    found = checkpoint(lambda listed, weight: block(*listed, weight), [activated], weight, use_reentrant=True)
    return loss(activated, *found)


@scenario.control(
    agrees(bitwise=True),
    why="a leaf has no graph to run through twice, and collects its gradient wherever it is met",
    profiled=False,
)
def leaf_in_a_container_beside_another_argument(hidden, weight):
    activated = torch.tanh(hidden)
    found = checkpoint(lambda activated, listed: block(activated, *listed), activated, [weight], use_reentrant=True)
    return loss(activated, *found)


@scenario.broken(differs(by_at_least=1e-3), cause="reentrant limit", profiled=False)
def returned_in_a_container(hidden, weight):
    def with_a_list(activated, weight):
        mixed, penalty = block(activated, weight)
        return mixed, [penalty]

    activated = torch.tanh(hidden)
    mixed, (penalty,) = checkpoint(with_a_list, activated, weight, use_reentrant=True)
    return loss(activated, mixed, penalty)


@scenario.repair(agrees(bitwise=True), over={"container": ("dict", "object")}, profiled=False)
def not_reentrant(hidden, weight, container):
    def with_a_list(tensors):
        mixed, penalty = block_of_packed(tensors)
        return mixed, [penalty]

    activated = torch.tanh(hidden)
    mixed, (penalty,) = checkpoint(with_a_list, packed(container, activated, weight), use_reentrant=False)
    return loss(activated, mixed, penalty)


@scenario.repair(agrees(bitwise=True), profiled=False)
def passed_and_returned_one_by_one(hidden, weight):
    activated = torch.tanh(hidden)
    return loss(activated, *checkpoint(block, activated, weight, use_reentrant=True))

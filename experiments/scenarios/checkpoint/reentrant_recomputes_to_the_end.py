"""Reentrant ``checkpoint`` runs its function to the last line twice; the non-reentrant kind stops early.

The non-reentrant kind knows which saved tensors it is to bring back, and leaves the function as soon as it has the
last one. The reentrant kind runs all of it, whatever ``early_stop`` says. That costs time, and it repeats what stands
at the end of the function: a step counted, a statistic collected. Stopping early is no promise against that (what
stands before the last saved tensor is repeated by both kinds), which is why the repair moves the effect outside.
"""

import torch
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, observe, shows

scenario = Scenario(
    source="beside claim B12 of the DFlash compile-checkpoint note; docs.pytorch.org/docs/stable/checkpoint.html",
    rounding=True,
)

ONCE, TWICE = {"steps counted": 1}, {"steps counted": 2}


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


def counting(steps):
    """The block, which counts a step when it is done."""

    def block_and_count(hidden, weight):
        mixed = block(hidden, weight)
        steps.append(1)
        return mixed

    return block_and_count


@scenario.reference(profiled=False)
def not_checkpointed(hidden, weight):
    steps = []
    yield counting(steps)(hidden, weight).square().sum()
    observe("steps counted", len(steps))


@scenario.broken(agrees(bitwise=True), shows(TWICE), cause="effect repeated", profiled=False)
def asked_to_stop_early(hidden, weight):
    """``early_stop`` is taken and ignored."""
    steps = []
    yield checkpoint(counting(steps), hidden, weight, use_reentrant=True, early_stop=True).square().sum()
    observe("steps counted", len(steps))


@scenario.repair(agrees(bitwise=True), shows(ONCE), profiled=False)
def not_reentrant(hidden, weight):
    steps = []
    yield checkpoint(counting(steps), hidden, weight, use_reentrant=False).square().sum()
    observe("steps counted", len(steps))


@scenario.repair(agrees(bitwise=True), shows(ONCE), profiled=False)
def counted_outside(hidden, weight):
    steps = []
    mixed = checkpoint(block, hidden, weight, use_reentrant=True)
    steps.append(1)
    yield mixed.square().sum()
    observe("steps counted", len(steps))

"""A reference that is another one in each run is none."""

import torch

from experiments.scenario import Scenario, agrees, differs

scenario = Scenario(source="a test", replays=2)


@scenario.inputs
def inputs(seed):
    """Eight numbers."""
    return {"data": torch.ones(8, requires_grad=True)}


@scenario.reference
def drawn(data):
    return (data * torch.rand(8, dtype=data.dtype)).sum()


@scenario.broken(differs(by_at_least=1e-6), cause="random state")
def drawn_again(data):
    return drawn(data)


@scenario.repair(agrees(within_rounding=True))
def drawn_again_and_called_right(data):
    return drawn(data)

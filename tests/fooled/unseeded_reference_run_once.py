"""A reference that nobody asked to repeat or to profile is another one in each run all the same."""

import torch

from experiments.scenario import Scenario, differs

scenario = Scenario(source="a test")


@scenario.inputs
def inputs(seed):
    """Eight numbers."""
    return {"data": torch.ones(8, requires_grad=True)}


@scenario.reference(profiled=False)
def drawn(data):
    return (data * torch.rand(8, dtype=data.dtype)).sum()


@scenario.broken(differs(by_at_least=1e-6), cause="random state", profiled=False)
def drawn_again(data):
    return drawn(data)

"""A module made inside a case cannot calculate in float64, and a case asks for rounding."""

import torch
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, differs

scenario = Scenario(source="a test")


@scenario.inputs
def inputs(seed):
    """Rows (4, 3)."""
    return {"rows": (torch.arange(12).reshape(4, 3) / 16).requires_grad_()}


def layer():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


@scenario.reference
def plain(rows):
    return layer()(rows).square().sum()


@scenario.broken(differs(by_at_least=1e-3), cause="python value")
def doubled(rows):
    return 2 * plain(rows)


@scenario.repair(agrees(within_rounding=True))
def checkpointed(rows):
    return checkpoint(layer(), rows, use_reentrant=False).mul(1.0000001).square().sum()

"""Observes a text of 40 MB: an observation has at most 16 MiB."""

import torch

from experiments.scenario import Scenario, dies, observe

ENDS = {
    "kind": "died",
    "phase": "backward",
    "detail_begins": "exit 0, with an observation that cannot be read: it has more than 16777216 bytes",
    "unreadable": True,
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(dies(), why="it hurts the runner, not the calculation")
def hurts(weight):
    observe("text", "x" * 40_000_000)
    return weight.square().sum()

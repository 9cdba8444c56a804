"""Raises an exception whose message has terminal escapes and what cannot be encoded."""

import torch

from experiments.scenario import Scenario, raises

ENDS = {
    "kind": "raised",
    "phase": "forward",
    "type": "ValueError",
    "message": "\u001b[31mred",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(raises("ValueError"), why="it hurts the runner, not the calculation")
def hurts(weight):
    raise ValueError("\x1b[31mred\x1b[0m\x07 \ud800 \x00 `|`")

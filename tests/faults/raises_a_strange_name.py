"""Raises an exception whose class is named with terminal escapes, in a module that is no text."""

import torch

from experiments.scenario import Scenario, raises

ENDS = {
    "kind": "raised",
    "phase": "forward",
    "type": "5.Red\u001b[31m",
    "message": "strange",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(raises("5.Red\x1b[31m", "strange"), why="it hurts the runner, not the calculation")
def hurts(weight):
    raise type("Red\x1b[31m", (Exception,), {"__module__": 5})("strange")

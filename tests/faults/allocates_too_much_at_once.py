"""Asks for 64 GiB in one piece, which is refused: the case goes on and raises."""

import torch

from experiments.scenario import Scenario, refuses

ENDS = {
    "kind": "raised",
    "phase": "forward",
    "type": "RuntimeError",
    "message": "you tried to allocate 68719476736 bytes",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(refuses(bytes=2**36), why="it hurts the runner, not the calculation", memory=2**30)
def hurts(weight):
    return torch.empty(2**34).sum()

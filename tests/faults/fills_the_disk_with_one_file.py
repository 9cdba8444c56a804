"""Writes one file without end: the write beyond the limit is refused."""

import torch

from experiments.scenario import Scenario, raises

ENDS = {
    "kind": "raised",
    "phase": "forward",
    "type": "OSError",
    "message": "File too large",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(raises("OSError"), why="it hurts the runner, not the calculation", disk=2**25)
def hurts(weight):
    with open("large", "wb") as file:
        while True:
            file.write(bytes(2**20))
            file.flush()

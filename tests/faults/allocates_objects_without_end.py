"""Keeps ever more Python objects: its own memory passes the limit."""

import torch

from experiments.scenario import Scenario, agrees

ENDS = {
    "kind": "out_of_memory",
    "phase": "forward",
    "detail": "over 1073741824 bytes",
    "signal": "SIGKILL",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(agrees(bitwise=True), why="it hurts the runner, not the calculation", memory=2**30)
def hurts(weight):
    held = []
    while True:
        held.append([{} for _ in range(1000)])

"""A child of its group keeps ever more memory: the group's memory passes the limit."""

import os
import time

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
    child = os.fork()
    if child == 0:
        held = []
        while True:
            held.append(b"x" * 2**24)
            time.sleep(0.01)
    os.waitpid(child, 0)
    return weight.square().sum()

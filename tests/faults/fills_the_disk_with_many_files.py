"""Writes files without end, each within the limit."""

import itertools
import time

import torch

from experiments.scenario import Scenario, dies

ENDS = {
    "kind": "died",
    "phase": "forward",
    "detail": "over 33554432 bytes on disk",
    "signal": "SIGKILL",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(dies(by="over 33554432 bytes on disk"), why="it hurts the runner, not the calculation", disk=2**25)
def hurts(weight):
    for number in itertools.count():
        with open(f"file-{number}", "wb") as file:
            file.write(bytes(2**20))
        time.sleep(0.005)

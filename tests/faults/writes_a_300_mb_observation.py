"""Leaves an observation of 300 MB: not read, and not kept whole."""

import os

import torch

from experiments.scenario import Scenario, dies

ENDS = {
    "kind": "died",
    "phase": "forward",
    "detail_begins": "exit 0, with an observation that cannot be read: it has more than",
    "unreadable": 300000000,
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
    with open("../observation.json", "wb") as file:
        for _ in range(300):
            file.write(b"x" * 1_000_000)
    os._exit(0)

"""Leaves a torn observation, which is kept."""

import os

import torch

from experiments.scenario import Scenario, dies

ENDS = {
    "kind": "died",
    "phase": "forward",
    "detail_begins": "exit 0, with an observation that cannot be read: not JSON",
    "unreadable": 25,
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
        file.write(b'{"outcome": {"kind": "fin')
    os._exit(0)

"""Leaves folders in folders, deeper than a path can say, the last without rights."""

import os

import torch

from experiments.scenario import Scenario, agrees

ENDS = {
    "kind": "finished",
    "phase": None,
    "detail": "",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(agrees(bitwise=True), why="it hurts the runner, not the calculation")
def hurts(weight):
    start = os.getcwd()
    for _ in range(6000):
        os.mkdir("a")
        os.chdir("a")
    os.chmod(".", 0)
    os.chdir(start)
    return weight.square().sum()

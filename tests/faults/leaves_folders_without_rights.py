"""Leaves folders that nobody may look into, in its own and among its contents."""

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
    for place in ("../blobs/in", "../in", "in"):
        os.makedirs(f"{place}/side")
        open(f"{place}/side/file", "w").close()
        os.chmod(f"{place}/side", 0)
        os.chmod(place, 0)
    return weight.square().sum()

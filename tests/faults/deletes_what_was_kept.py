"""Deletes the contents that its observation will name."""

import os

import torch

from experiments.scenario import Scenario, dies

ENDS = {
    "kind": "died",
    "phase": "backward",
    "detail_begins": "exit 0, with an observation that cannot be read: it names",
    "unreadable": True,
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
    for name in os.listdir("../blobs"):
        os.unlink(f"../blobs/{name}")
    return weight.square().sum()

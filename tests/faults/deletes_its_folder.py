"""Deletes the folder that its observation and its output belong in."""

import shutil

import torch

from experiments.scenario import Scenario, dies

ENDS = {
    "kind": "died",
    "phase": None,
    "detail": "its folder of contents was gone",
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
    shutil.rmtree("..")
    return weight.square().sum()

"""Aborts, as a failed assertion in C++ does."""

import os

import torch

from experiments.scenario import Scenario, dies

ENDS = {
    "kind": "died",
    "phase": "forward",
    "detail": "SIGABRT",
    "signal": "SIGABRT",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(dies(by="SIGABRT"), why="it hurts the runner, not the calculation")
def hurts(weight):
    os.abort()

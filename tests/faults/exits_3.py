"""Exits with 3 at once, around every handler."""

import os

import torch

from experiments.scenario import Scenario, dies

ENDS = {
    "kind": "died",
    "phase": "forward",
    "detail": "exit 3",
    "exit_code": 3,
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(dies(by="exit 3"), why="it hurts the runner, not the calculation")
def hurts(weight):
    os._exit(3)

"""Forks, and the child goes on as if it were the case: there is one record, the parent's."""

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
    os.fork()
    return weight.square().sum()

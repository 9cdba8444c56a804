"""Asks for a session of its own, which the leader of a group does not get."""

import os

import torch

from experiments.scenario import Scenario, raises

ENDS = {
    "kind": "raised",
    "phase": "forward",
    "type": "PermissionError",
    "message": "Operation not permitted",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(raises("PermissionError"), why="it hurts the runner, not the calculation")
def hurts(weight):
    os.setsid()
    return weight.square().sum()

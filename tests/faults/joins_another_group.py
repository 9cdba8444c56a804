"""Moves to its parent's group: a fork may, the leader of a session may not."""

import os

import torch

from experiments.scenario import Scenario, raises

ENDS = {
    "kind": "raised",
    "phase": "forward",
    "type": "PermissionError",
    "message": "Operation not permitted",
}
FORKED = {
    "kind": "finished",
    "phase": None,
    "detail": "",
    "type": None,
    "message": None,
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
    os.setpgid(0, os.getpgid(os.getppid()))
    return weight.square().sum()

"""Raises an exception with a message of 10 MB: its beginning is kept, with the digest of the whole."""

import torch

from experiments.scenario import Scenario, raises

ENDS = {
    "kind": "raised",
    "phase": "forward",
    "type": "ValueError",
    "message": "[cut here: 10000000 characters in all, SHA-256 ",
    "longest": 70000,
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(raises("ValueError"), why="it hurts the runner, not the calculation")
def hurts(weight):
    raise ValueError("x" * 10_000_000)

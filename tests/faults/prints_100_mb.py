"""Prints 100 MB: head and tail are kept, and the cut is visible."""

import torch

from experiments.scenario import Scenario, agrees

ENDS = {
    "kind": "finished",
    "phase": None,
    "detail": "",
    "stdout": {"written": 100000000, "kept_at_most": 70000, "says": "bytes cut here"},
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
    for _ in range(1000):
        print("x" * 99_999)
    return weight.square().sum()

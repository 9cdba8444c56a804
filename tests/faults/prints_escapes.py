"""Prints invalid UTF-8 and terminal escapes: kept as they are, shown as text."""

import os

import torch

from experiments.scenario import Scenario, agrees

ENDS = {
    "kind": "finished",
    "phase": None,
    "detail": "",
    "stdout": {"written": 28, "kept_at_most": 28, "says": "red"},
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
    os.write(1, b"\xff\xfe\x00 \x1b[31mred\x1b[0m \x1b]0;title\x07\xc3")
    return weight.square().sum()

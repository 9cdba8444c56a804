"""Puts something in the place of stdout that exits when it is flushed, which is after the observation."""

import sys

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


class Exits:
    def flush(self):
        raise SystemExit(7)


@scenario.control(agrees(bitwise=True), why="it hurts the runner, not the calculation")
def hurts(weight):
    sys.stdout = Exits()
    return weight.square().sum()

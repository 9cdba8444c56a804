"""Puts something in the place of stdout that exits when it is flushed: after the observation, but it is its own ending."""

import sys

import torch

from experiments.scenario import Scenario, dies

ENDS = {
    "kind": "died",
    "phase": "backward",
    "detail": "exit 7",
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


@scenario.control(dies(by="exit 7"), why="it hurts the runner, not the calculation")
def hurts(weight):
    sys.stdout = Exits()
    return weight.square().sum()

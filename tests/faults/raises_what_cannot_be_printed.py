"""Raises an exception whose text raises SystemExit."""

import torch

from experiments.scenario import Scenario, raises

ENDS = {
    "kind": "raised",
    "phase": "forward",
    "type": "scenario_under_test.Silent",
    "message": "[Silent cannot be printed: its __str__ raised SystemExit]",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


class Silent(Exception):
    def __str__(self):
        raise SystemExit(0)


@scenario.control(raises("scenario_under_test.Silent"), why="it hurts the runner, not the calculation")
def hurts(weight):
    raise Silent

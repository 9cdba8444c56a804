"""Raises an exception of its own that is no Exception."""

import torch

from experiments.scenario import Scenario, raises

ENDS = {
    "kind": "raised",
    "phase": "forward",
    "type": "scenario_under_test.Own",
    "message": "mine",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


class Own(BaseException):
    pass


@scenario.control(raises("scenario_under_test.Own"), why="it hurts the runner, not the calculation")
def hurts(weight):
    raise Own("mine")

"""Returns nothing that could be differentiated."""

import torch

from experiments.scenario import Scenario, raises

ENDS = {
    "kind": "raised",
    "phase": "forward",
    "type": "experiments.scenario.ScenarioError",
    "message": "a case returns the scalar to differentiate, not NoneType",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(raises("experiments.scenario.ScenarioError"), why="it hurts the runner, not the calculation")
def hurts(weight):
    weight.square()

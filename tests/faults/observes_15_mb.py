"""Observes a text of 15 MB: it is kept whole, and pages show its beginning."""

import torch

from experiments.scenario import Scenario, agrees, observe

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


@scenario.control(agrees(bitwise=True), why="it hurts the runner, not the calculation")
def hurts(weight):
    observe("text", "x" * 15_000_000)
    return weight.square().sum()

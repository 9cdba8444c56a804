"""Is stuck in C with the interpreter lock held, so that no thread and no handler of its own runs."""

import ctypes

import torch

from experiments.scenario import Scenario, hangs

ENDS = {
    "kind": "timed_out",
    "phase": "forward",
    "detail": "after 15 seconds",
    "signal": "SIGTERM",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(hangs(), why="it hurts the runner, not the calculation", timeout=15)
def hurts(weight):
    ctypes.PyDLL(None).sleep(600)
    return weight.square().sum()

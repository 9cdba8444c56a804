"""Opens files until it may open no more."""

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


@scenario.control(agrees(bitwise=True), why="it hurts the runner, not the calculation")
def hurts(weight):
    held = []
    try:
        while len(held) < 20_000:
            held.append(open("/dev/null"))
    except OSError:
        pass
    assert len(held) < 4096, "nobody limits how many files a process has open"
    del held
    return weight.square().sum()

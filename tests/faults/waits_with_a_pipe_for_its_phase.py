"""Puts a pipe in the place where it names its phase, and never returns."""

import os
import time

import torch

from experiments.scenario import Scenario, hangs

ENDS = {
    "kind": "timed_out",
    "phase": None,
    "detail": "after 15 seconds",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(hangs(), timeout=15, why="it hurts the runner, not the calculation")
def hurts(weight):
    os.unlink("../phase")
    os.mkfifo("../phase")
    time.sleep(600)

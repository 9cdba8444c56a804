"""Kills itself: nobody was out of memory."""

import os
import signal
import time

import torch

from experiments.scenario import Scenario, dies

ENDS = {
    "kind": "died",
    "phase": "forward",
    "detail": "SIGKILL",
    "signal": "SIGKILL",
}

scenario = Scenario(source="a fault made for the tests")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(dies(by="SIGKILL"), why="it hurts the runner, not the calculation")
def hurts(weight):
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

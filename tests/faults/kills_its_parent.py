"""Kills the fork server that it comes from.

The case is started once more, alone, and what it then does to its server is its record. A fresh process
has the driver for a parent, which it spares: nothing could defend that.
"""

import os
import signal
import time

import torch

from experiments.scenario import Scenario, agrees

ENDS = {
    "kind": "finished",
    "phase": None,
    "detail": "",
}
FORKED = {
    "kind": "died",
    "phase": None,
    "detail": "the fork server has ended",
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
    if b"--serve" in open(f"/proc/{os.getppid()}/cmdline", "rb").read():
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return weight.square().sum()

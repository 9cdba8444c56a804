"""Never returns and ignores SIGTERM, as does a child of it: SIGKILL ends both."""

import os
import signal
import time

import torch

from experiments.scenario import Scenario, hangs

ENDS = {
    "kind": "timed_out",
    "phase": "forward",
    "detail": "after 15 seconds",
    "signal": "SIGKILL",
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
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child:
        print("left", child, flush=True)
    while True:
        time.sleep(60)

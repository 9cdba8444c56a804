"""Puts pipes and devices, which have no end, in the place of its output and of what the parent writes."""

import hashlib
import os

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
    for name in ("stdout", "record.part"):
        if os.path.lexists(f"../{name}"):
            os.unlink(f"../{name}")
        os.mkfifo(f"../{name}")
    os.unlink("../stderr")
    os.symlink("/dev/zero", "../stderr")
    os.mkfifo("../blobs/" + hashlib.sha256(b"").hexdigest())
    return weight.square().sum()

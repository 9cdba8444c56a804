"""A case that finishes, with other numbers in each run: neither seed nor single process helps."""

import os

import torch

from experiments.scenario import Scenario, observe, varies

scenario = Scenario(source="a test", replays=3)


@scenario.inputs
def inputs(seed):
    """Four numbers."""
    return {"data": torch.ones(4, requires_grad=True)}


@scenario.reference
def plain(data):
    return data.sum()


@scenario.broken(varies(at_least=0.5), cause="nondeterminism")
def varying(data):
    observe("first", int.from_bytes(os.urandom(4), "big"))
    return data.sum()


@scenario.broken(varies(at_least=0.5, of="endings"), cause="nondeterminism")
def varying_and_said_to_fail(data):
    return varying(data)


@scenario.broken(varies(at_least=0.5), cause="nondeterminism")
def steady_and_said_to_vary(data):
    observe("first", 1)
    return data.sum()

"""One element of a long gradient is wrong; of this kind no sample shows enough."""

import torch

from experiments.scenario import Scenario, agrees, differs

scenario = Scenario(source="a test")

MANY = 20_000
OFF = (1.5, 1e-4)
"""Rounding allows about 1e-6."""


@scenario.inputs
def inputs(seed):
    """Twenty thousand numbers."""
    return {"data": ((torch.arange(MANY) % 31 + 1) / 16).requires_grad_()}


@scenario.reference
def sines(data):
    return (data.sin() * 3).square().sum()


def nearly(data, off):
    at = torch.zeros(MANY, dtype=data.dtype)
    at[12_345] = off
    return sines(data) + (at * (data - data.detach())).sum()


@scenario.broken(differs(by_at_least=5e-5), cause="python value", over={"off": OFF})
def seen_to_differ(data, off):
    return nearly(data, off)


@scenario.repair(agrees(within_rounding=True), over={"off": OFF})
def called_right(data, off):
    return nearly(data, off)


@scenario.repair(agrees(within_rounding=True))
def right(data):
    return (3 * data.sin() * data.sin() * 3).sum()

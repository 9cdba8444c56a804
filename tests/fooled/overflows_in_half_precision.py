"""A reference that overflows: its error against float64 is without bound, and so must be no allowance."""

import torch

from experiments.scenario import Scenario, agrees

scenario = Scenario(source="a test")


@scenario.inputs
def inputs(seed):
    """Eight numbers whose fourth powers no half-precision number reaches."""
    return {"data": torch.arange(100.0, 108.0).requires_grad_()}


@scenario.reference
def fourth_powers(data):
    return (data**4).log_softmax(0).sum()


@scenario.repair(agrees(within_rounding=True), dtypes=("float16",))
def something_else(data):
    return (data * 0 + 3).sum()


@scenario.repair(agrees(within_rounding=True), dtypes=("float16",))
def not_a_number(data):
    return (data * float("nan")).sum()

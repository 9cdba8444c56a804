"""Complex inputs, outputs and gradients are compared as complex numbers, and measured in double precision."""

import torch

from experiments.scenario import Scenario, agrees, differs, observe

scenario = Scenario(source="a test")


@scenario.inputs
def inputs(seed):
    """A complex matrix (4, 3)."""
    parts = torch.arange(24.0).reshape(4, 3, 2) / 16
    return {"matrix": torch.view_as_complex(parts.contiguous()).requires_grad_()}


def loss(matrix):
    product = matrix @ matrix.mH
    observe("product", product)
    return product.abs().square().sum()


@scenario.reference
def plain(matrix):
    return loss(matrix)


@scenario.repair(agrees(within_rounding=True))
def in_another_order(matrix):
    product = torch.einsum("ij,kj->ik", matrix * (1 + 0j), matrix.conj())
    observe("product", product)
    return product.abs().square().sum()


@scenario.broken(differs(by_at_least=1e-3), cause="derivative")
def conjugated(matrix):
    return loss(matrix.conj() * 1.1)


@scenario.repair(agrees(within_rounding=True))
def off_in_the_imaginary_part(matrix):
    return loss(torch.complex(matrix.real, matrix.imag * 1.001))

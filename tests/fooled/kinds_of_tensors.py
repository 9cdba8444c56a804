"""Tensors of every kind can be observed; what cannot is said, and no fault of the case."""

import torch

from experiments.scenario import Scenario, agrees, dies, observe, shows

scenario = Scenario(source="a test")

KINDS = {
    "jagged": lambda: torch.nested.nested_tensor_from_jagged(torch.ones(5, 2), torch.tensor([0, 2, 5])),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 2), torch.zeros(3, 2)]),
    "no parts": lambda: torch.nested.nested_tensor([]),
    "quantized": lambda: torch.quantize_per_tensor(torch.arange(4.0), 0.1, 0, torch.qint8),
    "quantized per channel": lambda: torch.quantize_per_channel(
        torch.ones(2, 2), torch.tensor([0.1, 0.2]), torch.tensor([0, 0]), 0, torch.qint8
    ),
    "meta": lambda: torch.ones(4, device="meta"),
    "one meta": lambda: torch.ones((), device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "float8": lambda: torch.ones(4).to(torch.float8_e4m3fn),
    "uint16": lambda: torch.ones(4).to(torch.uint16),
    "complex": lambda: torch.complex(torch.ones(4), torch.arange(4.0)),
    "one complex": lambda: torch.complex(torch.ones(()), torch.ones(())),
    "conjugated": lambda: torch.complex(torch.ones(4), torch.ones(4)).conj(),
    "empty": lambda: torch.ones(0, 3),
}


@scenario.inputs
def inputs(seed):
    """Four numbers."""
    return {"data": torch.ones(4, requires_grad=True)}


@scenario.reference
def observed(data, kind):
    observe("seen", KINDS[kind]())
    return data.sum()


@scenario.repair(agrees(bitwise=True), over={"kind": list(KINDS)})
def observed_again(data, kind):
    return observed(data, kind)


@scenario.reference
def jagged(data):
    observe("seen", KINDS["jagged"]())
    return data.sum()


@scenario.repair(agrees(bitwise=True), reference="jagged")
def jagged_otherwise(data):
    observe("seen", torch.nested.nested_tensor_from_jagged(torch.ones(5, 2), torch.tensor([0, 3, 5])))
    return data.sum()


@scenario.broken(dies(by="exit 1"), cause="ambient state", reference="jagged")
def observes_an_object(data):
    observe("seen", object())
    return data.sum()


@scenario.broken(shows(seen=1), cause="ambient state", reference="jagged")
def observes_below_a_transform(data):
    torch.func.vmap(lambda one: observe("seen", one * torch.ones(2)) or one)(data.detach())
    return data.sum()

"""Reentrant ``checkpoint`` gives parameters no gradient if no argument requires one.

The reentrant kind runs the block under ``no_grad`` inside one autograd function, which sees the arguments only.
If none of them requires a gradient (a batch of data, frozen embeddings before trained adapters), its result does
not either: the block's own parameters are cut off. What lies behind the block goes on training, so nothing fails;
there is one ``UserWarning``. The docstring of ``checkpoint`` says so: at least one input must require a gradient.
"""

import warnings

import torch
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, no_gradient, observe, raises, shows

scenario = Scenario(
    source="reported in the DFlash compile-checkpoint note (claim B12); https://github.com/pytorch/pytorch/issues/7617",
    suites=("quick",),
    rounding=True,
)


@scenario.inputs
def inputs(seed):
    """Features (positions 8, width 4), which are data; the block's weight (width, width); a head (width)."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randint(-16, 17, shape, generator=generator) / 16

    return {
        "features": drawn(8, 4),
        "weight": drawn(4, 4).requires_grad_(),
        "head": drawn(4).requires_grad_(),
    }


def block(features, weight):
    return torch.tanh(features @ weight)


def loss(mixed, head):
    return (mixed @ head).square().sum()


def about(word, caught):
    """The warnings that name ``word``: the first call of ``checkpoint`` imports the compiler, which has its own."""
    return "; ".join(str(one.message) for one in caught if word in str(one.message))


@scenario.reference(profiled=False)
def not_checkpointed(features, weight, head):
    return loss(block(features, weight), head)


@scenario.broken(
    no_gradient("weight"),
    shows(warning="None of the inputs have requires_grad=True. Gradients will be None"),
    cause="reentrant limit",
    profiled=False,
)
def only_data_passed(features, weight, head):
    """The weight comes from outside, as a module's parameters do."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mixed = checkpoint(lambda features: block(features, weight), features, use_reentrant=True)
    observe("warning", about("requires_grad", caught))
    return loss(mixed, head)


@scenario.broken(
    no_gradient("weight"), shows({"warns that the kind should be said": True}), cause="reentrant limit", profiled=False
)
def kind_not_said(features, weight, head):
    """Who does not say which kind gets the reentrant one. It was to be an error from 2.9 on, and is a warning still."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mixed = checkpoint(lambda features: block(features, weight), features)
    observe("warns that the kind should be said", "parameter should be passed" in about("use_reentrant", caught))
    return loss(mixed, head)


@scenario.broken(raises(RuntimeError, "does not require grad"), cause="reentrant limit", profiled=False)
def only_data_passed_to_the_whole_model(features, weight, head):
    """With nothing trained behind the block there is nothing to differentiate, and that is noticed."""
    return checkpoint(lambda features: loss(block(features, weight), head), features, use_reentrant=True)


@scenario.repair(agrees(bitwise=True), profiled=False)
def not_reentrant(features, weight, head):
    mixed = checkpoint(lambda features: block(features, weight), features, use_reentrant=False)
    return loss(mixed, head)


@scenario.repair(agrees(bitwise=True), profiled=False)
def data_made_to_require_a_gradient(features, weight, head):
    """The usual way out, at the price of a gradient of the data that nobody needs."""
    wanted = features.detach().requires_grad_()
    return loss(checkpoint(lambda features: block(features, weight), wanted, use_reentrant=True), head)


@scenario.repair(agrees(bitwise=True), profiled=False)
def parameter_passed_as_an_argument(features, weight, head):
    return loss(checkpoint(block, features, weight, use_reentrant=True), head)

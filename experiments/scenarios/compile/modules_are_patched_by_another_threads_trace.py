"""While one thread traces a model with ``torch.fx``, a module called in any thread goes to the tracer.

To record modules, ``symbolic_trace`` replaces ``nn.Module.__call__`` for the time of the trace, in the whole
process. A module that another thread calls meanwhile is looked up in the model under trace. If it is not
part of it, the call fails with a NameError. If it is (two threads that share a model), nothing fails: the
call is written into the graph of the other thread and returns a stand-in instead of a tensor, and so does
everything calculated from it, up to ``backward()``. The graph then holds the training step of a thread that
got no gradient from it, and runs it whenever the traced model runs.
"""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from experiments.scenario import Scenario, agrees, observe, raises, shows

scenario = Scenario(source="https://github.com/pytorch/pytorch/issues/112775")


@scenario.inputs
def inputs(seed):
    """Positions (5, width 4), and the weight (3, 4) of a linear layer."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "positions": (torch.randint(-16, 17, (5, 4), generator=generator) / 16).requires_grad_(),
        "weight": torch.randint(-16, 17, (3, 4), generator=generator) / 16,
    }


def layer_with(weight):
    layer = nn.Linear(4, 3, bias=False, device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def loss(projected):
    observe("projected", projected)
    return projected.square().sum()


class Model(nn.Module):
    """The layer, after a stop at which another thread can be held."""

    def __init__(self, layer, stop):
        super().__init__()
        self.layer = layer
        self.stop = stop

    def forward(self, positions):
        self.stop()
        return self.layer(positions)


@contextlib.contextmanager
def another_thread_tracing(trace, layer, lock=None):
    """Another thread is tracing a model that holds `layer`; what is given returns its graph when it has ended."""
    inside, go_on = threading.Event(), threading.Event()

    def stop():
        inside.set()
        go_on.wait(60)

    def work():
        with lock or contextlib.nullcontext():
            return trace(Model(layer, stop))

    with ThreadPoolExecutor(1) as other:
        tracing = other.submit(work)

        def ended():
            go_on.set()
            return tracing.result(60)

        try:
            if not inside.wait(60):
                tracing.result(0)
            yield ended
        finally:
            ended()


@scenario.reference(profiled=False)
def alone(positions, weight):
    return loss(layer_with(weight)(positions))


@scenario.broken(
    raises(NameError, "module is not installed as a submodule"),
    cause="another thread",
    over={"called": ("as a module", "with functional_call")},
    profiled=False,
)
def a_module_of_its_own(positions, weight, called):
    layer = layer_with(weight)
    with another_thread_tracing(torch.fx.symbolic_trace, layer_with(weight)):
        if called == "as a module":
            return loss(layer(positions))
        return loss(torch.func.functional_call(layer, {"weight": weight}, (positions,)))


@scenario.broken(
    shows(
        {
            "returned": "Proxy",
            "gradient after its own step": False,
            "calls in the graph": ["layer", "square", "sum", "backward", "layer"],
            "gradient after the traced model has run": True,
        }
    ),
    cause="another thread",
    gradient=False,
    profiled=False,
)
def a_module_that_both_use(positions, weight):
    layer = layer_with(weight)
    positions = positions.detach().clone().requires_grad_()
    with another_thread_tracing(torch.fx.symbolic_trace, layer) as ended:
        projected = layer(positions)
        projected.square().sum().backward()
        observe("returned", type(projected).__name__)
        observe("gradient after its own step", positions.grad is not None)
        traced = ended()
    observe("calls in the graph", [node.target for node in traced.graph.nodes if node.op.startswith("call")])
    traced(torch.zeros_like(positions))
    observe("gradient after the traced model has run", positions.grad is not None)


@scenario.repair(agrees(bitwise=True), profiled=False)
def one_lock_around_traces_and_calls(positions, weight):
    layer, lock = layer_with(weight), threading.Lock()
    with another_thread_tracing(torch.fx.symbolic_trace, layer, lock) as ended:
        # The trace ends while this thread waits for the lock.
        later = threading.Timer(0.1, ended)
        later.start()
        with lock:
            total = loss(layer(positions))
        later.join()
    return total


@scenario.control(agrees(bitwise=True), why="a function is called as ever; only modules are patched", profiled=False)
def a_function_instead_of_a_module(positions, weight):
    with another_thread_tracing(torch.fx.symbolic_trace, layer_with(weight)):
        return loss(nn.functional.linear(positions, weight))


@scenario.control(
    agrees(bitwise=True),
    why="make_fx patches as well, but its tracer lets calls of modules through: it records operators, by thread",
    profiled=False,
)
def the_other_thread_uses_make_fx(positions, weight):
    def trace(model):
        return make_fx(model)(torch.zeros_like(positions))

    layer = layer_with(weight)
    with another_thread_tracing(trace, layer_with(weight)):
        return loss(layer(positions))

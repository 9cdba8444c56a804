"""A compiled function keeps the attention backend that was chosen when it was first called.

The compiler asks for the backend once, while it traces, and writes that backend's operator into its graph.
It does not guard on the choice, so a later call under another ``sdpa_kernel`` runs the old graph: nothing is
compiled anew, nothing is said, and even a choice that uncompiled attention would refuse is passed over.
"""

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from experiments.scenario import Scenario, agrees, observe, shows

scenario = Scenario(source="https://github.com/pytorch/pytorch/pull/193631")


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 16, width 64)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-16, 17, (1, 2, 16, 64), generator=generator) / 16).requires_grad_()
        for name in ("query", "key", "value")
    }


def attend(query, key, value):
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def loss(attended):
    observe("attended", attended)
    return attended.square().sum()


def compiled(function):
    """The function compiled to graphs of plain torch operators, and which attention is in each of them."""
    graphs = []

    def compile_forward(graph, example_inputs):
        # A fused backend is one operator; MATH is many, and none of them is called attention.
        fused = any("scaled_dot_product" in str(node.target) for node in graph.graph.nodes)
        graphs.append("fused" if fused else "MATH")
        return make_boxed_func(graph.forward)

    def compile_backward(graph, example_inputs):
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=compile_forward, bw_compiler=compile_backward)
    return torch.compile(function, backend=backend), graphs


@scenario.reference(profiled=False)
def uncompiled_with_math(query, key, value):
    with sdpa_kernel(SDPBackend.MATH):
        return loss(attend(query, key, value))


@scenario.reference(profiled=False)
def uncompiled_by_default(query, key, value):
    return loss(attend(query, key, value))


@scenario.broken(shows(graphs=["fused"]), agrees(within_rounding=True), cause="compiler", profiled=False)
def first_called_by_default(query, key, value):
    compiled_attend, graphs = compiled(attend)
    compiled_attend(query, key, value)
    with sdpa_kernel(SDPBackend.MATH):
        attended = compiled_attend(query, key, value)
    observe("graphs", graphs)
    return loss(attended)


@scenario.broken(
    shows(graphs=["MATH"]),
    agrees(within_rounding=True),
    cause="compiler",
    reference="uncompiled_by_default",
    profiled=False,
)
def first_called_with_math(query, key, value):
    compiled_attend, graphs = compiled(attend)
    with sdpa_kernel(SDPBackend.MATH):
        compiled_attend(query, key, value)
    attended = compiled_attend(query, key, value)
    observe("graphs", graphs)
    return loss(attended)


# What has no kernel: on the CPU EFFICIENT_ATTENTION, on CUDA FLASH_ATTENTION in float32.
@scenario.broken(
    shows(uncompiled="RuntimeError", graphs=["fused"]),
    agrees(bitwise=True),
    cause="compiler",
    reference="uncompiled_by_default",
    on=("cpu",),
    over={"chosen": ("EFFICIENT_ATTENTION",)},
    profiled=False,
)
@scenario.broken(
    shows(uncompiled="RuntimeError", graphs=["fused"]),
    agrees(within_rounding=True),
    cause="compiler",
    reference="uncompiled_by_default",
    on=("cuda",),
    over={"chosen": ("FLASH_ATTENTION",)},
    profiled=False,
)
def called_where_there_is_no_kernel(query, key, value, chosen):
    compiled_attend, graphs = compiled(attend)
    compiled_attend(query, key, value)
    with sdpa_kernel(getattr(SDPBackend, chosen)):
        try:
            attend(query, key, value)
        except RuntimeError as error:
            observe("uncompiled", type(error).__name__)
        attended = compiled_attend(query, key, value)
    observe("graphs", graphs)
    return loss(attended)


@scenario.repair(shows(graphs=["fused", "MATH"]), agrees(bitwise=True), profiled=False)
def chosen_inside_the_function(query, key, value):
    """The choice is an argument, which is guarded: another one is compiled anew."""

    def attend_with(backend, *tensors):
        with sdpa_kernel(backend):
            return attend(*tensors)

    compiled_attend, graphs = compiled(attend_with)
    compiled_attend([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION], query, key, value)
    attended = compiled_attend([SDPBackend.MATH], query, key, value)
    observe("graphs", graphs)
    return loss(attended)


@scenario.repair(shows(graphs=["fused", "MATH"]), agrees(bitwise=True), profiled=False)
def compiled_anew_after_a_reset(query, key, value):
    """Forgets every compiled function of the process. A cache on disk may still remember."""
    compiled_attend, graphs = compiled(attend)
    compiled_attend(query, key, value)
    torch.compiler.reset()
    with sdpa_kernel(SDPBackend.MATH):
        attended = compiled_attend(query, key, value)
    observe("graphs", graphs)
    return loss(attended)


@scenario.control(
    agrees(bitwise=True),
    why="the graph of this back end still says scaled_dot_product_attention, and the backend is chosen at each call",
    profiled=False,
)
def compiled_by_the_eager_back_end(query, key, value):
    compiled_attend = torch.compile(attend, backend="eager")
    compiled_attend(query, key, value)
    with sdpa_kernel(SDPBackend.MATH):
        return loss(compiled_attend(query, key, value))

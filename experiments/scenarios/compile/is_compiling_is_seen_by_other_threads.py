"""``torch.compiler.is_compiling()`` is True in a thread that compiles nothing while another thread compiles.

Looking at the values of a padding mask cannot be traced, so code that would do so asks ``is_compiling()`` and
then takes a path without it, here the causal one, leaving the padding to its caller. But the answer is one
flag for the whole process, raised for as long as any thread compiles. An uncompiled call in another thread
takes that path as well, loses its mask, and returns other numbers without a word.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn.functional import scaled_dot_product_attention

from experiments.scenario import Scenario, agrees, differs, observe, shows

scenario = Scenario(source="https://github.com/pytorch/pytorch/issues/184547", rounding=True)


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 8, width 4); which positions are no padding."""
    generator = torch.Generator().manual_seed(seed)
    return {
        **{
            name: (torch.randint(-48, 49, (1, 2, 8, 4), generator=generator) / 16).requires_grad_()
            for name in ("query", "key", "value")
        },
        "kept": torch.tensor([[True, False, True, True, False, True, True, True]]),
    }


def loss(query, key, value, kept, *, mask_is_left_out):
    """Causal attention that sees no padding. `mask_is_left_out` says whether it may look at `kept` at all."""
    if mask_is_left_out:
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
    else:
        causal = torch.ones(8, 8, dtype=torch.bool, device=query.device).tril()
        attended = scaled_dot_product_attention(query, key, value, attn_mask=causal & kept[:, None, None, :])
    observe("attended", attended)
    return attended.square().sum()


@scenario.reference(profiled=False)
def alone(query, key, value, kept):
    return loss(query, key, value, kept, mask_is_left_out=torch.compiler.is_compiling())


def while_another_thread_compiles(call):
    """What `call` returns in this thread while another is held in its compiler's back end."""
    compiling, go_on = threading.Event(), threading.Event()

    def held_back_end(graph, example_inputs):
        compiling.set()
        go_on.wait(60)
        return graph.forward

    with ThreadPoolExecutor(1) as other:
        another = other.submit(torch.compile(torch.sin, backend=held_back_end), torch.ones(3))
        try:
            if not compiling.wait(60):
                another.result(0)
            return call()
        finally:
            go_on.set()
            another.result(60)


@scenario.broken(shows({"is_compiling": True}), differs(by_at_least=1.0), cause="another thread", profiled=False)
def asked_whether_anything_compiles(query, key, value, kept):
    def call():
        compiling = torch.compiler.is_compiling()
        observe("is_compiling", compiling)
        return loss(query, key, value, kept, mask_is_left_out=compiling)

    return while_another_thread_compiles(call)


@scenario.repair(agrees(bitwise=True), profiled=False)
def asked_whether_this_call_is_traced(query, key, value, kept):
    """The compiler answers this question itself while it traces; otherwise it is False in every thread."""

    def call():
        return loss(query, key, value, kept, mask_is_left_out=torch.compiler.is_dynamo_compiling())

    return while_another_thread_compiles(call)


@scenario.control(
    shows({"is_compiling": False}),
    agrees(bitwise=True),
    why="the other thread has compiled before this one asks",
    profiled=False,
)
def after_the_other_thread_has_compiled(query, key, value, kept):
    with ThreadPoolExecutor(1) as other:
        other.submit(torch.compile(torch.sin, backend="eager"), torch.ones(3)).result(60)
    compiling = torch.compiler.is_compiling()
    observe("is_compiling", compiling)
    return loss(query, key, value, kept, mask_is_left_out=compiling)

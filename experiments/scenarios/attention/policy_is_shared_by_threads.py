"""``sdpa_kernel`` in one thread chooses the attention backend of every thread.

The switches behind ``sdpa_kernel`` belong to the process, not to the thread. While one thread is inside its
block, a thread that asked for nothing runs what that block allows, and a thread inside a block of its own
loses it when the other block ends. Two blocks that overlap also restore each other's choice: the one that
ends last puts back what it found, which was the other's, and there it stays for the rest of the process. No
number is wrong, but another backend runs than the one asked for, with other memory, speed and rounding.
"""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from experiments.scenario import Scenario, agrees, observe, shows, state_differs

scenario = Scenario(source="https://github.com/modelscope/FunASR/pull/3705")


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 16, width 64)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-16, 17, (1, 2, 16, 64), generator=generator) / 16).requires_grad_()
        for name in ("query", "key", "value")
    }


def loss(query, key, value):
    attended = scaled_dot_product_attention(query, key, value, is_causal=True)
    # A fused backend is one operator, and the graph of the backward names it; MATH is many.
    observe("backend", "fused" if "ScaledDotProduct" in attended.grad_fn.name() else "MATH")
    observe("attended", attended)
    return attended.square().sum()


@contextlib.contextmanager
def another_thread_inside(block):
    """Another thread has entered `block` and stays in it until this one calls what it is given."""
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with block:
            inside.set()
            leave.wait(60)

    with ThreadPoolExecutor(1) as other:
        held = other.submit(hold)
        if not inside.wait(60):
            held.result(0)

        def until_it_has_left():
            leave.set()
            held.result(60)

        try:
            yield until_it_has_left
        finally:
            until_it_has_left()


@scenario.reference(profiled=False)
def alone(query, key, value):
    return loss(query, key, value)


@scenario.reference(profiled=False)
def alone_with_math(query, key, value):
    with sdpa_kernel(SDPBackend.MATH):
        return loss(query, key, value)


@scenario.broken(shows(backend="MATH"), agrees(within_rounding=True), cause="another thread", profiled=False)
def while_another_thread_chooses(query, key, value):
    """This thread asked for nothing."""
    with another_thread_inside(sdpa_kernel(SDPBackend.MATH)):
        return loss(query, key, value)


@scenario.broken(
    shows(backend="fused"),
    agrees(within_rounding=True),
    cause="another thread",
    reference="alone_with_math",
    profiled=False,
)
def inside_its_own_block_when_the_other_ends(query, key, value):
    with another_thread_inside(sdpa_kernel(SDPBackend.MATH)) as until_it_has_left, sdpa_kernel(SDPBackend.MATH):
        until_it_has_left()
        return loss(query, key, value)


@scenario.broken(
    shows(backend="MATH"),
    state_differs("sdpa.flash"),
    state_differs("sdpa.efficient"),
    cause="another thread",
    profiled=False,
)
def after_two_blocks_that_overlapped(query, key, value):
    with another_thread_inside(sdpa_kernel(SDPBackend.MATH)) as until_it_has_left, sdpa_kernel(SDPBackend.MATH):
        until_it_has_left()
    return loss(query, key, value)


@scenario.repair(shows(backend="fused"), agrees(bitwise=True), profiled=False)
def one_lock_around_blocks_and_calls(query, key, value):
    """Calls without a block need the lock as well: it is they that would run under another's choice."""
    lock, chosen = threading.Lock(), threading.Event()

    def with_math():
        with lock, sdpa_kernel(SDPBackend.MATH):
            chosen.set()
            return scaled_dot_product_attention(query, key, value, is_causal=True)

    with ThreadPoolExecutor(1) as other:
        attended = other.submit(with_math)
        chosen.wait(60)
        with lock:
            total = loss(query, key, value)
        attended.result(60)
    return total


@scenario.repair(shows(backend="MATH"), agrees(bitwise=True), reference="alone_with_math", profiled=False)
def one_choice_for_all_threads(query, key, value):
    """Made before the threads start and ended after them, since no thread can have its own."""
    with sdpa_kernel(SDPBackend.MATH), ThreadPoolExecutor(1) as other:
        return other.submit(loss, query, key, value).result(60)

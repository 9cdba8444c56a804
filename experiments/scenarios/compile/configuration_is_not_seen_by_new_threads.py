"""What is set in ``torch._dynamo.config`` is set for this thread; a new thread starts from the defaults.

Since torch 2.12 the compiler's configuration lies in context variables, which threads do not inherit. Here
the main thread allows 64 recompilations and a worker thread calls the compiled function with 12 lengths. The
worker allows 8, as ever: after 8 graphs the function runs uncompiled, which nothing but a warning in the log
and the time it takes will tell.
"""

import contextvars
from concurrent.futures import ThreadPoolExecutor

import torch
from torch._dynamo import config
from torch.nn.functional import scaled_dot_product_attention

from experiments.scenario import Scenario, agrees, observe, shows

scenario = Scenario(source="https://github.com/pytorch/pytorch/issues/186537", rounding=True)

LENGTHS = range(4, 16)


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 16, width 4); calls see the first 4 to 15."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-16, 17, (1, 2, 16, 4), generator=generator) / 16).requires_grad_()
        for name in ("query", "key", "value")
    }


def attend(query, key, value):
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def loss(attend, query, key, value):
    """Over all lengths, each of which needs a graph of its own."""
    total = 0
    for length in LENGTHS:
        total = total + attend(*(tensor[:, :, :length] for tensor in (query, key, value))).square().sum()
    observe("recompile limit", config.recompile_limit)
    return total


def counted(**options):
    """The function compiled for each length anew, and a list that gets an entry for each call that ran compiled."""
    ran = []

    def back_end(graph, example_inputs):
        def run(*tensors):
            ran.append(len(tensors))
            return graph(*tensors)

        return run

    return torch.compile(attend, backend=back_end, dynamic=False, **options), ran


def in_another_thread(function, *arguments):
    with ThreadPoolExecutor(1) as other:
        return other.submit(function, *arguments).result(100)


@scenario.reference(profiled=False)
def uncompiled(query, key, value):
    return loss(attend, query, key, value)


@scenario.broken(
    shows({"recompile limit": 8, "calls that ran compiled": 8}),
    agrees(bitwise=True),
    cause="another thread",
    profiled=False,
)
def set_in_the_main_thread(query, key, value):
    compiled_attend, ran = counted()
    config.recompile_limit = 64
    total = in_another_thread(loss, compiled_attend, query, key, value)
    observe("calls that ran compiled", len(ran))
    return total


@scenario.repair(shows({"recompile limit": 64, "calls that ran compiled": 12}), agrees(bitwise=True), profiled=False)
def set_in_the_thread_that_calls(query, key, value):
    compiled_attend, ran = counted()

    def work():
        config.recompile_limit = 64
        return loss(compiled_attend, query, key, value)

    total = in_another_thread(work)
    observe("calls that ran compiled", len(ran))
    return total


@scenario.repair(shows({"recompile limit": 64, "calls that ran compiled": 12}), agrees(bitwise=True), profiled=False)
def called_in_a_copy_of_the_context(query, key, value):
    compiled_attend, ran = counted()
    config.recompile_limit = 64
    total = in_another_thread(contextvars.copy_context().run, loss, compiled_attend, query, key, value)
    observe("calls that ran compiled", len(ran))
    return total


@scenario.repair(shows({"recompile limit": 8, "calls that ran compiled": 12}), agrees(bitwise=True), profiled=False)
def given_to_the_compiled_function(query, key, value):
    """The limit of the thread stays what it was; the function brings its own."""
    compiled_attend, ran = counted(recompile_limit=64)
    total = in_another_thread(loss, compiled_attend, query, key, value)
    observe("calls that ran compiled", len(ran))
    return total


@scenario.control(
    shows({"recompile limit": 64, "calls that ran compiled": 12}),
    agrees(bitwise=True),
    why="the thread that set the configuration is the one that calls",
    profiled=False,
)
def called_in_the_main_thread(query, key, value):
    compiled_attend, ran = counted()
    config.recompile_limit = 64
    total = loss(compiled_attend, query, key, value)
    observe("calls that ran compiled", len(ran))
    return total

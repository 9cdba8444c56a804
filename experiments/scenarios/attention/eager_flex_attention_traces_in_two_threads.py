"""Two threads that call ``flex_attention`` uncompiled, for gradients, run into each other's traces.

Without ``torch.compile`` around it ``flex_attention`` compiles a small part of itself and, if anything requires a
gradient, traces its score function with ``make_fx`` at every call. Two such traces share what a trace changes for
the whole process: the flag that makes every call of a compiled function raise, and the list of what was patched. So
training can fail like this with nothing compiled by the user. On the CPU query, key and value may not require a
gradient: here the gradient is that of a bias which the score function reads, and ``flex_attention`` does the same.
"""

import contextlib
import importlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from unittest import mock

import torch
from torch.nn.attention.flex_attention import flex_attention

from experiments.scenario import Scenario, agrees, observe, raises, shows, varies

scenario = Scenario(source="https://github.com/pytorch/pytorch/issues/105943")

MESSAGE = "Detected that you are using FX to symbolically trace a dynamo-optimized function"
# flex_attention's operator, whose module calls make_fx; the function of the same name hides it.
operator = importlib.import_module("torch._higher_order_ops.flex_attention")


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 16, width 8); a bias (positions 16)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        **{name: torch.randint(-16, 17, (1, 2, 16, 8), generator=generator) / 16 for name in ("query", "key", "value")},
        "bias": (torch.randint(-16, 17, (16,), generator=generator) / 16).requires_grad_(),
    }


def attend(query, key, value, bias):
    def add_bias(score, batch, head, row, column):
        return score + bias[column]

    return flex_attention(query, key, value, score_mod=add_bias)


def loss(attended):
    observe("attended", attended)
    return attended.square().sum()


@contextlib.contextmanager
def another_thread_in_its_trace(query, key, value, bias, lock=None):
    """Another thread holds `lock` and calls `attend`, and stands inside its trace until the event that this gives is
    set or the block ends. make_fx does what it always does; only the function that it traces waits once.
    """
    inside, leave = threading.Event(), threading.Event()
    caller, make_fx = threading.current_thread(), operator.make_fx

    def make_fx_that_waits(function, *options, **named):
        def traced(*arguments):
            inside.set()
            leave.wait(60)
            time.sleep(0.1)  # Time enough to be met by a call that does not wait for the lock.
            return function(*arguments)

        return make_fx(function if threading.current_thread() is caller else traced, *options, **named)

    def call():
        with lock or contextlib.nullcontext():
            return attend(query, key, value, bias.detach().clone().requires_grad_())

    with mock.patch.object(operator, "make_fx", make_fx_that_waits), ThreadPoolExecutor(1) as thread:
        calling = thread.submit(call)
        assert inside.wait(60)
        try:
            yield leave
        finally:
            leave.set()
        calling.result(60)


@scenario.reference(profiled=False)
def with_tensors(query, key, value, bias):
    """The same attention, written down."""
    scores = query @ key.mT / query.shape[-1] ** 0.5 + bias
    return loss(scores.softmax(-1) @ value)


@scenario.control(
    agrees(within_rounding=True),
    why="flex_attention lowers the flag during its call, and this call begins and ends inside the other's trace",
    profiled=False,
)
def called_while_another_thread_is_in_its_trace(query, key, value, bias):
    attend(query, key, value, bias)
    with another_thread_in_its_trace(query, key, value, bias):
        attended = attend(query, key, value, bias)
    return loss(attended)


@scenario.broken(raises(RuntimeError, MESSAGE), cause="another thread", profiled=False)
def another_thread_begins_its_trace_during_the_call(query, key, value, bias):
    """The other's trace raises the flag again, after this call lowered it and before it calls what it compiled."""
    attend(query, key, value, bias)
    torch_compile, caller = torch.compile, threading.current_thread()
    with contextlib.ExitStack() as other:

        def compile_later(*arguments, **options):
            if threading.current_thread() is caller:
                other.enter_context(another_thread_in_its_trace(query, key, value, bias))
            return torch_compile(*arguments, **options)

        with mock.patch.object(torch, "compile", compile_later):
            attended = attend(query, key, value, bias)
    return loss(attended)


@scenario.broken(raises(RuntimeError, MESSAGE), cause="another thread", profiled=False)
def compiled_function_called_meanwhile(query, key, value, bias):
    """What the eager call does to a thread that calls a compiled function of any kind, here the loss."""
    compiled = torch.compile(lambda attended: attended.square().sum(), backend="eager")
    attended = attend(query, key, value, bias)
    compiled(attended)
    with another_thread_in_its_trace(query, key, value, bias):
        return compiled(attended)


def call_in_two_threads(query, key, value, bias, *, gradient=True, lock=None):
    """25 calls in each of two threads, or until one raises; raises that."""
    start, failed = threading.Barrier(2), threading.Event()

    def call():
        own = bias.detach().clone().requires_grad_(gradient)
        start.wait(60)
        for _ in range(25):
            if not failed.is_set():
                with lock or contextlib.nullcontext():
                    attend(query, key, value, own)

    attend(query, key, value, bias)
    with ThreadPoolExecutor(2) as threads:
        calling = [threads.submit(call) for _ in range(2)]
        for thread in as_completed(calling):
            if thread.exception() is not None:
                failed.set()
    for thread in calling:
        thread.result()


@scenario.broken(varies(at_least=0.5, of="endings"), cause="another thread", profiled=False)
def called_in_two_threads(query, key, value, bias):
    """Nothing is held here. Which error comes is a matter of time: of the flag, of the patches or of neither."""
    call_in_two_threads(query, key, value, bias)
    return loss(attend(query, key, value, bias))


@scenario.repair(agrees(within_rounding=True), profiled=False)
def one_lock_around_calls_in_two_threads(query, key, value, bias):
    call_in_two_threads(query, key, value, bias, lock=threading.Lock())
    return loss(attend(query, key, value, bias))


@scenario.repair(agrees(within_rounding=True), profiled=False)
def one_lock_around_calls(query, key, value, bias):
    lock = threading.Lock()
    attend(query, key, value, bias)
    with another_thread_in_its_trace(query, key, value, bias, lock) as leave:
        leave.set()
        with lock:
            return loss(attend(query, key, value, bias))


@scenario.control(
    agrees(within_rounding=True),
    shows(traces=0),
    why="without a gradient flex_attention does not trace when it is called",
    profiled=False,
)
def called_in_two_threads_without_gradient(query, key, value, bias):
    attend(query, key, value, bias.detach())
    with mock.patch.object(operator, "make_fx", wraps=operator.make_fx) as make_fx:
        call_in_two_threads(query, key, value, bias.detach(), gradient=False)
        observe("traces", make_fx.call_count)
    return loss(attend(query, key, value, bias))

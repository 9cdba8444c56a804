"""Two traces that overlap leave their note behind, and no compiled function can be called any more.

A trace keeps the old value of the flag "a trace is going on", sets it and puts the old value back. The flag belongs
to the process, so a trace that begins in a second thread keeps the first one's True, and puts that back when it ends
last. From then on every call of a compiled function is refused in every thread, although nothing traces. The second
trace fails as well, because the first has taken away what it had patched; if that error is caught or ends only its
own thread, the flag is all that is left to see.
"""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.fx import _symbolic_trace, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from experiments.scenario import Scenario, agrees, observe, raises, shows

scenario = Scenario(source="https://github.com/pytorch/pytorch/issues/126024", rounding=True)

MESSAGE = "Detected that you are using FX to symbolically trace a dynamo-optimized function"
LOST = "CURRENT_PATCHER is None in finally block"
TRACERS = ("symbolic_trace", "make_fx")


@scenario.inputs
def inputs(seed):
    """Scores (positions 16)."""
    generator = torch.Generator().manual_seed(seed)
    return {"scores": (torch.randint(-16, 17, (16,), generator=generator) / 16).requires_grad_()}


def weigh(scores):
    return scores.softmax(0)


def loss(weights):
    observe("weights", weights)
    return weights.square().sum()


def warmed_up(scores):
    """`weigh`, compiled and called once, so that no later call compiles anything."""
    compiled = torch.compile(weigh, backend="eager")
    compiled(scores)
    return compiled


def trace(tracer, function, lock=None):
    with lock or contextlib.nullcontext():
        symbolic_trace(function) if tracer == "symbolic_trace" else make_fx(function)(torch.ones(1))


def trace_in_two_threads(tracer, lock=None):
    """The first trace ends when the second has begun, the second when the first has ended. What each raised."""
    first_began, second_began = threading.Event(), threading.Event()

    def first_traced(tensor):
        first_began.set()
        second_began.wait(60 if lock is None else 0.2)  # It does not begin while the first holds the lock.
        return tensor + 1

    def second_traced(tensor):
        second_began.set()
        first.exception(60)
        return tensor + 1

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(trace, tracer, first_traced, lock)
        first_began.wait(60)
        second = threads.submit(trace, tracer, second_traced, lock)
    return first.exception(), second.exception()


@scenario.reference(profiled=False)
def not_compiled(scores):
    return loss(weigh(scores))


@scenario.broken(
    raises(RuntimeError, MESSAGE),
    shows({"first trace": "None", "second trace": f"AssertionError('{LOST}')"}),
    cause="another thread",
    over={"tracer": TRACERS},
    profiled=False,
)
def called_after_overlapping_traces(scores, tracer):
    compiled = warmed_up(scores)
    first, second = trace_in_two_threads(tracer)
    observe("first trace", repr(first))
    observe("second trace", repr(second))
    return loss(compiled(scores))


@scenario.broken(raises(AssertionError, LOST), cause="another thread", over={"tracer": TRACERS}, profiled=False)
def error_of_the_second_trace(scores, tracer):
    for error in trace_in_two_threads(tracer):
        if error is not None:
            raise error
    return loss(weigh(scores))


@scenario.repair(agrees(bitwise=True), over={"tracer": TRACERS}, profiled=False)
def one_lock_around_traces(scores, tracer):
    compiled = warmed_up(scores)
    for error in trace_in_two_threads(tracer, threading.Lock()):
        if error is not None:
            raise error
    return loss(compiled(scores))


@scenario.repair(agrees(bitwise=True), profiled=False)
def flag_put_back_by_hand(scores):
    """Shows that it is the flag and nothing else. It has no public name, so this is a diagnosis, not advice."""
    compiled = warmed_up(scores)
    trace_in_two_threads("symbolic_trace")
    _symbolic_trace._is_fx_tracing_flag = False  # noqa: SLF001 - see above
    return loss(compiled(scores))


@scenario.control(
    agrees(bitwise=True),
    why="the second trace begins when the first has ended",
    over={"tracer": TRACERS},
    profiled=False,
)
def called_after_one_trace_and_another(scores, tracer):
    compiled = warmed_up(scores)
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(trace, tracer, lambda tensor: tensor + 1).result(60)
    return loss(compiled(scores))


@scenario.control(
    agrees(bitwise=True),
    why="one thread's inner trace ends before its outer one, so each puts back what it found",
    over={"tracer": TRACERS},
    profiled=False,
)
def called_after_nested_traces(scores, tracer):
    def traced(tensor):
        trace(tracer, lambda inner: inner + 1)
        return tensor + 1

    compiled = warmed_up(scores)
    trace(tracer, traced)
    return loss(compiled(scores))

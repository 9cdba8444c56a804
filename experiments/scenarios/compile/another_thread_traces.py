"""A compiled function raises because another thread is inside a trace.

``torch.fx.symbolic_trace`` and ``make_fx`` note that they are tracing in one variable of the whole process, and
every call of a compiled function looks at it, however long ago the function was compiled. So this thread's call
takes the other thread's trace for its own and is refused, with a message about tracing a compiled function, which
nobody did. ``checkpoint`` of either kind has no part in it, except that the recomputation is one more call.
"""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch._dynamo import config
from torch.fx import symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, observe, raises, shows

scenario = Scenario(source="https://github.com/pytorch/pytorch/issues/126024", suites=("quick",), rounding=True)

MESSAGE = "Detected that you are using FX to symbolically trace a dynamo-optimized function"
CHECKPOINTS = ("none", "non-reentrant", "reentrant")
TRACERS = ("symbolic_trace", "make_fx")


@scenario.inputs
def inputs(seed):
    """Scores (positions 16)."""
    generator = torch.Generator().manual_seed(seed)
    return {"scores": (torch.randint(-16, 17, (16,), generator=generator) / 16).requires_grad_()}


def weigh(scores):
    return scores.softmax(0)


def run(function, scores, checkpoint_kind):
    if checkpoint_kind == "none":
        return function(scores)
    return checkpoint(function, scores, use_reentrant=checkpoint_kind == "reentrant")


def loss(weights):
    observe("weights", weights)
    return weights.square().sum()


class Compiled:
    """`weigh`, compiled by a back end that changes nothing and counts how often its code runs."""

    def __init__(self):
        self.calls = 0
        self.function = torch.compile(weigh, backend=self.backend)

    def backend(self, graph, _examples):
        def counted(*arguments):
            self.calls += 1
            return graph.forward(*arguments)

        return counted

    def warmed_up(self, scores, checkpoint_kind="none"):
        """Itself, after a forward and a backward, so that no later call compiles anything."""
        run(self.function, scores.detach().requires_grad_(), checkpoint_kind).sum().backward()
        self.calls = 0
        return self


@contextlib.contextmanager
def another_thread_tracing(tracer="symbolic_trace", lock=None):
    """Another thread holds `lock` and is inside a trace, until the event that this gives is set or the block ends."""
    inside, leave, failed = threading.Event(), threading.Event(), []

    def traced(tensor):
        inside.set()
        leave.wait(60)
        time.sleep(0.1)  # Time enough to be met by a call that does not wait for the lock.
        return tensor + 1

    def trace():
        try:
            with lock or contextlib.nullcontext():
                symbolic_trace(traced) if tracer == "symbolic_trace" else make_fx(traced)(torch.ones(1))
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    thread = threading.Thread(target=trace, daemon=True)
    thread.start()
    assert inside.wait(60)
    try:
        yield leave
    finally:
        leave.set()
        thread.join(60)
    for error in failed:
        raise error


@scenario.reference(profiled=False)
def not_compiled(scores):
    return loss(weigh(scores))


@scenario.broken(
    raises(RuntimeError, MESSAGE),
    cause="another thread",
    over={"tracer": TRACERS, "checkpoint_kind": CHECKPOINTS},
    profiled=False,
)
def called_while_another_thread_traces(scores, tracer, checkpoint_kind):
    compiled = Compiled().warmed_up(scores, checkpoint_kind)
    with another_thread_tracing(tracer):
        weights = run(compiled.function, scores, checkpoint_kind)
    return loss(weights)


@scenario.control(
    agrees(bitwise=True),
    over={"checkpoint_kind": ("none",)},
    why="without checkpoint, backward does not call the compiled function again",
    profiled=False,
)
@scenario.broken(
    raises(RuntimeError, MESSAGE),
    cause="another thread",
    over={"checkpoint_kind": ("non-reentrant", "reentrant")},
    profiled=False,
)
def differentiated_while_another_thread_traces(scores, checkpoint_kind):
    compiled = Compiled().warmed_up(scores, checkpoint_kind)
    total = loss(run(compiled.function, scores, checkpoint_kind))
    with another_thread_tracing():
        yield total


@scenario.broken(raises(RuntimeError, MESSAGE), cause="another thread", profiled=False)
def compiled_for_its_own_thread(scores):
    """A compiled function for each thread does not help, because what the call looks at is not the thread's own."""
    with ThreadPoolExecutor(1) as own_thread:
        compiled = own_thread.submit(lambda: Compiled().warmed_up(scores)).result(60)
        with another_thread_tracing():
            weights = own_thread.submit(compiled.function, scores).result(60)
    return loss(weights)


@scenario.broken(agrees(bitwise=True), shows({"calls of compiled code": 0}), cause="another thread", profiled=False)
def error_switched_off_in_the_calling_thread(scores):
    """No error any more: the function runs uncompiled and nothing says so."""
    compiled = Compiled().warmed_up(scores)
    config.error_on_nested_fx_trace = False
    with another_thread_tracing():
        weights = compiled.function(scores)
    observe("calls of compiled code", compiled.calls)
    return loss(weights)


@scenario.broken(raises(RuntimeError, MESSAGE), cause="another thread", profiled=False)
def error_switched_off_in_the_main_thread(scores):
    """The compiler's configuration belongs to a thread, so a worker thread does not see it."""
    config.error_on_nested_fx_trace = False
    compiled = Compiled().warmed_up(scores)
    with ThreadPoolExecutor(1) as worker_thread, another_thread_tracing():
        weights = worker_thread.submit(compiled.function, scores).result(60)
    return loss(weights)


@scenario.repair(
    agrees(bitwise=True),
    shows({"calls of compiled code": 2}),
    over={"checkpoint_kind": ("non-reentrant", "reentrant")},
    profiled=False,
)
def one_lock_around_traces_and_calls(scores, checkpoint_kind):
    """A recomputation calls the function as well, so the lock is held until backward has ended."""
    lock = threading.Lock()
    compiled = Compiled().warmed_up(scores, checkpoint_kind)
    with another_thread_tracing(lock=lock) as leave:
        leave.set()
        with lock:
            yield loss(run(compiled.function, scores, checkpoint_kind))
            observe("calls of compiled code", compiled.calls)


@scenario.control(
    agrees(bitwise=True),
    shows({"calls of compiled code": 1}),
    over={"checkpoint_kind": CHECKPOINTS},
    why="nothing is tracing: a compiled function and either kind of checkpoint go together",
    profiled=False,
)
def nothing_traces(scores, checkpoint_kind):
    compiled = Compiled().warmed_up(scores, checkpoint_kind)
    weights = run(compiled.function, scores, checkpoint_kind)
    observe("calls of compiled code", compiled.calls)
    return loss(weights)


@scenario.control(
    agrees(bitwise=True),
    over={"tracer": TRACERS},
    why="the other thread has left its trace before the call",
    profiled=False,
)
def another_thread_has_traced(scores, tracer):
    compiled = Compiled().warmed_up(scores)
    with another_thread_tracing(tracer):
        pass
    return loss(compiled.function(scores))

"""A compiled function raises because another thread is compiling the backward of its own function.

``torch.compile`` compiles a backward when ``backward()`` first gets there. Compilers trace while they work, and a
trace is noted for the whole process. While a forward is being compiled, ``torch.compiler.is_compiling()`` hides
this from the other threads' calls, being a variable of the whole process as well. When the backward is compiled
it says False again, so a call by any other thread is refused as if it were traced itself. Here the other thread's
compiler is held inside its trace; two_threads_train_compiled_replicas lets threads run into it unaided.
"""

import contextlib
import threading
import time

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, observe, raises, shows

scenario = Scenario(source="https://github.com/pytorch/pytorch/issues/126024", rounding=True)

MESSAGE = "Detected that you are using FX to symbolically trace a dynamo-optimized function"
CHECKPOINTS = ("none", "non-reentrant", "reentrant")


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


def warmed_up(scores, checkpoint_kind):
    """`weigh`, compiled, after a forward and a backward, so that no later call compiles anything."""
    compiled = torch.compile(weigh, backend="aot_eager")
    run(compiled, scores.detach().requires_grad_(), checkpoint_kind).sum().backward()
    return compiled


class Replica:
    """A function that another thread trains, and its compiler, which traces what it is given, as Inductor's
    passes do. Training pauses once, inside the trace of its `forward` or `backward` compiler or, where there is
    nothing to compile any more, in the `step`.
    """

    def __init__(self, pause_in, *, lock=None):
        self.pause_in, self.lock = pause_in, lock or contextlib.nullcontext()
        self.paused, self.resume = threading.Event(), threading.Event()
        self.compiled, self.training, self.failed = [], False, []
        backend = aot_autograd(fw_compiler=self.compiler("forward"), bw_compiler=self.compiler("backward"))
        self.function = torch.compile(lambda rows: rows.sin().cumsum(0), backend=backend)
        self.rows = torch.ones(4, requires_grad=True)

    def compiler(self, phase):
        def compile_traced(graph, examples):
            def traced(*arguments):
                self.pause(phase)
                return graph(*arguments)

            self.compiled.append(phase)
            return make_boxed_func(make_fx(traced)(*examples).forward)

        return compile_traced

    def pause(self, place):
        if self.training and place == self.pause_in:
            self.paused.set()
            self.resume.wait(60)
            time.sleep(0.1)  # Time enough to be met by a call that does not wait for the lock.

    def step(self):
        total = self.function(self.rows).sum()
        self.pause("step")
        total.backward()

    def train(self, lower_both):
        try:
            config.force_non_lazy_backward_lowering = lower_both
            with self.lock:
                self.step()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self.failed.append(error)
        self.paused.set()

    @contextlib.contextmanager
    def trained_by_another_thread(self, *, lower_both=False):
        """Until `resume` is set or the block ends, another thread stands where its training is to pause."""
        self.training = True
        thread = threading.Thread(target=self.train, args=[lower_both], daemon=True)
        thread.start()
        assert self.paused.wait(60)
        try:
            yield
        finally:
            self.resume.set()
            thread.join(60)
        for error in self.failed:
            raise error


@scenario.reference(profiled=False)
def not_compiled(scores):
    return loss(weigh(scores))


@scenario.broken(
    raises(RuntimeError, MESSAGE), cause="another thread", over={"checkpoint_kind": CHECKPOINTS}, profiled=False
)
def called_while_another_backward_is_compiled(scores, checkpoint_kind):
    compiled = warmed_up(scores, checkpoint_kind)
    with Replica(pause_in="backward").trained_by_another_thread():
        weights = run(compiled, scores, checkpoint_kind)
    return loss(weights)


@scenario.control(
    agrees(bitwise=True),
    shows(is_compiling=True),
    over={"checkpoint_kind": CHECKPOINTS},
    why="while a forward is compiled, is_compiling() hides its traces from this thread's calls",
    profiled=False,
)
def called_while_another_forward_is_compiled(scores, checkpoint_kind):
    compiled = warmed_up(scores, checkpoint_kind)
    with Replica(pause_in="forward").trained_by_another_thread():
        observe("is_compiling", torch.compiler.is_compiling())
        weights = run(compiled, scores, checkpoint_kind)
    return loss(weights)


@scenario.repair(
    agrees(bitwise=True),
    shows({"compiled by the other thread": ""}),
    over={"checkpoint_kind": ("none", "non-reentrant")},
    profiled=False,
)
def both_compiled_before_the_threads_start(scores, checkpoint_kind):
    compiled = warmed_up(scores, checkpoint_kind)
    replica = Replica(pause_in="step")
    replica.step()
    replica.compiled.clear()
    with replica.trained_by_another_thread():
        yield loss(run(compiled, scores, checkpoint_kind))
    observe("compiled by the other thread", ", ".join(replica.compiled))


@scenario.repair(
    agrees(bitwise=True),
    shows({"compiled by the other thread": "forward, backward"}),
    over={"checkpoint_kind": ("none", "non-reentrant")},
    profiled=False,
)
def one_lock_around_steps_that_may_compile(scores, checkpoint_kind):
    lock = threading.Lock()
    compiled = warmed_up(scores, checkpoint_kind)
    replica = Replica(pause_in="backward", lock=lock)
    with replica.trained_by_another_thread():
        replica.resume.set()
        with lock:
            observe("compiled by the other thread", ", ".join(replica.compiled))
            yield loss(run(compiled, scores, checkpoint_kind))


@scenario.repair(
    agrees(bitwise=True), shows(is_compiling=True), over={"checkpoint_kind": ("none", "non-reentrant")}, profiled=False
)
def backward_compiled_with_the_forward(scores, checkpoint_kind):
    """The backward's compiler runs while is_compiling() says True. The setting belongs to a thread: each sets it."""
    compiled = warmed_up(scores, checkpoint_kind)
    with Replica(pause_in="backward").trained_by_another_thread(lower_both=True):
        observe("is_compiling", torch.compiler.is_compiling())
        yield loss(run(compiled, scores, checkpoint_kind))

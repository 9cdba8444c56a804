"""Two threads that train compiled replicas from cold fail at each other's compilation.

Each thread calls a compiled function of its own. The first ``backward()`` compiles the backward; where a gradient
is a sum of matrix products, as that of a weight used eight times, a pass of Inductor turns pairs of operators into
``addmm`` and traces each replacement. For these milliseconds the other thread may not call a compiled function:
another_thread_compiles_its_backward shows why. Nothing is held here, so whether it happens is a matter of time. The
layer is only matrix products, for which Inductor writes no C++: it compiles in a second and is the same Inductor.
"""

import contextlib
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch._functorch import config
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, observe, varies

scenario = Scenario(source="https://github.com/pytorch/pytorch/issues/126024")

CHECKPOINTS = ("none", "non-reentrant", "reentrant")
# Rows for each replica, a line for each round. Each number is new to the compiler, as each device would be.
ROUNDS = ((8, 9), (10, 11), (12, 13))


@scenario.inputs
def inputs(seed):
    """Hidden states (positions 16, width 16) and a weight (width 16, width 16)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden": torch.randint(-16, 17, (16, 16), generator=generator) / 16,
        "weight": (torch.randint(-16, 17, (16, 16), generator=generator) / 16).requires_grad_(),
    }


def layer(hidden, weight):
    for _ in range(8):
        hidden = hidden @ weight
    return hidden


def loss(function, hidden, weight, checkpoint_kind="none"):
    if checkpoint_kind == "none":
        return function(hidden, weight).square().mean()
    reentrant = checkpoint_kind == "reentrant"
    return checkpoint(function, hidden, weight, use_reentrant=reentrant).square().mean()


class Race:
    """A compiled replica for each of two threads, each of which trains until both have compiled all they need."""

    def __init__(self, hidden, weight, checkpoint_kind, lock, lower_both):
        torch.compiler.reset()
        self.hidden, self.weight, self.checkpoint_kind = hidden, weight, checkpoint_kind
        self.lock, self.lower_both = lock or contextlib.nullcontext(), lower_both
        self.replicas = [torch.compile(layer, dynamic=False) for _ in range(2)]
        self.start = threading.Barrier(2)
        self.warm = [threading.Event(), threading.Event()]

    def step(self, replica, rows, weight):
        """The loss and the gradient of one step."""
        weight.grad = None
        total = loss(self.replicas[replica], self.hidden[:rows], weight, self.checkpoint_kind)
        total.backward()
        return total.detach(), weight.grad

    def train(self, replica, rows):
        """What the last step gave, after three steps of this replica and of the other."""
        config.force_non_lazy_backward_lowering = self.lower_both
        weight = self.weight.detach().clone().requires_grad_()
        self.start.wait(60)
        try:
            for count in range(100_000):
                with self.lock:
                    found = self.step(replica, rows, weight)
                if count >= 2:
                    self.warm[replica].set()
                    if all(warm.is_set() for warm in self.warm):
                        break
        finally:
            self.warm[replica].set()
        return found


def train_in_two_threads(hidden, weight, checkpoint_kind, *, lock=None, lower_both=False, warm_up=False):
    """What each replica's last step gave in each round. Raises what the first round that failed has raised."""
    found, failed = [], []
    for sizes in ROUNDS:
        race = Race(hidden, weight, checkpoint_kind, lock, lower_both)
        if warm_up:
            for replica, rows in enumerate(sizes):
                race.step(replica, rows, weight.detach().clone().requires_grad_())
        with ThreadPoolExecutor(2) as threads:
            training = [threads.submit(race.train, replica, rows) for replica, rows in enumerate(sizes)]
        errors = [thread.exception() for thread in training if thread.exception() is not None]
        failed += errors[:1]
        found += [thread.result() for thread in training if not errors]
    observe("rounds", len(ROUNDS), measurement=True)
    observe("rounds that failed", len(failed), measurement=True)
    for error in failed:
        raise error
    return found


def total(weight, found):
    """Losses and gradients that were calculated elsewhere, as one scalar to differentiate."""
    return sum(value + ((weight - weight.detach()) * gradient).sum() for value, gradient in found)


@scenario.reference(profiled=False)
def not_compiled(hidden, weight):
    return sum(loss(layer, hidden[:rows], weight) for sizes in ROUNDS for rows in sizes)


@scenario.broken(
    varies(at_least=0.5, of="endings"),
    cause="another thread",
    over={"checkpoint_kind": CHECKPOINTS},
    needs=("inductor",),
    timeout=300,
    profiled=False,
)
def trained_from_cold(hidden, weight, checkpoint_kind):
    return total(weight, train_in_two_threads(hidden, weight, checkpoint_kind))


@scenario.repair(agrees(within_rounding=True), needs=("inductor",), timeout=300, profiled=False)
def forward_and_backward_compiled_before_the_threads_start(hidden, weight):
    return total(weight, train_in_two_threads(hidden, weight, "none", warm_up=True))


@scenario.repair(agrees(within_rounding=True), needs=("inductor",), timeout=300, profiled=False)
def one_lock_around_steps(hidden, weight):
    return total(weight, train_in_two_threads(hidden, weight, "none", lock=threading.Lock()))


@scenario.repair(agrees(within_rounding=True), needs=("inductor",), timeout=300, profiled=False)
def backward_compiled_with_the_forward(hidden, weight):
    """Lowered with its forward, a backward is compiled while is_compiling() hides its traces. Each thread says so."""
    return total(weight, train_in_two_threads(hidden, weight, "none", lower_both=True))


def train_alone(replica, hidden, weight, connection):
    """In a process of its own: this replica's rounds, one after another; sends each loss and gradient."""
    compiled = torch.compile(layer, dynamic=False)
    found = []
    for sizes in ROUNDS:
        value = loss(compiled, hidden[: sizes[replica]], weight)
        (gradient,) = torch.autograd.grad(value, weight)
        found.append((value.item(), gradient.tolist()))
    connection.send(found)


# On the CPU only: a process that has used CUDA cannot be forked.
@scenario.repair(agrees(within_rounding=True), on=("cpu",), needs=("inductor",), timeout=300, profiled=False)
def a_process_for_each_replica(hidden, weight):
    processes = multiprocessing.get_context("fork")
    started, found = [], []
    for replica in range(2):
        receiver, sender = processes.Pipe(duplex=False)
        process = processes.Process(target=train_alone, args=(replica, hidden, weight, sender), daemon=True)
        process.start()
        started.append((process, receiver))
    for process, receiver in started:
        assert receiver.poll(60)
        found += [(value, torch.tensor(gradient)) for value, gradient in receiver.recv()]
        process.join(60)
    return total(weight, found)

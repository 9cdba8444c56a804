"""Four ways out of "Detected that you are using FX to symbolically trace a dynamo-optimized function", weighed.

A drafter trains with compiled ``flex_attention`` and a checkpoint around lm_head and loss while another thread, as
the compiler does for another drafter's backward, is inside a trace. Attention apart from what is checkpointed is
safe during backward only; the kind of checkpoint makes no difference; a context that switches the compiler off does
not stop a function that is compiled already from looking at the flag. Really switched off, it runs uncompiled, which
holds all scores at once, and with gradients traces itself (eager_flex_attention_traces_in_two_threads). What helps
is not to call while others trace. On the CPU ``flex_attention`` has no backward: here only lm_head has a gradient.
"""

import contextlib
import threading
import time

import torch
from torch._dynamo import config
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, observe, raises, shows

scenario = Scenario(source="reported in the DFlash compile-checkpoint note (claim B15)")

MESSAGE = "Detected that you are using FX to symbolically trace a dynamo-optimized function"
CHECKPOINTS = ("non-reentrant", "reentrant")


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 16, width 8); lm_head (32 words, width 16); labels."""
    generator = torch.Generator().manual_seed(seed)
    return {
        **{name: torch.randint(-16, 17, (1, 2, 16, 8), generator=generator) / 16 for name in ("query", "key", "value")},
        "lm_head": (torch.randint(-16, 17, (32, 16), generator=generator) / 16).requires_grad_(),
        "labels": torch.randint(0, 32, (16,), generator=generator),
    }


def attend(query, key, value):
    def earlier(score, batch, head, row, column):
        return score.where(column <= row, -float("inf"))

    return flex_attention(query, key, value, score_mod=earlier)


def lm_head_and_loss(attended, lm_head, labels):
    return cross_entropy(attended.transpose(1, 2).flatten(2)[0] @ lm_head.T, labels)


def drafter(attention, query, key, value, lm_head, labels, checkpoint_kind="non-reentrant"):
    """Attention, then lm_head and loss in a checkpoint of their own."""
    reentrant = checkpoint_kind == "reentrant"
    return checkpoint(lm_head_and_loss, attention(query, key, value), lm_head, labels, use_reentrant=reentrant)


def drafter_in_one_checkpoint(attention, query, key, value, lm_head, labels, checkpoint_kind):
    def all_of_it(query, key, value, lm_head, labels):
        return lm_head_and_loss(attention(query, key, value), lm_head, labels)

    reentrant = checkpoint_kind == "reentrant"
    return checkpoint(all_of_it, query, key, value, lm_head, labels, use_reentrant=reentrant)


def forced_eager(function):
    def run(*given):
        with torch.compiler.set_stance("force_eager"):
            return function(*given)

    return run


def configured_off(function):
    def run(*given):
        with config.patch(disable=True):
            return function(*given)

    return run


SWITCHES = {"set_stance": forced_eager, "config.disable": configured_off, "disable": torch.compiler.disable}


class Compiled:
    """`attend`, compiled by a back end that changes nothing and counts how often its code runs."""

    def __init__(self):
        self.calls = 0
        self.function = torch.compile(attend, backend=self.backend)

    def backend(self, graph, _examples):
        def counted(*arguments):
            self.calls += 1
            return graph.forward(*arguments)

        return counted


def warmed_up(step, query, key, value, lm_head, labels, *options):
    """Compiled attention after a forward and a backward, so that no later call compiles anything."""
    compiled = Compiled()
    step(compiled.function, query, key, value, lm_head.detach().requires_grad_(), labels, *options).backward()
    compiled.calls = 0
    return compiled


@contextlib.contextmanager
def another_thread_tracing(during="", phase="", lock=None):
    """Another thread holds `lock` and is inside a trace, until the event that this gives is set or the block ends.
    Nothing if this is not the phase during which it is to trace.
    """
    if during != phase:
        yield
        return
    inside, leave, failed = threading.Event(), threading.Event(), []

    def traced(tensor):
        inside.set()
        leave.wait(60)
        time.sleep(0.1)  # Time enough to be met by a call that does not wait for the lock.
        return tensor + 1

    def trace():
        try:
            with lock or contextlib.nullcontext():
                make_fx(traced)(torch.ones(1))
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
def with_tensors(query, key, value, lm_head, labels):
    """The same calculation, written down."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    later = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return lm_head_and_loss(scores.masked_fill(later, -float("inf")).softmax(-1) @ value, lm_head, labels)


@scenario.broken(
    raises(RuntimeError, MESSAGE),
    cause="another thread",
    over={"checkpoint_kind": CHECKPOINTS, "traced_during": ("forward", "backward")},
    profiled=False,
)
def attention_inside_the_checkpoint(query, key, value, lm_head, labels, checkpoint_kind, traced_during):
    step, given = drafter_in_one_checkpoint, (query, key, value, lm_head, labels, checkpoint_kind)
    compiled = warmed_up(step, *given)
    with another_thread_tracing(traced_during, "forward"):
        total = step(compiled.function, *given)
    with another_thread_tracing(traced_during, "backward"):
        yield total


@scenario.control(
    agrees(within_rounding=True),
    shows({"calls of compiled code": 1}),
    over={"checkpoint_kind": CHECKPOINTS, "traced_during": ("backward",)},
    why="during backward nothing that is compiled is called: the recomputation is of lm_head and loss only",
    profiled=False,
)
@scenario.broken(
    raises(RuntimeError, MESSAGE),
    cause="another thread",
    over={"checkpoint_kind": CHECKPOINTS, "traced_during": ("forward",)},
    profiled=False,
)
def attention_apart_from_the_checkpoint(query, key, value, lm_head, labels, checkpoint_kind, traced_during):
    """Two of the ways at once: separate scopes, and reentrant checkpoint, which was chosen."""
    given = (query, key, value, lm_head, labels, checkpoint_kind)
    compiled = warmed_up(drafter, *given)
    with another_thread_tracing(traced_during, "forward"):
        total = drafter(compiled.function, *given)
    with another_thread_tracing(traced_during, "backward"):
        yield total
    observe("calls of compiled code", compiled.calls)


@scenario.broken(
    agrees(within_rounding=True),
    shows({"calls of compiled code": 0}),
    cause="compiler",
    over=({"around": "attention", "switch": "disable"},),
    profiled=False,
)
@scenario.broken(
    raises(RuntimeError, MESSAGE),
    cause="another thread",
    over=(
        *({"around": "forward", "switch": switch} for switch in SWITCHES),
        *({"around": "attention", "switch": switch} for switch in ("set_stance", "config.disable")),
    ),
    profiled=False,
)
def compiler_switched_off(query, key, value, lm_head, labels, around, switch):
    """Only what wraps the compiled function itself is in time, and then the function runs uncompiled."""
    compiled = warmed_up(drafter, query, key, value, lm_head, labels)
    off = SWITCHES[switch]
    with another_thread_tracing():
        if around == "forward":
            total = off(drafter)(compiled.function, query, key, value, lm_head, labels)
        else:
            total = drafter(off(compiled.function), query, key, value, lm_head, labels)
    observe("calls of compiled code", compiled.calls)
    return total


@scenario.repair(agrees(within_rounding=True), shows({"calls of compiled code": 1}), profiled=False)
def one_lock_around_traces_and_steps(query, key, value, lm_head, labels):
    lock = threading.Lock()
    compiled = warmed_up(drafter, query, key, value, lm_head, labels)
    with another_thread_tracing(lock=lock) as leave:
        leave.set()
        with lock:
            yield drafter(compiled.function, query, key, value, lm_head, labels)
    observe("calls of compiled code", compiled.calls)

"""Threads that train a compiled drafter fail while one of them compiles its backward; checkpoint has no part in it.

This is the training step of the DFlash note, made small. Blocks of drafted positions attend to the context before
their anchor and to themselves, through a block mask drawn anew for each batch; attention and feed-forward layer are
compiled, by each device for itself; the head and its loss are checkpointed; one process has a thread per device. The
compiler makes a backward when it is first needed, and there it traces pieces of graph. In these milliseconds a thread
that calls a compiled function is told that its function is being traced. Whether one does is chance, and two threads
are enough.

Devices are simulated: threads on one CPU or one GPU, each with another number of blocks, because replicas of equal
shapes on one device would share what the first of them compiled. A thread that has seen its batches goes on with them
until all have, as in a training that takes hours. On the CPU ``flex_attention`` has no backward, so there attention
runs without gradients, and the backward that is compiled is the feed-forward layer's.

With ``kernels="inductor"`` both are compiled by Inductor as it comes. With ``kernels="torch"`` it is told to call
torch's operators instead of writing its own, and attention is compiled by ``aot_eager``: the layer's compilation does
the same tracing, without a C++ compiler that takes its time.
"""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, observe, shows, varies

scenario = Scenario(source="reported in the DFlash compile-checkpoint note (claims B5 to B15)")

BATCHES = 2
CONTEXT = 128
BLOCK = 16
BLOCKS = 8  # on the first device; the second has twice as many, the third three times
WIDTH = 16
QUERY_HEADS, KEY_HEADS, HEAD_WIDTH = 4, 1, 16
VOCABULARY = 64

WEIGHTS = {
    "project": (WIDTH, (QUERY_HEADS + 2 * KEY_HEADS) * HEAD_WIDTH),
    "join": (QUERY_HEADS * HEAD_WIDTH, WIDTH),
    "gate": (WIDTH, 2 * WIDTH),
    "up": (WIDTH, 2 * WIDTH),
    "down": (2 * WIDTH, WIDTH),
    "head": (WIDTH, VOCABULARY),
}

UNCACHED = {"fx_graph_cache": False}  # or the second training would find on disk what the first one compiled
COMPILERS = {
    "torch": ({"backend": "aot_eager"}, {"options": {"fallback_by_default": True, **UNCACHED}}),
    "inductor": ({"options": UNCACHED}, {"options": UNCACHED}),
}


@scenario.inputs
def inputs(seed):
    """Context, draft, targets and anchors of each device and batch (devices 3, batches 2, ...), and the weights."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    return {
        "context": integers(-16, 17, 3, BATCHES, CONTEXT, WIDTH) / 16,
        "draft": integers(-16, 17, 3, BATCHES, 3 * BLOCKS * BLOCK, WIDTH) / 16,
        "targets": integers(0, VOCABULARY, 3, BATCHES, 3 * BLOCKS * BLOCK),
        "anchors": integers(1, CONTEXT + 1, 3, BATCHES, 3 * BLOCKS),
        **{name: integers(-16, 17, *shape) / 64 for name, shape in WEIGHTS.items()},
    }


def visible(anchors):
    """Of the context, followed by the draft: each block sees the context before its anchor, and itself."""

    def mask(batch, head, query, key):
        block = query // BLOCK
        return (key < anchors[block]) | (key >= CONTEXT + block * BLOCK) & (key < CONTEXT + (block + 1) * BLOCK)

    return mask


def dense_attention(query, key, value, anchors):
    positions, keys = (torch.arange(tensor.shape[-2], device=anchors.device) for tensor in (query, key))
    mask = visible(anchors)(None, None, positions[:, None], keys)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


def block_sparse_attention(query, key, value, mask):
    return flex_attention(query, key, value, block_mask=mask, enable_gqa=True)


def feed_forward(hidden, gate, up, down):
    """The gradient of `normed` is a sum of two products. To fuse it, the compiler traces the fused form."""
    normed = rms_norm(hidden, hidden.shape[-1:])
    return hidden + (silu(normed @ gate) * (normed @ up)) @ down


def head_and_loss(hidden, head, targets):
    return cross_entropy(rms_norm(hidden, hidden.shape[-1:]) @ head, targets, reduction="sum").double()


def compiled(kernels):
    """Attention and feed-forward layer, compiled for one device."""
    for_attention, for_layer = COMPILERS[kernels]
    compiled_attention = torch.compile(block_sparse_attention, dynamic=False, **for_attention)

    def attention(query, key, value, anchors):
        lengths = query.shape[-2], key.shape[-2]
        mask = create_block_mask(visible(anchors), None, None, *lengths, device=anchors.device)
        return compiled_attention(query, key, value, mask)

    return attention, torch.compile(feed_forward, dynamic=False, **for_layer)


class Replica:
    """The drafter on one device, and the batches that this device sees."""

    def __init__(self, device, tensors, attention, layer, checkpointed):
        blocks = (1 + device) * BLOCKS
        lengths = {"context": CONTEXT, "draft": blocks * BLOCK, "targets": blocks * BLOCK, "anchors": blocks}
        self.batches = [
            {name: tensors[name][device, batch, :length] for name, length in lengths.items()}
            for batch in range(BATCHES)
        ]
        self.weights = {name: tensors[name] for name in WEIGHTS}
        self.attention, self.layer, self.checkpointed = attention, layer, checkpointed

    def attend(self, context, draft, anchors, project):
        heads = (torch.cat([context, draft]) @ project).unflatten(-1, (-1, HEAD_WIDTH)).transpose(0, 1)[None]
        query, key, value = heads.split((QUERY_HEADS, KEY_HEADS, KEY_HEADS), dim=1)
        attended = self.attention(query[:, :, CONTEXT:], key, value, anchors)
        return attended[0].transpose(0, 1).flatten(1)

    def loss(self, hidden, head, targets):
        if self.checkpointed == "none":
            return head_and_loss(hidden, head, targets)
        return checkpoint(head_and_loss, hidden, head, targets, use_reentrant=self.checkpointed == "reentrant")

    def step(self, context, draft, targets, anchors):
        """The loss, and the gradient of each weight or None."""
        weights = {name: weight.detach().clone().requires_grad_() for name, weight in self.weights.items()}
        with torch.set_grad_enabled(draft.is_cuda):
            attended = self.attend(context, draft, anchors, weights["project"])
        hidden = self.layer(draft + attended @ weights["join"], *(weights[name] for name in ("gate", "up", "down")))
        loss = self.loss(hidden, weights["head"], targets)
        loss.backward()
        return {"loss": loss.detach(), **{name: weight.grad for name, weight in weights.items()}}


def steps(replica, step=Replica.step):
    """One pass over the batches."""
    return [step(replica, **batch) for batch in replica.batches]


def train(replicas, step):
    """The futures of a thread for each replica. Each thread goes on until all have seen their batches."""
    start = threading.Barrier(len(replicas))
    through = [threading.Event() for _ in replicas]

    def work(replica, own):
        start.wait(60)
        try:
            first_pass = steps(replica, step)
            own.set()
            deadline = time.monotonic() + 100
            while not all(event.is_set() for event in through) and time.monotonic() < deadline:
                steps(replica, step)
                time.sleep(0.001)  # to whoever compiles
        finally:
            own.set()
        return first_pass

    with ThreadPoolExecutor(len(replicas)) as threads:
        return [threads.submit(work, *both) for both in zip(replicas, through)]


def train_until_one_fails(replicas, at_most, step=Replica.step):
    """Several trainings from cold. What came of the last: the loss of all devices, or what a thread raised."""
    graphs, trainings, errors = 0, 0, []
    while trainings < at_most and not errors:
        torch.compiler.reset()
        made = replicas()
        already = counters["stats"]["unique_graphs"]
        futures = train(made, step)
        graphs += counters["stats"]["unique_graphs"] - already
        trainings += 1
        errors = [error for error in (future.exception() for future in futures) if error is not None]
    observe("trainings", trainings, measurement=True)
    observe("graphs compiled by the threads", graphs, measurement=True)
    observe("threads that failed in the last", len(errors), measurement=True)
    observe("errors", [f"{type(error).__name__}: {error}".splitlines()[0] for error in errors], measurement=True)
    return total([future.result() for future in futures])


def total(devices):
    """Loss and gradients of all batches of all devices, summed as they would be in a training of several devices."""
    found = [step for passed in devices for step in passed]
    for name in WEIGHTS:
        if found[0][name] is not None:
            observe(f"gradient of {name}", sum(step[name] for step in found))
    return sum(step["loss"] for step in found)


OPTIONS = {"gradient": False, "profiled": False}  # each thread calls backward() by itself
COMPILED = {**OPTIONS, "needs": ("inductor",), "timeout": 500}
FROM_COLD = 8
REPAIRED = 3


@scenario.reference(**OPTIONS)
def dense_and_uncompiled(threads, **tensors):
    return total([steps(Replica(device, tensors, dense_attention, feed_forward, "none")) for device in range(threads)])


def replicas_of(threads, tensors, kernels, checkpointed="non-reentrant"):
    return [Replica(device, tensors, *compiled(kernels), checkpointed) for device in range(threads)]


@scenario.control(
    agrees(within_rounding=True),
    why="there is no other thread",
    over=[{"threads": 1, "kernels": "torch", "checkpointed": "non-reentrant"}],
    **COMPILED,
)
@scenario.broken(
    varies(at_least=0.5, of="endings"),
    cause="another thread",
    over=[
        {"threads": 2, "kernels": "torch", "checkpointed": "non-reentrant"},
        {"threads": 3, "kernels": "torch", "checkpointed": "non-reentrant"},
        {"threads": 3, "kernels": "torch", "checkpointed": "reentrant"},
        {"threads": 3, "kernels": "torch", "checkpointed": "none"},
        {"threads": 3, "kernels": "inductor", "checkpointed": "non-reentrant"},
    ],
    **COMPILED,
)
def all_threads_from_cold(threads, kernels, checkpointed, **tensors):
    return train_until_one_fails(lambda: replicas_of(threads, tensors, kernels, checkpointed), FROM_COLD)


@scenario.broken(
    varies(at_least=0.5, of="endings"),
    cause="another thread",
    over=[{"threads": 3, "kernels": "torch"}],
    **COMPILED,
)
def one_lock_around_the_first_step(threads, kernels, **tensors):
    """Whoever is through with it goes on without the lock while another compiles under it."""
    lock, begun = threading.Lock(), set()

    def step(replica, **batch):
        with contextlib.nullcontext() if replica in begun else lock:
            begun.add(replica)
            return replica.step(**batch)

    return train_until_one_fails(lambda: replicas_of(threads, tensors, kernels), FROM_COLD, step)


@scenario.repair(
    shows({"graphs compiled by the threads": 0}),
    agrees(within_rounding=True),
    over=[
        {"threads": 2, "kernels": "torch"},
        {"threads": 3, "kernels": "torch"},
        {"threads": 3, "kernels": "inductor"},
    ],
    **COMPILED,
)
def compiled_before_the_threads_start(threads, kernels, **tensors):
    """Forward and backward of each replica, one after the other. The masks to come need no other graphs."""

    def compiled_replicas():
        replicas = replicas_of(threads, tensors, kernels)
        for replica in replicas:
            replica.step(**replica.batches[0])
        return replicas

    return train_until_one_fails(compiled_replicas, REPAIRED)


@scenario.repair(
    agrees(within_rounding=True),
    over=[{"threads": 3, "kernels": "torch"}],
    **COMPILED,
)
def one_lock_around_every_step(threads, kernels, **tensors):
    """Right, but no two devices are ever at work at once."""
    lock = threading.Lock()

    def step(replica, **batch):
        with lock:
            return replica.step(**batch)

    return train_until_one_fails(lambda: replicas_of(threads, tensors, kernels), REPAIRED, step)

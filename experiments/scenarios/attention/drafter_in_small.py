"""Threads that train a compiled drafter fail while one of them compiles its backward; checkpoint has no part in it.

This is the training step of the DFlash note, made small. Blocks of drafted positions attend to the context before
their anchor and to themselves, by a block mask drawn anew for each batch; attention and feed-forward layer are
compiled, by each device for itself; the head and its loss are checkpointed; one process has a thread per device. The
compiler makes a backward when it is first needed, and then it traces pieces of graph. While it does, any thread that
calls a compiled function is told that this function were being traced. Which thread gets there, if any, is chance.

Devices are simulated: threads on one CPU or one GPU, each with another number of blocks, because replicas of equal
shapes on one device would share what the first of them compiled. A thread that has seen its batches begins again with
them until all have, as in a training that takes hours. On the CPU ``flex_attention`` has no backward, so there the
attention runs without gradients, and the backward that is compiled is the feed-forward layer's.

``kernels="inductor"`` is ``torch.compile`` as it comes. With ``kernels="torch"`` attention is compiled by ``aot_eager``
and the feed-forward layer by Inductor, told to call torch's operators instead of generating its own: it compiles and
traces as it always does, in seconds instead of a minute.
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
        **{name: integers(-16, 17, *shape) / 32 for name, shape in WEIGHTS.items()},
    }


def visible(anchors):
    """Of context and draft, one after the other: a block sees the context before its anchor, and itself."""

    def mask(batch, head, query, key):
        block = query // BLOCK
        return (key < anchors[block]) | (key - CONTEXT >= block * BLOCK) & (key - CONTEXT < (block + 1) * BLOCK)

    return mask


def dense_attention(query, key, value, anchors):
    positions, keys = (torch.arange(tensor.shape[-2], device=anchors.device) for tensor in (query, key))
    mask = visible(anchors)(None, None, positions[:, None], keys)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


def block_sparse_attention(query, key, value, mask):
    return flex_attention(query, key, value, block_mask=mask, enable_gqa=True)


def feed_forward(hidden, gate, up, down):
    """The gradient of what is normed is a sum of two products. To fuse it, the compiler traces the fused form."""
    normed = rms_norm(hidden, hidden.shape[-1:])
    return hidden + (silu(normed @ gate) * (normed @ up)) @ down


def head_and_loss(hidden, head, targets):
    return cross_entropy(rms_norm(hidden, hidden.shape[-1:]) @ head, targets, reduction="sum").double()


def uncompiled():
    return dense_attention, feed_forward


def compiled(kernels):
    """Attention and feed-forward layer, compiled for one device."""
    of_attention, of_layer = {
        "torch": ({"backend": "aot_eager"}, {"options": {"fallback_by_default": True}}),
        "inductor": ({}, {}),
    }[kernels]
    compiled_attention = torch.compile(block_sparse_attention, dynamic=False, **of_attention)

    def attention(query, key, value, anchors):
        lengths = query.shape[-2], key.shape[-2]
        mask = create_block_mask(visible(anchors), None, None, *lengths, device=anchors.device)
        return compiled_attention(query, key, value, mask)

    return attention, torch.compile(feed_forward, dynamic=False, **of_layer)


class Replica:
    """The drafter on one device, and the batches that this device sees."""

    def __init__(self, device, tensors, functions, checkpointed="none"):
        blocks = (1 + device) * BLOCKS
        lengths = {"context": CONTEXT, "draft": blocks * BLOCK, "targets": blocks * BLOCK, "anchors": blocks}
        self.batches = [
            {name: tensors[name][device, batch, :length] for name, length in lengths.items()}
            for batch in range(BATCHES)
        ]
        self.weights = {name: tensors[name] for name in WEIGHTS}
        self.attention, self.feed_forward = functions
        self.checkpointed = checkpointed

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
        """The loss, and the gradients of the weights that get one."""
        weights = {name: weight.detach().clone().requires_grad_() for name, weight in self.weights.items()}
        with torch.set_grad_enabled(draft.is_cuda):
            attended = self.attend(context, draft, anchors, weights["project"])
        hidden = draft + attended @ weights["join"]
        hidden = self.feed_forward(hidden, weights["gate"], weights["up"], weights["down"])
        loss = self.loss(hidden, weights["head"], targets)
        loss.backward()
        return {"loss": loss.detach(), **{name: weight.grad for name, weight in weights.items()}}


def see_all_batches(replica, step=Replica.step):
    return [step(replica, **batch) for batch in replica.batches]


def train(replicas, step=Replica.step):
    """A thread for each replica, which goes on until all have seen their batches. Raises what a thread raised."""
    start = threading.Barrier(len(replicas))
    through = [threading.Event() for _ in replicas]

    def work(replica, itself):
        start.wait(60)
        try:
            seen = see_all_batches(replica, step)
            itself.set()
            deadline = time.monotonic() + 100
            while not all(one.is_set() for one in through) and time.monotonic() < deadline:
                see_all_batches(replica, step)
        finally:
            itself.set()
        return seen

    before = counters["stats"]["unique_graphs"]
    with ThreadPoolExecutor(len(replicas)) as threads:
        futures = [threads.submit(work, *both) for both in zip(replicas, through)]
    observe("graphs compiled by the threads", counters["stats"]["unique_graphs"] - before, measurement=True)
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    observe("threads that failed", len(errors), measurement=True)
    observe("errors", [f"{type(error).__name__}: {error}".splitlines()[0] for error in errors], measurement=True)
    return total([future.result() for future in futures])


def total(seen):
    """Loss and gradients summed over all batches of all devices, as they would be reduced."""
    steps = [step for one_device in seen for step in one_device]
    for name in WEIGHTS:
        if steps[0][name] is not None:
            observe(f"gradient of {name}", sum(step[name] for step in steps))
    return sum(step["loss"] for step in steps)


@scenario.reference(gradient=False, profiled=False)
def dense_and_uncompiled(threads, **tensors):
    return total([see_all_batches(Replica(device, tensors, uncompiled())) for device in range(threads)])


def replicas_of(threads, tensors, kernels, checkpointed="non-reentrant"):
    return [Replica(device, tensors, compiled(kernels), checkpointed) for device in range(threads)]


@scenario.control(
    agrees(within_rounding=True),
    why="there is no other thread",
    gradient=False,
    profiled=False,
    on=("cpu",),
    over=[{"threads": 1, "kernels": "torch", "checkpointed": "non-reentrant"}],
)
@scenario.broken(
    varies(),
    cause="another thread",
    gradient=False,
    profiled=False,
    on=("cpu",),
    over=[
        {"threads": 2, "kernels": "torch", "checkpointed": "non-reentrant"},
        {"threads": 3, "kernels": "torch", "checkpointed": "non-reentrant"},
        {"threads": 3, "kernels": "torch", "checkpointed": "reentrant"},
        {"threads": 3, "kernels": "torch", "checkpointed": "none"},
    ],
)
@scenario.broken(
    varies(),
    cause="another thread",
    gradient=False,
    profiled=False,
    needs=("inductor",),
    timeout=400,
    over=[{"threads": 3, "kernels": "inductor", "checkpointed": "non-reentrant"}],
)
@scenario.control(
    agrees(within_rounding=True),
    why="there is no other thread",
    gradient=False,
    profiled=False,
    on=("cuda",),
    needs=("inductor",),
    timeout=400,
    over=[{"threads": 1, "kernels": "inductor", "checkpointed": "non-reentrant"}],
)
@scenario.broken(
    varies(),
    cause="another thread",
    gradient=False,
    profiled=False,
    on=("cuda",),
    needs=("inductor",),
    timeout=400,
    over=[
        {"threads": 2, "kernels": "inductor", "checkpointed": "non-reentrant"},
        {"threads": 3, "kernels": "inductor", "checkpointed": "reentrant"},
        {"threads": 3, "kernels": "inductor", "checkpointed": "none"},
    ],
)
def all_threads_from_cold(threads, kernels, checkpointed, **tensors):
    return train(replicas_of(threads, tensors, kernels, checkpointed))


@scenario.broken(
    varies(),
    cause="another thread",
    gradient=False,
    profiled=False,
    over=[{"threads": 3, "kernels": "torch"}],
)
def one_lock_around_the_first_step(threads, kernels, **tensors):
    """The first thread through makes its second step without the lock, while another compiles."""
    lock, begun = threading.Lock(), set()

    def step(replica, **batch):
        with contextlib.nullcontext() if replica in begun else lock:
            begun.add(replica)
            return replica.step(**batch)

    return train(replicas_of(threads, tensors, kernels), step)


@scenario.repair(
    shows({"graphs compiled by the threads": 0}),
    agrees(within_rounding=True),
    gradient=False,
    profiled=False,
    on=("cpu",),
    over={"threads": (2, 3), "kernels": ("torch",)},
)
@scenario.repair(
    shows({"graphs compiled by the threads": 0}),
    agrees(within_rounding=True),
    gradient=False,
    profiled=False,
    needs=("inductor",),
    timeout=400,
    over={"threads": (3,), "kernels": ("inductor",)},
)
def compiled_before_the_threads_start(threads, kernels, **tensors):
    """Forward and backward of each replica, one after the other. The masks to come need no other graph."""
    replicas = replicas_of(threads, tensors, kernels)
    for replica in replicas:
        replica.step(**replica.batches[0])
    return train(replicas)


@scenario.repair(
    agrees(within_rounding=True),
    gradient=False,
    profiled=False,
    over=[{"threads": 3, "kernels": "torch"}],
)
def one_lock_around_every_step(threads, kernels, **tensors):
    """Right, but no two devices ever work at once."""
    lock = threading.Lock()

    def step(replica, **batch):
        with lock:
            return replica.step(**batch)

    return train(replicas_of(threads, tensors, kernels), step)

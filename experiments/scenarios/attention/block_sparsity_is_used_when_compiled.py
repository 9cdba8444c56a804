"""Compiled, ``flex_attention`` takes time in proportion to the blocks that its mask allows; uncompiled, it does not.

A block mask lists, for each block of queries, the blocks of keys that it attends to. The compiled kernel goes through
that list and nothing else, so that a sixteenth of the blocks takes about a sixteenth of the time. The dense fallback
does not read the list: it calculates and holds all scores at every density, and throws most of them away.
"""

import statistics
import time

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from experiments.scenario import Scenario, agrees, observe, peaks, shows

scenario = Scenario(source="reported in the DFlash compile-checkpoint note (claim B4)")

HEADS, QUERIES, KEYS, WIDTH, BLOCK = 4, 1024, 2048, 16, 128
SCORE_TENSOR = HEADS * QUERIES * KEYS * 4  # bytes
DENSITIES = (1.0, 0.5, 0.25, 0.125, 0.0625)  # the largest first

# flex_attention has no backward on the CPU. A first call compiles, also in the fallback, and takes memory for it.
CPU = {"on": ("cpu",), "gradient": False, "warm_up": True, "profiled": False}
CUDA = {"on": ("cuda",), "warm_up": True, "profiled": False}


@scenario.inputs
def inputs(seed):
    """Query (batch 1, heads 4, positions 1024, width 16); key and value (1, 4, 2048, 16)."""
    generator = torch.Generator().manual_seed(seed)
    positions = {"query": QUERIES, "key": KEYS, "value": KEYS}
    return {
        name: (torch.randint(-16, 17, (1, HEADS, count, WIDTH), generator=generator) / 16).requires_grad_()
        for name, count in positions.items()
    }


def allowed_blocks(density, device):
    """Which blocks of keys each block of queries attends to: every second one at a density of 0.5, and so on."""
    rows = torch.arange(QUERIES // BLOCK, device=device)
    columns = torch.arange(KEYS // BLOCK, device=device)
    return (columns - rows[:, None]) % round(1 / density) == 0


def block_mask(density, device):
    """All tensors of the mask have one shape at every density, so that it is compiled once."""
    allowed, size = allowed_blocks(density, device), BLOCK

    def in_allowed_block(_batch, _head, query, key):
        return allowed[query // size, key // size]

    counts = allowed.sum(-1, dtype=torch.int32)
    listed_first = allowed.int().argsort(dim=-1, descending=True, stable=True).int()
    return BlockMask.from_kv_blocks(
        counts[None, None], listed_first[None, None], BLOCK_SIZE=BLOCK, mask_mod=in_allowed_block
    )


def loss(attended, density):
    observe(f"attended at density {density}, every 8th query", attended[:, :, ::8])
    return attended.double().square().sum()


@scenario.reference(on=("cpu",), gradient=False, profiled=False)
@scenario.reference(on=("cuda",), profiled=False)
def masked_by_hand(query, key, value):
    total = 0.0
    for density in DENSITIES:
        allowed = allowed_blocks(density, query.device)
        mask = allowed.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        scores = (query @ key.mT / WIDTH**0.5).masked_fill(~mask, -torch.inf)
        total = total + loss(scores.softmax(-1) @ value, density)
    return total


def seconds(call):
    """Median over three calls of the time that this process spends on one: what others take is not counted."""
    spent = []
    for _ in range(3):
        started = time.process_time()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # which waits busily
        spent.append(time.process_time() - started)
    return statistics.median(spent)


def at_every_density(function, query, key, value):
    total, taken = 0.0, {}
    for density in DENSITIES:
        mask = block_mask(density, query.device)
        total = total + loss(function(query, key, value, block_mask=mask), density)
        with torch.no_grad():
            taken[density] = seconds(lambda mask=mask: function(query, key, value, block_mask=mask))
        observe(f"seconds at density {density}", taken[density], measurement=True)
    share = taken[DENSITIES[-1]] / taken[1.0]
    observe("time at density 0.0625, of that at density 1", share, measurement=True)
    observe("a sixteenth of the blocks takes at most half the time", share <= 0.5, measurement=True)
    return total


@scenario.repair(
    agrees(within_rounding=True),
    shows({"a sixteenth of the blocks takes at most half the time": True}),
    peaks("forward", at_most=16 * 2**20),
    needs=("inductor",),
    timeout=300,
    measured="at length",
    **CPU,
)
# So small a kernel takes a GPU no time at any density.
@scenario.repair(agrees(within_rounding=True), needs=("inductor",), timeout=300, measured="at length", **CUDA)
def compiled(query, key, value):
    return at_every_density(torch.compile(flex_attention), query, key, value)


@scenario.broken(
    agrees(within_rounding=True),
    shows({"a sixteenth of the blocks takes at most half the time": False}),
    cause="compiler",
    on=("cpu",),
    gradient=False,
    profiled=False,
    measured="at length",
)
@scenario.broken(agrees(within_rounding=True), cause="compiler", on=("cuda",), profiled=False)
def uncompiled(query, key, value):
    return at_every_density(flex_attention, query, key, value)


@scenario.broken(
    # Three and a quarter score tensors at every density, and what the allocator's gaps take.
    peaks("forward", at_least=3 * SCORE_TENSOR, at_most=4 * SCORE_TENSOR),
    cause="compiler",
    over={"density": DENSITIES},
    **CPU,
)
@scenario.broken(peaks("forward", at_least=3 * SCORE_TENSOR), cause="compiler", over={"density": DENSITIES}, **CUDA)
def uncompiled_memory(query, key, value, density):
    observe("score tensor, bytes", SCORE_TENSOR)
    return loss(flex_attention(query, key, value, block_mask=block_mask(density, query.device)), density)

"""At the size of a real training run the dense fallback of ``flex_attention`` asks for 320 GiB at once.

Query (1, 32, 32768, 128) against keys (1, 8, 81920, 128), four query heads to a key head: uncompiled, the scores are
one tensor of 32 x 32768 x 81920 float32 numbers, and no machine with less memory than that can begin. The report gave
298 GB for the allocation that failed and 328 GB for the product. The product is 343.6 GB, which is 320 GiB; 298 GiB
is what 76,288 keys need. The same call, compiled and with a mask that leaves most blocks out, needs its output.

All positions are alike here, one repeated by a view. So the inputs are small, and the result is known: the value.
"""

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from experiments.scenario import Scenario, agrees, observe, peaks, raises, refuses, shows

scenario = Scenario(source="reported in the DFlash compile-checkpoint note (claims B2, B14)", suites=("quick",))

HEADS, KEY_HEADS, QUERIES, WIDTH = 32, 8, 32768, 128
BLOCK = 128

CPU = {"on": ("cpu",), "gradient": False, "profiled": False}
CUDA = {"on": ("cuda",), "profiled": False}


@scenario.inputs
def inputs(seed):
    """One position of query (batch 1, heads 32, positions 1, width 128), of key and value (1, 8, 1, 128)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-16, 17, (1, heads, 1, WIDTH), generator=generator) / 16).requires_grad_()
        for name, heads in (("query", HEADS), ("key", KEY_HEADS), ("value", KEY_HEADS))
    }


def loss(attended):
    observe("attended, every 4096th query", attended)
    return attended.double().square().sum()


@scenario.reference(**CPU)
@scenario.reference(**CUDA)
def value_itself(query, key, value):
    """The mean of equal values, whatever their weights."""
    return loss(value.repeat_interleave(HEADS // KEY_HEADS, 1).expand(1, HEADS, QUERIES // 4096, WIDTH))


def own_block(keys, device):
    """Every query attends to the 32 drafted positions of its own block; what is drafted comes after the context."""
    drafted, context = 32, keys - QUERIES

    def same_draft(_batch, _head, query, key):
        return (key - context) // drafted == query // drafted

    rows, columns = QUERIES // BLOCK, keys // BLOCK
    counts = torch.ones(1, 1, rows, dtype=torch.int32, device=device)
    indices = torch.zeros(1, 1, rows, columns, dtype=torch.int32, device=device)
    indices[..., 0] = torch.arange(rows, device=device) + context // BLOCK
    return BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=BLOCK, mask_mod=same_draft)


def attend(function, query, key, value, keys):
    attended = function(
        query.expand(1, HEADS, QUERIES, WIDTH),
        key.expand(1, KEY_HEADS, keys, WIDTH),
        value.expand(1, KEY_HEADS, keys, WIDTH),
        block_mask=own_block(keys, query.device),
        enable_gqa=True,
    )
    return loss(attended[:, :, ::4096])


@scenario.broken(refuses(bytes=343_597_383_680), cause="compiler", over={"keys": (81920,)}, **CPU)
@scenario.broken(refuses(bytes=319_975_063_552), cause="compiler", over={"keys": (76288,)}, **CPU)
@scenario.broken(
    raises("torch.OutOfMemoryError", "Tried to allocate 320.00 GiB"), cause="compiler", over={"keys": (81920,)}, **CUDA
)
@scenario.broken(
    raises("torch.OutOfMemoryError", "Tried to allocate 298.00 GiB"), cause="compiler", over={"keys": (76288,)}, **CUDA
)
def uncompiled(query, key, value, keys):
    return attend(flex_attention, query, key, value, keys)


@scenario.repair(
    # The output is 512 MiB. The rest is what compiling takes.
    peaks("forward", at_most=2**30),
    agrees(within_rounding=True),
    needs=("inductor",),
    over={"keys": (81920,)},
    timeout=300,
    measured="at length",
    **CPU,
)
@scenario.repair(
    peaks("forward", at_most=4 * 2**30),
    agrees(within_rounding=True),
    needs=("inductor",),
    over={"keys": (81920,)},
    timeout=300,
    measured="at length",
    **CUDA,
)
def compiled(query, key, value, keys):
    return attend(torch.compile(flex_attention), query, key, value, keys)


@scenario.control(
    shows(
        {
            "one score tensor, bytes": 343_597_383_680,
            "one score tensor, GiB": 320,
            "one score tensor, GB": 343.6,
            "keys whose scores take 298 GiB": 76288,
            "keys whose scores take 298 GB": 71048.7,
            "keys whose scores take 328 GB": 78201.3,
            "most keys whose scores fit 95 GB": 22649,
            "three and a quarter score tensors, GiB": 1040,
        }
    ),
    why="only counts bytes",
    on=("cpu",),
    gradient=False,
    profiled=False,
)
def counted(query, key, value):
    """What 32 heads x 32,768 queries take for each key, against the figures of the report."""
    for_each_key = HEADS * QUERIES * 4
    needed = for_each_key * 81920
    observe("one score tensor, bytes", needed)
    observe("one score tensor, GiB", needed // 2**30)
    observe("one score tensor, GB", round(needed / 1e9, 1))
    observe("keys whose scores take 298 GiB", 298 * 2**30 // for_each_key)
    observe("keys whose scores take 298 GB", round(298e9 / for_each_key, 1))
    observe("keys whose scores take 328 GB", round(328e9 / for_each_key, 1))
    observe("most keys whose scores fit 95 GB", 95 * 10**9 // for_each_key)
    observe("three and a quarter score tensors, GiB", needed * 13 // 4 // 2**30)

"""The dense fallback of ``flex_attention`` applies the mask function, and reads nothing else of a block mask.

It was reported to ignore the block mask. It does not: every score that the mask function forbids becomes -inf, and the
values are those of a dense masked calculation, under any kind of mask. What it leaves unread are the lists of blocks,
which are there to skip work. So it calculates and holds all scores, however few are allowed; and a block mask made of
lists alone, without a mask function, leaves out nothing, where the compiled kernel leaves out what is not listed.
"""

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from experiments.scenario import Scenario, agrees, differs, observe, peaks

scenario = Scenario(source="reported in the DFlash compile-checkpoint note (claim B3)")

HEADS, QUERIES, KEYS, WIDTH, BLOCK = 4, 1024, 2048, 16, 128
CONTEXT = KEYS - QUERIES
SCORE_TENSOR = HEADS * QUERIES * KEYS * 4  # bytes

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


def causal(context):
    """Queries are the last positions of the keys; each attends to what is not after it."""
    return lambda _batch, _head, query, key: key <= query + context


def sliding_window(context, width):
    def recent(_batch, _head, query, key):
        return (key <= query + context) & (key > query + context - width)

    return recent


def documents(context, document):
    """Each position attends to its own document, causally. `document` has a number for every key."""

    def same(_batch, _head, query, key):
        return (document[key] == document[query + context]) & (key <= query + context)

    return same


def anchored(context, anchor, size):
    """Drafts of `size` positions, one after the other, follow the context. Each was drafted after its anchor, and
    attends to the context up to there and to itself, in both directions.
    """

    def drafted(_batch, _head, query, key):
        return (key < anchor[query // size]) | ((key - context) // size == query // size)

    return drafted


def masks(device):
    """Mask functions by name. The anchors are drawn anew for each batch, as they are in training."""
    generator = torch.Generator().manual_seed(0)
    document = torch.randint(0, 40, (KEYS,), generator=generator).sort().values.to(device)
    named = {
        "causal": causal(CONTEXT),
        "sliding window": sliding_window(CONTEXT, 200),
        "documents": documents(CONTEXT, document),
    }
    for batch in (1, 2, 3):
        anchor = torch.randint(1, CONTEXT + 1, (QUERIES // 32,), generator=generator).sort().values.to(device)
        named[f"anchors of batch {batch}"] = anchored(CONTEXT, anchor, 32)
    return named


def under_each_mask(attend, query, key, value):
    observe("score tensor, bytes", SCORE_TENSOR)
    total = 0.0
    for name, allowed in masks(query.device).items():
        attended = attend(query, key, value, allowed)
        observe(f"attended under {name}, every 8th query", attended[:, :, ::8])
        total = total + attended.double().square().mean()
    return total


def dense_masked(query, key, value, allowed):
    positions = [torch.arange(count, device=query.device) for count in (QUERIES, KEYS)]
    mask = allowed(None, None, positions[0][:, None], positions[1])
    scores = query @ key.mT / WIDTH**0.5
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value


@scenario.reference(on=("cpu",), gradient=False, profiled=False)
@scenario.reference(on=("cuda",), profiled=False)
def masked_by_hand(query, key, value):
    return under_each_mask(dense_masked, query, key, value)


def with_block_mask(function):
    def attend(query, key, value, allowed):
        block_mask = create_block_mask(allowed, None, None, QUERIES, KEYS, device=query.device, BLOCK_SIZE=BLOCK)
        return function(query, key, value, block_mask=block_mask)

    return attend


@scenario.control(
    agrees(within_rounding=True),
    # Not less than without a mask.
    peaks("forward", at_least=13 * SCORE_TENSOR // 4),
    why="the fallback applies the mask function to its dense scores",
    measured="at length",
    **CPU,
)
@scenario.control(
    agrees(within_rounding=True),
    peaks("forward", at_least=13 * SCORE_TENSOR // 4),
    why="the fallback applies the mask function to its dense scores",
    measured="at length",
    **CUDA,
)
def uncompiled(query, key, value):
    return under_each_mask(with_block_mask(flex_attention), query, key, value)


@scenario.control(
    agrees(within_rounding=True),
    why="the compiled kernel applies the mask function within the blocks that are listed",
    needs=("inductor",),
    timeout=300,
    on=("cpu",),
    gradient=False,
    profiled=False,
)
@scenario.control(
    agrees(within_rounding=True),
    why="the compiled kernel applies the mask function within the blocks that are listed",
    needs=("inductor",),
    timeout=300,
    on=("cuda",),
    profiled=False,
)
def compiled(query, key, value):
    return under_each_mask(with_block_mask(torch.compile(flex_attention)), query, key, value)


@scenario.control(
    differs(by_at_least=0.5),
    peaks("forward", at_least=3 * SCORE_TENSOR, at_most=4 * SCORE_TENSOR),
    why="no mask is given: so it would look if the fallback ignored the mask",
    **CPU,
)
@scenario.control(
    differs(by_at_least=0.5),
    peaks("forward", at_least=3 * SCORE_TENSOR, at_most=4 * SCORE_TENSOR),
    why="no mask is given: so it would look if the fallback ignored the mask",
    **CUDA,
)
def without_the_mask(query, key, value):
    return under_each_mask(lambda query, key, value, _: flex_attention(query, key, value), query, key, value)


# A block mask of lists alone.


def listed(device):
    """For each block of queries one block of keys, its number in the list; and the same as a mask function."""
    rows, columns = QUERIES // BLOCK, KEYS // BLOCK
    chosen = (torch.arange(rows, device=device) * 5 + 3) % columns
    indices = torch.zeros(1, 1, rows, columns, dtype=torch.int32, device=device)
    indices[..., 0] = chosen
    counts = torch.ones(1, 1, rows, dtype=torch.int32, device=device)
    size = BLOCK

    def allowed(_batch, _head, query, key):
        return key // size == chosen[query // size]

    return counts, indices, allowed


def loss(attended):
    observe("attended, every 8th query", attended[:, :, ::8])
    return attended.double().square().mean()


@scenario.reference(on=("cpu",), gradient=False, profiled=False)
@scenario.reference(on=("cuda",), profiled=False)
def listed_blocks_by_hand(query, key, value):
    return loss(dense_masked(query, key, value, listed(query.device)[2]))


LISTED = {"reference": "listed_blocks_by_hand", "profiled": False}


@scenario.broken(differs(by_at_least=0.1), cause="compiler", on=("cpu",), gradient=False, **LISTED)
@scenario.broken(differs(by_at_least=0.1), cause="compiler", on=("cuda",), **LISTED)
def lists_without_a_mask_function(query, key, value):
    counts, indices, _ = listed(query.device)
    block_mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=BLOCK)
    return loss(flex_attention(query, key, value, block_mask=block_mask))


@scenario.repair(agrees(within_rounding=True), on=("cpu",), gradient=False, **LISTED)
@scenario.repair(agrees(within_rounding=True), on=("cuda",), **LISTED)
def lists_with_a_mask_function(query, key, value):
    counts, indices, allowed = listed(query.device)
    block_mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=BLOCK, mask_mod=allowed)
    return loss(flex_attention(query, key, value, block_mask=block_mask))


@scenario.repair(agrees(within_rounding=True), needs=("inductor",), timeout=300, on=("cpu",), gradient=False, **LISTED)
@scenario.repair(agrees(within_rounding=True), needs=("inductor",), timeout=300, on=("cuda",), **LISTED)
def lists_without_a_mask_function_compiled(query, key, value):
    counts, indices, _ = listed(query.device)
    block_mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=BLOCK)
    return loss(torch.compile(flex_attention)(query, key, value, block_mask=block_mask))

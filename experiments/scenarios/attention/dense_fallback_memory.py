"""Without ``torch.compile``, ``flex_attention`` holds all scores at once, three and a quarter times over.

What runs then is a dense fallback: it calculates the score of every query with every key, the scaled scores, their
softmax and a mask of what is -inf, and at its peak holds three such tensors and a quarter. That grows with the square
of the length. The compiled kernel goes through the keys block by block and holds little more than its output; on the
CPU only if a block mask says how large a block is, since without one all keys are a single block. Whatever switches
the compiler off brings the fallback back, or leaves ``flex_attention`` unable to run.
"""

import torch
from torch._dynamo import config
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from experiments.scenario import Scenario, agrees, observe, peaks, raises

scenario = Scenario(source="reported in the DFlash compile-checkpoint note (claims B1, B7)")

HEADS, WIDTH, BLOCK = 4, 16, 128
KEYS = (2048, 3072, 4096, 6144, 8192)

# flex_attention has no backward on the CPU. A first call compiles, also in the fallback, and takes memory for it.
CPU = {"on": ("cpu",), "gradient": False, "warm_up": True, "profiled": False}
CUDA = {"on": ("cuda",), "warm_up": True, "profiled": False}


@scenario.inputs
def inputs(seed, keys):
    """Query (batch 1, heads 4, positions keys / 2, width 16); key and value (1, 4, keys, 16)."""
    generator = torch.Generator().manual_seed(seed)
    positions = {"query": keys // 2, "key": keys, "value": keys}
    return {
        name: (torch.randint(-16, 17, (1, HEADS, count, WIDTH), generator=generator) / 16).requires_grad_()
        for name, count in positions.items()
    }


def score_tensor(keys):
    """Bytes of the scores of all queries with all keys in float32, in which the fallback calculates."""
    return HEADS * (keys // 2) * keys * 4


def loss(attended, keys):
    observe("score tensor, bytes", score_tensor(keys))
    observe("attended, 64 of the queries", attended[:, :, :: attended.shape[2] // 64])
    return attended.double().square().sum()


@scenario.reference(on=("cpu",), gradient=False, profiled=False)
@scenario.reference(on=("cuda",), profiled=False)
def scaled_dot_product(query, key, value, keys):
    return loss(scaled_dot_product_attention(query, key, value), keys)


def dense(keys):
    """What the fallback shows: three and a quarter score tensors, up to another half in the allocator's gaps, and
    the right values.
    """
    size = score_tensor(keys)
    return peaks("forward", at_least=3 * size, at_most=15 * size // 4), agrees(within_rounding=True)


@scenario.broken(*dense(2048), cause="compiler", over={"keys": (2048,)}, **CPU)
@scenario.broken(*dense(3072), cause="compiler", over={"keys": (3072,)}, **CPU)
# The profiled pass shows the largest single allocation: one score tensor.
@scenario.broken(*dense(4096), cause="compiler", over={"keys": (4096,)}, **{**CPU, "profiled": True})
@scenario.broken(*dense(6144), cause="compiler", over={"keys": (6144,)}, **CPU)
@scenario.broken(*dense(8192), cause="compiler", over={"keys": (8192,)}, **CPU)
@scenario.broken(*dense(8192), cause="compiler", over={"keys": (8192,)}, **CUDA)
@scenario.broken(*dense(16384), cause="compiler", over={"keys": (16384,)}, **CUDA)
def uncompiled(query, key, value, keys):
    return loss(flex_attention(query, key, value), keys)


@scenario.broken(*dense(4096), cause="compiler", over={"keys": (4096,)}, **CPU)
def compiled_but_forced_to_run_eagerly(query, key, value, keys):
    with torch.compiler.set_stance("force_eager"):
        return loss(torch.compile(flex_attention)(query, key, value), keys)


@scenario.broken(*dense(4096), cause="compiler", over={"keys": (4096,)}, **CPU)
def called_where_the_compiler_is_disabled(query, key, value, keys):
    """A function around it is compiled, but leaves ``flex_attention`` out."""
    attend = torch.compiler.disable(flex_attention)
    around = torch.compile(lambda *tensors: attend(*tensors) * 1.0, backend="aot_eager")
    return loss(around(query, key, value), keys)


@scenario.broken(
    raises(RuntimeError, "found no compiled frames"),
    cause="compiler",
    over={"keys": (2048,)},
    on=("cpu",),
    gradient=False,
    profiled=False,
)
def dynamo_switched_off(query, key, value, keys):
    """The fallback compiles itself with a back end that does nothing, and insists on it."""
    with config.patch(disable=True):
        return loss(flex_attention(query, key, value), keys)


@scenario.broken(
    peaks("forward", at_least=score_tensor(8192) // HEADS),
    cause="compiler",
    needs=("inductor",),
    over={"keys": (8192,)},
    timeout=300,
    measured="at length",
    **CPU,
)
def compiled_without_a_block_mask(query, key, value, keys):
    """On the CPU: the scores of one head at a time, so a quarter of a score tensor here, and still the square."""
    return loss(torch.compile(flex_attention)(query, key, value), keys)


def every_block(query, key):
    """A block mask that leaves nothing out."""
    rows, columns = query.shape[-2] // BLOCK, key.shape[-2] // BLOCK
    counts = torch.full((1, 1, rows), columns, dtype=torch.int32, device=query.device)
    indices = torch.arange(columns, dtype=torch.int32, device=query.device).repeat(1, 1, rows, 1)
    return BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=BLOCK)


@scenario.repair(
    peaks("forward", at_most=16 * 2**20),
    agrees(within_rounding=True),
    needs=("inductor",),
    over={"keys": KEYS},
    timeout=300,
    measured="at length",
    **CPU,
)
@scenario.repair(
    # Little more than the output.
    peaks("forward", at_most=64 * 2**20),
    agrees(within_rounding=True),
    needs=("inductor",),
    over={"keys": (8192, 16384)},
    timeout=300,
    measured="at length",
    **CUDA,
)
def compiled(query, key, value, keys):
    attended = torch.compile(flex_attention)(query, key, value, block_mask=every_block(query, key))
    return loss(attended, keys)

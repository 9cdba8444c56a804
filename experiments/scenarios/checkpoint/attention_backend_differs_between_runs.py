"""The forward pass takes one attention backend and the recomputation another.

Every ordered pair of backends, each given to its own run through ``context_fn``. Backends save different
tensors for their backward, so whichever comes second, non-reentrant checkpoint finds other metadata. The
CPU has kernels for MATH and FLASH only; pairs with the others need CUDA.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import CheckpointError, checkpoint

from experiments.scenario import Scenario, agrees, observe, raises

scenario = Scenario(source="beside claim A1 of the checkpoint attention note", rounding=True)

CPU = ("MATH", "FLASH_ATTENTION")
CUDA = (*CPU, "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")


def pairs(backends):
    return [{"first": a, "second": b} for a in backends for b in backends if a != b]


CUDA_PAIRS = [pair for pair in pairs(CUDA) if pair not in pairs(CPU)]


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 16, width 64)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-16, 17, (1, 2, 16, 64), generator=generator) / 16).requires_grad_()
        for name in ("query", "key", "value")
    }


def attend(query, key, value):
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def loss(attended):
    observe("attended", attended)
    return attended.float().square().sum()


@scenario.reference
def not_checkpointed(query, key, value, first):
    with sdpa_kernel(getattr(SDPBackend, first)):
        return loss(attend(query, key, value))


# On CUDA, FLASH and CUDNN take half precision only.
@scenario.broken(raises(CheckpointError, "different metadata"), cause="ambient state", on=("cpu",), over=pairs(CPU))
@scenario.broken(raises(CheckpointError), cause="ambient state", on=("cuda",), dtypes=("float16",), over=pairs(CUDA))
@scenario.broken(
    raises(CheckpointError), cause="ambient state", on=("cpu",), needs=("cuda",), dtypes=("float16",), over=CUDA_PAIRS
)
def another_backend_at_recomputation(query, key, value, first, second):
    def both_runs():
        return sdpa_kernel(getattr(SDPBackend, first)), sdpa_kernel(getattr(SDPBackend, second))

    return loss(checkpoint(attend, query, key, value, use_reentrant=False, context_fn=both_runs))


@scenario.repair(agrees(bitwise=True), on=("cpu",), over={"first": CPU})
@scenario.repair(agrees(bitwise=True), on=("cuda",), dtypes=("float16",), over={"first": CUDA})
def the_same_backend_in_both_runs(query, key, value, first):
    def both_runs():
        return sdpa_kernel(getattr(SDPBackend, first)), sdpa_kernel(getattr(SDPBackend, first))

    return loss(checkpoint(attend, query, key, value, use_reentrant=False, context_fn=both_runs))

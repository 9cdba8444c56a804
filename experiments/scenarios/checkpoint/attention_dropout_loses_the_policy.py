"""Attention with dropout under a policy chosen around ``checkpoint``.

``checkpoint`` keeps the random state of its first run, so the recomputation drops the same weights, if the
same backend runs. On the CPU only MATH has dropout; on CUDA the recomputation takes another backend.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import CheckpointError, checkpoint

from experiments.scenario import Scenario, agrees, observe, raises, recomputes_without

scenario = Scenario(source="beside claim A1 of the checkpoint attention note", rounding=True)


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 8, width 4)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-16, 17, (1, 2, 8, 4), generator=generator) / 16).requires_grad_()
        for name in ("query", "key", "value")
    }


def attend(query, key, value):
    return scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=0.25)


def loss(attended):
    observe("attended", attended)
    return attended.square().sum()


@scenario.reference
def not_checkpointed(query, key, value):
    torch.manual_seed(1729)
    with sdpa_kernel(SDPBackend.MATH):
        return loss(attend(query, key, value))


@scenario.control(
    agrees(bitwise=True),
    on=("cpu",),
    why="on the CPU only MATH has dropout, so both runs take it whatever the policy says",
)
@scenario.broken(
    raises(CheckpointError),
    recomputes_without("aten::_scaled_dot_product_attention_math"),
    cause="ambient state",
    on=("cuda",),
)
def chosen_around_the_forward(query, key, value):
    torch.manual_seed(1729)
    with sdpa_kernel(SDPBackend.MATH):
        attended = checkpoint(attend, query, key, value, use_reentrant=False)
    return loss(attended)


@scenario.repair(agrees(bitwise=True))
def chosen_for_both_runs(query, key, value):
    def both_runs():
        return sdpa_kernel(SDPBackend.MATH), sdpa_kernel(SDPBackend.MATH)

    torch.manual_seed(1729)
    return loss(checkpoint(attend, query, key, value, use_reentrant=False, context_fn=both_runs))

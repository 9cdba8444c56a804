"""Grouped-query attention loses a policy chosen around ``checkpoint``.

With ``enable_gqa=True`` MATH repeats each key and value head for its query heads and saves the repeated
tensors; a fused backend saves them as they came. The mismatch is the same as with plain heads.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import CheckpointError, checkpoint

from experiments.scenario import Scenario, agrees, observe, raises, recomputes_without

scenario = Scenario(source="beside claim A1 of the checkpoint attention note", rounding=True)


@scenario.inputs
def inputs(seed):
    """Query (batch 1, heads 4, positions 8, width 4); key and value with 2 heads, each shared by two."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-16, 17, (1, heads, 8, 4), generator=generator) / 16).requires_grad_()
        for name, heads in (("query", 4), ("key", 2), ("value", 2))
    }


def attend(query, key, value):
    return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def loss(attended):
    observe("attended", attended)
    return attended.square().sum()


@scenario.reference
def not_checkpointed(query, key, value):
    with sdpa_kernel(SDPBackend.MATH):
        return loss(attend(query, key, value))


@scenario.broken(
    raises(CheckpointError, "different metadata"),
    recomputes_without("aten::_scaled_dot_product_attention_math"),
    cause="ambient state",
)
def chosen_around_the_forward(query, key, value):
    with sdpa_kernel(SDPBackend.MATH):
        attended = checkpoint(attend, query, key, value, use_reentrant=False)
    return loss(attended)


@scenario.repair(agrees(bitwise=True))
def chosen_for_both_runs(query, key, value):
    def both_runs():
        return sdpa_kernel(SDPBackend.MATH), sdpa_kernel(SDPBackend.MATH)

    return loss(checkpoint(attend, query, key, value, use_reentrant=False, context_fn=both_runs))

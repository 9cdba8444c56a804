"""Attention with a boolean mask loses a policy chosen around ``checkpoint``.

A mask rules out some backends on some devices, but on the CPU both MATH and FLASH take one. MATH turns it
into a tensor of zeros and minus infinities and saves other tensors than FLASH does.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import CheckpointError, checkpoint

from experiments.scenario import Scenario, agrees, observe, raises, recomputes_without

scenario = Scenario(source="beside claim A1 of the checkpoint attention note", rounding=True)


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 8, width 4); a mask (positions, positions)
    that is True where a query position may look: at itself and at four positions before it."""
    generator = torch.Generator().manual_seed(seed)
    distance = torch.arange(8)[:, None] - torch.arange(8)[None, :]
    return {
        **{
            name: (torch.randint(-16, 17, (1, 2, 8, 4), generator=generator) / 16).requires_grad_()
            for name in ("query", "key", "value")
        },
        "mask": (distance >= 0) & (distance <= 4),
    }


def attend(query, key, value, mask):
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)


def loss(attended):
    observe("attended", attended)
    return attended.square().sum()


@scenario.reference
def not_checkpointed(query, key, value, mask):
    with sdpa_kernel(SDPBackend.MATH):
        return loss(attend(query, key, value, mask))


@scenario.broken(
    raises(CheckpointError, "different metadata"),
    recomputes_without("aten::_scaled_dot_product_attention_math"),
    cause="ambient state",
)
def chosen_around_the_forward(query, key, value, mask):
    with sdpa_kernel(SDPBackend.MATH):
        attended = checkpoint(attend, query, key, value, mask, use_reentrant=False)
    return loss(attended)


@scenario.repair(agrees(bitwise=True))
def chosen_for_both_runs(query, key, value, mask):
    def both_runs():
        return sdpa_kernel(SDPBackend.MATH), sdpa_kernel(SDPBackend.MATH)

    return loss(checkpoint(attend, query, key, value, mask, use_reentrant=False, context_fn=both_runs))

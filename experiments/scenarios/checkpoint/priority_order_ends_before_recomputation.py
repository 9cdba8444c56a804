"""An order of attention backends chosen around ``checkpoint`` has ended when it recomputes.

``sdpa_kernel([...], set_priority=True)`` says which backend to try first. The order belongs to the block,
like the choice of backends itself, so the recomputation takes the default order again. On the CPU the order
is fixed (FLASH before MATH whatever is asked), so both runs take the same backend and nothing can break.
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


def math_first():
    return sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION], set_priority=True)


def attend(query, key, value):
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def loss(attended):
    observe("attended", attended)
    return attended.square().sum()


@scenario.reference
def not_checkpointed(query, key, value):
    with math_first():
        return loss(attend(query, key, value))


@scenario.control(
    agrees(bitwise=True),
    on=("cpu",),
    why="the CPU tries FLASH before MATH whatever the order says, so both runs take FLASH",
)
@scenario.broken(
    raises(CheckpointError),
    recomputes_without("aten::_scaled_dot_product_attention_math"),
    cause="ambient state",
    on=("cuda",),
)
def ordered_around_the_forward(query, key, value):
    with math_first():
        attended = checkpoint(attend, query, key, value, use_reentrant=False)
    return loss(attended)


@scenario.repair(agrees(bitwise=True))
def ordered_for_both_runs(query, key, value):
    def both_runs():
        return math_first(), math_first()

    return loss(checkpoint(attend, query, key, value, use_reentrant=False, context_fn=both_runs))

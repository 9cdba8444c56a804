"""An attention backend switched off for the forward pass is back on when ``checkpoint`` recomputes.

``torch.backends.cuda.enable_*_sdp`` are switches of the whole process and speak for the CPU as well.
``checkpoint`` keeps random state and autocast for its second run, but not these switches: whatever they
say when ``backward()`` comes is what the recomputation gets.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import CheckpointError, checkpoint

from experiments.scenario import Scenario, agrees, observe, raises, recomputes_without, state_differs

scenario = Scenario(source="beside claim A1 of the checkpoint attention note", rounding=True)


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 8, width 4)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-16, 17, (1, 2, 8, 4), generator=generator) / 16).requires_grad_()
        for name in ("query", "key", "value")
    }


def only_math(chosen):
    """Leave MATH as the only backend, or switch all of them on again."""
    torch.backends.cuda.enable_flash_sdp(not chosen)
    torch.backends.cuda.enable_mem_efficient_sdp(not chosen)
    torch.backends.cuda.enable_cudnn_sdp(not chosen)


def attend(query, key, value):
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def loss(attended):
    observe("attended", attended)
    return attended.square().sum()


@scenario.reference
def not_checkpointed(query, key, value):
    only_math(True)
    return loss(attend(query, key, value))


@scenario.broken(
    raises(CheckpointError, "different metadata"),
    recomputes_without("aten::_scaled_dot_product_attention_math"),
    cause="ambient state",
)
def switched_on_again_before_backward(query, key, value):
    only_math(True)
    attended = checkpoint(attend, query, key, value, use_reentrant=False)
    only_math(False)
    return loss(attended)


@scenario.repair(agrees(bitwise=True))
def switched_on_again_after_backward(query, key, value):
    only_math(True)
    yield loss(checkpoint(attend, query, key, value, use_reentrant=False))
    only_math(False)


@scenario.repair(agrees(bitwise=True))
def switched_inside_the_function(query, key, value):
    def attend_with_math(*tensors):
        only_math(True)
        attended = attend(*tensors)
        only_math(False)
        return attended

    return loss(checkpoint(attend_with_math, query, key, value, use_reentrant=False, early_stop=False))


@scenario.broken(state_differs("sdpa.flash"), cause="early stop")
def switched_inside_and_stopped_early(query, key, value):
    """Recomputation stops at the last saved tensor, so the line that switches back never runs again."""

    def attend_with_math(*tensors):
        only_math(True)
        attended = attend(*tensors)
        only_math(False)
        return attended

    return loss(checkpoint(attend_with_math, query, key, value, use_reentrant=False))

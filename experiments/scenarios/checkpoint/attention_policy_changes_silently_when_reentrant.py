"""Reentrant ``checkpoint`` recomputes under another attention policy and says nothing.

The reentrant kind keeps no tensors of its first run to compare with: in ``backward()`` it runs the function
again with gradients on and differentiates that. So the output comes from MATH and the gradients from
another backend. Nothing is corrupted (both backends calculate the same thing, each with its own rounding),
but the policy that was asked for held for the output only.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, observe, recomputes_without

scenario = Scenario(source="beside claim A10 of the checkpoint attention note")

DTYPES = ("float32", "bfloat16", "float16")
SIZES = ("small", "large")
SHAPES = {"small": (1, 2, 8, 4), "large": (1, 2, 128, 32)}


@scenario.inputs
def inputs(seed, size):
    """Query, key and value, each (batch, heads, positions, width): (1, 2, 8, 4) or (1, 2, 128, 32)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-48, 49, SHAPES[size], generator=generator) / 16).requires_grad_()
        for name in ("query", "key", "value")
    }


def attend(query, key, value):
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def loss(attended):
    observe("attended", attended)
    return attended.double().square().sum()


@scenario.reference
def not_checkpointed(query, key, value):
    with sdpa_kernel(SDPBackend.MATH):
        return loss(attend(query, key, value))


@scenario.broken(
    agrees(within_rounding=True),
    recomputes_without("aten::_scaled_dot_product_attention_math"),
    cause="ambient state",
    dtypes=DTYPES,
    over={"size": SIZES},
)
def chosen_around_the_forward(query, key, value):
    with sdpa_kernel(SDPBackend.MATH):
        attended = checkpoint(attend, query, key, value, use_reentrant=True)
    return loss(attended)


@scenario.repair(agrees(bitwise=True), dtypes=DTYPES, over={"size": SIZES})
def chosen_inside_the_function(query, key, value):
    def attend_with_math(*tensors):
        with sdpa_kernel(SDPBackend.MATH):
            return attend(*tensors)

    return loss(checkpoint(attend_with_math, query, key, value, use_reentrant=True))

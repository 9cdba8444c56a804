"""Two attention backends give the same result, each with its own rounding.

MATH and the default policy calculate the same attention in another order. Each is compared with the same
calculation in float64: what they differ by is what each of them errs by. This is the measure for calling a
change of policy a matter of rounding.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from experiments.scenario import Scenario, agrees, observe

scenario = Scenario(source="beside claim A10 of the checkpoint attention note")

SHAPES = {"small": (1, 2, 8, 4), "large": (1, 2, 128, 32)}


@scenario.inputs
def inputs(seed, size):
    """Query, key and value, each (batch, heads, positions, width): (1, 2, 8, 4) or (1, 2, 128, 32)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randint(-48, 49, SHAPES[size], generator=generator) / 16).requires_grad_()
        for name in ("query", "key", "value")
    }


def loss(query, key, value):
    attended = scaled_dot_product_attention(query, key, value, is_causal=True)
    observe("attended", attended)
    return attended.double().square().sum()


@scenario.reference
def with_math(query, key, value):
    with sdpa_kernel(SDPBackend.MATH):
        return loss(query, key, value)


@scenario.control(
    agrees(within_rounding=True),
    dtypes=("float32", "bfloat16", "float16"),
    over={"size": ("small", "large")},
    why="no checkpoint, so nothing is calculated twice",
)
def by_default(query, key, value):
    return loss(query, key, value)

"""An attention policy chosen around ``checkpoint`` has ended when it recomputes.

``checkpoint`` runs the function twice: now, and again inside ``backward()``. A ``with sdpa_kernel(...)``
block around the call has ended by the second time, so the recomputation picks another attention backend,
which saves other tensors, and non-reentrant checkpoint refuses them.

This is the calculation of the checkpoint attention note, on the inputs that it reported: standard normal
draws with seed 1729, kept here as bytes because ``torch.randn`` draws others under another CPU capability.
"""

import base64
import ctypes
import hashlib
import inspect

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import CheckpointError, checkpoint

from experiments.scenario import Scenario, agrees, observe, raises, recomputes_without

scenario = Scenario(
    source="reported in the checkpoint attention note (claims A1 to A13)",
    replays=3,
    suites=("quick",),
    rounding=True,
)

# Little-endian float32, each (batch 1, heads 2, positions 8, width 4).
DRAWN = {
    "query": (
        "Ba06PjWreT8buzu/jWOmvvxnS79O2l8+eQwzP2pUgr+nr1g/eX03veRD5T4Tk16+eFEuv7wSnj6FslE+9Py2vB/uX8BiPxE/mb6u"
        "vSb3ob12YO2+aPbqvlcrwD8hlIq+5SYMvig0UL9GYcQ/tSIbPwOSkz5pHoW/Gps1P9CtkrzNycw/czE6v0gkhL7uVxS/TfhQv8Kd"
        "571AUJW/ksMOQN+B5r8GbMK9fKocv1giMD9Sjo6/0KWsP2PZMz4Mskw/60cbPq7eob9RR4q/l05Uv7VDkb5cohw/VxfrvSwTs7zE"
        "wCc/aUqkvjjzlT+6zxg/UvXLvyr2ob+JTtA/40SOvg=="
    ),
    "key": (
        "VzKiP7jj9j/thVW/uCg8v5UDjT+/gbm+E0F1vuaIxT93vrM/iyHhPK+g6zwyUSQ/LrClvaBhXz26hbu/UKFRPwWi7DwwdOk+M+fp"
        "PJyJeD52W2I/90fSv++RA78je7k/xmiBv3KlO8ApVog+yyu5vhyhI7/wzZk/pWEQv7jfAb9Xg9i9ET6QP2udM8Dl2LK/uVWAv0OM"
        "BL5jI7o+aWwEv7603L25o9++0RgNPuQR1b7CcIK+Ht+2PqxXhz/wMHY/dwqVPwxqob1MUpu/re9qv0w6m79Yrb+/MQUCwC0igL/3"
        "3Q6/qE2qvQ4Knr/TAjE+5EJ5v+qkaz5aEJ+/SK3YPg=="
    ),
    "value": (
        "zXYMvxfoFr+Ouu4+G193vVUdKr4aL9g+v9gkv7I7RL+yUqc//hgnvxnedL8GGSE/JWzEv+nr4T94vYA+MSYnPyo33j6KyKM+AfWD"
        "v75qUT5h2G8/KBz5v37mYL25+xDA6BKmP4tKKD9mzJi/BYbQP5yVDb9y0Iy9ht0LPzjFuL7PFTo+nT7FP43WAMBqpSc/zp8VQHtk"
        "Wz5A5uQ+sy8bPwKJEb8LIg8/gaaIvyIRzL4/mXy+NvrSvxCyCUBi9gFAiDoFPypmqD0xNZw+bPKiv0HWNr8RkpY+vaxJvprblj6t"
        "siM/cv1Ivyq1TD9tZV8/9uKCvy6Nkr+iAU4+4D8Ovw=="
    ),
}


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 8, width 4). The seed is the note's: 1729."""
    return {
        name: torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32)
        .reshape(1, 2, 8, 4)
        .clone()
        .requires_grad_()
        for name, text in DRAWN.items()
    }


def attend(query, key, value):
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def loss(attended):
    observe("attended", attended)
    return attended.square().sum()


@scenario.reference
def not_checkpointed(query, key, value):
    with sdpa_kernel(SDPBackend.MATH):
        return loss(attend(query, key, value))


@scenario.reference
def not_checkpointed_by_default(query, key, value):
    return loss(attend(query, key, value))


# Claim A9 is about fresh processes.
@scenario.broken(
    raises(CheckpointError, "different metadata"),
    recomputes_without("aten::_scaled_dot_product_attention_math"),
    cause="ambient state",
    fork_safe=False,
)
def chosen_around_the_forward(query, key, value):
    with sdpa_kernel(SDPBackend.MATH):
        attended = checkpoint(attend, query, key, value, use_reentrant=False)
    return loss(attended)


@scenario.broken(raises(RuntimeError, "batch1 must be a 3D tensor"), cause="ambient state", on=("cpu",))
@scenario.broken(raises(RuntimeError), cause="ambient state", on=("cuda",))
def chosen_around_the_forward_and_unchecked(query, key, value):
    """Switching the check off saves nothing: the wrong tensors reach the backward of MATH."""
    with sdpa_kernel(SDPBackend.MATH):
        attended = checkpoint(attend, query, key, value, use_reentrant=False, determinism_check="none")
    return loss(attended)


@scenario.broken(raises(AttributeError), cause="ambient state")
def one_context_given_twice(query, key, value):
    """A context manager made by a generator can be entered once."""
    context = sdpa_kernel(SDPBackend.MATH)
    return loss(checkpoint(attend, query, key, value, use_reentrant=False, context_fn=lambda: (context, context)))


@scenario.repair(agrees(bitwise=True), fork_safe=False)
def chosen_around_forward_and_backward(query, key, value):
    with sdpa_kernel(SDPBackend.MATH):
        yield loss(checkpoint(attend, query, key, value, use_reentrant=False))


@scenario.repair(agrees(bitwise=True), fork_safe=False)
def chosen_for_both_runs(query, key, value):
    def both_runs():
        return sdpa_kernel(SDPBackend.MATH), sdpa_kernel(SDPBackend.MATH)

    return loss(checkpoint(attend, query, key, value, use_reentrant=False, context_fn=both_runs))


@scenario.repair(agrees(bitwise=True), fork_safe=False)
def chosen_inside_the_function(query, key, value):
    def attend_with_math(*tensors):
        with sdpa_kernel(SDPBackend.MATH):
            return attend(*tensors)

    return loss(checkpoint(attend_with_math, query, key, value, use_reentrant=False))


@scenario.control(
    agrees(bitwise=True),
    why="the default policy holds in both runs",
    reference="not_checkpointed_by_default",
)
def default_throughout(query, key, value):
    return loss(checkpoint(attend, query, key, value, use_reentrant=False))


@scenario.control(agrees(bitwise=True), why="the documentation does not calculate")
def documented(query, key, value):
    """What the docstring of ``checkpoint`` warns of. Online: docs.pytorch.org/docs/stable/checkpoint.html."""
    text = inspect.getdoc(checkpoint)
    observe("sha256 of the docstring", hashlib.sha256(text.encode()).hexdigest())
    observe("warns of an error when the second run differs", "differs" in text and "error" in text)
    observe("warns of wrong gradients when the second run differs", "incorrect gradients" in text)
    with sdpa_kernel(SDPBackend.MATH):
        return loss(attend(query, key, value))


@scenario.control(
    agrees(bitwise=True),
    why="the generator draws the published bits wherever torch uses AVX2 or AVX-512",
)
def drawn_anew(query, key, value):
    generator = torch.Generator().manual_seed(1729)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        drawn = torch.randn(1, 2, 8, 4, generator=generator)
        content = ctypes.string_at(drawn.data_ptr(), 4 * drawn.numel())
        observe(f"sha256 of the drawn {name}", hashlib.sha256(content).hexdigest())
        with torch.no_grad():
            tensor.copy_(drawn)
    with sdpa_kernel(SDPBackend.MATH):
        return loss(attend(query, key, value))

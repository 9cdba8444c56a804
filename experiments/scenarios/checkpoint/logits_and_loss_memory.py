"""Checkpointing the last layer and the loss as a whole does not lower their peak of memory; chunks do.

A language model's logits, (positions, vocabulary), are its largest tensor. Cross-entropy needs three of that size at
once: the logarithms that it saved, their gradient, and that of the logits. Checkpointed as a whole, nothing of that is
*held* from forward to backward, but the recomputation brings all of it back, so the *peak* stays. That helps where
several such losses wait for one backward, and chunks of positions are just that: small peaks, and nothing held.

Both figures, counted in logits tensors. Each phase is measured from its own start:

    ========================  ============  ====  =============  =======
    way                       forward peak  held  backward peak  overall
    ========================  ============  ====  =============  =======
    not checkpointed          2             1     2              3
    checkpointed as a whole   2             0     3              3
    in 8 chunks               9/8           1     1/4            5/4
    in 8 checkpointed chunks  1/4           0     3/8            3/8
    compiled                  1             1     0              1
    ========================  ============  ====  =============  =======

The note's model is wider. A width of 8 makes the cases quick; it decides how large the gradient of the weight is
(1 MB here, on top of the backward peaks), and nothing about the logits.
"""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, holds, observe, peaks, shows

scenario = Scenario(source="reported in the DFlash compile-checkpoint note (claim B11)")

VOCABULARY, WIDTH, CHUNKS = 32_000, 8, 8
# On CUDA as many positions as the note had queries. A logits tensor is 500 MiB here and 3.9 GiB there.
POSITIONS = {"cpu": 4096, "cuda": 32_768}


@scenario.inputs
def inputs(seed, positions):
    """Hidden states (positions, width); the weight of the last layer (vocabulary, width); a target per position."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden": (torch.randint(-16, 17, (positions, WIDTH), generator=generator) / 16).requires_grad_(),
        "weight": (torch.randint(-16, 17, (VOCABULARY, WIDTH), generator=generator) / 16).requires_grad_(),
        "targets": torch.randint(0, VOCABULARY, (positions,), generator=generator),
    }


def summed(hidden, weight, targets):
    return cross_entropy(hidden @ weight.T, targets, reduction="sum")


def in_turn(part, hidden, weight, targets):
    """The loss of each chunk of positions, added up."""
    return sum(part(states, weight, wanted) for states, wanted in zip(hidden.chunk(CHUNKS), targets.chunk(CHUNKS)))


def kept_for_later(hidden, weight, targets):
    return checkpoint(summed, hidden, weight, targets, use_reentrant=False)


def bounded(mark, *found, forward, held, backward, **options):
    """Mark a case on both devices. Memory is given in logits tensors, each as (at least, at most)."""

    def marked(function):
        for device, positions in POSITIONS.items():
            one = 4 * positions * VOCABULARY
            bounds = (
                word(phase, at_least=int(least * one), at_most=int(most * one))
                for word, phase, (least, most) in (
                    (peaks, "forward", forward),
                    (holds, "forward", held),
                    (peaks, "backward", backward),
                )
            )
            size = {"over": {"positions": (positions,)}, "on": (device,)}
            mark(*found, *bounds, **size, warm_up=True, profiled=False, **options)(function)
        return function

    return marked


@scenario.reference(profiled=False)
def not_checkpointed(hidden, weight, targets):
    return summed(hidden, weight, targets) / len(targets)


@bounded(
    scenario.control,
    agrees(bitwise=True),
    shows({"bytes of a logits tensor of 32,768 positions and 151,936 words": 19_914_555_392}),
    forward=(1.8, 2.2),
    held=(0.9, 1.1),
    backward=(1.8, 2.2),
    why="it is the reference, with its memory judged",
)
def not_checkpointed_and_measured(hidden, weight, targets):
    observe("bytes of a logits tensor", 4 * len(hidden) * len(weight))
    observe("bytes of a logits tensor of 32,768 positions and 151,936 words", 4 * 32_768 * 151_936)
    return summed(hidden, weight, targets) / len(targets)


@bounded(
    scenario.control,
    agrees(bitwise=True),
    forward=(1.8, 2.2),
    held=(-0.1, 0.1),
    backward=(2.8, 3.2),
    why="checkpoint decides when the logits are there, not what they are; the peak comes with the recomputation",
    measured="at length",
)
def checkpointed_as_a_whole(hidden, weight, targets):
    return kept_for_later(hidden, weight, targets) / len(targets)


@bounded(
    scenario.control,
    agrees(bitwise=True),
    forward=(1.8, 2.2),
    held=(-0.1, 0.1),
    backward=(2.8, 3.2),
    why="both kinds hold the arguments only, and both recompute all of the logits",
    measured="at length",
)
def checkpointed_as_a_whole_and_reentrant(hidden, weight, targets):
    return checkpoint(summed, hidden, weight, targets, use_reentrant=True) / len(targets)


@bounded(
    scenario.repair,
    agrees(within_rounding=True),
    forward=(1.0, 1.4),
    held=(0.9, 1.1),
    backward=(0.1, 0.5),
    measured="at length",
)
def in_chunks(hidden, weight, targets):
    """The peak is lower, and as much is held as before."""
    return in_turn(summed, hidden, weight, targets) / len(targets)


@bounded(
    scenario.repair,
    agrees(within_rounding=True),
    forward=(0.1, 0.5),
    held=(-0.1, 0.1),
    backward=(0.3, 0.7),
    measured="at length",
)
def in_checkpointed_chunks(hidden, weight, targets):
    """Both are lower."""
    return in_turn(kept_for_later, hidden, weight, targets) / len(targets)


@bounded(
    scenario.repair,
    agrees(within_rounding=True),
    forward=(0.9, 1.2),
    held=(0.9, 1.1),
    backward=(-0.1, 0.2),
    needs=("inductor",),
    timeout=300,
    measured="at length",
)
def compiled(hidden, weight, targets):
    """The compiler saves the logits, and writes their gradient where they were."""
    return torch.compile(summed)(hidden, weight, targets) / len(targets)

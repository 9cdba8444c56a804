"""Whether a mask that changes at every step has ``flex_attention`` compiled at every step.

Compiled code is kept together with guards, conditions under which it may run again. A mask function made
anew and a ``BlockMask`` made anew are no reason to compile, because guards look at the function's code and
at what it reads. Tensors that it reads may hold any values. A number that it reads is part of the graph: in
a closure it becomes an input of a second graph, which then serves all others; as a default argument or as an
attribute of a module it stays part of the graph, and each value is compiled anew. So is each count of
functions that a mask is joined from, and with ``dynamic=False`` each number and each length.

When the recompile limit is reached (8 by default; 4 here, to be quick), the compiler gives up: from then on
``flex_attention`` runs uncompiled, which is the dense calculation of all scores. The numbers stay right, and
only a warning tells.
"""

import torch
from torch import nn
from torch._dynamo import config
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import guard_failures
from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention

from experiments.scenario import Scenario, agrees, observe, raises, shows

scenario = Scenario(source="reported in the DFlash compile-checkpoint note (claim B10)")

STEPS = 6
LIMIT = 4


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 112, width 8); a step sees the first of them."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(-16, 17, (1, 2, 112, 8), generator=generator) / 16 for name in ("query", "key", "value")
    }


# The mask of a step: causal, and from position `step` on. Each function below makes it in its own way.


def from_a_tensor(step, device):
    first = torch.tensor(step, device=device)

    def mask(batch, head, query, key):
        return (query >= key) & (key >= first)

    return mask


def from_a_closure(step, device):
    def mask(batch, head, query, key):
        return (query >= key) & (key >= step)

    return mask


def from_a_default_argument(step, device):
    def mask(batch, head, query, key, first=step):
        return (query >= key) & (key >= first)

    return mask


def from_a_module(step, device):
    module = nn.Module()
    module.first = step

    def mask(batch, head, query, key):
        return (query >= key) & (key >= module.first)

    return mask


def from_several_functions(step, device):
    """One function for each position that is left out."""

    def causal(batch, head, query, key):
        return query >= key

    def without(position):
        left_out = torch.tensor(position, device=device)

        def mask(batch, head, query, key):
            return key != left_out

        return mask

    return and_masks(causal, *(without(position) for position in range(step)))


def steps(attend, make_mask, lengths, tensors):
    """The sum over all steps. Each makes its mask function and its block mask anew."""
    total = 0
    for step in range(STEPS):
        length = 32 + 16 * step if lengths == "growing" else 32
        first = [tensor[:, :, :length].contiguous() for tensor in tensors]
        mask = make_mask(step, first[0].device)
        blocks = create_block_mask(mask, None, None, length, length, device=first[0].device, BLOCK_SIZE=16)
        total = total + attend(*first, block_mask=blocks).square().sum()
    return total


def compiled(make_mask, lengths, tensors, **options):
    """All steps with compiled `flex_attention`: how many graphs were made, why, and how many steps ran them."""
    graphs, ran = [], []
    config.recompile_limit = LIMIT

    def back_end(graph, example_inputs):
        graphs.append(graph)

        def run(*arguments):
            ran.append(graph)
            return graph(*arguments)

        return run

    try:
        return steps(torch.compile(flex_attention, backend=back_end, **options), make_mask, lengths, tensors)
    finally:
        observe("graphs", len(graphs))
        observe("steps that ran compiled", len(ran))
        reasons = guard_failures.get(flex_attention.__code__, [])
        observe("first reason to compile again", str(reasons[0]).partition("  #")[0].strip() if reasons else None)


@scenario.reference(gradient=False, profiled=False)
def uncompiled(query, key, value, lengths):
    return steps(flex_attention, from_a_closure, lengths, (query, key, value))


MASKS = {
    "tensor": from_a_tensor,
    "closure": from_a_closure,
    "default argument": from_a_default_argument,
    "module": from_a_module,
    "several functions": from_several_functions,
}


@scenario.repair(
    shows({"graphs": 1, "steps that ran compiled": 6, "first reason to compile again": None}),
    agrees(bitwise=True),
    over=[{"mask": "tensor", "lengths": "same", "dynamic": None}],
    gradient=False,
    profiled=False,
)
@scenario.control(
    shows({"graphs": 2, "steps that ran compiled": 6}),
    agrees(bitwise=True),
    why="what changed between the first two steps is an input of the second graph",
    over=[
        {"mask": "closure", "lengths": "same", "dynamic": None},
        {"mask": "tensor", "lengths": "growing", "dynamic": None},
    ],
    gradient=False,
    profiled=False,
)
@scenario.broken(
    shows({"graphs": 4, "steps that ran compiled": 4}),
    agrees(bitwise=True),
    cause="compiler",
    over=[
        {"mask": "default argument", "lengths": "same", "dynamic": None},
        {"mask": "module", "lengths": "same", "dynamic": None},
        {"mask": "several functions", "lengths": "same", "dynamic": None},
        {"mask": "closure", "lengths": "same", "dynamic": False},
        {"mask": "tensor", "lengths": "growing", "dynamic": False},
    ],
    gradient=False,
    profiled=False,
)
def compiled_with_another_mask_at_each_step(query, key, value, mask, lengths, dynamic):
    return compiled(MASKS[mask], lengths, (query, key, value), dynamic=dynamic)


@scenario.broken(
    raises(FailOnRecompileLimitHit),
    shows({"graphs": 4, "steps that ran compiled": 4}),
    cause="compiler",
    over=[{"lengths": "same", "asked_by": "fullgraph"}, {"lengths": "same", "asked_by": "configuration"}],
    gradient=False,
    profiled=False,
)
def asked_to_fail_at_the_limit(query, key, value, lengths, asked_by):
    """What there is against going dense without an error: an error."""
    config.fail_on_recompile_limit_hit = asked_by == "configuration"
    return compiled(from_a_default_argument, lengths, (query, key, value), fullgraph=asked_by == "fullgraph")

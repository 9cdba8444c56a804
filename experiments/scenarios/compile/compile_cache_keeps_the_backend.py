"""Inductor's cache on disk gives a process the attention backend of the process that compiled first.

The cache finds compiled code by the graph before attention is broken up into operators and by much else, even
the number of threads, but not by what ``sdpa_kernel`` allows. So the first to compile decides for all who
share the folder, which by default is every process of a user, today and tomorrow. ``torch.compiler.reset()``,
which forgets what the process has compiled, does not forget what lies on disk.

Everything runs with ``fallback_by_default``, which makes Inductor call torch's own operators instead of
having C++ or Triton built: the caches are the same, and seconds become tenths of a second.
"""

import os
import subprocess
import sys
import tempfile

import torch
from torch._dynamo.utils import counters
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from experiments.scenario import Scenario, agrees, observe, shows

scenario = Scenario(source="https://github.com/pytorch/pytorch/issues/185449")

OPTIONS = {"fallback_by_default": True}

FIRST_PROCESS = """
import sys
import torch
from torch.nn.functional import scaled_dot_product_attention

torch.set_num_threads(1)

def attend(query, key, value):
    return scaled_dot_product_attention(query, key, value, is_causal=True)

tensors = (torch.zeros(1, 2, 16, 64, device=sys.argv[1], dtype=getattr(torch, sys.argv[2])) for _ in range(3))
torch.compile(attend, options={"fallback_by_default": True})(*tensors)
"""


@scenario.inputs
def inputs(seed):
    """Query, key and value, each (batch 1, heads 2, positions 16, width 64)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(-16, 17, (1, 2, 16, 64), generator=generator) / 16 for name in ("query", "key", "value")
    }


def attend(query, key, value):
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def loss(attended):
    observe("attended", attended)
    return attended.square().sum()


def own_cache():
    """A folder that nothing has been compiled into."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()


def compiled_with_math(function, query, key, value):
    """Compiled while MATH is chosen: was it found in a cache, and has it the bits of the default backend?"""
    by_default = attend(query, key, value)
    counters.clear()
    with sdpa_kernel(SDPBackend.MATH):
        attended = torch.compile(function, options=OPTIONS)(query, key, value)
    observe("found in the cache", counters["aot_autograd"]["autograd_cache_hit"])
    observe("same bits as by default", torch.equal(attended, by_default))
    return loss(attended)


@scenario.reference(gradient=False, profiled=False)
def uncompiled_with_math(query, key, value):
    with sdpa_kernel(SDPBackend.MATH):
        return loss(attend(query, key, value))


CACHED = shows({"found in the cache": 1, "same bits as by default": True})
COMPILED = shows({"found in the cache": 0, "same bits as by default": False})


@scenario.broken(
    CACHED, agrees(within_rounding=True), cause="compiler", needs=("inductor",), gradient=False, profiled=False
)
def compiled_by_default_in_another_process(query, key, value):
    own_cache()
    dtype = str(query.dtype).removeprefix("torch.")
    subprocess.run([sys.executable, "-c", FIRST_PROCESS, query.device.type, dtype], check=True, timeout=100)
    return compiled_with_math(attend, query, key, value)


@scenario.broken(
    CACHED, agrees(within_rounding=True), cause="compiler", needs=("inductor",), gradient=False, profiled=False
)
def compiled_by_default_before_a_reset(query, key, value):
    own_cache()
    torch.compile(attend, options=OPTIONS)(query, key, value)
    torch.compiler.reset()
    return compiled_with_math(attend, query, key, value)


@scenario.repair(COMPILED, agrees(within_rounding=True), needs=("inductor",), gradient=False, profiled=False)
def caches_off(query, key, value):
    own_cache()
    torch.compile(attend, options=OPTIONS)(query, key, value)
    torch.compiler.reset()
    with torch.compiler.config.patch(force_disable_caches=True):
        return compiled_with_math(attend, query, key, value)


@scenario.repair(COMPILED, agrees(within_rounding=True), needs=("inductor",), gradient=False, profiled=False)
def chosen_inside_the_function(query, key, value):
    """The choice is part of the graph by which the cache looks."""

    def attend_with_math(*tensors):
        with sdpa_kernel(SDPBackend.MATH):
            return attend(*tensors)

    own_cache()
    torch.compile(attend, options=OPTIONS)(query, key, value)
    torch.compiler.reset()
    return compiled_with_math(attend_with_math, query, key, value)

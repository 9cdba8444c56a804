"""Flips: how a counter-replay sets one factor to its value under another setting, or why it cannot."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Mapping

from .settings import (
    CAPABILITY,
    GPU,
    HOST,
    INTERPRETER,
    MKL,
    PRECISION,
    PROCESSOR,
    SOURCES,
    SYSTEM,
    THREADS,
    VARIABLE,
    ComputerSetting,
)

# Flipping.


THREAD_COUNTS = range(1, 1025)
_INTEGERS = range(2**31)
_FLAG = "0|1|true|false|yes|no|on|off"
_ISA = "all|default|sse41|avx2?(_vnni(_2)?)?|avx512_core(_[a-z0-9]{1,8}){0,2}|avx10_[0-9](_[a-z0-9]{1,8}){0,3}"
_FPMATH = "strict|bf16|f16|tf32|any"
_LEVEL = "sse2|ssse3|sse4_[12]|avx|avx2|avx512(_mic)?(_e[1-5])?"
_PLACING = "none|compact|scatter|balanced|disabled|physical|logical|granularity=(fine|thread|core|tile|socket)|[0-9]"
_CUDA_ALLOCATOR = (
    "backend:(native|cudaMallocAsync)|expandable_segments:(true|false)|garbage_collection_threshold:0[.][0-9]{1,4}|"
    "max_split_size_mb:[0-9]{1,6}|roundup_power2_divisions:[0-9]{1,3}"
)


def _list_pattern(one: str, most: int = 16) -> str:
    """Return a pattern that matches one to `most` of these, separated by commas."""
    return f"({one})(,({one})){{0,{most - 1}}}"


BOUNDS: Mapping[str, str | range] = {
    "ATEN_CPU_CAPABILITY": "default|avx2|avx512",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8|:16:8|:4096:2:16:8|:0:0",
    "CUDA_LAUNCH_BLOCKING": _FLAG,
    "CUDA_VISIBLE_DEVICES": _list_pattern("[0-9]{1,2}"),
    "DNNL_DEFAULT_FPMATH_MODE": _FPMATH,
    "DNNL_MAX_CPU_ISA": _ISA,
    "GOMP_CPU_AFFINITY": _list_pattern("[0-9]{1,4}(-[0-9]{1,4}(:[0-9]{1,3})?)?", 64),
    "GOMP_SPINCOUNT": "infinite|infinity|[0-9]{1,9}",
    "KMP_AFFINITY": _list_pattern(_PLACING, 5),
    "KMP_BLOCKTIME": "infinite|[0-9]{1,9}",
    "KMP_SETTINGS": _FLAG,
    "MKL_CBWR": f"(auto|compatible|{_LEVEL})(,strict)?",
    "MKL_DEBUG_CPU_TYPE": range(10),
    "MKL_DYNAMIC": _FLAG,
    "MKL_ENABLE_INSTRUCTIONS": _LEVEL,
    "MKL_NUM_THREADS": THREAD_COUNTS,
    "MKL_THREADING_LAYER": "intel|gnu|sequential|tbb|pgi",
    "NVIDIA_TF32_OVERRIDE": _FLAG,
    "OMP_DYNAMIC": _FLAG,
    "OMP_MAX_ACTIVE_LEVELS": range(256),
    "OMP_NESTED": _FLAG,
    "OMP_NUM_THREADS": THREAD_COUNTS,
    "OMP_PLACES": "threads|cores|sockets|ll_caches|numa_domains",
    "OMP_PROC_BIND": _list_pattern("true|false|master|primary|close|spread", 8),
    "OMP_SCHEDULE": "((non)?monotonic:)?(static|dynamic|guided|auto)(,[0-9]{1,9})?",
    "OMP_STACKSIZE": "[0-9]{1,9}b|[0-9]{1,6}k?|[0-9]{1,3}m|1g",
    "OMP_THREAD_LIMIT": _INTEGERS,
    "OMP_WAIT_POLICY": "active|passive",
    "ONEDNN_DEFAULT_FPMATH_MODE": _FPMATH,
    "ONEDNN_MAX_CPU_ISA": _ISA,
    "OPENBLAS_CORETYPE": "[a-z][a-z0-9]{1,19}",
    "OPENBLAS_NUM_THREADS": THREAD_COUNTS,
    "PYTORCH_CUDA_ALLOC_CONF": _list_pattern(_CUDA_ALLOCATOR, 8),
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": _FLAG,
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": _FLAG,
    "TORCH_BLAS_PREFER_CUBLASLT": _FLAG,
}
"""What each recorded variable may be set to in a counter-replay: one of these numbers, or a text that matches this
pattern, ignoring case. The values come from untrusted records."""
_CAPABILITIES = ("DEFAULT", "AVX2", "AVX512")
"""CPU capabilities of x86-64 processors, in ascending order: each processor can also run as those before its own."""
_FIXED: Mapping[str, str] = {
    HOST: "it is the computer itself",
    PROCESSOR: "it is the computer's",
    GPU: "it is the computer's",
    SYSTEM: "it is the computer's",
}


@dataclass(frozen=True)
class Flip:
    """How to run our setting with one factor as it is under another."""

    factor: str
    variables: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    matmul_precision: str = ""
    """Empty to keep ours."""
    sources: str = ""
    """``original`` or ``copied``. Empty to keep ours."""
    interpreter: bool = False
    """True if it takes another interpreter, which the user must provide."""


def hindrance(factor: str, ours: ComputerSetting, theirs: ComputerSetting) -> str:
    """Return why the factor cannot be flipped here to its value under the other setting. Empty if it can."""
    made = find_flip(factor, ours, theirs)
    return made if isinstance(made, str) else ""


def find_flip(factor: str, ours: ComputerSetting, theirs: ComputerSetting) -> Flip | str:
    """Return how to flip the factor to the other setting's value, or why not. Only this reads untrusted values."""
    facts, flip = theirs.factors.get(factor, {}), Flip(factor)
    if factor == CAPABILITY:
        here, there = (one.factors.get(factor, {}).get("cpu.capability", "") for one in (ours, theirs))
        return _capability_hindrance(here, there) or replace(flip, variables={"ATEN_CPU_CAPABILITY": there.lower()})
    if factor == MKL or factor.startswith(VARIABLE):
        variables = {name.partition(".")[2]: text for name, text in facts.items()}
        return _variable_hindrance(variables) or replace(flip, variables=variables)
    if factor == THREADS:
        number = _parse_number(THREAD_COUNTS, facts.get("switches.threads", ""))
        return "it does not tell how many it has" if number is None else replace(flip, threads=number)
    if factor == PRECISION:
        told = facts.get("switches.matmul_precision", "")
        known = told in ("highest", "high", "medium")
        return replace(flip, matmul_precision=told) if known else "it tells no precision that torch has"
    if factor == SOURCES:
        return replace(flip, sources=facts.get("setting.sources", "original"))
    if factor == INTERPRETER:
        return replace(flip, interpreter=True)
    return _FIXED.get(factor, "no setting changes it")


def _parse_number(numbers: range, text: str) -> int | None:
    """Return the number that the text represents, in Python's notation. None if it is not one of `numbers`."""
    if not re.fullmatch("0|[1-9][0-9]{0,9}", text):
        return None
    return int(text) if int(text) in numbers else None


def _capability_hindrance(here: str, there: str) -> str:
    if here not in _CAPABILITIES or there not in _CAPABILITIES:
        return f"no processor is told to be {there} by a variable"
    if _CAPABILITIES.index(there) > _CAPABILITIES.index(here):
        return f"this processor, as it was run, has no {there}"
    return ""


def _variable_hindrance(variables: Mapping[str, str]) -> str:
    """Return why the variables cannot be set. Facts are untrusted, so they are set only within `BOUNDS`."""
    if not variables:
        return "it is set here and not there: unset it and sweep again"
    if not all(_is_within_bounds(name, text) for name, text in variables.items()):
        return "it is no variable that a calculation depends on, or has an odd value: set it yourself and sweep"
    return ""


def _is_within_bounds(name: str, text: str) -> bool:
    bounds = BOUNDS.get(name)
    if isinstance(bounds, range):
        return _parse_number(bounds, text) is not None
    return bounds is not None and re.fullmatch(bounds, text, re.IGNORECASE | re.ASCII) is not None

"""Process-wide switches of torch that change what a calculation does, and what a case changed of them.

Covers SDPA backends and their order, autocast, grad mode, deterministic flags, precision switches, default
dtype and device, threads. Does not cover random state, environment variables, or anything outside torch.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from ..core.observation import StateChange

Reader = Callable[[], Any]


def _readers() -> dict[str, Reader]:
    """Return a function that reads each switch, by name."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        "sdpa.flash": cuda.flash_sdp_enabled,
        "sdpa.efficient": cuda.mem_efficient_sdp_enabled,
        "sdpa.math": cuda.math_sdp_enabled,
        "sdpa.cudnn": cuda.cudnn_sdp_enabled,
        "sdpa.order": lambda: list(torch._C._get_sdp_priority_order()),  # noqa: SLF001 - no public reader
        "sdpa.math_reduced_precision": cuda.fp16_bf16_reduction_math_sdp_allowed,
        "grad": torch.is_grad_enabled,
        "inference": torch.is_inference_mode_enabled,
        "autocast.cpu": lambda: torch.is_autocast_enabled("cpu"),
        "autocast.cpu_dtype": lambda: _dtype_name(torch.get_autocast_dtype("cpu")),
        "autocast.cuda": lambda: torch.is_autocast_enabled("cuda"),
        "autocast.cuda_dtype": lambda: _dtype_name(torch.get_autocast_dtype("cuda")),
        "autocast.cache": torch.is_autocast_cache_enabled,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "deterministic.warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
        "matmul_precision": torch.get_float32_matmul_precision,
        "tf32.matmul": lambda: cuda.matmul.allow_tf32,
        "tf32.cudnn": lambda: cudnn.allow_tf32,
        "reduced_precision.fp16": lambda: cuda.matmul.allow_fp16_reduced_precision_reduction,
        "reduced_precision.bf16": lambda: cuda.matmul.allow_bf16_reduced_precision_reduction,
        "cudnn.enabled": lambda: cudnn.enabled,
        "cudnn.benchmark": lambda: cudnn.benchmark,
        "cudnn.deterministic": lambda: cudnn.deterministic,
        "mkldnn.enabled": lambda: torch.backends.mkldnn.enabled,
        "flush_denormal": _is_flushing_denormals,
        "default_dtype": lambda: _dtype_name(torch.get_default_dtype()),
        "default_device": lambda: str(torch.get_default_device()),
        "threads": torch.get_num_threads,
        "threads.interop": torch.get_num_interop_threads,
    }


def snapshot() -> dict[str, Any]:
    """Return the value of every switch by name. ``not readable`` if this torch lacks it or refuses to read it."""
    return {name: _read_switch(reader) for name, reader in sorted(_readers().items())}


def _read_switch(reader: Reader) -> Any:
    try:
        return reader()
    except (AttributeError, RuntimeError, TypeError):
        return "not readable"


def changes(before: dict[str, Any], after: dict[str, Any]) -> tuple[StateChange, ...]:
    """Return the switches whose value differs."""
    return tuple(StateChange(name, before[name], after[name]) for name in sorted(before) if before[name] != after[name])


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]


def _is_flushing_denormals() -> bool:
    # There is no function that reads it, so a denormal number is multiplied.
    return bool((torch.tensor(1e-310, dtype=torch.float64) * 1.0).item() == 0.0)

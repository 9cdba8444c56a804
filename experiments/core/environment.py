"""Environment variables that a worker gets and a record keeps, and the identity of a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from .canonical_json import canonical, digest

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "KMP_SETTINGS",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "MKL_THREADING_LAYER",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "OMP_MAX_ACTIVE_LEVELS",
    "OMP_NESTED",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OMP_SCHEDULE",
    "OMP_STACKSIZE",
    "OMP_THREAD_LIMIT",
    "OMP_WAIT_POLICY",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)
"""Environment variables that a calculation depends on, by full name. They are passed from the caller to a worker and
recorded. No other variable is recorded, so no secret can be."""


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return those of `VARIABLES` that are set."""
    return {name: environment[name] for name in VARIABLES if name in environment}


def folder_variables(temporary: str) -> dict[str, str]:
    """Return the variables that make `temporary` the place of a process's own files, including compiled code.

    It is empty when the process starts, so no process reuses code that another has compiled.
    """
    caches = {f"{name}_CACHE_DIR": str(Path(temporary) / "compiled") for name in ("TORCHINDUCTOR", "TRITON")}
    return {"TMPDIR": temporary, "TEMP": temporary, **caches}


def machine_identity(facts: Mapping[str, Any]) -> str:
    """Return a digest of what identifies a machine: host, processor, GPU, system. Not torch, threads, or switches."""
    cpu = {name: facts["cpu"][name] for name in ("model", "architecture", "cores")}
    return digest(
        canonical({"host": facts["host"], "cpu": cpu, "gpu": facts["gpu"], "system": facts["system"]["name"]})
    )

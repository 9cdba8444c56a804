"""The facts of the machine, as the process that calculates sees them.

They are what a number can depend on: torch and its build, the CPU and the instruction set in use, threads, GPU, system,
numeric switches, and the environment variables of a fixed list. Nothing else of the environment is recorded, and not
the host name: a digest distinguishes hosts.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Mapping

import torch

from ..core.environment import recorded_variables
from . import switches


def facts(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return all facts. They are equal for two processes of one setting on one machine."""
    return {
        "host": _host_digest(),
        "torch": _torch_facts(),
        "cpu": _cpu_facts(),
        "gpu": _gpu_facts(),
        "system": _system_facts(),
        "python": _python_facts(),
        "compiler": _compiler_facts(),
        "switches": switches.snapshot(),
        "variables": recorded_variables(environment),
    }


def _host_digest() -> str:
    """Return a digest that distinguishes hosts without naming them."""
    identity = Path("/etc/machine-id")
    text = platform.node() + (identity.read_text() if identity.is_file() else "")
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _torch_facts() -> dict[str, Any]:
    return {
        "version": str(torch.__version__),
        "git": torch.version.git_version,
        "debug": bool(torch.version.debug),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "build": torch.__config__.show(),
        "parallel": torch.__config__.parallel_info(),
    }


def _cpu_facts() -> dict[str, Any]:
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "model": _cpu_model(),
        "architecture": platform.machine(),
        "byte_order": sys.byteorder,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "usable_cores": None if affinity is None else len(affinity(0)),
        "mkl": torch.backends.mkl.is_available(),
        "mkldnn": torch.backends.mkldnn.is_available(),
    }


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor()


def _gpu_facts() -> dict[str, Any] | None:
    """Return the facts of the GPU. None without a usable CUDA device."""
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "count": torch.cuda.device_count(),
        "capability": list(torch.cuda.get_device_capability(0)),
        "memory": properties.total_memory,
        "driver": _driver_version(),
        "cudnn": torch.backends.cudnn.version(),
    }


def _driver_version() -> str | None:
    """Return the version of the NVIDIA kernel driver. None if it cannot be read."""
    try:
        found = re.search(r"Kernel Module\D*?([\d.]+)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return None
    return found.group(1) if found else None


def _system_facts() -> dict[str, Any]:
    return {
        "name": platform.system(),
        "release": platform.release(),
        "libc": " ".join(platform.libc_ver()).strip(),
    }


def _compiler_facts() -> dict[str, Any]:
    """Return the compilers that Inductor needs: C++ for the CPU, and Triton for a GPU. None for one that is missing."""
    try:
        said = subprocess.run(
            ["g++", "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        ).stdout.decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError):
        said = ""
    return {"c++": said.partition("\n")[0].strip() or None, "triton": _package_version("triton")}


def _package_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python_facts() -> dict[str, Any]:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "compiler": platform.python_compiler(),
    }

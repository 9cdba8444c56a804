"""Memory of each phase. On Linux the resident size, its peak reset when the phase begins; on a GPU the
allocator's own count. What the system does not tell is None.

Of a case that was warmed up, what is free goes back to the system before a size is read (`malloc_trim`, where the C
library has it): memory that the case has given up, and that the library keeps to hand out again, is held by nobody.
"""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import torch

from ...core.observation import Memory

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


class Meter:
    """Measures one phase at a time."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda" and torch.cuda.is_available()
        self.exact = False
        """True to give back what is free before a size is read: it takes tens of milliseconds."""
        self.phases: list[Memory] = []
        self._begun: tuple[str, int | None, bool, int | None] | None = None

    def begin(self, phase: str) -> None:
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self._trim()
        reset = _reset_peak()
        self._begun = (phase, _kib("VmRSS"), reset, torch.cuda.memory_allocated() if self.cuda else None)

    def end(self) -> None:
        """Close the phase that is open, if one is."""
        if self._begun is None:
            return
        phase, before, reset, cuda_before = self._begun
        self._begun = None
        if self.cuda:
            torch.cuda.synchronize()
        peak = _kib("VmHWM") if reset else None
        self._trim()
        self.phases.append(
            Memory(
                phase=phase,
                before=before,
                peak=peak,
                after=_kib("VmRSS"),
                cuda_before=cuda_before,
                cuda_peak=torch.cuda.max_memory_allocated() if self.cuda else None,
                cuda_after=torch.cuda.memory_allocated() if self.cuda else None,
                largest=None,
            )
        )

    def _trim(self) -> None:
        if self.exact:
            gc.collect()
            if _C is not None:
                _C.malloc_trim(0)


def _library() -> Any:
    """The C library. None where it cannot be called, or has no `malloc_trim`."""
    try:
        import ctypes  # noqa: PLC0415 - some builds of Python lack it

        library = ctypes.CDLL(None)
        return library if hasattr(library, "malloc_trim") else None
    except (ImportError, OSError, TypeError):
        return None


_C = _library()


def _reset_peak() -> bool:
    """Set the peak to the present size. False where the system cannot."""
    try:
        _RESET.write_text("5")
    except OSError:
        return False
    return True


def _kib(name: str) -> int | None:
    """A line of the process status, in bytes."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None

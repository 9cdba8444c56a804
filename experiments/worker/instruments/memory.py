"""Memory of each phase. On Linux the resident size, whose peak is reset at the start of the phase; on a GPU the count
of torch's allocator. None for what the system does not report.

After a warm-up, free memory is returned to the system before a size is read (`malloc_trim`, if the C library has it):
memory that the case has freed, and that the library keeps for reuse, must not count as held.
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
        """True to return free memory to the system before a size is read, which takes tens of milliseconds."""
        self.phases: list[Memory] = []
        self._begun: tuple[str, int | None, bool, int | None] | None = None

    def begin(self, phase: str) -> None:
        """Start to measure a phase."""
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self._trim_heap()
        reset = _reset_peak()
        self._begun = (phase, _status_bytes("VmRSS"), reset, torch.cuda.memory_allocated() if self.cuda else None)

    def end(self) -> None:
        """End the current phase, if there is one, and add it to `phases`."""
        if self._begun is None:
            return
        phase, before, reset, cuda_before = self._begun
        self._begun = None
        if self.cuda:
            torch.cuda.synchronize()
        peak = _status_bytes("VmHWM") if reset else None
        self._trim_heap()
        self.phases.append(
            Memory(
                phase=phase,
                before=before,
                peak=peak,
                after=_status_bytes("VmRSS"),
                cuda_before=cuda_before,
                cuda_peak=torch.cuda.max_memory_allocated() if self.cuda else None,
                cuda_after=torch.cuda.memory_allocated() if self.cuda else None,
                largest=None,
            )
        )

    def _trim_heap(self) -> None:
        if self.exact:
            gc.collect()
            if _C is not None:
                _C.malloc_trim(0)


def _c_library() -> Any:
    """Return the C library. None if it cannot be called, or has no `malloc_trim`."""
    try:
        import ctypes  # noqa: PLC0415 - some builds of Python lack it

        library = ctypes.CDLL(None)
        return library if hasattr(library, "malloc_trim") else None
    except (ImportError, OSError, TypeError):
        return None


_C = _c_library()


def _reset_peak() -> bool:
    """Set the peak to the current size. Returns False if the system cannot."""
    try:
        _RESET.write_text("5")
    except OSError:
        return False
    return True


def _status_bytes(name: str) -> int | None:
    """Return the size in a line of the process status in bytes. None if it cannot be read."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None

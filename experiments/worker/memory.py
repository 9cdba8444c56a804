"""Memory of each phase. On Linux the resident size, its peak reset when the phase begins; on a GPU the
allocator's own count. What the system does not tell is None.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from ..record import Memory

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


class Meter:
    """Measures one phase at a time."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda" and torch.cuda.is_available()
        self.phases: list[Memory] = []
        self._begun: tuple[str, int | None, bool, int | None] | None = None

    def begin(self, phase: str) -> None:
        reset = _reset_peak()
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self._begun = (phase, _kib("VmRSS"), reset, torch.cuda.memory_allocated() if self.cuda else None)

    def end(self) -> None:
        """Close the phase that is open, if one is."""
        if self._begun is None:
            return
        phase, before, reset, cuda_before = self._begun
        self._begun = None
        if self.cuda:
            torch.cuda.synchronize()
        self.phases.append(
            Memory(
                phase=phase,
                before=before,
                peak=_kib("VmHWM") if reset else None,
                after=_kib("VmRSS"),
                cuda_before=cuda_before,
                cuda_peak=torch.cuda.max_memory_allocated() if self.cuda else None,
                cuda_after=torch.cuda.memory_allocated() if self.cuda else None,
            )
        )


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

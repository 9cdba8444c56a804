"""Process groups on this system: their members, memory, and end."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


def has_exited(process: int) -> bool:
    """Whether a child of ours has ended, leaving its number taken. False where the system cannot say so."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def end_group(group: int, with_signal: int) -> None:
    """Signal every process of a group; that nobody is left in it is no error."""
    if group <= 0:
        return  # It never came to be; 0 would mean our own group.
    # macOS says "not permitted" of a group of the dead.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(group, with_signal)
        else:
            os.kill(group, with_signal)


def resident_bytes(process: int) -> int:
    """Resident bytes of the process. 0 where the system does not tell."""
    try:
        with open(f"/proc/{process}/statm") as file:  # noqa: PTH123 - read a hundred times a second
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError, AttributeError):
        return 0


def group_members(group: int) -> list[int]:
    """Processes of the group. None where the system does not tell, or there never was one."""
    if group <= 0:
        return []
    try:
        found = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
    except OSError:
        return []
    return [int(name) for name in found if _group(name) == group]


def _group(process: str) -> int | None:
    """Process group, from the fields behind the name, which may hold anything."""
    try:
        with open(f"/proc/{process}/stat") as file:  # noqa: PTH123 - read for every process there is
            return int(file.read().rpartition(")")[2].split()[2])
    except (OSError, IndexError, ValueError):
        return None


def kernel_kills() -> int:
    """Processes that the kernel has ended for want of memory, in our control group or else in all. 0 where the
    system does not tell.
    """
    for path, name in ((_CGROUP / "memory.events", "oom_kill "), (Path("/proc/vmstat"), "oom_kill ")):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        counts = [line.split()[1] for line in lines if line.startswith(name)]
        if counts:
            return int(counts[0])
    return 0


_CGROUP = Path("/sys/fs/cgroup")

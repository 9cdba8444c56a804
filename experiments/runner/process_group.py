"""Process groups on this system: list their members, measure their memory, end them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


def has_exited(process: int) -> bool:
    """Whether a child process has exited but not been reaped. False where the system cannot report it."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def end_group(group: int, with_signal: int) -> None:
    """Send a signal to every process of a group; an empty group is not an error."""
    if group <= 0:
        return  # The group was never created; 0 would mean our own group.
    # macOS reports "not permitted" for a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(group, with_signal)
        else:
            os.kill(group, with_signal)


def resident_bytes(process: int) -> int:
    """Return the resident memory of the process in bytes, 0 where the system does not report it."""
    try:
        with open(f"/proc/{process}/statm") as file:  # noqa: PTH123 - read a hundred times a second
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError, AttributeError):
        return 0


def group_members(group: int) -> list[int]:
    """Return the PIDs of the group, an empty list where the system does not report them or there is no group."""
    if group <= 0:
        return []
    try:
        found = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
    except OSError:
        return []
    return [int(name) for name in found if _read_group(name) == group]


def _read_group(process: str) -> int | None:
    """Return the process group ID from the fields after the process name, which may contain any characters."""
    try:
        with open(f"/proc/{process}/stat") as file:  # noqa: PTH123 - read for every process on the system
            return int(file.read().rpartition(")")[2].split()[2])
    except (OSError, IndexError, ValueError):
        return None


def kernel_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory, in our control group or else system-wide.

    0 where the system does not report it.
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

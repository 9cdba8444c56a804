"""Limits that only a process can set for itself, before torch is imported.

- Address space is not limited: CUDA reserves far more of it than it uses. The *data* that the process may allocate
  is limited (RLIMIT_DATA, on the CPU) to the parent's limit of resident memory plus `HEADROOM`: so one
  allocation far beyond the limit is refused, which the case can show, and memory that grows in steps
  first reaches the limit of resident memory, which the parent enforces.
- One process may have `OPEN_FILES` open files (RLIMIT_NOFILE).
- One file may not grow beyond the limit of disk (RLIMIT_FSIZE); the parent watches the folder as a whole.
- No core dumps.
- The number of processes is not limited here: RLIMIT_NPROC counts all processes of the user, and none of root. The
  parent counts those of the process group.
- What is written to `/dev/shm`, or elsewhere outside the folder, is limited only in the size of one file.

Limits that a system does not have (Windows: all of them; macOS: RLIMIT_DATA is not enforced) are skipped.
"""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

OPEN_FILES = 4096
"""Open files of one process. Loaders that share tensors by file descriptors need hundreds."""
HEADROOM = 2**30
"""Bytes of data beyond the limit of resident memory. Importing torch asks for about 250 MiB of data."""


def apply(folder: Path) -> None:
    """Set the limits of ``folder/spec.json``."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    memory, disk = spec["setting"]["memory"], int(spec["setting"]["disk"])
    wanted = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, disk), (resource.RLIMIT_NOFILE, OPEN_FILES)]
    if memory is not None and spec["question"]["device"] == "cpu":
        wanted.append((resource.RLIMIT_DATA, int(memory) + HEADROOM))
    for name, limit in wanted:
        lowered = [limit if one == resource.RLIM_INFINITY else min(limit, one) for one in resource.getrlimit(name)]
        # macOS refuses some of them. The parent's own limits still hold.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(name, (lowered[0], lowered[1]))
    # Python ignores this signal, so that a write beyond the limit is an OSError; a C library may not.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

"""Run specs on this machine, several at a time, each in its own process.

One thread starts and watches all processes: Linux ends a worker when the thread that started it ends, and this
module waits for nothing but processes. Records are yielded in the order in which the processes end.
Imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter, deque
from pathlib import Path
from typing import Callable, Generator, Iterator, Mapping, Sequence

from ..core import folders
from ..core.record import Record
from ..core.spec import Spec
from . import errors, observation_check, supervisor
from .fork_client import Forks

TICK = 0.01
"""Seconds between two polls of the processes."""
TRIES = 2
"""Times that a case is started if its process is lost; after that, its record reports the loss."""


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@contextlib.contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt inside the block on the first SIGTERM or SIGHUP, as Ctrl-C does.

    Later signals are ignored so that they cannot disturb the cleanup. A signal that is already ignored, as under
    `nohup`, stays ignored.
    """
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    heard = [number for number in numbers if before[number] not in (signal.SIG_IGN, None)]

    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise KeyboardInterrupt

    for number in heard:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


def run(
    specs: Sequence[Spec],
    *,
    workers: int,
    roots: Mapping[str, Path],
    scratch: Path,
    missing: Mapping[str, str],
    watch: Callable[[int], None],
    forks: Forks,
) -> Generator[tuple[Record, Path], None, None]:
    """Yield each record with the folder that contains it.

    `roots` maps ``original`` and ``copied`` to source folders; `missing` maps spec digests to unmet requirements;
    `watch` is called at every poll with the number of running processes; the caller closes `forks`. If the loop ends
    early, by an exception or because the caller leaves it, no case is left running.
    """
    with contextlib.closing(_Runner(roots, scratch, forks)) as runner:
        waiting = deque(specs)
        while waiting or runner.suspects or runner.running:
            while len(runner.running) < workers and (spec := runner.next_spec(waiting)) is not None:
                folder = runner.free_folder(spec)
                need = missing.get(spec.digest()) or observation_check.find_source_change(
                    spec, roots[spec.setting.sources]
                )
                if need is not None:
                    yield supervisor.not_run_record(spec, folder, need), folder
                else:
                    runner.start(spec)
            yield from runner.collect_records()
            watch(len(runner.running))
            time.sleep(TICK)


class _Runner:
    """The running processes and the settings needed to start more."""

    def __init__(self, roots: Mapping[str, Path], scratch: Path, forks: Forks) -> None:
        self._forks = forks
        self._fresh = {name: supervisor.fresh_starter(root) for name, root in roots.items()}
        self._scratch = scratch
        self._lost: Counter[str] = Counter()
        self.running: list[supervisor.Running] = []
        self.suspects: deque[Spec] = deque()
        """Specs whose process was lost. Each is retried alone, so that a second loss is caused by the spec itself."""

    def next_spec(self, waiting: deque[Spec]) -> Spec | None:
        """Return the next spec that may be started now, or None."""
        if any(self._lost[one.spec.digest()] for one in self.running):
            return None
        if self.suspects:
            return None if self.running else self.suspects.popleft()
        return waiting.popleft() if waiting else None

    def free_folder(self, spec: Spec) -> Path:
        """Return a folder that does not exist yet, even if an earlier run could not remove its own."""
        folders.restore_rights(self._scratch)
        return folders.free_path(self._scratch / spec.digest()[:16])

    def start(self, spec: Spec) -> None:
        """Start a process for the spec."""
        forked = spec.setting.isolation == "forked"
        starter = self._forks.start if forked else self._fresh[spec.setting.sources]
        self.running.append(supervisor.start(spec, self.free_folder(spec), starter))

    def collect_records(self) -> Iterator[tuple[Record, Path]]:
        """Remove processes that have ended and yield their records; queue lost ones for a retry."""
        for one in list(self.running):
            try:
                record = one.poll()
            except errors.LostError as error:
                self.running.remove(one)
                record = self._retry_lost(one, str(error))
            else:
                if record is not None:
                    self.running.remove(one)
            if record is not None:
                yield record, one.folder

    def _retry_lost(self, one: supervisor.Running, why: str) -> Record | None:
        one.stop()
        self._lost[one.spec.digest()] += 1
        if self._lost[one.spec.digest()] >= TRIES:
            one.folder = folders.free_path(one.folder)
            return supervisor.lost_record(one.spec, one.folder, why)
        folders.remove(one.folder)
        self.suspects.append(one.spec)
        return None

    def close(self) -> None:
        """End all running processes."""
        for one in self.running:
            one.stop()

"""Runs specs on this machine, a few at a time, each in a process of its own.

One thread starts the processes and watches them: Linux ends a worker when the thread that started it ends,
and nothing here waits for anything but processes. Records are handed over in the order in which they end.
Only the standard library is imported here.
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
"""Seconds between two looks at the processes."""
TRIES = 2
"""Times a case is started whose process is lost; then the loss is its record."""


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """SIGTERM, and SIGHUP as of a terminal that is closed, end what is inside as cleanly as Ctrl-C does, once: what
    comes while it ends disturbs nothing. What is ignored already, as under `nohup`, stays so.
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
    """Yield each record with the folder it lies in.

    `roots` gives the sources by ``original`` and ``copied``; `missing` says, by spec digest, what a case
    needs and does not have; `watch` is told how many are running at every look; `forks` are the caller's to
    close. However the loop ends, by an exception or by the caller leaving it, no case is left running.
    """
    with contextlib.closing(_Runner(roots, scratch, forks)) as runner:
        waiting = deque(specs)
        while waiting or runner.suspects or runner.running:
            while len(runner.running) < workers and (spec := runner.next(waiting)) is not None:
                folder = runner.folder(spec)
                need = missing.get(spec.digest()) or observation_check.changed(spec, roots[spec.setting.sources])
                if need is not None:
                    yield supervisor.not_run(spec, folder, need), folder
                else:
                    runner.start(spec)
            yield from runner.ended()
            watch(len(runner.running))
            time.sleep(TICK)


class _Runner:
    """What is running, and what it was started with."""

    def __init__(self, roots: Mapping[str, Path], scratch: Path, forks: Forks) -> None:
        self._forks = forks
        self._fresh = {name: supervisor.fresh(root) for name, root in roots.items()}
        self._scratch = scratch
        self._lost: Counter[str] = Counter()
        self.running: list[supervisor.Running] = []
        self.suspects: deque[Spec] = deque()
        """Their process was lost. They run again alone, so that a second loss is their own doing."""

    def next(self, waiting: deque[Spec]) -> Spec | None:
        """What may be started now, if anything may."""
        if any(self._lost[one.spec.digest()] for one in self.running):
            return None
        if self.suspects:
            return None if self.running else self.suspects.popleft()
        return waiting.popleft() if waiting else None

    def folder(self, spec: Spec) -> Path:
        """A folder that is not there: what an earlier run could not remove is in nobody's way."""
        folders.allow(self._scratch)
        return folders.free(self._scratch / spec.digest()[:16])

    def start(self, spec: Spec) -> None:
        forked = spec.setting.isolation == "forked"
        starter = self._forks.start if forked else self._fresh[spec.setting.sources]
        self.running.append(supervisor.start(spec, self.folder(spec), starter))

    def ended(self) -> Iterator[tuple[Record, Path]]:
        """Take those that have ended off the list; those that were lost wait to be run again."""
        for one in list(self.running):
            try:
                record = one.poll()
            except errors.LostError as error:
                self.running.remove(one)
                record = self._again(one, str(error))
            else:
                if record is not None:
                    self.running.remove(one)
            if record is not None:
                yield record, one.folder

    def _again(self, one: supervisor.Running, why: str) -> Record | None:
        one.stop()
        self._lost[one.spec.digest()] += 1
        if self._lost[one.spec.digest()] >= TRIES:
            one.folder = folders.free(one.folder)
            return supervisor.lost(one.spec, one.folder, why)
        folders.remove(one.folder)
        self.suspects.append(one.spec)
        return None

    def close(self) -> None:
        for one in self.running:
            one.stop()

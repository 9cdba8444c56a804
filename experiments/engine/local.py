"""Runs specs on this machine, a few at a time, each in a process of its own.

One thread starts the workers and watches them: Linux ends a worker when the thread that started it ends,
and nothing here waits for anything but processes. Records are handed over in the order in which they end.
Only the standard library is imported here.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Callable, Generator, Iterator, Mapping, Sequence

from .. import launch
from ..record import Record, Spec

TICK = 0.01
"""Seconds between two looks at the workers."""


def run(
    specs: Sequence[Spec],
    *,
    workers: int,
    roots: Mapping[str, Path],
    scratch: Path,
    missing: Mapping[str, str],
    watch: Callable[[int], None],
) -> Generator[tuple[Record, Path], None, None]:
    """Yield each record with the folder it lies in.

    `roots` gives the sources by ``original`` and ``copied``; `missing` says, by spec digest, what a case
    needs and does not have; `watch` is told how many are running whenever one starts or ends, and at every
    look. However the loop ends, by an exception or by the caller leaving it, no worker is left running.
    """
    waiting, running = deque(specs), list[launch.Running]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                spec = waiting.popleft()
                folder = scratch / spec.digest()[:16]
                need = missing.get(spec.digest()) or launch.changed(spec, roots[spec.setting.sources])
                if need is not None:
                    yield launch.not_run(spec, folder, need), folder
                    continue
                running.append(launch.start(spec, folder, roots[spec.setting.sources]))
            yield from _ended(running)
            watch(len(running))
            time.sleep(TICK)
    finally:
        for one in running:
            one.stop()


def _ended(running: list[launch.Running]) -> Iterator[tuple[Record, Path]]:
    """Take those that have ended out of the list."""
    for one in list(running):
        record = one.poll()
        if record is not None:
            running.remove(one)
            yield record, one.folder

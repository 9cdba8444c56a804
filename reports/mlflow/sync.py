"""The command `python -m reports.mlflow sync`: bring MLflow up to date, or follow a sweep in the background.

    python -m reports.mlflow sync                     bring MLflow up to date; doing so twice changes nothing
    python -m reports.mlflow sync --follow SWEEP      publish while a sweep runs

The protocol of ``--follow``, for the driver that starts it:

    stdout  ``ready`` once the store is there, or ``unreachable``; at the end a JSON object with the numbers
            of replays published, skipped (already there) and failed.
    stdin   JSON objects, one a line. If no SWEEP was given, first ``{"tracking": URI, "artifacts": FOLDER or
            empty}``, upon which MLflow's store is made, and then ``{"sweep": ID, "archive": URL, "blobs":
            FOLDER}``: addresses may hold passwords, which everybody can read on a command line. For each
            scenario ``{"records": [digest, ...]}``, the records of all its cases, which are in the archive by
            then; at last ``{"end": true}``.
    stderr  sentences for people.
    exit    0, or 2 if MLflow could not be used. Standard input is read to its end in any case.

An end of input without ``{"end": true}`` means that the driver was killed: what was asked for is published,
and the sweep's parent runs end as KILLED. Ctrl-C is left to the driver.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

from rich.console import Console
from rich.progress import Progress

from experiments.core.replay import replays
from experiments.core.streams import INTERRUPTED
from reports.mlflow.database_file import ARTIFACTS, TRACKING
from reports.mlflow.run_content import Sweep, family
from reports.mlflow.tracking import ImpossibleError, Published, Source, Tracking, TrackingError
from store.archive import Archive
from store.console import say, tell
from store.database import ARCHIVE, blobs_beside, sqlite_file
from store.errors import ArchiveError

GOES_ON = "`python -m reports.mlflow sync` goes on where this ended"
_LATER = "Nothing is lost: `python -m reports.mlflow sync` publishes it later."
_NEVER = "Nothing is lost: the archive has it all, and `python -m store list` shows it."

_AT_LEAST = 60.0
_EACH = 5.0
"""Seconds that a server is given in all, and more for each process whose record is to be shown, unless somebody says
otherwise.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `run_sync`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--archive", default=ARCHIVE, metavar="URL", help="the archive (default: %(default)s)")
    parser.add_argument("--blobs", type=Path, metavar="DIR", help="its blobs (default: blobs beside the archive)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--sweep", metavar="ID", help="this sweep only")
    which.add_argument("--all", action="store_true", help="look at every run of every sweep, not only at those to do")
    told = "publish while SWEEP runs, told by a driver on stdin; without SWEEP it is told everything there"
    which.add_argument("--follow", metavar="SWEEP", nargs="?", const="", help=told)
    parser.add_argument("--tracking", metavar="URI", default=TRACKING, help="MLflow store (default: %(default)s)")
    parser.add_argument(
        "--artifacts",
        metavar="DIR",
        type=Path,
        help=f"folder for artifacts (default: {ARTIFACTS}; a server has its own)",
    )
    parser.add_argument(
        "--within",
        metavar="SECONDS",
        type=float,
        help=f"give up a server after so long (default: {_AT_LEAST:g}, and {_EACH:g} for each process of a sweep)",
    )


def run_sync(asked: argparse.Namespace) -> int:
    """Bring MLflow up to date, or follow a sweep.

    Returns 0, 2 if MLflow could not be used, or 130 if interrupted. Raises ArchiveError if the archive cannot be read.
    """
    if asked.follow == "":
        told = awaited(sys.stdin)
        if told is None:
            return 0
        vars(asked).update(told)
    with Archive.open(asked.archive, asked.blobs or blobs_beside(asked.archive), create=False) as archive:
        return synchronize(archive, asked)


def synchronize(archive: Source, arguments: argparse.Namespace) -> int:
    """Exit status 0, 2 if MLflow could not be used, or 130 if it was interrupted."""
    with Tracking(arguments.tracking, _folder(arguments)) as tracking:
        if arguments.follow:
            return follow(archive, arguments.follow, tracking, sys.stdin)
        try:
            counts = _publish(archive, tracking, arguments)
        except (TrackingError, ArchiveError) as error:
            say(f"{error}. {_NEVER if isinstance(error, ImpossibleError) else _left(archive, tracking, arguments)}")
            return 2
        except KeyboardInterrupt:
            with contextlib.suppress(TrackingError):
                tracking.stop()
            say(f"Stopped; {GOES_ON}.")
            return INTERRUPTED
    tell(counts.text() if getattr(arguments, "json", False) else _summed(counts))
    return 0


def _left(archive: Source, tracking: Tracking, arguments: argparse.Namespace) -> str:
    """What is there, what is left, and how it gets there."""
    there = tracking.counts.published + tracking.counts.skipped
    try:
        chosen = _chosen(archive.sweeps(), arguments.sweep)
        all_of_them = sum(len(replays(archive.records(sweep=sweep.id))) for sweep in chosen)
    except ArchiveError:
        return _LATER
    if not there:
        return _LATER
    return (
        f"{there} of {all_of_them} runs are there, {all_of_them - there} are left: the same command goes on with them."
    )


def _folder(arguments: argparse.Namespace) -> Path | None:
    return arguments.artifacts or _default(arguments.tracking)


def _default(uri: str) -> Path | None:
    """Where artifacts are kept unless somebody says otherwise; a server has a place of its own."""
    return None if uri.startswith("http") else Path(ARTIFACTS)


def _publish(archive: Source, tracking: Tracking, arguments: argparse.Namespace) -> Published:
    chosen = _chosen(archive.sweeps(), arguments.sweep)
    tracking.give(arguments.within or _AT_LEAST + _EACH * sum(sweep.done for sweep in chosen))
    tracking.prepare()
    tracking.settle(keep={sweep.id for sweep in chosen}, machines=_ours(archive, arguments.tracking))
    counts = Published()
    hidden = archive.excluded()
    for name in sorted(hidden.sweeps):
        tracking.take_out(name, {})
    for sweep in chosen:
        records = archive.records(sweep=sweep.id)
        if hidden.records:
            kept = {one.digest(): family(one.spec.question.scenario) for one in replays(records)}
            tracking.take_out(sweep.id, kept)
        thorough = arguments.all or arguments.sweep
        if not thorough and tracking.up_to_date(sweep, records):
            counts += tracking.skip(records)
            continue
        with _bar(sweep.id, len(replays(records))) as done:
            counts += tracking.publish(archive, sweep, records, done)
        tracking.finish(sweep)
    tracking.settle(machines=_ours(archive, arguments.tracking))
    return counts


def _chosen(sweeps: Sequence[Sweep], wanted: str | None) -> list[Sweep]:
    found = [sweep for sweep in sweeps if wanted in (None, sweep.id)]
    if wanted is not None and not found:
        known = ", ".join(sweep.id for sweep in sweeps[-5:]) or "none"
        raise ArchiveError(f"there is no sweep {wanted!r} in the archive; the last ones are: {known}")
    return found


def _ours(archive: Source, uri: str) -> set[str] | None:
    """Machines whose running runs may be ended. A SQLite store is this checkout's own; a server has runs of others, and
    a machine whose sweep was added here may be at work there.
    """
    return None if sqlite_file(uri) else {sweep.machine for sweep in archive.sweeps() if sweep.origin is None}


def _summed(counts: Published) -> str:
    return f"{counts.published} runs published, {counts.skipped} were up to date"


@contextlib.contextmanager
def _bar(name: str, total: int) -> Iterator[Callable[[], object]]:
    """Progress on stderr, on a terminal only. Gives what to call after each replay."""
    console = Console(stderr=True)
    if not console.is_terminal:  # where even a bar that is switched off ends with an empty line
        yield lambda: None
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"Publishing {name}", total=total)
        yield lambda: progress.advance(task)


# Following a sweep.


class Orders:
    """What the driver asks for. A thread takes it in at once, so that the driver never waits."""

    def __init__(self, stream: Iterable[str]) -> None:
        self.ended: Literal["no", "told", "driver gone", "not understood"] = "no"
        self._waiting: queue.Queue[list[str] | None] = queue.Queue()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: Iterable[str]) -> None:
        ended: Literal["told", "driver gone", "not understood"] = "driver gone"
        for line in stream:
            try:
                order = json.loads(line)
                if order.get("end"):
                    ended = "told"
                    break
                self._waiting.put([str(name) for name in order["records"]])
            except (ValueError, LookupError, TypeError, AttributeError):
                ended = "not understood"
        self.ended = ended
        self._waiting.put(None)

    def batches(self) -> Iterator[list[list[str]]]:
        """Groups of digests: as many as are waiting, at least one. Ends with the orders."""
        while True:
            batch = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while batch[-1] is not None:
                    batch.append(self._waiting.get_nowait())
            groups = [group for group in batch if group is not None]
            if groups:
                yield groups
            if batch[-1] is None:
                return


def awaited(stream: IO[str]) -> dict[str, Any] | None:
    """The arguments of `publish`, once the driver knows the sweep; None if it ends without one.

    MLflow's store is made meanwhile, which takes as long as the driver takes to plan. If that fails, it is
    tried again, and said, when there is something to publish. SIGTERM ends it with nothing left half made.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    try:
        first = json.loads(stream.readline())
        tracking, artifacts = str(first["tracking"]), Path(first["artifacts"]) if first["artifacts"] else None
        with contextlib.suppress(TrackingError), Tracking(tracking, artifacts or _default(tracking)) as store:
            store.prepare()
        told = json.loads(stream.readline())
        where = {"archive": str(told["archive"]), "blobs": Path(told["blobs"])}
        return {"follow": str(told["sweep"]), "tracking": tracking, "artifacts": artifacts, **where}
    except (ValueError, LookupError, TypeError):
        return None


def _leave(*_: object) -> NoReturn:
    sys.exit(2)


def follow(archive: Source, sweep: str, tracking: Tracking, stream: Iterable[str]) -> int:
    """Publish what the driver asks for; see the module's docstring."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = Orders(stream)
    batches = orders.batches()
    counts = Published()
    try:
        tracking.prepare()
        tracking.settle(keep={sweep}, machines={one.machine for one in archive.sweeps() if one.id == sweep})
        tell("ready")
    except (TrackingError, ArchiveError) as error:
        tell("unreachable")
        return _given_up(error, counts, archive, sweep, batches)
    try:
        for groups in batches:
            for group in groups:
                counts += tracking.publish(archive, _sweep(archive, sweep), archive.records(sweep=sweep, digests=group))
        counts += _last(archive, sweep, tracking, orders)
    except (TrackingError, ArchiveError) as error:
        return _given_up(error, counts, archive, sweep, batches)
    tell(counts.text())
    return 0


def _sweep(archive: Source, name: str) -> Sweep:
    return _chosen(archive.sweeps(), name)[0]


def _last(archive: Source, name: str, tracking: Tracking, orders: Orders) -> Published:
    """Publish what nobody asked for, such as the records of an earlier run of the sweep, and end the parents."""
    if orders.ended != "told":
        tracking.stop()
        return Published()
    sweep = _sweep(archive, name)
    counts = tracking.publish(archive, sweep, tracking.left(sweep, archive.records(sweep=name)))
    tracking.finish(sweep)
    tracking.settle(keep=(), machines={sweep.machine})
    return counts


def _given_up(
    error: Exception, counts: Published, archive: Source, sweep: str, batches: Iterator[list[list[str]]]
) -> int:
    """Say so at once, then go on reading to the end, so that the driver is never kept from writing."""
    say(f"{error}. {_NEVER if isinstance(error, ImpossibleError) else _LATER}")
    for _ in batches:
        pass
    with contextlib.suppress(ArchiveError):
        all_of_them = len(replays(archive.records(sweep=sweep)))
        counts = replace(counts, failed=all_of_them - counts.published - counts.skipped)
    tell(counts.text())
    return 2

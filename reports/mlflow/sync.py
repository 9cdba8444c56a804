"""The command `python -m reports.mlflow sync`: bring MLflow up to date, or follow a sweep in the background.

    python -m reports.mlflow sync                     bring MLflow up to date; doing so twice changes nothing
    python -m reports.mlflow sync --follow SWEEP      publish while a sweep runs

The protocol of ``--follow``, for the driver that starts it:

    stdout  ``ready`` once the store exists, or ``unreachable``; at the end a JSON object with the numbers
            of replays published, skipped (already there) and failed.
    stdin   JSON objects, one a line. If no SWEEP was given, first ``{"tracking": URI, "artifacts": FOLDER or
            empty}``, upon which MLflow's store is made, and then ``{"sweep": ID, "archive": URL, "blobs":
            FOLDER}``: addresses may hold passwords, which anyone can read on a command line. For each
            scenario ``{"records": [digest, ...]}``, the records of all its cases, which are in the archive by
            then; finally ``{"end": true}``.
    stderr  sentences for the user.
    exit    0, or 2 if MLflow could not be used. Standard input is read to its end in any case.

An end of input without ``{"end": true}`` means that the driver was killed: what was requested is published,
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
from experiments.core.spec import family
from experiments.core.streams import INTERRUPTED
from reports.mlflow.database_file import ARTIFACTS, TRACKING
from reports.mlflow.run_content import Sweep
from reports.mlflow.tracking import ImpossibleError, Published, Source, Tracking, TrackingError
from store.archive import Archive
from store.console import print_message, print_result
from store.database import ARCHIVE, default_blob_folder, sqlite_file
from store.errors import ArchiveError

GOES_ON = "`python -m reports.mlflow sync` goes on where this ended"
_LATER = "Nothing is lost: `python -m reports.mlflow sync` publishes it later."
_NEVER = "Nothing is lost: the archive has it all, and `python -m store list` shows it."

_AT_LEAST = 60.0
_EACH = 5.0
"""Default time limit of a server in seconds: in all, and in addition for each process of a sweep."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `run_sync`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--archive", default=ARCHIVE, metavar="URL", help="the archive (default: %(default)s)")
    parser.add_argument("--blobs", type=Path, metavar="DIR", help="its blobs (default: blobs beside the archive)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--sweep", metavar="ID", help="this sweep only")
    which.add_argument("--all", action="store_true", help="look at every run of every sweep, not only at those to do")
    text = "publish while SWEEP runs, told by a driver on stdin; without SWEEP it is told everything there"
    which.add_argument("--follow", metavar="SWEEP", nargs="?", const="", help=text)
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

    Return 0, 2 if MLflow could not be used, or 130 if interrupted. Raise ArchiveError if the archive cannot be read.
    """
    if asked.follow == "":
        order = await_sweep(sys.stdin)
        if order is None:
            return 0
        vars(asked).update(order)
    with Archive.open(asked.archive, asked.blobs or default_blob_folder(asked.archive), create=False) as archive:
        return synchronize(archive, asked)


def synchronize(archive: Source, arguments: argparse.Namespace) -> int:
    """Publish what MLflow lacks. Return 0, 2 if MLflow could not be used, or 130 if interrupted."""
    with Tracking(arguments.tracking, _artifact_folder(arguments)) as tracking:
        if arguments.follow:
            return follow_sweep(archive, arguments.follow, tracking, sys.stdin)
        try:
            counts = _publish_sweeps(archive, tracking, arguments)
        except (TrackingError, ArchiveError) as error:
            impossible = isinstance(error, ImpossibleError)
            print_message(f"{error}. {_NEVER if impossible else _remaining_sentence(archive, tracking, arguments)}")
            return 2
        except KeyboardInterrupt:
            with contextlib.suppress(TrackingError):
                tracking.stop()
            print_message(f"Stopped; {GOES_ON}.")
            return INTERRUPTED
    print_result(counts.text() if getattr(arguments, "json", False) else _summary(counts))
    return 0


def _remaining_sentence(archive: Source, tracking: Tracking, arguments: argparse.Namespace) -> str:
    """Say how many runs are published, how many remain, and how to publish them."""
    there = tracking.counts.published + tracking.counts.skipped
    try:
        chosen = _choose_sweeps(archive.sweeps(), arguments.sweep)
        all_of_them = sum(len(replays(archive.records(sweep=sweep.id))) for sweep in chosen)
    except ArchiveError:
        return _LATER
    if not there:
        return _LATER
    return (
        f"{there} of {all_of_them} runs are there, {all_of_them - there} are left: the same command goes on with them."
    )


def _artifact_folder(arguments: argparse.Namespace) -> Path | None:
    return arguments.artifacts or _default_folder(arguments.tracking)


def _default_folder(uri: str) -> Path | None:
    """Return the default folder of artifacts, or None for a server, which has its own place."""
    return None if uri.startswith("http") else Path(ARTIFACTS)


def _publish_sweeps(archive: Source, tracking: Tracking, arguments: argparse.Namespace) -> Published:
    chosen = _choose_sweeps(archive.sweeps(), arguments.sweep)
    tracking.give_time(arguments.within or _AT_LEAST + _EACH * sum(sweep.done for sweep in chosen))
    tracking.prepare()
    tracking.settle(keep={sweep.id for sweep in chosen}, machines=_own_machines(archive, arguments.tracking))
    counts = Published()
    hidden = archive.excluded_items()
    for name in sorted(hidden.sweeps):
        tracking.remove_runs(name, {})
    for sweep in chosen:
        records = archive.records(sweep=sweep.id)
        if hidden.records:
            kept = {one.digest(): family(one.spec.question.scenario) for one in replays(records)}
            tracking.remove_runs(sweep.id, kept)
        thorough = arguments.all or arguments.sweep
        if not thorough and tracking.is_up_to_date(sweep, records):
            counts += tracking.skip(records)
            continue
        with _progress_bar(sweep.id, len(replays(records))) as done:
            counts += tracking.publish(archive, sweep, records, done)
        tracking.finish(sweep)
    tracking.settle(machines=_own_machines(archive, arguments.tracking))
    return counts


def _choose_sweeps(sweeps: Sequence[Sweep], wanted: str | None) -> list[Sweep]:
    found = [sweep for sweep in sweeps if wanted in (None, sweep.id)]
    if wanted is not None and not found:
        known = ", ".join(sweep.id for sweep in sweeps[-5:]) or "none"
        raise ArchiveError(f"there is no sweep {wanted!r} in the archive; the last ones are: {known}")
    return found


def _own_machines(archive: Source, uri: str) -> set[str] | None:
    """Return the machines whose running runs may be ended, or None for all of them.

    A SQLite store belongs to this checkout. A server has runs of others, and a machine whose sweep was added here may
    be publishing to it now.
    """
    return None if sqlite_file(uri) else {sweep.machine for sweep in archive.sweeps() if sweep.origin is None}


def _summary(counts: Published) -> str:
    return f"{counts.published} runs published, {counts.skipped} were up to date"


@contextlib.contextmanager
def _progress_bar(name: str, total: int) -> Iterator[Callable[[], object]]:
    """Show progress on stderr if it is a terminal. Yield the function to call after each replay."""
    console = Console(stderr=True)
    if not console.is_terminal:  # where even a bar that is switched off ends with an empty line
        yield lambda: None
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"Publishing {name}", total=total)
        yield lambda: progress.advance(task)


# Following a sweep.


class Orders:
    """What the driver asks for. A thread reads it at once, so that the driver never waits."""

    def __init__(self, stream: Iterable[str]) -> None:
        self.ended: Literal["no", "told", "driver gone", "not understood"] = "no"
        self._waiting: queue.Queue[list[str] | None] = queue.Queue()
        threading.Thread(target=self._read_orders, args=(stream,), daemon=True).start()

    def _read_orders(self, stream: Iterable[str]) -> None:
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
        """Yield the waiting groups of digests, at least one at a time, until the orders end."""
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


def await_sweep(stream: IO[str]) -> dict[str, Any] | None:
    """Wait until the driver names the sweep, and return its arguments; None if the driver ends without one.

    MLflow's store is made meanwhile, which takes as long as the driver takes to plan. If that fails, it is
    tried again, and reported, when there is something to publish. SIGTERM leaves nothing half made.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)
    try:
        first = json.loads(stream.readline())
        tracking, artifacts = str(first["tracking"]), Path(first["artifacts"]) if first["artifacts"] else None
        with contextlib.suppress(TrackingError), Tracking(tracking, artifacts or _default_folder(tracking)) as store:
            store.prepare()
        order = json.loads(stream.readline())
        where = {"archive": str(order["archive"]), "blobs": Path(order["blobs"])}
        return {"follow": str(order["sweep"]), "tracking": tracking, "artifacts": artifacts, **where}
    except (ValueError, LookupError, TypeError):
        return None


def _exit(*_: object) -> NoReturn:
    sys.exit(2)


def follow_sweep(archive: Source, sweep: str, tracking: Tracking, stream: Iterable[str]) -> int:
    """Publish what the driver asks for; see the module's docstring. Return 0, or 2 if MLflow could not be used."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = Orders(stream)
    batches = orders.batches()
    counts = Published()
    try:
        tracking.prepare()
        tracking.settle(keep={sweep}, machines={one.machine for one in archive.sweeps() if one.id == sweep})
        print_result("ready")
    except (TrackingError, ArchiveError) as error:
        print_result("unreachable")
        return _give_up(error, counts, archive, sweep, batches)
    try:
        for groups in batches:
            for group in groups:
                counts += tracking.publish(archive, _sweep(archive, sweep), archive.records(sweep=sweep, digests=group))
        counts += _publish_rest(archive, sweep, tracking, orders)
    except (TrackingError, ArchiveError) as error:
        return _give_up(error, counts, archive, sweep, batches)
    print_result(counts.text())
    return 0


def _sweep(archive: Source, name: str) -> Sweep:
    return _choose_sweeps(archive.sweeps(), name)[0]


def _publish_rest(archive: Source, name: str, tracking: Tracking, orders: Orders) -> Published:
    """Publish what the driver did not request, such as records of an earlier run of the sweep, and end the parents."""
    if orders.ended != "told":
        tracking.stop()
        return Published()
    sweep = _sweep(archive, name)
    counts = tracking.publish(archive, sweep, tracking.remaining_records(sweep, archive.records(sweep=name)))
    tracking.finish(sweep)
    tracking.settle(keep=(), machines={sweep.machine})
    return counts


def _give_up(
    error: Exception, counts: Published, archive: Source, sweep: str, batches: Iterator[list[list[str]]]
) -> int:
    """Report the error at once, then read to the end, so that the driver is never blocked. Return 2."""
    print_message(f"{error}. {_NEVER if isinstance(error, ImpossibleError) else _LATER}")
    for _ in batches:
        pass
    with contextlib.suppress(ArchiveError):
        all_of_them = len(replays(archive.records(sweep=sweep)))
        counts = replace(counts, failed=all_of_them - counts.published - counts.skipped)
    print_result(counts.text())
    return 2

"""MLflow as a view of the archive: it may be down, slow or deleted, and nothing is lost.

    python -m store publish                     bring MLflow up to date; doing so twice changes nothing
    python -m store publish --follow SWEEP      publish in the background while a sweep runs
    python -m store.tracking ui                 look at it

There is one experiment per scenario family, in it one parent run per sweep and one child run per replay.
A run is found again by its tags `twofold.sweep` and `twofold.replay`, and left alone if `twofold.published`
is the digest of all that would be written. While a run is being written it is RUNNING, so one that was cut
short is seen and completed by the next publish, or ended by `settle`.

The protocol of ``--follow``, for the driver that starts it:

    stdout  ``ready`` once the store is there, or ``unreachable``; at the end a JSON object with the numbers
            of replays published, skipped (already there) and failed.
    stdin   JSON objects, one a line. If no SWEEP was given, first ``{"sweep": ID, "archive": URL, "blobs":
            FOLDER, "tracking": URI, "artifacts": FOLDER or empty}``: addresses may hold passwords, which
            everybody can read on a command line. Then for each scenario ``{"records": [digest, ...]}``, the
            records of all its cases, which are in the archive by then; at last ``{"end": true}``.
    stderr  sentences for people.
    exit    0, or 2 if MLflow could not be used. Standard input is read to its end in any case.

An end of input without ``{"end": true}`` means that the driver was killed: what was asked for is published,
and the sweep's parent runs end as KILLED. Ctrl-C is left to the driver.

This is the only module that imports mlflow, and only when it is first needed: that costs 1.35 s.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import logging
import os
import queue
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, Self

from alembic.util import CommandError
from rich.console import Console
from rich.progress import Progress
from sqlalchemy import NullPool, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from experiments.record import Record, Replay, replays
from experiments.verdict import contexts, judge
from store.errors import ArchiveError
from store.publisher import Page, Row, Sweep, contents, cut, family, key, page, row, summary, texts, visible

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

TRACKING = "sqlite:///outputs/mlflow.db"
ARTIFACTS = "outputs/artifacts"

_AT_ONCE = {"params": 100, "tags": 100, "metrics": 800}
"""Items of one `log_batch`; MLflow takes 100, 100 and 1000, and 1000 together."""
assert sum(_AT_ONCE.values()) <= 1000
_PAGE = 1000
"""Runs asked for at once."""
_PATIENCE = 60.0
"""Seconds to wait for another publisher of the same store."""
_START = 60.0
"""Seconds that the user interface may take to answer."""
_UNFINISHED = "unfinished"
"""Tag `twofold.published` of a run that was not written to its end."""

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
_LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
"""For a server that is down or slow. Whoever sets these variables has the last word."""

_ABOUT = "A view of Twofold's archive: a run for each sweep, and below it one for each replay."
_LATER = "Nothing is lost: `python -m store publish` publishes it later."


class TrackingError(Exception):
    """MLflow cannot be used. The message says where it was looked for and what happened."""


class Source(Protocol):
    """What is needed of an archive."""

    def records(self, *, sweep: str | None = None, digests: Sequence[str] | None = None) -> list[Record]: ...
    def sweeps(self) -> Sequence[Sweep]: ...
    def document(self, name: str, /) -> str | None: ...
    def fetch(self, name: str, /) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Published:
    """Numbers of replays."""

    published: int = 0
    skipped: int = 0
    """Already there, and equal."""
    failed: int = 0

    def __add__(self, other: Published) -> Published:
        return Published(self.published + other.published, self.skipped + other.skipped, self.failed + other.failed)

    def text(self) -> str:
        return json.dumps({"published": self.published, "skipped": self.skipped, "failed": self.failed})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A run that MLflow has."""

    id: str
    status: str
    published: str
    revision: int
    """Which writing of the page it shows, from 0: the step of its metrics, so that the newest counts."""
    params: frozenset[str]
    metrics: frozenset[str]
    tags: frozenset[str]
    records: str


class Tracking:
    """An MLflow store, opened for one publisher at a time."""

    def __init__(self, uri: str = TRACKING, artifacts: Path | None = None) -> None:
        """`artifacts` is where runs keep their files; None leaves that to a server."""
        self._uri = uri
        self._artifacts = artifacts
        self._client: MlflowClient | None = None
        self._experiments: dict[str, str] = {}
        self._runs: dict[tuple[str, str], dict[str, _Known]] = {}
        """By family and sweep: runs by replay, the parent under the empty name."""
        self._rows: dict[tuple[str, str], dict[str, Row]] = {}
        """By family and sweep: what was looked at since the store was opened, by replay."""
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def prepare(self, families: Iterable[str] = ()) -> None:
        """Make the store, and experiments for `families`, before anything runs in parallel.

        Raises TrackingError if MLflow cannot be used. So does every other method.
        """
        with _reaching(self._uri):
            file = _database(self._uri)
            if file is not None:
                self._lock = _locked(file)
                _write_ahead(file)
            self._client = _connect(self._uri)
            self._client.search_experiments(max_results=1)
            for name in families:
                self._experiment(name)

    @property
    def _mlflow(self) -> MlflowClient:
        if self._client is None:
            raise TrackingError("the MLflow store has not been prepared")
        return self._client

    # Publishing.

    def publish(
        self,
        archive: Source,
        sweep: Sweep,
        records: Sequence[Record],
        done: Callable[[], object] = lambda: None,
    ) -> Published:
        """Write one run for each replay of `records`, which hold all cases of each of their scenarios.

        `done` is called after each replay. The sweep's parent runs stay RUNNING until `finish`.
        """
        made = replays(records)
        document = functools.cache(archive.document)
        counts = Published()
        for replay, context in zip(made, contexts(made, archive.fetch)):
            name = family(replay.spec.question.scenario)
            written = texts(replay)
            shown = row(replay, judge(replay, context), written)
            wanted = page(replay, context, shown, written, sweep=sweep, document=document)
            with _reaching(self._uri):
                fresh = self._child(name, sweep, replay.digest(), wanted)
            self._rows.setdefault((name, sweep.id), {})[replay.digest()] = shown
            counts += Published(published=1) if fresh else Published(skipped=1)
            done()
        return counts

    def finish(self, sweep: Sweep) -> None:
        """Write the parent runs of everything that was published of this sweep."""
        for (name, of), rows in self._rows.items():
            if of == sweep.id:
                with _reaching(self._uri):
                    self._write(name, sweep.id, "", summary(sweep, name, list(rows.values())))

    def left(self, sweep: Sweep, records: Sequence[Record]) -> list[Record]:
        """Of all records of a sweep those whose scenario was not wholly published since the store was opened."""
        seen = {
            (name, one.content) for (_, of), rows in self._rows.items() if of == sweep.id for name, one in rows.items()
        }
        open_ = {
            replay.spec.question.scenario
            for replay in replays(records)
            if (replay.digest(), replay.content_digest()) not in seen
        }
        return [record for record in records if record.spec.question.scenario in open_]

    def up_to_date(self, sweep: Sweep, records: Sequence[Record]) -> bool:
        """Whether the parent runs say that all of these records were published, and the sweep as it stands."""
        by_family: dict[str, list[Replay]] = {}
        for replay in replays(records):
            by_family.setdefault(family(replay.spec.question.scenario), []).append(replay)
        with _reaching(self._uri):
            return all(self._complete(name, sweep, made) for name, made in by_family.items())

    def settle(self, keep: Iterable[str] = (), machines: Iterable[str] | None = None) -> int:
        """End every run of ours that is still RUNNING, except those of the sweeps `keep`. Says how many.

        On a server that others use too, `machines` are those whose sweeps are ours; None for all.
        """
        kept, ours = set(keep), None if machines is None else set(machines)
        with _reaching(self._uri):
            found = [
                run
                for run in _all_runs(self._mlflow, self._our_experiments(), "attributes.status = 'RUNNING'")
                if "twofold.sweep" in run.data.tags
                and run.data.tags["twofold.sweep"] not in kept
                and (ours is None or run.data.tags.get("twofold.machine") in ours)
            ]
            for run in found:
                self._end(run.info.run_id)
        return len(found)

    # One run.

    def _child(self, name: str, sweep: Sweep, replay: str, wanted: Page) -> bool:
        """Write the run of a replay below its sweep's parent. Says whether anything had to be written."""
        parent = self._parent(name, sweep)
        tags = {**wanted.tags, "mlflow.parentRunId": parent.id}
        wanted = replace(wanted, tags=tags)
        there = self._known(name, sweep.id).get(replay)
        if there is not None and _same(there, wanted):
            return False
        self._reopen(name, sweep.id, parent)
        self._write(name, sweep.id, replay, wanted)
        return True

    def _parent(self, name: str, sweep: Sweep) -> _Known:
        """The parent run, made if it is not there."""
        known = self._known(name, sweep.id)
        if "" not in known:
            opened = summary(sweep, name, [])
            some = {key: value for key, value in opened.tags.items() if not key.startswith("mlflow.note")}
            known[""] = self._create(name, replace(opened, tags=some), _UNFINISHED)
        return known[""]

    def _reopen(self, name: str, sweep: str, parent: _Known) -> None:
        """A parent below which something is written is RUNNING, and no longer what was published."""
        if parent.published != _UNFINISHED or parent.status != "RUNNING":
            self._mlflow.update_run(parent.id, status="RUNNING")
            self._mlflow.set_tag(parent.id, "twofold.published", _UNFINISHED)
            self._known(name, sweep)[""] = replace(parent, published=_UNFINISHED, status="RUNNING")

    def _write(self, name: str, sweep: str, replay: str, wanted: Page) -> None:
        """Create or refresh a run; it is RUNNING until everything is there."""
        known = self._known(name, sweep)
        there = known.get(replay)
        if there is not None and _same(there, wanted):
            return
        if there is not None and not there.metrics <= wanted.metrics.keys():
            # MLflow cannot take a number back: the run goes to its trash, and a new one takes its place.
            self._mlflow.delete_run(there.id)
            there = None
        if there is None:
            there = self._create(name, wanted, wanted.digest())
        elif there.status != "RUNNING":
            self._mlflow.update_run(there.id, status="RUNNING", name=wanted.name)
        revision = there.revision + (bool(there.metrics) and there.published != wanted.digest())
        self._fill(there, wanted, revision)
        self._mlflow.set_terminated(there.id, wanted.status, end_time=wanted.ended)
        known[replay] = replace(
            there,
            status=wanted.status,
            published=wanted.digest(),
            revision=revision,
            params=there.params | wanted.params.keys(),
            metrics=frozenset(wanted.metrics),
            tags=frozenset(wanted.tags),
            records=wanted.tags["twofold.records"],
        )

    def _create(self, name: str, wanted: Page, published: str) -> _Known:
        tags = {**wanted.tags, "twofold.published": published, "twofold.revision": "0"}
        run = self._mlflow.create_run(
            self._experiment(name), start_time=wanted.started, tags=tags, run_name=wanted.name
        )
        return _known(run)

    def _fill(self, there: _Known, wanted: Page, revision: int) -> None:
        """Parameters cannot be changed once they are there, so only missing ones are sent."""
        from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415 - see the module's docstring

        fresh = there.published == wanted.digest() and there.status == "RUNNING" and not there.params
        tags = {} if fresh else {**wanted.tags, "twofold.published": wanted.digest(), "twofold.revision": str(revision)}
        batches: dict[str, list[Any]] = {
            "params": [Param(name, text) for name, text in wanted.params.items() if name not in there.params],
            "tags": [RunTag(name, text) for name, text in tags.items()],
            "metrics": [Metric(name, value, wanted.ended, revision) for name, value in wanted.metrics.items()],
        }
        for some in _batches(batches):
            self._mlflow.log_batch(there.id, some["metrics"], some["params"], some["tags"])
        for name in there.tags - wanted.tags.keys() - {"twofold.published", "twofold.revision"}:
            if name.startswith("twofold."):
                self._mlflow.delete_tag(there.id, name)
        with tempfile.TemporaryDirectory(prefix="twofold-") as folder:
            _lay_out(Path(folder), wanted.files)
            self._mlflow.log_artifacts(there.id, folder)

    def stop(self) -> None:
        """End as KILLED whatever this publisher left RUNNING."""
        with _reaching(self._uri):
            for known in self._runs.values():
                for name, run in known.items():
                    if run.status == "RUNNING":
                        self._end(run.id)
                        known[name] = replace(run, status="KILLED", published=_UNFINISHED)

    def _end(self, run: str) -> None:
        self._mlflow.set_tag(run, "twofold.published", _UNFINISHED)
        self._mlflow.set_terminated(run, "KILLED")

    # What is there.

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            self._experiments[name] = self._found_or_made(name)
        return self._experiments[name]

    def _found_or_made(self, name: str) -> str:
        title = cut(visible(f"twofold/{name}" if name else "twofold"), 400)
        found = self._mlflow.get_experiment_by_name(title)
        if found is None:
            place = None if self._artifacts is None else (self._artifacts / key(name)).resolve().as_uri()
            about = {"mlflow.note.content": _ABOUT}
            return str(self._mlflow.create_experiment(title, artifact_location=place, tags=about))
        if found.lifecycle_stage == "deleted":
            self._mlflow.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _our_experiments(self) -> list[str]:
        found = self._mlflow.search_experiments(filter_string="name LIKE 'twofold%'", max_results=_PAGE)
        return [str(one.experiment_id) for one in found]

    def _known(self, name: str, sweep: str) -> dict[str, _Known]:
        if (name, sweep) not in self._runs:
            known: dict[str, _Known] = {}
            for run in _all_runs(self._mlflow, [self._experiment(name)], f"tags.`twofold.sweep` = '{sweep}'"):
                replay = run.data.tags.get("twofold.replay", "")
                if replay in known:
                    # Who takes an experiment out of MLflow's trash gets runs back that were replaced since.
                    self._mlflow.delete_run(run.info.run_id)
                else:
                    known[replay] = _known(run)
            self._runs[name, sweep] = known
        return self._runs[name, sweep]

    def _complete(self, name: str, sweep: Sweep, made: Sequence[Replay]) -> bool:
        parent = self._known(name, sweep.id).get("")
        if parent is None or parent.status == "RUNNING" or parent.published == _UNFINISHED:
            return False
        return parent.records == contents([replay.content_digest() for replay in made], sweep)


def _same(there: _Known, wanted: Page) -> bool:
    return there.status == wanted.status and there.published == wanted.digest()


def _known(run: Run) -> _Known:
    tags = run.data.tags
    return _Known(
        id=run.info.run_id,
        status=run.info.status,
        published=tags.get("twofold.published", ""),
        revision=int(tags.get("twofold.revision", "0")),
        params=frozenset(run.data.params),
        metrics=frozenset(run.data.metrics),
        tags=frozenset(tags),
        records=tags.get("twofold.records", ""),
    )


def _all_runs(client: MlflowClient, experiments: Sequence[str], wanted: str) -> Iterator[Run]:
    token: str | None = None
    while experiments:
        found = client.search_runs(list(experiments), wanted, max_results=_PAGE, page_token=token)
        yield from found
        token = found.token
        if not token:
            return


def _batches(items: Mapping[str, list[Any]]) -> Iterator[dict[str, list[Any]]]:
    """All items in as few calls as MLflow allows."""
    for start in range(max(-(-len(found) // _AT_ONCE[kind]) for kind, found in items.items())):
        yield {
            kind: found[start * size : (start + 1) * size] for kind, size in _AT_ONCE.items() for found in [items[kind]]
        }


def _lay_out(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "backslashreplace"))


# Reaching MLflow.


def _connect(uri: str) -> MlflowClient:
    client = _imported()
    if "://" in uri and make_url(uri).get_backend_name() not in ("sqlite", "http", "https", "file"):
        _answered(uri)
    return client(tracking_uri=uri)


def _answered(uri: str) -> None:
    """Whether the database server answers at all: MLflow itself would try again for minutes."""
    engine = create_engine(uri, poolclass=NullPool)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def _imported() -> type[MlflowClient]:
    """mlflow, with its own talk turned down. Connects to nothing."""
    os.environ.update(_QUIET)
    for name, value in _LIMITS.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow import MlflowClient  # noqa: PLC0415 - see the module's docstring

    # mlflow sets its own loggers up when it is imported.
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return MlflowClient


@contextlib.contextmanager
def _reaching(uri: str) -> Iterator[None]:
    """Whatever MLflow, its database or the network raise, as one sentence."""
    try:
        yield
    except ArchiveError:
        raise
    except (SQLAlchemyError, CommandError, sqlite3.Error, OSError, ImportError) as error:
        raise TrackingError(_sentence(uri, error)) from None
    except Exception as error:
        # Its class cannot be named without importing mlflow, which may be what failed.
        if type(error).__module__.partition(".")[0] != "mlflow":
            raise
        raise TrackingError(_sentence(uri, error)) from None


def _sentence(uri: str, error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"MLflow at {_shown(uri)} cannot be used: {_shown(cut(visible(first), 500)) or type(error).__name__}"


def _shown(text: str) -> str:
    """Without passwords."""
    return re.sub(r"//[^/@\s]*@", "//***@", text)


def _database(uri: str) -> Path | None:
    """The file of a SQLite store. None for a server or another database."""
    if not uri.startswith("sqlite:"):
        return None
    name = make_url(uri).database
    return Path(name) if name and name != ":memory:" else None


def _locked(file: Path) -> IO[bytes]:
    """One publisher at a time: two that look for the same run would both make it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = file.with_name(f"{file.name}.lock").open("ab")
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                lock.close()
                raise TrackingError(f"another process has been publishing to {file} for {_PATIENCE:g} s") from None
            time.sleep(0.1)
        else:
            return lock


def _write_ahead(file: Path) -> None:
    """SQLite's write-ahead log halves the time of a run. It is a property of the file."""
    with contextlib.closing(sqlite3.connect(file, timeout=10)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


# The command `python -m store publish`.


def add_publish_arguments(parser: argparse.ArgumentParser) -> None:
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


def main_publish(archive: Source, arguments: argparse.Namespace) -> int:
    """Exit status 0, or 2 if MLflow could not be used."""
    with Tracking(arguments.tracking, _folder(arguments)) as tracking:
        if arguments.follow:
            return follow(archive, arguments.follow, tracking, sys.stdin)
        try:
            counts = _publish(archive, tracking, arguments)
        except (TrackingError, ArchiveError) as error:
            _say(f"{error}. {_LATER}")
            return 2
        except KeyboardInterrupt:
            with contextlib.suppress(TrackingError):
                tracking.stop()
            _say("Stopped; `python -m store publish` goes on where this ended.")
            return 2
    _tell(counts.text() if getattr(arguments, "json", False) else _summed(counts))
    return 0


def _folder(arguments: argparse.Namespace) -> Path | None:
    if arguments.artifacts is None and arguments.tracking.startswith("http"):
        return None
    return Path(arguments.artifacts or ARTIFACTS)


def _publish(archive: Source, tracking: Tracking, arguments: argparse.Namespace) -> Published:
    chosen = _chosen(archive.sweeps(), arguments.sweep)
    tracking.prepare()
    tracking.settle(keep={sweep.id for sweep in chosen}, machines=_ours(archive, arguments.tracking))
    counts = Published()
    for sweep in chosen:
        records = archive.records(sweep=sweep.id)
        thorough = arguments.all or arguments.sweep
        if not thorough and tracking.up_to_date(sweep, records):
            counts += Published(skipped=len(replays(records)))
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
    """A SQLite store is this checkout's own; a server has runs of others."""
    return None if _database(uri) else {sweep.machine for sweep in archive.sweeps()}


def _summed(counts: Published) -> str:
    return f"{counts.published} runs published, {counts.skipped} were up to date"


@contextlib.contextmanager
def _bar(name: str, total: int) -> Iterator[Callable[[], object]]:
    """Progress on stderr, on a terminal only. Gives what to call after each replay."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(f"Publishing {name}", total=total)
        yield lambda: progress.advance(task)


def _say(sentence: str) -> None:
    _print(sentence, sys.stderr)


def _tell(line: str) -> None:
    _print(line, sys.stdout)


def _print(line: str, stream: IO[str]) -> None:
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError:
        # Whoever listened is gone. Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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

    mlflow is imported meanwhile, which takes as long as the driver takes to plan.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_imported, daemon=True).start()
    try:
        told = json.loads(stream.readline())
        artifacts = Path(told["artifacts"]) if told["artifacts"] else None
        urls = {"archive": str(told["archive"]), "blobs": Path(told["blobs"]), "tracking": str(told["tracking"])}
        return {"follow": str(told["sweep"]), "artifacts": artifacts, **urls}
    except (ValueError, LookupError, TypeError):
        return None


def follow(archive: Source, sweep: str, tracking: Tracking, stream: Iterable[str]) -> int:
    """Publish what the driver asks for; see the module's docstring."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = Orders(stream)
    batches = orders.batches()
    counts = Published()
    try:
        tracking.prepare()
        tracking.settle(keep={sweep}, machines={one.machine for one in archive.sweeps() if one.id == sweep})
        _tell("ready")
    except (TrackingError, ArchiveError) as error:
        _tell("unreachable")
        return _given_up(error, counts, archive, sweep, batches)
    try:
        for groups in batches:
            for group in groups:
                counts += tracking.publish(archive, _sweep(archive, sweep), archive.records(sweep=sweep, digests=group))
        counts += _last(archive, sweep, tracking, orders)
    except (TrackingError, ArchiveError) as error:
        return _given_up(error, counts, archive, sweep, batches)
    _tell(counts.text())
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
    _say(f"{error}. {_LATER}")
    for _ in batches:
        pass
    with contextlib.suppress(ArchiveError):
        all_of_them = len(replays(archive.records(sweep=sweep)))
        counts = replace(counts, failed=all_of_them - counts.published - counts.skipped)
    _tell(counts.text())
    return 2


# The user interface.


def main_ui(argv: Sequence[str]) -> int:
    """Run MLflow's user interface on the loopback until Ctrl-C. Exit status 0, or 2 if it cannot start."""
    arguments = _ui_arguments(argv)
    hindrance = _hindrance(arguments.tracking, arguments.port)
    if hindrance:
        _say(hindrance)
        return 2
    # Whoever ends this process, by Ctrl-C or otherwise, ends the server with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    process = subprocess.Popen(
        _ui_command(arguments),
        env={"PYTHONWARNINGS": "ignore", **os.environ, **_QUIET},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
    )
    try:
        return _served(process, f"http://127.0.0.1:{arguments.port}")
    except KeyboardInterrupt:
        return 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _ui_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m store.tracking ui", description="MLflow's user interface.")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--tracking", metavar="URI", default=TRACKING)
    parser.add_argument("--artifacts", metavar="DIR", type=Path, default=Path(ARTIFACTS))
    return parser.parse_args(argv)


def _ui_command(arguments: argparse.Namespace) -> list[str]:
    where = [
        "--backend-store-uri",
        arguments.tracking,
        "--default-artifact-root",
        arguments.artifacts.resolve().as_uri(),
    ]
    return [
        *(sys.executable, "-m", "mlflow", "server", *where),
        *("--host", "127.0.0.1", "--port", str(arguments.port), "--workers", "1"),
        *("--uvicorn-opts", "--log-level warning"),
    ]


def _hindrance(uri: str, port: int) -> str:
    """Why the user interface cannot start. Empty if it can."""
    if uri.startswith("http"):
        return f"{_shown(uri)} is a server with its own user interface: open it in a browser"
    file = _database(uri)
    if file is not None and not file.is_file():
        return f"nothing has been published yet: there is no {file}. Run `make run-all` or `python -m store publish`"
    if _taken(port):
        return f"port {port} is taken; try another one, such as --port {_free()}"
    return ""


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _served(process: subprocess.Popen[bytes], address: str) -> int:
    """Print the address once it answers, then wait for the end."""
    until = time.monotonic() + _START
    while process.poll() is None and not _answers(address):
        if time.monotonic() > until:
            _say(f"MLflow's server has not answered at {address} for {_START:g} s")
            return 2
        time.sleep(0.2)
    if process.poll() is None:
        _tell(f"{address} shows what was published; Ctrl-C ends it")
    return 0 if process.wait() == 0 else 2


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:  # noqa: S310 - our own address
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    if sys.argv[1:2] != ["ui"]:
        _say("usage: python -m store.tracking ui [--port PORT] [--tracking URI] [--artifacts DIR]")
        sys.exit(2)
    sys.exit(main_ui(sys.argv[2:]))

"""MLflow as a view of the archive: it may be down, slow or deleted, and nothing is lost.

There is one experiment per scenario family, in it one parent run per sweep and one child run per replay.
A run is found again by its tags `twofold.sweep` and `twofold.replay`, and left unchanged if `twofold.published`
is the digest of everything that would be written. While a run is being written it is RUNNING, so an
interrupted one is recognized and completed by the next publish, or ended by `settle`.

This is the only module that imports mlflow, and only when it is first needed, as the import takes 1.35 s.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import math
import os
import sqlite3
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import unquote, urlsplit

from alembic.util import CommandError
from sqlalchemy import NullPool, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from experiments.analysis.series import Measured
from experiments.core.masking import mask_secrets
from experiments.core.record import Record
from experiments.core.replay import Replay, replays
from experiments.core.spec import family
from experiments.core.text import cut_text, safe_key, visible_text
from experiments.core.verdict import contexts, judge
from reports.figures import draw_series
from reports.mlflow import database_file, server
from reports.mlflow.database_file import ARTIFACTS, TRACKING
from reports.mlflow.run_content import Page, Row, Sweep, contents_digest, page, record_texts, row, summary
from store.console import print_message
from store.database import sqlite_file
from store.errors import ArchiveError
from store.exclusions import Excluded

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_AT_ONCE = {"params": 100, "tags": 100, "metrics": 800}
"""Items of one `log_batch`; MLflow takes 100, 100 and 1000, and 1000 together."""
assert sum(_AT_ONCE.values()) <= 1000
_PAGE = 200
"""Runs requested at once: their notes and tags are some kilobytes each."""
_PAGES = 1000
"""Most pages requested of one answer."""
_PATIENCE = 60.0
"""Seconds to wait for another publisher of the same store."""
_STEP = 60.0
"""Seconds in which a server has to accept one replay, or to answer one query."""
_UNFINISHED = "unfinished"
"""Tag `twofold.published` of a run that was not written to its end."""

QUIET = {
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
    # A server may ask for any number of seconds.
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
}
"""Limits for a server that is down or slow. Variables that the user has set take precedence."""

_ABOUT = "A view of Twofold's archive: a run for each sweep, and below it one for each replay."


class TrackingError(Exception):
    """MLflow cannot be used. The message says where it was expected and what happened."""


class ImpossibleError(TrackingError):
    """MLflow can never be used from here, so the message must not suggest trying again."""


class Source(Protocol):
    """What is read from an archive."""

    def records(self, *, sweep: str | None = None, digests: Sequence[str] | None = None) -> list[Record]: ...
    def sweeps(self) -> Sequence[Sweep]: ...
    def excluded_items(self) -> Excluded: ...
    def document(self, name: str, /) -> str | None: ...
    def fetch(self, name: str, /) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Published:
    """Numbers of replays that were published, skipped and failed."""

    published: int = 0
    skipped: int = 0
    """Already there, and equal."""
    failed: int = 0

    def __add__(self, other: Published) -> Published:
        return Published(self.published + other.published, self.skipped + other.skipped, self.failed + other.failed)

    def text(self) -> str:
        """Return the numbers as JSON."""
        return json.dumps({"published": self.published, "skipped": self.skipped, "failed": self.failed})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A run that MLflow has."""

    id: str
    status: str
    artifacts: str
    """Address of its files."""
    published: str
    revision: int
    """How often its page was rewritten, from 0: the step of its metrics, so that the newest counts."""
    params: frozenset[str]
    metrics: frozenset[str]
    tags: frozenset[str]
    records: str


class Tracking:
    """An MLflow store, opened for one publisher at a time."""

    def __init__(self, uri: str = TRACKING, artifacts: Path | None = None) -> None:
        """Open nothing yet. `artifacts` is the folder of the runs' files; None leaves the choice to a server."""
        self._uri = uri
        self._artifacts = artifacts
        self._client: MlflowClient | None = None
        self._experiments: dict[str, str] = {}
        self._runs: dict[tuple[str, str], dict[str, _Known]] = {}
        """By family and sweep: runs by replay, the parent under the empty name."""
        self._rows: dict[tuple[str, str], dict[str, Row]] = {}
        """By family and sweep: rows of the replays published since the store was opened, by replay."""
        self._until = math.inf
        self._leaving = contextlib.ExitStack()
        self.counts = Published()
        """What was published since the store was opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store."""
        self._leaving.close()

    def give_time(self, seconds: float) -> None:
        """Give a server so many seconds, from now on, for everything that is published to it."""
        self._until = time.monotonic() + seconds

    def prepare(self, families: Iterable[str] = ()) -> None:
        """Make the store, and experiments for `families`, before anything runs in parallel.

        Raise TrackingError if MLflow cannot be used, as does every other method.
        """
        with self._reach_mlflow():
            file = sqlite_file(self._uri)
            if file is not None:
                self._leaving.enter_context(_lock_store(file))
                self._client = self._open_file(file)
            else:
                self._client = self._connect()
            self._client.search_experiments(max_results=1)
            for name in families:
                self._experiment(name)

    def _open_file(self, file: Path) -> MlflowClient:
        """Return a client of the store in this file, which is made if it is missing or unusable."""
        why = database_file.fault(file) if database_file.has_store(file) else ""
        if why:
            aside = database_file.move_aside(file)
            message = f"MLflow's store {file} cannot be used: {why}. It is kept as {aside.name}, and a new one is made"
            print_message(
                f"{visible_text(message)} from the records; "
                "`python -m reports.mlflow sync` brings earlier sweeps into it"
            )
        if not database_file.has_store(file):
            database_file.create_store(file, _make_tables)
        database_file.enable_write_ahead_log(file)
        client = import_client()(tracking_uri=self._leaving.enter_context(database_file.usable_address(file)))
        # The same address may be another file next time.
        self._leaving.callback(client._tracking_client.store.engine.dispose)  # noqa: SLF001 - mlflow has no other way
        return client

    def _connect(self) -> MlflowClient:
        client = import_client()
        if self._uri.startswith("http"):
            self._leaving.enter_context(server.limit_answers())
        elif "://" in self._uri and make_url(self._uri).get_backend_name() != "file":
            _check_connection(self._uri)
        return client(tracking_uri=self._uri)

    @contextlib.contextmanager
    def _reach_mlflow(self) -> Iterator[None]:
        """Turn errors of MLflow, its database and the network into a TrackingError, and limit a server's time."""
        if sqlite_file(self._uri) is not None:
            with _convert_errors(self._uri):
                yield
            return
        left = min(_STEP, self._until - time.monotonic())
        try:
            with _convert_errors(self._uri), server.limit_time(left):
                yield
        except server.TooLate:
            message = f"it did not answer within {left:.0f} s" if left == _STEP else "it took longer than it was given"
            raise TrackingError(_sentence(self._uri, message)) from None

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
        """Write one run for each replay of `records`, which must hold all cases of each of their scenarios.

        `done` is called after each replay. The sweep's parent runs stay RUNNING until `finish`.
        """
        sweep_replays = replays(records)
        document = functools.cache(archive.document)
        counts = Published()
        for replay, context in zip(sweep_replays, contexts(sweep_replays, archive.fetch)):
            name = family(replay.spec.question.scenario)
            written = record_texts(replay)
            replay_row = row(replay, judge(replay, context), written)
            wanted = page(replay, context, replay_row, written, sweep=sweep, document=document)
            with self._reach_mlflow():
                fresh = self._write_child(name, sweep, replay.digest(), wanted)
            self._rows.setdefault((name, sweep.id), {})[replay.digest()] = replay_row
            one = Published(published=1) if fresh else Published(skipped=1)
            counts, self.counts = counts + one, self.counts + one
            done()
        return counts

    def skip(self, records: Sequence[Record]) -> Published:
        """Count the replays of records that `is_up_to_date` has found published."""
        one = Published(skipped=len(replays(records)))
        self.counts += one
        return one

    def finish(self, sweep: Sweep) -> None:
        """Write the parent runs of everything that was published from this sweep."""
        for (name, of), rows in self._rows.items():
            if of == sweep.id:
                with self._reach_mlflow():
                    self._write_run(name, sweep.id, "", summary(sweep, name, list(rows.values())))

    def remaining_records(self, sweep: Sweep, records: Sequence[Record]) -> list[Record]:
        """Return the records of a sweep whose scenario was not completely published since the store was opened."""
        seen = {
            (name, one.content) for (_, of), rows in self._rows.items() if of == sweep.id for name, one in rows.items()
        }
        open_ = {
            replay.spec.question.scenario
            for replay in replays(records)
            if (replay.digest(), replay.content_digest()) not in seen
        }
        return [record for record in records if record.spec.question.scenario in open_]

    def is_up_to_date(self, sweep: Sweep, records: Sequence[Record]) -> bool:
        """Return whether all of these records were published, with the present state of the sweep."""
        by_family: dict[str, list[Replay]] = {}
        for replay in replays(records):
            by_family.setdefault(family(replay.spec.question.scenario), []).append(replay)
        with self._reach_mlflow():
            return all(self._is_complete(name, sweep, made) for name, made in by_family.items())

    def remove_runs(self, sweep: str, kept: Mapping[str, str]) -> int:
        """Move runs of a sweep to MLflow's trash, except those of the replays in `kept` (digest -> family).

        Parents of families without a remaining replay are moved as well. Return the number of runs moved.
        """
        with self._reach_mlflow():
            families = {self._experiment(name) for name in kept.values()}
            found = [
                run
                for run in _all_runs(self._mlflow, self._our_experiments(), f"tags.`twofold.sweep` = '{sweep}'")
                for replay in [run.data.tags.get("twofold.replay", "")]
                if (replay not in kept if replay else str(run.info.experiment_id) not in families)
            ]
            for run in found:
                self._mlflow.delete_run(run.info.run_id)
            self._runs = {known: runs for known, runs in self._runs.items() if known[1] != sweep}
        return len(found)

    def settle(self, keep: Iterable[str] = (), machines: Iterable[str] | None = None) -> int:
        """End every run of ours that is still RUNNING, except those of the sweeps `keep`. Return their number.

        On a server that others use too, `machines` are those whose sweeps are ours; None stands for all.
        """
        kept, ours = set(keep), None if machines is None else set(machines)
        with self._reach_mlflow():
            found = [
                run
                for run in _all_runs(self._mlflow, self._our_experiments(), "attributes.status = 'RUNNING'")
                if "twofold.sweep" in run.data.tags
                and run.data.tags["twofold.sweep"] not in kept
                and (ours is None or run.data.tags.get("twofold.machine") in ours)
            ]
            for run in found:
                self._kill_run(run.info.run_id)
        return len(found)

    # One run.

    def _write_child(self, name: str, sweep: Sweep, replay: str, wanted: Page) -> bool:
        """Write the run of a replay below its sweep's parent. Return whether anything had to be written."""
        parent = self._ensure_parent(name, sweep)
        tags = {**wanted.tags, "mlflow.parentRunId": parent.id}
        wanted = replace(wanted, tags=tags)
        there = self._known_runs(name, sweep.id).get(replay)
        if there is not None and _is_same(there, wanted):
            return False
        self._reopen_parent(name, sweep.id, parent)
        self._write_run(name, sweep.id, replay, wanted)
        return True

    def _ensure_parent(self, name: str, sweep: Sweep) -> _Known:
        """Return the parent run, which is created if it is missing."""
        known = self._known_runs(name, sweep.id)
        if "" not in known:
            opened = summary(sweep, name, [])
            tags = {key: value for key, value in opened.tags.items() if not key.startswith("mlflow.note")}
            known[""] = self._create_run(name, replace(opened, tags=tags), _UNFINISHED)
        return known[""]

    def _reopen_parent(self, name: str, sweep: str, parent: _Known) -> None:
        """Mark a parent as RUNNING and unfinished before something is written below it."""
        if parent.published != _UNFINISHED or parent.status != "RUNNING":
            self._mlflow.update_run(parent.id, status="RUNNING")
            self._mlflow.set_tag(parent.id, "twofold.published", _UNFINISHED)
            self._known_runs(name, sweep)[""] = replace(parent, published=_UNFINISHED, status="RUNNING")

    def _write_run(self, name: str, sweep: str, replay: str, wanted: Page) -> None:
        """Create or refresh a run, which is RUNNING until everything is written."""
        known = self._known_runs(name, sweep)
        there = known.get(replay)
        if there is not None and _is_same(there, wanted):
            return
        if there is not None and not there.metrics <= wanted.metrics.keys() | wanted.steps.keys():
            # MLflow cannot delete a metric: the run goes to its trash, and a new one takes its place.
            self._mlflow.delete_run(there.id)
            there = None
        if there is None:
            there = self._create_run(name, wanted, wanted.digest())
        elif there.status != "RUNNING":
            self._mlflow.update_run(there.id, status="RUNNING", name=wanted.name)
        revision = there.revision + (bool(there.metrics) and there.published != wanted.digest())
        self._fill_run(there, wanted, revision)
        self._mlflow.set_terminated(there.id, wanted.status, end_time=wanted.ended)
        known[replay] = replace(
            there,
            status=wanted.status,
            published=wanted.digest(),
            revision=revision,
            params=there.params | wanted.params.keys(),
            metrics=frozenset(wanted.metrics.keys() | wanted.steps.keys()),
            tags=frozenset(wanted.tags),
            records=wanted.tags["twofold.records"],
        )

    def _create_run(self, name: str, wanted: Page, published: str) -> _Known:
        tags = {**wanted.tags, "twofold.published": published, "twofold.revision": "0"}
        run = self._mlflow.create_run(
            self._experiment(name), start_time=wanted.started, tags=tags, run_name=wanted.name
        )
        return _read_run(run)

    def _fill_run(self, there: _Known, wanted: Page, revision: int) -> None:
        """Send parameters, tags, metrics and artifacts. Parameters cannot be changed, so only missing ones are sent."""
        from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415 - see the module's docstring

        fresh = there.published == wanted.digest() and there.status == "RUNNING" and not there.params
        tags = {} if fresh else {**wanted.tags, "twofold.published": wanted.digest(), "twofold.revision": str(revision)}
        batches: dict[str, list[Any]] = {
            "params": [Param(name, text) for name, text in wanted.params.items() if name not in there.params],
            "tags": [RunTag(name, text) for name, text in tags.items()],
            "metrics": [
                *(Metric(name, value, wanted.ended, revision) for name, value in wanted.metrics.items()),
                *(Metric(name, v, wanted.ended, step) for name, steps in wanted.steps.items() for step, v in steps),
            ],
        }
        for batch in _batches(batches):
            self._mlflow.log_batch(there.id, batch["metrics"], batch["params"], batch["tags"])
        for name in there.tags - wanted.tags.keys() - {"twofold.published", "twofold.revision"}:
            if name.startswith("twofold."):
                self._mlflow.delete_tag(there.id, name)
        with tempfile.TemporaryDirectory(prefix="twofold-") as folder:
            _write_files(Path(folder), wanted.files)
            _draw_figures(Path(folder), wanted.figures)
            self._send_artifacts(Path(folder), there.artifacts)

    def _send_artifacts(self, folder: Path, address: str) -> None:
        """Send artifacts to the address that was checked, not to one that a server names when it is asked again."""
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository  # noqa: PLC0415

        self._refuse_address(address)
        get_artifact_repository(address, tracking_uri=self._uri).log_artifacts(str(folder))

    def _refuse_address(self, address: str) -> None:
        """Raise TrackingError if artifacts must not be sent to an address; stores in files name only our folders."""
        files = sqlite_file(self._uri) is not None or "://" not in self._uri or self._uri.startswith("file:")
        refused = "" if files else server.refusal(address, self._artifacts)
        if refused:
            raise TrackingError(_sentence(self._uri, refused))

    def stop(self) -> None:
        """End every run that this publisher left RUNNING, as KILLED."""
        with self._reach_mlflow():
            for known in self._runs.values():
                for name, run in known.items():
                    if run.status == "RUNNING":
                        self._kill_run(run.id)
                        known[name] = replace(run, status="KILLED", published=_UNFINISHED)

    def _kill_run(self, run: str) -> None:
        self._mlflow.set_tag(run, "twofold.published", _UNFINISHED)
        self._mlflow.set_terminated(run, "KILLED")

    # What is there.

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            self._experiments[name] = self._find_or_create_experiment(name)
        return self._experiments[name]

    def _find_or_create_experiment(self, name: str) -> str:
        title = cut_text(visible_text(f"twofold/{name}" if name else "twofold"), 400)
        found = self._mlflow.get_experiment_by_name(title)
        if found is None:
            place = None if self._artifacts is None else (self._artifacts / safe_key(name)).resolve().as_uri()
            about = {"mlflow.note.content": _ABOUT}
            return str(self._mlflow.create_experiment(title, artifact_location=place, tags=about))
        self._refuse_address(found.artifact_location or "")
        if found.lifecycle_stage == "deleted":
            self._mlflow.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _our_experiments(self) -> list[str]:
        found = self._mlflow.search_experiments(filter_string="name LIKE 'twofold%'", max_results=_PAGE)
        return [str(one.experiment_id) for one in found]

    def _known_runs(self, name: str, sweep: str) -> dict[str, _Known]:
        if (name, sweep) not in self._runs:
            known: dict[str, _Known] = {}
            for run in _all_runs(self._mlflow, [self._experiment(name)], f"tags.`twofold.sweep` = '{sweep}'"):
                replay = run.data.tags.get("twofold.replay", "")
                if replay in known:
                    # Restoring an experiment from MLflow's trash also restores runs that were replaced since.
                    self._mlflow.delete_run(run.info.run_id)
                else:
                    known[replay] = _read_run(run)
            self._runs[name, sweep] = known
        return self._runs[name, sweep]

    def _is_complete(self, name: str, sweep: Sweep, made: Sequence[Replay]) -> bool:
        parent = self._known_runs(name, sweep.id).get("")
        if parent is None or parent.status == "RUNNING" or parent.published == _UNFINISHED:
            return False
        if not all(map(_has_files, self._known_runs(name, sweep.id).values())):
            return False
        return parent.records == contents_digest([replay.content_digest() for replay in made], sweep)


def _is_same(there: _Known, wanted: Page) -> bool:
    return there.status == wanted.status and there.published == wanted.digest() and _has_files(there)


def _has_files(there: _Known) -> bool:
    """Return whether the files of a run exist, if they are on this machine: they can be lost on their own."""
    address = urlsplit(there.artifacts)
    if address.scheme not in ("", "file") or not address.path:
        return True
    folder = Path(unquote(address.path))
    return folder.is_dir() and any(folder.iterdir())


def _read_run(run: Run) -> _Known:
    tags = run.data.tags
    return _Known(
        id=run.info.run_id,
        status=run.info.status,
        artifacts=run.info.artifact_uri or "",
        published=tags.get("twofold.published", ""),
        revision=int(tags.get("twofold.revision", "0")),
        params=frozenset(run.data.params),
        metrics=frozenset(run.data.metrics),
        tags=frozenset(tags),
        records=tags.get("twofold.records", ""),
    )


def _all_runs(client: MlflowClient, experiments: Sequence[str], wanted: str) -> Iterator[Run]:
    token: str | None = None
    for _ in range(_PAGES if experiments else 0):
        found = client.search_runs(list(experiments), wanted, max_results=_PAGE, page_token=token)
        yield from found
        token = found.token
        if not token:
            return
    if experiments:
        raise TrackingError(f"MLflow names more than {_PAGES * _PAGE} runs as ours, which is more than are looked at")


def _batches(items: Mapping[str, list[Any]]) -> Iterator[dict[str, list[Any]]]:
    """Divide all items into as few calls as MLflow allows."""
    for start in range(max(-(-len(found) // _AT_ONCE[kind]) for kind, found in items.items())):
        yield {
            kind: found[start * size : (start + 1) * size] for kind, size in _AT_ONCE.items() for found in [items[kind]]
        }


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "backslashreplace"))


def _draw_figures(folder: Path, found: Sequence[Measured]) -> None:
    for one in found:
        (folder / f"{safe_key(one.series.name)}.png").write_bytes(draw_series(one))


# Reaching MLflow.


def _make_tables(uri: str) -> None:
    """Have MLflow make its tables in an empty store."""
    import_client()
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # noqa: PLC0415 - see the module's docstring

    SqlAlchemyStore(uri, ARTIFACTS).engine.dispose()


def _check_connection(uri: str) -> None:
    """Connect to the database server once and raise if it does not answer: MLflow would retry for minutes."""
    engine = create_engine(uri, poolclass=NullPool)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def import_client() -> type[MlflowClient]:
    """Import mlflow's client class, with mlflow's own output turned down. Connects to nothing."""
    os.environ.update(QUIET)
    for name, value in _LIMITS.items():
        os.environ.setdefault(name, value)
    # A warning about mlflow's own tables, which would be an error where warnings are errors.
    warnings.filterwarnings("ignore", "The ``noload`` loader strategy is deprecated", DeprecationWarning)
    # Their messages, which have tracebacks with addresses, are replaced by a sentence of ours.
    quiet = ("mlflow", "alembic", "urllib3")
    for name in quiet:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    from mlflow import MlflowClient  # noqa: PLC0415 - see the module's docstring

    # mlflow configures its loggers when it is imported.
    for name in quiet:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return MlflowClient


@contextlib.contextmanager
def _convert_errors(uri: str) -> Iterator[None]:
    try:
        yield
    except ImpossibleError:
        raise
    except (ArchiveError, TrackingError) as error:
        raise TrackingError(str(error)) from None
    except (SQLAlchemyError, CommandError, sqlite3.Error, OSError, ImportError) as error:
        raise TrackingError(_sentence(uri, error)) from None
    except Exception as error:
        if "invalid interpolation syntax" in str(error):
            # mlflow passes the path of its folder to a configuration parser, which treats % as special.
            why = "mlflow cannot be used from a folder with % in its path: set the project up in another one"
            raise ImpossibleError(_sentence(uri, why)) from None
        # The class cannot be named without importing mlflow, which may be what failed. A server's answer can make
        # mlflow raise anything.
        if type(error).__module__.partition(".")[0] != "mlflow" and not uri.startswith("http"):
            raise
        raise TrackingError(_sentence(uri, error)) from None


def _sentence(uri: str, said: Exception | str) -> str:
    first = next(iter(str(said).strip().splitlines()), "")
    why = mask_secrets(cut_text(visible_text(first), 500), uri) or type(said).__name__
    return f"MLflow at {visible_text(mask_secrets(uri))} cannot be used: {why}"


@contextlib.contextmanager
def _lock_store(file: Path) -> Iterator[None]:
    """Lock the store for one publisher: two that look for the same run would both create it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_name(f"{file.name}.lock").open("ab") as lock:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TrackingError(f"another process has been publishing to {file} for {_PATIENCE:g} s") from None
                time.sleep(0.1)
            else:
                break
        yield

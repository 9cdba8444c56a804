"""Starts a worker, waits for it, ends its process group, and composes the record that it could not write.

A process ends in one of the ways of `record.ENDINGS`; which one, only its parent can see:

    finished, raised    the worker said so, and exited with 0
    timed_out           not ended within the time limit: its group got SIGTERM, then SIGKILL
    out_of_memory       its group's resident memory passed the limit: it got SIGKILL; or the kernel ended it
    died                a signal, an exit code, too much on disk, or no observation that can be read
    not_run             a need is missing; nothing was started

Time is limited on every system. Memory is watched where there is `/proc` (Linux, with or without control
groups: a group of our own would need rights that a user does not have); elsewhere it is not, and only what the
system itself refuses shows. On Linux, what leaves the process group is found by its environment and ended; on
other systems it is not. Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, Callable, Mapping, Protocol, Sequence

from ..core import folders
from ..core.bounds import refuse_excess_seen
from ..core.canonical_json import RecordError, canonical, digest, parse
from ..core.environment import VARIABLES, own_folders
from ..core.observation import UNOBSERVED, Ending, Observation, Output
from ..core.outcome import PHASES, Outcome
from ..core.record import Record
from ..core.spec import Spec
from .errors import LaunchError, LostError
from .observation_check import refuse_malformed, refuse_missing_blobs
from .process_group import KILL, end_group, group_members, has_exited, kernel_kills, resident_bytes

PATIENCE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
LONGEST_END = 10.0
"""Seconds after SIGKILL in which somebody must say that the process has ended."""
OWN_FILES = 2**26
"""Bytes that the worker's own files may take beside what the case writes: one file of the case may fill the limit."""
LONGEST_REASON = 2000
"""Characters that are read of why a worker left no observation."""
LOOK = 0.2
"""Seconds between two looks at what takes longer to find out: the memory of a group, the size of a folder."""

NEEDED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "HOME", "USERPROFILE", "CUDA_HOME")
"""Environment variables without which an interpreter, torch or CUDA may not start. Passed, not recorded."""

LONGEST_LISTING = 600.0
"""Seconds that an interpreter may take to import torch and all scenario files."""

LARGEST_OBSERVATION = 16 * 2**20
"""Bytes of an observation that are read: a longer one is kept in part, as output is."""
LARGEST_RECORD = 2 * LARGEST_OBSERVATION
"""Bytes of a record that are taken in after a driver was killed: an observation, and what is said beside it."""
LONGEST_PHASE = 64
"""Bytes that are read of the phase that a worker names."""
MOST_FILES = 100_000
"""Files and folders that a case may have in its folder: looking at them must not take the driver's time."""
MOST_PROCESSES = 512
"""Processes that the group of a case may have. What leaves the group is not counted."""

OURS = frozenset(
    getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "ENOMEM", "EIO", "EROFS")
)
"""What an OSError says of the machine as a whole: no case is to blame, and the next would meet it as well."""


def run(spec: Spec, folder: Path, root: Path) -> Record:
    """Run one spec to its end and leave `folder` ready to be archived."""
    running = start(spec, folder, fresh(root))
    while True:
        record = running.poll()
        if record is not None:
            return record
        time.sleep(0.01)


class Process(Protocol):
    """What `Running` watches: a started interpreter, or a fork of a warm one."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Exit code, or minus the number of the signal; None while it runs. Once it has ended, so has its
        group: ended before its number was given back, so that nobody else can have it.
        """

    def close(self) -> None:
        """Let go of it; it has ended or is about to."""


Starter = Callable[[Spec, Path], Process]
"""Starts a process for a spec in its prepared folder. Raises LaunchError if it cannot."""


def start(spec: Spec, folder: Path, starter: Starter) -> Running:
    """Start a process for `spec` with `folder` (which must not exist) as its own.

    Raises LaunchError if it cannot be started.
    """
    try:
        folders.prepare(folder)
        (folder / "spec.json").write_text(canonical(spec.to_json()), encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"could not prepare {folder}: {error}") from None
    return Running(spec, folder, starter(spec, folder))


WORKER = "experiments/worker/__main__.py"


def fresh(root: Path, program: str = WORKER) -> Starter:
    """A new interpreter for each process, running the sources below `root`: the worker, or what takes its place."""

    def starter(spec: Spec, folder: Path) -> Process:
        try:
            return _Interpreter(_process(spec, folder, root / program))
        except OSError as error:
            raise LaunchError(f"could not start a worker with {interpreter(spec)}: {error}") from None

    return starter


class _Interpreter:
    """A process of our own; its stdin is the pipe that tells it when we die."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        if self._process.returncode is None and has_exited(self.pid):
            end_group(self.pid, KILL)
        return self._process.poll()

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def interpreter(spec: Spec) -> str:
    """The Python that runs the worker."""
    return spec.setting.interpreter or sys.executable


def environment(threads: int, hash_seed: int, variables: Mapping[str, str]) -> dict[str, str]:
    """All that a worker gets, but for its own folder: what it needs to start, the caller's numeric variables,
    the setting's.
    """
    caller = {name: os.environ[name] for name in (*NEEDED, *VARIABLES) if name in os.environ}
    return {
        **caller,
        "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        # numpy, if torch finds it, would start a thread on import, and a server that has threads must not fork.
        "OPENBLAS_NUM_THREADS": "1",
        # Inductor would start processes of its own, one for each core, that outlive a compilation.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "PYTHONHASHSEED": str(hash_seed),
        **variables,
    }


def _process(spec: Spec, folder: Path, program: Path) -> subprocess.Popen[bytes]:
    setting, own = spec.setting, str(folder / "tmp")
    variables = environment(setting.given_threads(spec.question), setting.hash_seed, setting.variables)
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        return subprocess.Popen(
            [interpreter(spec), str(program), str(folder)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            cwd=folder / "tmp",
            env={**variables, **own_folders(own)},
            start_new_session=True,
        )


class Running:
    """A worker that has been started."""

    def __init__(self, spec: Spec, folder: Path, process: Process) -> None:
        self.spec, self.folder, self.process = spec, folder, process
        self.started_at = now()
        self._started = time.monotonic()
        self._deadline = self._started + spec.setting.timeout
        self._next_look = self._started + LOOK
        self._kills_before = kernel_kills()
        self._kill_at: float | None = None
        self._ended_for: Outcome | None = None

    def poll(self) -> Record | None:
        """The record, once the process has ended; None while it runs. Keeps its limits meanwhile."""
        code = self.process.poll()
        if code is None:
            self._keep_limits()
            return None
        duration = time.monotonic() - self._started
        if self.spec.setting.isolation == "fresh":
            _end_strays(self.folder)
        return self._compose(code, duration)

    def stop(self) -> None:
        """End the process and its group at once; no record comes of it."""
        self._end_group(KILL)
        _end_strays(self.folder)
        self.process.close()

    def _keep_limits(self) -> None:
        current = time.monotonic()
        looks = current >= self._next_look
        if looks:
            self._next_look = current + LOOK
        members = group_members(self.process.pid) if looks else []
        if self._kill_at is not None:
            if current >= self._kill_at + LONGEST_END:
                raise LostError("the fork server does not answer")
            if current >= self._kill_at:
                self._end_group(KILL)
        elif current >= self._deadline:
            self._ended_for = _ended("timed_out", self._phase(), f"after {self.spec.setting.timeout:g} seconds")
            self._end_group(signal.SIGTERM)
            self._kill_at = current + PATIENCE
        elif self._too_much_memory(members):
            self._ended_for = _ended("out_of_memory", self._phase(), f"over {self.spec.setting.memory} bytes")
            self._kill_at = current
            self._end_group(KILL)
        elif looks and (much := self._too_much(members)):
            self._ended_for = _ended("died", self._phase(), much)
            self._kill_at = current
            self._end_group(KILL)

    def _too_much(self, members: Sequence[int]) -> str:
        """What it has more of than it may have, at the slower look. Empty if nothing."""
        size, count = folders.measure(self.folder, MOST_FILES)
        if size > self.spec.setting.disk + OWN_FILES:
            return f"over {self.spec.setting.disk} bytes on disk"
        if count > MOST_FILES:
            return f"over {MOST_FILES} files"
        if len(members) > MOST_PROCESSES:
            return f"over {MOST_PROCESSES} processes"
        return ""

    def _too_much_memory(self, members: Sequence[int]) -> bool:
        """Its own memory at every look; that of its whole group, which takes longer to find out, now and then."""
        limit = self.spec.setting.memory
        if limit is None:
            return False
        return resident_bytes(self.process.pid) > limit or sum(map(resident_bytes, members)) > limit

    def _end_group(self, with_signal: int) -> None:
        process = self.process.pid
        end_group(process, with_signal)
        if process > 0:  # It may have gone to another group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, with_signal)

    def _phase(self) -> str | None:
        phase = folders.read(self.folder / "phase", LONGEST_PHASE)
        return phase if phase in PHASES else None

    def _compose(self, code: int, duration: float) -> Record:
        self.process.close()
        try:
            return self._composed(code, duration)
        except OSError as error:
            if error.errno in OURS:
                raise
            # Nobody else's folder is like this one, so the sweep goes on without what is in it.
            self.folder = folders.free(self.folder)
            return lost(self.spec, self.folder, f"its folder cannot be read: {error.strerror or type(error).__name__}")

    def _composed(self, code: int, duration: float) -> Record:
        harm = folders.mend(self.folder)
        seen, unreadable, problem = self._observation()
        record = Record(
            spec=self.spec,
            outcome=self._outcome(code, seen, problem, harm),
            observation=seen,
            ending=Ending(
                exit_code=None if code < 0 else code,
                signal=_signal_name(-code) if code < 0 else None,
                started_at=self.started_at,
                duration=duration,
                stdout=_kept(self.folder, "stdout", self.spec.setting.output),
                stderr=_kept(self.folder, "stderr", self.spec.setting.output),
                unreadable=unreadable,
            ),
        )
        _leave(self.folder, record)
        return record

    def _outcome(self, code: int, seen: Observation | None, problem: str, harm: str) -> Outcome:
        if self._ended_for is not None:
            return self._ended_for
        if code == -KILL and kernel_kills() > self._kills_before:
            return _ended("out_of_memory", self._phase(), "ended by the kernel, which was out of memory")
        if code < 0:
            return _ended("died", self._phase(), _signal_name(-code))
        if harm:
            # What the worker says after that depends on who started it: root may read all the same.
            return _ended("died", None, harm)
        if code == 1 and seen is None and self._unobserved():
            return _ended("not_observed", self._phase(), self._unobserved())
        if code != 0:
            return _ended("died", self._phase(), f"exit {code}")
        if seen is None:
            return _ended("died", self._phase(), f"exit 0, {problem}")
        return seen.outcome

    def _unobserved(self) -> str:
        """Why the worker says that it could leave no observation. Empty if it says nothing."""
        return folders.read(self.folder / UNOBSERVED, LONGEST_REASON) or ""

    def _observation(self) -> tuple[Observation | None, Output | None, str]:
        """The observation, or what is there instead and why it cannot be read."""
        path = self.folder / "observation.json"
        if not path.is_file():
            return None, None, "without an observation"
        try:
            if path.stat().st_size > LARGEST_OBSERVATION:
                raise RecordError(f"it has more than {LARGEST_OBSERVATION} bytes")
            seen = Observation.from_json(parse(path.read_text(encoding="utf-8")))
            refuse_malformed(seen)
            refuse_excess_seen(seen)
            refuse_missing_blobs(seen, self.folder / "blobs")
        except (RecordError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            output = _kept(self.folder, "observation.json", self.spec.setting.output)
            return None, output, f"with an observation that cannot be read: {error}"
        else:
            return seen, None, ""


def not_run(spec: Spec, folder: Path, need: str) -> Record:
    """The record of a case that was not started because `need` is missing."""
    folder.mkdir(parents=True)
    return _without_process(spec, folder, _ended("not_run", None, f"needs {need}"))


def lost(spec: Spec, folder: Path, why: str) -> Record:
    """The record, in a new folder, of a case of which nothing else is left: its process was lost more than once, or
    its folder cannot be read, which is likely its own doing.
    """
    folder.mkdir(parents=True)
    return _without_process(spec, folder, _ended("died", None, why))


def composed(scratch: Path) -> list[Path]:
    """Folders below `scratch` that hold a record, as a driver that was killed has left them, put right again. What a
    case that was at work then has made of its own is none.
    """
    found = []
    folders.allow(scratch)
    for folder in sorted(scratch.iterdir() if scratch.is_dir() else ()):
        if not folder.is_symlink() and 0 <= folders.length(folder / "record.json") <= LARGEST_RECORD:
            with contextlib.suppress(OSError):
                folders.mend(folder)
                found.append(folder)
    return found


def _without_process(spec: Spec, folder: Path, outcome: Outcome) -> Record:
    (folder / "blobs").mkdir()
    nothing = Output(digest(b""), 0, 0)
    record = Record(
        spec=spec,
        outcome=outcome,
        observation=None,
        ending=Ending(None, None, now(), 0.0, nothing, nothing, None),
    )
    (folder / "blobs" / digest(b"")).touch()
    _leave(folder, record)
    return record


def now() -> str:
    """The time, UTC, RFC 3339, to the millisecond."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ended(kind: str, phase: str | None, detail: str) -> Outcome:
    return Outcome(kind, phase, None, (), None, None, detail)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end_strays(folder: Path) -> None:
    """End what a case started and took out of its process group: its environment still names the folder.

    Linux only. What clears its environment as well is not found; a fork server ends its own strays.
    """
    mark = b"TMPDIR=" + os.fsencode(folder / "tmp")
    try:
        found = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
    except OSError:
        return
    for name in found:
        with contextlib.suppress(OSError, ValueError):
            if mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                os.kill(int(name), KILL)


def _kept(folder: Path, name: str, limit: int) -> Output:
    """Copy what a process wrote into `blobs/`, its middle cut out visibly beyond `limit` bytes."""
    path = folder / name
    written = path.stat().st_size
    with path.open("rb") as file:
        content = file.read() if written <= limit else _head_and_tail(file, written, limit)
    found = digest(content)
    (folder / "blobs" / found).write_bytes(content)
    return Output(found, written, len(content))


def _head_and_tail(file: IO[bytes], written: int, limit: int) -> bytes:
    half = limit // 2
    head = file.read(half)
    file.seek(written - half)
    return head + b"\n[%d bytes cut here]\n" % (written - 2 * half) + file.read(half)


def _leave(folder: Path, record: Record) -> None:
    """Write the record into its folder, durable and all at once, and what needs no keeping out of it."""
    beside = folder / "record.part"
    with beside.open("w", encoding="utf-8", newline="") as file:
        file.write(record.text())
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / "record.json")


def describe(root: Path, python: str, target: Path, variables: Mapping[str, str]) -> Any:
    """Ask the interpreter which scenarios there are and what machine it sees.

    Raises LaunchError if it does not answer.
    """
    named = python or sys.executable
    program = root / "experiments" / "worker" / "__main__.py"
    # Its words go to a file: a scenario that leaves a process behind could keep a pipe open for ever.
    with tempfile.TemporaryFile() as said:
        try:
            process = _Interpreter(
                subprocess.Popen(
                    [named, str(program), "--describe", str(target)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    env=environment(1, 0, variables),
                    start_new_session=True,
                )
            )
        except OSError as error:
            raise LaunchError(f"could not start {named}: {error}") from None
        deadline = time.monotonic() + LONGEST_LISTING
        try:
            while (status := process.poll()) is None:
                if time.monotonic() > deadline:
                    raise LaunchError(f"{named} did not list the scenarios within {LONGEST_LISTING:g} seconds")
                time.sleep(0.01)
        finally:
            # It may be waiting, in a process of its own, for a file that never ends importing.
            if process.poll() is None:
                end_group(process.pid, KILL)
            process.close()
        said.seek(0)
        lines = said.read().decode("utf-8", "backslashreplace").strip().splitlines() or ["it said nothing"]
    if status or not target.is_file():
        raise LaunchError(f"{named} could not list the scenarios: {lines[-1]}")
    return parse(target.read_text(encoding="utf-8"))

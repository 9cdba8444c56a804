"""Start a worker, wait for it, end its process group, and build the record that it could not write itself.

The outcome of a process is one of these kinds, which only its parent can determine:

    finished, raised    the worker reported it and exited with 0
    not_observed        the case ended, but the worker could not write its observation and reported why
    timed_out           did not end within the time limit: its group received SIGTERM, then SIGKILL
    out_of_memory       its group's resident memory exceeded the limit and it received SIGKILL, or the kernel killed it
    died                a signal, an exit code, too much on disk, or no readable observation
    not_run             a requirement is missing; nothing was started

Time is limited on every system. Memory is watched where `/proc` exists (Linux, with or without control groups: our
own control group would need rights that a user does not have); elsewhere only the system's own refusals apply.
On Linux, orphans that leave the process group are found by their environment and ended; on other systems they are
not. Imports only the standard library, and nothing newer than Python 3.9.
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
from ..core.bounds import refuse_excess_observation
from ..core.canonical_json import RecordError, canonical, digest, parse
from ..core.environment import VARIABLES, folder_variables
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
"""Seconds after SIGKILL within which the fork server must report that the process has ended."""
OWN_FILES = 2**26
"""Bytes that the worker's own files may take in addition to the disk limit, which one file of the case may fill."""
LONGEST_REASON = 2000
"""Characters that are read of the reason why a worker left no observation."""
LOOK = 0.2
"""Seconds between two slow measurements: the memory of a group, the size of a folder."""

NEEDED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "HOME", "USERPROFILE", "CUDA_HOME")
"""Environment variables that an interpreter, torch or CUDA may need to start. Passed on, not recorded."""

LONGEST_LISTING = 600.0
"""Seconds that an interpreter may take to import torch and all scenario files."""

LARGEST_OBSERVATION = 16 * 2**20
"""Longest observation that is read, in bytes. A longer one is stored in part, as output is."""
LARGEST_RECORD = 2 * LARGEST_OBSERVATION
"""Longest record that is recovered after a driver was killed, in bytes: an observation and the rest of the record."""
LONGEST_PHASE = 64
"""Longest phase name that is read, in bytes."""
MOST_FILES = 100_000
"""Most files and folders that a case may have in its folder, so that counting them does not delay the driver."""
MOST_PROCESSES = 512
"""Most processes that the group of a case may have. Processes that leave the group are not counted."""

OURS = frozenset(
    getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "ENOMEM", "EIO", "EROFS")
)
"""OSErrors that concern the whole machine: no case is to blame, and the next one would fail as well."""


def run(spec: Spec, folder: Path, root: Path) -> Record:
    """Run one spec to its end and return its record; `folder` is then ready to be archived."""
    running = start(spec, folder, fresh_starter(root))
    while True:
        record = running.poll()
        if record is not None:
            return record
        time.sleep(0.01)


class Process(Protocol):
    """The process that `Running` watches: a new interpreter or a fork of a warm one."""

    @property
    def pid(self) -> int:
        """The PID, or 0 once a fork has ended."""

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal number; None while it runs.

        Once it has ended, so has its process group, which is ended before the PID can be reused.
        """

    def close(self) -> None:
        """Release its resources; it has ended or is about to."""


Starter = Callable[[Spec, Path], Process]
"""Start a process for a spec in its prepared folder. Raises LaunchError if that fails."""


def start(spec: Spec, folder: Path, starter: Starter) -> Running:
    """Create `folder`, which must not exist, and start a process for `spec` in it.

    Raises LaunchError if it cannot be started.
    """
    try:
        folders.prepare(folder)
        (folder / "spec.json").write_text(canonical(spec.to_json()), encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"could not prepare {folder}: {error}") from None
    return Running(spec, folder, starter(spec, folder))


WORKER = "experiments/worker/__main__.py"


def fresh_starter(root: Path, program: str = WORKER) -> Starter:
    """Return a starter that runs `program`, from the sources below `root`, in a new interpreter for each process."""

    def starter(spec: Spec, folder: Path) -> Process:
        try:
            return _Interpreter(_start_process(spec, folder, root / program))
        except OSError as error:
            raise LaunchError(f"could not start a worker with {interpreter(spec)}: {error}") from None

    return starter


class _Interpreter:
    """A new interpreter; the pipe to its stdin closes when this process dies, which ends it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        """Return the exit code, None while it runs. Ends the group before the PID is released."""
        if self._process.returncode is None and has_exited(self.pid):
            end_group(self.pid, KILL)
        return self._process.poll()

    def close(self) -> None:
        """Close the pipe to its stdin and wait for it to end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def interpreter(spec: Spec) -> str:
    """Return the path of the Python that runs the worker."""
    return spec.setting.interpreter or sys.executable


def environment(threads: int, hash_seed: int, variables: Mapping[str, str]) -> dict[str, str]:
    """Return a worker's environment variables, except those of its own folder.

    They are the ones needed to start, the caller's numeric variables, and those of the setting.
    """
    caller = {name: os.environ[name] for name in (*NEEDED, *VARIABLES) if name in os.environ}
    return {
        **caller,
        "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        # If torch imports numpy, OpenBLAS would start threads, and a server that has threads must not fork.
        "OPENBLAS_NUM_THREADS": "1",
        # Inductor would start one process for each core, and these outlive a compilation.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "PYTHONHASHSEED": str(hash_seed),
        **variables,
    }


def _start_process(spec: Spec, folder: Path, program: Path) -> subprocess.Popen[bytes]:
    setting, own = spec.setting, str(folder / "tmp")
    variables = environment(setting.thread_count(spec.question), setting.hash_seed, setting.variables)
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        return subprocess.Popen(
            [interpreter(spec), str(program), str(folder)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            cwd=folder / "tmp",
            env={**variables, **folder_variables(own)},
            start_new_session=True,
        )


class Running:
    """A worker that has been started."""

    def __init__(self, spec: Spec, folder: Path, process: Process) -> None:
        self.spec, self.folder, self.process = spec, folder, process
        self.started_at = utc_now()
        self._started = time.monotonic()
        self._deadline = self._started + spec.setting.timeout
        self._next_look = self._started + LOOK
        self._kills_before = kernel_kills()
        self._kill_at: float | None = None
        self._ended_for: Outcome | None = None

    def poll(self) -> Record | None:
        """Return the record once the process has ended, None while it runs. Enforces its limits meanwhile."""
        code = self.process.poll()
        if code is None:
            self._enforce_limits()
            return None
        duration = time.monotonic() - self._started
        if self.spec.setting.isolation == "fresh":
            _end_orphans(self.folder)
        return self._compose_record(code, duration)

    def stop(self) -> None:
        """End the process and its group at once, without a record."""
        self._end_group(KILL)
        _end_orphans(self.folder)
        self.process.close()

    def _enforce_limits(self) -> None:
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
            self._ended_for = _make_outcome("timed_out", self._phase(), f"after {self.spec.setting.timeout:g} seconds")
            self._end_group(signal.SIGTERM)
            self._kill_at = current + PATIENCE
        elif self._is_over_memory(members):
            self._ended_for = _make_outcome("out_of_memory", self._phase(), f"over {self.spec.setting.memory} bytes")
            self._kill_at = current
            self._end_group(KILL)
        elif looks and (much := self._find_excess(members)):
            self._ended_for = _make_outcome("died", self._phase(), much)
            self._kill_at = current
            self._end_group(KILL)

    def _find_excess(self, members: Sequence[int]) -> str:
        """Return which limit on disk, files or processes is exceeded, as text. Empty if none is."""
        size, count = folders.measure(self.folder, MOST_FILES)
        if size > self.spec.setting.disk + OWN_FILES:
            return f"over {self.spec.setting.disk} bytes on disk"
        if count > MOST_FILES:
            return f"over {MOST_FILES} files"
        if len(members) > MOST_PROCESSES:
            return f"over {MOST_PROCESSES} processes"
        return ""

    def _is_over_memory(self, members: Sequence[int]) -> bool:
        """Whether the memory of the process, or that of its group members where they were listed, exceeds the limit."""
        limit = self.spec.setting.memory
        if limit is None:
            return False
        return resident_bytes(self.process.pid) > limit or sum(map(resident_bytes, members)) > limit

    def _end_group(self, with_signal: int) -> None:
        process = self.process.pid
        end_group(process, with_signal)
        if process > 0:  # It may have moved to another group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, with_signal)

    def _phase(self) -> str | None:
        phase = folders.read_file(self.folder / "phase", LONGEST_PHASE)
        return phase if phase in PHASES else None

    def _compose_record(self, code: int, duration: float) -> Record:
        self.process.close()
        try:
            return self._build_record(code, duration)
        except OSError as error:
            if error.errno in OURS:
                raise
            # Only this folder is affected, so the sweep continues without its contents.
            self.folder = folders.free_path(self.folder)
            return lost_record(
                self.spec, self.folder, f"its folder cannot be read: {error.strerror or type(error).__name__}"
            )

    def _build_record(self, code: int, duration: float) -> Record:
        harm = folders.repair(self.folder)
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
                stdout=_store_output(self.folder, "stdout", self.spec.setting.output),
                stderr=_store_output(self.folder, "stderr", self.spec.setting.output),
                unreadable=unreadable,
            ),
        )
        _write_record(self.folder, record)
        return record

    def _outcome(self, code: int, seen: Observation | None, problem: str, harm: str) -> Outcome:
        if self._ended_for is not None:
            return self._ended_for
        if code == -KILL and kernel_kills() > self._kills_before:
            return _make_outcome("out_of_memory", self._phase(), "ended by the kernel, which was out of memory")
        if code < 0:
            return _make_outcome("died", self._phase(), _signal_name(-code))
        if harm:
            # The worker's report then depends on the user: root could read the folder anyway.
            return _make_outcome("died", None, harm)
        if code == 1 and seen is None and self._unobserved_reason():
            return _make_outcome("not_observed", self._phase(), self._unobserved_reason())
        if code != 0:
            return _make_outcome("died", self._phase(), f"exit {code}")
        if seen is None:
            return _make_outcome("died", self._phase(), f"exit 0, {problem}")
        return seen.outcome

    def _unobserved_reason(self) -> str:
        """Return the worker's reason for leaving no observation. Empty if it gave none."""
        return folders.read_file(self.folder / UNOBSERVED, LONGEST_REASON) or ""

    def _observation(self) -> tuple[Observation | None, Output | None, str]:
        """Return the observation, or the stored unreadable file, if there is one, and why it cannot be read."""
        path = self.folder / "observation.json"
        if not path.is_file():
            return None, None, "without an observation"
        try:
            if path.stat().st_size > LARGEST_OBSERVATION:
                raise RecordError(f"it has more than {LARGEST_OBSERVATION} bytes")
            seen = Observation.from_json(parse(path.read_text(encoding="utf-8")))
            refuse_malformed(seen)
            refuse_excess_observation(seen)
            refuse_missing_blobs(seen, self.folder / "blobs")
        except (RecordError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            output = _store_output(self.folder, "observation.json", self.spec.setting.output)
            return None, output, f"with an observation that cannot be read: {error}"
        else:
            return seen, None, ""


def not_run_record(spec: Spec, folder: Path, need: str) -> Record:
    """Write and return the record of a case that was not started because the requirement `need` is not met."""
    folder.mkdir(parents=True)
    return _record_without_process(spec, folder, _make_outcome("not_run", None, f"needs {need}"))


def lost_record(spec: Spec, folder: Path, why: str) -> Record:
    """Write, in a new folder, and return the record of a case that left nothing else.

    Its process was lost more than once, or its folder cannot be read, most likely because of what the case did.
    """
    folder.mkdir(parents=True)
    return _record_without_process(spec, folder, _make_outcome("died", None, why))


def record_folders(scratch: Path) -> list[Path]:
    """Return the folders below `scratch` with a complete record that a killed driver left, with permissions restored.

    Symbolic links and records over `LARGEST_RECORD` bytes, which a case may have made, are skipped.
    """
    found = []
    folders.restore_rights(scratch)
    for folder in sorted(scratch.iterdir() if scratch.is_dir() else ()):
        if not folder.is_symlink() and 0 <= folders.file_size(folder / "record.json") <= LARGEST_RECORD:
            with contextlib.suppress(OSError):
                folders.repair(folder)
                found.append(folder)
    return found


def _record_without_process(spec: Spec, folder: Path, outcome: Outcome) -> Record:
    (folder / "blobs").mkdir()
    nothing = Output(digest(b""), 0, 0)
    record = Record(
        spec=spec,
        outcome=outcome,
        observation=None,
        ending=Ending(None, None, utc_now(), 0.0, nothing, nothing, None),
    )
    (folder / "blobs" / digest(b"")).touch()
    _write_record(folder, record)
    return record


def utc_now() -> str:
    """Return the current time in UTC, as RFC 3339 with milliseconds."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _make_outcome(kind: str, phase: str | None, detail: str) -> Outcome:
    return Outcome(kind, phase, None, (), None, None, detail)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end_orphans(folder: Path) -> None:
    """End processes that a case started and moved out of its process group: their environment still names the folder.

    Linux only. Processes that also cleared their environment are not found; a fork server ends its own orphans.
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


def _store_output(folder: Path, name: str, limit: int) -> Output:
    """Copy a file that a process wrote into `blobs/`; beyond `limit` bytes, its middle is cut out and marked."""
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


def _write_record(folder: Path, record: Record) -> None:
    """Write the record into its folder, atomically and synced to disk."""
    partial = folder / "record.part"
    with partial.open("w", encoding="utf-8", newline="") as file:
        file.write(record.text())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / "record.json")


def describe(root: Path, python: str, target: Path, variables: Mapping[str, str]) -> Any:
    """Return, as parsed JSON, the scenarios and the machine facts that an interpreter reports.

    Raises LaunchError if it does not answer.
    """
    named = python or sys.executable
    program = root / "experiments" / "worker" / "__main__.py"
    # stderr goes to a file: a process left behind by a scenario could keep a pipe open forever.
    with tempfile.TemporaryFile() as stderr:
        try:
            process = _Interpreter(
                subprocess.Popen(
                    [named, str(program), "--describe", str(target)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
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
            # It may still be importing a scenario file that never ends.
            if process.poll() is None:
                end_group(process.pid, KILL)
            process.close()
        stderr.seek(0)
        lines = stderr.read().decode("utf-8", "backslashreplace").strip().splitlines() or ["it said nothing"]
    if status or not target.is_file():
        raise LaunchError(f"{named} could not list the scenarios: {lines[-1]}")
    return parse(target.read_text(encoding="utf-8"))

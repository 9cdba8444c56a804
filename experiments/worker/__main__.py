"""The start of a worker, and the protocol between a worker and its parent.

    python .../experiments/worker/__main__.py FOLDER
        FOLDER/spec.json is read. While it runs, FOLDER/phase names the phase it is in. At the end
        FOLDER/observation.json exists, written to another name and renamed into place, and FOLDER/blobs/
        contains, by SHA-256, every content that it refers to. The exit status is 0. An exception of the *case* is
        part of the observation; the parent records any other ending.

    python .../experiments/worker/__main__.py --describe FILE
        Writes the catalogue and the machine's facts as JSON to FILE.

    python .../experiments/worker/__main__.py --serve
        A fork server. It writes lines of JSON to stdout: {"ready": PID} once torch is imported; for each line
        {"folder": FOLDER} on stdin {"started": FOLDER, "pid": PID}, and when that child has ended
        {"ended": FOLDER, "status": STATUS}, its exit code or minus the number of the signal. The child does
        what the first form does, with FOLDER/stdout and FOLDER/stderr (which must exist) as its output; if the
        request contains "describe": true, it does what the second does, into FOLDER/catalogue.json. When stdin
        ends, the remaining children are killed.

The parent holds the other end of stdin and, except with --serve, never writes to it. When it closes, the parent has
ended, and the worker ends itself and its process group.

A process that a case starts by `multiprocessing`, other than by fork, runs this file as `__mp_main__` and receives
the worker's arguments, so that it can import the scenario: see `spawned`.

This file may be started from any folder, from a copy, and with any Python from 3.9 that has torch. It is started by
its path, so nothing is imported from the caller's working directory or PYTHONPATH; the package that contains it is
mounted as `experiments`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _mount_package() -> None:
    """Make `experiments` the package that contains this file, whatever else has that name.

    Python puts the folder of a script on the path. It is removed, since its module names (`profile`...) would hide
    those of the standard library.
    """
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != here]
    package = ROOT / "experiments"
    spec = importlib.util.spec_from_file_location(
        "experiments", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{package} is not a package")
    sys.modules["experiments"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _take_stdin() -> int:
    """Replace stdin by the null device, and return the pipe that it was."""
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return pipe


def _end_with_parent(pipe: int) -> None:
    """End this process and its group when the other end of the pipe closes."""
    threading.Thread(target=_wait_for_end, args=(pipe,), name="twofold-parent", daemon=True).start()
    if sys.platform == "linux":
        _request_death_signal()


def _end_group_with_parent(pipe: int, folder: str) -> None:
    """Do the same by another process.

    A thread of this process needs the interpreter lock, which code that is stuck in C may hold forever, and Linux's
    signal on the parent's death reaches one process, not its children.
    """
    if not hasattr(os, "fork"):
        _end_with_parent(pipe)
        return
    ours, worker = os.getpgrp() == os.getpid(), os.getpid()
    ended, held = os.pipe()  # `held` stays open as long as the worker or a child of it lives
    child = os.fork()
    if child == 0:
        os.close(held)
        if os.fork() == 0:  # not our child, so that a case that waits for its children does not wait for it
            ready, _, _ = select.select([pipe, ended], [], [])
            while pipe not in ready and _is_alive(worker):  # the case may have closed `held`
                ready, _, _ = select.select([pipe], [], [], 1.0)
            if pipe in ready:
                _end_escaped_processes(Path(folder) / "tmp")
                os.killpg(0, signal.SIGKILL) if ours else os.kill(worker, signal.SIGKILL)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(pipe)
    os.close(ended)


def _end_escaped_processes(temporary: Path) -> None:
    """End processes that have left the group: on Linux, their environment still contains the worker's own folder."""
    if os.environ.get("TMPDIR") != str(temporary):
        return
    mark = os.fsencode(f"TMPDIR={temporary}")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(process.name) != os.getpid() and mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def _is_alive(process: int) -> bool:
    """Return whether there is a process with this PID."""
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def _wait_for_end(pipe: int) -> None:
    """Wait until the other end of the pipe closes, then end this process and its group."""
    while True:
        try:
            if os.read(pipe, 1) == b"":
                break
        except OSError:
            break
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _request_death_signal() -> None:
    """Request SIGKILL from Linux for when the parent dies.

    The thread above needs the interpreter lock, which code that is stuck in C may hold forever. Without ctypes, there
    is only the thread.
    """
    try:
        import ctypes  # noqa: PLC0415 - some builds of Python lack it

        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
    except (ImportError, OSError, AttributeError):
        return


def main(arguments: list[str]) -> int:
    """Run a worker with these command-line arguments, and return its exit status."""
    _mount_package()
    if len(arguments) == 2 and arguments[0] == "--describe":
        from experiments.worker import describe  # noqa: PLC0415 - `experiments` is mounted only now

        describe.write_catalogue(Path(arguments[1]), ROOT)
        return 0
    if arguments == ["--serve"]:
        from experiments.worker import fork_server  # noqa: PLC0415 - as above

        fork_server.serve(ROOT, _end_with_parent)
        return 0
    if len(arguments) == 1 and not arguments[0].startswith("-"):
        _end_group_with_parent(_take_stdin(), arguments[0])
        from experiments.worker import limits  # noqa: PLC0415 - as above

        limits.apply(Path(arguments[0]))
        from experiments.worker import case  # noqa: PLC0415 - imports torch, under the limits

        case.run_case(Path(arguments[0]).resolve(), ROOT)
        return 0
    print("usage: __main__.py FOLDER | --describe FILE | --serve", file=sys.stderr)
    return 2


if __name__ == "__mp_main__":  # in a process that a case has started by spawn or forkserver
    _mount_package()
    from experiments.worker.spawned import Finder

    sys.meta_path.append(Finder(ROOT))

if __name__ == "__main__":
    status = main(sys.argv[1:])
    # The observation is written, so nothing is lost by skipping the shutdown of the interpreter, which takes a
    # third of a second or more once torch is loaded and can hang on a thread that the case has left running.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # the case may have closed or replaced it
            stream.flush()
    os._exit(status)

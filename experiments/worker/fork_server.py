"""A process that has imported torch and forks a child for each case: equivalent to a fresh process, at a tenth of the
cost or less.

The server only imports. It runs no operator, because a child of a process that has run a parallel operator hangs, and
it starts no thread. The child sets the seeds of torch and of `random` anew, as a fresh interpreter does. It cannot
change the hash seed, so there is one server for each hash seed, as for each interpreter, environment and thread count.
The protocol on stdin and stdout is described in `__main__`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable, NoReturn

import torch
import torch.profiler
import torch.utils.checkpoint

from ..core.environment import folder_variables
from . import case, describe, limits

LONGEST_END = 1.0
"""Seconds to wait for the children to end after SIGKILL."""


def serve(root: Path, watch_parent: Callable[[int], None]) -> None:
    """Fork a child for each folder named on stdin until stdin ends, then end the remaining children.

    `watch_parent` is called in each child with the end of a pipe that closes when this server dies.
    """
    _Server(root, watch_parent).run()


def _adopt_orphans() -> None:
    """Become, on Linux, the parent of every descendant whose own parent ends (PR_SET_CHILD_SUBREAPER)."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - some builds of Python lack it

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def _child_pids() -> set[int]:
    """Return the PIDs of the children of this process. Empty if the system does not list them."""
    try:
        return {int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    except (OSError, ValueError):
        return set()


class _Server:
    """The server, its children, and its streams."""

    def __init__(self, root: Path, watch_parent: Callable[[int], None]) -> None:
        self.root, self.watch_parent = root, watch_parent
        self.children: dict[int, str] = {}
        _adopt_orphans()
        # Output of an import must not be mistaken for an answer.
        self.answers = os.dup(1)
        os.dup2(2, 1)
        self.alive, self.held = os.pipe()
        self.woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Ctrl-C is handled by the driver, which then closes our stdin.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Answer requests until stdin ends."""
        self.send_answer(ready=os.getpid())
        self.warm = False
        rest = b""
        while True:
            ready, _, _ = select.select([0, self.woken], [], [])
            if self.woken in ready:
                os.read(self.woken, 4096)
                self.reap_children()
            if 0 in ready:
                piece = os.read(0, 65536)
                if not piece:
                    return self.end_children()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self.fork_child(json.loads(line))

    def send_answer(self, **answer: Any) -> None:
        """Write one line of JSON to the driver."""
        with contextlib.suppress(BrokenPipeError):  # the driver has ended, and this server will end too
            os.write(self.answers, json.dumps(answer).encode() + b"\n")

    def warm_up(self) -> None:
        """Import what the first call of `checkpoint` would import, which takes a second.

        At the same time, a child that does not need it lists the scenarios.
        """
        importlib.import_module("torch._dynamo")
        self.warm = True
        gc.collect()
        gc.freeze()  # so that garbage collection in children does not copy pages that they do not use

    def fork_child(self, request: dict[str, Any]) -> None:
        """Fork a child for a request, and report its PID."""
        folder = request["folder"]
        if not self.warm and not request.get("describe", False):
            self.warm_up()
        child = os.fork()
        if child == 0:
            self.run_child(Path(folder), describes=request.get("describe", False))
        # Parent and child both set the group, whichever is first: the driver may end the group at any moment.
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        self.children[child] = folder
        self.send_answer(started=folder, pid=child)
        if not self.warm:
            self.warm_up()

    def reap_children(self) -> None:
        """Report the children that have ended, and end their process groups."""
        self.end_orphans()
        for child, folder in list(self.children.items()):
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                # Its group first, while its PID cannot be reused.
                with contextlib.suppress(OSError):
                    os.killpg(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                del self.children[child]
                signalled = os.WIFSIGNALED(status)
                self.send_answer(ended=folder, status=-os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status))

    def end_orphans(self) -> None:
        """End orphans of a case: children of this server that it has not forked."""
        for stray in _child_pids() - set(self.children):
            with contextlib.suppress(OSError):
                os.kill(stray, signal.SIGKILL)
                os.waitpid(stray, 0)

    def end_children(self) -> None:
        """End all children, and then their orphans, which become children of this server."""
        deadline = time.monotonic() + LONGEST_END
        while self.children and time.monotonic() < deadline:
            for child in self.children:
                for kill in (os.killpg, os.kill):  # it may have moved to another group
                    with contextlib.suppress(OSError):
                        kill(child, signal.SIGKILL)
            time.sleep(0.005)
            self.reap_children()
        self.end_orphans()

    def run_child(self, folder: Path, *, describes: bool) -> NoReturn:
        """Run the case, or describe the scenarios, in the child, and exit."""
        status = 1
        try:
            self.leave_server(folder)
            if describes:
                describe.write_catalogue(folder / "catalogue.json", self.root)
            else:
                limits.apply(folder)
                case.run_case(folder, self.root)
            status = 0
        except BaseException:  # noqa: BLE001 - as at the top of any process: print it to stderr, exit with 1
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(BaseException):  # the case may have replaced it
                    stream.flush()
            os._exit(status)

    def leave_server(self, folder: Path) -> None:
        """Set up the child like a fresh worker: its own group, files, folder, signals, and random state."""
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor, name, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, str(folder / "stdout"), os.O_WRONLY | os.O_APPEND),
            (2, str(folder / "stderr"), os.O_WRONLY | os.O_APPEND),
        ):
            opened = os.open(name, flags)
            os.dup2(opened, descriptor)
            os.close(opened)
        for descriptor in (self.answers, self.held, self.woken):
            os.close(descriptor)
        self.watch_parent(self.alive)
        sys.argv[1:] = [str(folder)]
        os.chdir(folder / "tmp")
        os.environ.update(folder_variables(str(folder / "tmp")))
        tempfile.tempdir = None
        random.seed()
        torch.seed()

"""A process that has imported torch and forks a child for each case: as good as fresh, at a tenth of the
cost or less.

The server only imports. It runs no operator, because a child of a process that has run a parallel one hangs,
and it starts no thread. What a fresh interpreter would draw anew, the child draws anew: the seeds of torch and
of `random`. What it cannot draw anew is the hash seed, so there is one server for each, as for each
interpreter, environment and thread count. What is said on stdin and stdout is in `__main__`.
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

from ..core.environment import own_folders
from . import case, describe, limits

LONGEST_END = 1.0
"""Seconds after SIGKILL in which the children must have ended."""


def serve(root: Path, watch_parent: Callable[[int], None]) -> None:
    """Fork a child for each folder named on stdin until stdin ends, then end the children that are left.

    `watch_parent` is called in each child with the end of a pipe that closes when this server dies.
    """
    _Server(root, watch_parent).run()


def _adopt_orphans() -> None:
    """Become, on Linux, the parent of every descendant whose own parent ends (PR_SET_CHILD_SUBREAPER)."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - some builds of Python lack it

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def _children() -> set[int]:
    """Process ids of our children. Empty where the system does not tell."""
    try:
        return {int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    except (OSError, ValueError):
        return set()


class _Server:
    def __init__(self, root: Path, watch_parent: Callable[[int], None]) -> None:
        self.root, self.watch_parent = root, watch_parent
        self.children: dict[int, str] = {}
        _adopt_orphans()
        # What an import prints must not be taken for an answer.
        self.answers = os.dup(1)
        os.dup2(2, 1)
        self.alive, self.held = os.pipe()
        self.woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Ctrl-C is the driver's business, which then closes our stdin.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        self.say(ready=os.getpid())
        self.warm = False
        rest = b""
        while True:
            ready, _, _ = select.select([0, self.woken], [], [])
            if self.woken in ready:
                os.read(self.woken, 4096)
                self.reap()
            if 0 in ready:
                piece = os.read(0, 65536)
                if not piece:
                    return self.end()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self.fork(json.loads(line))

    def say(self, **answer: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the driver has ended, and so shall we
            os.write(self.answers, json.dumps(answer).encode() + b"\n")

    def warm_up(self) -> None:
        """Import what the first call of `checkpoint` would, which takes a second. The scenarios are listed by a
        child that needs none of it, at the same time.
        """
        importlib.import_module("torch._dynamo")
        self.warm = True
        gc.collect()
        gc.freeze()  # so that collections in children do not copy the pages of what they never touch

    def fork(self, request: dict[str, Any]) -> None:
        folder = request["folder"]
        if not self.warm and not request.get("describe", False):
            self.warm_up()
        child = os.fork()
        if child == 0:
            self.be_child(Path(folder), describes=request.get("describe", False))
        # Both set it, so that it holds whichever is first: the driver may end the group at any moment.
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        self.children[child] = folder
        self.say(started=folder, pid=child)
        if not self.warm:
            self.warm_up()

    def reap(self) -> None:
        self.end_strays()
        for child, folder in list(self.children.items()):
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                # Its group first, while its number cannot be anybody else's.
                with contextlib.suppress(OSError):
                    os.killpg(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                del self.children[child]
                signalled = os.WIFSIGNALED(status)
                self.say(ended=folder, status=-os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status))

    def end_strays(self) -> None:
        """Orphans of a case become children of this server, which has none but those it forked: end them."""
        for stray in _children() - set(self.children):
            with contextlib.suppress(OSError):
                os.kill(stray, signal.SIGKILL)
                os.waitpid(stray, 0)

    def end(self) -> None:
        """End all children, and then what they leave, which is ours once they have ended."""
        deadline = time.monotonic() + LONGEST_END
        while self.children and time.monotonic() < deadline:
            for child in self.children:
                for kill in (os.killpg, os.kill):  # it may have gone to another group
                    with contextlib.suppress(OSError):
                        kill(child, signal.SIGKILL)
            time.sleep(0.005)
            self.reap()
        self.end_strays()

    def be_child(self, folder: Path, *, describes: bool) -> NoReturn:
        status = 1
        try:
            self.leave_server(folder)
            if describes:
                describe.write(folder / "catalogue.json", self.root)
            else:
                limits.apply(folder)
                case.run(folder, self.root)
            status = 0
        except BaseException:  # noqa: BLE001 - as at the top of any process: say so on stderr, exit with 1
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(BaseException):  # the case may have replaced it
                    stream.flush()
            os._exit(status)

    def leave_server(self, folder: Path) -> None:
        """Become what a fresh worker is: own group, files, folder, signals, and random state."""
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
        os.environ.update(own_folders(str(folder / "tmp")))
        tempfile.tempdir = None
        random.seed()
        torch.seed()

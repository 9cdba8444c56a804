"""Forks of a warm interpreter: one server for each interpreter, sources, environment, thread count and hash seed.

Only the standard library is imported here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Mapping

from ..core import folders
from ..core.canonical_json import parse
from ..core.spec import Spec
from . import errors, process_group, supervisor

PATIENCE = 60.0
"""Seconds until a server must have imported torch."""


class Forks:
    """All servers of a sweep, started when they are first needed. Close it to end them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._servers: dict[str, _Server] = {}

    def close(self) -> None:
        """End every server and what it runs."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def start(self, spec: Spec, folder: Path) -> supervisor.Process:
        """Fork a child for the spec (a `launch.Starter`). Raises LaunchError if no server can be started."""
        setting = spec.setting
        variables = supervisor.environment(setting.given_threads(spec.question), setting.hash_seed, setting.variables)
        return self._server(supervisor.interpreter(spec), variables).fork({"folder": str(folder)})

    def describe(self, python: str, variables: Mapping[str, str], hash_seed: int, folder: Path) -> Any:
        """As `launch.describe`, from a server that will be needed anyway, and from another if that one is lost.
        `folder` must not exist.
        """
        try:
            return self._described(python, variables, hash_seed, folder)
        except errors.LostError:
            # Its folder may still have somebody at work in it.
            again = folder.with_name(f"{folder.name}-again")
        try:
            return self._described(python, variables, hash_seed, again)
        except errors.LostError as error:
            raise errors.LaunchError(
                f"the scenarios could not be listed: {error}, and so has a second one. isolation=fresh does without it"
            ) from None

    def _described(self, python: str, variables: Mapping[str, str], hash_seed: int, folder: Path) -> Any:
        folders.prepare(folder)
        server = self._server(python or sys.executable, supervisor.environment(1, hash_seed, variables))
        child = server.fork({"folder": str(folder), "describe": True})
        listed = folder / "catalogue.json"
        # Renamed into place when it is whole. The server, which is importing meanwhile, says so only later.
        try:
            while (status := child.poll()) is None and not listed.is_file():
                time.sleep(0.005)
        except errors.LostError:
            process_group.end_group(child.pid, process_group.KILL)  # what was importing a file then
            raise
        if not listed.is_file():
            said = (folder / "stderr").read_text(encoding="utf-8", errors="backslashreplace").strip().splitlines()
            raise errors.LaunchError(f"the scenarios could not be listed: {said[-1] if said else f'status {status}'}")
        return parse(listed.read_text(encoding="utf-8"))

    def _server(self, python: str, variables: Mapping[str, str]) -> _Server:
        key = json.dumps([python, sorted(variables.items())])
        server = self._servers.get(key)
        if server is None or server.lost:
            if server is not None:
                server.close()
            server = self._servers[key] = _Server(python, variables, self._root)
        return server


class _Server:
    """One server, as its parent sees it."""

    def __init__(self, python: str, variables: Mapping[str, str], root: Path) -> None:
        program = root / "experiments" / "worker" / "__main__.py"
        try:
            self._process = subprocess.Popen(
                [python, str(program), "--serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(variables),
                start_new_session=True,
            )
        except OSError as error:
            raise errors.LaunchError(f"could not start {python}: {error}") from None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        os.set_blocking(self._process.stderr.fileno(), False)
        self._rest = b""
        self._said = b""
        self.pids: dict[str, int] = {}
        self.statuses: dict[str, int] = {}
        self.lost = False
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.read():
            if self.lost or time.monotonic() > deadline:
                self.close()
                if self.lost and self._process.returncode < 0:
                    raise errors.LostError(f"the fork server has ended by signal {-self._process.returncode}")
                last = (self._said.decode("utf-8", "backslashreplace").strip().splitlines() or ["it said nothing"])[-1]
                raise errors.LaunchError(f"the fork server did not come up: {last}")
            time.sleep(0.01)

    def fork(self, request: dict[str, Any]) -> Forked:
        """Ask for a child, and wait until it is there."""
        assert self._process.stdin is not None
        folder = request["folder"]
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self.lost = True
        deadline = time.monotonic() + PATIENCE
        while folder not in self.pids and not self.lost and time.monotonic() < deadline:
            if not self.read():
                time.sleep(0.001)
        self.lost = self.lost or folder not in self.pids
        return Forked(self, folder, self.pids.get(folder, 0))

    def read(self) -> bool:
        """Take in what the server has said. False if it was nothing."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._said = (self._said + (_available(self._process.stderr.fileno()) or b""))[-4096:]
        piece = _available(self._process.stdout.fileno())
        if piece is None:
            return False
        if not piece:
            self.lost = True
            return False
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return True

    def _take(self, answer: dict[str, Any]) -> None:
        if "started" in answer:
            self.pids[answer["started"]] = answer["pid"]
        elif "ended" in answer:
            self.statuses[answer["ended"]] = answer["status"]

    def status(self, folder: str) -> int | None:
        """How the child of this folder ended; None while it runs. Raises LostError if nobody can say."""
        self.read()
        if folder not in self.statuses and self.lost:
            raise errors.LostError("the fork server has ended")
        return self.statuses.get(folder)

    def close(self) -> None:
        """End the server; it ends its children when its stdin closes, and Linux does if it cannot."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _available(descriptor: int) -> bytes | None:
    """What can be read now: nothing yet is None, the end is empty."""
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class Forked:
    """One child of a server (a `launch.Process`)."""

    def __init__(self, server: _Server, folder: str, pid: int) -> None:
        self._server, self._folder = server, folder
        self._pid = pid

    @property
    def pid(self) -> int:
        """0 once it has ended: its number may then be anybody's, and the server has ended its group."""
        return 0 if self._folder in self._server.statuses else self._pid

    def poll(self) -> int | None:
        return self._server.status(self._folder)

    def close(self) -> None:
        """Wait, for a moment, until the server has taken it off the list of processes."""
        deadline = time.monotonic() + supervisor.PATIENCE
        while not self._server.lost and self._folder not in self._server.statuses and time.monotonic() < deadline:
            self._server.read()
            time.sleep(0.001)
        # A server that does not say so even now may have been stopped. It is not asked again.
        self._server.lost = self._server.lost or self._folder not in self._server.statuses

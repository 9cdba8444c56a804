"""Client of the fork servers: one server for each interpreter, environment, thread count and hash seed.

A fork server is an interpreter that has already imported torch; each case runs in a fork of it.
Imports only the standard library.
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
"""Seconds that a server may take to import torch, and to answer a request for a fork."""


class Forks:
    """All fork servers of a sweep, each started on first use. `close` ends them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._servers: dict[str, _Server] = {}

    def close(self) -> None:
        """End every server and the processes that it runs."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def start(self, spec: Spec, folder: Path) -> supervisor.Process:
        """Fork a process for the spec (a `supervisor.Starter`). Raises LaunchError if no server can be started."""
        setting = spec.setting
        variables = supervisor.environment(setting.thread_count(spec.question), setting.hash_seed, setting.variables)
        return self._server(supervisor.interpreter(spec), variables).fork({"folder": str(folder)})

    def describe(self, python: str, variables: Mapping[str, str], hash_seed: int, folder: Path) -> Any:
        """Return what `supervisor.describe` returns, from a server that the sweep needs anyway.

        Retries once with a new server if the first is lost. `folder` must not exist. Raises LaunchError if both fail.
        """
        try:
            return self._request_catalogue(python, variables, hash_seed, folder)
        except errors.LostError:
            # A process may still be writing to the first folder.
            retry_folder = folder.with_name(f"{folder.name}-again")
        try:
            return self._request_catalogue(python, variables, hash_seed, retry_folder)
        except errors.LostError as error:
            raise errors.LaunchError(
                f"the scenarios could not be listed: {error}, and so has a second one. isolation=fresh does without it"
            ) from None

    def _request_catalogue(self, python: str, variables: Mapping[str, str], hash_seed: int, folder: Path) -> Any:
        folders.prepare(folder)
        server = self._server(python or sys.executable, supervisor.environment(1, hash_seed, variables))
        child = server.fork({"folder": str(folder), "describe": True})
        listed = folder / "catalogue.json"
        # The file is renamed into place once complete; the server, still importing, reports the exit only later.
        try:
            while (status := child.poll()) is None and not listed.is_file():
                time.sleep(0.005)
        except errors.LostError:
            process_group.end_group(child.pid, process_group.KILL)  # the fork that was importing scenario files
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
    """One fork server, seen from its parent."""

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
        self._partial_line = b""
        self._stderr = b""
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
                last = (self._stderr.decode("utf-8", "backslashreplace").strip().splitlines() or ["it said nothing"])[
                    -1
                ]
                raise errors.LaunchError(f"the fork server did not come up: {last}")
            time.sleep(0.01)

    def fork(self, request: dict[str, Any]) -> Forked:
        """Request a fork and wait until it has started."""
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
        """Read the server's output and process complete answers. Return False if there was none."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stderr = (self._stderr + (_read_available(self._process.stderr.fileno()) or b""))[-4096:]
        piece = _read_available(self._process.stdout.fileno())
        if piece is None:
            return False
        if not piece:
            self.lost = True
            return False
        *lines, self._partial_line = (self._partial_line + piece).split(b"\n")
        for line in lines:
            self._record_answer(json.loads(line))
        return True

    def _record_answer(self, answer: dict[str, Any]) -> None:
        if "started" in answer:
            self.pids[answer["started"]] = answer["pid"]
        elif "ended" in answer:
            self.statuses[answer["ended"]] = answer["status"]

    def status(self, folder: str) -> int | None:
        """Return the exit status of this folder's fork, None while it runs. Raises LostError if the server is lost."""
        self.read()
        if folder not in self.statuses and self.lost:
            raise errors.LostError("the fork server has ended")
        return self.statuses.get(folder)

    def close(self) -> None:
        """End the server. It ends its forks when its stdin closes; if it cannot, Linux does."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _read_available(descriptor: int) -> bytes | None:
    """Return the bytes available now: None if there are none yet, empty at the end of the stream."""
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class Forked:
    """One fork of a server (a `supervisor.Process`)."""

    def __init__(self, server: _Server, folder: str, pid: int) -> None:
        self._server, self._folder = server, folder
        self._pid = pid

    @property
    def pid(self) -> int:
        """The PID, or 0 once it has ended: the PID may then be reused, and the server has ended its process group."""
        return 0 if self._folder in self._server.statuses else self._pid

    def poll(self) -> int | None:
        """Return the exit status, None while it runs. Raises LostError if the server is lost."""
        return self._server.status(self._folder)

    def close(self) -> None:
        """Wait up to `supervisor.PATIENCE` seconds until the server reports its exit."""
        deadline = time.monotonic() + supervisor.PATIENCE
        while not self._server.lost and self._folder not in self._server.statuses and time.monotonic() < deadline:
            self._server.read()
            time.sleep(0.001)
        # A server that still has not reported it may have been stopped, so it is treated as lost.
        self._server.lost = self._server.lost or self._folder not in self._server.statuses

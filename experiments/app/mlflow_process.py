"""The background process that brings MLflow up to date while a sweep runs.

A process of its own, so that an MLflow that is slow, unreachable or broken can neither delay nor end the
sweep. It is told on its stdin which records are complete; what it could not publish, `python -m store
publish` publishes later. Only the standard library is imported here.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from typing import IO, Any, Sequence

LATER = "`python -m reports.mlflow sync` brings MLflow up to date"

_LEAVE = 5.0
"""Seconds that a publisher gets to take away what it has begun."""


class Publishing:
    """A publisher that may be there or not: every call is safe either way."""

    def __init__(self, process: subprocess.Popen[bytes] | None, out: IO[bytes], err: IO[bytes], wait: float) -> None:
        self._process, self._out, self._err, self._wait = process, out, err, wait
        self._told = False

    @classmethod
    def nobody(cls) -> Publishing:
        """Publishes nothing."""
        return cls(None, io.BytesIO(), io.BytesIO(), 0.0)

    @classmethod
    def begin(cls, tracking: str, artifacts: str, wait: float) -> Publishing:
        """Start ``python -m reports.mlflow sync --follow`` for this MLflow, whose store it makes at once. `wait` is
        how many seconds it gets, once the sweep is over, to finish.
        """
        # Files without a name: they go when this process does, however that ends.
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - open as long as it runs
        process = subprocess.Popen(
            [sys.executable, "-m", "reports.mlflow", "sync", "--follow"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        made = cls(process, out, err, wait)
        # Addresses are told here and not on the command line, which everybody on the machine can read.
        made._tell({"tracking": tracking, "artifacts": artifacts})
        return made

    def sweep(self, name: str, *, archive: str, blobs: str) -> None:
        """The sweep is known, and the archive is there."""
        self._told = True
        self._tell({"sweep": name, "archive": archive, "blobs": blobs})

    def group(self, digests: Sequence[str]) -> None:
        """All records of one scenario are archived."""
        self._tell({"records": list(digests)})

    def finish(self) -> str:
        """Let it publish what is left. Gives a sentence on how that went, empty if nobody publishes."""
        if self._process is None:
            return ""
        self._tell({"end": True})
        try:
            status = self._process.wait(timeout=self._wait)
        except subprocess.TimeoutExpired:
            self._stop()
            return f"MLflow: not up to date after {self._wait:g} seconds; {LATER}"
        said = _lines(self._err)
        if status:
            said = said or [f"the publisher ended with {status}; {LATER}"]
        else:
            said.append(_counted("".join(_lines(self._out)[-1:])))
        return "\n".join(line if line.startswith("MLflow") else f"MLflow: {line}" for line in said)

    def abandon(self) -> None:
        """If it was not finished: let it mark its runs as ended, and do not wait long."""
        if self._process is not None and self._process.stdin is not None:
            # What it never read goes with it.
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self._process is not None and self._process.returncode is None:
            self._end(wait=15 if self._told else 0)
        for stream in (self._out, self._err):
            stream.close()

    def _end(self, wait: float) -> None:
        assert self._process is not None, "there is somebody to wait for"
        try:
            self._process.wait(timeout=wait)
        except subprocess.TimeoutExpired:
            self._stop()

    def _stop(self) -> None:
        """SIGTERM first: it takes away what it has not made whole."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, message: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        # If it has ended, `finish` says why; the archive has the records.
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()


def _lines(stream: IO[bytes]) -> list[str]:
    stream.seek(0)
    return stream.read().decode("utf-8", "backslashreplace").strip().splitlines()


def _counted(line: str) -> str:
    try:
        counts = json.loads(line)
    except ValueError:
        return line
    return ", ".join(f"{count} {word}" for word, count in counts.items()) if isinstance(counts, dict) else line

"""Client of the background process that publishes records to MLflow while a sweep runs.

It is a separate process, so that an MLflow that is slow, unreachable or broken can neither delay nor end the sweep.
It reads on its stdin which records are complete; what it could not publish, `python -m reports.mlflow sync` publishes
later. Imports only the standard library.
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
"""Seconds that a publisher gets to remove incomplete runs."""


class Publishing:
    """A publisher process, or none: every call is safe either way."""

    def __init__(self, process: subprocess.Popen[bytes] | None, out: IO[bytes], err: IO[bytes], wait: float) -> None:
        self._process, self._out, self._err, self._wait = process, out, err, wait
        self._has_sweep = False

    @classmethod
    def make_inactive(cls) -> Publishing:
        """Return an instance without a process, which publishes nothing."""
        return cls(None, io.BytesIO(), io.BytesIO(), 0.0)

    @classmethod
    def begin(cls, tracking: str, artifacts: str, wait: float) -> Publishing:
        """Start ``python -m reports.mlflow sync --follow`` for this MLflow, whose store it creates at once.

        `wait` is the number of seconds that it gets to finish after the sweep.
        """
        # Unnamed files, which disappear with this process, however it ends.
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - open as long as it runs
        process = subprocess.Popen(
            [sys.executable, "-m", "reports.mlflow", "sync", "--follow"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        publishing = cls(process, out, err, wait)
        # Addresses are sent on stdin, because every user of the machine can read command lines.
        publishing._send_message({"tracking": tracking, "artifacts": artifacts})
        return publishing

    def send_sweep(self, name: str, *, archive: str, blobs: str) -> None:
        """Send which sweep runs, and where its archive is."""
        self._has_sweep = True
        self._send_message({"sweep": name, "archive": archive, "blobs": blobs})

    def send_records(self, digests: Sequence[str]) -> None:
        """Send the digests of one scenario's records, all of which are archived."""
        self._send_message({"records": list(digests)})

    def finish(self) -> str:
        """Wait until the rest is published. Return a sentence on the result, empty if there is no publisher."""
        if self._process is None:
            return ""
        self._send_message({"end": True})
        try:
            status = self._process.wait(timeout=self._wait)
        except subprocess.TimeoutExpired:
            self._stop_process()
            return f"MLflow: not up to date after {self._wait:g} seconds; {LATER}"
        said = _lines(self._err)
        if status:
            said = said or [f"the publisher ended with {status}; {LATER}"]
        else:
            said.append(_counts_text("".join(_lines(self._out)[-1:])))
        return "\n".join(line if line.startswith("MLflow") else f"MLflow: {line}" for line in said)

    def abandon(self) -> None:
        """End a publisher that `finish` has not ended: let it mark its runs as ended, without waiting long."""
        if self._process is not None and self._process.stdin is not None:
            # Messages that it has not read are dropped.
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self._process is not None and self._process.returncode is None:
            self._end_process(wait=15 if self._has_sweep else 0)
        for stream in (self._out, self._err):
            stream.close()

    def _end_process(self, wait: float) -> None:
        assert self._process is not None, "there is somebody to wait for"
        try:
            self._process.wait(timeout=wait)
        except subprocess.TimeoutExpired:
            self._stop_process()

    def _stop_process(self) -> None:
        """Send SIGTERM, on which it removes incomplete runs, then SIGKILL if that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send_message(self, message: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        # If it has ended, `finish` says why; the archive has the records.
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()


def _lines(stream: IO[bytes]) -> list[str]:
    stream.seek(0)
    return stream.read().decode("utf-8", "backslashreplace").strip().splitlines()


def _counts_text(line: str) -> str:
    try:
        counts = json.loads(line)
    except ValueError:
        return line
    return ", ".join(f"{count} {word}" for word, count in counts.items()) if isinstance(counts, dict) else line

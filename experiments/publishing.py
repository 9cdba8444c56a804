"""The background process that brings MLflow up to date while a sweep runs.

A process of its own, so that an MLflow that is slow, unreachable or broken can neither delay nor end the
sweep. It is told on its stdin which records are complete; what it could not publish, `python -m store
publish` publishes later. Only the standard library is imported here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Sequence

LATER = "`python -m store publish` brings MLflow up to date"


class Publishing:
    """A publisher that may be there or not: every call is safe either way."""

    def __init__(self, process: subprocess.Popen[bytes] | None, folder: Path, wait: float) -> None:
        self._process, self._folder, self._wait = process, folder, wait

    @classmethod
    def nobody(cls) -> Publishing:
        """Publishes nothing."""
        return cls(None, Path(), 0.0)

    @classmethod
    def begin(cls, command: Sequence[str], folder: Path, wait: float) -> Publishing:
        """Start ``python -m store publish --follow ...`` with `command` as its arguments. `wait` is how many
        seconds it gets, once the sweep is over, to finish.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "publish.out").open("wb") as out, (folder / "publish.err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "store", "publish", *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        return cls(process, folder, wait)

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
        if status:
            return f"MLflow: {self._last('publish.err') or f'the publisher ended with {status}'}"
        return f"MLflow: {_counted(self._last('publish.out'))}"

    def abandon(self) -> None:
        """The sweep was interrupted: let it mark its runs as ended, and do not wait long."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._stop()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _tell(self, message: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            # It has ended; `finish` says why. The archive has the records.
            time.sleep(0)

    def _last(self, name: str) -> str:
        try:
            lines = (self._folder / name).read_text(encoding="utf-8", errors="backslashreplace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""


def _counted(line: str) -> str:
    try:
        counts = json.loads(line)
    except ValueError:
        return line
    return ", ".join(f"{count} {word}" for word, count in counts.items()) if isinstance(counts, dict) else line

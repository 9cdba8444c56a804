"""Exit status of a program whose output stream is closed or full, or that Ctrl-C interrupts.

`head` closes its end of a pipe once it has read enough, and a closed terminal accepts no more output. What is printed
after that is dropped, and the program ends as it would have ended. If stdout is a file that cannot be written any more,
the program also continues, since its work may be worth more than its output, but then reports the error and exits
with 2.

Imports only the standard library, and runs on Python 3.9.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import Any, Callable, NoReturn, Optional, TextIO

GONE = (errno.EPIPE, errno.EIO)
"""Errors of a pipe and of a terminal whose other end is closed."""


INTERRUPTED = 130
"""Exit status of a program that Ctrl-C has ended."""

_lost: list[OSError] = []
"""Errors of writing to stdout."""

_begun: list[bool] = []
"""Not empty once `handle_early_interrupt` has replaced the handler of Ctrl-C."""


class _TolerantFile(io.RawIOBase):
    """The descriptor of a stream, redirected to the null device once nothing can be written to it."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._gone = GONE if os.isatty(descriptor) else GONE[:1]  # of a file, EIO means a broken disk

    def write(self, data: Any) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError as error:
            if error.errno not in self._gone and self._descriptor == 1:
                _lost.append(error)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._descriptor)
        os.close(nothing)
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


def handle_early_interrupt(sentence: str) -> None:
    """Make Ctrl-C print the sentence and exit with 130 at once, until `run_program` is called.

    For the first line of a program: importing its modules takes seconds, in which there is nothing to clean up.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # it is ignored, as in a background process

    def leave(*_: object) -> NoReturn:
        line = f"{sentence}\n".encode("utf-8", "backslashreplace")
        try:
            os.write(2, line)
        finally:
            os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, leave)
    _begun.append(True)


def run_program(name: str, program: Callable[[], Optional[int]], stopped: str = "nothing was changed") -> int:
    """Run a program and return its exit status, also if it calls `sys.exit` itself.

    `stopped` says what state Ctrl-C has left, where the program does not report that itself.
    """
    tolerate_closed_streams()
    if _begun:
        _begun.clear()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ended = program() or 0
    except SystemExit as left:
        ended = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the rest at once
        print(f"{name}: stopped; {stopped}", file=sys.stderr)
        ended = INTERRUPTED
    return _flush_stdout(name, ended)


def _flush_stdout(name: str, ended: int) -> int:
    """Flush stdout and return the exit status: `ended`, or 2 if the output could not be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _lost.append(error)
    if not _lost:
        return ended
    why = _lost[0].strerror or _lost[0]
    print(f"{name}: what it prints cannot be written to stdout: {why}. All else was done", file=sys.stderr)
    return ended if ended == INTERRUPTED else 2


def tolerate_closed_streams() -> None:
    """Make writing to a closed stdout or stderr do nothing. For the start of a program."""
    sys.stdout, sys.stderr = _tolerant_stream(sys.stdout, 1), _tolerant_stream(sys.stderr, 2)


def _tolerant_stream(stream: Optional[TextIO], descriptor: int) -> TextIO:
    """Return a stream like this one that may be closed by its reader; a stream that is not the original as it is."""
    if stream is None:  # it was closed from the beginning
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - as long as the program runs
    if type(stream) is not io.TextIOWrapper:
        return stream  # it was replaced, as pytest does
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if not isinstance(raw, io.FileIO) or raw.fileno() != descriptor:
        return stream  # a Windows console accepts no bytes
    stream.flush()
    made = _TolerantFile(descriptor)
    buffer: Any = made if stream.write_through else io.BufferedWriter(made)  # the former for `python -u`
    return io.TextIOWrapper(
        buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )

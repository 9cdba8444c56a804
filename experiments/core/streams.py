"""How a program ends: what it prints when nobody listens or the disk is full, and what Ctrl-C makes of it.

`head` closes its end of a pipe once it has seen enough, and a terminal that is closed takes no more. What is printed
after that goes nowhere; the program ends as it would have ended. Where stdout is a file that takes no more, the program
goes on as well, since its work may be worth more than what it prints; but then it says so and ends with 2.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import Any, Callable, NoReturn, Optional, TextIO

GONE = (errno.EPIPE, errno.EIO)
"""What a pipe and a terminal say whose other end is closed."""


INTERRUPTED = 130
"""Exit status of what Ctrl-C has ended."""

_lost: list[OSError] = []
"""Why stdout took no more, if it did not."""

_begun: list[bool] = []
"""Whether `begin` has set how Ctrl-C ends."""


class _Forgiving(io.RawIOBase):
    """The descriptor of a stream, which becomes nothing once nobody reads it."""

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


def begin(sentence: str) -> None:
    """Let Ctrl-C end this process with 130 and this sentence at once, for as long as modules are imported, which takes
    seconds: there is nothing to be put right yet. `status` ends it. For the first line of a program.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # ignored, as of what runs in the background

    def leave(*_: object) -> NoReturn:
        told = f"{sentence}\n".encode("utf-8", "backslashreplace")
        try:
            os.write(2, told)
        finally:
            os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, leave)
    _begun.append(True)


def status(name: str, program: Callable[[], Optional[int]], stopped: str = "nothing was changed") -> int:
    """Run a program to its end; gives its exit status, also where it calls `sys.exit` itself.

    `stopped` is what Ctrl-C has left, where the program does not say so itself.
    """
    forgive_closed()
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
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # another one ends what is left at once
        print(f"{name}: stopped; {stopped}", file=sys.stderr)
        ended = INTERRUPTED
    return _printed(name, ended)


def _printed(name: str, ended: int) -> int:
    """The exit status, once all that was printed is where it belongs; or 2 if it is not."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _lost.append(error)
    if not _lost:
        return ended
    why = _lost[0].strerror or _lost[0]
    print(f"{name}: what it prints cannot be written to stdout: {why}. All else was done", file=sys.stderr)
    return ended if ended == INTERRUPTED else 2


def forgive_closed() -> None:
    """Let stdout and stderr of this process be closed by whoever reads them. For the start of a program."""
    sys.stdout, sys.stderr = _forgiving(sys.stdout, 1), _forgiving(sys.stderr, 2)


def _forgiving(stream: Optional[TextIO], descriptor: int) -> TextIO:
    if stream is None:  # it was closed from the beginning
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - as long as the program runs
    if type(stream) is not io.TextIOWrapper:
        return stream  # somebody has put another in its place, as pytest does
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if not isinstance(raw, io.FileIO) or raw.fileno() != descriptor:
        return stream  # a console of Windows takes no bytes
    stream.flush()
    made = _Forgiving(descriptor)
    buffer: Any = made if stream.write_through else io.BufferedWriter(made)  # the former for `python -u`
    return io.TextIOWrapper(
        buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )

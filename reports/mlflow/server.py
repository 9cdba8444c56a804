"""What an MLflow server may do to whoever publishes to it: take so much time, answer so much, name such places.

A server may be broken, or somebody else's. `requests` bounds the wait for a next byte and nothing besides: an answer
of one byte each nine seconds, or one without an end, would keep us for ever.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit
from urllib.request import url2pathname

LONGEST = 64 * 2**20
"""Bytes of one answer, unpacked."""

_SERVED = ("mlflow-artifacts", "http", "https", "s3", "gs", "wasbs", "abfss", "r2", "b2")
"""Kinds of addresses for artifacts that lead away from this machine. Those of `runs` and `models` lead anywhere."""


class TooLate(BaseException):
    """Time is up. No `Exception`, because those are caught, and tried again, by everything in between."""


class TooLongError(OSError):
    """An answer has more bytes than are read."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises TooLate wherever the block is after so many seconds. In the main thread only: no other gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> NoReturn:
        raise TooLate

    until = time.monotonic() + seconds
    before = signal.signal(signal.SIGALRM, ring)
    # Again each second: an exception in a destructor is lost.
    signal.setitimer(signal.ITIMER_REAL, max(0.001, until - time.monotonic()), 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def bounded_answers() -> Iterator[None]:
    """No answer of a server is read beyond `LONGEST` bytes, whichever part of mlflow asks for it."""
    from requests.adapters import HTTPAdapter  # noqa: PLC0415 - comes with mlflow, which is slow to import

    send = HTTPAdapter.send

    def bounded(self: Any, *arguments: Any, **options: Any) -> Any:
        answer = send(self, *arguments, **options)
        answer.raw = _Bounded(answer.raw)
        return answer

    HTTPAdapter.send = bounded  # type: ignore[method-assign]
    try:
        yield
    finally:
        HTTPAdapter.send = send  # type: ignore[method-assign]


class _Bounded:
    """The body of an answer, which raises TooLongError beyond the bound; everything else is the body's own."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(self, *arguments: Any, **options: Any) -> Iterator[bytes]:
        read = 0
        for some in self._raw.stream(*arguments, **options):
            read += len(some)
            if read > LONGEST:
                self._raw.close()
                raise TooLongError(f"an answer has more than {LONGEST // 2**20} MiB, which is more than is read")
            yield some


def refusal(address: str, allowed: Path | None) -> str:
    """Why artifacts are not sent to an address that a server has named. Empty if they are.

    A server that keeps files beside itself tells its clients to write them there, which here is this machine: then
    only the folder `allowed`, which a person has named, is written.
    """
    named = f"it keeps artifacts at {address[:200]!r}"
    try:
        parts = urlsplit(address)
    except ValueError:
        return f"{named}, which is no address"
    if parts.scheme in _SERVED:
        return ""
    if not address.isprintable() or not (parts.scheme == "" or address.startswith("file:")):
        return f"{named}, a kind of address to which nothing is sent"
    if allowed is None:
        return (
            f"{named}, a folder of this machine, where no server may have us write: start it with --serve-artifacts, "
            "so that it takes artifacts itself, or name a folder that you share with it with --artifacts"
        )
    place = Path(url2pathname(parts.path if parts.scheme else address)).resolve()
    return (
        "" if place.is_relative_to(allowed.resolve()) else f"{named}, which is not below {allowed}, as --artifacts says"
    )

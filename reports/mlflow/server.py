"""Limits for an MLflow server that is published to: its time, the size of its answers, and the addresses it names.

A server may be broken or foreign. `requests` limits only the wait for the next byte: an answer of one byte every nine
seconds, or one without an end, would block forever.
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
"""Most bytes of one answer, decompressed."""

_SERVED = ("mlflow-artifacts", "http", "https", "s3", "gs", "wasbs", "abfss", "r2", "b2")
"""Schemes of artifact addresses that lead to another machine. Those of `runs` and `models` can lead anywhere."""


class TooLate(BaseException):
    """Time is up. Not an `Exception`, because the code in between catches those and retries."""


class TooLongError(OSError):
    """An answer has more bytes than the limit."""


@contextlib.contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Raise TooLate in the block after so many seconds. Only in the main thread: no other receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_too_late(*_: object) -> NoReturn:
        raise TooLate

    until = time.monotonic() + seconds
    before = signal.signal(signal.SIGALRM, raise_too_late)
    # Raised again each second, as an exception in a destructor is lost.
    signal.setitimer(signal.ITIMER_REAL, max(0.001, until - time.monotonic()), 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def limit_answers() -> Iterator[None]:
    """Read no answer of a server beyond `LONGEST` bytes, whichever part of mlflow requests it."""
    from requests.adapters import HTTPAdapter  # noqa: PLC0415 - comes with mlflow, which is slow to import

    send = HTTPAdapter.send

    def send_bounded(self: Any, *arguments: Any, **options: Any) -> Any:
        answer = send(self, *arguments, **options)
        answer.raw = _Bounded(answer.raw)
        return answer

    HTTPAdapter.send = send_bounded  # type: ignore[method-assign]
    try:
        yield
    finally:
        HTTPAdapter.send = send  # type: ignore[method-assign]


class _Bounded:
    """The body of an answer, which raises TooLongError beyond the limit and otherwise behaves as the body itself."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(self, *arguments: Any, **options: Any) -> Iterator[bytes]:
        """Yield the body in chunks. Raise TooLongError beyond the limit."""
        read = 0
        for chunk in self._raw.stream(*arguments, **options):
            read += len(chunk)
            if read > LONGEST:
                self._raw.close()
                raise TooLongError(f"an answer has more than {LONGEST // 2**20} MiB, which is more than is read")
            yield chunk


def refusal(address: str, allowed: Path | None) -> str:
    """Return why artifacts are not sent to an address that a server has named. Empty if they are.

    A server that keeps files in a local folder tells its clients to write there, which means on this machine. In that
    case only the folder `allowed`, which the user has named, is written to.
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

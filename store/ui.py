"""MLflow's user interface on this machine, over what was published.

    python -m store.ui [--port 5000]

Exit status 0 when it was ended, 2 if it cannot start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from store.talk import say, tell
from store.tracking import ARTIFACTS, QUIET, TRACKING, sqlite_file, without_password

_START = 60.0
"""Seconds that the user interface may take to answer."""


def main_ui(argv: Sequence[str]) -> int:
    """Run MLflow's user interface on the loopback until Ctrl-C. Exit status 0, or 2 if it cannot start."""
    arguments = _ui_arguments(argv)
    hindrance = _hindrance(arguments.tracking, arguments.port)
    if hindrance:
        say(hindrance)
        return 2
    # Whoever ends this process, by Ctrl-C or otherwise, ends the server with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    process = subprocess.Popen(
        _ui_command(arguments),
        env={"PYTHONWARNINGS": "ignore", **os.environ, **QUIET},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
    )
    try:
        return _served(process, f"http://127.0.0.1:{arguments.port}")
    except KeyboardInterrupt:
        return 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _ui_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m store.ui", description="MLflow's user interface.")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--tracking", metavar="URI", default=TRACKING)
    parser.add_argument("--artifacts", metavar="DIR", type=Path, default=Path(ARTIFACTS))
    return parser.parse_args(argv)


def _ui_command(arguments: argparse.Namespace) -> list[str]:
    where = [
        "--backend-store-uri",
        arguments.tracking,
        "--default-artifact-root",
        arguments.artifacts.resolve().as_uri(),
    ]
    return [
        *(sys.executable, "-m", "mlflow", "server", *where),
        *("--host", "127.0.0.1", "--port", str(arguments.port), "--workers", "1"),
        *("--uvicorn-opts", "--log-level warning"),
    ]


def _hindrance(uri: str, port: int) -> str:
    """Why the user interface cannot start. Empty if it can."""
    if uri.startswith("http"):
        return f"{without_password(uri)} is a server with its own user interface: open it in a browser"
    file = sqlite_file(uri)
    if file is not None and not file.is_file():
        return f"nothing has been published yet: there is no {file}. Run `make run-all` or `python -m store publish`"
    if _taken(port):
        return f"port {port} is taken; try another one, such as --port {_free()}"
    return ""


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _served(process: subprocess.Popen[bytes], address: str) -> int:
    """Print the address once it answers, then wait for the end."""
    until = time.monotonic() + _START
    while process.poll() is None and not _answers(address):
        if time.monotonic() > until:
            say(f"MLflow's server has not answered at {address} for {_START:g} s")
            return 2
        time.sleep(0.2)
    if process.poll() is None:
        tell(f"{address} shows what was published; Ctrl-C ends it")
    return 0 if process.wait() == 0 else 2


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:  # noqa: S310 - our own address
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(main_ui(sys.argv[1:]))

"""MLflow's user interface on this machine, over what was published.

    python -m reports.mlflow ui [--port 5000]

Exit status 0 when it was ended, 2 if it cannot start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from experiments.core.masking import mask_secrets
from reports.mlflow.database_file import ARTIFACTS, TRACKING, fault, has_store, usable_address
from reports.mlflow.tracking import QUIET
from store.console import print_message, print_result
from store.database import sqlite_file
from store.errors import ArchiveError

_START = 60.0
"""Seconds that the user interface may take to answer."""


def run_ui(arguments: argparse.Namespace) -> int:
    """Run MLflow's user interface on the loopback until Ctrl-C. Return 0, or 2 if it cannot start."""
    hindrance = _hindrance(arguments.tracking, arguments.port)
    if hindrance:
        print_message(hindrance)
        return 2
    # The server ends with this process, whether that ends by Ctrl-C, by a signal, or because its terminal is closed.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    try:
        with contextlib.ExitStack() as leaving:
            return _serve(leaving.enter_context(_run_server(arguments)), f"http://127.0.0.1:{arguments.port}")
    except KeyboardInterrupt:
        return 0


@contextlib.contextmanager
def _run_server(arguments: argparse.Namespace) -> Iterator[subprocess.Popen[bytes]]:
    """Run MLflow's server until the block ends."""
    file = sqlite_file(arguments.tracking)
    with contextlib.nullcontext(arguments.tracking) if file is None else usable_address(file) as address:
        process = subprocess.Popen(
            _ui_command(arguments),
            env={"PYTHONWARNINGS": "ignore", **os.environ, **QUIET, **_addresses(address, arguments.artifacts)},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `run_ui`."""
    parser.add_argument("--port", type=int, default=5000, help="port on the loopback (default: %(default)s)")
    parser.add_argument("--tracking", metavar="URI", default=TRACKING, help="MLflow store (default: %(default)s)")
    parser.add_argument(
        "--artifacts", metavar="DIR", type=Path, default=Path(ARTIFACTS), help="its artifacts (default: %(default)s)"
    )


def _ui_command(arguments: argparse.Namespace) -> list[str]:
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--host", "127.0.0.1", "--port", str(arguments.port), "--workers", "1"),
        *("--uvicorn-opts", "--log-level warning"),
    ]


def _addresses(tracking: str, artifacts: Path) -> dict[str, str]:
    """Return the variables that tell the server where the store is: anyone can read a command line."""
    return {
        "MLFLOW_BACKEND_STORE_URI": tracking,
        "MLFLOW_DEFAULT_ARTIFACT_ROOT": artifacts.resolve().as_uri(),
    }


def _hindrance(uri: str, port: int) -> str:
    """Return why the user interface cannot start. Empty if it can."""
    if uri.startswith("http"):
        return f"{mask_secrets(uri)} is a server with its own user interface: open it in a browser"
    file = sqlite_file(uri)
    if file is not None and not has_store(file):
        why = f"nothing has been published yet: there is no {file}"
        return f"{why}. Run `make run-all` or `python -m reports.mlflow sync`"
    why = _fault(file) if file is not None else ""
    if why:
        return why
    if _is_taken(port):
        return f"port {port} is taken; try another one, such as --port {_free_port()}"
    return ""


def _fault(file: Path) -> str:
    try:
        found = fault(file)
    except (ArchiveError, OSError, sqlite3.Error) as error:
        return str(error)
    again = "`python -m reports.mlflow sync` keeps it under another name and makes a new one from the records"
    return found and f"MLflow's store {file} cannot be used: {found}; {again}"


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(process: subprocess.Popen[bytes], address: str) -> int:
    """Print the address once it answers, then wait for the end."""
    until = time.monotonic() + _START
    while process.poll() is None and not _is_answering(address):
        if time.monotonic() > until:
            print_message(f"MLflow's server has not answered at {address} for {_START:g} s")
            return 2
        time.sleep(0.2)
    if process.poll() is not None:
        print_message(f"MLflow's server ended with {process.returncode} before it answered at {address}")
        return 2
    print_result(f"{address} shows what was published; Ctrl-C ends it")
    return 0 if process.wait() == 0 else 2


def _is_answering(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:  # noqa: S310 - our own address
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False

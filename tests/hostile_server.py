"""An MLflow server of which one thing is wrong: it answers as MLflow does, but for what a test has it do."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OURS = "mlflow-artifacts:/1/run"


@dataclass
class Server:
    """What it does, and what it was asked."""

    port: int
    wrong: Callable[[Handler], bool] = lambda _: False
    """Answers a request in its own way and says so, or leaves it."""
    experiment: str = "mlflow-artifacts:/1"
    run: str = OURS
    """Where it says that artifacts of an experiment, and of a run, are kept."""
    asked: list[str] = field(default_factory=list)
    runs: int = 0

    @property
    def uri(self) -> str:
        return f"http://anna:hunter2@127.0.0.1:{self.port}"


class Handler(BaseHTTPRequestHandler):
    of: Server

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        place = self.path.partition("?")[0].removeprefix("/api/2.0/mlflow/")
        self.of.asked.append(f"{self.command} {place}")
        with contextlib.suppress(OSError):
            if not self.of.wrong(self):
                self.say(self.told(place, body))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - as the class wants them

    def told(self, place: str, body: bytes) -> dict[str, Any]:
        if place == "experiments/get-by-name":
            return {"experiment": {"experiment_id": "1", "name": "x", "artifact_location": self.of.experiment}}
        if place == "runs/create":
            self.of.runs += 1
            given = json.loads(body)
            info = {
                "run_id": f"{self.of.runs:032x}",
                "experiment_id": "1",
                "status": "RUNNING",
                "artifact_uri": self.of.run,
                "lifecycle_stage": "active",
            }
            return {"run": {"info": info, "data": {"tags": given.get("tags", [])}}}
        return {}

    def say(self, what: object, status: int = 200, **headers: str) -> None:
        self.send(json.dumps(what).encode() if not isinstance(what, bytes) else what, status, **headers)

    def send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        made = Server(server.server_address[1])
        server.RequestHandlerClass = type("Bound", (Handler,), {"of": made})
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


# What can be wrong.


def silent(_: Handler) -> bool:
    time.sleep(30)
    return True


def drips(asked: Handler) -> bool:
    """Half a byte too slow for ever, and never so slow that a wait for the next byte would end."""
    asked.send_response(200)
    asked.send_header("Content-Length", "1000000")
    asked.end_headers()
    return _trickle(asked)


def drips_headers(asked: Handler) -> bool:
    asked.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    return _trickle(asked)


def _trickle(asked: Handler) -> bool:
    for _ in range(300):
        asked.wfile.write(b" ")
        asked.wfile.flush()
        time.sleep(0.1)
    return True


def endless(asked: Handler) -> bool:
    asked.send_response(200)
    asked.end_headers()
    while True:
        asked.wfile.write(b" " * 2**20)


def bomb(asked: Handler) -> bool:
    """Small as it comes, and large unpacked."""
    asked.send(gzip.compress(b" " * 2**27), Content_Encoding="gzip")
    return True


def busy(asked: Handler) -> bool:
    asked.say({}, 503, Retry_After="3600")
    return True


def in_circles(asked: Handler) -> bool:
    asked.say({}, 307, Location=asked.path)
    return True


def nested(asked: Handler) -> bool:
    asked.say(b"[" * 100_000)
    return True


def other_types(asked: Handler) -> bool:
    asked.say({"experiments": [5], "experiment": "x", "runs": "y", "run": 3})
    return True


def a_page(asked: Handler) -> bool:
    asked.say(b"<html>\x1b[31mwelcome</html>", 200, Content_Type="text/html")
    return True


def for_ever_more(asked: Handler) -> bool:
    """Another page of runs, each time."""
    if not asked.path.endswith("runs/search"):
        return False
    asked.say({"runs": [], "next_page_token": "more"})
    return True


WRONG = (silent, drips, drips_headers, endless, bomb, busy, in_circles, nested, other_types, a_page, for_ever_more)

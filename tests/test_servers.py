"""Publishing to a server that is broken, or somebody else's: it ends in time, says so, and writes nothing here."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reports.mlflow import server as server_module
from reports.mlflow import tracking
from reports.mlflow.server import refusal
from tests import hostile_server
from tests.hostile_server import Handler, Server
from tests.test_tracking import Lab, empty_store, lab, usual

__all__ = ["empty_store", "lab"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """With bounds that a test can wait for."""
    monkeypatch.setattr(tracking, "_STEP", 3.0)
    monkeypatch.setattr(tracking, "_PAGES", 20)
    monkeypatch.setattr(server_module, "LONGEST", 2**22)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER", "false")
    with hostile_server.serving() as made:
        yield made


def publish(lab: Lab, server: Server, *options: str) -> int:
    return lab.publish("--tracking", server.uri, *options)


def test_a_server_gets_everything(lab: Lab, server: Server, capsys: pytest.CaptureFixture[str]):
    """What the others show is nothing unless this one is published to."""
    usual(lab)
    assert publish(lab, server) == 0
    assert capsys.readouterr() == ("6 runs published, 0 were up to date\n", "")
    sent = [one for one in server.asked if one.startswith("PUT")]
    assert sum(one.endswith("/records/plain.json") for one in sent) == 6


@pytest.mark.parametrize("wrong", hostile_server.WRONG, ids=lambda one: one.__name__)
def test_a_server_of_which_something_is_wrong_ends_in_a_sentence_and_in_time(
    lab: Lab, server: Server, capsys: pytest.CaptureFixture[str], wrong: Callable[[Handler], bool]
):
    usual(lab)
    server.wrong = wrong
    began = time.monotonic()
    assert publish(lab, server) == 2
    assert time.monotonic() - began < 10
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "`python -m reports.mlflow sync` publishes it later" in told.err
    assert "hunter2" not in told.err
    assert "\x1b" not in told.err


def test_what_is_left_is_said(lab: Lab, server: Server, capsys: pytest.CaptureFixture[str]):
    usual(lab)

    def stops(asked: Handler) -> bool:
        if server.runs < 4:
            return False
        asked.say({"error_code": "INTERNAL_ERROR", "message": "no more"}, 500)
        return True

    server.wrong = stops
    assert publish(lab, server) == 2
    assert "2 of 6 runs are there, 4 are left: the same command goes on with them" in capsys.readouterr().err


def test_all_together_has_an_end_too(lab: Lab, server: Server, capsys: pytest.CaptureFixture[str]):
    """Each replay is taken in time, and the whole would take for ever."""
    usual(lab)

    def slow(_: Handler) -> bool:
        time.sleep(0.1)
        return False

    server.wrong = slow
    began = time.monotonic()
    assert publish(lab, server, "--within", "1") == 2
    assert time.monotonic() - began < 3
    assert "it took longer than it was given" in capsys.readouterr().err


# Where artifacts go.


@pytest.mark.parametrize("named", ["file:{}", "file://{}", "{}", "FILE://{}", "runs:/1{}", "models:/1{}", "c:{}"])
@pytest.mark.parametrize("of", ["experiment", "run"])
def test_a_server_does_not_have_us_write_here(
    lab: Lab, server: Server, tmp_path: Path, named: str, of: str, capsys: pytest.CaptureFixture[str]
):
    usual(lab)
    setattr(server, of, named.format(tmp_path / "evil"))
    assert publish(lab, server) == 2
    assert "it keeps artifacts at" in capsys.readouterr().err
    assert not (tmp_path / "evil").exists()
    assert not list(Path.cwd().glob("*:"))


def test_a_folder_that_a_person_has_named_is_written(lab: Lab, server: Server, tmp_path: Path):
    usual(lab)
    shared = tmp_path / "shared"
    server.experiment = server.run = (shared / "1").as_uri()
    assert publish(lab, server, "--artifacts", str(shared)) == 0
    assert (shared / "1" / "records" / "plain.json").is_file()
    server.run = f"{shared.as_uri()}/../evil"
    assert publish(lab, server, "--artifacts", str(shared), "--all") == 2
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("address", "allowed", "refused"),
    [
        ("mlflow-artifacts:/1/2/artifacts", None, False),
        ("https://host/mlflow/artifacts", None, False),
        ("s3://bucket/1", None, False),
        ("", None, True),
        ("file:///srv/mlflow/1", None, True),
        ("/srv/mlflow/1", None, True),
        ("relative/1", None, True),
        ("fi\nle:///srv/mlflow/1", None, True),
        ("file://[", None, True),
        ("hdfs://host/1", None, True),
        ("dbfs:/1", None, True),
        ("file:///srv/mlflow/1", Path("/srv/mlflow"), False),
        ("/srv/mlflow/1", Path("/srv/mlflow"), False),
        ("file:///srv/mlflow", Path("/srv/mlflow"), False),
        ("file:///srv/mlflow2", Path("/srv/mlflow"), True),
        ("file:///srv/mlflow/../x", Path("/srv/mlflow"), True),
        ("file:///srv/mlflow/%2e%2e/x", Path("/srv/mlflow"), True),
        ("FILE:///srv/mlflow/1", Path("/srv/mlflow"), True),
    ],
)
def test_where_artifacts_are_sent(address: str, allowed: Path | None, *, refused: bool):
    assert bool(refusal(address, allowed)) == refused


def test_a_time_limit_is_left_as_it_was_found():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(server_module.TooLate), server_module.limit_time(0.05):
        time.sleep(10)
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_other_threads_have_no_time_limit():
    """Only the main thread of a process gets its signals."""
    seen: list[str] = []

    def wait() -> None:
        with server_module.limit_time(0.01):
            time.sleep(0.05)
            seen.append("whole")

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert seen == ["whole"]

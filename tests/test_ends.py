"""How commands end that nobody waits for any more: a closed pipe or terminal, a signal, a server that dies."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import roots
from test_faults import beside
from test_sweep import GOOD, PROCESSES, SLOW, archived, project, run, start, wait_for, whole

from experiments.runner import errors, local
from experiments.runner.fork_client import Forks
from reports.mlflow import sync

# A closed pipe.

COMMANDS = {
    "a sweep": ("experiments", "dry_run=true", "isolation=fresh"),
    "its help": ("experiments", "--help"),
    "the catalogue": ("experiments.planning.catalogue",),
    "a snippet": ("experiments.snippet", "tests/good", "again", "--unchecked"),
    "the bench": ("experiments.app.benchmark", "--help"),
    "the schema": ("store.json_schema",),
    "the archive": ("store", "list"),
    "reports": ("reports", "claims"),
    "pictures": ("reports.pictures", "--help"),
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A project with an archive, and the capsule that it made."""
    root = project(tmp_path_factory.mktemp("ends"), good=GOOD)
    ended = run(root, "capsule=one.pyz", "tracking=none", "report=false", "isolation=forked", "passes=[plain]")
    assert ended.returncode == 0, ended.stderr
    return root


def closed(root: Path, arguments: tuple[str, ...], stream: str) -> tuple[int, str]:
    """Run it with one stream into a pipe that nobody reads; gives its status and what it said on the other."""
    reading, writing = os.pipe()
    os.close(reading)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writing}
    try:
        ended = subprocess.run([sys.executable, *arguments], cwd=root, text=True, timeout=300, **streams)
    finally:
        os.close(writing)
    return ended.returncode, (ended.stdout or "") + (ended.stderr or "")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_closed_pipe_is_silent_and_no_failure(swept, name):
    status, said = closed(swept, ("-m", *COMMANDS[name]), "stdout")
    assert status == 0, said
    assert "Error" not in said
    assert "Exception" not in said


def test_make_says_nothing_of_a_closed_pipe():
    """It said "make: *** Broken pipe" and ended with 2. Within another make, it first names its folder on stdout."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            ["make", "help"],
            cwd=Path(__file__).parents[1],
            env={name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS")},
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_capsule_whose_pipes_are_closed_leaves_its_evidence(swept, tmp_path):
    """Whoever looks at the first line wants the evidence all the same."""
    for stream in ("stdout", "stderr"):
        folder = tmp_path / stream
        folder.mkdir()
        (folder / "one.pyz").write_bytes((swept / "one.pyz").read_bytes())
        status, said = closed(folder, ("one.pyz", "--only", "again"), stream)
        assert status == 0, said
        assert "Traceback" not in said
        assert len(list(folder.glob("evidence-*.zip"))) == 1


def test_a_sweep_that_nobody_listens_to_is_run_to_its_end(swept):
    before = archived(swept)
    status, said = closed(swept, ("-m", "experiments", "tracking=none", "report=false", "isolation=forked"), "stderr")
    assert status == 0, said
    assert archived(swept) == before + PROCESSES


def test_what_fails_fails_for_a_closed_pipe_too(swept):
    """Only the pipe is no failure."""
    status, _ = closed(swept, ("-m", "store", "check", "nowhere.zip"), "stdout")
    assert status == 2


def test_a_command_without_streams_runs(swept):
    ended = subprocess.run(["sh", "-c", f'exec "{sys.executable}" one.pyz --list >&- 2>&-'], cwd=swept, timeout=60)
    assert ended.returncode == 0


# A stdout that takes no more.


FULL = Path("/dev/full")
"""A file on a disk that is full."""


def ended(*arguments: str, cwd: Path, stdout: object = subprocess.DEVNULL, **environment: str) -> tuple[int, str]:
    """Run it; gives its status and what it said."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | environment,
        text=True,
        timeout=120,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="it is made up by Linux")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_a_sentence(swept, name):
    with FULL.open("w") as full:
        status, said = ended("-m", *COMMANDS[name], cwd=swept, stdout=full)
    assert status == 2, said
    assert "what it prints cannot be written to stdout: No space left on device" in said
    assert "Traceback" not in said


@pytest.mark.skipif(not FULL.exists(), reason="it is made up by Linux")
def test_a_full_disk_under_stderr_is_no_failure(swept):
    """Sentences for people are lost, and nothing else."""
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "store", "check"], cwd=swept, stdout=subprocess.PIPE, stderr=full, timeout=120
        )
        assert done.returncode == 0
        failing = subprocess.run([sys.executable, "-m", "store", "show", "none"], cwd=swept, stderr=full, timeout=120)
    assert b"no problems" in done.stdout
    assert failing.returncode == 2


# Signals.


@pytest.mark.parametrize(
    ("module", "imported", "sentence"),
    [
        ("experiments", "hydra", "interrupted: nothing was begun yet\n"),
        ("store", "sqlalchemy", "store: stopped; nothing was begun yet\n"),
        ("reports", "sqlalchemy", "reports: stopped; nothing was begun yet\n"),
    ],
)
def test_interrupted_while_modules_are_imported_it_ends_with_a_sentence(tmp_path, module, imported, sentence):
    """That takes seconds; Ctrl-C made a traceback of it."""
    (tmp_path / f"{imported}.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    raise ImportError\n"
        "except BaseException:\n    raise ImportError from None\n"
    )
    root = Path(__file__).parents[1]
    assert ended("-m", module, cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{root}") == (130, sentence)


@pytest.mark.parametrize(
    ("module", "arguments", "sentence"),
    [
        ("store", ["list"], "store: stopped; nothing was changed"),
        ("store", ["check"], "store: stopped; nothing was changed"),
        ("store", ["add", "."], "store: stopped; each record or bundle is in the archive whole or not at all"),
        ("reports", [], "reports: stopped; each file is the old one or the new one"),
        ("reports", ["claims"], "reports: stopped; nothing was changed"),
    ],
)
def test_an_interrupted_command_says_what_it_has_left(monkeypatch, capsys, tmp_path, module, arguments, sentence):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "record.json").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("store.archive.Archive.open", interrupt)
    main = importlib.import_module(f"{module}.__main__").main
    assert main(arguments) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(sentence)
    assert err.count("\n") == 1


def test_publishing_that_is_interrupted_ends_with_130(monkeypatch, capsys):
    """It ended with 2, as if MLflow could not be used."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    tracking = mock.MagicMock()
    monkeypatch.setattr(sync, "Tracking", lambda *_: contextlib.nullcontext(tracking))
    monkeypatch.setattr(sync, "_publish_sweeps", interrupt)
    asked = argparse.Namespace(tracking="sqlite:///mlflow.db", artifacts=None, follow=None)
    assert sync.synchronize(mock.MagicMock(), asked) == 130
    assert capsys.readouterr().err == "Stopped; `python -m reports.mlflow sync` goes on where this ended.\n"
    tracking.stop.assert_called_once()


def test_a_program_that_is_interrupted_ends_with_130(tmp_path):
    code = (
        "import sys, time; from experiments.core.streams import run_program; print(1, file=sys.stderr, flush=True)\n"
        "sys.exit(run_program('it', lambda: time.sleep(60), 'all is well'))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline() == "1\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "it: stopped; all is well\n"
    assert process.returncode == 130


def test_a_terminal_that_is_closed_ends_a_sweep_as_sigterm_does(tmp_path):
    root = project(tmp_path, slow=SLOW)
    driver = start(root, "tracking=none", "isolation=forked")
    wait_for(lambda: archived(root) >= 1)
    driver.send_signal(signal.SIGHUP)
    driver.send_signal(signal.SIGTERM)  # as a system that shuts down sends both
    _, err = driver.communicate(timeout=240)
    assert driver.returncode == 130, err
    assert f"of {PROCESSES} processes are archived; the same command resumes" in err
    assert "Traceback" not in err
    assert not beside(root)
    assert run(root, "tracking=none", "isolation=forked").returncode == 0
    whole(root, PROCESSES)


HANGING = GOOD + '\n\nimport os, time\nopen(os.environ["HOME"] + "/importing", "w").close()\ntime.sleep(600)\n'


def test_interrupted_while_it_lists_the_scenarios_it_leaves_no_process(tmp_path):
    """A file that never ends importing does so in a process of its own, which nobody else would end."""
    root = project(tmp_path / "project", hanging=HANGING)
    command = [sys.executable, "-m", "experiments", "isolation=fresh", "dry_run=true"]
    environment = os.environ | {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    driver = subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: driver.poll() is not None or (tmp_path / "importing").exists(), 120)
        driver.send_signal(signal.SIGTERM)
        _, err = driver.communicate(timeout=60)
        assert driver.returncode == 130, err
        assert b"interrupted" in err
        roots.until(lambda: not beside(root), 5)
        assert not list(tmp_path.glob("twofold-*"))
    finally:
        for process in beside(root):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)


def test_what_is_ignored_already_stays_ignored():
    """`nohup` does so, that a command outlives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with local.interrupt_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # the second does not disturb what the first has begun
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# A fork server that dies while it lists.

KILLING = (
    GOOD.replace("{", "{{").replace("}", "}}")
    + """

import os
import signal
from pathlib import Path

mark = Path(__file__).with_suffix(".mark")
if not mark.exists():
    {once}
    server = Path(f"/proc/{{os.getppid()}}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(server), signal.SIGKILL)
    __import__("time").sleep(600)
"""
)


def listed(folder: Path, once: str):
    root = roots.root(folder / "root", {"tests/killing": KILLING.format(once=once)})
    (folder / "lists").mkdir()
    try:
        with contextlib.closing(Forks(root)) as forks:
            return forks.describe("", {}, 0, folder / "lists" / "listed")
    finally:
        roots.until(lambda: not beside(folder), 5)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_a_server_that_dies_while_it_lists_is_started_again_once(tmp_path):
    told = listed(tmp_path, "mark.touch()")
    assert [(entry["name"], entry["error"]) for entry in told["scenarios"]] == [("tests/killing", None)]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_a_server_that_dies_again_is_said(tmp_path):
    with pytest.raises(errors.LaunchError, match=r"has ended, and so has a second one\. isolation=fresh does without"):
        listed(tmp_path, "pass")

"""MLflow's store is a view that can always be made again, whoever is interrupted and whatever is found there."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
from urllib.parse import quote

import pytest

from experiments import __main__ as job
from experiments.app.mlflow_process import Publishing
from reports.mlflow import database_file, sync, tracking
from reports.mlflow.__main__ import main
from reports.mlflow.database_file import create_store, fault, move_aside, usable_address
from reports.mlflow.tracking import Published, Tracking
from store.database import sqlite_file, sqlite_url
from store.errors import ArchiveError
from tests.test_tracking import ROOT, Lab, empty_store, lab, usual

__all__ = ["empty_store", "lab"]

NASTY = ["a%b", "a%41b", "a?b=c&d", "a#b", "a b'\"c", "é%3F", "a:b@c", "new\nline", "x\\y", "${x}"]


@pytest.fixture
def quick(empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's tables are copied: to have it make them takes seconds, and one test that does is enough."""

    def fill(uri: str) -> None:
        file = sqlite_file(uri)
        assert file is not None
        shutil.copyfile(empty_store, file)

    monkeypatch.setattr(tracking, "_make_tables", fill)


def change(file: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


# Made whole, or not at all.


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit, OSError(28, "No space left on device")])
def test_whoever_is_interrupted_while_making_the_store_leaves_nothing(tmp_path: Path, ending):
    def fill(uri: str) -> None:
        change(sqlite_file(uri), "CREATE TABLE experiments (name)")
        raise ending

    with pytest.raises((KeyboardInterrupt, SystemExit, OSError)):
        create_store(tmp_path / "mlflow.db", fill)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_not_taken_up(tmp_path: Path):
    (tmp_path / "mlflow.db.making").write_bytes(b"half" * 1000)
    (tmp_path / "mlflow.db.making-wal").write_bytes(b"half" * 1000)
    create_store(tmp_path / "mlflow.db", lambda uri: change(sqlite_file(uri), "CREATE TABLE made (x)"))
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_the_log_of_an_earlier_file_is_not_taken_for_the_new_ones(tmp_path: Path):
    """Somebody deleted `mlflow.db` and left what SQLite kept beside it."""
    first = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(first)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE old (x)")
        connection.commit()
        shutil.copyfile(f"{first}-wal", tmp_path / "kept")
    first.unlink()
    (tmp_path / "kept").rename(f"{first}-wal")
    create_store(first, lambda uri: change(sqlite_file(uri), "CREATE TABLE made (x)"))
    with contextlib.closing(sqlite3.connect(first)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("made",)]


def test_an_interrupted_first_run_leaves_no_store_or_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The driver was interrupted, or its scenario mistyped, while the publisher was making MLflow's tables."""
    monkeypatch.chdir(ROOT)
    file = tmp_path / "mlflow.db"
    publishing = Publishing.begin(sqlite_url(file), str(tmp_path / "artifacts"), 60)
    until = time.monotonic() + 60
    while not file.with_name("mlflow.db.making").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    publishing.abandon()
    assert {path.name for path in tmp_path.iterdir()} <= {"mlflow.db.lock", "mlflow.db"}
    assert not file.exists() or not fault(file)


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.05, 0.3, 0.8, 1.5])
def test_a_publisher_that_is_killed_while_it_makes_the_store_is_followed_by_one_that_makes_it(lab: Lab, after: float):
    usual(lab)
    file = lab.folder / "mlflow.db"
    file.unlink()
    with subprocess.Popen(lab.command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not file.with_name("mlflow.db.making").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(after)
        process.kill()
    assert not file.exists() or not fault(file)
    ended = subprocess.run(lab.command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(lab.runs()) == 7
    assert not list(lab.folder.glob("*.making*"))


# Found in its place.

HALF = "UPDATE alembic_version SET version_num = '451aebb31d03'"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (HALF, "it has revision 451aebb31d03"),
        ("DELETE FROM alembic_version", "whoever made it was interrupted"),
        ("DROP TABLE alembic_version", "whoever made it was interrupted"),
        (b"this is no database, and longer than a header" * 100, "it is damaged"),
        ("bytes", "it is damaged"),
    ],
)
def test_a_store_that_cannot_be_used_is_kept_aside_and_made_again(
    lab: Lab, quick: None, capsys: pytest.CaptureFixture[str], damage, says: str
):
    usual(lab)
    file = lab.folder / "mlflow.db"
    if isinstance(damage, bytes):
        file.write_bytes(damage)
    elif damage == "bytes":
        content = bytearray(file.read_bytes())
        content[40_000:60_000] = bytes(20_000)
        file.write_bytes(content)
    else:
        change(file, damage)
    before = file.read_bytes()
    assert lab.publish() == 0
    told = capsys.readouterr()
    assert told.out == "6 runs published, 0 were up to date\n"
    assert says in told.err
    assert "kept as mlflow.db.unusable-1" in told.err
    assert (lab.folder / "mlflow.db.unusable-1").read_bytes() == before
    assert len(lab.runs()) == 7
    assert lab.publish() == 0
    assert capsys.readouterr().err == ""


def test_a_sweep_says_at_its_end_that_the_store_was_made_again(lab: Lab):
    """The publisher's own words are read when the sweep is over."""
    usual(lab)
    change(lab.folder / "mlflow.db", HALF)
    publishing = Publishing.begin(lab.uri, str(lab.folder / "artifacts"), 60)
    place = {"archive": sqlite_url(lab.folder / "archive.db"), "blobs": str(lab.folder / "blobs")}
    publishing.send_sweep(lab.sweep, **place)
    said = publishing.finish().splitlines()
    publishing.abandon()
    assert "kept as mlflow.db.unusable-1" in said[0]
    assert said[-1] == "MLflow: 6 published, 0 skipped, 0 failed"
    assert fault(lab.folder / "mlflow.db") == ""
    assert len(lab.runs()) == 7


def test_a_second_store_that_cannot_be_used_takes_no_name_that_is_taken(tmp_path: Path):
    for number in (1, 2):
        (tmp_path / "mlflow.db").write_bytes(b"%d" % number)
        (tmp_path / "mlflow.db-wal").write_bytes(b"log %d" % number)
        assert move_aside(tmp_path / "mlflow.db").name == f"mlflow.db.unusable-{number}"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mlflow.db.unusable-1",
        "mlflow.db.unusable-1-wal",
        "mlflow.db.unusable-2",
        "mlflow.db.unusable-2-wal",
    ]


def test_an_archive_named_for_the_store_is_let_be(lab: Lab, capsys: pytest.CaptureFixture[str]):
    usual(lab)
    file = lab.folder / "archive.db"
    lab.archive.close()
    tables = set(names(file))
    with (
        Tracking(sqlite_url(file), lab.folder / "artifacts") as store,
        pytest.raises(tracking.TrackingError, match="holds an archive: name another file"),
    ):
        store.prepare()
    assert set(names(file)) == tables


def test_the_database_of_something_else_is_let_be(tmp_path: Path):
    change(tmp_path / "other.db", "CREATE TABLE addresses (name)")
    with pytest.raises(ArchiveError, match=r"holds something else \(tables addresses\)"):
        fault(tmp_path / "other.db")


def test_a_store_of_another_version_with_runs_of_others_is_let_be(lab: Lab):
    change(
        lab.folder / "mlflow.db",
        HALF,
        "UPDATE experiments SET name = 'dissertation'",
    )
    with pytest.raises(ArchiveError, match="has runs that are not ours \\(dissertation\\), so it is let be"):
        fault(lab.folder / "mlflow.db")


def test_the_user_interface_says_how_a_store_that_cannot_be_used_is_made_again(
    lab: Lab, capsys: pytest.CaptureFixture[str]
):
    change(lab.folder / "mlflow.db", HALF)
    assert main(["ui", "--tracking", lab.uri]) == 2
    assert "`python -m reports.mlflow sync` keeps it under another name and makes a new one" in capsys.readouterr().err


def names(file: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


# Any folder.


@pytest.mark.parametrize("name", NASTY)
def test_a_file_is_named_whatever_its_path(tmp_path: Path, name: str):
    file = tmp_path / name / "mlflow.db"
    assert sqlite_file(sqlite_url(file)) == file
    with usable_address(file) as uri:
        where = uri.removeprefix("sqlite:///")
        assert quote(where) == where, "mlflow would make a folder of what it cannot decode"


@pytest.mark.parametrize("name", NASTY[:4])
def test_a_store_and_its_artifacts_are_in_the_folder_that_was_named(
    lab: Lab, quick: None, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    usual(lab)
    moved = tmp_path / name
    moved.mkdir()
    with Tracking(sqlite_url(moved / "mlflow.db"), moved / "artifacts") as store:
        store.prepare()
        sweep = lab.archive.sweeps()[0]
        store.publish(lab.archive, sweep, lab.archive.records(sweep=sweep.id))
    assert sorted(path.name for path in moved.iterdir()) == ["artifacts", "mlflow.db", "mlflow.db.lock"]
    assert len(list((moved / "artifacts").rglob("plain.json"))) == 6
    assert {path.name for path in tmp_path.iterdir()} == {
        name,
        "mlflow.db",
        "archive.db",
        "archive.db-committed",
        "blobs",
        *LOGS,
    }


LOGS = ("archive.db-wal", "archive.db-shm")


def test_what_mlflow_makes_of_a_percent_sign_in_its_own_folder_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The project's environment lies in a checkout whose path has one."""
    import mlflow.store.db.utils  # noqa: PLC0415 - costs 1.35 s, which collecting tests need not pay

    monkeypatch.setattr(mlflow.store.db.utils, "_get_package_dir", lambda: str(tmp_path / "50%done"))
    with (
        Tracking(sqlite_url(tmp_path / "mlflow.db"), tmp_path) as store,
        pytest.raises(
            tracking.TrackingError, match="from a folder with % in its path: set the project up in another one"
        ),
    ):
        store.prepare()


def test_where_mlflow_can_never_be_used_nobody_is_told_to_publish_later(monkeypatch, capsys):
    said = "MLflow cannot be used from a folder with % in its path"

    def fails(*_: object) -> None:
        raise tracking.ImpossibleError(said)

    where = SimpleNamespace(url="sqlite:///outputs/archive.db", blobs="outputs/blobs")
    view = SimpleNamespace(enabled=True, uri="sqlite:///outputs/mlflow.db", artifacts="")
    asked = SimpleNamespace(tracking=view, archive=where)
    assert job._browse_command(asked) == "make ui"
    monkeypatch.setattr(database_file, "find_spec", lambda _: SimpleNamespace(origin="/50%done/mlflow/__init__.py"))
    assert job._browse_command(asked) == "python -m store list"
    monkeypatch.setattr(sync, "_publish_sweeps", fails)
    given = argparse.Namespace(tracking=view.uri, artifacts=None, follow=None)
    assert sync.synchronize(mock.MagicMock(), given) == 2
    assert sync._give_up(tracking.ImpossibleError(said), Published(), mock.MagicMock(), "", iter([])) == 2
    told = capsys.readouterr().err
    assert told.count(f"{said}. Nothing is lost: the archive has it all, and `python -m store list` shows it.") == 2
    assert "later" not in told

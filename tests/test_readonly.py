"""An archive that may be read and not written is listed, shown, checked and reported, and stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import samples
from conftest import missing

from experiments.core.canonical_json import digest
from store.archive import Archive
from store.database import sqlite_url

ROOT = Path(__file__).parents[1]
NAMES = ["outputs", "a%41b?c#d 'e\" f"]


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An archive of one sweep, in a folder that everybody may enter."""
    made = tmp_path / getattr(request, "param", "outputs")
    record = samples.record(seed=1)
    with Archive.open(sqlite_url(made / "archive.db"), made / "blobs") as archive:
        sweep = archive.begin_sweep([record.spec], digest("machine"))
        archive.add_text(record.text(), samples.contents(1).get, sweep.id)
    let_in(tmp_path)
    return made


def let_in(folder: Path) -> None:
    """Let everybody enter, however deep it lies below the folder of all temporary files."""
    for path in (folder, *folder.parents):
        if path.name.startswith(("test_", "popen-", "pytest-")):
            path.chmod(0o755)


def lock_up(folder: Path) -> None:
    """Take away every right to write."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)


def as_somebody(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run as a user who has nothing: root may write whatever its rights are."""
    somebody = []
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv") or missing("the program setpriv")
        somebody = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*somebody, sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def store(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return as_somebody("-m", "store", *arguments, "--archive", sqlite_url(folder / "archive.db"))


@pytest.mark.parametrize("folder", NAMES, indirect=True)
def test_a_locked_archive_is_read_by_every_command(folder: Path):
    lock_up(folder)
    before = sorted(folder.rglob("*"))
    name = digest(samples.record(seed=1).text())
    for command in (("list", "--sweeps"), ("show", name), ("check",)):
        ended = store(folder, *command)
        assert (ended.returncode, ended.stderr) == (0, ""), (command, ended)
    assert sorted(folder.rglob("*")) == before


def test_what_would_write_says_that_it_may_not(folder: Path):
    lock_up(folder)
    ended = store(folder, "note", digest(samples.record(seed=1).text()), "text", "--author", "me")
    assert ended.returncode == 2
    assert "it may not be written: look at who may write there" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("index", [True, False])
def test_what_is_still_in_the_log_is_read_too(folder: Path, *, index: bool):
    """A writer was killed, or is at work: its last records are not in the file yet."""
    file = folder / "archive.db"
    record = samples.record(seed=2)
    with Archive.open(sqlite_url(file), folder / "blobs") as archive:
        archive.add_text(record.text(), samples.contents(2).get)
        copy = folder.parent / "killed"
        shutil.copytree(folder, copy)
    assert (copy / "archive.db-wal").stat().st_size > 0
    if not index:
        (copy / "archive.db-shm").unlink()
    lock_up(copy)
    ended = store(copy, "show", "--json", digest(record.text()))
    assert (ended.returncode, ended.stdout) == (0, record.text()), ended


def test_an_archive_of_an_earlier_version_is_listed_and_reported_from_a_copy(tmp_path: Path):
    old = tmp_path / "old"
    with zipfile.ZipFile(ROOT / "tests" / "data" / "archive-schema-1.zip") as file:
        file.extractall(old)
    let_in(tmp_path)
    lock_up(old)
    before = (old / "archive.db").read_bytes()
    ended = store(old, "list")
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    (tmp_path / "to").mkdir(mode=0o777)
    (tmp_path / "to").chmod(0o777)
    where = ["--archive", sqlite_url(old / "archive.db"), "--blobs", str(old / "blobs")]
    ended = as_somebody("-m", "reports", "--to", str(tmp_path / "to"), *where)
    assert ended.returncode == 0, ended
    assert list((tmp_path / "to").glob("*.md"))
    assert (old / "archive.db").read_bytes() == before
    assert "-wal" not in " ".join(path.name for path in old.iterdir())

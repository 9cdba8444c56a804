"""Where nothing may be executed, what compiles is not run, and says so: a real file system, mounted for one command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import missing
from test_sweep import GOOD, project

from experiments.core import requirements

BEFORE = "@scenario.repair(agrees(bitwise=True))\ndef again(scores):\n    return loss(scores, 1.0)"
AFTER = """@scenario.repair(agrees(within_rounding=True), needs=("inductor",))
def again(scores):
    return torch.compile(loss)(scores, 1.0)"""
COMPILING = GOOD.replace(BEFORE, AFTER)
SAID = "needs inductor, and a folder of the sweep whose files may be executed: it is mounted noexec"


def mounted(folder: Path, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run it where `folder` is a file system of its own on which nothing may be executed, gone afterwards."""
    program = shutil.which("unshare") or missing("the program unshare")
    folder.mkdir(exist_ok=True)
    script = f'mount -t tmpfs -o noexec,mode=777 tmpfs "{folder}" || exit 77; exec "$@"'
    how = "-m" if os.geteuid() == 0 else "-rm"
    ended = subprocess.run(
        [program, how, "sh", "-c", script, "sh", *command], cwd=cwd, capture_output=True, text=True, timeout=300
    )
    if ended.returncode == 77 or "unshare:" in ended.stderr:
        missing("the right to mount a file system")
    return ended


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return project(tmp_path_factory.mktemp("noexec"), compiling=COMPILING)


def test_neither_a_sweep_nor_a_capsule_runs_it(home):
    """What was not run is no failure, and the record says what it lacks."""
    places = "outputs=bare archive.url=sqlite:///bare/archive.db archive.blobs=bare/blobs"
    sweep = f'"$1" -m experiments capsule=one.pyz isolation=forked passes=[plain] tracking=none {places}'
    ended = mounted(home / "bare", "sh", "-c", f'{sweep} && "$1" one.pyz --output bare', "sh", sys.executable, cwd=home)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"cannot say (1 replay): not run: {SAID}" in ended.stdout
    assert "not as expected (" not in ended.stdout
    there = f"not_run ({SAID})"
    assert re.search(rf"^again +{re.escape(there)} +{re.escape(there)} +not compared", ended.stdout, re.MULTILINE)
    assert "3 cases: 2 identical, 1 not compared" in ended.stdout


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_it_will_be_in(tmp_path):
    assert requirements.may_execute(tmp_path / "a" / "b")

"""The main job as its user runs it: real processes, a real archive, a real MLflow store, a report.

Each test works in a copy of the project with scenarios of its own, small enough to take seconds.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import samples
from commands import driven

from experiments import __main__ as job
from experiments.core.record import Record
from experiments.runner import supervisor
from store.database import sqlite_url
from store.errors import ArchiveError

ROOT = Path(__file__).resolve().parents[1]

GOOD = '''"""A number read from a variable has changed when ``checkpoint`` recomputes."""

import torch
from torch.utils.checkpoint import checkpoint

from experiments.scenario import Scenario, agrees, differs, observe

scenario = Scenario(source="a test", suites=("quick",))


@scenario.inputs
def inputs(seed):
    generator = torch.Generator().manual_seed(seed)
    return {"scores": (torch.randint(-16, 17, (16,), generator=generator) / 16).requires_grad_()}


def loss(scores, temperature):
    observe("weights", (scores / temperature).softmax(0))
    return (scores / temperature).softmax(0).square().sum()


@scenario.reference
def plainly(scores):
    return loss(scores, 1.0)


@scenario.broken(differs(by_at_least=0.001), cause="python value")
def otherwise(scores):
    return loss(scores, 2.0)


@scenario.repair(agrees(bitwise=True))
def again(scores):
    return loss(scores, 1.0)
'''

WRONG = GOOD.replace("differs(by_at_least=0.001)", "differs(by_at_least=1000.0)")
SLOW = GOOD.replace("import torch\n", "import time\n\nimport torch\n").replace(
    "    return loss(scores, 1.0)\n", "    time.sleep(1)\n    return loss(scores, 1.0)\n"
)
PROCESSES = 6
"""Of one such scenario: the reference and two cases, each plain and profiled; no case asks for rounding."""
QUICK = ("isolation=forked",)
"""What a sweep is asked for whose point is no fresh process: torch is imported once."""


def project(folder: Path, **scenarios: str) -> Path:
    """A copy of the project in `folder` whose only scenarios are these, in family `tests`, and without series."""
    for name in ("experiments", "conf", "store", "reports"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("scenarios", "published"))
    config = folder / "conf" / "config.yaml"
    text, count = re.subn(r"^  - series: .*$", "  - series: []", config.read_text(), flags=re.MULTILINE)
    assert count == 1, "the default series are of scenarios that are not here"
    config.write_text(text)
    for name, text in scenarios.items():
        path = folder / "experiments" / "scenarios" / "tests" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def command(*overrides: str) -> list[str]:
    return [sys.executable, "-m", "experiments", *overrides]


def run(root: Path, *overrides: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A sweep whose driver is a fork, which saves three seconds of imports."""
    return driven(root, *overrides, **variables)


def run_started(root: Path, *overrides: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*overrides), cwd=root, env=os.environ | variables, capture_output=True, text=True, timeout=900
    )


def store(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "store", *arguments], cwd=root, capture_output=True, text=True, timeout=120
    )


def rows(database: Path, query: str) -> list[tuple]:
    with sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True) as connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found


def archived(root: Path) -> int:
    database = root / "outputs" / "archive.db"
    if not database.is_file():
        return 0
    try:
        return rows(database, "select count(*) from sweep_records")[0][0]
    except sqlite3.OperationalError:
        return 0


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """One whole sweep, with a secret in the environment, looked at by several tests."""
    root = project(tmp_path_factory.mktemp("swept"), good=GOOD)
    ended = run_started(root, TWOFOLD_TEST_SECRET="hunter2-planted", AWS_SECRET_ACCESS_KEY="hunter2-planted")
    return root, ended


def test_a_sweep_that_shows_what_it_says_ends_with_0(swept):
    root, ended = swept
    assert ended.returncode == 0, ended.stderr
    assert "3 as expected, 0 not as expected, 0 cannot say (of 3 replays)" in ended.stdout
    assert "make ui" in ended.stdout
    assert archived(root) == PROCESSES


def test_results_go_to_stdout_and_talk_to_stderr(swept):
    _, ended = swept
    assert "no CUDA device here; one would add 3 cases (6 processes)" in ended.stderr
    assert "CUDA" not in ended.stdout
    assert ended.stdout.startswith("3 as expected")


def test_the_archive_checks_and_the_report_is_where_it_says(swept):
    root, ended = swept
    checked = store(root, "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    path = next(line.removeprefix("report: ") for line in ended.stdout.splitlines() if line.startswith("report: "))
    assert "otherwise" in (root / path).read_text()


def test_mlflow_has_a_parent_run_and_one_run_for_each_replay(swept):
    root, ended = swept
    database = root / "outputs" / "mlflow.db"
    assert "MLflow:" in ended.stderr
    assert rows(database, "select name from experiments where name like 'twofold%'") == [("twofold/tests",)]
    assert rows(database, "select count(*) from runs")[0][0] == 4
    assert rows(database, "select count(*) from tags where key = 'mlflow.parentRunId'")[0][0] == 3
    assert rows(database, "select count(*) from runs where status = 'RUNNING'")[0][0] == 0


def test_no_secret_of_the_environment_is_anywhere(swept):
    root, ended = swept
    assert "hunter2" not in ended.stdout + ended.stderr
    for path in root.rglob("*"):
        if path.is_file():
            assert b"hunter2-planted" not in path.read_bytes(), path


def test_nothing_is_left_but_what_is_meant_to_stay(swept):
    root, _ = swept
    assert {path.name for path in (root / "outputs").iterdir()} >= {"archive.db", "blobs", "mlflow.db", "reports"}
    assert not [path for path in (root / "outputs" / "sweeps").iterdir() if path.is_dir()]


def test_a_finished_sweep_is_not_resumed_but_followed_by_the_next(swept):
    root, _ = swept
    again = run(root, "tracking=none", "report=false", "cases=[again]", *QUICK)
    assert again.returncode == 0, again.stderr
    names = rows(root / "outputs" / "archive.db", "select id, number from sweeps")
    assert len(names) == 2
    assert {number for _, number in names} == {1}
    once_more = run(root, "tracking=none", "report=false", "cases=[again]", *QUICK)
    assert once_more.returncode == 0
    assert sorted(number for _, number in rows(root / "outputs" / "archive.db", "select id, number from sweeps")) == [
        1,
        1,
        2,
    ]


def test_a_case_that_does_not_show_what_it_says_ends_the_sweep_with_1_and_a_report(tmp_path):
    root = project(tmp_path, wrong=WRONG)
    ended = run(root, "tracking=none", *QUICK)
    assert ended.returncode == 1
    assert "not as expected (1 replay): tests/wrong otherwise: largest difference" in ended.stdout
    assert list((root / "outputs" / "reports").glob("*.md"))


def test_a_broken_file_is_named_and_the_others_run(tmp_path):
    root = project(tmp_path, good=GOOD, broken="import nothing_of_that_name\n")
    ended = run(root, "tracking=none", "cases=[again]", *QUICK)
    assert ended.returncode == 2
    assert "broken scenario tests/broken: ModuleNotFoundError" in ended.stderr
    assert archived(root) == 4


def test_a_dry_run_prints_the_plan_and_leaves_nothing(tmp_path):
    root = project(tmp_path, good=GOOD)
    ended = run(root, "dry_run=true")
    assert ended.returncode == 0
    assert "tests/good (cpu): 3 cases, 3 replays, 6 processes" in ended.stdout
    assert not (root / "outputs").exists()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("replay=2", "there is no field 'replay'; did you mean 'replays'?"),
        ("scenarios=[tests/goood]", "no scenario matches 'tests/goood'; did you mean 'tests/good'?"),
        ("workers=many", "Integer"),
        ("device=gpu", "device=gpu is not one of all, cpu, cuda, present"),
        ("devices=[tpu]", "tpu"),
        ("replays=0", "replays=0 runs nothing; give 1 or more"),
        ("environment.python=/no/such/python", "/no/such/python"),
        ("archive.url=sqlite:////proc/nowhere/archive.db", "nowhere"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_sentence(swept, override, said):
    root, _ = swept
    ended = run(root, override, "tracking=none")
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_with_mlflow_away_the_sweep_ends_as_it_would_and_can_be_published_later(tmp_path):
    root = project(tmp_path, good=GOOD)
    ended = run(root, "tracking=server", "tracking.uri=http://127.0.0.1:9", "cases=[again]", *QUICK)
    assert ended.returncode == 0, ended.stderr
    assert "python -m reports.mlflow sync" in ended.stderr
    assert "Traceback" not in ended.stderr
    command = [sys.executable, "-m", "reports.mlflow", "sync"]
    later = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert later.returncode == 0, later.stderr
    assert rows(root / "outputs" / "mlflow.db", "select count(*) from runs")[0][0] == 3


def test_two_sweeps_of_a_multirun_are_planned_and_kept_apart(tmp_path):
    root = project(tmp_path, good=GOOD)
    before = set(root.rglob("*.yaml"))
    ended = run(root, "-m", "seed=1,2", "cases=[again]", "tracking=none", "report=false", *QUICK)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("2 as expected") == 2
    assert rows(root / "outputs" / "archive.db", "select count(*) from sweeps")[0][0] == 2
    # It would have every address of the command line in it.
    assert set(root.rglob("*.yaml")) == before


def test_a_sweep_works_in_a_folder_of_any_name_and_says_how_to_look_at_it(tmp_path):
    root = project(tmp_path, good=GOOD)
    name = "a%41b?c d"
    ended = run(root, f"outputs='{name}'", "cases=[again]", *QUICK)
    assert ended.returncode == 0, ended.stderr
    assert {path.name for path in root.iterdir() if "%" in path.name} == {name}
    assert {"archive.db", "mlflow.db", "artifacts", "blobs", "reports"} <= {one.name for one in (root / name).iterdir()}
    assert rows(root / name / "mlflow.db", "select count(*) from runs")[0][0] == 3
    browse = next(line for line in ended.stdout.splitlines() if line.startswith("browse: "))
    assert shlex.split(browse) == [
        *("browse:", "python", "-m", "reports.mlflow", "ui"),
        *("--tracking", sqlite_url(f"{name}/mlflow.db"), "--artifacts", f"{name}/artifacts"),
    ]
    kept = store(root, "check", "--archive", sqlite_url(f"{name}/archive.db"))
    assert kept.returncode == 0, kept.stdout


# Endings of the driver.


def start(root: Path, *overrides: str) -> subprocess.Popen:
    return subprocess.Popen(
        command("workers=1", *overrides), cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(holds, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def below(root: Path) -> list[str]:
    """Processes that were started with something below `root`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(root) in line:
            found.append(line)
    return found


def whole(root: Path, processes: int) -> None:
    """Every planned process is archived once, and all digests hold."""
    database = root / "outputs" / "archive.db"
    assert rows(database, "select count(*), count(distinct spec) from sweep_records") == [(processes, processes)]
    assert rows(database, "select count(*) from sweeps") == [(1,)]
    assert store(root, "check").returncode == 0


def test_ctrl_c_says_what_is_done_and_the_same_command_resumes(tmp_path):
    root = project(tmp_path, slow=SLOW)
    driver = start(root, "tracking=none", *QUICK)
    wait_for(lambda: archived(root) >= 1)
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=240)
    assert driver.returncode == 130, err
    assert f"of {PROCESSES} processes are archived; the same command resumes" in err
    assert "Traceback" not in err
    assert not below(root)
    ended = run(root, "tracking=none", *QUICK)
    assert "resuming sweep" in ended.stderr
    assert ended.returncode == 0
    whole(root, PROCESSES)


def test_a_killed_driver_takes_its_workers_along_and_loses_nothing(tmp_path):
    root = project(tmp_path, slow=SLOW)
    driver = start(root, *QUICK)
    wait_for(lambda: archived(root) >= 2)
    driver.kill()
    driver.communicate()
    wait_for(lambda: not below(root), 60)
    ended = run(root, *QUICK)
    assert ended.returncode == 0, ended.stderr
    whole(root, PROCESSES)
    runs = rows(root / "outputs" / "mlflow.db", "select status, count(*) from runs group by status")
    assert dict(runs) == {"FINISHED": 4}


def test_the_scenario_of_the_readme_is_found_and_shows_what_it_says(tmp_path):
    text = (ROOT / "experiments" / "README.md").read_text()
    root = project(tmp_path, readme=text.partition("```python\n")[2].partition("```")[0])
    ended = run(root, "tracking=none", *QUICK)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    listed = subprocess.run(
        [sys.executable, "-m", "experiments.planning.catalogue", "--json"], cwd=root, capture_output=True, text=True
    )
    assert [entry["name"] for entry in json.loads(listed.stdout)] == ["tests/readme"]


class _Refusing:
    """An archive that takes no record of a case that finished, as one that an observation is too odd for; it is not one
    that has broken down.
    """

    def __init__(self) -> None:
        self.kept: list[Record] = []

    def add(self, folder: Path, _: str) -> None:
        record = Record.from_text((folder / "record.json").read_text())
        if record.outcome.kind == "finished":
            raise ArchiveError(f"{folder}: a name in it is too long")
        self.kept.append(record)


def test_a_record_that_the_archive_refuses_is_the_end_of_its_case_alone(tmp_path):
    folder = tmp_path / "one"
    supervisor.not_run_record(samples.spec(), folder, "cuda")
    record = samples.record()
    (folder / "record.json").write_text(record.text())
    archive = _Refusing()
    with (tmp_path / "lock").open("wb") as held:
        place = job._Place(SimpleNamespace(id="a sweep"), tmp_path, tmp_path / "lock", held)
        instead = job._archive_record(archive, place, record, folder)
    (kept,) = archive.kept
    assert (kept.spec, kept.outcome.kind) == (record.spec, "died")
    assert kept.outcome.detail == "its record cannot be kept: a name in it is too long"
    assert Record.from_text((instead / "record.json").read_text()).outcome.kind == "died"

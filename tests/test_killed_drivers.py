"""A driver may be killed at any moment: what it started dies with it, and the next run takes up where it ended."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Callable

import psycopg
import pytest
import roots
from postgres import cluster, database  # noqa: F401
from test_faults import beside
from test_sweep import GOOD, PROCESSES, archived, project, rows, run, run_started, start, store, wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")

ISOLATIONS = ("fresh", "forked")
STEADY = GOOD.replace("import torch\n", "import time\n\nimport torch\n", 1).replace(
    "def loss(scores, temperature):\n", "def loss(scores, temperature):\n    time.sleep(0.5)\n"
)
"""A scenario whose processes take at least half a second each."""
SHORTEST = 0.5


def ends_with_its_driver(driver, root: Path) -> None:
    driver.kill()
    driver.communicate()
    wait_for(lambda: not beside(root), 30)


def sound(root: Path) -> int:
    """Every sweep has each of its records once, all digests hold, MLflow shows nothing as running. Gives the count
    of sweeps.
    """
    file = root / "outputs" / "archive.db"
    counts = rows(
        file, "select count(*), count(distinct spec), count(distinct record) from sweep_records group by sweep"
    )
    assert counts
    assert set(counts) == {(PROCESSES, PROCESSES, PROCESSES)}
    checked = store(root, "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    statuses = dict(rows(root / "outputs" / "mlflow.db", "select status, count(*) from runs group by status"))
    assert "RUNNING" not in statuses
    # The sweep and its three replays at least.
    assert statuses["FINISHED"] >= 4
    return len(counts)


def killed_at(root: Path, isolation: str, number: int) -> None:
    """Kill the driver at the moment of this number: after some records, and some time more."""
    drawn = random.Random(number)
    records = drawn.randrange(PROCESSES + 1)
    # So that it is certain to be at work still: before the last record, less than one process takes.
    more = drawn.uniform(0, SHORTEST * 0.8 if 0 < records < PROCESSES else 3.0)
    driver = start(root, f"isolation={isolation}")
    wait_for(lambda: archived(root) >= records)
    time.sleep(more)
    assert records == PROCESSES or driver.poll() is None, "it ended before it was killed"
    ends_with_its_driver(driver, root)
    again = run(root, f"isolation={isolation}")
    assert again.returncode == 0, again.stdout + again.stderr
    # A sweep whose last record is archived is finished, so the next run begins another.
    assert sound(root) == (2 if records == PROCESSES else 1)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "isolation"), [(1, "fresh"), (8, "forked")])
def test_a_driver_killed_at_a_moment_by_chance_loses_and_doubles_nothing(tmp_path, number, isolation):
    killed_at(project(tmp_path, steady=STEADY), isolation, number)


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("number", range(100, 110))
def test_a_driver_killed_at_twenty_moments_by_chance_loses_and_doubles_nothing(tmp_path, number, isolation):
    killed_at(project(tmp_path, steady=STEADY), isolation, number)


# Many kills of one sweep.

KILLS = int(os.environ.get("TWOFOLD_KILLS", "200"))
"""Kills of the slow test in all: a quarter each for fresh and forked processes, on SQLite and on PostgreSQL."""
SEVERAL = {"first": GOOD, "second": STEADY, "third": GOOD.replace('source="a test"', 'source="another test"')}
WHOLE = len(SEVERAL) * (PROCESSES // 2 + 1)
"""Plain passes of all of them: each reference runs twice."""

Ask = Callable[[str], list[tuple]]


class Killed:
    """One project whose drivers are killed, and what is counted meanwhile."""

    def __init__(self, root: Path, archive: tuple[str, ...], ask: Ask, address: tuple[str, ...]) -> None:
        self.root, self.archive, self.ask, self.address = root, archive, ask, address
        self.counts: Counter[str] = Counter()
        self.records = 0

    def asked(self, isolation: str) -> tuple[str, ...]:
        return (f"isolation={isolation}", "workers=2", "passes=[plain]", "tracking=none", *self.archive)

    def kill(self, isolation: str, seconds: float) -> None:
        """Let a driver run for so long, kill it, and look at what it left."""
        driver = start(self.root, *self.asked(isolation))
        try:
            driver.wait(seconds)
            self.counts["ended before"] += 1
        except subprocess.TimeoutExpired:
            self.counts["killed"] += 1
        ends_with_its_driver(driver, self.root)
        self.look()

    def look(self, *, whole: bool = False) -> None:
        """No record is lost or doubled: each sweep has every spec once at most, and what was there is there."""
        if not self.there():
            assert not self.records
            return
        found = self.ask(
            "select count(*), count(distinct spec), count(distinct record) from sweep_records group by sweep"
        )
        assert all(records == specs == kept <= WHOLE for records, specs, kept in found), found
        assert sum(row[0] for row in found) >= self.records, "a record is lost"
        self.records = sum(row[0] for row in found)
        if whole:
            assert {row[0] for row in found} == {WHOLE}, found
            self.counts["sweeps"], self.counts["records"] = len(found), self.records

    def there(self) -> bool:
        """Whether the archive has its tables."""
        try:
            return bool(self.ask("select 1 from sweep_records limit 1"))
        except (sqlite3.OperationalError, psycopg.errors.UndefinedTable):
            return False

    def finish(self, isolation: str) -> float:
        """The same command, undisturbed; gives how long it took."""
        began = time.monotonic()
        ended = run_started(self.root, *self.asked(isolation))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert not beside(self.root)
        assert not [path for path in (self.root / "outputs" / "sweeps").iterdir() if path.is_dir()]
        return time.monotonic() - began

    def conclude(self) -> None:
        """Every sweep that was begun is whole, and every digest holds."""
        self.look(whole=True)
        checked = store(self.root, "check", *self.address)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture(params=["sqlite", "postgresql"])
def killed(request, tmp_path) -> Killed:
    root = project(tmp_path, **SEVERAL)
    if request.param == "sqlite":
        file = root / "outputs" / "archive.db"
        return Killed(root, (), lambda query: rows(file, query), ())
    url = request.getfixturevalue("database").url()
    blobs = root / "outputs" / "blobs"
    archive = (f"archive.url='{url}'", f"archive.blobs={blobs}")
    return Killed(root, archive, request.getfixturevalue("database").rows, ("--archive", url, "--blobs", str(blobs)))


@pytest.mark.slow
def test_a_sweep_of_several_scenarios_survives_all_kills(killed, capsys):
    """Moments by chance over the whole time that the command takes undisturbed, from its first to its last."""
    for isolation in ISOLATIONS:
        longest, drawn = killed.finish(isolation), random.Random(isolation)
        for _ in range(KILLS // 4):
            killed.kill(isolation, drawn.uniform(0, longest))
        killed.finish(isolation)
    killed.conclude()
    with capsys.disabled():
        print(f"\n{dict(killed.counts)}")
    assert killed.counts["killed"] >= killed.counts["ended before"]


def test_a_sweep_of_several_scenarios_survives_a_kill(killed):
    """A sample of the above: one moment at which there is something to lose."""
    driver = start(killed.root, *killed.asked("forked"))
    wait_for(lambda: driver.poll() is not None or killed.there())
    ends_with_its_driver(driver, killed.root)
    killed.look()
    killed.finish("forked")
    killed.conclude()
    assert killed.counts["records"] == WHOLE


def killed_after(root: Path, records: int) -> None:
    """Let a driver archive one record more than there were, and kill it."""
    driver = start(root, f"isolation={ISOLATIONS[1]}")
    wait_for(lambda: archived(root) > records or driver.poll() is not None)
    ends_with_its_driver(driver, root)


@pytest.mark.slow
def test_a_driver_that_is_killed_again_and_again_gets_there(tmp_path):
    """Each time a little further: nothing that a killed driver left keeps the next from going on."""
    root = project(tmp_path, steady=STEADY)
    for records in range(PROCESSES - 1):
        killed_after(root, records)
    assert run(root, f"isolation={ISOLATIONS[1]}").returncode == 0
    assert sound(root) == 1


STUBBORN = """
import os
import signal
import time
import subprocess
import time


@scenario.repair(agrees(bitwise=True))
def {name}(scores):
    {harm}
    open(os.environ["TWOFOLD_TEST_MARK"] + "-{name}", "w").close()
    while True:
        time.sleep(60)
"""
HARM = {
    "closes_every_descriptor": "os.closerange(0, 4096)",
    "ignores_every_signal": "[signal.signal(n, signal.SIG_IGN) for n in signal.valid_signals() - {9, 19}]",
    "starts_a_session": 'subprocess.Popen(["sleep", "600"], start_new_session=True)',
}


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_killed_driver_takes_along_what_does_its_best_to_stay(tmp_path, isolation):
    text = GOOD + "".join(STUBBORN.format(name=name, harm=harm) for name, harm in HARM.items())
    root = project(tmp_path / "project", stubborn=text)
    mark = tmp_path / "mark"
    driver = start(
        root,
        f"isolation={isolation}",
        "workers=3",
        "passes=[plain]",
        "tracking=none",
        f"cases=[{','.join(HARM)}]",
        f"+environment.variables.TWOFOLD_TEST_MARK={mark}",
    )
    try:
        wait_for(lambda: driver.poll() is not None or all(Path(f"{mark}-{name}").exists() for name in HARM))
        assert len(beside(root)) > len(HARM)
        driver.kill()
        driver.wait()
        roots.until(lambda: not beside(root), 15)
    finally:
        driver.kill()
        driver.communicate()
        for process in beside(root):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("isolation", [pytest.param("fresh", marks=pytest.mark.slow), "forked"])
def test_two_drivers_at_once_both_finish_with_each_record_once(tmp_path, isolation):
    """Of one plan, on one archive, from nothing: neither waits for the other nor takes its sweep."""
    root = project(tmp_path, good=GOOD)
    drivers = [start(root, f"isolation={isolation}", "workers=2") for _ in range(2)]
    for driver in drivers:
        out, err = driver.communicate(timeout=240)
        assert driver.returncode == 0, out + err
    assert not beside(root)
    assert sound(root) == 2

"""What was committed is there, or `check` says that it is not: logs of SQLite that are damaged or gone, bundles that
fail in the middle, and sweeps that are killed at their end.
"""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
from dataclasses import replace

import pytest
import samples
import test_sweep
from test_across import Lab
from test_archive import MACHINE, add, execute, writer
from test_strangers import sent
from test_sweep import GOOD, PROCESSES, archived, project, rows, start, wait_for

from experiments.bundle import layout
from experiments.bundle import writer as bundle_writer
from experiments.core.canonical_json import digest
from experiments.runner import lock
from store.archive import Archive, ArchiveError
from store.blobs import Blobs
from store.bundles import add_bundle
from store.ledger import Ledger, skipped_frames

RECORDS = 14


def opened(outputs):
    return Archive.open(f"sqlite:///{outputs}/archive.db", outputs / "blobs")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Outputs of a writer that was killed: 14 records more were committed than its database file has."""
    root = tmp_path_factory.mktemp("killed")
    opened(root / "outputs").close()
    process = writer(root, 0, 1000)
    file = root / "outputs" / "archive.db-committed"
    wait_for(lambda: file.exists() and file.read_text().count("record") >= RECORDS, 60)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert (root / "outputs" / "archive.db-wal").stat().st_size > 0
    return root / "outputs"


@pytest.fixture
def outputs(killed, tmp_path):
    return shutil.copytree(killed, tmp_path / "outputs")


def lost(outputs):
    with opened(outputs) as archive:
        kept = len(archive.cells())
        said = [str(problem) for problem in archive.check()]
    return kept, said


def test_what_a_killed_writer_committed_is_there(outputs):
    kept, said = lost(outputs)
    assert said == []
    assert kept >= RECORDS
    assert not (outputs / "archive.db-wal").exists(), "it was the last to close"


def test_a_log_that_is_gone_is_noticed_with_every_record_that_it_takes_along(outputs):
    text = (outputs / "archive.db-committed").read_text()
    for name in ("archive.db-wal", "archive.db-shm"):
        (outputs / name).unlink(missing_ok=True)
    kept, said = lost(outputs)
    gone = [line for line in said if "was committed to this archive, and is not in it" in line]
    assert len(gone) == text.count("record") - kept > 0
    assert "what its sweep left in the folder sweeps of its outputs" in gone[0], "right for any archive"


PLACES = (9, 18, 30, 45, 60)
"""Bytes of the log: of its head (size of a page, salt, checksum), and of its first frame (salt, page)."""


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("place", [*PLACES, *random.Random(11).sample(range(60, 500_000), 2)])
def test_a_flipped_bit_in_the_log_is_noticed(outputs, place, listed):
    """Also where the list beside the database is gone."""
    log = outputs / "archive.db-wal"
    content = bytearray(log.read_bytes())
    content[place] ^= 4
    log.write_bytes(content)
    (outputs / "archive.db-shm").unlink(missing_ok=True)
    if not listed:
        (outputs / "archive.db-committed").unlink()
    kept, said = lost(outputs)
    assert any(line.startswith("archive.db-wal: ") for line in said)
    assert any("was committed to this archive" in line for line in said) is listed
    assert kept < RECORDS or place > PLACES[-1]


def test_a_file_that_its_lost_log_left_empty_is_not_taken_for_a_new_one(outputs):
    for name in ("archive.db", "archive.db-wal", "archive.db-shm"):
        (outputs / name).unlink(missing_ok=True)
    (outputs / "archive.db").write_bytes(b"")
    with pytest.raises(ArchiveError, match=r"is empty, though \d+ records and sweeps were committed to it"):
        opened(outputs)


def test_frames_of_an_earlier_round_are_no_damage(tmp_path):
    """SQLite begins the log anew from its start, over what was there."""
    file = tmp_path / "some.db"
    one = sqlite3.connect(file, isolation_level=None)
    one.execute("PRAGMA journal_mode = WAL")
    one.execute("CREATE TABLE t (x)")
    for number in range(20):
        one.execute("INSERT INTO t VALUES (?)", ["x" * 5000 + str(number)])
    one.execute("PRAGMA wal_checkpoint(PASSIVE)")
    one.execute("INSERT INTO t VALUES ('last')")
    log = tmp_path / "some.db-wal"
    assert log.stat().st_size > 20 * 4096
    assert skipped_frames(log) == (0, 0)
    one.close()
    assert skipped_frames(log) == (0, 0), "there is none"


def test_settling_empties_the_log_and_says_where_a_reader_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr("store.database._SHORT_PATIENCE", 0)
    outputs = tmp_path / "outputs"
    with opened(outputs) as archive:
        add(archive, tmp_path / "one", 1)
        assert archive.flush_log()
        assert (outputs / "archive.db-wal").stat().st_size == 0
        reader = sqlite3.connect(outputs / "archive.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM records").fetchone()
        add(archive, tmp_path / "two", 2)
        assert not archive.flush_log()
        reader.execute("ROLLBACK")
        assert archive.flush_log()
        reader.close()
        assert len(archive.records()) == 2


def test_a_line_of_the_list_that_was_cut_says_nothing(tmp_path):
    ledger = Ledger(tmp_path / "archive.db")
    ledger.add_commits("sweep", ["abc-def-1"])
    with (tmp_path / "archive.db-committed").open("a") as file:
        file.write("\nsweep abc-def-1")  # of abc-def-12
    ledger.add_commits("record", ["a" * 64])
    assert ledger.missing_commits(set()) == [("record", "a" * 64), ("sweep", "abc-def-1")]
    assert ledger.missing_commits({("record", "a" * 64), ("sweep", "abc-def-1")}) == []


# A bundle is in or not.


def test_of_a_bundle_that_fails_in_the_middle_nothing_is_in(tmp_path):
    lab = Lab()
    path = sent(lab, tmp_path / "theirs.zip", *(lab.replay(case).plain for case in "abcdefg"))
    sixth = "BEFORE INSERT ON records WHEN (SELECT count(*) FROM records) = 5"
    full = f"{sixth} BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
    with opened(tmp_path / "outputs") as archive:
        execute(tmp_path / "outputs" / "archive.db", f"CREATE TRIGGER stop {full}")
        with pytest.raises(ArchiveError, match="the disk is full: free space"):
            add_bundle(archive, path)
        execute(tmp_path / "outputs" / "archive.db", "DROP TRIGGER stop")
        assert archive.cells() == archive.sweeps() == []
        assert archive.check() == []
        assert len(add_bundle(archive, path)) == 7
        assert archive.check() == []


def test_a_bundle_with_a_duration_that_is_none_leaves_no_record_in(tmp_path):
    """In the last of its records: six were in, and it said that nothing was changed."""
    lab = Lab()
    records = [lab.replay(case).plain for case in "abcdefg"]
    worst = replace(records[0], ending=replace(records[0].ending, duration=float("nan")))
    names = sorted([*records[1:], worst], key=lambda one: digest(one.text()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "refuse_excess", lambda _: None)  # we would not write it, and a stranger does
        bundle_writer.write(
            tmp_path / "theirs.zip", bundle_writer.members([one.text() for one in names], lab.bench.blobs.get)
        )
    with opened(tmp_path / "outputs") as archive:
        with pytest.raises(ArchiveError, match=r"refused and nothing was added.*duration"):
            add_bundle(archive, tmp_path / "theirs.zip")
        assert archive.cells() == []
        assert list(Blobs(tmp_path / "outputs/blobs").names()) == []


# A sweep is finished when it is reported on.


def test_a_sweep_that_has_all_its_records_and_no_report_is_resumed(tmp_path):
    with opened(tmp_path / "outputs") as archive:
        asked = samples.spec()
        sweep = archive.begin_sweep([asked], MACHINE)
        add(archive, tmp_path / "run", asked=asked, sweep=sweep.id)
        again = archive.begin_sweep([asked], MACHINE, unreported={sweep.id})
        assert (again.id, again.resumed, len(again.done)) == (sweep.id, True, 1)
        assert archive.begin_sweep([asked], MACHINE, {sweep.id}, {sweep.id}).number == 2
        assert archive.begin_sweep([asked], MACHINE).number == 2


def test_a_lock_that_was_let_go_is_gone_and_holds_nobody(tmp_path):
    path = tmp_path / "sweep.lock"
    first = lock.hold(path)
    assert lock.hold(path) is None
    lock.release(first, path)
    assert not path.exists()
    second = lock.hold(path)
    assert second is not None
    lock.release(second, path)


def test_a_sweep_that_was_killed_before_its_report_gets_it_from_the_same_command(tmp_path):
    root = project(tmp_path, good=GOOD)
    fast = ("tracking=none", "isolation=forked", "passes=[plain]")
    reports = root / "outputs" / "reports"
    # Where the report shall be is a file, as if it had been killed there.
    (root / "outputs").mkdir()
    reports.write_text("")
    first = test_sweep.run(root, *fast)
    assert first.returncode == 2, first.stderr
    assert archived(root) == PROCESSES / 2 + 1, "plain passes, and the reference twice"
    assert [path for path in (root / "outputs" / "sweeps").iterdir() if path.is_dir()]
    reports.unlink()
    ended = test_sweep.run(root, *fast)
    assert ended.returncode == 0, ended.stderr
    assert "4 of 4 processes are archived already; what is left is its report" in ended.stderr
    assert archived(root) == PROCESSES / 2 + 1, "nothing was run again"
    assert len(list(reports.glob("*.md"))) == 1
    assert not list((root / "outputs" / "sweeps").iterdir()), "no folder and no lock"
    assert rows(root / "outputs" / "archive.db", "select count(*) from sweeps") == [(1,)]


@pytest.mark.slow
def test_a_driver_killed_with_its_log_lost_brings_all_back_by_the_same_command(tmp_path):
    """The folders of records stay until the log's content is in the database file."""
    root = project(tmp_path, slow=test_sweep.SLOW)
    driver = start(root, "tracking=none")
    # Not by SQLite: this process would hold on to the log that is taken away.
    committed = root / "outputs" / "archive.db-committed"
    wait_for(lambda: committed.exists() and committed.read_text().count("record") >= 3)
    driver.kill()
    driver.communicate()
    for name in ("archive.db-wal", "archive.db-shm"):
        (root / "outputs" / name).unlink(missing_ok=True)
    assert test_sweep.store(root, "check").returncode == 1
    ended = test_sweep.run(root, "tracking=none")
    assert ended.returncode == 0, ended.stderr
    test_sweep.whole(root, PROCESSES)

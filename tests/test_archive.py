"""The archive keeps what it was given, refuses changes, and names what was changed all the same."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import samples
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, insert, inspect

import store.database
from experiments.core.canonical_json import canonical, digest, parse
from experiments.core.observation import Tensor
from experiments.core.schema_history import SCHEMA
from experiments.core.spec import spec_of_attempt
from store.archive import Archive, ArchiveError
from store.blobs import Blobs
from store.bundles import add_bundle, export_bundle, import_bundle
from store.models import APPEND_ONLY, Base, SweepFileRow, SweepOriginRow
from store.origins import Origin, add_origins
from store.sweeps import current_time

MACHINE = "a" * 64
ROOT = Path(__file__).parents[1]


@pytest.fixture
def archive(tmp_path):
    with Archive.open(f"sqlite:///{tmp_path}/outputs/archive.db", tmp_path / "outputs/blobs") as opened:
        yield opened


@pytest.fixture
def file(tmp_path):
    return tmp_path / "outputs/archive.db"


def add(archive, folder, seed=0, sweep=None, **how):
    record = samples.record(seed=seed, **how)
    return archive.add(samples.folder(folder, record, seed), sweep)


def execute(file, *statements):
    """What anybody can do who has the file and SQLite."""
    connection = sqlite3.connect(file)
    try:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    finally:
        connection.close()


def counted(file, table):
    connection = sqlite3.connect(file)
    try:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    finally:
        connection.close()


def filled(archive, tmp_path):
    """One row in each append-only table."""
    asked = samples.spec()
    sweep = archive.begin_sweep([asked], MACHINE)
    name = add(archive, tmp_path / "run", asked=asked, sweep=sweep.id)
    archive.add_note(name, "seen again", "somebody")
    with archive._database.write_transaction() as connection:
        row = {"sweep": sweep.id, "file": "theirs.zip", "manifest": "e" * 64, "added_at": current_time()}
        connection.execute(insert(SweepOriginRow).values(**row))
        connection.execute(insert(SweepFileRow).values(sweep=sweep.id, manifest="e" * 64))
        add_origins(connection, [name], Origin("theirs.zip", "e" * 64, current_time(), "f" * 64))
    for verb in ("exclude", "include"):
        archive.exclude("signer:ffff", "not theirs", "somebody", verb)
    return name


def stranger(folder, *plan, machine="b" * 64, done=None):
    """A bundle of a sweep of this plan that ran elsewhere, as far as it was `done`."""
    with Archive.open(f"sqlite:///{folder}/archive.db", folder / "blobs") as other:
        sweep = other.begin_sweep(plan, machine).id
        for seed, asked in enumerate(plan[:done], 100):
            other.add_text(samples.record(asked=asked, seed=seed).text(), samples.contents(seed).get, sweep)
        export_bundle(other, [], folder / "theirs.zip", sweeps=[sweep])
    return folder / "theirs.zip"


# Adding and reading.


def test_a_record_comes_back_as_the_exact_text(archive, tmp_path):
    record = samples.record()
    name = archive.add(samples.folder(tmp_path / "run", record))
    assert archive.record_text(name[:8]) == (digest(record.text()), record.text())
    assert archive.records() == [record]
    for content, expected in samples.contents().items():
        assert archive.fetch(content) == expected
    assert archive.check() == []


def test_adding_twice_is_one_row(archive, tmp_path, file):
    folder = samples.folder(tmp_path / "run", samples.record())
    assert archive.add(folder) == archive.add(folder)
    assert [counted(file, table) for table in ("records", "cells", "documents")] == [1, 1, 2]


def test_contents_that_are_kept_need_not_be_sent_again(archive, tmp_path):
    add(archive, tmp_path / "one")
    archive.add(samples.folder(tmp_path / "two", samples.record("other"), without=tuple(samples.contents())))
    assert archive.check() == []


@pytest.mark.parametrize("missing", ["source", "machine", "tensor"])
def test_a_record_that_lacks_something_is_refused_whole(archive, tmp_path, file, missing):
    record = samples.record()
    lacking = next(name for name, kind in record.blobs().items() if kind == missing)
    with pytest.raises(ArchiveError, match=f"{missing} {lacking} of the record is missing"):
        archive.add(samples.folder(tmp_path / "run", record, without=(lacking,)))
    assert counted(file, "records") == counted(file, "documents") == 0
    assert list(Blobs(tmp_path / "outputs/blobs").names()) == []


def test_a_record_without_its_output_is_taken_and_counted(archive, tmp_path):
    """Bundles leave stdout and stderr out."""
    record = samples.record()
    outputs = tuple(name for name, kind in record.blobs().items() if kind in ("stdout", "stderr"))
    archive.add(samples.folder(tmp_path / "run", record, without=outputs))
    problems, counts = archive.examine()
    assert (problems, counts.absent_outputs) == ([], 2)


def test_changed_content_is_refused(archive, tmp_path, file):
    folder = samples.folder(tmp_path / "run", samples.record())
    (folder / "blobs" / digest(samples.tensor(0))).write_bytes(b"other")
    with pytest.raises(ArchiveError, match="not what was recorded"):
        archive.add(folder)
    assert counted(file, "records") == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text + "\n", "not canonical"),
        (lambda text: text.replace("1.25", "1.250"), "not canonical"),
        (lambda text: text.replace(f'"schema":{SCHEMA}', f'"schema":{SCHEMA + 1}'), f"reads 1 to {SCHEMA}"),
        (lambda text: text.replace("finished", "raised"), "evidence digest"),
        (lambda text: text.replace('"seed":1729', '"seed":"many"'), "seed"),
        (lambda _: "[]", "a record is a JSON object"),
        (lambda _: "{", "not JSON"),
        (lambda _: '{"schema":1,"schema":1}', "same key twice"),
    ],
)
def test_text_that_is_no_record_is_refused_with_a_sentence(archive, change, says):
    with pytest.raises(ArchiveError, match=says):
        archive.add_text(change(samples.record().text()), samples.contents().get)
    assert archive.records() == []


def test_a_digest_that_is_a_path_is_refused(archive, tmp_path):
    """Names of files are made from digests, so `../..` must never be one."""
    record = samples.record()
    seen = replace(record.observation, machine="../../escaped")
    with pytest.raises(ArchiveError, match="not a SHA-256"):
        archive.add_text(replace(record, observation=seen).text(), lambda _: b"")


def test_a_folder_without_a_record_is_a_sentence(archive, tmp_path):
    with pytest.raises(ArchiveError, match=r"record\.json cannot be read: No such file"):
        archive.add(tmp_path)


def test_a_damaged_blob_is_made_good_by_adding_again(archive, tmp_path):
    add(archive, tmp_path / "run")
    name = digest(samples.tensor(0))
    (tmp_path / "outputs/blobs" / name[:2] / name).write_bytes(b"other")
    with pytest.raises(ArchiveError, match=name):
        archive.fetch(name)
    archive.add(tmp_path / "run")
    assert archive.fetch(name) == samples.tensor(0)


def test_an_empty_file_may_be_output_source_and_tensor_at_once(archive, tmp_path):
    """All empty contents share one digest, whatever they are."""
    record = samples.record()
    empty = Tensor(
        "input", "none", "float32", (0,), "", digest(b""), whole=True, norm=0, largest=0, samples=None, sketch=None
    )
    seen = replace(record.observation, tensors=(empty,))
    archive.add(samples.folder(tmp_path / "run", replace(record, observation=seen)))
    assert archive.check() == []


def test_records_are_selected_and_ordered(archive, tmp_path):
    """As they came in, and not as they say that they began."""
    late = add(archive, tmp_path / "late", 1, started_at="2026-01-03T00:00:00.000000Z", kind="raised", message="no")
    early = add(archive, tmp_path / "early", 2, scenario="attention/mask")
    died = add(archive, tmp_path / "died", 3, started_at="2026-01-01T00:00:00.000000Z", kind="died", observed=False)

    def found(**how):
        return [one.digest for one in archive.cells(**how)]

    assert found() == [late, early, died]
    assert found(scenario="attention/*") == [early]
    assert found(machine=digest(samples.machine())) == [late, early]
    assert found(outcome="died") == [died]
    assert found(digests=[died, late]) == [late, died]
    with pytest.raises(ArchiveError, match="there is no record bbbb"):
        archive.records(digests=["b" * 64])


def test_a_prefix_must_name_one_record(archive, tmp_path):
    names = sorted(add(archive, tmp_path / str(seed), seed) for seed in range(17))
    twice = next(one[0] for one, other in zip(names, names[1:]) if one[0] == other[0])
    with pytest.raises(ArchiveError, match="more than one"):
        archive.record_text(twice)
    with pytest.raises(ArchiveError, match="not the beginning of a digest"):
        archive.record_text("%")
    unknown = next(word for word in ("aa0", "bb0", "cc0") if not any(name.startswith(word) for name in names))
    with pytest.raises(ArchiveError, match="store list"):
        archive.record_text(unknown)


def test_notes_are_kept_in_their_order(archive, tmp_path):
    name = add(archive, tmp_path / "run")
    archive.add_note(name, "first", "one")
    archive.add_note(name, "second", "two")
    assert [(note.author, note.text) for note in archive.notes(name)] == [("one", "first"), ("two", "second")]
    with pytest.raises(ArchiveError, match="no record"):
        archive.add_note("b" * 64, "about nothing", "one")


# Sweeps.


def test_an_unfinished_sweep_is_resumed_and_a_finished_one_gets_the_next_number(archive, tmp_path):
    plan = [samples.spec("first"), samples.spec("second")]
    begun = archive.begin_sweep(plan, MACHINE)
    assert (begun.number, begun.resumed, begun.done) == (1, False, frozenset())
    assert begun.id == f"{digest(canonical([spec.to_json() for spec in plan]))[:12]}-aaaaaaaa-1"

    add(archive, tmp_path / "second", 2, asked=plan[1], sweep=begun.id)
    resumed = archive.begin_sweep(plan, MACHINE)
    assert (resumed.id, resumed.resumed, resumed.done) == (begun.id, True, {plan[1].digest()})

    add(archive, tmp_path / "first", 1, asked=plan[0], sweep=begun.id)
    following = archive.begin_sweep(plan, MACHINE)
    assert (following.number, following.resumed) == (2, False)
    assert archive.begin_sweep(plan, "b" * 64).number == 1
    assert archive.sweeps()[-1].id != begun.id
    assert [(one.done, one.planned, one.finished) for one in archive.sweeps()] == [
        (2, 2, True),
        (0, 2, False),
        (0, 2, False),
    ]
    assert archive.sweep(begun.id).finished
    assert archive.sweep_plan(begun.id) == plan
    assert archive.check() == []


def test_a_sweep_that_a_living_driver_is_at_is_left_to_it(archive, tmp_path):
    """Two drivers that resume one sweep would run everything twice."""
    plan = [samples.spec("first"), samples.spec("second")]
    one = archive.begin_sweep(plan, MACHINE).id
    two = archive.begin_sweep(plan, MACHINE, {one})
    assert (two.number, two.resumed) == (2, False)
    assert archive.begin_sweep(plan, MACHINE).id == two.id
    for seed, asked in enumerate(plan):
        add(archive, tmp_path / str(seed), seed, asked=asked, sweep=two.id)
    assert archive.begin_sweep(plan, MACHINE).id == one


def test_records_of_a_sweep_come_in_the_order_of_its_plan(archive, tmp_path):
    plan = [samples.spec(case) for case in "cab"]
    sweep = archive.begin_sweep(plan, MACHINE).id
    for seed, asked in enumerate(reversed([*plan, spec_of_attempt(plan[0], 1)])):
        add(archive, tmp_path / str(seed), seed, asked=asked, sweep=sweep, started_at=f"2026-01-0{seed + 1}T00:00:00Z")
    found = [(one.spec.question.case, one.spec.setting.attempt) for one in archive.records(sweep=sweep)]
    assert found == [("c", 0), ("c", 1), ("a", 0), ("b", 0)]
    assert archive.sweep(sweep).done == 3


def test_a_record_of_another_plan_or_a_second_one_is_not_linked(archive, tmp_path):
    asked = samples.spec()
    sweep = archive.begin_sweep([asked], MACHINE).id
    with pytest.raises(ArchiveError, match="not in the plan"):
        add(archive, tmp_path / "other", case="other", sweep=sweep)
    add(archive, tmp_path / "one", 1, asked=asked, sweep=sweep)
    with pytest.raises(ArchiveError, match="already has record"):
        add(archive, tmp_path / "two", 2, asked=asked, sweep=sweep)
    with pytest.raises(ArchiveError, match=f"there is no sweep 'x'; the latest are {sweep}"):
        add(archive, tmp_path / "three", 3, sweep="x")
    assert len(archive.records()) == 1


def test_an_earlier_record_can_be_linked_later(archive, tmp_path):
    asked = samples.spec()
    folder = samples.folder(tmp_path / "run", samples.record(asked=asked))
    archive.add(folder)
    sweep = archive.begin_sweep([asked], MACHINE).id
    archive.add(folder, sweep)
    assert archive.sweep(sweep).finished


@pytest.mark.parametrize(("plan", "says"), [([], "empty"), ([samples.spec()] * 2, "1 specs twice")])
def test_a_plan_that_is_none_is_refused(archive, plan, says):
    with pytest.raises(ArchiveError, match=says):
        archive.begin_sweep(plan, MACHINE)


# Sweeps that were run elsewhere.


def test_an_added_sweep_is_there_as_after_a_run_and_says_where_it_came_from(archive, tmp_path):
    plan = [samples.spec(case) for case in "ba"]
    path = stranger(tmp_path / "there", *plan)
    made = import_bundle(archive, path)
    assert made == import_bundle(archive, path), "twice is once"
    (kept,) = archive.sweeps()
    assert (made.sweeps, kept.finished, kept.origin.file) == ([kept.id], True, "theirs.zip")
    assert archive.sweep_plan(kept.id) == plan
    assert [one.spec for one in archive.records(sweep=kept.id)] == plan
    assert archive.check() == []
    export_bundle(archive, [], tmp_path / "again.zip", sweeps=[kept.id])
    assert (tmp_path / "again.zip").read_bytes() == path.read_bytes()


def test_a_sweep_that_was_added_is_never_resumed(archive, tmp_path):
    """It is unfinished, of the same plan, and says that it ran on this machine: anybody can write that."""
    plan = [samples.spec("first"), samples.spec("second")]
    added = import_bundle(archive, stranger(tmp_path / "there", *plan, machine=MACHINE, done=1)).sweeps
    own = archive.begin_sweep(plan, MACHINE)
    assert (own.number, own.resumed, own.done) == (2, False, frozenset())
    assert archive.begin_sweep(plan, MACHINE).id == own.id
    assert [(one.id, one.origin is None) for one in archive.sweeps()] == [(added[0], False), (own.id, True)]
    assert archive.cells(home=MACHINE) == [], "what it says of its machine is not believed"


def test_an_added_sweep_of_a_machine_that_begins_alike_takes_no_number_away(archive, tmp_path):
    plan = [samples.spec()]
    alike = MACHINE[:8] + "b" * 56
    add_bundle(archive, stranger(tmp_path / "there", *plan, machine=alike))
    assert archive.begin_sweep(plan, MACHINE).number == 2


def test_a_sweep_of_which_more_is_done_since_is_made_whole(archive, tmp_path):
    plan = [samples.spec("first"), samples.spec("second")]
    with Archive.open(f"sqlite:///{tmp_path}/there.db", tmp_path / "there") as other:
        sweep = other.begin_sweep(plan, MACHINE).id
        for seed, asked in enumerate(plan):
            other.add_text(samples.record(asked=asked, seed=seed).text(), samples.contents(seed).get, sweep)
            export_bundle(other, [], tmp_path / f"{seed}.zip", sweeps=[sweep])
    for seed, done in ((0, 1), (1, 2), (0, 2)):
        add_bundle(archive, tmp_path / f"{seed}.zip")
        assert archive.sweep(sweep).done == done


def test_another_sweep_of_the_same_id_is_refused_with_all_its_records(archive, tmp_path):
    plan = [samples.spec()]
    own = archive.begin_sweep(plan, "b" * 64)
    path = stranger(tmp_path / "there", *plan)
    with pytest.raises(ArchiveError, match=rf"nothing was added: the archive has another sweep {own.id}: it was begun"):
        add_bundle(archive, path)
    assert archive.records() == []
    assert import_bundle(archive, path, sweeps=False).sweeps == []
    assert len(archive.records()) == 1
    assert archive.sweep(own.id).done == 0


def test_nobody_adds_records_to_a_sweep_that_was_run_here(archive, tmp_path):
    """Its own bundle comes back with one record more."""
    plan = [samples.spec("first"), samples.spec("second")]
    sweep = archive.begin_sweep(plan, MACHINE).id
    for seed, asked in enumerate(plan):
        name = add(archive, tmp_path / str(seed), seed, asked=asked, sweep=None if seed else sweep)
    export_bundle(archive, [], tmp_path / "own.zip", sweeps=[sweep])
    add_bundle(archive, tmp_path / "own.zip")
    text, own = archive.bundled_sweep(sweep)
    more = replace(own, records={**own.records, plan[1].digest(): name})
    with pytest.raises(ArchiveError, match="was run here, and 1 of the records of this one are not its own"):
        archive.add_sweep(text, more, Origin("x.zip", "e" * 64, current_time()))
    other = replace(own, records={plan[0].digest(): name})
    with pytest.raises(ArchiveError, match="has other records for the same specs"):
        archive.add_sweep(text, other, Origin("x.zip", "e" * 64, current_time()))
    assert archive.sweep(sweep).done == 1
    assert archive.check() == []


# Nothing is changed.

COLUMNS = {
    "records": ("digest", "text"),
    "documents": ("digest", "kind", "text"),
    "notes": ("id", "record", "author", "text", "written_at"),
    "plans": ("digest", "text"),
    "sweeps": ("id", "plan", "machine", "number", "started_at"),
    "sweep_records": ("sweep", "spec", "record"),
    "sweep_origins": ("sweep", "file", "manifest", "added_at"),
    "arrivals": ("number", "kind", "name"),
    "deliveries": ("number", "manifest", "file", "signer", "added_at"),
    "record_origins": ("record", "manifest"),
    "sweep_files": ("sweep", "manifest"),
    "exclusions": ("number", "verb", "kind", "name", "author", "why", "written_at"),
}
NUMBERED = ("notes", "arrivals", "deliveries", "exclusions")
"""Tables whose first column is the rowid itself."""
CHANGES = (
    "UPDATE {table} SET {last} = {last}",
    "UPDATE OR REPLACE {table} SET {last} = {last}",
    "DELETE FROM {table}",
    "INSERT OR REPLACE INTO {table} SELECT * FROM {table}",
    "REPLACE INTO {table} SELECT * FROM {table}",
    "INSERT OR IGNORE INTO {table} SELECT * FROM {table}",
    "INSERT INTO {table} SELECT * FROM {table} WHERE true ON CONFLICT DO UPDATE SET {last} = {last}",
)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("table", APPEND_ONLY)
def test_nobody_with_sqlite_changes_evidence(archive, tmp_path, file, table, change):
    filled(archive, tmp_path)
    statement = change.format(table=table, last=COLUMNS[table][-1])
    with pytest.raises(sqlite3.IntegrityError, match=f"{table} are append-only"):
        execute(file, statement)
    assert archive.check() == []


@pytest.mark.parametrize("table", [table for table in APPEND_ONLY if table not in NUMBERED])
def test_replacing_by_rowid_is_refused(archive, tmp_path, file, table):
    """A new key with the rowid of an old row would push the old row out without firing a DELETE trigger."""
    filled(archive, tmp_path)
    first, *others = COLUMNS[table]
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        execute(
            file,
            f"INSERT OR REPLACE INTO {table} (rowid, {', '.join(COLUMNS[table])}) "
            f"SELECT rowid, replace({first}, substr({first}, 1, 1), '0'), {', '.join(others)} FROM {table}",
        )


def test_replacing_by_another_unique_key_is_refused(archive, tmp_path, file):
    filled(archive, tmp_path)
    with pytest.raises(sqlite3.IntegrityError, match="sweeps are append-only"):
        execute(file, "INSERT OR REPLACE INTO sweeps SELECT 'new', plan, machine, number, started_at FROM sweeps")


def test_a_digest_has_64_digits(archive, file):
    with pytest.raises(sqlite3.IntegrityError, match="ck_records_digest_is_a_sha256"):
        execute(file, "INSERT INTO records VALUES ('abc', 'text')")


# Migrations.


def revisions():
    scripts = ScriptDirectory(str(ROOT / "store/migrations"))
    return [script.revision for script in reversed(list(scripts.walk_revisions()))]


@pytest.mark.parametrize("revision", revisions())
def test_the_guards_are_there_after_every_revision(tmp_path, revision):
    """A batch migration on SQLite makes a table anew, and its triggers are gone."""
    file = tmp_path / "archive.db"
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        store.database.migrate(connection, revision)
    engine.dispose()
    execute(file, f"INSERT INTO records VALUES ('{'a' * 64}', 'text')")
    for change in CHANGES:
        with pytest.raises(sqlite3.IntegrityError, match="records are append-only"):
            execute(file, change.format(table="records", last="text"))


def checks(connection):
    tables = [table.name for table in Base.metadata.sorted_tables]
    return {table: sorted(map(str, inspect(connection).get_check_constraints(table))) for table in tables}


def test_the_models_are_what_the_migrations_make(archive, file):
    migrated, modelled = create_engine(f"sqlite:///{file}"), create_engine("sqlite://")
    with migrated.connect() as connection, modelled.connect() as other:
        context = MigrationContext.configure(connection, opts={"version_table": "twofold_version"})
        assert compare_metadata(context, Base.metadata) == []
        # Alembic does not compare checks.
        Base.metadata.create_all(other)
        assert checks(connection) == checks(other)
    migrated.dispose()
    modelled.dispose()


def test_every_column_says_what_it_is():
    assert [str(column) for table in Base.metadata.sorted_tables for column in table.c if not column.comment] == []


def test_the_database_is_set_up_to_survive_a_power_cut(archive, file):
    with archive._database.read_transaction() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "page_size", "busy_timeout")
        }
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "page_size": 16384,
        "busy_timeout": 30000,
    }


# Check.


def unguarded(file, table):
    """Drop what refuses changes, as somebody would who wants to cheat."""
    execute(file, *(f"DROP TRIGGER {table}_refuse_{change}" for change in ("update", "delete", "replace")))


def named(archive):
    return {problem.digest for problem in archive.check()}


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_check_finds_one_flipped_byte_of_a_blob(archive, tmp_path):
    add(archive, tmp_path / "run")
    name = digest(samples.tensor(0))
    flip(tmp_path / "outputs/blobs" / name[:2] / name)
    assert named(archive) == {name}


def test_check_finds_wrong_output_but_not_missing_output(archive, tmp_path):
    add(archive, tmp_path / "run")
    name = digest(samples.STDOUT)
    flip(tmp_path / "outputs/blobs" / name[:2] / name)
    assert named(archive) == {name}
    (tmp_path / "outputs/blobs" / name[:2] / name).unlink()
    assert named(archive) == set()


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("documents", "replace(text, 'scenario', 'scenariO')"),
        ("records", "replace(text, '1.25', '1.26')"),
        ("records", "CAST(replace(text, '1.25', x'ff') AS TEXT)"),
        ("plans", "replace(text, '60', '61')"),
    ],
)
def test_check_finds_one_changed_character(archive, tmp_path, file, table, change):
    filled(archive, tmp_path)
    unguarded(file, table)
    where = "kind = 'source'" if table == "documents" else "true"
    execute(file, f"UPDATE {table} SET text = {change} WHERE {where}")
    connection = sqlite3.connect(file)
    changed = connection.execute(f"SELECT digest FROM {table} WHERE {where}").fetchone()[0]
    connection.close()
    # The missing guard is named too.
    assert {changed, table} <= named(archive)


def test_a_changed_record_is_not_read(archive, tmp_path, file):
    name = filled(archive, tmp_path)
    unguarded(file, "records")
    execute(file, "UPDATE records SET text = replace(text, '1.25', '1.26')")
    with pytest.raises(ArchiveError, match=name):
        archive.records()


@pytest.mark.parametrize("kind", ["tensor", "source", "machine"])
def test_check_finds_what_is_missing(archive, tmp_path, file, kind):
    add(archive, tmp_path / "run")
    name = next(name for name, is_a in samples.record().blobs().items() if is_a == kind)
    if kind == "tensor":
        (tmp_path / "outputs/blobs" / name[:2] / name).unlink()
    else:
        unguarded(file, "documents")
        execute(file, f"DELETE FROM documents WHERE digest = '{name}'")
    assert name in named(archive)


def test_check_finds_wrong_index_rows_and_rebuild_mends_them(archive, tmp_path, file):
    one, two = (add(archive, tmp_path / str(seed), seed) for seed in (1, 2))
    execute(file, f"UPDATE cells SET outcome = 'raised' WHERE digest = '{one}'")
    execute(file, f"DELETE FROM cells WHERE digest = '{two}'")
    assert named(archive) == {one, two}
    assert "differs from the record in outcome" in str([str(problem) for problem in archive.check()])
    archive.rebuild()
    assert archive.check() == []


def test_check_finds_a_record_that_does_not_fit_its_sweep(archive, tmp_path, file):
    filled(archive, tmp_path)
    other = add(archive, tmp_path / "other", 1, case="other")
    execute(file, f"INSERT INTO sweep_records SELECT sweep, '{'0' * 64}', '{other}' FROM sweep_records")
    problems = [str(problem) for problem in archive.check()]
    assert len(problems) == 2
    assert all(problem.startswith(other) for problem in problems)


def test_blobs_that_no_record_names_are_counted(archive, tmp_path):
    Blobs(tmp_path / "outputs/blobs").write(digest(b"alone"), b"alone")
    problems, counts = archive.examine()
    assert (problems, counts.unreferenced_blobs) == ([], 1)


def test_check_of_a_damaged_file_is_a_problem_not_a_traceback(archive, tmp_path, file):
    for seed in range(20):
        add(archive, tmp_path / str(seed), seed)
    archive.close()
    copy = tmp_path / "copy.db"
    shutil.copy(file, copy)
    content = bytearray(copy.read_bytes())
    pages = len(content) // 16384
    assert pages > 12
    for page in range(2, pages):
        content[page * 16384 : page * 16384 + 8] = b"\xff" * 8
    copy.write_bytes(content)
    with Archive.open(f"sqlite:///{copy}", tmp_path / "outputs/blobs") as damaged:
        assert "database" in {problem.digest for problem in damaged.check()}
        with pytest.raises(ArchiveError, match="damaged"):
            damaged.records()


# Several processes, and ends without warning.

WRITER = """
import sys
from pathlib import Path
import samples
from store.archive import Archive
root, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with Archive.open(f"sqlite:///{root}/outputs/archive.db", root / "outputs/blobs") as archive:
    print("open", flush=True)
    for seed in range(first, first + count):
        record = samples.record(seed=seed)
        archive.add_text(record.text(), samples.contents(seed).get)
"""


def writer(root, first, count):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    arguments = [sys.executable, "-W", "error", "-c", WRITER, str(root), str(first), str(count)]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_eight_processes_at_once_lose_nothing(tmp_path):
    """They also make the database and its tables at once. Deferred transactions lost most of this."""
    writers = [writer(tmp_path, number * 10, 10) for number in range(8)]
    said = [process.communicate(timeout=120)[1].decode() for process in writers]
    assert [process.returncode for process in writers] == [0] * 8, said
    with Archive.open(f"sqlite:///{tmp_path}/outputs/archive.db", tmp_path / "outputs/blobs") as archive:
        assert len(archive.records()) == 80
        assert archive.check() == []


def test_threads_share_an_archive(archive):
    """A driver adds while its progress bar reads."""

    def work(first):
        for seed in range(first, first + 10):
            archive.add_text(samples.record(seed=seed).text(), samples.contents(seed).get)
        return len(archive.records()) >= 10

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(0, 40, 10))) == [True] * 4
    assert len(archive.records()) == 40


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1])
def test_a_killed_writer_leaves_whole_records_only(tmp_path, delay):
    process = writer(tmp_path, 0, 10_000)
    assert process.stdout.readline() == b"open\n"
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    with Archive.open(f"sqlite:///{tmp_path}/outputs/archive.db", tmp_path / "outputs/blobs") as archive:
        kept = len(archive.records())
        problems, counts = archive.examine()
        assert problems == []
        # At most one record was being added, with three blobs of its own.
        assert counts.unreferenced_blobs <= 3
        for seed in range(kept + 1):
            archive.add_text(samples.record(seed=seed).text(), samples.contents(seed).get)
        assert len(archive.records()) == kept + 1
        assert archive.check() == []


# What else may be there.


def refused(url, tmp_path, **how):
    with pytest.raises(ArchiveError) as caught, Archive.open(url, tmp_path / "blobs", **how):
        pass
    return str(caught.value)


def test_a_file_that_is_no_database_is_let_be(tmp_path):
    file = tmp_path / "archive.db"
    file.write_bytes(b"something of somebody's" * 100)
    assert "not a database" in refused(f"sqlite:///{file}", tmp_path)
    assert file.read_bytes() == b"something of somebody's" * 100


def test_the_database_of_something_else_is_let_be(tmp_path):
    """MLflow's own database lies beside ours and has the same file ending."""
    file = tmp_path / "mlflow.db"
    execute(file, "CREATE TABLE experiments (id)", "CREATE TABLE alembic_version (version_num)")
    said = refused(f"sqlite:///{file}", tmp_path)
    assert "something else (it has the tables alembic_version, experiments)" in said
    with pytest.raises(sqlite3.OperationalError):
        counted(file, "records")


def test_a_newer_archive_is_let_be(archive, tmp_path, file):
    archive.close()
    execute(file, "UPDATE twofold_version SET version_num = '0999'")
    said = refused(f"sqlite:///{file}", tmp_path)
    assert "has revision '0999'; this version knows up to" in said
    assert "update the project" in said


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "not a database URL"),
        ("mysql://x/y", "mysql is not a database that we know"),
        ("sqlite://", "in memory"),
        ("postgresql+nodriver://me:secret@nowhere/x", "install its driver"),
    ],
)
def test_a_url_that_leads_nowhere_is_a_sentence(tmp_path, url, says):
    said = refused(url, tmp_path)
    assert says in said
    assert "secret" not in said


def test_reading_commands_make_no_archive(tmp_path):
    file = tmp_path / "deeper/archive.db"
    assert "there is no archive at" in refused(f"sqlite:///{file}", tmp_path, create=False)
    assert not file.parent.exists()


def test_a_folder_in_place_of_the_file_is_a_sentence(tmp_path):
    assert "cannot be opened" in refused(f"sqlite:///{tmp_path}", tmp_path)


def test_a_full_disk_is_a_sentence_and_loses_nothing(archive, tmp_path, file):
    add(archive, tmp_path / "kept", 1)
    with archive._database.read_transaction() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    with archive._database.read_transaction() as connection:
        # SQLite answers a full disk and a full quota of pages in the same way.
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    big = samples.record(seed=2, kind="raised", message="x" * 100_000)
    folder = samples.folder(tmp_path / "big", big, 2)
    with pytest.raises(ArchiveError, match="the disk is full: free space, then add again"):
        archive.add(folder)
    assert len(archive.records()) == 1
    with archive._database.read_transaction() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    archive.add(folder)
    assert len(archive.records()) == 2
    assert archive.check() == []


def test_a_blob_folder_that_cannot_be_written_is_a_sentence(archive, tmp_path, file):
    (tmp_path / "outputs/blobs").write_text("a file in place of the folder")
    with pytest.raises(ArchiveError, match="cannot be written"):
        add(archive, tmp_path / "run")
    assert counted(file, "records") == 0


def test_a_writer_that_does_not_stop_is_a_sentence(tmp_path, file, monkeypatch):
    monkeypatch.setattr(store.database, "_PATIENCE", 0.1)
    with Archive.open(f"sqlite:///{file}", tmp_path / "blobs") as archive:
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ArchiveError, match="another process has been writing"):
            add(archive, tmp_path / "run")
        other.execute("ROLLBACK")
        other.close()
        archive.add(tmp_path / "run")
        assert len(archive.records()) == 1


def test_an_older_schema_would_be_kept_as_it_was_written():
    """What is canonical is asked of the text itself, not of how today's version would write it."""
    text = samples.record().text()
    assert canonical(parse(text)) == text

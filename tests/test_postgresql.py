"""The archive on a PostgreSQL server: what it does on SQLite, and what only a server can do to it."""

from __future__ import annotations

import contextlib
import inspect as signatures
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import samples
import test_archive
import test_sweep
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from postgres import cluster, database  # noqa: F401  (fixtures)
from sqlalchemy import create_engine, insert
from test_archive import COLUMNS, MACHINE, add, checks, filled, flip, named, revisions

import store.database
from experiments.core.canonical_json import digest
from store.__main__ import main as store_main
from store.archive import Archive, ArchiveError
from store.models import APPEND_ONLY, Base, DocumentRow
from store.sweeps import Sweep

ROOT = Path(__file__).parents[1]


@pytest.fixture
def archive(database, tmp_path):  # noqa: F811
    with Archive.open(database.url(), tmp_path / "outputs/blobs") as opened:
        yield opened


# What is shown for SQLite without looking into its file is shown here again, by the same tests.

SHARED = {
    name: test
    for name, test in vars(test_archive).items()
    if name.startswith("test_")
    and "archive" in signatures.signature(test).parameters
    and "file" not in signatures.signature(test).parameters
}
globals().update(SHARED)


def test_what_is_shared_is_what_matters():
    assert len(SHARED) >= 20
    assert "test_an_unfinished_sweep_is_resumed_and_a_finished_one_gets_the_next_number" in SHARED


def test_adding_twice_is_one_row(archive, database, tmp_path):  # noqa: F811
    folder = samples.folder(tmp_path / "run", samples.record())
    assert archive.add(folder) == archive.add(folder)
    assert [database.counted(table) for table in ("records", "cells", "documents")] == [1, 1, 2]


@pytest.mark.parametrize("missing", ["source", "machine", "tensor"])
def test_a_record_that_lacks_something_is_refused_whole(archive, database, tmp_path, missing):  # noqa: F811
    record = samples.record()
    lacking = next(name for name, kind in record.blobs().items() if kind == missing)
    with pytest.raises(ArchiveError, match=f"{missing} {lacking} of the record is missing"):
        archive.add(samples.folder(tmp_path / "run", record, without=(lacking,)))
    assert database.counted("records") == database.counted("documents") == 0


def test_half_an_add_is_none(archive, database, tmp_path, monkeypatch):  # noqa: F811
    folder = samples.folder(tmp_path / "run", samples.record(), 0)
    monkeypatch.setattr("store.archive.Cell", DocumentRow)
    with pytest.raises(Exception, match="Unconsumed column names"):
        archive.add(folder)
    assert database.counted("records") == database.counted("documents") == 0
    monkeypatch.undo()
    archive.add(folder)
    assert archive.check() == []


def test_text_of_every_language_and_control_characters_come_back(archive, database, tmp_path):  # noqa: F811
    """A message may hold NUL, which PostgreSQL has not, and the index repeats a part of it: escaped."""
    message = "\x00 \x1b[31m \\x41 \U0001f600 \u202e %s %(x)s"
    name = add(archive, tmp_path / "run", kind="raised", message=message)
    assert archive.records()[0].outcome.message == message
    archive.rebuild()
    assert r"\x00" in database.rows("SELECT fingerprint FROM cells")[0][0]
    assert digest(archive.record_text(name)[1]) == name
    assert archive.check() == []


# Nothing is changed.

CHANGES = (
    "UPDATE {table} SET {last} = {last}",
    "UPDATE {table} SET {last} = {last} WHERE false",
    "DELETE FROM {table}",
    "TRUNCATE {table} CASCADE",
    "INSERT INTO {table} SELECT * FROM {table} ON CONFLICT ON CONSTRAINT pk_{table} DO UPDATE SET {last} = ''",
    "MERGE INTO {table} a USING {table} b ON a.{first} = b.{first} WHEN MATCHED THEN UPDATE SET {last} = ''",
    "MERGE INTO {table} a USING {table} b ON a.{first} = b.{first} WHEN MATCHED THEN DELETE",
)


@pytest.fixture(scope="module")
def evidence(cluster, tmp_path_factory):  # noqa: F811
    """A row in every table, which no test changes."""
    made = cluster.make()
    root = tmp_path_factory.mktemp("evidence")
    with Archive.open(made.url(), root / "blobs") as opened:
        filled(opened, root)
    yield made
    made.drop()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("table", APPEND_ONLY)
def test_not_even_a_superuser_changes_evidence(evidence, table, change):
    """Nor one who switches ordinary triggers off."""
    first, *_, last = COLUMNS[table]
    statement = change.format(table=table, first=first, last=last)
    for replica in (False, True):
        with pytest.raises(psycopg.errors.RaiseException, match="are append-only"):
            evidence.execute(statement, replica=replica)
    assert evidence.counted(table) >= 1


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_an_insert_over_an_existing_key_changes_nothing(evidence, table):
    before = evidence.rows(f"SELECT * FROM {table} ORDER BY 1, 2")
    for replica in (False, True):
        with pytest.raises(psycopg.errors.UniqueViolation):
            evidence.execute(f"INSERT INTO {table} SELECT * FROM {table}", replica=replica)
        evidence.execute(f"INSERT INTO {table} SELECT * FROM {table} ON CONFLICT DO NOTHING", replica=replica)
    assert evidence.rows(f"SELECT * FROM {table} ORDER BY 1, 2") == before


@pytest.mark.parametrize("revision", revisions())
def test_the_guards_are_there_after_every_revision(database, revision):  # noqa: F811
    engine = create_engine(database.url())
    with engine.begin() as connection:
        store.database.migrate(connection, revision)
    engine.dispose()
    database.execute(f"INSERT INTO records VALUES ('{'a' * 64}', 'text')")
    for change in CHANGES:
        for replica in (False, True):
            with pytest.raises(psycopg.errors.RaiseException, match="records are append-only"):
                database.execute(change.format(table="records", first="digest", last="text"), replica=replica)


def test_the_models_are_what_the_migrations_make(evidence, database):  # noqa: F811
    migrated, modelled = create_engine(evidence.url()), create_engine(database.url())
    with migrated.connect() as connection, modelled.connect() as other:
        context = MigrationContext.configure(connection, opts={"version_table": "twofold_version"})
        assert compare_metadata(context, Base.metadata) == []
        # Alembic does not compare checks.
        Base.metadata.create_all(other)
        assert checks(connection) == checks(other)
    migrated.dispose()
    modelled.dispose()


# Check.


def unguarded(database, table):  # noqa: F811
    database.execute(f"ALTER TABLE {table} DISABLE TRIGGER {table}_refuse_change")


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("documents", "replace(text, 'scenario', 'scenariO')"),
        ("records", "replace(text, '1.25', '1.26')"),
        ("records", r"text || '\x00'"),
        ("plans", "replace(text, '60', '61')"),
    ],
)
def test_check_finds_one_changed_character(archive, database, tmp_path, table, change):  # noqa: F811
    filled(archive, tmp_path)
    unguarded(database, table)
    where = "kind = 'source'" if table == "documents" else "true"
    database.execute(f"UPDATE {table} SET text = {change} WHERE {where}")
    changed = database.rows(f"SELECT digest FROM {table} WHERE {where}")[0][0]
    assert {changed, table} <= named(archive)
    if table == "records":
        with pytest.raises(ArchiveError, match=changed):
            archive.records()


@pytest.mark.parametrize("kind", ["tensor", "source", "machine"])
def test_check_finds_what_is_missing(archive, database, tmp_path, kind):  # noqa: F811
    add(archive, tmp_path / "run")
    name = next(name for name, is_a in samples.record().blobs().items() if is_a == kind)
    if kind == "tensor":
        flip(tmp_path / "outputs/blobs" / name[:2] / name)
    else:
        unguarded(database, "documents")
        database.execute(f"DELETE FROM documents WHERE digest = '{name}'")
    assert name in named(archive)


def test_check_finds_wrong_index_rows_and_rebuild_mends_them(archive, database, tmp_path):  # noqa: F811
    one, two = (add(archive, tmp_path / str(seed), seed) for seed in (1, 2))
    database.execute(
        f"UPDATE cells SET outcome = 'raised' WHERE digest = '{one}'", f"DELETE FROM cells WHERE digest = '{two}'"
    )
    assert named(archive) == {one, two}
    archive.rebuild()
    assert archive.check() == []


def test_check_finds_what_leads_nowhere(archive, database, tmp_path):  # noqa: F811
    """A superuser can switch foreign keys off."""
    sweep = filled(archive, tmp_path) and archive.sweeps()[-1].id
    nothing = "e" * 64
    database.execute(f"INSERT INTO sweep_records VALUES ('{sweep}', '{'0' * 64}', '{nothing}')", replica=True)
    database.execute(f"INSERT INTO notes VALUES (77, '{nothing}', 'me', 'about nothing', 'now')", replica=True)
    found = [str(problem) for problem in archive.check()]
    assert [line for line in found if line.startswith(nothing)] == [
        f"{nothing}: notes names it in record, but it is not there",
        f"{nothing}: sweep_records names it in record, but it is not there",
    ]


@pytest.mark.parametrize(
    ("weakening", "says"),
    [
        ("DROP TRIGGER notes_refuse_change ON notes", "is missing"),
        ("ALTER TABLE notes DISABLE TRIGGER notes_refuse_change", "does not always fire"),
        ("ALTER TABLE notes ENABLE TRIGGER notes_refuse_change", "does not always fire"),
        (
            "CREATE OR REPLACE TRIGGER notes_refuse_change BEFORE DELETE OR TRUNCATE ON notes "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()",
            "lets some through",
        ),
        (
            "CREATE OR REPLACE TRIGGER notes_refuse_change BEFORE UPDATE OF id OR DELETE OR TRUNCATE ON notes "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()",
            "lets some through",
        ),
        (
            "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RETURN NULL; END $$",
            "does something else: BEGIN RETURN NULL; END",
        ),
    ],
)
def test_check_names_a_guard_that_was_weakened(archive, database, weakening, says):  # noqa: F811
    assert archive.check() == []
    database.execute(weakening)
    problems = {problem.digest: problem.what for problem in archive.check()}
    assert says in problems["notes"]


# Roles.


def granting(database, *arguments):  # noqa: F811
    return store_main(["grant", "--archive", database.url(), *arguments])


@pytest.fixture
def roles(database, capsys):  # noqa: F811
    """Logins of a writer and a reader of their own, on an archive that was made for them."""
    writer, reader = f"{database.name}_writer", f"{database.name}_reader"
    database.cluster.execute(f"CREATE ROLE {writer} LOGIN", f"CREATE ROLE {reader} LOGIN")
    assert granting(database, "--writer", writer, "--reader", reader) == 0
    assert capsys.readouterr().out == (
        f"twofold_owner owns the archive and cannot log in, {writer} may insert and read, {reader} may read\n"
    )
    yield writer, reader
    database.execute(f"DROP OWNED BY {writer}, {reader}")
    database.cluster.execute(f"DROP ROLE {writer}", f"DROP ROLE {reader}")


FORBIDDEN = (
    *(change for change in CHANGES if "MERGE" not in change),
    "UPDATE cells SET outcome = 'finished'",
    "DELETE FROM cells",
    "DROP TRIGGER {table}_refuse_change ON {table}",
    "ALTER TABLE {table} DISABLE TRIGGER ALL",
    "ALTER TABLE {table} ALTER {last} TYPE text USING 'other'",
    "DROP TABLE {table} CASCADE",
    "DROP FUNCTION refuse_change() CASCADE",
    "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
    "CREATE RULE quiet AS ON INSERT TO {table} DO INSTEAD NOTHING",
    "CREATE TABLE beside (id int)",
    "UPDATE twofold_version SET version_num = '0000'",
    "INSERT INTO twofold_version VALUES ('0000')",
    "SELECT setval('notes_id_seq', 1)",
    "SET session_replication_role = replica",
    "SET ROLE twofold_owner",
)


def test_a_writer_may_insert_and_read_and_a_reader_read(database, roles, tmp_path):  # noqa: F811
    writer, reader = roles
    with Archive.open(database.url(writer), tmp_path / "blobs") as archive:
        name = filled(archive, tmp_path)
        assert archive.check() == []
        with pytest.raises(ArchiveError, match="this user may not do this: see who may do what"):
            archive.rebuild()
    with Archive.open(database.url(reader), tmp_path / "blobs", create=False) as archive:
        assert [digest(record.text()) for record in archive.records()] == [name]
        assert archive.check() == []
        with pytest.raises(ArchiveError, match=r"this user may not do this.*permission denied for table records"):
            add(archive, tmp_path / "other", 1)
    for user in roles:
        for table in APPEND_ONLY:
            for statement in FORBIDDEN:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    database.execute(statement.format(table=table, first="", last=COLUMNS[table][-1]), user=user)
    # Not the owner either, whom a superuser may put on.
    for table in APPEND_ONLY:
        with pytest.raises(psycopg.errors.RaiseException):
            database.execute("SET ROLE twofold_owner", f"TRUNCATE {table} CASCADE")


def test_roles_can_be_set_up_again_on_a_full_archive(database, roles, tmp_path):  # noqa: F811
    writer, reader = roles
    with Archive.open(database.url(), tmp_path / "blobs") as archive:
        filled(archive, tmp_path)
    database.execute(f"GRANT ALL ON records TO {writer}", "GRANT ALL ON records TO PUBLIC")
    assert granting(database, "--writer", writer, "--reader", reader) == 0
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        database.execute("DELETE FROM records", user=writer)
    with Archive.open(database.url(), tmp_path / "blobs") as archive:
        assert archive.check() == []


@pytest.mark.parametrize(
    ("preparation", "arguments", "says"),
    [
        ("ALTER ROLE {one} SUPERUSER", ["--writer", "{one}"], "is a superuser or may make roles"),
        ("ALTER DATABASE {database} OWNER TO {one}", ["--writer", "{one}"], "owns the database"),
        ("GRANT pg_write_all_data TO {one}", ["--writer", "{one}"], "may change rows by another grant"),
        ("SELECT 1", ["--writer", "postgres"], "is a superuser"),
        ("SELECT 1", ["--writer", "a", "--owner", "{one}"], "{one} can log in"),
        ("SELECT 1", ["--writer", "{one}", "--reader", "{one}"], "no name for a role of its own"),
        ("SELECT 1", ["--writer", 'x"; DROP TABLE records; --'], "no name for a role"),
    ],
)
def test_a_role_that_grants_cannot_hold_is_refused(archive, database, capsys, preparation, arguments, says):  # noqa: F811
    one = f"{database.name}_one"
    names = {"one": one, "database": database.name}
    database.cluster.execute(f"CREATE ROLE {one} LOGIN")
    try:
        database.execute(preparation.format(**names))
        assert granting(database, *(argument.format(**names) for argument in arguments)) == 2
        said = capsys.readouterr().err
        assert says.format(**names) in said
        assert len(said.splitlines()) == 1
        assert database.rows("SELECT count(*) FROM pg_class WHERE relowner = 'postgres'::regrole")[0][0] > 0
    finally:
        database.cluster.execute(f"ALTER DATABASE {database.name} OWNER TO postgres", f"DROP ROLE {one}")


def test_an_administrator_need_not_be_a_superuser(cluster, tmp_path):  # noqa: F811
    made = cluster.make()
    boss, writer, owner = (f"{made.name}_{name}" for name in ("boss", "writer", "owner"))
    cluster.execute(f"CREATE ROLE {boss} LOGIN CREATEROLE", f"CREATE ROLE {writer} LOGIN")
    cluster.execute(f"ALTER DATABASE {made.name} OWNER TO {boss}")
    for _ in range(2):
        assert store_main(["grant", "--archive", made.url(boss), "--writer", writer, "--owner", owner]) == 0
        with Archive.open(made.url(writer), tmp_path / "blobs") as archive:
            samples_there = archive.add_text(samples.record().text(), samples.contents().get)
        with Archive.open(made.url(boss), tmp_path / "blobs") as archive:
            archive.rebuild()
            assert [one.digest for one in archive.cells()] == [samples_there]
            assert archive.check() == []
    made.drop()
    cluster.execute(f"DROP ROLE {boss}, {writer}, {owner}")


def test_a_user_without_rights_is_told_who_makes_the_tables(database, tmp_path):  # noqa: F811
    user = f"{database.name}_user"
    database.cluster.execute(f"CREATE ROLE {user} LOGIN")
    database.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    said = refused(database.url(user), tmp_path)
    assert "holds no archive yet, this version needs '0003', and this user may not make tables" in said
    assert "python -m store grant" in said
    database.cluster.execute(f"DROP ROLE {user}")


# What else may be there.


def refused(url, tmp_path, **how):
    with pytest.raises(ArchiveError) as caught, Archive.open(url, tmp_path / "blobs", **how):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_database_of_something_else_is_let_be(database, tmp_path):  # noqa: F811
    database.execute("CREATE TABLE alembic_version (version_num text)", "CREATE TABLE experiments (id int)")
    assert "something else (it has the tables alembic_version, experiments)" in refused(database.url(), tmp_path)
    assert database.rows("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(2,)]


def test_a_newer_archive_is_let_be(archive, database, tmp_path):  # noqa: F811
    database.execute("UPDATE twofold_version SET version_num = '0999'")
    assert "has revision '0999'; this version knows up to" in refused(database.url(), tmp_path)


def test_reading_commands_make_no_archive(database, tmp_path):  # noqa: F811
    assert "there is no archive in" in refused(database.url(), tmp_path, create=False)
    assert database.rows("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]


def test_a_database_that_cannot_hold_every_text_is_refused(cluster, tmp_path):  # noqa: F811
    made = cluster.make("ENCODING 'LATIN1' TEMPLATE template0")
    assert "is encoded in LATIN1, which cannot hold every text: make one in UTF8" in refused(made.url(), tmp_path)
    made.drop()


def test_a_database_that_sorts_by_language_is_no_matter(cluster, tmp_path):  # noqa: F811
    made = cluster.make("LOCALE_PROVIDER icu ICU_LOCALE 'de-DE' TEMPLATE template0")
    with Archive.open(made.url(), tmp_path / "outputs/blobs") as archive:
        test_archive.test_records_are_selected_and_ordered(archive, tmp_path)
        assert archive.check() == []
    made.drop()


@pytest.mark.parametrize("driver", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_plain_url_means_psycopg(database, tmp_path, driver):  # noqa: F811
    with Archive.open(database.url(driver=driver), tmp_path / "blobs") as archive:
        assert archive._database.url.drivername == "postgresql+psycopg"
        assert archive.records() == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/x", "me:***@127.0.0.1:1/x: it cannot be reached: start it"),
        ("postgresql://me@127.0.0.1:1/x?password=hunter2", "password=***: it cannot be reached"),
        ("postgresql://me:hunter2@no.such.host.invalid/x", "it cannot be reached"),
        ("postgresql://me:ab@hunter2@127.0.0.1:1/x", "has an @ too many"),
        ("postgresql://me:ab/hunter2@127.0.0.1:1/x", "me:***@127.0.0.1:1/x: it cannot be reached"),
        ("postgresql://me:hunter2@host:port/x", "'postgresql://me:***@host:port/x' is not a database URL"),
        ("postgresql:/me:hunter2@host/x", "is not a database URL"),
        ("postgresql://me:hunter2@127.0.0.1:1/x?hots=1", "an option that the driver does not know"),
        ("postgresql+nodriver://me:hunter2@127.0.0.1:1/x", "install its driver"),
    ],
)
def test_a_url_that_leads_nowhere_is_a_sentence_without_a_password(tmp_path, url, says):
    said = refused(url, tmp_path)
    assert says in said
    assert "hunter2" not in said


def test_whoever_is_not_let_in_is_told_why(database, tmp_path):  # noqa: F811
    database.cluster.execute("CREATE ROLE secretive LOGIN PASSWORD 'hunter2'")
    try:
        for user in ("secretive", "secretive:hunter3", "nobody_known"):
            said = refused(database.url(user), tmp_path)
            assert "it does not let this user in" in said
            assert "hunter" not in said
        absent = database.url().replace(database.name, "absent")
        assert "there is no such database: an administrator makes it" in refused(absent, tmp_path)
    finally:
        database.cluster.execute("DROP ROLE secretive")


# Many at once.

WRITER = """
import sys
from pathlib import Path
import samples
from store.archive import Archive
url, root, first, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
with Archive.open(url, root / "outputs/blobs") as archive:
    plan = [samples.spec(f"case{seed}") for seed in range(45)]
    sweep = archive.begin_sweep(plan, "a" * 64)
    for seed in range(first, first + count):
        record = samples.record(seed=seed, asked=plan[seed])
        archive.add_text(record.text(), samples.contents(seed).get, sweep.id)
print(sweep.id)
"""


def test_eight_processes_at_once_lose_and_double_nothing(database, tmp_path):  # noqa: F811
    """They also make the tables at once and begin one sweep at once, and half of what each adds others add too."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, "-W", "error", "-c", WRITER, database.url(), str(tmp_path)]
    writers = [
        subprocess.Popen([*command, str(number * 5), "10"], env=environment, stdout=-1, stderr=-1, text=True)
        for number in range(8)
    ]
    said = [process.communicate(timeout=120) for process in writers]
    assert [process.returncode for process in writers] == [0] * 8, said
    assert len({out for out, _ in said}) == 1
    with Archive.open(database.url(), tmp_path / "outputs/blobs") as archive:
        assert len(archive.records()) == 45
        assert archive.check() == []
        assert [(one.number, one.done, one.planned) for one in archive.sweeps()] == [(1, 45, 45)]
    tables = ("records", "cells", "sweep_records", "sweeps", "plans")
    assert [database.counted(table) for table in tables] == [45, 45, 45, 1, 1]


def test_drivers_that_begin_at_once_begin_one_sweep(archive, database, tmp_path):  # noqa: F811
    plan = [samples.spec("first"), samples.spec("second")]
    ready = threading.Barrier(4)

    def begin(_: int) -> Sweep:
        with Archive.open(database.url(), tmp_path / "blobs") as own:
            ready.wait(30)
            return own.begin_sweep(plan, MACHINE)

    with ThreadPoolExecutor(4) as pool:
        begun = list(pool.map(begin, range(4)))
    assert {one.id for one in begun} == {archive.sweeps()[-1].id}
    assert sorted(one.resumed for one in begun) == [False, True, True, True]


def test_a_writer_that_does_not_stop_is_a_sentence(database, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(store.database, "_PATIENCE", 0.2)
    with Archive.open(database.url(), tmp_path / "blobs") as archive:
        with database.connect() as other:
            other.execute(f"SELECT pg_advisory_lock({store.database._LOCK})")
            with pytest.raises(ArchiveError, match="another process has been writing"):
                add(archive, tmp_path / "run")
            assert archive.records() == []
        archive.add(tmp_path / "run")
        assert len(archive.records()) == 1


def test_a_writer_that_has_stopped_does_not_stop_the_others(archive, database, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(store.database, "_IDLE", 1)

    def stop() -> None:
        with Archive.open(database.url(), tmp_path / "outputs/blobs") as other:
            add(other, tmp_path / "run")
        time.sleep(0.2)

    with pytest.raises(ArchiveError, match=r"this process had stopped|it cannot be reached"):
        interrupted(archive, stop)
    assert [len(archive.records()), database.counted("documents")] == [1, 2]


def interrupted(archive, interrupt):
    """An add in whose middle something happens."""
    with archive._database.write_transaction() as connection:
        rows = [{"digest": digest(name.encode()), "kind": "source", "text": name} for name in ("one", "two")]
        connection.execute(insert(DocumentRow), rows[:1])
        interrupt()
        connection.execute(insert(DocumentRow), rows[1:])


# The server goes away.


def test_a_connection_that_is_killed_in_the_middle_is_a_sentence(archive, database, tmp_path):  # noqa: F811
    with pytest.raises(ArchiveError, match=r"it cannot be reached: start it.*terminating connection") as caught:
        interrupted(archive, database.cut)
    assert "\n" not in str(caught.value)
    assert database.counted("documents") == 0
    add(archive, tmp_path / "run")
    assert archive.check() == []


def test_a_connection_that_was_killed_while_idle_is_not_noticed(archive, database, tmp_path):  # noqa: F811
    add(archive, tmp_path / "one", 1)
    assert database.cut() >= 1
    add(archive, tmp_path / "two", 2)
    assert len(archive.records()) == 2


def test_a_server_that_is_away_is_a_sentence_and_loses_nothing(archive, database, tmp_path):  # noqa: F811
    add(archive, tmp_path / "one", 1)
    folder = samples.folder(tmp_path / "two", samples.record(seed=2), 2)
    with pytest.raises(ArchiveError, match="it cannot be reached: start it"):
        interrupted(archive, database.cluster.stop)
    with pytest.raises(ArchiveError, match="it cannot be reached: start it"):
        archive.add(folder)
    assert "cannot be read on" in str(archive.check()[0])
    database.cluster.start()
    archive.add(folder)
    assert len(archive.records()) == 2
    assert archive.check() == []


def test_what_was_added_is_there_after_a_crash(archive, database):  # noqa: F811
    """A server that is killed tells nobody; each add that returned is there, each other one is not or whole."""
    kept = []

    def work() -> None:
        records = ((samples.record(seed=seed).text(), samples.contents(seed).get) for seed in range(10_000))
        with contextlib.suppress(ArchiveError):
            kept.extend(archive.add_text(*one) for one in records)

    thread = threading.Thread(target=work)
    thread.start()
    while len(kept) < 10:
        assert thread.is_alive()
        time.sleep(0.01)
    database.cluster.stop(signal.SIGQUIT)
    thread.join(60)
    database.cluster.start()
    found = [one.digest for one in archive.cells()]
    assert set(kept) <= set(found)
    assert len(found) <= len(kept) + 1
    assert archive.check() == []


# As its users run it.


def commanded(folder, *arguments, status=0):
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "store", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == status, ended
    return ended.stdout


def test_the_command_line_works_on_a_server(archive, database, tmp_path):  # noqa: F811
    name = add(archive, tmp_path / "run")
    at = ("--archive", database.url())
    assert [one["digest"] for one in json.loads(commanded(tmp_path, "list", "--json", *at))] == [name]
    commanded(tmp_path, "export", name[:8], "one.zip", *at)
    other = database.cluster.make()
    assert commanded(tmp_path, "add", "one.zip", "--archive", other.url(), "--blobs", "blobs") == f"{name}\n"
    assert "no problems" in commanded(tmp_path, "check", "--archive", other.url(), "--blobs", "blobs")
    other.drop()


def test_a_sweep_outlives_a_restart_of_the_server(database, tmp_path):  # noqa: F811
    """Its archive goes away in the middle; nothing is lost, and the same command goes on."""
    root = test_sweep.project(tmp_path / "project", good=test_sweep.GOOD)
    asked = (
        "archive=postgresql",
        f"archive.url='{database.url(driver='postgresql')}'",
        "tracking=none",
        "isolation=forked",
    )
    driver = subprocess.Popen(test_sweep.command(*asked), cwd=root, stdout=-1, stderr=-1, text=True)
    patient_until = time.monotonic() + 120
    while "records" not in tables(database) or database.counted("records") < 2:
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < patient_until
        time.sleep(0.05)
    database.cluster.stop()
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 2, out + err
    assert "it cannot be reached: start it" in err
    assert "the evidence stays in" in err
    assert "Traceback" not in err

    refusal = test_sweep.run(root, *asked)
    assert refusal.returncode == 2
    assert [line for line in refusal.stderr.splitlines() if "it cannot be reached: start it" in line]

    database.cluster.start()
    ended = test_sweep.run(root, *asked)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "resuming sweep" in ended.stderr
    assert "3 as expected" in ended.stdout
    assert database.counted("sweep_records") == database.counted("records") == test_sweep.PROCESSES
    assert "no problems" in commanded(root, "check", "--archive", database.url())
    assert not (root / "outputs/archive.db").exists()


def tables(database):  # noqa: F811
    return {name for (name,) in database.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}


def test_a_sweep_without_a_url_names_the_field(tmp_path):
    ended = test_sweep.run(ROOT, "archive=postgresql", "dry_run=true", f"outputs={tmp_path}")
    assert ended.returncode == 2
    assert "archive.url" in ended.stderr
    assert "Traceback" not in ended.stderr

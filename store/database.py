"""The database under the archive: opened, brought to the newest revision, and its errors said in sentences.

Covers SQLite files and PostgreSQL. A writing transaction takes its lock when it begins (BEGIN IMMEDIATE; an
advisory lock on PostgreSQL), so that looking first and inserting then is safe: a transaction that only asks
for the lock when it writes fails with "database is locked" under several writers.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, column, create_engine, event, inspect, make_url, select, table
from sqlalchemy.exc import ArgumentError, DBAPIError

from store.errors import ArchiveError

VERSION_TABLE = "twofold_version"
"""Ours, so that an archive and MLflow's tables are told apart."""

_PATIENCE = 30
"""Seconds to wait for another process that is writing."""

_LOCK = 0x7477666C
"""Number of the advisory lock that stands for "writing" on PostgreSQL: "twfl"."""

_MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """An engine whose database has the newest tables."""

    def __init__(self, url: str, *, create: bool) -> None:
        self.url = _readable(url)
        self._engine = _engine(self.url, create=create)
        try:
            self._bring_to_newest()
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The URL as it may be shown: without a password."""
        return self.url.render_as_string(hide_password=True)

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database."""
        with _in_sentences(self.name), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that has the write lock from its beginning."""
        engine = self._engine.execution_options(writing=True)
        with _in_sentences(self.name), engine.begin() as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    def _bring_to_newest(self) -> None:
        scripts = ScriptDirectory(str(_MIGRATIONS))
        with self.reading() as connection:
            if self._revision(connection, scripts) == scripts.get_current_head():
                return
        with self.writing() as connection:
            # Asked again: another process may have migrated while this one waited for the lock.
            self._revision(connection, scripts)
            migrate(connection)

    def _revision(self, connection: Connection, scripts: ScriptDirectory) -> str | None:
        """The database's revision, None for an empty one. Raises ArchiveError if it is not ours to use."""
        tables = inspect(connection).get_table_names()
        if VERSION_TABLE not in tables:
            if tables:
                found = ", ".join(sorted(tables)[:4])
                raise ArchiveError(
                    f"{self.name} is a database of something else (it has the tables {found}); name another"
                )
            return None
        revision = connection.scalar(select(column("version_num")).select_from(table(VERSION_TABLE)))
        known = [script.revision for script in scripts.walk_revisions()]
        if revision not in known:
            raise ArchiveError(
                f"{self.name} has revision {revision!r}; this version knows up to {known[0]!r}: update the project"
            )
        return str(revision)


def migrate(connection: Connection, revision: str = "head") -> None:
    """Bring the database to a revision, within the transaction that is open."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _readable(url: str) -> URL:
    try:
        made = make_url(url)
    except ArgumentError:
        raise ArchiveError(f"{url!r} is not a database URL; one looks like sqlite:///outputs/archive.db") from None
    if made.get_backend_name() not in ("sqlite", "postgresql"):
        raise ArchiveError(f"{made.get_backend_name()} is not a database that we know; use sqlite or postgresql")
    if made.get_backend_name() == "sqlite" and made.database in (None, "", ":memory:"):
        raise ArchiveError("an archive in memory keeps nothing; name a file: sqlite:///outputs/archive.db")
    return made


def _engine(url: URL, *, create: bool) -> Engine:
    if url.get_backend_name() == "sqlite":
        file = Path(str(url.database))
        if not create and not file.is_file():
            raise ArchiveError(f"there is no archive at {file}; a run makes one, or name another with --archive")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArchiveError(f"the folder of {file} cannot be made: {error.strerror}") from error
    try:
        engine = create_engine(url)
    except (ArgumentError, ModuleNotFoundError) as error:
        raise ArchiveError(f"{url.render_as_string()} cannot be opened: {error}; install its driver") from error
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "begin", _begin_postgresql)
    return engine


def _set_up_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # Python's driver would begin transactions by itself, at other moments than we do.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {_PATIENCE * 1000}")
    # Larger pages keep a record on fewer of them; it counts only while the file is empty.
    connection.execute("PRAGMA page_size = 16384")
    _switch_to_write_ahead(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _switch_to_write_ahead(connection: sqlite3.Connection) -> None:
    """SQLite does not wait by itself when several processes make this switch on a new file at once."""
    patient_until = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > patient_until:
                raise
            time.sleep(0.02)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _begin_postgresql(connection: Connection) -> None:
    if connection.get_execution_options().get("writing"):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    else:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


_SENTENCES = {
    "disk is full": "the disk is full: free space, then add again",
    "disk i/o error": "the disk refuses to be read or written: mend it, then add again",
    "is locked": f"another process has been writing for more than {_PATIENCE} s: wait for it, then add again",
    "not a database": "it is not a database: name another, or bring the archive back from a copy",
    "malformed": "it is damaged: bring it back from a copy, or add the records of outputs/sweeps to a new one",
    "decode to utf-8": "it is damaged: `python -m store check` names what does not match",
    "unable to open": "it cannot be opened: look at the path and at who may write there",
    "readonly": "it may not be written: look at who may write there",
    "connection": "it cannot be reached: start it, or mend the URL, then add again",
    "append-only": "it keeps what it has: evidence is never changed",
}
"""What a database says, and what that means here."""


@contextmanager
def _in_sentences(name: str) -> Iterator[None]:
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        said = str(getattr(error, "orig", None) or error).strip()
        known = [sentence for words, sentence in _SENTENCES.items() if words in said.lower()]
        meaning = known[0] if known else "the database cannot do this now; nothing was changed"
        raise ArchiveError(f"{name}: {meaning} ({said})") from error


def row_dictionary(row: Any) -> dict[str, Any]:
    """A row as a dictionary by column name."""
    return dict(row._mapping)  # noqa: SLF001  (its public name)

"""The database of an archive: open it, migrate it to the newest revision, and translate its errors into sentences.

Covers SQLite files and PostgreSQL. A write transaction takes its lock when it begins (BEGIN IMMEDIATE; an advisory lock
on PostgreSQL), so that reading first and then inserting is safe: a transaction that requests the lock only when it
writes fails with "database is locked" under several writers. As write transactions never run concurrently, nothing has
to be retried; waiting for the lock has a time limit.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Iterator

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, column, create_engine, event, inspect, make_url, select, table
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from experiments.core.masking import mask_secrets
from store import readonly
from store.errors import ArchiveError
from store.ledger import PAGE, Ledger, skipped_frames

ARCHIVE = "sqlite:///outputs/archive.db"
"""URL of the archive where none is given."""

VERSION_TABLE = "twofold_version"
"""A name of our own, to distinguish an archive from the tables of MLflow."""

_PATIENCE = 30
"""Seconds to wait for another process to finish writing."""

_SHORT_PATIENCE = 5
"""Seconds to wait for readers before moving commits from SQLite's log into the file."""

_IDLE = 60
"""Seconds after which PostgreSQL ends a writer that is stuck in a transaction, so that the others can go on."""

_LOCK = 0x7477666C
"""Number of the advisory lock that stands for "writing" on PostgreSQL: "twfl"."""

_REACHING = {
    "client_encoding": "utf8",
    "connect_timeout": 10,
    # A network that drops packets looks like a server that is still working.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
"""Options of a PostgreSQL connection, unless the URL sets them."""

_MIGRATIONS = Path(__file__).parent / "migrations"


def sqlite_url(file: Path | str) -> str:
    """Return the URL of a SQLite file, whatever characters its path contains."""
    return URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)


def default_blob_folder(archive: str) -> Path:
    """Return the default folder of blobs of an archive: next to its file."""
    file = sqlite_file(archive)
    return file.parent / "blobs" if file else Path("outputs/blobs")


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite database, or None for any other database or a URL that cannot be parsed."""
    try:
        name = make_url(url).database if url.startswith("sqlite") else None
    except (ArgumentError, ValueError):
        return None
    return Path(name) if name and name != ":memory:" else None


class Database:
    """An engine whose database has the newest revision of the tables."""

    def __init__(self, url: str, *, create: bool) -> None:
        self.url = _parse_url(url)
        self._hint = _QUESTION_MARK if "?" in url else ""
        self._leaving = ExitStack()
        self._unwritable: Path | None = None
        """The database file, if this process may not write it."""
        self._engine = self._open_engine(create=create)
        try:
            self._migrate_to_head(create=create)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The URL without its password, to be shown."""
        return mask_secrets(self.url.render_as_string(hide_password=True))

    @property
    def _address(self) -> str:
        """The URL with its password, which is masked in the messages of a driver."""
        return self.url.render_as_string(hide_password=False)

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a SQLite file; otherwise it is on a PostgreSQL server."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def file(self) -> Path | None:
        """The file of the database. None for a server."""
        return Path(str(self.url.database)) if self.is_sqlite else None

    def flush_log(self) -> bool:
        """Move SQLite's log into the database file, where damage to the log cannot lose it.

        Returns whether all of it was moved: a concurrent reader may keep a part in the log. A server does this by
        itself.
        """
        if not self.is_sqlite or self._unwritable is not None:
            return True
        with _translate_errors(self.name, self._address):
            # Use a raw connection, as this must not run in a transaction.
            pooled = self._engine.raw_connection()
            try:
                return _empty_log(pooled.cursor())
            finally:
                pooled.close()

    @contextmanager
    def read_transaction(self) -> Iterator[Connection]:
        """Yield the connection of a transaction that sees one state of the database."""
        with _translate_errors(self.name, self._address), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def write_transaction(self) -> Iterator[Connection]:
        """Yield the connection of a transaction that has the write lock from its beginning."""
        engine = self._engine.execution_options(writing=True)
        with _translate_errors(self.name, self._address), engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close all connections, and delete the temporary copy if one was made."""
        self._engine.dispose()
        self._leaving.close()

    def _open_engine(self, *, create: bool) -> Engine:
        if self.is_sqlite and not create:
            _existing_file(self.url, self._hint)
        if create or not self.is_sqlite or readonly.is_writable(_existing_file(self.url)):
            return _engine(self.url, create=create)
        self._unwritable = _existing_file(self.url)
        return _read_only_engine(self.url, self._leaving.enter_context(readonly.sqlite_address(self._unwritable)))

    def _migrate_to_head(self, *, create: bool) -> None:
        scripts = ScriptDirectory(str(_MIGRATIONS))
        with self.read_transaction() as connection:
            revision = self._revision(connection, scripts)
            encoding = "UTF8" if self.is_sqlite else connection.exec_driver_sql("SHOW server_encoding").scalar()
        head = scripts.get_current_head()
        if revision == head:
            return
        if revision is None and not create:
            raise ArchiveError(f"there is no archive in {self.name}; a run makes one, or name another with --archive")
        if revision is None:
            self._refuse_emptied_file()
        if self._unwritable is not None and revision is not None:
            # Leave the file unchanged, and migrate a temporary copy.
            copy = self._leaving.enter_context(readonly.temporary_copy(self._unwritable))
            self._engine.dispose()
            self._engine = _sqlite_engine(self.url.set(database=str(copy)), create=False)
        if encoding != "UTF8":
            raise ArchiveError(f"{self.name} is encoded in {encoding}, which cannot hold every text: make one in UTF8")
        try:
            with self.write_transaction() as connection:
                # Check again: another process may have migrated while this one waited for the lock.
                self._revision(connection, scripts)
                migrate(connection)
        except ArchiveError as error:
            if _sqlstate(error.__cause__) != _NOT_ALLOWED:
                raise
            found = f"has revision {revision!r}" if revision else "holds no archive yet"
            raise ArchiveError(
                f"{self.name} {found}, this version needs {head!r}, and this user may not make tables: an "
                "administrator runs `python -m store grant` (store/README.md, PostgreSQL), then try again"
            ) from error.__cause__

    def _refuse_emptied_file(self) -> None:
        """Raise ArchiveError for a file without tables to which something was committed.

        Such a file may be new, or it is what remains after SQLite's log was damaged.
        """
        if self.file is None:
            return
        ledger, log = Ledger(self.file), self.file.with_name(f"{self.file.name}-wal")
        lost = len(ledger.missing_commits(frozenset()))
        if lost or skipped_frames(log)[1]:
            raise ArchiveError(
                f"{self.name} is empty, though {lost or 'some'} records and sweeps were committed to it: its log "
                f"({log.name}) is damaged or gone. Bring the file back from a copy; to begin anew instead, move it and "
                "the files beside it away"
            )

    def _revision(self, connection: Connection, scripts: ScriptDirectory) -> str | None:
        """Return the database's revision, or None for an empty database.

        Raises ArchiveError if it is not an archive, or has a revision that this version does not know.
        """
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
    """Migrate the database to a revision, within the open transaction."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ArchiveError(
            f"{mask_secrets(url, url)!r} is not a database URL; one looks like sqlite:///outputs/archive.db, or "
            "postgresql+psycopg://user@host/database"
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise ArchiveError(f"{parsed.get_backend_name()} is not a database that we know; use sqlite or postgresql")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ArchiveError("an archive in memory keeps nothing; name a file: sqlite:///outputs/archive.db")
    if parsed.get_backend_name() == "postgresql" and "@" in f"{parsed.host}{parsed.database}":
        # Showing the parsed URL would reveal the rest of the password.
        raise ArchiveError("the archive's URL has an @ too many: in a password it is written %40, and a / %2F")
    return parsed


def _engine(url: URL, *, create: bool) -> Engine:
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, create=create)
    reaching = {name: value for name, value in _REACHING.items() if name not in url.query}
    try:
        # A connection that the server has closed is detected before use, and replaced.
        engine = create_engine(url, connect_args=reaching, pool_pre_ping=True)
    except (ArgumentError, ModuleNotFoundError) as error:
        safe_url = mask_secrets(url.render_as_string())
        raise ArchiveError(f"{safe_url} cannot be opened: {error}; install its driver") from error
    event.listen(engine, "connect", _set_up_postgresql)
    event.listen(engine, "begin", _begin_postgresql)
    return engine


_QUESTION_MARK = "; what follows the ? is no part of the path: a ? in a path is written %3F"


def _existing_file(url: URL, hint: str = "") -> Path:
    file = Path(str(url.database))
    if not file.is_file():
        raise ArchiveError(f"there is no archive at {file}; a run makes one, or name another with --archive{hint}")
    return file


def _sqlite_engine(url: URL, *, create: bool) -> Engine:
    file = Path(str(url.database)) if create else _existing_file(url)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArchiveError(f"the folder of {file} cannot be made: {error.strerror}") from error
    try:
        engine = create_engine(url)
    except (ArgumentError, ModuleNotFoundError) as error:
        raise ArchiveError(
            f"{mask_secrets(url.render_as_string())} cannot be opened: {error}; install its driver"
        ) from error
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _read_only_engine(url: URL, address: str) -> Engine:
    """Return an engine for a file that may not be written."""
    engine = create_engine(url, creator=lambda: sqlite3.connect(address, uri=True, isolation_level=None))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # Otherwise Python's driver begins transactions by itself, at other moments.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {_PATIENCE * 1000}")
    # With larger pages a record takes fewer of them. This has an effect only while the file is empty.
    connection.execute(f"PRAGMA page_size = {PAGE}")
    _switch_to_write_ahead(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _empty_log(cursor: Any) -> bool:
    cursor.execute(f"PRAGMA busy_timeout = {_SHORT_PATIENCE * 1000}")
    try:
        for how in ("TRUNCATE", "PASSIVE"):
            busy, frames, brought = cursor.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
            if not busy and frames == brought:
                return True
        return False
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {_PATIENCE * 1000}")


def _switch_to_write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait when several processes do this on a new file at once."""
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


def _set_up_postgresql(connection: Any, _: object) -> None:
    with connection.cursor() as cursor:
        # A writer that has waited for the lock must see what the previous writer committed.
        cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(f"SET lock_timeout = '{_PATIENCE * 1000:.0f}ms'")
        # A run deletes what it has added, so a commit has to mean that the data is on disk.
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
    connection.commit()


def _begin_postgresql(connection: Connection) -> None:
    if connection.get_execution_options().get("writing"):
        idle = f"set_config('idle_in_transaction_session_timeout', '{_IDLE}s', true)"
        connection.exec_driver_sql(f"SELECT {idle}, pg_advisory_xact_lock({_LOCK})")
    else:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


_FULL = "the disk is full: free space, then add again"
_BUSY = f"another process has been writing for more than {_PATIENCE} s: wait for it, then add again"
_DAMAGED = "it is damaged: bring it back from a copy, or add bundles and what sweeps left in outputs to a new one"
_READ_ONLY = "it may not be written: look at who may write there"
_AWAY = "it cannot be reached: start it, or mend the URL, then try again"
_KEEPS = "it keeps what it has: evidence is never changed"
_LOGIN = "it does not let this user in: give user and password in the URL, or the password in ~/.pgpass"
_NO_DATABASE = "there is no such database: an administrator makes it with createdb"

_SENTENCES = {
    "disk is full": _FULL,
    "disk i/o error": "the disk refuses to be read or written: mend it, then add again",
    "is locked": _BUSY,
    "not a database": "it is not a database: name another, or bring the archive back from a copy",
    "malformed": _DAMAGED,
    "decode to utf-8": "it is damaged: `python -m store check` names what does not match",
    "unable to open": "it cannot be opened: look at the path and at who may write there",
    "readonly": _READ_ONLY,
    "append-only": _KEEPS,
    # PostgreSQL returns no SQLSTATE if the connection fails.
    "authentication failed": _LOGIN,
    "no password supplied": _LOGIN,
    "no pg_hba.conf entry": _LOGIN,
    'role "': _LOGIN,
    "does not exist": _NO_DATABASE,
    "invalid connection option": "the URL has an option that the driver does not know: take it out",
    "too many clients": "it has as many connections as it allows: wait, then add again",
    "connection slots": "it has as many connections as it allows: wait, then add again",
    "connection": _AWAY,
    "resolve host": _AWAY,
}
"""Part of a database's error message -> what it means here. The first match counts."""

_NOT_ALLOWED = "42501"

_CODES = {
    _NOT_ALLOWED: "this user may not do this: see who may do what in store/README.md, PostgreSQL",
    "25006": _READ_ONLY,
    "53100": _FULL,
    "55P03": _BUSY,
    "25P03": f"this process had stopped for more than {_IDLE} s: add again",
    "57P": _AWAY,
    "08": _AWAY,
    "XX": _DAMAGED,
}
"""Beginning of a SQLSTATE of PostgreSQL -> what it means here. Its messages may be in any language."""


@contextmanager
def _translate_errors(name: str, address: str) -> Iterator[None]:
    try:
        yield
    except PoolTimeoutError as error:
        raise ArchiveError(f"{name}: all connections of this process are at work: try again ({error})") from error
    except (DBAPIError, sqlite3.Error) as error:
        original = getattr(error, "orig", None) or error
        message = getattr(getattr(original, "diag", None), "message_primary", None) or str(original)
        message = mask_secrets(" ".join(message.split()), address)
        code = _sqlstate(error) or "none"
        known = [sentence for start, sentence in _CODES.items() if code.startswith(start)]
        known += [sentence for words, sentence in _SENTENCES.items() if words in message.lower()]
        meaning = known[0] if known else "the database cannot do this now; nothing was changed"
        raise ArchiveError(f"{name}: {meaning} ({message})") from error


def _sqlstate(error: BaseException | None) -> str | None:
    """Return the SQLSTATE that PostgreSQL reported, or None."""
    code = getattr(getattr(error, "orig", None), "sqlstate", None)
    return None if code is None else str(code)


def storable_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of an index row with NUL escaped, as text on PostgreSQL cannot hold NUL.

    The text of a record is JSON, in which NUL is already escaped.
    """
    return {name: value.replace("\0", "\\x00") if isinstance(value, str) else value for name, value in values.items()}


def row_dictionary(row: Any) -> dict[str, Any]:
    """Return a row as a dictionary by column name."""
    return dict(row._mapping)  # noqa: SLF001  (its public name)

"""The database under the archive: opened, brought to the newest revision, and its errors said in sentences.

Covers SQLite files and PostgreSQL. A writing transaction takes its lock when it begins (BEGIN IMMEDIATE; an
advisory lock on PostgreSQL), so that looking first and inserting then is safe: a transaction that only asks
for the lock when it writes fails with "database is locked" under several writers. Since nothing runs beside it,
there is nothing to try again either; waiting for the lock has an end.
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

from experiments.core.masking import masked
from store import readonly
from store.errors import ArchiveError
from store.ledger import PAGE, Ledger, skipped

ARCHIVE = "sqlite:///outputs/archive.db"
"""Where it is unless somebody says otherwise."""

VERSION_TABLE = "twofold_version"
"""Ours, so that an archive and MLflow's tables are told apart."""

_PATIENCE = 30
"""Seconds to wait for another process that is writing."""

_SHORT_PATIENCE = 5
"""Seconds to wait for readers until what was committed can go from SQLite's log into the file."""

_IDLE = 60
"""Seconds after which PostgreSQL ends a writer that has stopped in the middle, so that the others go on."""

_LOCK = 0x7477666C
"""Number of the advisory lock that stands for "writing" on PostgreSQL: "twfl"."""

_REACHING = {
    "client_encoding": "utf8",
    "connect_timeout": 10,
    # A network that swallows packets looks like a server that thinks.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
"""How PostgreSQL is connected to, where the URL says nothing else."""

_MIGRATIONS = Path(__file__).parent / "migrations"


def sqlite_url(file: Path | str) -> str:
    """The address of a SQLite file, whatever characters are in its path."""
    return URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)


def blobs_beside(archive: str) -> Path:
    """The folder of blobs beside an archive, where no other was named."""
    file = sqlite_file(archive)
    return file.parent / "blobs" if file else Path("outputs/blobs")


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite database. None for any other, or for an address that cannot be read."""
    try:
        name = make_url(url).database if url.startswith("sqlite") else None
    except (ArgumentError, ValueError):
        return None
    return Path(name) if name and name != ":memory:" else None


class Database:
    """An engine whose database has the newest tables."""

    def __init__(self, url: str, *, create: bool) -> None:
        self.url = _readable(url)
        self._hint = _QUESTION_MARK if "?" in url else ""
        self._leaving = ExitStack()
        self._unwritable: Path | None = None
        """The file, where this process may not write it."""
        self._engine = self._opened(create=create)
        try:
            self._bring_to_newest(create=create)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The URL as it may be shown: without a password."""
        return masked(self.url.render_as_string(hide_password=True))

    @property
    def _address(self) -> str:
        """With its password, to be looked for in what a driver says."""
        return self.url.render_as_string(hide_password=False)

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def file(self) -> Path | None:
        """The database as a file. None for a server."""
        return Path(str(self.url.database)) if self.is_sqlite else None

    def settle(self) -> bool:
        """Bring what SQLite has in its log into the file itself, where no damage to the log loses it, and say whether
        all of it is there: whoever reads just now may keep a part in the log. A server does that by itself.
        """
        if not self.is_sqlite or self._unwritable is not None:
            return True
        with _in_sentences(self.name, self._address):
            # Not of the engine's ways, since this is no transaction.
            pooled = self._engine.raw_connection()
            try:
                return _emptied(pooled.cursor())
            finally:
                pooled.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database."""
        with _in_sentences(self.name, self._address), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that has the write lock from its beginning."""
        engine = self._engine.execution_options(writing=True)
        with _in_sentences(self.name, self._address), engine.begin() as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose()
        self._leaving.close()

    def _opened(self, *, create: bool) -> Engine:
        if self.is_sqlite and not create:
            _there(self.url, self._hint)
        if create or not self.is_sqlite or readonly.may_be_written(_there(self.url)):
            return _engine(self.url, create=create)
        self._unwritable = _there(self.url)
        return _read_only(self.url, self._leaving.enter_context(readonly.address(self._unwritable)))

    def _bring_to_newest(self, *, create: bool) -> None:
        scripts = ScriptDirectory(str(_MIGRATIONS))
        with self.reading() as connection:
            revision = self._revision(connection, scripts)
            encoding = "UTF8" if self.is_sqlite else connection.exec_driver_sql("SHOW server_encoding").scalar()
        head = scripts.get_current_head()
        if revision == head:
            return
        if revision is None and not create:
            raise ArchiveError(f"there is no archive in {self.name}; a run makes one, or name another with --archive")
        if revision is None:
            self._refuse_what_was_emptied()
        if self._unwritable is not None and revision is not None:
            # It stays as it is, and a copy is brought to the revision that is read here.
            copy = self._leaving.enter_context(readonly.copied(self._unwritable))
            self._engine.dispose()
            self._engine = _sqlite(self.url.set(database=str(copy)), create=False)
        if encoding != "UTF8":
            raise ArchiveError(f"{self.name} is encoded in {encoding}, which cannot hold every text: make one in UTF8")
        try:
            with self.writing() as connection:
                # Asked again: another process may have migrated while this one waited for the lock.
                self._revision(connection, scripts)
                migrate(connection)
        except ArchiveError as error:
            if _code(error.__cause__) != _NOT_ALLOWED:
                raise
            found = f"has revision {revision!r}" if revision else "holds no archive yet"
            raise ArchiveError(
                f"{self.name} {found}, this version needs {head!r}, and this user may not make tables: an "
                "administrator runs `python -m store grant` (store/README.md, PostgreSQL), then try again"
            ) from error.__cause__

    def _refuse_what_was_emptied(self) -> None:
        """A file without tables may be a new one, or all that is left where SQLite's log was damaged."""
        if self.file is None:
            return
        ledger, log = Ledger(self.file), self.file.with_name(f"{self.file.name}-wal")
        lost = len(ledger.missing(frozenset()))
        if lost or skipped(log)[1]:
            raise ArchiveError(
                f"{self.name} is empty, though {lost or 'some'} records and sweeps were committed to it: its log "
                f"({log.name}) is damaged or gone. Bring the file back from a copy; to begin anew instead, move it and "
                "the files beside it away"
            )

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
    except (ArgumentError, ValueError):
        raise ArchiveError(
            f"{masked(url, url)!r} is not a database URL; one looks like sqlite:///outputs/archive.db, or "
            "postgresql+psycopg://user@host/database"
        ) from None
    if made.drivername in ("postgresql", "postgres"):
        made = made.set(drivername="postgresql+psycopg")
    if made.get_backend_name() not in ("sqlite", "postgresql"):
        raise ArchiveError(f"{made.get_backend_name()} is not a database that we know; use sqlite or postgresql")
    if made.get_backend_name() == "sqlite" and made.database in (None, "", ":memory:"):
        raise ArchiveError("an archive in memory keeps nothing; name a file: sqlite:///outputs/archive.db")
    if made.get_backend_name() == "postgresql" and "@" in f"{made.host}{made.database}":
        # Shown as it was read, it would show the rest of the password.
        raise ArchiveError("the archive's URL has an @ too many: in a password it is written %40, and a / %2F")
    return made


def _engine(url: URL, *, create: bool) -> Engine:
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, create=create)
    reaching = {name: value for name, value in _REACHING.items() if name not in url.query}
    try:
        # A connection that the server has ended since is noticed before it is used, and made anew.
        engine = create_engine(url, connect_args=reaching, pool_pre_ping=True)
    except (ArgumentError, ModuleNotFoundError) as error:
        shown = masked(url.render_as_string())
        raise ArchiveError(f"{shown} cannot be opened: {error}; install its driver") from error
    event.listen(engine, "connect", _set_up_postgresql)
    event.listen(engine, "begin", _begin_postgresql)
    return engine


_QUESTION_MARK = "; what follows the ? is no part of the path: a ? in a path is written %3F"


def _there(url: URL, hint: str = "") -> Path:
    file = Path(str(url.database))
    if not file.is_file():
        raise ArchiveError(f"there is no archive at {file}; a run makes one, or name another with --archive{hint}")
    return file


def _sqlite(url: URL, *, create: bool) -> Engine:
    file = Path(str(url.database)) if create else _there(url)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArchiveError(f"the folder of {file} cannot be made: {error.strerror}") from error
    try:
        engine = create_engine(url)
    except (ArgumentError, ModuleNotFoundError) as error:
        raise ArchiveError(f"{masked(url.render_as_string())} cannot be opened: {error}; install its driver") from error
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _read_only(url: URL, address: str) -> Engine:
    """An engine for a file that may not be written."""
    engine = create_engine(url, creator=lambda: sqlite3.connect(address, uri=True, isolation_level=None))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # Python's driver would begin transactions by itself, at other moments than we do.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {_PATIENCE * 1000}")
    # Larger pages keep a record on fewer of them; it counts only while the file is empty.
    connection.execute(f"PRAGMA page_size = {PAGE}")
    _switch_to_write_ahead(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _emptied(cursor: Any) -> bool:
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


def _set_up_postgresql(connection: Any, _: object) -> None:
    with connection.cursor() as cursor:
        # Whoever waits for the lock must then see what the one before committed.
        cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(f"SET lock_timeout = '{_PATIENCE * 1000:.0f}ms'")
        # The run deletes what it has added, so a commit has to mean that it is on disk.
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
    # Whoever cannot connect to PostgreSQL gets no code.
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
"""What a database says, and what that means here. The first that matches counts."""

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
"""What the codes of PostgreSQL begin with, and what that means here: its words may be in any language."""


@contextmanager
def _in_sentences(name: str, address: str) -> Iterator[None]:
    try:
        yield
    except PoolTimeoutError as error:
        raise ArchiveError(f"{name}: all connections of this process are at work: try again ({error})") from error
    except (DBAPIError, sqlite3.Error) as error:
        original = getattr(error, "orig", None) or error
        said = getattr(getattr(original, "diag", None), "message_primary", None) or str(original)
        said = masked(" ".join(said.split()), address)
        code = _code(error) or "none"
        known = [sentence for start, sentence in _CODES.items() if code.startswith(start)]
        known += [sentence for words, sentence in _SENTENCES.items() if words in said.lower()]
        meaning = known[0] if known else "the database cannot do this now; nothing was changed"
        raise ArchiveError(f"{name}: {meaning} ({said})") from error


def _code(error: BaseException | None) -> str | None:
    """The SQLSTATE that PostgreSQL gave, if it gave one."""
    code = getattr(getattr(error, "orig", None), "sqlstate", None)
    return None if code is None else str(code)


def storable(values: dict[str, Any]) -> dict[str, Any]:
    """Columns of an index row, as every database can hold them: text on PostgreSQL has no NUL.

    What a record itself holds is JSON, where it is escaped already.
    """
    return {name: value.replace("\0", "\\x00") if isinstance(value, str) else value for name, value in values.items()}


def row_dictionary(row: Any) -> dict[str, Any]:
    """A row as a dictionary by column name."""
    return dict(row._mapping)  # noqa: SLF001  (its public name)

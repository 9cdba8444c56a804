"""MLflow's store as a SQLite file: created under another name and renamed when complete, moved aside if unusable.

MLflow makes its tables in sixty steps that take seconds, and a file that is interrupted between two of them never
migrates again. So a file with the store's name is always complete. As the store is only a view, an unusable one (of
another version, damaged, or left by an earlier version of ours) is kept under another name and made again from the
records.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from store.database import VERSION_TABLE, sqlite_url
from store.errors import ArchiveError

TRACKING = "sqlite:///outputs/mlflow.db"
ARTIFACTS = "outputs/artifacts"
"""Defaults: where the store is, and where runs keep their files."""

_BESIDE = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps for a database."""

_MLFLOW = "alembic_version"
"""The table in which MLflow keeps its revision."""


@contextlib.contextmanager
def usable_address(file: Path) -> Iterator[str]:
    """Yield an address of the file that MLflow can use, valid until the block ends.

    MLflow creates the folder of an address without decoding it, so a path that has to be encoded would leave a second
    folder next to the first. Such a path is reached through a link instead.
    """
    name = str(file)
    if quote(name) == name:
        yield sqlite_url(file)
        return
    with tempfile.TemporaryDirectory(prefix="twofold-") as folder:
        link = Path(folder) / "mlflow.db"
        link.symlink_to(file.absolute())
        yield sqlite_url(link)


def is_impossible(uri: str) -> bool:
    """Return whether mlflow cannot use any database from the folder that it is installed in.

    It passes the path of that folder to a configuration parser, which treats % as special. Servers are not affected.
    Imports nothing.
    """
    found = find_spec("mlflow")
    return not uri.startswith("http") and found is not None and "%" in str(found.origin)


def create_store(file: Path, fill: Callable[[str], object]) -> None:
    """Create the file by calling `fill` with the address of an empty store. An interruption leaves nothing behind."""
    beside = file.with_name(f"{file.name}.making")
    _remove_files(beside)
    try:
        enable_write_ahead_log(beside)
        with usable_address(beside) as uri:
            fill(uri)
        with contextlib.closing(sqlite3.connect(beside)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        # A log of an earlier file of this name would be taken for this one's.
        _remove_files(file)
        beside.replace(file)
    finally:
        _remove_files(beside)


def move_aside(file: Path) -> Path:
    """Rename the file, and what SQLite keeps next to it, to a free name. Return the new path."""
    number = 1
    while file.with_name(f"{file.name}.unusable-{number}").exists():
        number += 1
    aside = file.with_name(f"{file.name}.unusable-{number}")
    for end in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            file.with_name(file.name + end).rename(aside.with_name(aside.name + end))
    return aside


def enable_write_ahead_log(file: Path) -> None:
    """Enable SQLite's write-ahead log, a property of the file, which halves the time of a run."""
    with contextlib.closing(sqlite3.connect(file, timeout=10)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def has_store(file: Path) -> bool:
    """Return whether there is a store, or the remains of one; an empty file is not a store."""
    return file.is_file() and file.stat().st_size > 0


def fault(file: Path) -> str:
    """Return why the store in this file cannot be used and has to be made again. Empty if it can be used.

    Raise ArchiveError if the file holds something other than our view, which must not be changed; OSError or
    sqlite3.OperationalError if it cannot be examined now.
    """
    # Opened here for the reason, as Python's driver always says "unable to open".
    file.open("rb").close()
    try:
        with contextlib.closing(sqlite3.connect(file, timeout=10)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            found = _revision(connection, tables)
            others = _foreign_experiments(connection, tables)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        return f"it is damaged ({error})"
    if VERSION_TABLE in tables or (tables and not tables & {_MLFLOW, "experiments", "runs"}):
        what = "an archive" if VERSION_TABLE in tables else f"something else (tables {', '.join(sorted(tables)[:4])})"
        raise ArchiveError(f"{file} holds {what}: name another file with --tracking")
    why = _fault_reason(found, damage, tables)
    if why and others:
        raise ArchiveError(
            f"{file} cannot be used: {why}; it has runs that are not ours ({', '.join(others[:3])}), so it is let be: "
            "name another file with --tracking, or bring it to this version with `mlflow db upgrade`"
        )
    return why


def _fault_reason(found: str, damage: str, tables: set[str]) -> str:
    if damage != "ok":
        return f"it is damaged ({damage})"
    if not tables:
        return "it has no tables"
    if not found:
        return "whoever made it was interrupted"
    heads = _newest_revisions()
    if found in heads or not heads:
        return ""
    # A file of another version and one that was interrupted both have another revision.
    return f"it has revision {found} and this version of MLflow needs {' or '.join(heads)}"


def _revision(connection: sqlite3.Connection, tables: set[str]) -> str:
    rows = connection.execute("SELECT version_num FROM alembic_version").fetchall() if _MLFLOW in tables else []
    return " ".join(str(row[0]) for row in rows)


def _foreign_experiments(connection: sqlite3.Connection, tables: set[str]) -> list[str]:
    """Return the names of experiments that are not ours."""
    query = "SELECT name FROM experiments WHERE name NOT LIKE 'twofold%' AND name != 'Default'"
    return [str(row[0]) for row in connection.execute(query)] if "experiments" in tables else []


def _newest_revisions() -> list[str]:
    """Return the newest revisions of MLflow's store, read from its files, as importing them takes seconds.

    Empty if the files have an unknown form; then MLflow itself reports what it cannot use.
    """
    package = find_spec("mlflow")
    folders = (package.submodule_search_locations or []) if package else []
    revisions, before = set(), set()
    for path in (path for one in folders for path in Path(one, "store", "db_migrations", "versions").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        revisions.update(re.findall(r"^revision(?:: \w+)? = ['\"](\w+)['\"]", text, re.MULTILINE))
        before.update(re.findall(r"^down_revision(?:: [^=]+)? = ['\"](\w+)['\"]", text, re.MULTILINE))
    return sorted(revisions - before)


def _remove_files(file: Path) -> None:
    for end in _BESIDE:
        file.with_name(file.name + end).unlink(missing_ok=True)

"""MLflow's store where it is a SQLite file: made beside and renamed when whole, moved aside if it cannot be used.

MLflow makes its tables in sixty steps that take seconds, and what is interrupted between two of them never migrates
again. So a file that has its name is whole. As it is only a view, one that is not (of another version, damaged, left
by an earlier version of ours) is kept under another name and made again from the records.
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
"""Where it is, and where runs keep their files, unless somebody says otherwise."""

_BESIDE = ("", "-wal", "-shm", "-journal")
"""What SQLite keeps beside a file, by the end of its name."""

_MLFLOW = "alembic_version"
"""The table in which MLflow notes its revision."""


@contextlib.contextmanager
def spelled(file: Path) -> Iterator[str]:
    """An address of the file as long as it is used.

    MLflow makes the folder of an address without decoding it, so a path that has to be encoded would leave a second
    folder beside the first: it gets a link instead.
    """
    name = str(file)
    if quote(name) == name:
        yield sqlite_url(file)
        return
    with tempfile.TemporaryDirectory(prefix="twofold-") as folder:
        link = Path(folder) / "mlflow.db"
        link.symlink_to(file.absolute())
        yield sqlite_url(link)


def impossible(uri: str) -> bool:
    """Whether mlflow can use no database from where it lies, whatever is done: it hands that folder to a reader of
    settings, to which % is no letter. Servers are no matter of it. Imports nothing.
    """
    found = find_spec("mlflow")
    return not uri.startswith("http") and found is not None and "%" in str(found.origin)


def make_whole(file: Path, fill: Callable[[str], object]) -> None:
    """Make the file with what `fill` does to the store at an address. Whoever is interrupted leaves nothing."""
    beside = file.with_name(f"{file.name}.making")
    _remove(beside)
    try:
        write_ahead(beside)
        with spelled(beside) as uri:
            fill(uri)
        with contextlib.closing(sqlite3.connect(beside)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        # A log of an earlier file of this name would be taken for this one's.
        _remove(file)
        beside.replace(file)
    finally:
        _remove(beside)


def move_aside(file: Path) -> Path:
    """Give the file, and what SQLite keeps beside it, a name that is free. Gives that name."""
    number = 1
    while file.with_name(f"{file.name}.unusable-{number}").exists():
        number += 1
    aside = file.with_name(f"{file.name}.unusable-{number}")
    for end in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            file.with_name(file.name + end).rename(aside.with_name(aside.name + end))
    return aside


def write_ahead(file: Path) -> None:
    """SQLite's write-ahead log halves the time of a run. It is a property of the file."""
    with contextlib.closing(sqlite3.connect(file, timeout=10)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def is_there(file: Path) -> bool:
    """Whether there is a store, or what is left of one; an empty file is none."""
    return file.is_file() and file.stat().st_size > 0


def fault(file: Path) -> str:
    """Why the store in this file cannot be used and is to be made again. Empty if it can be.

    Raises ArchiveError if it holds something else than a view of ours, which is not to be touched; OSError and
    sqlite3.OperationalError if it cannot be looked at now.
    """
    # Python's driver says "unable to open" whatever the reason is.
    file.open("rb").close()
    try:
        with contextlib.closing(sqlite3.connect(file, timeout=10)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            found = _revision(connection, tables)
            others = _others(connection, tables)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        return f"it is damaged ({error})"
    if VERSION_TABLE in tables or (tables and not tables & {_MLFLOW, "experiments", "runs"}):
        what = "an archive" if VERSION_TABLE in tables else f"something else (tables {', '.join(sorted(tables)[:4])})"
        raise ArchiveError(f"{file} holds {what}: name another file with --tracking")
    why = _why(found, damage, tables)
    if why and others:
        raise ArchiveError(
            f"{file} cannot be used: {why}; it has runs that are not ours ({', '.join(others[:3])}), so it is let be: "
            "name another file with --tracking, or bring it to this version with `mlflow db upgrade`"
        )
    return why


def _why(found: str, damage: str, tables: set[str]) -> str:
    if damage != "ok":
        return f"it is damaged ({damage})"
    if not tables:
        return "it has no tables"
    if not found:
        return "whoever made it was interrupted"
    heads = _heads()
    if found in heads or not heads:
        return ""
    # Both a file of another version and one that was left half way have another revision.
    return f"it has revision {found} and this version of MLflow needs {' or '.join(heads)}"


def _revision(connection: sqlite3.Connection, tables: set[str]) -> str:
    rows = connection.execute("SELECT version_num FROM alembic_version").fetchall() if _MLFLOW in tables else []
    return " ".join(str(row[0]) for row in rows)


def _others(connection: sqlite3.Connection, tables: set[str]) -> list[str]:
    """Experiments that we have not made."""
    query = "SELECT name FROM experiments WHERE name NOT LIKE 'twofold%' AND name != 'Default'"
    return [str(row[0]) for row in connection.execute(query)] if "experiments" in tables else []


def _heads() -> list[str]:
    """The newest revision of MLflow's store, read from its files: to import them takes seconds. Empty if they are
    written in a way that is not known here; then MLflow itself says what it cannot use.
    """
    package = find_spec("mlflow")
    folders = (package.submodule_search_locations or []) if package else []
    revisions, before = set(), set()
    for path in (path for one in folders for path in Path(one, "store", "db_migrations", "versions").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        revisions.update(re.findall(r"^revision(?:: \w+)? = ['\"](\w+)['\"]", text, re.MULTILINE))
        before.update(re.findall(r"^down_revision(?:: [^=]+)? = ['\"](\w+)['\"]", text, re.MULTILINE))
    return sorted(revisions - before)


def _remove(file: Path) -> None:
    for end in _BESIDE:
        file.with_name(file.name + end).unlink(missing_ok=True)

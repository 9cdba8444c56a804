"""A PostgreSQL server of the tests' own: started from the system's packages, ended by its pid, removed.

``cluster`` is one server for each process of pytest, without a network and without fsync; ``database`` is a
fresh database on it for each test. Both are skipped, or fail where services must be there, if there is no
PostgreSQL.
"""

from __future__ import annotations

import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator

import psycopg
import pytest
from conftest import missing
from psycopg import sql

SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "timezone": "UTC",
}
HBA = """local all secretive scram-sha-256
local all all trust
"""
"""Everybody may come in but one, of whom a password is asked."""


def programs() -> Path | None:
    """The folder of the newest initdb and postgres, which Debian keeps out of PATH."""
    folders = sorted(
        Path("/usr").glob("lib/postgresql/*/bin"),
        key=lambda path: int(re.sub(r"\D.*", "", path.parent.name) or 0),
        reverse=True,
    )
    for program in filter(None, [shutil.which("initdb")]):
        folders.append(Path(program).resolve().parent)
    return next((path for path in folders if (path / "initdb").exists() and (path / "postgres").exists()), None)


def unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root, so root has to be somebody else."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            somebody = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": somebody.pw_uid, "group": somebody.pw_gid, "extra_groups": []}
    return missing("a user other than root, as whom PostgreSQL could run,")


class Cluster:
    """A server and its folder."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        self._binaries = binaries
        self._process: subprocess.Popen[bytes] | None = None
        self._somebody = unprivileged()
        self._names = (f"archive_{number}" for number in itertools.count(1))
        if self._somebody:
            os.chown(folder, self._somebody["user"], self._somebody["group"])
        folder.chmod(0o755)
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        made = subprocess.run(
            [str(binaries / "initdb"), "-D", str(self._data), *options], capture_output=True, **self._how()
        )
        assert made.returncode == 0, made.stderr.decode()
        (self._data / "pg_hba.conf").write_text(HBA)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _how(self) -> dict[str, Any]:
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(self.folder)}
        return {"cwd": self.folder, "env": environment, **self._somebody}

    def start(self) -> None:
        """Start, and wait until it answers."""
        settings = SETTINGS | {"unix_socket_directories": str(self.folder)}
        command = [str(self._binaries / "postgres"), "-D", str(self._data)]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        setpriv = shutil.which("setpriv")
        if setpriv is not None:
            # So that it ends with pytest, however that ends.
            command = [setpriv, "--pdeathsig", "INT", *command]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **self._how())
        patient_until = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.conninfo(), connect_timeout=5).close()
            except psycopg.OperationalError:
                said = (self.folder / "log").read_text()
                assert self._process.poll() is None, said
                assert time.monotonic() < patient_until, said
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: by SIGINT every connection is ended, by SIGQUIT at once and without tidying up."""
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)
        self._process = None

    @property
    def running(self) -> bool:
        return self._process is not None

    def conninfo(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"host={self.folder} user={user} dbname={database}"

    def execute(self, *statements: str) -> None:
        """As superuser, outside of any archive."""
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def make(self, options: str = "") -> Base:
        """A new, empty database."""
        name = next(self._names)
        self.execute(f"CREATE DATABASE {name} {options}")
        return Base(self, name)


class Base:
    """One database of a cluster."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def url(self, user: str = "postgres", *, driver: str = "postgresql+psycopg") -> str:
        return f"{driver}://{user}@/{self.name}?host={self.cluster.folder}"

    def connect(self, user: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.cluster.conninfo(self.name, user), autocommit=True, **options)

    def execute(self, *statements: str, user: str = "postgres", replica: bool = False) -> None:
        """What anybody can do who may connect; `replica` switches ordinary triggers off, as superusers can."""
        with self.connect(user) as connection:
            if replica:
                connection.execute("SET session_replication_role = replica")
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: str, user: str = "postgres") -> list[tuple[Any, ...]]:
        with self.connect(user) as connection:
            return connection.execute(query).fetchall()

    def counted(self, table: str) -> int:
        return int(self.rows(f"SELECT count(*) FROM {table}")[0][0])

    def cut(self) -> int:
        """End every other connection to it, as an administrator does; gives how many there were."""
        ended = self.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return len(ended)

    def drop(self) -> None:
        name = sql.Identifier(self.name).as_string()
        self.cluster.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One for each process of pytest: it costs about a second, and nothing has to be agreed upon."""
    binaries = programs()
    if binaries is None:
        missing("PostgreSQL (package postgresql)")
    # Short, since the path of a socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="twofold-pg-", dir="/tmp"))
    made = None
    try:
        made = Cluster(folder, binaries)
        made.start()
        yield made
    finally:
        if made is not None:
            made.stop()
        shutil.rmtree(folder)


@pytest.fixture
def database(cluster: Cluster) -> Iterator[Base]:
    if not cluster.running:
        cluster.start()
    made = cluster.make()
    yield made
    if not cluster.running:
        cluster.start()
    made.drop()

"""What all tests share: missing services are skipped visibly, and are failures where they must be there."""

from __future__ import annotations

import compileall
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import sqlalchemy
import torch
from mutations import Records

from experiments.core.canonical_json import parse
from store import bundles

PROJECT = Path(__file__).parents[1]
PUBLISHED = PROJECT / "store" / "published"


def pytest_configure(config: pytest.Config) -> None:
    """Compile once what hundreds of processes import out of copies of the project: a compiled file is one by its
    source's time and size, wherever it lies.
    """
    if not hasattr(config, "workerinput"):
        for name in ("experiments", "store", "reports"):
            compileall.compile_dir(PROJECT / name, quiet=2)


def pytest_report_header() -> str:
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, sqlalchemy {sqlalchemy.__version__}"


def missing(what: str) -> NoReturn:
    """Skip because a service or program is not here; fail where TWOFOLD_REQUIRE_SERVICES says it must be."""
    if os.environ.get("TWOFOLD_REQUIRE_SERVICES"):
        pytest.fail(f"{what} is missing, and TWOFOLD_REQUIRE_SERVICES says it must be here")
    pytest.skip(f"{what} is missing")


@pytest.fixture
def sqlite3_program() -> str:
    """Path of the sqlite3 command line."""
    return shutil.which("sqlite3") or missing("the program sqlite3")


@pytest.fixture(scope="session")
def published() -> Iterator[Records]:
    """Real evidence: what was published of the setting in which most cases were run."""
    with bundles.read_bundle(max(PUBLISHED.glob("*.zip"), key=lambda one: one.stat().st_size)) as found:
        machines = {one.observation.machine for one in found.records if one.observation}
        documents = {name: parse((found.fetch(name) or b"").decode()) for name in machines}
        yield Records(found.records, found.fetch, documents)

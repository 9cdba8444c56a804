"""Workers under another interpreter that has torch and nothing else: not even numpy."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest
import roots
import torch
from test_sweep import GOOD, project, rows, run

from experiments.core.canonical_json import parse
from experiments.core.record import Record

TELLING = GOOD.replace(
    "def loss(scores, temperature):\n",
    """def loss(scores, temperature):
    observe("has numpy", importlib.util.find_spec("numpy") is not None, measurement=True)
""",
).replace("import torch\n", "import importlib.util\n\nimport torch\n", 1)


def needed(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    """The distribution and what it cannot do without."""
    found[name] = importlib.metadata.distribution(name)
    for requirement in found[name].requires or ():
        other = re.match(r"[\w.-]+", requirement).group()
        if "extra ==" not in requirement and other not in found:
            try:
                needed(other, found)
            except importlib.metadata.PackageNotFoundError:
                continue  # Its marker names another system or Python.


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> str:
    """An interpreter whose only packages are torch and what torch requires."""
    folder = tmp_path_factory.mktemp("bare")
    packages, found = folder / "packages", {}
    packages.mkdir()
    needed("torch", found)
    for distribution in found.values():
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))
    # Without `site`, no package folder is on the path but this one.
    return roots.script(folder / "python", f'PYTHONPATH="{packages}" exec "{sys.executable}" -S "$@"')


def test_the_bare_interpreter_has_torch_and_nothing_else(bare):
    """Else the tests below would show nothing."""
    for module, status in [
        ("torch", 0),
        ("numpy", 1),
        ("hydra", 1),
        ("omegaconf", 1),
        ("sqlalchemy", 1),
        ("mlflow", 1),
    ]:
        ended = subprocess.run([bare, "-W", "ignore", "-c", f"import {module}"], capture_output=True, text=True)
        assert ended.returncode == status, (module, ended.stderr)


@pytest.fixture(scope="module", params=["fresh", pytest.param("forked", marks=pytest.mark.slow)])
def swept(request, bare, tmp_path_factory):
    """The same plan under this interpreter and under the bare one, into one archive."""
    root = project(tmp_path_factory.mktemp("interpreters"), telling=TELLING)
    passes = ["passes=[plain]"] if request.param == "fresh" else []
    settings = ("tracking=none", f"isolation={request.param}", *passes)
    ended = [
        run(root, *settings),
        run(root, *settings, f"environment.python={bare}", "environment.name=bare"),
    ]
    database = root / "outputs" / "archive.db"
    records = [Record.from_text(text) for (text,) in rows(database, "select text from records")]
    return ended, records, database


def of(records, environment):
    return {one.spec.question.digest(): one for one in records if one.spec.setting.environment == environment}


def test_a_sweep_under_a_bare_interpreter_shows_what_it_says(swept):
    ended, records, _ = swept
    for one in ended:
        assert one.returncode == 0, one.stdout + one.stderr
        assert " as expected, 0 not as expected, 0 cannot say" in one.stdout
    assert {one.outcome.kind for one in records} == {"finished"}


def test_records_tell_which_interpreter_ran(swept, bare):
    _, records, database = swept
    for name, python, has_numpy in (("default", "", True), ("bare", bare, False)):
        mine = of(records, name)
        assert len(mine) == len({one.spec.question.digest() for one in records})
        assert {one.spec.setting.interpreter for one in mine.values()} == {python}
        assert {value.value for one in mine.values() for value in one.observation.observed} == {has_numpy}
        for machine in {one.observation.machine for one in mine.values()}:
            ((text,),) = rows(database, f"select text from documents where digest = '{machine}'")
            assert parse(text)["torch"]["version"] == torch.__version__


def test_evidence_under_a_bare_interpreter_is_the_same(swept):
    _, records, _ = swept
    here, bare = of(records, "default"), of(records, "bare")
    assert set(here) == set(bare)
    assert {name: one.evidence_digest() for name, one in here.items()} == {
        name: one.evidence_digest() for name, one in bare.items()
    }

"""Imports run one way, and what a worker loads needs neither a new Python nor anything but torch."""

from __future__ import annotations

import ast
import builtins
import fnmatch
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

from experiments.core.rooms import PORTABLE, program_files

ROOT = Path(__file__).resolve().parents[1]

VIEW = ("experiments.core", "experiments.analysis", "experiments.scenario", "store", "reports")
PICTURE = {
    "experiments/__init__.py": (),
    "experiments/scenario.py": ("experiments.core",),
    "experiments/core/*": ("experiments.core",),
    "experiments/worker/*": ("experiments.core", "experiments.scenario", "experiments.worker", "torch"),
    "experiments/runner/*": ("experiments.core", "experiments.runner"),
    "experiments/bundle/*": ("experiments.core", "experiments.bundle"),
    "experiments/capsule/*": ("experiments.core", "experiments.bundle", "experiments.runner", "experiments.capsule"),
    "experiments/scenarios/*": ("experiments.scenario", "torch", "functorch"),
    "experiments/analysis/*": ("experiments.core", "experiments.analysis"),
    "experiments/planning/catalogue.py": ("experiments.core", "experiments.runner"),
    "experiments/planning/*": (
        *("experiments.core", "experiments.runner", "experiments.analysis", "experiments.planning"),
        *("hydra", "omegaconf", "sqlalchemy"),
    ),
    "experiments/snippet/run.py": ("experiments.core", "experiments.worker", "torch"),
    "experiments/snippet/*": (
        *("experiments.core", "experiments.runner", "experiments.scenario"),
        *("experiments.planning.catalogue", "experiments.snippet"),
    ),
    "experiments/app/install.py": (),
    "experiments/app/make.py": ("experiments.core",),
    "experiments/app/mlflow_process.py": (),
    "experiments/app/counter_replay.py": ("experiments", "store", "reports"),
    "experiments/app/*": ("experiments", "rich"),
    "experiments/__main__.py": ("experiments", "store", "reports", "hydra", "omegaconf"),
    "store/signing.py": ("experiments.core", "experiments.bundle", "store", "cryptography"),
    "store/ro_crate.py": ("experiments.core", "experiments.bundle", "store", "rocrate"),
    "store/*": ("experiments.core", "experiments.bundle", "store", "sqlalchemy", "alembic"),
    "reports/mlflow/tracking.py": (*VIEW, "mlflow", "sqlalchemy", "alembic"),
    "reports/mlflow/server.py": ("requests",),
    "reports/mlflow/*": (*VIEW, "sqlalchemy", "rich"),
    "reports/figures.py": ("experiments.analysis", "matplotlib"),
    "reports/pictures.py": (*VIEW, "matplotlib"),
    "reports/ci/junit.py": (*VIEW, "junitparser"),
    "reports/claims/*": (
        *("experiments.core", "experiments.analysis", "experiments.scenario"),
        *("reports.claims", "reports.markdown.elements"),
    ),
    "reports/*": VIEW,
}
"""What a file may import beside the standard library. The first pattern that matches counts; `*` crosses folders."""

NEWER = {
    "datetime": ("UTC",),
    "itertools": ("pairwise", "batched"),
    "typing": ("Self", "TypeAlias", "ParamSpec", "Concatenate", "TypeGuard", "Never", "assert_never", "Unpack"),
    "enum": ("StrEnum",),
    "hashlib": ("file_digest",),
    "contextlib": ("chdir", "aclosing"),
    "types": ("UnionType", "NoneType"),
    "tomllib": ("load", "loads"),
}
"""Names that Python 3.9 does not have, by module."""


def files() -> list[str]:
    paths = (path for top in ("experiments", "store", "reports") for path in (ROOT / top).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def portable() -> list[str]:
    """What runs on Python 3.9: by folder."""
    found = program_files(ROOT / "experiments", PORTABLE)
    return [path.relative_to(ROOT).as_posix() for path in found]


def source(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def imported(name: str, text: str) -> Iterator[str]:
    """Every module that the file of this name imports, anywhere in it, by its full name."""
    package = name.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (submodule(module, alias.name) for alias in node.names)


def submodule(module: str, name: str) -> str:
    """`module.name` if that is a module of ours; else `name` is something inside `module`."""
    path = ROOT.joinpath(*module.split("."), name)
    return f"{module}.{name}" if path.is_dir() or path.with_suffix(".py").is_file() else module


def trespasses(name: str, text: str) -> list[str]:
    """What the file imports and may not."""
    allowed = next((names for pattern, names in PICTURE.items() if fnmatch.fnmatch(name, pattern)), None)
    assert allowed is not None, f"{name} is not in the picture: say what it may import"
    return sorted(
        module
        for module in set(imported(name, text))
        if module.partition(".")[0] not in sys.stdlib_module_names
        and not any(module == one or module.startswith(one + ".") for one in allowed)
    )


def too_new(text: str) -> list[str]:
    """What Python 3.9 cannot run, as far as a look at the text tells."""
    try:
        tree = ast.parse(text, feature_version=(3, 9))
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    hidden = set(map(id, annotations(tree)))
    found = [found for node in ast.walk(tree) if id(node) not in hidden for found in newer(node)]
    if hidden and not any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body):
        found.append("line 1: annotations are evaluated")
    return found


def annotations(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes inside annotations, which are text once `from __future__ import annotations` is there."""
    for node in ast.walk(tree):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.AST):
                yield from ast.walk(part)


def newer(node: ast.AST) -> Iterator[str]:
    where = f"line {getattr(node, 'lineno', 0)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and (is_type(node.left) or is_type(node.right)):
        yield f"{where}: X | Y at run time"
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        given = {keyword.arg for keyword in node.keywords}
        for function, options in (("dataclass", {"slots", "kw_only"}), ("zip", {"strict"}), ("field", {"kw_only"})):
            if called == function and given & options:
                yield f"{where}: {called}({'='.join(sorted(given & options))}=)"
    for module, names in NEWER.items():
        if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value).endswith(module):
            yield f"{where}: {module}.{node.attr}"
        if isinstance(node, ast.ImportFrom) and node.module == module:
            yield from (f"{where}: {module}.{alias.name}" for alias in node.names if alias.name in names)


def is_type(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return node.value is None
    if isinstance(node, ast.Subscript):
        return is_type(node.value)
    name = ast.unparse(node).rpartition(".")[2] if isinstance(node, (ast.Name, ast.Attribute)) else ""
    return isinstance(getattr(builtins, name, None), type) or (name[:1].isupper() and not name.isupper())


@pytest.mark.parametrize("name", files())
def test_a_file_imports_only_what_the_picture_allows(name):
    assert trespasses(name, source(name)) == []


def test_the_picture_names_no_file_that_is_gone():
    assert [pattern for pattern in PICTURE if not fnmatch.filter(files(), pattern)] == []


def test_only_tracking_imports_mlflow():
    """Elsewhere it costs a second, and everything but tracking works without it."""
    found = [name for name in files() if any(m.partition(".")[0] == "mlflow" for m in imported(name, source(name)))]
    assert found == ["reports/mlflow/tracking.py"]


def test_only_the_hydra_app_knows_store_and_reports():
    found = [
        name
        for name in files()
        if name.startswith("experiments/")
        and {"store", "reports"} & {module.partition(".")[0] for module in imported(name, source(name))}
    ]
    assert found == ["experiments/__main__.py", "experiments/app/counter_replay.py"]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("experiments/core/record.py", "import torch", ["torch"]),
        ("experiments/core/record.py", "from ..worker import case", ["experiments.worker.case"]),
        ("experiments/worker/switches.py", "def f():\n    import numpy.linalg", ["numpy.linalg"]),
        ("experiments/worker/switches.py", "from .. import runner", ["experiments.runner"]),
        ("experiments/worker/switches.py", "from ..runner.local import watch", ["experiments.runner.local"]),
        ("experiments/worker/switches.py", "from ..core.spec import Spec\nfrom . import case\nimport torch.nn", []),
        ("experiments/runner/local.py", "from ..worker import case", ["experiments.worker.case"]),
        ("experiments/capsule/main.py", "from ..planning import plan", ["experiments.planning.plan"]),
        ("experiments/scenarios/attention/a.py", "import experiments.core.record", ["experiments.core.record"]),
        ("experiments/planning/catalogue.py", "from store.archive import Archive", ["store.archive"]),
        ("experiments/planning/config.py", "if TYPE_CHECKING:\n    import mlflow", ["mlflow"]),
        ("store/archive.py", "import mlflow\nimport experiments.analysis", ["experiments.analysis", "mlflow"]),
        ("store/archive.py", "from reports import figures", ["reports.figures"]),
        ("reports/build.py", "from experiments.planning import plan", ["experiments.planning.plan"]),
    ],
)
def test_an_import_against_the_picture_is_found(name, text, found):
    assert trespasses(name, text) == found


def test_a_file_that_nobody_put_into_the_picture_is_refused():
    with pytest.raises(AssertionError, match="say what it may import"):
        trespasses("experiments/utilities/text.py", "")


@pytest.mark.parametrize("name", portable())
def test_what_is_portable_holds_nothing_newer_than_python_3_9(name):
    assert too_new(source(name)) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("match 1:\n    case 1: pass", "Pattern matching"),
        ("Either = int | None", "X | Y"),
        ("isinstance(1, int | str)", "X | Y"),
        ("isinstance(1, Path | list[int])", "X | Y"),
        ("from dataclasses import dataclass\n@dataclass(slots=True)\nclass A: pass", "slots"),
        ("@dataclasses.dataclass(kw_only=True)\nclass A: pass", "kw_only"),
        ("zip([], [], strict=True)", "strict"),
        ("def f(a: int | None): pass", "evaluated"),
        ("import datetime\ndatetime.datetime.now(datetime.UTC)", "datetime.UTC"),
        ("from itertools import pairwise", "itertools.pairwise"),
    ],
)
def test_something_newer_than_python_3_9_is_found(text, found):
    assert any(found in one for one in too_new(text)), too_new(text)


def test_sets_and_flags_are_not_mistaken_for_types():
    assert too_new("from __future__ import annotations\ndef f(a: int | None): return {1} | set(a) | FLAG") == []


OLD_PYTHON = """
import sys, tempfile
from pathlib import Path
assert sys.version_info[:2] == (3, 9)
from experiments import scenario
from experiments.bundle import writer
from experiments.capsule import main
from experiments.core import agreement, record, verdict
from experiments.runner import supervisor
sys.path.insert(0, "tests")
import samples
folder = Path(tempfile.mkdtemp()) / "one"
kept = supervisor.not_run_record(samples.spec(), folder, "cuda")
assert record.Record.from_text((folder / "record.json").read_text()) == kept
writer.write(folder / "one.zip", writer.members([kept.text()], lambda name: None))
print(kept.outcome.kind)
"""


def python_3_9() -> str | None:
    """A Python 3.9 on the PATH that answers."""
    for folder in os.get_exec_path():
        found = shutil.which("python3.9", path=folder)
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return found
    return None


def test_python_3_9_loads_it_and_composes_a_record(tmp_path):
    found = python_3_9()
    if found is None:
        pytest.skip("no python3.9 on PATH")
    ended = subprocess.run(
        [found, "-B", "-c", OLD_PYTHON],
        cwd=ROOT,
        env={"PATH": os.defpath, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "not_run"), ended.stderr

"""What the documents promise exists, and what exists is documented."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
THREATS = ROOT / "docs" / "threats.md"
PAGES = [ROOT / "README.md", THREATS, *(ROOT / name / "README.md" for name in ("experiments", "store", "reports"))]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_make_alone_prints_every_target():
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(re.search(rf"^  {name} ", shown, re.MULTILINE) for name in targets())


def test_every_make_target_of_the_documents_exists():
    used = {
        name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE)
    }
    assert used
    assert used <= targets()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_every_program_of_the_documents_exists(page):
    for module in set(re.findall(r"python -m ((?:experiments|store|reports)[\w.]*)", page.read_text())):
        path = ROOT.joinpath(*module.rstrip(".").split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


@pytest.mark.parametrize("module", ["store", "reports", "reports.mlflow"])
def test_every_command_of_the_documents_exists(module):
    """`python -m store publish` stood in the README after it had become another program's."""
    asked = [sys.executable, "-m", module, "--help"]
    shown = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^    ([a-z]+)(?: |$)", shown, re.MULTILINE))
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(rf"python -m {re.escape(module)} ([a-z]+)(?![\w.-])", text))
    for listed in re.findall(rf"python -m {re.escape(module)}`\**\s+`([a-z |]+)`", text):
        named |= set(listed.split(" | "))
    assert named
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_every_link_of_the_documents_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize("package", ["experiments", "store", "reports"])
def test_every_module_is_named_in_its_packages_readme(package):
    text = (ROOT / package / "README.md").read_text()
    left_out = {"scenarios", "migrations"}
    paths = [path.relative_to(ROOT / package) for path in (ROOT / package).rglob("*.py") if path.stat().st_size]
    names = [
        path.as_posix().removeprefix("worker/instruments/")
        for path in paths
        if path.name != "__init__.py" and not left_out & set(path.parts)
    ]
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize("package", ["experiments", "store", "reports"])
def test_a_readme_names_no_module_that_is_gone(package):
    text = (ROOT / package / "README.md").read_text()
    places = [ROOT / package, ROOT / package / "worker" / "instruments"]
    named = re.findall(r"^\|.*?\|", text, re.MULTILINE)
    files = [name for cell in named for name in re.findall(r"`([\w/]+\.py)`", cell)]
    assert files
    assert [name for name in files if not any((place / name).is_file() for place in places)] == []


def rows(text: str) -> list[list[str]]:
    """Rows of the tables of a page, without their heads."""
    cells = [[one.strip() for one in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in cells if row[0] != "harms" and set(row[0]) != {"-"}]


def functions_in(name: str) -> set[str]:
    path = ROOT / "tests" / name
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_line_of_the_threats_names_tests_that_exist():
    """A promise that nothing holds is worse than none."""
    found = rows(THREATS.read_text())
    assert len(found) > 20
    for row in found:
        assert len(row) == 5, row
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row[-1])
        assert named, row
        assert row[-1].count("`") == 2 * len(named), row[-1]
        assert [f"{file}::{test}" for file, test in named if test not in functions_in(file)] == []


def test_every_field_of_the_readme_is_a_field_of_the_configuration():
    described = (ROOT / "experiments" / "planning" / "config.py").read_text()
    for line in re.findall(r"^python -m experiments (.*)$", README, re.MULTILINE):
        for name in re.findall(r"'?\b([a-z_.]+)=", line):
            last = name.rpartition(".")[2]
            assert f"    {last}:" in described or (ROOT / "conf" / name).is_dir(), name


def test_no_committed_text_names_a_folder_of_the_machine_it_was_made_on():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    here = str(ROOT)
    for name in listed:
        path = ROOT / name
        if path.is_file() and path.suffix in {".md", ".py", ".json", ".yaml", ".toml", ".txt", ""}:
            assert here not in path.read_text(errors="replace"), name

"""What the documents promise exists, and what exists is documented."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *(ROOT / name / "README.md" for name in ("experiments", "store", "reports"))]


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
def test_every_link_of_the_documents_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize("package", ["experiments", "store", "reports"])
def test_every_module_is_named_in_its_packages_readme(package):
    text = (ROOT / package / "README.md").read_text()
    modules = [path.name for path in (ROOT / package).glob("*.py") if path.name != "__init__.py"]
    assert [name for name in modules if name not in text and name != "__main__.py"] == []


def test_every_field_of_the_readme_is_a_field_of_the_configuration():
    described = (ROOT / "experiments" / "config.py").read_text()
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

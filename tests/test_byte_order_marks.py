"""A file that begins with a byte-order mark, as some editors write it, is the file. (Keys, records and pyproject.toml
are looked at in test_signature.py and test_install.py.)
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import hydra
from omegaconf import OmegaConf
from test_sweep import GOOD, project, run

from experiments.planning.config import register_schemas

ROOT = Path(__file__).resolve().parents[1]
MARK = b"\xef\xbb\xbf"


def test_configuration_is_what_it_is_without_the_mark(tmp_path):
    """`# @package` at the top of a file was overlooked after one, and with it where all of the file belongs."""
    marked = tmp_path / "conf"
    shutil.copytree(ROOT / "conf", marked)
    for path in marked.rglob("*.yaml"):
        path.write_bytes(MARK + path.read_bytes())
    register_schemas()
    found = []
    for folder in (ROOT / "conf", marked):
        with hydra.initialize_config_dir(str(folder), version_base="1.3"):
            found.append(OmegaConf.to_object(hydra.compose("config", ["experiment=published", "environment=avx2"])))
    assert found[0] == found[1]
    assert (found[1].measured_replays, found[1].environment.name) == (5, "avx2")


def test_a_scenario_file_is_listed_swept_and_made_a_snippet_of(tmp_path):
    root = project(tmp_path, marked="\ufeff" + GOOD)
    planned = run(root, "dry_run=true", "device=cpu")
    assert "in all: 3 cases" in planned.stdout, planned.stderr
    command = [sys.executable, "-m", "experiments.snippet", "tests/marked", "otherwise", "--unchecked"]
    made = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert (made.returncode, "\ufeff" in made.stdout) == (0, False), made.stderr
    compile(made.stdout, "snippet.py", "exec")

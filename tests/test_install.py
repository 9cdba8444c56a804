"""Setting up is all or nothing: whatever goes wrong, the environment that was there is there."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = '\ufeff[project]\ndependencies = ["torch", "tiny"]\n[project.optional-dependencies]\ndev = ["wheel"]\n'
VENV = """import os, sys
folder = sys.argv[1]
if os.environ.get("FAILS") == "venv":
    sys.exit("The virtual environment was not created successfully because ensurepip is not available.")
os.makedirs(folder + "/bin")
with open(folder + "/bin/python", "w") as file:
    file.write(f'#!/bin/sh\\nexec "{sys.executable}" "$@"\\n')
os.chmod(folder + "/bin/python", 0o755)
"""
PIP = """import os, sys, time
open("asked", "a").write(" ".join(sys.argv[1:]) + "\\n")
if "tiny" in sys.argv:
    open("installing", "w").close()
    time.sleep(float(os.environ.get("SLEEPS", "0")))
    if os.environ.get("FAILS") == "pip":
        print(*(f"WARNING: line {n}" for n in range(40)), sep="\\n", file=sys.stderr)
        sys.exit("ERROR: No matching distribution found for tiny")
"""
"""In place of the modules, which take seconds: an interpreter without anything, and what fails as asked."""


@pytest.fixture
def root(tmp_path):
    """A checkout with real make and real set-up, and no modules venv, pip and torch but these."""
    root = tmp_path / "check out's $HOME"
    checkout(root)
    for name, text in (("venv", VENV), ("pip", PIP), ("torch", "")):
        module = root / "modules" / name
        module.mkdir(parents=True)
        (module / "__init__.py").touch()
        (module / "__main__.py").write_text(text)
    return root


def checkout(root):
    (root / "experiments" / "app").mkdir(parents=True)
    for name in ("Makefile", ".gitignore", "experiments/app/install.py"):
        shutil.copy(ROOT / name, root / name)
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "constraints.txt").write_text("torch==1.0\nother==2\n")


def make(root, *arguments, **variables):
    environment = {**os.environ, "PYTHONPATH": str(root / "modules"), **variables}
    return subprocess.run(
        ["make", f"PYTHON={sys.executable}", *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def set_up(root, *arguments, **variables):
    """As make does when what an environment is made from has changed."""
    os.utime(root / "pyproject.toml", (time.time() + 2,) * 2)
    return make(root, ".state/installed", *arguments, **variables)


def environments(root):
    return sorted(path.name for path in (root / ".state" / "environments").iterdir())


def works(root):
    return subprocess.run([root / ".venv/bin/python", "-c", "print(1)"], capture_output=True, text=True).stdout == "1\n"


def test_an_environment_is_replaced_by_a_whole_one(root):
    assert set_up(root).returncode == 0
    first = (root / ".venv").readlink()
    assert (first.is_absolute(), works(root)) == (False, True)
    ended = set_up(root)
    assert ended.returncode == 0, ended.stderr
    assert "and the old one meanwhile" in ended.stderr
    assert ((root / ".venv").readlink() != first, works(root)) == (True, True)
    assert environments(root) == [(root / ".venv").readlink().name]
    asked = (root / "asked").read_text()
    assert asked.count("--constraint .state/constraints.txt torch tiny wheel") == 2
    made = subprocess.run(["git", "init", "-q"], cwd=root)
    told = subprocess.run(["git", "status", "--porcelain", "-uall"], cwd=root, capture_output=True, text=True).stdout
    assert (made.returncode, ".gitignore" in told, ".venv" in told, ".state" in told) == (0, True, False, False)
    assert make(root, "clean").returncode == 0
    assert not os.path.lexists(root / ".venv")
    assert not (root / ".state").exists()


@pytest.mark.parametrize(
    ("fails", "step", "said", "todo"),
    [
        ("venv", "making an environment", "ensurepip is not available", "apt install python3-venv"),
        ("pip", "installing what the project needs", "  ERROR: No matching distribution found for tiny", "the network"),
    ],
)
def test_a_step_that_fails_leaves_the_old_one_and_says_which_it_was(root, fails, step, said, todo):
    ended = set_up(root, FAILS=fails)
    assert (ended.returncode, "nothing was set up; `make` tries again" in ended.stderr) == (2, True)
    assert set_up(root).returncode == 0
    before = (root / ".venv").readlink()
    ended = set_up(root, FAILS=fails)
    assert ended.returncode == 2
    for text in (f"make: setting up .venv has failed: {step}\n", said, todo, "in .state/setup.log"):
        assert text in ended.stderr
    assert "line 20" not in ended.stderr
    assert "make: .venv is as it was: `touch .state/installed` goes on with it, `make` tries again" in ended.stderr
    assert ((root / ".venv").readlink(), environments(root), works(root)) == (before, [before.name], True)
    assert set_up(root).returncode == 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_who_ends_it_has_the_old_one(root, how):
    assert set_up(root).returncode == 0
    before = (root / ".venv").readlink()
    (root / "installing").unlink()
    environment = {**os.environ, "PYTHONPATH": str(root / "modules"), "SLEEPS": "60"}
    command = [sys.executable, "-P", "experiments/app/install.py"]
    process = subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (root / "installing").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(how)
    _, said = process.communicate(timeout=60)
    assert ((root / ".venv").readlink(), works(root)) == (before, True)
    if how != signal.SIGKILL:
        assert (process.returncode, "was ended; .venv is as it was" in said) == (130, True)
        assert environments(root) == [before.name]
    assert set_up(root).returncode == 0
    assert len(environments(root)) == 1


def test_a_folder_of_before_is_replaced_too(root):
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").symlink_to(sys.executable)
    assert set_up(root, FAILS="pip").returncode == 2
    assert (root / ".venv" / "bin" / "python").is_symlink()
    assert set_up(root).returncode == 0
    assert ((root / ".venv").is_symlink(), works(root), len(environments(root))) == (True, True, 1)


def test_an_environment_that_is_gone_is_made_again(root):
    assert set_up(root).returncode == 0
    (root / ".venv").unlink()
    ended = make(root, ".state/installed")
    assert (ended.returncode, works(root), len(environments(root))) == (0, True, 1)


def test_another_torch_is_asked_for_and_nothing_else(root):
    assert set_up(root, "TORCH=2.13.0+cpu").returncode == 0
    assert (root / ".state" / "constraints.txt").read_text() == "torch==2.13.0+cpu\nother==2\n"
    for odd in ("1/e;id", "$(id)", "-x", "1\nother==3", "../x"):
        ended = set_up(root, f"TORCH={odd}")
        assert (ended.returncode, "is no version; give one such as TORCH=2.13.0" in ended.stderr) == (2, True)


# With nothing in place of anything.


def wheel(folder, name, version="1.0", entry=""):
    """A package with one module, as pip takes it from a folder."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "def main():\n    print('it works')\n\n\nif __name__ == '__main__':\n    main()\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n"} if entry else {}),
    }
    digests = {
        at: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for at, text in files.items()
    }
    record = "".join(f"{at},sha256={digests[at]},{len(text)}\n" for at, text in files.items())
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for at, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            file.writestr(at, text)


@pytest.mark.slow
def test_real_environments_keep_their_scripts_when_they_are_swapped(tmp_path):
    root = tmp_path / "checkout"
    checkout(root)
    for name in ("torch", "setuptools", "wheel"):
        wheel(tmp_path / "wheels", name)
    wheel(tmp_path / "wheels", "tiny", entry="tiny")
    local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}

    def said():
        """By a module and by a script, whose first line names its interpreter."""
        commands = ([".venv/bin/python", "-m", "tiny"], [".venv/bin/tiny"])
        return [subprocess.run(one, cwd=root, capture_output=True, text=True).stdout for one in commands]

    for _ in range(2):
        ended = set_up(root, **local)
        assert (ended.returncode, said()) == (0, ["it works\n"] * 2), ended.stderr
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_FIND_LINKS": ""}
    offline = set_up(root, **nowhere, PIP_EXTRA_INDEX_URL="", PIP_RETRIES="0")
    assert (offline.returncode, said()) == (2, ["it works\n"] * 2)
    assert "setting up .venv has failed: installing pip, setuptools and wheel\n" in offline.stderr
    assert "ERROR: No matching distribution found for" in offline.stderr

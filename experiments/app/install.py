"""Sets up the environment that everything runs in, beside the old one, which stays until the new one is whole.

    python3 experiments/app/install.py          from the root of a checkout, as `make` does it; TORCH says which torch

An environment cannot be moved: its scripts name their interpreter by path. So each is made in a folder of its own in
.state/environments, where it stays, and .venv is a link to the one that counts, which is turned in one step. If a step
fails, or somebody ends this, .venv is as it was. Exit status 0, 2 if it could not be set up, 130 if it was ended.

Only what the project needs is installed, not the project: it runs from the checkout, and an import hook of its own
would be among the frames that an error lists. Runs on Python 3.11 with nothing but its standard library.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NoReturn, Sequence

STATE = Path(".state")
ENVIRONMENTS = STATE / "environments"
LINK = Path(".venv")
LOG = STATE / "setup.log"
SHOWN = 12
"""Lines shown of what a failed step has written; the rest is in LOG."""

NO_VENV = "on Debian and Ubuntu `apt install python3-venv` adds what is missing; or give another PYTHON=/path/to/python"
NO_PACKAGES = (
    "see whether the network is there and whether this Python has the versions that are asked for (PYTHON=, TORCH=); "
    "pip's own settings count, such as PIP_INDEX_URL"
)
NO_TORCH = "see what it says, and choose another TORCH= or PYTHON="


class InstallError(Exception):
    """A step has failed. The message says which, and what can be done."""


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (STATE / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _locked()


def _locked() -> int:
    _forget()  # What was left when a set-up was killed takes place.
    made = Path(tempfile.mkdtemp(prefix="", dir=ENVIRONMENTS)).absolute()
    made.chmod(0o755)
    try:
        _say(f"setting up {LINK} (once; a few minutes, about 2 GB{', and the old one meanwhile' if _there() else ''})")
        _install(made)
        _turn(made)
    except (InstallError, OSError) as error:
        _say(f"setting up {LINK} has failed: {error}")
        _say(_otherwise())
        return 2
    except KeyboardInterrupt:
        _say(f"setting up {LINK} was ended; {_otherwise()}")
        return 130
    finally:
        _forget()
    return 0


def _say(text: str) -> None:
    print(f"make: {text}", file=sys.stderr, flush=True)


def _there() -> bool:
    return (LINK / "bin" / "python").exists()


def _otherwise() -> str:
    if _there():
        return f"{LINK} is as it was: `touch {STATE}/installed` goes on with it, `make` tries again"
    return "nothing was set up; `make` tries again"


def _install(made: Path) -> None:
    python, constraints = str(made / "bin" / "python"), STATE / "constraints.txt"
    constraints.write_text(_constraints(), encoding="utf-8")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--constraint", str(constraints)]
    LOG.write_bytes(b"")
    _step("making an environment", [sys.executable, "-m", "venv", str(made)], NO_VENV)
    _step("installing pip, setuptools and wheel", [*pip, "pip", "setuptools", "wheel"], NO_PACKAGES)
    _step("installing what the project needs", [*pip, *_requirements()], NO_PACKAGES)
    _step("importing torch", [python, "-c", "import torch"], NO_TORCH)


def _constraints() -> str:
    """The versions of constraints.txt, with the torch that was asked for."""
    text, torch = Path("constraints.txt").read_text(encoding="utf-8-sig"), os.environ.get("TORCH", "")
    if not torch:
        return text
    if not re.fullmatch(r"[0-9][0-9A-Za-z.+!_-]{0,63}", torch):
        raise InstallError(f"TORCH={torch} is no version; give one such as TORCH=2.13.0")
    return re.sub(r"^torch==.*$", f"torch=={torch}", text, flags=re.MULTILINE)


def _requirements() -> list[str]:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8-sig"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["dev"]]


def _step(what: str, command: Sequence[str], otherwise: str) -> None:
    with LOG.open("ab") as log:
        begun = log.tell()
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    if ended.returncode:
        _refuse(what, LOG.read_bytes()[begun:].decode(errors="backslashreplace"), otherwise)


def _refuse(what: str, said: str, otherwise: str) -> NoReturn:
    lines = [f"  {line}" for line in said.splitlines() if line.strip()][-SHOWN:]
    raise InstallError("\n".join([what, *lines, f"make: {otherwise}. All that was said is in {LOG}"]))


def _turn(made: Path) -> None:
    """Make .venv a link to the new environment. A folder, as it was once, is put aside first."""
    beside = STATE / "venv"
    beside.unlink(missing_ok=True)
    beside.symlink_to(os.path.relpath(made, LINK.absolute().parent))
    if LINK.is_dir() and not LINK.is_symlink():
        LINK.rename(ENVIRONMENTS / "before")
    beside.replace(LINK)


def _forget() -> None:
    """Remove every environment but the one that counts."""
    for path in ENVIRONMENTS.iterdir():
        if path.resolve() != LINK.resolve():
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

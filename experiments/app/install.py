"""Set up the Python environment, next to the old one, which is kept until the new one is complete.

    python3 experiments/app/install.py          from the root of a checkout, as `make` does it; TORCH says which torch

An environment cannot be moved, because its scripts name their interpreter by path. So each is created in its own folder
in .state/environments, where it stays, and .venv is a link to the current one, which is switched atomically. If a step
fails or is interrupted, .venv is unchanged. Exit status 0, 2 if it could not be set up, 130 if it was interrupted.

Only the dependencies of the project are installed, not the project itself: it runs from the checkout, and the import
hook of an editable install would appear in tracebacks. Needs only Python 3.11 and its standard library.
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
"""Last lines of a failed step's output that are printed; the rest is in LOG."""

NO_VENV = "on Debian and Ubuntu `apt install python3-venv` adds what is missing; or give another PYTHON=/path/to/python"
NO_PACKAGES = (
    "see whether the network is there and whether this Python has the versions that are asked for (PYTHON=, TORCH=); "
    "pip's own settings count, such as PIP_INDEX_URL"
)
NO_TORCH = "see what it says, and choose another TORCH= or PYTHON="


class InstallError(Exception):
    """A step failed. The message says which, and what to do."""


def main() -> int:
    """Set up the environment under a lock and return the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (STATE / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _set_up_environment()


def _set_up_environment() -> int:
    _remove_unused()  # Environments left by a killed set-up take up space.
    made = Path(tempfile.mkdtemp(prefix="", dir=ENVIRONMENTS)).absolute()
    made.chmod(0o755)
    try:
        old = ", and the old one meanwhile" if _has_environment() else ""
        _say(f"setting up {LINK} (once; a few minutes, about 2 GB{old})")
        _install_packages(made)
        _switch_link(made)
    except (InstallError, OSError) as error:
        _say(f"setting up {LINK} has failed: {error}")
        _say(_fallback_text())
        return 2
    except KeyboardInterrupt:
        _say(f"setting up {LINK} was ended; {_fallback_text()}")
        return 130
    finally:
        _remove_unused()
    return 0


def _say(text: str) -> None:
    print(f"make: {text}", file=sys.stderr, flush=True)


def _has_environment() -> bool:
    return (LINK / "bin" / "python").exists()


def _fallback_text() -> str:
    if _has_environment():
        return f"{LINK} is as it was: `touch {STATE}/installed` goes on with it, `make` tries again"
    return "nothing was set up; `make` tries again"


def _install_packages(made: Path) -> None:
    python, constraints = str(made / "bin" / "python"), STATE / "constraints.txt"
    constraints.write_text(_constraints(), encoding="utf-8")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--constraint", str(constraints)]
    LOG.write_bytes(b"")
    _run_step("making an environment", [sys.executable, "-m", "venv", str(made)], NO_VENV)
    _run_step("installing pip, setuptools and wheel", [*pip, "pip", "setuptools", "wheel"], NO_PACKAGES)
    _run_step("installing what the project needs", [*pip, *_requirements()], NO_PACKAGES)
    _run_step("importing torch", [python, "-c", "import torch"], NO_TORCH)


def _constraints() -> str:
    """Return the text of constraints.txt, with the version of torch that TORCH requests."""
    text, torch = Path("constraints.txt").read_text(encoding="utf-8-sig"), os.environ.get("TORCH", "")
    if not torch:
        return text
    if not re.fullmatch(r"[0-9][0-9A-Za-z.+!_-]{0,63}", torch):
        raise InstallError(f"TORCH={torch} is no version; give one such as TORCH=2.13.0")
    return re.sub(r"^torch==.*$", f"torch=={torch}", text, flags=re.MULTILINE)


def _requirements() -> list[str]:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8-sig"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["dev"]]


def _run_step(what: str, command: Sequence[str], otherwise: str) -> None:
    with LOG.open("ab") as log:
        begun = log.tell()
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    if ended.returncode:
        _fail_step(what, LOG.read_bytes()[begun:].decode(errors="backslashreplace"), otherwise)


def _fail_step(what: str, said: str, otherwise: str) -> NoReturn:
    lines = [f"  {line}" for line in said.splitlines() if line.strip()][-SHOWN:]
    raise InstallError("\n".join([what, *lines, f"make: {otherwise}. All that was said is in {LOG}"]))


def _switch_link(made: Path) -> None:
    """Make .venv a link to the new environment. If it is a folder, as it once was, that is moved away first."""
    link = STATE / "venv"
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(made, LINK.absolute().parent))
    if LINK.is_dir() and not LINK.is_symlink():
        LINK.rename(ENVIRONMENTS / "before")
    link.replace(LINK)


def _remove_unused() -> None:
    """Remove every environment except the current one."""
    for path in ENVIRONMENTS.iterdir():
        if path.resolve() != LINK.resolve():
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

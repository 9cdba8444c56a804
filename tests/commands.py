"""Commands of ours as processes that cost no start: forks of the tests' own process, which has imported everything.

A fork has streams, a working directory, an environment and an ending of its own, as a process has that a shell starts.
What it cannot show is what happens at the start of an interpreter: each command has a test that starts a real one.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import experiments.__main__  # noqa: F401 - so that a fork need not
from experiments.planning import catalogue
from reports import build

ROOT = Path(__file__).parents[1]


def forked(
    module: str,
    folder: Path,
    *arguments: object,
    strict: bool = True,
    prepare: Callable[[], None] = lambda: None,
    **environment: str,
) -> CompletedProcess[str]:
    """What `python -W error -m MODULE ARGUMENTS` does in a folder; where it is not `strict`, without `-W error`.
    `prepare` is called first, in the fork.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = os.fork()
        if process == 0:
            warnings.resetwarnings()
            warnings.simplefilter("error" if strict else "ignore")
            prepare()
            _run(module, folder, [str(one) for one in arguments], environment, out.fileno(), err.fileno())
        _, ended = os.waitpid(process, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8").replace("\r\n", "\n"))
    return CompletedProcess([module, *map(str, arguments)], os.waitstatus_to_exitcode(ended), *texts)


def driven(root: Path, *overrides: str, **environment: str) -> CompletedProcess[str]:
    """What `python -m experiments OVERRIDES` does in a copy of the project, which has scenarios and configuration of
    its own. The driver is a fork; whatever it starts (workers, fork servers, MLflow's process) is started.
    """

    def move() -> None:
        catalogue.ROOT, catalogue.CACHE = root, root / "outputs" / "catalogue"
        catalogue.read.__kwdefaults__ = None
        catalogue.read.__defaults__ = ("", None, root)
        catalogue.read_cached.__defaults__ = (root, catalogue.CACHE)
        build.PUBLISHED = root / "store" / "published"
        build.write_report.__defaults__ = ("", build.PUBLISHED)
        build.make_report.__defaults__ = (build.PUBLISHED, ())

    return forked("experiments", root, *overrides, strict=False, prepare=move, **environment)


def started(module: str, folder: Path, *arguments: object, **environment: str) -> CompletedProcess[str]:
    """The same in an interpreter of its own: for what its start decides, such as the encoding of its streams."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", module, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )


_SERVER = """
import json, os, sys, traceback
import torch

for line in sys.stdin:
    asked = json.loads(line)
    process = os.fork()
    if process == 0:
        status = 0
        os.chdir(asked["folder"])
        for at, path in enumerate((os.devnull, asked["out"], asked["err"])):
            opened = os.open(path, os.O_RDWR)
            os.dup2(opened, at)
        sys.stdin = open(0, closefd=False)
        sys.stdout, sys.stderr = (open(at, "w", closefd=False) for at in (1, 2))
        try:
            exec(compile(asked["text"], "<string>", "exec"), {"__name__": "__main__"})
        except SystemExit as ended:
            status = ended.code or 0
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


class Pasting:
    """`python -I -c TEXT` for texts that import torch, as forks of an interpreter that has imported it and no more."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def __call__(self, text: str, folder: Path) -> CompletedProcess[str]:
        if self._server is None:
            command = [sys.executable, "-I", "-c", _SERVER]
            self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
            asked = {"text": text, "folder": str(folder), "out": out.name, "err": err.name}
            self._server.stdin.write(json.dumps(asked) + "\n")
            self._server.stdin.flush()
            status = int(self._server.stdout.readline())
            return CompletedProcess([], status, Path(out.name).read_text("utf-8"), Path(err.name).read_text("utf-8"))

    def close(self) -> None:
        if self._server is not None:
            self._server.communicate(timeout=60)


def _run(module: str, folder: Path, arguments: list[str], environment: dict[str, str], out: int, err: int) -> None:
    """Never returns."""
    status: object = 1
    try:
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = (open(at, "w", encoding="utf-8", closefd=False) for at in (1, 2))  # noqa: SIM115
        os.chdir(folder)
        os.environ.update(environment)
        tempfile.tempdir = None  # to be found again, where TMPDIR says
        sys.modules.pop(f"{module}.__main__", None)  # a test has imported it under its own name
        sys.argv = [module, *arguments]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            status = 0
        except SystemExit as ended:
            status = ended.code
            if isinstance(status, str):
                print(status, file=sys.stderr)
        except BaseException:  # noqa: BLE001 - as an interpreter does
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)

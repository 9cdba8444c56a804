"""What lets a process that a case has started by spawn or forkserver find the case's own functions and classes.

Such a process gets them by name, as `scenario_under_test.NAME`, and imports that module; the worker has executed it
from its file. `multiprocessing` runs the worker's `__main__` in it first, under the name `__mp_main__`, and hands over
the arguments that the worker was started with: the folder, whose spec names the scenario.

Only the standard library is imported here: what the case needs, its file imports.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any, Optional

MODULE = "scenario_under_test"
"""The name under which a worker executes a scenario file."""


class _Uncached(importlib.machinery.SourceFileLoader):
    """As the worker executes it: from its text, leaving no compiled file beside it."""

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002 - as its base says
        return self.source_to_code(self.get_data(self.path), self.path)


class Finder:
    """Finds the scenario of the worker that this process descends from. It looks when it is asked: a fork server of
    `multiprocessing` is told the arguments later than it runs `__main__`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(self, name: str, *_: Any) -> Optional[importlib.machinery.ModuleSpec]:
        if name != MODULE or len(sys.argv) != 2:
            return None
        asked = json.loads((Path(sys.argv[1]) / "spec.json").read_text(encoding="utf-8"))
        file = self._root / "experiments" / "scenarios" / f"{asked['question']['scenario']}.py"
        return importlib.util.spec_from_file_location(name, file, loader=_Uncached(name, str(file)))


def keep_addresses_short(temporary: Path) -> None:
    """Let `multiprocessing` call the folder, in which it puts its sockets, by a short name: the address of a socket has
    about a hundred bytes, and the folder of a case lies deep. Linux only.
    """
    if sys.platform != "linux":
        return
    from multiprocessing import process  # noqa: PLC0415 - not where there are no processes

    held = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
    process.current_process()._config["tempdir"] = f"/proc/{os.getpid()}/fd/{held}"  # type: ignore[attr-defined]  # noqa: SLF001

"""Import of the scenario in processes that a case starts by spawn or forkserver.

Such a process receives the case's functions and classes by name, as `scenario_under_test.NAME`, and imports that
module, which the worker itself has executed from its file. Before that, `multiprocessing` runs the worker's `__main__`
in it, under the name `__mp_main__`, with the arguments of the worker: the folder, whose spec names the scenario.

Imports only the standard library: the scenario file imports what the case needs.
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
    """Loads a scenario as the worker does: from its text, without writing a compiled file."""

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002 - the signature of the base class
        return self.source_to_code(self.get_data(self.path), self.path)


class Finder:
    """Finds the scenario of the worker that this process descends from.

    It reads the arguments at each import: a fork server of `multiprocessing` receives them after it has run `__main__`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(self, name: str, *_: Any) -> Optional[importlib.machinery.ModuleSpec]:
        """Return the spec of the scenario module. None for other modules, or without a worker's arguments."""
        if name != MODULE or len(sys.argv) != 2:
            return None
        asked = json.loads((Path(sys.argv[1]) / "spec.json").read_text(encoding="utf-8"))
        file = self._root / "experiments" / "scenarios" / f"{asked['question']['scenario']}.py"
        return importlib.util.spec_from_file_location(name, file, loader=_Uncached(name, str(file)))


def shorten_socket_addresses(temporary: Path) -> None:
    """Give `multiprocessing` a short path of the folder in which it creates its sockets. Linux only.

    The address of a socket has at most about a hundred bytes, and the folder of a case is deeply nested.
    """
    if sys.platform != "linux":
        return
    from multiprocessing import process  # noqa: PLC0415 - not on systems without processes

    held = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
    process.current_process()._config["tempdir"] = f"/proc/{os.getpid()}/fd/{held}"  # type: ignore[attr-defined]  # noqa: SLF001

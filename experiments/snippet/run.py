"""Runs a snippet in a process of its own and keeps what a worker keeps of a case, so that both can be compared.

    python .../experiments/snippet/run.py FOLDER

Started in the worker's place, with its folder: beside ``spec.json`` there are ``snippet.py``, the text exactly as it
is pasted, and ``snippet.json``, which says what in it is what (`snippet_text.Snippet`). The text runs as the program
that it is meant to be, without this project; the functions that it calls with inputs and observed values are listened
to. At the end ``observation.json`` is there. Exit status 0, whatever the snippet raises.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import sys
import types
from pathlib import Path
from typing import Any, Callable, Mapping

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "experiments"


def mount() -> None:
    """Make `experiments` the package around this file, and the folder of this file no place to import from."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != here]
    package = ROOT / PACKAGE
    spec = importlib.util.spec_from_file_location(
        PACKAGE, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{package} is not a package")
    sys.modules[PACKAGE] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


@contextlib.contextmanager
def without_project() -> Any:
    """Nothing of this project is there to be imported."""
    ours = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
    away = {name: sys.modules.pop(name) for name in ours}
    try:
        yield
    finally:
        sys.modules.update(away)


class Pasted:
    """A snippet, run once and listened to."""

    def __init__(self, folder: Path) -> None:

        from experiments.core.canonical_json import parse  # noqa: PLC0415
        from experiments.core.spec import Spec  # noqa: PLC0415
        from experiments.worker import case, tensors  # noqa: PLC0415

        spec = Spec.from_json(parse((folder / "spec.json").read_text(encoding="utf-8")))
        self.path, self.parts = folder / "snippet.py", json.loads((folder / "snippet.json").read_text("utf-8"))
        self.worker = case._Run(spec, folder, ROOT)  # noqa: SLF001 - what is kept must be what it keeps
        self.module = types.ModuleType("__main__")
        self.module.__file__ = str(self.path)
        self.absent = tensors.absent
        self.listens = True
        """Not while another than the case itself runs: its warm-up, its reference."""
        self.runs = 0
        self.inputs = 0

    def observation(self) -> Any:
        """What a worker would have observed of the case. Tensors of its reference have roles of their own."""
        from experiments.core.observation import Observation  # noqa: PLC0415 - as above
        from experiments.worker import switches  # noqa: PLC0415 - as above

        before = switches.snapshot()
        self._run()
        after = switches.snapshot()
        for name, value in self.worker.outputs:
            self._keep("output", name, value)
        return Observation(
            outcome=self.worker.outcome,
            tensors=tuple(self.worker.kept.values()),
            operators=None,
            observed=tuple(self.worker.observed),
            state=switches.changes(before, after),
            memory=(),
            durations={},
            machine=self.worker.blobs.add(b"{}"),
            sources=(),
        )

    def _run(self) -> None:
        from experiments.worker import exceptions  # noqa: PLC0415 - as above

        try:
            with without_project():
                sys.modules["__main__"] = self.module
                exec(self._code(), self.module.__dict__)  # noqa: S102 - running it is the point
        except BaseException as error:  # noqa: BLE001 - whatever the snippet raises is what is asked
            self.worker.outcome = exceptions.outcome(error, self._phase(error), ROOT, str(self.path))
            return
        if self.parts["run"] is None:
            self._take_spread()

    def _phase(self, error: BaseException) -> str:
        """The phase of the first line, from outside, that belongs to one."""
        trace = error.__traceback__
        while trace is not None:
            phase: str | None = self.parts["phases"].get(str(trace.tb_lineno))
            if trace.tb_frame.f_code.co_filename == str(self.path) and phase is not None:
                return phase
            trace = trace.tb_next
        return "inputs"

    def _code(self) -> types.CodeType:
        """The text as it stands, with its functions listened to from where they are defined."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"), str(self.path))
        listeners: dict[str, Callable[[Any], Any]] = {self.parts["prepared"]: self._inputs_of}
        listeners.update(dict.fromkeys(self.parts["observes"], self._observes))
        if self.parts["run"] is not None:
            listeners[self.parts["run"]] = self._results_of
        body: list[ast.stmt] = []
        for node in tree.body:
            body.append(node)
            if isinstance(node, ast.FunctionDef) and node.name in listeners:
                self.module.__dict__[f"listen to {node.name}"] = listeners[node.name]
                listened = ast.Name(f"listen to {node.name}", ast.Load())
                call = ast.Call(listened, [ast.Name(node.name, ast.Load())], [])
                body.append(ast.copy_location(ast.Assign([ast.Name(node.name, ast.Store())], call), node))
        tree.body = body
        return compile(ast.fix_missing_locations(tree), str(self.path), "exec", dont_inherit=True)

    def _inputs_of(self, prepared: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def listened(tensor: Any) -> Any:
            made = prepared(tensor)
            if self.listens:
                self._keep("input", str(self.inputs), made)
                self.inputs += 1
            return made

        return listened

    def _observes(self, observe: Callable[..., Any]) -> Callable[..., Any]:
        def listened(name: str, value: Any, *, measurement: bool = False, tolerance: float | None = None) -> None:
            if self.listens:
                self.worker._hear(name, value, "measurement" if measurement else "evidence", tolerance)  # noqa: SLF001
            observe(name, value)

        return listened

    def _results_of(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def listened(case: Any, **parameters: Any) -> Any:
            place = self.runs - int(self.parts["warm_up"])
            self.runs += 1
            self.listens = place == 0
            made = run(case, **parameters)
            self.listens = False
            if place >= 0:
                self._take(made, "reference " if place else "")
            return made

        return listened

    def _take(self, made: Mapping[str, Any], whose: str) -> None:
        """The tensors that `run` gives, as a worker names them."""
        for key, tensor in made.items():
            role, _, name = key.partition(" of ") if key.startswith("gradient of ") else key.partition(" ")
            if role == "observed" and not whose:
                continue  # Heard already.
            role, name = ("output", name or "loss") if role != "gradient" else (role, name)
            if role == "gradient" or tensor is not None:
                self._keep(f"{whose}{role}", name, tensor)

    def _take_spread(self) -> None:
        given, total = (self.module.__dict__[self.parts[name]] for name in ("given", "total"))
        made = {f"gradient of {name}": tensor.grad for name, tensor in given.items() if tensor.requires_grad}
        self._take({**made, "output": total}, "")

    def _keep(self, role: str, name: str, tensor: Any) -> None:
        if tensor is None:
            self.worker.kept[role, name] = self.absent(role, name)
            return
        # A case may observe what cannot be kept; then its own record lacks it as well.
        with contextlib.suppress(Exception):
            self.worker._keep(role, name, tensor)  # noqa: SLF001 - as above


def main(arguments: list[str]) -> int:
    mount()
    from experiments.core.canonical_json import canonical  # noqa: PLC0415 - as above
    from experiments.worker import __main__ as worker  # noqa: PLC0415 - as above
    from experiments.worker import limits  # noqa: PLC0415 - as above

    folder, process = Path(arguments[0]).resolve(), os.getpid()
    worker._end_group_with_parent(worker._own_stdin(), str(folder))  # noqa: SLF001 - it starts as a worker does
    limits.apply(folder)
    text = canonical(Pasted(folder).observation().to_json())
    if os.getpid() == process:
        beside = folder / "observation.part"
        beside.write_text(text, encoding="utf-8")
        beside.replace(folder / "observation.json")
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # the snippet may have closed or replaced it
            stream.flush()
    os._exit(status)

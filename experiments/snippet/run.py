"""Run a snippet in its own process and observe it as a worker observes a case, so that both can be compared.

    python .../experiments/snippet/run.py FOLDER

Started in place of the worker, with its folder: next to ``spec.json`` there are ``snippet.py``, the exact text, and
``snippet.json``, which describes its parts (`snippet.text.Snippet`). The text runs as a program, without this project;
listeners wrap the functions that it calls with inputs and observed values. At the end ``observation.json`` is written.
Exit status 0, whatever the snippet raises.
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


def mount_package() -> None:
    """Import `experiments` from the folder around this file, and take this file's own folder off the import path."""
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
def hide_project() -> Any:
    """Hide the modules of this project from imports inside the block."""
    ours = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
    away = {name: sys.modules.pop(name) for name in ours}
    try:
        yield
    finally:
        sys.modules.update(away)


class Pasted:
    """A snippet that is run once and observed."""

    def __init__(self, folder: Path) -> None:

        from experiments.core.canonical_json import parse  # noqa: PLC0415
        from experiments.core.spec import Spec  # noqa: PLC0415
        from experiments.worker import case, tensors  # noqa: PLC0415

        spec = Spec.from_json(parse((folder / "spec.json").read_text(encoding="utf-8")))
        self.path, self.parts = folder / "snippet.py", json.loads((folder / "snippet.json").read_text("utf-8"))
        self.worker = case._Run(spec, folder, ROOT)  # noqa: SLF001 - tensors must be kept exactly as a worker does
        self.module = types.ModuleType("__main__")
        self.module.__file__ = str(self.path)
        self.absent = tensors.absent_tensor
        self.listens = True
        """False while something other than the case itself runs: its warm-up or its reference."""
        self.runs = 0
        self.inputs = 0

    def observation(self) -> Any:
        """Run the snippet and return what a worker would observe. Tensors of the reference have separate roles."""
        from experiments.core.observation import Observation  # noqa: PLC0415 - as above
        from experiments.worker import switches  # noqa: PLC0415 - as above

        before = switches.snapshot()
        self._run()
        after = switches.snapshot()
        for name, value in self.worker.outputs:
            self._keep_tensor("output", name, value)
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
            with hide_project():
                sys.modules["__main__"] = self.module
                exec(self._compile_code(), self.module.__dict__)  # noqa: S102 - running it is the point
        except BaseException as error:  # noqa: BLE001 - whatever the snippet raises is its outcome
            self.worker.outcome = exceptions.raised_outcome(error, self._phase(error), ROOT, str(self.path))
            return
        if self.parts["run"] is None:
            self._keep_inline_results()

    def _phase(self, error: BaseException) -> str:
        """Return the phase of the outermost line of the traceback that belongs to one."""
        trace = error.__traceback__
        while trace is not None:
            phase: str | None = self.parts["phases"].get(str(trace.tb_lineno))
            if trace.tb_frame.f_code.co_filename == str(self.path) and phase is not None:
                return phase
            trace = trace.tb_next
        return "inputs"

    def _compile_code(self) -> types.CodeType:
        """Compile the text, with listeners wrapped around its functions right after their definitions."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"), str(self.path))
        listeners: dict[str, Callable[[Any], Any]] = {self.parts["prepared"]: self._listen_to_inputs}
        listeners.update(dict.fromkeys(self.parts["observes"], self._listen_to_values))
        if self.parts["run"] is not None:
            listeners[self.parts["run"]] = self._listen_to_results
        body: list[ast.stmt] = []
        for node in tree.body:
            body.append(node)
            if isinstance(node, ast.FunctionDef) and node.name in listeners:
                self.module.__dict__[f"listen to {node.name}"] = listeners[node.name]
                listener = ast.Name(f"listen to {node.name}", ast.Load())
                call = ast.Call(listener, [ast.Name(node.name, ast.Load())], [])
                body.append(ast.copy_location(ast.Assign([ast.Name(node.name, ast.Store())], call), node))
        tree.body = body
        return compile(ast.fix_missing_locations(tree), str(self.path), "exec", dont_inherit=True)

    def _listen_to_inputs(self, prepared: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def listener(tensor: Any) -> Any:
            made = prepared(tensor)
            if self.listens:
                self._keep_tensor("input", str(self.inputs), made)
                self.inputs += 1
            return made

        return listener

    def _listen_to_values(self, observe: Callable[..., Any]) -> Callable[..., Any]:
        def listener(name: str, value: Any, *, measurement: bool = False, tolerance: float | None = None) -> None:
            if self.listens:
                self.worker._hear(name, value, "measurement" if measurement else "evidence", tolerance)  # noqa: SLF001
            observe(name, value)

        return listener

    def _listen_to_results(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def listener(case: Any, **parameters: Any) -> Any:
            place = self.runs - int(self.parts["warm_up"])
            self.runs += 1
            self.listens = place == 0
            made = run(case, **parameters)
            self.listens = False
            if place >= 0:
                self._keep_results(made, "reference " if place else "")
            return made

        return listener

    def _keep_results(self, made: Mapping[str, Any], whose: str) -> None:
        """Keep the tensors that `run` returns under the names that a worker uses."""
        for key, tensor in made.items():
            role, _, name = key.partition(" of ") if key.startswith("gradient of ") else key.partition(" ")
            if role == "observed" and not whose:
                continue  # Recorded by the listener already.
            role, name = ("output", name or "loss") if role != "gradient" else (role, name)
            if role == "gradient" or tensor is not None:
                self._keep_tensor(f"{whose}{role}", name, tensor)

    def _keep_inline_results(self) -> None:
        given, total = (self.module.__dict__[self.parts[name]] for name in ("given", "total"))
        made = {f"gradient of {name}": tensor.grad for name, tensor in given.items() if tensor.requires_grad}
        self._keep_results({**made, "output": total}, "")

    def _keep_tensor(self, role: str, name: str, tensor: Any) -> None:
        if tensor is None:
            self.worker.kept[role, name] = self.absent(role, name)
            return
        # A case may have tensors that cannot be stored; then its own record lacks them as well.
        with contextlib.suppress(Exception):
            self.worker._keep_tensor(role, name, tensor)  # noqa: SLF001 - as above


def main(arguments: list[str]) -> int:
    """Run the snippet in the folder that is the first argument."""
    mount_package()
    from experiments.core.canonical_json import canonical  # noqa: PLC0415 - as above
    from experiments.worker import __main__ as worker  # noqa: PLC0415 - as above
    from experiments.worker import limits  # noqa: PLC0415 - as above

    folder, process = Path(arguments[0]).resolve(), os.getpid()
    worker._end_group_with_parent(worker._take_stdin(), str(folder))  # noqa: SLF001 - it starts as a worker does
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

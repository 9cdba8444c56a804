"""Catalogue of the scenarios, made by the interpreter that will run them.

Each file is imported in its own fork if the system has forks, so one that raises, hangs or crashes on import is listed
as broken with its error and does not affect the others. Elsewhere only exceptions are contained.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import select
import signal
import time
from pathlib import Path
from typing import Any, Callable

import torch.utils.checkpoint  # noqa: F401 - before the forks, so that each fork has it

from ..core.canonical_json import canonical, digest, parse
from ..core.expectations import expectation_to_json
from ..scenario import Case, Scenario
from . import case as case_module
from . import exceptions, machine, spawned

_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
COMMON = ("torch._dynamo", "torch._dynamo.backends.common", "torch.nn.attention.flex_attention", "functorch.compile")
"""Modules that several scenario files import. None of them runs an operator."""
LONGEST_IMPORT = 60.0
"""Seconds that one scenario file may take to import."""


def write_catalogue(target: Path, root: Path) -> None:
    """Write machine facts and catalogue as canonical JSON to `target`."""
    folder = root / "experiments" / "scenarios"
    paths = [path for path in sorted(folder.rglob("*.py")) if not path.name.startswith("_")]
    # Once before the forks instead of once in each of them, since it takes a second.
    for name in COMMON:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    listed = [_describe_file(path, folder) for path in paths]
    partial = target.with_suffix(".part")
    text = canonical({"machine": machine.facts(os.environ), "scenarios": listed})
    partial.write_text(text, encoding="utf-8")
    partial.replace(target)


def _describe_file(path: Path, folder: Path) -> dict[str, Any]:
    name = path.relative_to(folder).with_suffix("").as_posix()
    entry = {"name": name, "source_digest": digest(path.read_bytes())}
    described = (
        _call_in_fork(lambda: _describe_scenario(path))
        if hasattr(os, "fork")
        else _contain_errors(lambda: _describe_scenario(path))
    )
    return {**entry, **described}


def _describe_scenario(path: Path) -> dict[str, Any]:
    module = case_module.load_module(path, spawned.MODULE)
    scenario: Scenario = module.scenario
    title, _, text = (module.__doc__ or "").strip().partition("\n")
    inputs = scenario.input_parameters()
    return {
        "error": None,
        "title": title,
        "text": text.strip(),
        "source": scenario.source,
        "threads": scenario.threads,
        "replays": scenario.replays,
        "suites": list(scenario.suites),
        "rounding": scenario.rounding,
        "cases": [_describe_case(case, inputs) for case in scenario.cases],
    }


def _describe_case(case: Case, inputs: tuple[str, ...]) -> dict[str, Any]:
    # The parameters of what the worker calls, decorated or not.
    named = [one.name for one in inspect.signature(case.run).parameters.values() if one.kind not in _COLLECTING]
    return {
        "name": case.name,
        "text": (case.run.__doc__ or "").strip(),
        "role": case.role,
        "expectations": [expectation_to_json(expectation) for expectation in case.expectations],
        "variants": [{"parameters": dict(v.parameters), "dtype": v.dtype} for v in case.variants],
        "takes": sorted({*named, *inputs}),
        "on": list(case.on),
        "needs": list(case.needs),
        "cause": case.cause,
        "why": case.why,
        "reference": case.reference,
        "fork_safe": case.fork_safe,
        "timeout": case.timeout,
        "memory": case.memory,
        "output": case.output,
        "disk": case.disk,
        "gradient": case.gradient,
        "warm_up": case.warm_up,
        "profiled": case.profiled,
        "measured": case.measured,
    }


def _broken_entry(error: str) -> dict[str, Any]:
    return {
        "error": error,
        "title": "",
        "text": "",
        "source": "",
        "threads": 1,
        "replays": None,
        "suites": [],
        "rounding": False,
        "cases": [],
    }


def _contain_errors(describe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call `describe` and return its result, or a broken entry if it raises."""
    try:
        made = describe()
        canonical(made)  # a parameter may be anything
    except BaseException as error:  # noqa: BLE001 - a scenario file may raise anything
        return _broken_entry(f"{type(error).__name__}: {exceptions.error_message(error)}")
    else:
        return made


def _call_in_fork(describe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call `describe` in a fork and return its result. torch has not run an operator yet, so a fork is safe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(canonical(_contain_errors(describe)).encode("utf-8"))
        os._exit(0)
    os.close(writing)
    try:
        answer = _read_pipe(reading, time.monotonic() + LONGEST_IMPORT)
    finally:
        os.close(reading)
        status = _reap_child(child)
    if answer is None:
        return _broken_entry(f"still importing after {LONGEST_IMPORT:g} seconds")
    if not answer:
        return _broken_entry(f"ended by {_status_text(status)} on import")
    made: dict[str, Any] = parse(answer.decode("utf-8"))
    return made


def _read_pipe(pipe: int, deadline: float) -> bytes | None:
    """Return everything up to the end of the pipe. None if it has not ended by the deadline."""
    pieces: list[bytes] = []
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = os.read(pipe, 65536)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _reap_child(child: int) -> int:
    """Wait briefly for the child, then kill it. Returns its wait status."""
    for _ in range(50):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _status_text(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.WEXITSTATUS(status)}"

"""What scenarios there are, asked of the interpreter that will run them.

Each file is imported in a fork of its own where there are forks, so one that raises, hangs or crashes on
import is listed as broken with its error and stops no other. Elsewhere only what raises is contained.
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

import torch.utils.checkpoint  # noqa: F401 - before the forks, so that each of them has it

from ..core.canonical_json import canonical, digest, parse
from ..core.expectations import expectation_to_json
from ..scenario import Case, Scenario
from . import case as case_module
from . import exceptions, machine, spawned

_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
COMMON = ("torch._dynamo", "torch._dynamo.backends.common", "torch.nn.attention.flex_attention", "functorch.compile")
"""What several scenario files import. None of it runs an operator."""
LONGEST_IMPORT = 60.0
"""Seconds that one scenario file may take to import."""


def write(target: Path, root: Path) -> None:
    """Write machine facts and catalogue as canonical JSON to `target`."""
    folder = root / "experiments" / "scenarios"
    paths = [path for path in sorted(folder.rglob("*.py")) if not path.name.startswith("_")]
    # Once, before the forks, instead of once in each of them: it takes a second.
    for name in COMMON:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    listed = [_entry(path, folder) for path in paths]
    beside = target.with_suffix(".part")
    text = canonical({"machine": machine.facts(os.environ), "scenarios": listed})
    beside.write_text(text, encoding="utf-8")
    beside.replace(target)


def _entry(path: Path, folder: Path) -> dict[str, Any]:
    name = path.relative_to(folder).with_suffix("").as_posix()
    entry = {"name": name, "source_digest": digest(path.read_bytes())}
    described = _apart(lambda: _described(path)) if hasattr(os, "fork") else _contained(lambda: _described(path))
    return {**entry, **described}


def _described(path: Path) -> dict[str, Any]:
    module = case_module.load(path, spawned.MODULE)
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
        "cases": [_case(case, inputs) for case in scenario.cases],
    }


def _case(case: Case, inputs: tuple[str, ...]) -> dict[str, Any]:
    # As the worker calls it, decorated or not.
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


def _broken(error: str) -> dict[str, Any]:
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


def _contained(describe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        made = describe()
        canonical(made)  # a parameter may be anything
    except BaseException as error:  # noqa: BLE001 - a scenario file may raise anything
        return _broken(f"{type(error).__name__}: {exceptions.message(error)}")
    else:
        return made


def _apart(describe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call `describe` in a fork and read its answer. torch has run no operator yet, so a fork is safe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(canonical(_contained(describe)).encode("utf-8"))
        os._exit(0)
    os.close(writing)
    try:
        answer = _read(reading, time.monotonic() + LONGEST_IMPORT)
    finally:
        os.close(reading)
        status = _ended(child)
    if answer is None:
        return _broken(f"still importing after {LONGEST_IMPORT:g} seconds")
    if not answer:
        return _broken(f"ended by {_ending(status)} on import")
    made: dict[str, Any] = parse(answer.decode("utf-8"))
    return made


def _read(pipe: int, deadline: float) -> bytes | None:
    """Everything up to the end of the pipe. None if that has not come by the deadline."""
    pieces: list[bytes] = []
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = os.read(pipe, 65536)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _ended(child: int) -> int:
    """Status of the child, which has closed its pipe or had its time."""
    for _ in range(50):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.WEXITSTATUS(status)}"

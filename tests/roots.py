"""Small copies of the project that hold a test's own scenarios, and workers run from them.

A `Lab` runs each spec once and shares its record among the tests of a module: a process costs a second.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Sequence

import samples

from experiments.core.canonical_json import digest, parse
from experiments.core.record import Record
from experiments.core.rooms import WORKER, program_files
from experiments.core.spec import Spec
from experiments.runner import local, supervisor
from experiments.runner.fork_client import Forks

PROJECT = Path(__file__).resolve().parents[1]

HEAD = '''"""Made for a test."""

import torch

from experiments.scenario import Scenario, observe

scenario = Scenario(source="a test")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}

'''
"""The beginning of a scenario whose cases are marked below it, as references: they hold any variant."""


def root(folder: Path, scenarios: Mapping[str, str | bytes]) -> Path:
    """`folder` with what a worker runs, and these scenarios by name."""
    ours = PROJECT / "experiments"
    target = folder / "experiments"
    copy_files(program_files(ours, WORKER), ours, target)
    for name, text in scenarios.items():
        path = target / "scenarios" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def whole(folder: Path, scenarios: Mapping[str, str | bytes]) -> Path:
    """As `root`, with the modules beside it, so that commands can be run there."""
    root(folder, scenarios)
    ours = PROJECT / "experiments"
    files = (path for path in ours.rglob("*.py") if "scenarios" not in path.parts)
    copy_files(files, ours, folder / "experiments")
    return folder


def copy_files(paths: Iterable[Path], source: Path, target: Path) -> None:
    """These files below `source`, to the same places below `target`."""
    for path in paths:
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def spec(root: Path, scenario: str, case: str, **changes: Any) -> Spec:
    """A spec for the file as it stands below `root`; `changes` replace fields of question, setting or mark."""
    path = root / "experiments" / "scenarios" / f"{scenario}.py"
    source = digest(path.read_bytes()) if path.is_file() else digest("")
    return samples.spec(**{"case": case, "scenario": scenario, "source": source, "role": "reference", **changes})


@dataclass(frozen=True)
class Ran:
    """A process that has ended: its record and the folder that it leaves."""

    record: Record
    folder: Path

    @property
    def outcome(self) -> Any:
        return self.record.outcome

    @property
    def seen(self) -> Any:
        assert self.record.observation is not None, (self.record.outcome, self.stderr)
        return self.record.observation

    @property
    def stdout(self) -> bytes:
        return self.blob(self.record.ending.stdout.digest)

    @property
    def stderr(self) -> bytes:
        return self.blob(self.record.ending.stderr.digest)

    def blob(self, name: str) -> bytes:
        return (self.folder / "blobs" / name).read_bytes()

    def machine(self) -> Any:
        return parse(self.blob(self.seen.machine).decode())

    def tensor(self, role: str, name: str) -> Any:
        (found,) = [tensor for tensor in self.seen.tensors if (tensor.role, tensor.name) == (role, name)]
        return found

    def observed(self, name: str) -> Any:
        (found,) = [one for one in self.seen.observed if one.name == name]
        return found


def run(asked: Spec, folder: Path, root: Path, start: supervisor.Starter | None = None) -> Ran:
    """The ended process for a spec: an interpreter of its own, unless `start` starts another."""
    if start is None:
        return Ran(supervisor.run(asked, folder, root), folder)
    running = supervisor.start(asked, folder, start)
    while (record := running.poll()) is None:
        time.sleep(0.01)
    return Ran(record, folder)


def costly(case: Mapping[str, Any]) -> bool:
    """Whether a case, as the catalogue has it, takes much longer than most, or nobody knows how it ends: such cases
    run in the slow tests only.
    """
    varies = any(expectation["kind"] in ("varies", "hangs") for expectation in case["expectations"])
    return varies or "inductor" in case["needs"] or case["warm_up"] or case["timeout"] is not None


class Lab:
    """A root, and what has been run from it."""

    def __init__(self, folder: Path, root: Path, *, forked: bool = False) -> None:
        """With `forked`, processes are forks of one that has imported torch: close the lab to end it."""
        self.folder, self.root = folder, root
        self._ran: dict[str, Ran] = {}
        self._forks = Forks(root) if forked else None

    @classmethod
    def of(cls, folder: Path, scenarios: Mapping[str, str | bytes], *, forked: bool = False) -> Lab:
        return cls(folder, root(folder / "root", scenarios), forked=forked)

    def close(self) -> None:
        if self._forks is not None:
            self._forks.close()

    def spec(self, scenario: str, case: str, **changes: Any) -> Spec:
        return spec(self.root, scenario, case, **changes)

    def ran(self, scenario: str, case: str, **changes: Any) -> Ran:
        """The process for this spec, run when it is first asked for."""
        asked = self.spec(scenario, case, **changes)
        if asked.digest() not in self._ran:
            start = None if self._forks is None else self._forks.start
            self._ran[asked.digest()] = run(asked, self.folder / asked.digest()[:16], self.root, start)
        return self._ran[asked.digest()]

    def sweep(self, specs: Sequence[Spec], workers: int = 2) -> None:
        """Run them at once, as a sweep does: those that are forked cost a tenth. `ran` then finds them."""
        with contextlib.closing(Forks(self.root)) as forks:
            ended = local.run(
                specs,
                workers=workers,
                roots={"original": self.root},
                scratch=self.folder,
                missing={},
                watch=lambda _: None,
                forks=forks,
            )
            self._ran.update((record.spec.digest(), Ran(record, folder)) for record, folder in ended)


def changed(asked: Spec, **changes: Any) -> Spec:
    """`asked` with another setting."""
    return replace(asked, setting=replace(asked.setting, **changes))


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """What `condition` gives once it is true. Fails when it is not by then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds:g} seconds")


def alive(process: int) -> bool:
    """Whether the process runs; one that has died and waits to be collected does not. Linux only."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def script(path: Path, text: str) -> str:
    """A program that can stand in for an interpreter: it gets the worker's path and its folder."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)

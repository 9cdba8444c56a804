"""Counter-replays: run what differs again, under our setting and with one factor flipped to what it is under another.

Control and flipped run are one sweep, so that nothing that is to be explained is its own witness. Part of the Hydra
app, so it knows the archive and the reports as `__main__` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path

from experiments.analysis import causes
from experiments.analysis.causes import Cause
from experiments.analysis.flips import Flip
from experiments.analysis.settings import label
from experiments.app.progress import say
from experiments.core.replay import replays
from experiments.core.text import visible
from experiments.planning.config import (
    Config,
    ConfigError,
    Device,
    EnvironmentConfig,
    Isolation,
    IsolationConfig,
    Pass,
    Precision,
    Sources,
    Suite,
)
from reports import build
from reports.setting_comparison import EVERY, Across, Pair
from store.archive import Archive

RunPair = Callable[[Config, Config, AbstractSet[str]], int]
"""Runs one sweep of a control, a flip and the cases of these digests. Gives the exit status."""


@dataclass(frozen=True)
class _Task:
    """A flip, and what it is to explain."""

    flip: Flip
    pairs: list[Pair] = field(default_factory=list)


def prove(cfg: Config, run: RunPair) -> int:
    """Flip what can be flipped of what tells the latest sweep from the setting `cfg.prove`, and report on that sweep.

    Gives the exit status. Raises ConfigError if there is no such setting.
    """
    with Archive.open(cfg.archive.url, Path(cfg.archive.blobs), create=False) as archive:
        sweep = build.latest(archive)
        found = _across(archive, sweep)
        chosen = _chosen(cfg, found)
        tasks = _tasks(found, chosen)
        for number, task in enumerate(tasks, 1):
            if task.flip.interpreter and not cfg.environment.python:
                factor = visible(label(task.flip.factor))
                say(f"{factor}: not flipped: give another interpreter with PYTHON=/path/to/python")
                continue
            say(f"counter-replay {number} of {len(tasks)}: {visible(_described(task))}")
            began = time.monotonic()
            if _run(cfg, task, run) == 130:
                return 130
            say(f"took {time.monotonic() - began:.0f} s")
        if tasks and not cfg.dry_run:
            found = _reported(cfg, archive, sweep)
    for name in chosen:
        _tell(name, found.causes.get(name, ()))
    return 0


def _across(archive: Archive, sweep: str) -> Across:
    made = replays(archive.records(sweep=sweep))
    found = build.beside_others(archive, sweep, made, build.PUBLISHED)
    if found is None:
        raise ConfigError(f"sweep {sweep} has run nothing; run `make run-all` first")
    return found


def _chosen(cfg: Config, found: Across) -> list[str]:
    """Names of the settings that are to be explained: those whose evidence is not ours."""
    names = [one.name for one in found.others]
    if cfg.prove == EVERY:
        return [name for name in names if found.causes.get(name)]
    if cfg.prove not in names:
        known = ", ".join([*names, EVERY]) if names else "none: what the latest sweep asked was run nowhere else"
        raise ConfigError(f"prove={cfg.prove}: there is no such setting; known are {visible(known)}")
    return [cfg.prove]


def _tasks(found: Across, chosen: Sequence[str]) -> list[_Task]:
    """What is to be flipped, each once, with all that it may explain."""
    tasks: list[_Task] = []
    for other in found.others:
        if other.name not in chosen:
            continue
        cases = causes.differing_cases(found.here, other)
        differing = [pair for pair in found.by_setting[other.name] if pair.ours.spec.question.case_digest() in cases]
        for flip in causes.flips(found.here, other, found.counter_replays):
            task = next((one for one in tasks if one.flip == flip), None)
            if task is None:
                tasks.append(task := _Task(flip))
            task.pairs.extend(differing)
    return tasks


def _described(task: _Task) -> str:
    flip, cases = task.flip, len({pair.ours.spec.question.case_digest() for pair in task.pairs})
    variables = ", ".join(f"{name}={value}" for name, value in sorted(flip.variables.items()))
    to = variables or flip.threads or flip.matmul_precision or flip.sources or "PYTHON"
    return (
        f"{label(flip.factor)} ({to}): {cases} {'case differs' if cases == 1 else 'cases differ'}, each run "
        f"{causes.REPEATS} times as here and {causes.REPEATS} times flipped"
    )


def _run(cfg: Config, task: _Task, run: RunPair) -> int:
    control = _as_here(cfg, task)
    cases = {pair.ours.spec.question.case_digest() for pair in task.pairs}
    return run(control, replace(control, environment=_flipped(cfg, control.environment, task.flip)), cases)


def _as_here(cfg: Config, task: _Task) -> Config:
    """A sweep of what differs, as ours ran."""
    ours = task.pairs[0].ours
    setting, settings = ours.spec.setting, [pair.ours.spec.setting for pair in task.pairs]
    environment = EnvironmentConfig(
        name=causes.environment(causes.CONTROL, task.flip.factor),
        python=setting.interpreter,
        variables=dict(setting.variables),
        threads=setting.threads,
        matmul_precision=Precision(setting.matmul_precision),
        sources=Sources(setting.sources),
    )
    forked = any(one.isolation == "forked" for one in settings)
    return replace(
        cfg,
        prove=None,
        capsule=None,
        scenarios=sorted({pair.scenario for pair in task.pairs}),
        cases=["*"],
        suite=Suite.full,
        devices=[Device(name) for name in sorted({pair.ours.spec.question.device for pair in task.pairs})],
        passes=[one for one in Pass if any(one.value in pair.ours.records for pair in task.pairs)],
        replays=1,
        seed=ours.spec.question.seed,
        hash_seed=setting.hash_seed,
        report=False,
        isolation=IsolationConfig(Isolation.forked if forked else Isolation.fresh),
        environment=environment,
        tracking=replace(cfg.tracking, enabled=False),
    )


def _flipped(cfg: Config, control: EnvironmentConfig, flip: Flip) -> EnvironmentConfig:
    """The control's environment but for the flip."""
    return replace(
        control,
        name=causes.environment(causes.FLIP, flip.factor),
        python=cfg.environment.python if flip.interpreter else control.python,
        variables={**control.variables, **flip.variables},
        threads=control.threads if flip.threads is None else flip.threads,
        matmul_precision=Precision(flip.matmul_precision) if flip.matmul_precision else control.matmul_precision,
        sources=Sources(flip.sources) if flip.sources else control.sources,
    )


def _reported(cfg: Config, archive: Archive, sweep: str) -> Across:
    """Write the report on the sweep again; gives what it knows now."""
    made = build.report(archive, sweep, sweep)
    print(visible(f"report: {build.keep(made, Path(cfg.outputs) / 'reports', sweep)}"))
    assert made.across is not None, "what has run once has not unrun"
    return made.across


def _tell(name: str, found: Sequence[Cause]) -> None:
    """What came of it, a line for each factor."""
    print(f"why the bits of {visible(name)} differ from those here:" if found else f"{visible(name)}: no bits differ")
    for one in found:
        followed = f"{one.followed} of {one.of} cases followed" if one.by else one.why
        shown = "; ".join(visible(text) for text in (f"{one.ours} here, {one.theirs} there", followed) if text)
        print(f"  {visible(f'{label(one.factor)}: {one.words}')} ({shown})")

"""Counter-replays: run differing cases again, under our setting and with one factor flipped to another setting's value.

Control and flipped run are one new sweep, so that the records to be explained are not used as evidence. Part of the
Hydra app, so it may import the archive and the reports, as `__main__` does.
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
from experiments.core.text import visible_text
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
"""Run one sweep of a control and a flip for the cases with these digests. Returns the exit status."""


@dataclass(frozen=True)
class _Task:
    """A flip, and the differing pairs that it may explain."""

    flip: Flip
    pairs: list[Pair] = field(default_factory=list)


def prove(cfg: Config, run: RunPair) -> int:
    """Flip the factors in which the latest sweep and the setting `cfg.prove` differ, then report on that sweep.

    Returns the exit status. Raises ConfigError if there is no such setting.
    """
    with Archive.open(cfg.archive.url, Path(cfg.archive.blobs), create=False) as archive:
        sweep = build.latest_own_sweep(archive)
        found = _compare_settings(archive, sweep)
        chosen = _select_settings(cfg, found)
        tasks = _tasks(found, chosen)
        for number, task in enumerate(tasks, 1):
            if task.flip.interpreter and not cfg.environment.python:
                factor = visible_text(label(task.flip.factor))
                say(f"{factor}: not flipped: give another interpreter with PYTHON=/path/to/python")
                continue
            say(f"counter-replay {number} of {len(tasks)}: {visible_text(_describe_task(task))}")
            began = time.monotonic()
            if _run_task(cfg, task, run) == 130:
                return 130
            say(f"took {time.monotonic() - began:.0f} s")
        if tasks and not cfg.dry_run:
            found = _write_report(cfg, archive, sweep)
    for name in chosen:
        _print_causes(name, found.causes.get(name, ()))
    return 0


def _compare_settings(archive: Archive, sweep: str) -> Across:
    made = replays(archive.records(sweep=sweep))
    found = build.compare_with_others(archive, sweep, made, build.PUBLISHED)
    if found is None:
        raise ConfigError(f"sweep {sweep} has run nothing; run `make run-all` first")
    return found


def _select_settings(cfg: Config, found: Across) -> list[str]:
    """Return the names of the settings to explain, whose evidence differs from ours."""
    names = [one.name for one in found.others]
    if cfg.prove == EVERY:
        return [name for name in names if found.causes.get(name)]
    if cfg.prove not in names:
        known = ", ".join([*names, EVERY]) if names else "none: what the latest sweep asked was run nowhere else"
        raise ConfigError(f"prove={cfg.prove}: there is no such setting; known are {visible_text(known)}")
    return [cfg.prove]


def _tasks(found: Across, chosen: Sequence[str]) -> list[_Task]:
    """Return each flip once, with all differing pairs that it may explain."""
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


def _describe_task(task: _Task) -> str:
    flip, cases = task.flip, len({pair.ours.spec.question.case_digest() for pair in task.pairs})
    variables = ", ".join(f"{name}={value}" for name, value in sorted(flip.variables.items()))
    to = variables or flip.threads or flip.matmul_precision or flip.sources or "PYTHON"
    return (
        f"{label(flip.factor)} ({to}): {cases} {'case differs' if cases == 1 else 'cases differ'}, each run "
        f"{causes.REPEATS} times as here and {causes.REPEATS} times flipped"
    )


def _run_task(cfg: Config, task: _Task, run: RunPair) -> int:
    control = _control_config(cfg, task)
    cases = {pair.ours.spec.question.case_digest() for pair in task.pairs}
    return run(control, replace(control, environment=_flipped_environment(cfg, control.environment, task.flip)), cases)


def _control_config(cfg: Config, task: _Task) -> Config:
    """Return the configuration of the control: a sweep of the differing cases under our setting."""
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


def _flipped_environment(cfg: Config, control: EnvironmentConfig, flip: Flip) -> EnvironmentConfig:
    """Return the control's environment with the flip applied."""
    return replace(
        control,
        name=causes.environment(causes.FLIP, flip.factor),
        python=cfg.environment.python if flip.interpreter else control.python,
        variables={**control.variables, **flip.variables},
        threads=control.threads if flip.threads is None else flip.threads,
        matmul_precision=Precision(flip.matmul_precision) if flip.matmul_precision else control.matmul_precision,
        sources=Sources(flip.sources) if flip.sources else control.sources,
    )


def _write_report(cfg: Config, archive: Archive, sweep: str) -> Across:
    """Write the report on the sweep again and return its comparison of settings."""
    made = build.make_report(archive, sweep, sweep)
    print(visible_text(f"report: {build.save_report(made, Path(cfg.outputs) / 'reports', sweep)}"))
    assert made.across is not None, "what has run once has not unrun"
    return made.across


def _print_causes(name: str, found: Sequence[Cause]) -> None:
    """Print what is known about the causes, a line for each factor."""
    print(
        f"why the bits of {visible_text(name)} differ from those here:"
        if found
        else f"{visible_text(name)}: no bits differ"
    )
    for one in found:
        followed = f"{one.followed} of {one.of} cases followed" if one.by else one.why
        shown = "; ".join(visible_text(text) for text in (f"{one.ours} here, {one.theirs} there", followed) if text)
        print(f"  {visible_text(f'{label(one.factor)}: {one.words}')} ({shown})")

"""Counter-replays: run ours again with one factor flipped to what it is on another machine, and see what follows.

Part of the Hydra app, so it knows the archive and the reports as `__main__` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from experiments import classes
from experiments.classes import Cause, Flip, Machine
from experiments.config import (
    Config,
    ConfigError,
    Device,
    EnvironmentConfig,
    Pass,
    Precision,
    Sources,
    Suite,
)
from experiments.progress import say
from experiments.record import Replay, replays
from reports import files
from reports.across import Across, Pair
from store.archive import Archive
from store.publisher import visible

EVERY = "all"


def prove(cfg: Config, run: Callable[[Config], int]) -> int:
    """Flip what can be flipped of what tells the latest sweep from the machine `cfg.prove`, and report on that sweep.

    `run` runs one sweep. Gives the exit status. Raises ConfigError if there is no such machine.
    """
    with Archive.open(cfg.archive.url, Path(cfg.archive.blobs), create=False) as archive:
        sweep = files.latest(archive)
        found = _across(archive, sweep)
        chosen = _chosen(cfg, found)
        for number, flip in enumerate(listed := list(_flips(found, chosen)), 1):
            if flip.interpreter and not cfg.environment.python:
                say(f"{flip.factor}: not flipped: give another interpreter with PYTHON=/path/to/python")
                continue
            say(f"flip {number} of {len(listed)}: {visible(_said(flip))}")
            if run(_flipped(cfg, found, chosen, flip)) == 130:
                return 130
        made = files.report(archive, sweep, sweep)
        print(f"report: {files.keep(made, Path(cfg.outputs) / 'reports', sweep)}")
        assert made.across is not None, "what has run once has not unrun"
        for name in chosen:
            _tell(name, made.across.causes.get(name, ()))
    return 0


def _across(archive: Archive, sweep: str) -> Across:
    made = replays(archive.records(sweep=sweep))
    found = files.beside_others(archive, sweep, made, files.PUBLISHED)
    if found is None:
        raise ConfigError(f"sweep {sweep} has run nothing; run `make run-all` first")
    return found


def _chosen(cfg: Config, found: Across) -> list[str]:
    """Names of the machines that are to be explained: those whose evidence is not ours."""
    names = [machine.name for machine in found.others]
    if cfg.prove == EVERY:
        return [name for name in names if found.causes.get(name)]
    if cfg.prove not in names:
        known = ", ".join([*names, EVERY]) or "none: nobody else has run what the latest sweep asked"
        raise ConfigError(f"prove={cfg.prove}: there is no such machine; known are {visible(known)}")
    return [cfg.prove]


def _flips(found: Across, chosen: Sequence[str]) -> Iterator[Flip]:
    """What is to be flipped, each once."""
    seen: list[Flip] = []
    for machine in found.others:
        if machine.name in chosen:
            for flip in classes.flips(found.here, machine, found.known):
                if flip not in seen:
                    seen.append(flip)
                    yield flip


def _said(flip: Flip) -> str:
    if flip.variables:
        return f"{flip.factor} ({', '.join(f'{name}={value}' for name, value in sorted(flip.variables.items()))})"
    return f"{flip.factor} ({flip.threads or flip.matmul_precision or flip.sources})"


def _flipped(cfg: Config, found: Across, chosen: Sequence[str], flip: Flip) -> Config:
    """A sweep of the cases that differ, as ours ran but for the flip."""
    pairs = [pair for pair in found.pairs if pair.machine in chosen and pair.compared and pair.agreement.rank > 1]
    ours = _ours(found.here, pairs)
    setting = ours.spec.setting
    environment = EnvironmentConfig(
        name=f"{classes.FLIP}{flip.factor.replace(' ', '-')}",
        python=cfg.environment.python if flip.interpreter else setting.interpreter,
        variables={**setting.variables, **flip.variables},
        threads=setting.threads if flip.threads is None else flip.threads,
        matmul_precision=Precision(flip.matmul_precision or setting.matmul_precision),
        sources=Sources(flip.sources),
    )
    return replace(
        cfg,
        prove=None,
        capsule=None,
        scenarios=sorted({pair.scenario for pair in pairs}),
        cases=sorted({pair.label for pair in pairs if pair.ours.spec.mark.role != "reference"}) or ["*"],
        suite=Suite.full,
        devices=[Device(name) for name in sorted({pair.ours.spec.question.device for pair in pairs})],
        passes=[one for one in Pass if any(one.value in pair.ours.records for pair in pairs)],
        replays=1,
        seed=ours.spec.question.seed,
        hash_seed=setting.hash_seed,
        report=False,
        environment=environment,
        tracking=replace(cfg.tracking, enabled=False),
    )


def _ours(here: Machine, pairs: Sequence[Pair]) -> Replay:
    return pairs[0].ours if pairs else here.replays[0]


def _tell(name: str, causes: Sequence[Cause]) -> None:
    """What came of it, a line for each factor."""
    print(f"why the bits of {visible(name)} differ from those here:" if causes else f"{visible(name)}: no bits differ")
    for one in causes:
        followed = f"{one.followed} of {one.of} cases followed" if one.by else one.why or "needs another interpreter"
        print(
            f"  {one.factor}: {one.word} ({visible(one.ours)} here, {visible(one.theirs)} there; {visible(followed)})"
        )

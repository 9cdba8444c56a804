"""What recording costs: a sweep of small cases, fresh and forked, against the same cases as bare snippets.

    python -m experiments.app.benchmark [--rounds 3] [--workers N]

Each way runs as a whole, from its command to its last record in MLflow, in turn with the others, so that what
else the machine does hits all alike. Archive and MLflow's store are there already, as in every sweep but the
first. The table gives medians of wall time and CPU seconds and their ratio to the bare interpreters;
`outputs/bench.json` has every round and the machine's facts. Not part of the tests: timings here are for
comparing, in one run, on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Callable, Sequence

from rich.console import Console
from rich.table import Table

from ..core import streams
from ..core.quantities import format_significant, range_cell
from ..core.spec import Spec
from ..planning import catalogue
from ..snippet.text import Wanted, snippet

SCENARIOS = (
    "checkpoint/attention_policy_ends_before_recomputation",
    "checkpoint/grouped_heads_lose_the_attention_policy",
    "checkpoint/masked_attention_loses_its_policy",
    "checkpoint/attention_dropout_loses_the_policy",
)
CASES = ("chosen_*", "default_throughout", "documented", "drawn_anew")
"""Together with the references that they need, 24 plain passes."""
FEW = "documented"
"""Together with its references, 3 plain passes: measures the fixed cost of a forked sweep."""
GOALS = {"fresh": 1.0, "forked": 0.15}
"""Largest acceptable ratio of wall time to that of bare interpreters."""


@dataclass(frozen=True)
class Timing:
    """Timing of one way in one round."""

    way: str
    round: int
    wall: float
    """Seconds from start to end."""
    cpu: float
    """CPU seconds of all processes that it started."""


def specs() -> list[Spec]:
    """Return the plain passes of the sweep, as the sweep itself plans them."""
    # Imported here because --help does not need Hydra.
    from ..planning.config import Config, Device, Pass  # noqa: PLC0415
    from ..planning.plan import plan  # noqa: PLC0415

    cfg = Config(scenarios=list(SCENARIOS), cases=list(CASES), replays=1, passes=[Pass.plain], devices=[Device.cpu])
    return list(plan(cfg, catalogue.read_cached()).specs)


def run_bare(wanted: Sequence[Spec], folder: Path, workers: int) -> None:
    """Run each case as a snippet under a bare interpreter, `workers` at a time, without recording anything."""
    for index, spec in enumerate(wanted):
        question = spec.question
        path = catalogue.ROOT / "experiments" / "scenarios" / f"{question.scenario}.py"
        # Without its reference, which is in the list itself if it is needed.
        one = Wanted(question.case, question.parameters, question.seed, question.dtype)
        text = snippet(path.read_text(encoding="utf-8-sig"), one).text
        (folder / f"{index:02}.py").write_text(text, encoding="utf-8")
    waiting, running = sorted(folder.glob("*.py")), list[subprocess.Popen[bytes]]()
    while waiting or running:
        while waiting and len(running) < workers:
            quiet = subprocess.DEVNULL
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-I", str(waiting.pop(0))]
            running.append(subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment))
        running = [process for process in running if process.poll() is None]
        time.sleep(0.005)


def run_recorded(isolation: str, cases: Sequence[str], folder: Path, workers: int) -> None:
    """Run the same cases as a sweep with everything enabled: archive, MLflow, report."""
    scenarios = SCENARIOS if len(cases) > 1 else SCENARIOS[:1]
    command = [sys.executable, "-m", "experiments", f"scenarios=[{','.join(scenarios)}]", f"cases=[{','.join(cases)}]"]
    command += ["passes=[plain]", "replays=1", "device=cpu", f"isolation={isolation}", f"workers={workers}"]
    # Without the profiled pass, expectations about operators get "cannot say", which is not a failure.
    subprocess.run([*command, f"outputs={folder}"], cwd=catalogue.ROOT, capture_output=True, check=True)


def time_run(way: str, number: int, run: Callable[[Path], None]) -> Timing:
    """Run `run` once in a new folder and return its timing."""
    with tempfile.TemporaryDirectory(prefix="twofold-bench-") as folder:
        before, started = _cpu_seconds(), time.perf_counter()
        run(Path(folder))
        return Timing(way, number, time.perf_counter() - started, _cpu_seconds() - before)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.app.benchmark", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=3, help="times each way is run (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes at a time (default: cores)")
    options = parser.parse_args(arguments)
    wanted = specs()
    ways: dict[str, Callable[[Path], None]] = {
        "bare": lambda folder: run_bare(wanted, folder, options.workers),
        "fresh": lambda _: run_recorded("fresh", CASES, kept, options.workers),
        "forked": lambda _: run_recorded("forked", CASES, kept, options.workers),
        "forked, 3 cases": lambda _: run_recorded("forked", (FEW,), kept, options.workers),
    }
    talk = Console(stderr=True)
    timings: list[Timing] = []
    with tempfile.TemporaryDirectory(prefix="twofold-bench-") as stores:
        kept = Path(stores)
        run_recorded("forked", (FEW,), kept, options.workers)
        for number in range(options.rounds):
            for way, run in ways.items():
                with talk.status(f"round {number + 1} of {options.rounds}: {way}"):
                    timings.append(time_run(way, number, run))
    _print_table(timings, len(wanted))
    path = catalogue.ROOT / "outputs" / "bench.json"
    path.parent.mkdir(exist_ok=True)
    facts = catalogue.read_cached().machine
    path.write_text(json.dumps({"timings": [asdict(one) for one in timings], "machine": facts}, indent=2))
    talk.print(f"every round, and the machine: {path.relative_to(catalogue.ROOT)}")
    return 0


def _print_table(timings: Sequence[Timing], cases: int) -> None:
    table = Table(title=f"{cases} cases, plain passes; medians")
    for head in ("way", "wall, s", "ratio", "goal", "CPU, s", "CPU ratio"):
        table.add_column(head, justify="left" if head == "way" else "right")
    base = _medians(timings, "bare")
    for way in dict.fromkeys(one.way for one in timings):
        wall, cpu = _medians(timings, way)
        goal = f"{GOALS[way]:.2f}" if way in GOALS else ""
        walls = [one.wall for one in timings if one.way == way]
        ratios = [format_significant(wall / base[0]), goal, format_significant(cpu), format_significant(cpu / base[1])]
        table.add_row(way, range_cell(walls), *ratios)
    Console().print(table)
    few, many = (_medians(timings, way)[0] for way in ("forked, 3 cases", "forked"))
    each, alone = (many - few) / (cases - 3), base[0] / cases
    print(
        f"forked: {format_significant(few)} s go by before there is much to do "
        "(torch and mlflow are imported once each, the\nsweep is planned); "
        f"then a case takes {format_significant(each * 1000)} ms, bare {format_significant(alone * 1000)} ms: "
        f"ratio {format_significant(each / alone)}"
    )


def _medians(timings: Sequence[Timing], way: str) -> tuple[float, float]:
    chosen = [one for one in timings if one.way == way]
    return statistics.median(one.wall for one in chosen), statistics.median(one.cpu for one in chosen)


if __name__ == "__main__":
    sys.exit(streams.run_program("bench", main))

"""The Hydra app: compose the configuration, plan, run all processes, archive each record, publish, report.

    python -m experiments [KEY=VALUE ...] [-m]        `--help` lists every field

Exit status: 0 as expected (cases that were not run or cannot be decided are listed and are not failures), 1 not as
expected, 2 could not run, 130 interrupted. The report is written before a failing exit.

Only this file and `app.counter_replay` import all of experiments, store and reports.
"""

from __future__ import annotations

from experiments.core import streams

if __name__ == "__main__":
    streams.handle_early_interrupt("interrupted: nothing was begun yet")

import contextlib
import os
import shlex
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import IO, AbstractSet, Callable, Iterator, Sequence

import hydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.analysis.causes import REPEATS
from experiments.analysis.series import measured_series, points, unmeasured_series
from experiments.app.counter_replay import prove
from experiments.app.mlflow_process import Publishing
from experiments.app.progress import Bar, console, say
from experiments.capsule import archive as archive_module
from experiments.core import folders
from experiments.core.agreement import RANKS, Agreement, audit_forks
from experiments.core.canonical_json import RecordError, digest
from experiments.core.masking import mask_secrets
from experiments.core.record import Record
from experiments.core.replay import Replay, replays
from experiments.core.spec import Spec
from experiments.core.text import visible_text
from experiments.core.verdict import CANNOT_SAY, NOT_AS_EXPECTED, Verdict, contexts, judge
from experiments.planning import catalogue
from experiments.planning.catalogue import Catalogue, CatalogueError
from experiments.planning.config import Config, ConfigError, Isolation, register_schemas
from experiments.planning.overrides import refusal
from experiments.planning.plan import Plan, capsule_config, join_plans, plan
from experiments.runner import errors, local, lock, source_copy, supervisor
from experiments.runner.fork_client import Forks
from reports import build
from reports.mlflow.database_file import ARTIFACTS, TRACKING, is_impossible
from reports.setting_comparison import Across
from store.archive import Archive, ArchiveError, Sweep
from store.database import ARCHIVE

CONF = catalogue.ROOT / "conf"
ORDER = ("as expected", "not as expected", "cannot say")

_statuses: list[int] = []
"""Exit status of each job of this process: Hydra does not return them."""


def main() -> None:
    """Run the app and exit with its status."""
    register_schemas()
    refused = refusal(sys.argv[1:], CONF)
    if refused:
        say(f"experiments: {refused}")
        sys.exit(2)
    try:
        with local.interrupt_on_signals():
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(_job)()
    except KeyboardInterrupt:
        say("interrupted: what is archived stays, and the same command goes on from there")
        sys.exit(130)
    sys.exit(max(_statuses, default=0))


def _job(cfg: DictConfig) -> None:
    """Run one sweep. A multirun stops at an interrupt, and continues after any other end."""
    try:
        made = OmegaConf.to_object(cfg)
        assert isinstance(made, Config)
        _statuses.append(run(made))
    except (
        ConfigError,
        CatalogueError,
        archive_module.CapsuleError,
        errors.LaunchError,
        ArchiveError,
        OmegaConfBaseException,
        OSError,
    ) as error:
        say(f"experiments: {mask_secrets(str(error))}")
        _statuses.append(2)
    if _statuses[-1] == 130:
        sys.exit(130)


def run(cfg: Config) -> int:
    """Plan, run, archive, publish and report. Returns the exit status."""
    if cfg.prove is not None:
        return prove(cfg, run_pair)
    with contextlib.closing(Forks(catalogue.ROOT)) as forks, contextlib.ExitStack() as leaving:
        publishing = _start_publishing(cfg)
        leaving.callback(publishing.abandon)
        with console.status("asking the interpreter which scenarios and devices there are"):
            listed = _read_catalogue(cfg, forks)
        return _run_plan(cfg, listed, forks, publishing)


def run_pair(control: Config, flipped: Config, cases: AbstractSet[str]) -> int:
    """Run a counter-replay: both sides of these cases (by digest) in one sweep, which is archived but not judged."""
    with contextlib.closing(Forks(catalogue.ROOT)) as forks:
        listed = [_read_catalogue(one, forks) for one in (control, flipped)]
        made = join_plans([plan(control, listed[0]), plan(flipped, listed[1])], cases, REPEATS)
        if control.dry_run:
            print(_plan_text(made))
            return 0
        say(f"{len(made.specs)} processes")
        with Archive.open(control.archive.url, Path(control.archive.blobs)) as archive:
            machine = listed[0].machine_identity
            return _run_sweep(control, machine, made, archive, forks, Publishing.make_inactive(), judging=False)


def _start_publishing(cfg: Config) -> Publishing:
    """Start the publisher: first, because importing mlflow and creating its store take as long as planning."""
    tracking = cfg.tracking
    if cfg.dry_run or not tracking.enabled:
        return Publishing.make_inactive()
    return Publishing.begin(tracking.uri, tracking.artifacts, tracking.wait)


def _read_catalogue(cfg: Config, forks: Forks) -> Catalogue:
    """List the scenarios with a fork server if the sweep needs one anyway, else with a worker."""
    environment = cfg.environment
    if cfg.dry_run or cfg.isolation.kind is Isolation.fresh or not hasattr(os, "fork"):
        return catalogue.read(environment.python, environment.variables)
    with folders.temporary_folder("twofold-") as folder:
        data = forks.describe(environment.python, environment.variables, cfg.hash_seed, folder / "listed")
    return catalogue.parse_catalogue(data)


def _run_plan(cfg: Config, listed: Catalogue, forks: Forks, publishing: Publishing) -> int:
    made = plan(cfg, listed)
    for entry in made.broken:
        say(f"broken scenario {entry.name}: {entry.error}")
    if made.absent:
        say(made.absent)
    if cfg.dry_run:
        print(_plan_text(made))
        return 2 if made.broken else 0
    if not made.specs:
        raise ConfigError("nothing can be run: every chosen scenario is broken")
    with Archive.open(cfg.archive.url, Path(cfg.archive.blobs)) as archive:
        if cfg.capsule is not None:
            return _write_capsule(cfg, cfg.capsule, listed, made, archive, forks, publishing)
        status = _run_sweep(cfg, listed.machine_identity, made, archive, forks, publishing)
    return 2 if made.broken else status


def _write_capsule(
    cfg: Config,
    path: str,
    listed: Catalogue,
    made: Plan,
    archive: Archive,
    forks: Forks,
    publishing: Publishing,
) -> int:
    """Write a capsule of the plan and its evidence, which a sweep produces first if it is not archived yet."""
    if made.broken:
        raise ConfigError("a capsule is not made of broken scenarios: mend them, or leave them out")
    # Cases that are repeated here are run once there.
    carried = [archive_module.capsule_spec(spec) for spec in plan(capsule_config(cfg), listed).specs]
    specs = tuple({spec.digest(): spec for spec in carried}.values())
    evidence = _find_evidence(archive, made, listed)
    if evidence is None:
        say("no evidence of this machine yet: sweeping first")
        if _run_sweep(cfg, listed.machine_identity, made, archive, forks, publishing) == 130:
            return 130
        evidence = _find_evidence(archive, made, listed)
    if evidence is None:
        raise ConfigError("the sweep left no evidence to carry; run it again")
    blobs = {
        name: found for record in evidence for name in record.blobs() if (found := archive.fetch(name)) is not None
    }
    content = archive_module.Content(specs, tuple(evidence), listed.machine, blobs)
    size = archive_module.write(Path(path), catalogue.ROOT, content)
    cases = len({spec.question.case_digest() for spec in specs})
    print(f"{path}: {size} bytes, {cases} cases, {len(evidence)} records of this machine")
    say(f"anywhere with torch 2.6 or newer: python {shlex.quote(Path(path).name)}")
    return 0


def _find_evidence(archive: Archive, made: Plan, listed: Catalogue) -> list[Record] | None:
    """Return the latest record of this machine for each process of the plan's first replays. None if one is missing.

    Only records of sweeps that were run here count, in the order in which they were archived: added records may state
    any machine and time.
    """
    latest = {
        (cell.question_digest, cell.replay_digest): cell.digest for cell in archive.cells(home=listed.machine_identity)
    }
    places = [
        (spec.question.digest(), spec.replay_digest())
        for spec in made.specs
        if spec.setting.repeat == 0 and spec.setting.hash_seed == made.specs[0].setting.hash_seed
    ]
    found = [latest.get(place) for place in places]
    digests = [name for name in found if name is not None]
    if len(digests) < len(found):
        return None
    kept = {digest(record.text()): record for record in archive.records(digests=digests)}
    return [kept[name] for name in digests]


def _plan_text(made: Plan) -> str:
    """Return the plan as text: cases, replays and processes by scenario and device."""
    rows: dict[tuple[str, str], list[Spec]] = {}
    for spec in made.specs:
        rows.setdefault((spec.question.scenario, spec.question.device), []).append(spec)
    lines = [
        f"{name} ({device}): {len({s.question.case_digest() for s in specs})} cases, "
        f"{len({s.replay_digest() for s in specs})} replays, {len(specs)} processes"
        + (f", {held} not run" if (held := sum(s.digest() in made.missing for s in specs)) else "")
        for (name, device), specs in rows.items()
    ]
    cases = len({spec.question.case_digest() for spec in made.specs})
    count = len({spec.replay_digest() for spec in made.specs})
    return "\n".join([*lines, f"in all: {cases} cases, {count} replays, {len(made.specs)} processes"])


# One sweep.


@dataclass(frozen=True)
class _Place:
    """The sweep that this process owns, and its folder."""

    sweep: Sweep
    folder: Path
    """It exists until the sweep is finished and reported, so that a later run finds sweeps whose driver was killed."""
    lock: Path
    held: IO[bytes]

    def close(self) -> None:
        """Release the lock and remove its file."""
        lock.release(self.held, self.lock)


def _begin_sweep(archive: Archive, made: Plan, machine: str, folder: Path) -> _Place:
    """Begin a new sweep, or resume one that was not finished or reported and that no other driver is running."""
    busy: set[str] = set()
    unreported = {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
    while True:
        sweep = archive.begin_sweep(made.specs, machine, busy, unreported)
        path = folder / f"{sweep.id}.lock"
        held = lock.hold(path)
        if held is not None:
            return _Place(sweep, folder / sweep.id, path, held)
        busy.add(sweep.id)


def _run_sweep(
    cfg: Config,
    machine: str,
    made: Plan,
    archive: Archive,
    forks: Forks,
    publishing: Publishing,
    *,
    judging: bool = True,
) -> int:
    """Run the plan as a sweep. With `judging` false, records are archived but not judged, published or reported."""
    place = _begin_sweep(archive, made, machine, Path(cfg.outputs).absolute() / "sweeps")

    def judge_scenario(scenario: str) -> Counter[str]:
        return (
            Counter(one.word for _, one in _judge_scenario(archive, place, scenario, publishing))
            if judging
            else Counter()
        )

    with contextlib.closing(place):
        done = place.sweep.done | _recover_records(archive, place)
        if place.sweep.resumed:
            left = "; what is left is its report" if judging and len(done) == len(made.specs) else ""
            counted = f"{len(done)} of {len(made.specs)} processes are archived already"
            say(f"resuming sweep {place.sweep.id}: {counted}{left}")
        if cfg.tracking.enabled:
            publishing.send_sweep(place.sweep.id, archive=cfg.archive.url, blobs=cfg.archive.blobs)
        try:
            _run_specs(cfg, made, archive, place, done, forks, judge_scenario)
        except KeyboardInterrupt:
            there = archive.sweep(place.sweep.id).done
            say(f"interrupted: {there} of {len(made.specs)} processes are archived; the same command resumes")
            return 130
        status = _conclude_sweep(cfg, archive, place.sweep.id) if judging else 0
        if judging:
            with console.status("publishing to MLflow"):
                say(publishing.finish() or "MLflow: not asked for")
        _remove_folder(archive, place.folder)
    return status


def _remove_folder(archive: Archive, folder: Path) -> None:
    """Remove a folder of records, once the archive's database has them durably outside its log."""
    if archive.flush_log():
        if not folders.remove(folder):
            say(f"{folder} cannot be removed wholly: what is left in it belongs to somebody else")
    else:
        say(f"another process is reading the archive, so {folder} stays: the same command removes it")


def _recover_records(archive: Archive, place: _Place) -> set[str]:
    """Archive records that a killed driver left unarchived and clear its folder. Return the digests of their specs."""
    taken: set[str] = set()
    for folder in supervisor.record_folders(place.folder):
        try:
            archive.add(folder, place.sweep.id)
            taken.add(Record.from_text((folder / "record.json").read_text(encoding="utf-8")).spec.digest())
        except (ArchiveError, RecordError, OSError) as error:
            # The machine may have stopped before everything was on disk. The case is run again.
            say(f"what an earlier run left cannot be taken in{_move_unreadable(folder, place)}: {error}")
    kept = set() if archive.flush_log() else set(supervisor.record_folders(place.folder))
    for path in sorted(place.folder.glob("*")):
        if path not in kept and not folders.remove(path):
            say(f"{path} cannot be removed wholly: what is left in it belongs to somebody else")
    place.folder.mkdir(parents=True, exist_ok=True)
    return taken


def _move_unreadable(folder: Path, place: _Place) -> str:
    """Move the folder aside and return where to, as part of a sentence; empty if it cannot be moved."""
    aside = folders.free_path(place.folder.parent / "unreadable" / folder.name)
    try:
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, aside)
    except OSError:
        return ""
    return f", and is kept in {aside}"


def _run_specs(
    cfg: Config,
    made: Plan,
    archive: Archive,
    place: _Place,
    done: frozenset[str] | set[str],
    forks: Forks,
    judge_scenario: Callable[[str], Counter[str]],
) -> None:
    """Run the specs that are not done and archive each record as it arrives.

    `judge_scenario` is called with each scenario that is completely archived, and returns its replays by verdict.
    """
    waiting = Counter(spec.question.scenario for spec in made.specs if spec.digest() not in done)
    for scenario in dict.fromkeys(spec.question.scenario for spec in made.specs):
        if not waiting[scenario]:
            judge_scenario(scenario)
    with _source_roots(made) as roots, Bar(len(made.specs), len(done)) as bar:
        ended = local.run(
            [spec for spec in made.specs if spec.digest() not in done],
            workers=cfg.workers or local.cores(),
            roots=roots,
            scratch=place.folder,
            missing=made.missing,
            watch=bar.show_running,
            forks=forks,
        )
        archived: list[Path] = []
        with contextlib.closing(ended):
            for record, folder in ended:
                archived.append(_archive_record(archive, place, record, folder))
                bar.count_ended()
                scenario = record.spec.question.scenario
                waiting[scenario] -= 1
                if not waiting[scenario]:
                    bar.count_verdicts(scenario, judge_scenario(scenario))
                    if archive.flush_log():
                        for path in archived:
                            folders.remove(path)
                        archived.clear()


def _archive_record(archive: Archive, place: _Place, record: Record, folder: Path) -> Path:
    """Archive a record and return its folder, which must be kept until `Archive.flush_log`.

    A record with invalid content is replaced by one that reports this. Any other failure stops the sweep, with the
    evidence still in its folder.
    """
    try:
        try:
            archive.add(folder, place.sweep.id)
        except ArchiveError as error:
            if error.__cause__ is not None:  # of the database or the disk
                raise
            why = str(error).replace(f"{folder}: ", "")
            folder = folders.free_path(folder)
            supervisor.lost_record(record.spec, folder, f"its record cannot be kept: {why}")
            archive.add(folder, place.sweep.id)
    except ArchiveError as error:
        later = f"`python -m store add {shlex.quote(str(folder))}` takes it in later"
        rescue = f"{later}, and so does the same command run again"
        raise ArchiveError(f"{error}; the evidence stays in {folder}: {rescue}") from None
    return folder


def _judge_scenario(
    archive: Archive, place: _Place, scenario: str, publishing: Publishing
) -> list[tuple[Replay, Verdict]]:
    """Judge the replays of a completely archived scenario and send its records to the publisher."""
    records = archive.records(sweep=place.sweep.id, scenario=scenario)
    publishing.send_records([digest(record.text()) for record in records])
    made = replays(records)
    return [(replay, judge(replay, context)) for replay, context in zip(made, contexts(made, archive.fetch))]


@contextlib.contextmanager
def _source_roots(made: Plan) -> Iterator[dict[str, Path]]:
    """Yield the source folders: the original and, if the plan needs it, a verified copy."""
    if not any(spec.setting.sources == "copied" for spec in made.specs):
        yield {"original": catalogue.ROOT}
        return
    with folders.temporary_folder("twofold-copy-") as folder:
        yield {"original": catalogue.ROOT, "copied": source_copy.copy_sources(catalogue.ROOT, folder).root}


def _conclude_sweep(cfg: Config, archive: Archive, sweep: str) -> int:
    """Report on the whole sweep, print the results and return the exit status."""
    made = replays(archive.records(sweep=sweep))
    verdicts = [(replay, judge(replay, context)) for replay, context in zip(made, contexts(made, archive.fetch))]
    counts = Counter(verdict.word for _, verdict in verdicts)
    made_report = _write_report(cfg, archive, sweep)
    print(", ".join(f"{counts[word]} {word}" for word in ORDER), f"(of {len(made)} replays)")
    for word in (NOT_AS_EXPECTED, CANNOT_SAY):
        _print_reasons(word, verdicts)
    astray = _print_series(made)
    differing = _print_audit(audit_forks(made, archive.fetch))
    if made_report is not None:
        _print_agreements(made_report.across)
        print(f"report: {Path(cfg.outputs) / 'reports' / f'{sweep}.md'}")
    print(f"browse: {_browse_command(cfg)}")
    return 1 if counts[NOT_AS_EXPECTED] or astray or differing else 0


def _browse_command(cfg: Config) -> str:
    """Return the command or URL to browse what this sweep archived and published."""
    tracking, archive = cfg.tracking, cfg.archive
    if not tracking.enabled or is_impossible(tracking.uri):
        where = [] if archive.url == ARCHIVE else ["--archive", mask_secrets(archive.url), "--blobs", archive.blobs]
        return shlex.join(["python", "-m", "store", "list", *where])
    if tracking.uri.startswith("http"):
        return mask_secrets(tracking.uri)
    if (tracking.uri, tracking.artifacts or ARTIFACTS) == (TRACKING, ARTIFACTS):
        return "make ui"
    where = ["--tracking", mask_secrets(tracking.uri), "--artifacts", tracking.artifacts or ARTIFACTS]
    return shlex.join(["python", "-m", "reports.mlflow", "ui", *where])


def _print_reasons(word: str, verdicts: Sequence[tuple[Replay, Verdict]]) -> None:
    """Print why replays have this verdict. Those that could not run are grouped by unmet requirement."""
    reasons: Counter[str] = Counter()
    for replay, verdict in verdicts:
        if verdict.word == word:
            ran = replay.plain is None or replay.plain.outcome.ran
            what = f"{replay.spec.question.scenario} {replay.spec.question.label()}: " if ran else ""
            reasons[f"{what}{'; '.join(verdict.reasons)}"] += 1
    for what, count in reasons.items():
        print(f"  {word} ({count} {'replay' if count == 1 else 'replays'}): {visible_text(what)}")


def _write_report(cfg: Config, archive: Archive, sweep: str) -> build.Report | None:
    if not cfg.report:
        return None
    with console.status("comparing with other settings"):
        made = build.make_report(archive, sweep, sweep)
    build.save_report(made, Path(cfg.outputs) / "reports", sweep)
    return made


def _print_agreements(found: Across | None) -> None:
    """Print how each other setting agrees with this one. Differences are not failures of the sweep."""
    if found is None:
        return
    for one in found.others:
        counts = Counter(pair.agreement.rank for pair in found.by_setting[one.name] if pair.compared)
        shown = ", ".join(f"{counts[rank]} {word}" for rank, word in RANKS.items() if counts[rank] and rank != 6)
        if shown:
            print(f"beside setting {visible_text(one.name)} ({found.host_description(one)}): {shown}")


def _print_series(made: Sequence[Replay]) -> int:
    """Print the results of the series and return how many curves are not as expected."""
    curves = [
        (one, curve) for one in measured_series(p for replay in made for p in points(replay)) for curve in one.curves
    ]
    judged = [(one, curve) for one, curve in curves if curve.word]
    for series in unmeasured_series(made):
        print(
            f"series {visible_text(series.name)}: cannot say: "
            f"no case of it has measured {visible_text(series.measure)!r}"
        )
    for one, curve in judged:
        name = visible_text(f"{one.series.name}: {curve.label} on {curve.device}, {curve.runs}")
        print(visible_text(f"series {name}: {curve.word}: {curve.reason}"))
    return sum(curve.word == NOT_AS_EXPECTED for _, curve in judged)


def _print_audit(found: Sequence[tuple[Replay, Agreement]]) -> int:
    """Print the results of an audit and return how many forked replays differ from their fresh ones."""
    found = [(replay, agreement) for replay, agreement in found if agreement.rank != 6]
    differing = [(replay, agreement) for replay, agreement in found if agreement.rank != 1]
    if found:
        print(f"audit: {len(found) - len(differing)} of {len(found)} forked replays are identical to a fresh one")
    for replay, agreement in differing:
        question = replay.spec.question
        print(visible_text(f"  {agreement.word}: {question.scenario} {question.label()}: {agreement.first}"))
    return len(differing)


if __name__ == "__main__":
    sys.exit(streams.run_program("experiments", main))

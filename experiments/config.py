"""The typed configuration, and the plan that it asks for.

`plan` is the last place that sees configuration: what follows gets frozen specs.
"""

from __future__ import annotations

import difflib
import fnmatch
import itertools
import os
import shutil
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import AbstractSet as Set
from typing import Any, Iterator, Mapping, Sequence

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf
from sqlalchemy import URL

from . import needs
from .addresses import masked
from .catalogue import Catalogue, Entry
from .catalogue import labels as labels_of
from .multirun import write_no_file
from .record import PASSES, Mark, Question, Setting, Spec, case_label
from .series import Expected, Series


class ConfigError(Exception):
    """A value that cannot be planned. The message says what was found and what is allowed."""


class Device(Enum):
    present = "present"
    """Every device that the interpreter's torch can use."""
    cpu = "cpu"
    cuda = "cuda"


class Suite(Enum):
    full = "full"
    quick = "quick"
    """Scenarios marked quick, each case replayed once."""


class Isolation(Enum):
    fresh = "fresh"
    """A new interpreter for each process."""
    forked = "forked"
    """A fork of an interpreter that has only imported torch, where the case and the system allow it."""
    audit = "audit"
    """Forked, and a fixed sample fresh as well, under another hash seed, to be compared."""


class Pass(Enum):
    plain = "plain"
    profiled = "profiled"


class Engine(Enum):
    local = "local"


class Sources(Enum):
    original = "original"
    copied = "copied"
    """A verified copy in another folder."""


class Precision(Enum):
    torch = ""
    """As torch has it."""
    highest = "highest"
    high = "high"
    medium = "medium"


@dataclass
class IsolationConfig:
    kind: Isolation = Isolation.fresh
    sample: float = 0.25
    """Share of the replays, 0 to 1, that an audit runs fresh as well."""


@dataclass
class EngineConfig:
    kind: Engine = Engine.local


@dataclass
class EnvironmentConfig:
    """Under which interpreter and variables the workers run."""

    name: str = "default"
    python: str = ""
    """An interpreter that has torch: a path, or a name to be found on PATH. Empty: the one that runs this."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables that the workers get beside the numeric ones of the caller."""
    threads: int | None = None
    """Compute threads. null: as many as each scenario asks for, which is one where threads are not the point."""
    matmul_precision: Precision = Precision.torch
    """Float32 matmul precision that the cases find."""
    sources: Sources = Sources.original
    """Whether the workers run from the sources here or from a verified copy."""


@dataclass
class ArchiveConfig:
    url: str = MISSING
    """SQLAlchemy URL of the archive."""
    blobs: str = MISSING
    """Folder of tensors and outputs, by digest."""


@dataclass
class TrackingConfig:
    enabled: bool = True
    uri: str = MISSING
    """MLflow tracking URI."""
    artifacts: str = MISSING
    """Folder of MLflow's artifacts, for a store that is a file."""
    wait: float = 120.0
    """Seconds to wait, once the sweep is over, for MLflow to catch up."""


@dataclass
class LimitsConfig:
    """What a worker may use, unless its scenario says otherwise."""

    timeout: float = 120.0
    """Seconds."""
    memory: int | None = 8 * 2**30
    """Bytes of resident memory. null for no limit."""
    output: int = 65536
    """Bytes kept of each of stdout and stderr."""
    disk: int = 2**30
    """Bytes that one file, and all files in the process's own folder, may grow to."""
    keep: int = 16384
    """Bytes up to which a tensor is kept whole."""
    keep_deciding: int = 4 * 2**20
    """Bytes up to which a tensor is kept whole where a verdict may hang on one of its elements: where cases are to
    differ from the reference, or to be within its rounding."""


@dataclass
class ExponentConfig:
    """The exponent that a curve of a series should have."""

    value: float = MISSING
    within: float = MISSING


@dataclass
class SeriesConfig:
    """One scenario over one of its parameters, drawn as a figure: see `series.Series`."""

    title: str = MISSING
    scenario: str = MISSING
    parameter: str = MISSING
    """A parameter of the cases, or dtype or threads."""
    cases: list[str] = MISSING
    measure: str = MISSING
    """``forward peak``, ``backward held``, ``forward seconds`` and the like, or the name of an observed number."""
    unit: str = ""
    line: str = ""
    """Name of an observed number that is drawn in as a line."""
    exponents: dict[str, ExponentConfig] = field(default_factory=dict)
    """By case."""


@dataclass
class Config:
    """One sweep."""

    scenarios: list[str] = field(default_factory=lambda: ["*"])
    """Names, with * and ?."""
    cases: list[str] = field(default_factory=lambda: ["*"])
    """Case names with their variant, with * and ?. References are run whenever they are needed."""
    suite: Suite = Suite.full
    devices: list[Device] = MISSING
    passes: list[Pass] = field(default_factory=lambda: [Pass.plain, Pass.profiled])
    """How each case is looked at, each in a process of its own."""
    replays: int | None = None
    """Times each case is replayed. null: as often as its scenario says, else once; and what is measured as below."""
    measured_replays: int = 3
    """Times a case is replayed whose memory or time is the point and that takes under ten seconds; the full suite."""
    long_measured_replays: int = 1
    """Likewise of those that take ten seconds or more."""
    seed: int = 1729
    hash_seed: int = 0
    """PYTHONHASHSEED of the workers."""
    workers: int | None = None
    """Processes at a time. null: one for each core that this process may use."""
    dry_run: bool = False
    """Print the plan and run nothing."""
    capsule: str | None = None
    """File to write the chosen scenarios and their evidence to, to be run anywhere with torch."""
    prove: str | None = None
    """A setting of the latest report, or all: flip what tells it from this one, one factor at a time."""
    outputs: str = "outputs"
    """Folder of all that a sweep writes."""
    series: dict[str, SeriesConfig] = field(default_factory=dict)
    """What is drawn over a parameter, by name; of scenarios that are chosen."""
    report: bool = True
    """Write the evidence report when the sweep is over."""
    isolation: IsolationConfig = field(default_factory=IsolationConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    archive: ArchiveConfig = field(default_factory=ArchiveConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's own, which overlooks what stands at the top of a file that begins with a byte-order mark."""

    def load_config(self, config_path: str) -> Any:
        found = super().load_config(config_path)
        path = Path(self.path, self._normalize_file_name(config_path))
        with path.open(encoding="utf-8-sig") as file:
            found.header = self._get_header_dict(file.read(512))
        return found


def register() -> None:
    """Make the schemas known to Hydra, which then refuses unknown keys and wrong types, and how a file becomes an
    address: pasted, a path with % or ? in it would be another one. `-m` is ours, which writes no file.
    """
    # Under the name of Hydra's own class, which does not replace it then.
    SourcesRegistry.instance().types["file"] = FileConfigSource
    OmegaConf.register_new_resolver("sqlite", _sqlite, replace=True)
    write_no_file()
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, node in (
        ("isolation", IsolationConfig),
        ("environment", EnvironmentConfig),
        ("archive", ArchiveConfig),
        ("tracking", TrackingConfig),
        ("engine", EngineConfig),
    ):
        store.store(group=group, name="schema", node=node)


def _sqlite(path: str) -> str:
    return URL.create("sqlite", database=path).render_as_string(hide_password=False)


@dataclass(frozen=True)
class Plan:
    """What a sweep will run."""

    specs: tuple[Spec, ...]
    missing: Mapping[str, str]
    """By spec digest: what the case needs and does not have."""
    broken: tuple[Entry, ...]
    """Chosen scenario files that do not import."""
    absent: str
    """What a device that is not here would have added, in one line. Empty if nothing."""


def plan(cfg: Config, catalogue: Catalogue) -> Plan:
    """Every process of the sweep, in order: scenario by scenario, so that each can be judged when it is done.

    Raises ConfigError or CatalogueError if what is asked for cannot be.
    """
    _check(cfg)
    chosen = [entry for entry in catalogue.select(cfg.scenarios) if _in_suite(entry, cfg.suite)]
    devices = _devices(cfg, catalogue)
    whole = [entry for entry in chosen if entry.error is None]
    _check_cases(cfg.cases, whole)
    _check_series(cfg, catalogue)
    specs = tuple(
        spec for entry in whole for listed in [_on(entry, devices, cfg)] for spec in (*listed, *_audited(listed, cfg))
    )
    if not chosen:
        raise ConfigError(f"suite={cfg.suite.value} holds none of scenarios={list(cfg.scenarios)}")
    if not specs and whole:
        raise ConfigError(f"no case matches cases={list(cfg.cases)}; `python -m experiments.catalogue` lists them")
    return Plan(
        specs=specs,
        missing=_missing(specs, catalogue, Path(cfg.outputs)),
        broken=tuple(entry for entry in chosen if entry.error is not None),
        absent=_absent(whole, devices, cfg),
    )


def joined(plans: Sequence[Plan], cases: Set[str], repeats: int) -> Plan:
    """One plan of several: their first replays of these cases (by digest), all of them `repeats` times in turn.

    Raises ConfigError if there are none.
    """
    planned = [
        (one, spec)
        for one in plans
        for spec in one.specs
        if spec.setting.repeat == 0 and spec.question.case_digest() in cases
    ]
    if not planned:
        raise ConfigError("no case is as it was: the scenario files have changed since; run `make run-all` again")
    again = [(one, spec, _repeat(spec, number)) for number in range(repeats) for one, spec in planned]
    return Plan(
        specs=tuple(made for _, _, made in again),
        missing={
            made.digest(): one.missing[spec.digest()] for one, spec, made in again if spec.digest() in one.missing
        },
        broken=tuple(dict.fromkeys(entry for one in plans for entry in one.broken)),
        absent="",
    )


def _repeat(spec: Spec, number: int) -> Spec:
    return replace(spec, setting=replace(spec.setting, repeat=number))


def everywhere(cfg: Config) -> Config:
    """The same choice on every device that there may be, once, in fresh processes: what a capsule is to run."""
    return replace(cfg, devices=[Device.cpu, Device.cuda], replays=1, isolation=IsolationConfig())


def _missing(specs: Sequence[Spec], catalogue: Catalogue, folder: Path) -> dict[str, str]:
    try:
        return needs.missing(specs, catalogue.machine, folder)
    except needs.NeedError as error:
        raise ConfigError(str(error)) from None


def _check(cfg: Config) -> None:
    counts = ("replays", "measured_replays", "long_measured_replays", "workers")
    for name, value in ((name, getattr(cfg, name)) for name in counts):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value} runs nothing; give 1 or more, or null for the default")
    for name in ("timeout", "memory", "output", "disk", "keep", "keep_deciding"):
        limit = getattr(cfg.limits, name)
        if limit is not None and not limit > 0:
            raise ConfigError(f"limits.{name}={limit} leaves nothing; give a number above 0")
    if Pass.plain not in cfg.passes:
        raise ConfigError(f"passes={[one.value for one in cfg.passes]}: outcomes come from the plain pass; name it too")
    if not 0 <= cfg.isolation.sample <= 1:
        raise ConfigError(f"isolation.sample={cfg.isolation.sample}: a share is 0 to 1")
    if not abs(cfg.seed) < 2**53:
        raise ConfigError(f"seed={cfg.seed}: give a number below 2**53, which every record can carry")
    if not 0 <= cfg.hash_seed < 2**32:
        raise ConfigError(f"hash_seed={cfg.hash_seed}: Python takes 0 to {2**32 - 1}")
    if cfg.environment.threads is not None and cfg.environment.threads < 1:
        raise ConfigError(f"environment.threads={cfg.environment.threads}: give 1 or more, or null")
    for name, value in cfg.environment.variables.items():
        if masked(value) != value:
            raise ConfigError(f"environment.variables.{name} has a password in it, and so would records: leave it out")
    if cfg.capsule is not None and not Path(cfg.capsule).absolute().parent.is_dir():
        raise ConfigError(f"capsule={cfg.capsule}: there is no such folder")
    interpreter(cfg.environment)


def interpreter(environment: EnvironmentConfig) -> str:
    """The interpreter's path. Empty for the one that runs this. Raises ConfigError if there is none."""
    python = environment.python
    if not python or Path(python).is_file():
        return python
    found = shutil.which(python)
    if found is None:
        raise ConfigError(f"environment.python={python}: there is no such file, and no such program on PATH")
    return found


def _check_cases(patterns: Sequence[str], entries: Sequence[Entry]) -> None:
    """A pattern that matches nothing is a slip of the pen, also beside one that does."""
    labels = sorted({label for entry in entries for case in entry.cases for label in labels_of(case)})
    for pattern in patterns if labels else ():
        if not any(_matches(label, [pattern]) for label in labels):
            near = difflib.get_close_matches(pattern, [*labels, *{label.partition("[")[0] for label in labels}], n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"no case matches {pattern!r}; {hint}`python -m experiments.catalogue` lists them")


def _check_series(cfg: Config, catalogue: Catalogue) -> None:
    """Everything that a series names is there: a point that nobody measures would be missing without a word."""
    entries = {entry.name: entry for entry in catalogue.entries}
    for name, series in cfg.series.items():
        if series.scenario not in entries:
            near = difflib.get_close_matches(series.scenario, list(entries), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`python -m experiments.catalogue` lists them"
            raise ConfigError(f"series.{name}: no scenario is named {series.scenario!r}; {hint}")
        if entries[series.scenario].error is not None:
            continue
        cases = {case["name"]: case for case in entries[series.scenario].cases}
        for case in (*series.cases, *series.exponents):
            if case not in cases:
                raise ConfigError(f"series.{name}: {series.scenario} has no case {case!r}; it has {', '.join(cases)}")
        known = {"dtype", "threads", *(key for case in series.cases for key in _parameters(cases[case]))}
        if series.parameter not in known:
            raise ConfigError(
                f"series.{name}: its cases have no parameter {series.parameter!r}; known are {', '.join(sorted(known))}"
            )


def _parameters(case: Mapping[str, Any]) -> set[str]:
    return {key for variant in case["variants"] for key in variant["parameters"]}


def _in_suite(entry: Entry, suite: Suite) -> bool:
    return suite is Suite.full or entry.error is not None or suite.value in entry.suites


def _devices(cfg: Config, catalogue: Catalogue) -> list[str]:
    """The devices asked for, each once."""
    if not cfg.devices:
        raise ConfigError("devices=[] runs nothing; give present, cpu, cuda or several of them")
    present = ["cpu", "cuda"] if catalogue.has_cuda else ["cpu"]
    named = (present if device is Device.present else [device.value] for device in cfg.devices)
    return list(dict.fromkeys(itertools.chain.from_iterable(named)))


def _absent(entries: Sequence[Entry], devices: Sequence[str], cfg: Config) -> str:
    if "cuda" in devices or not any(device is Device.present for device in cfg.devices):
        return ""
    added = [spec for entry in entries for spec in _entry(entry, "cuda", cfg)]
    cases = len({spec.question.case_digest() for spec in added})
    return f"no CUDA device here; one would add {cases} cases ({len(added)} processes)" if added else ""


# Specs of one scenario.


@dataclass(frozen=True)
class _Chosen:
    """A case in one variant."""

    case: Mapping[str, Any]
    parameters: Mapping[str, Any]
    dtype: str
    input_dtype: str


def _on(entry: Entry, devices: Sequence[str], cfg: Config) -> list[Spec]:
    return [spec for device in devices for spec in _entry(entry, device, cfg)]


def _entry(entry: Entry, device: str, cfg: Config) -> Iterator[Spec]:
    wanted = _wanted(entry, device, cfg)
    replays = cfg.replays or (1 if cfg.suite is Suite.quick else entry.replays or 1)
    listed = _with_references(entry, device, wanted)
    measured = [
        max(_measured_replays(entry, chosen, cfg), _reference_replays(entry, chosen, device, cfg)) for chosen in listed
    ]
    for repeat in range(max([replays, *measured])):
        for chosen, most in zip(listed, measured):
            for pass_ in _looks(chosen, repeat, replays, most, cfg):
                yield Spec(
                    question=_question(entry, chosen, device, cfg, pass_),
                    setting=_setting(entry, chosen, device, cfg, repeat, replays),
                    mark=_mark(entry, chosen, device, cfg),
                )


def _measured_replays(entry: Entry, chosen: _Chosen, cfg: Config) -> int:
    """Times a case is replayed for what is measured in it: none of them beyond what is asked for by `replays`."""
    if cfg.replays is not None or cfg.suite is Suite.quick or _is_ruler(chosen) or not _is_measured(entry, chosen, cfg):
        return 0
    return cfg.long_measured_replays if chosen.case["measured"] == "at length" else cfg.measured_replays


def _reference_replays(entry: Entry, chosen: _Chosen, device: str, cfg: Config) -> int:
    """Times a reference is replayed so that a difference from it is shown not to be its own: two processes, or two
    passes of one.
    """
    if chosen.case["role"] != "reference" or _is_ruler(chosen) or len(_passes(chosen.case, cfg)) > 1:
        return 0
    expected = _expected_against(entry, device, chosen.case)
    return 2 if any(expectation["kind"] == "differs" for expectation in expected) else 0


def _is_ruler(chosen: _Chosen) -> bool:
    """A reference in float64, which only serves to measure rounding."""
    return chosen.dtype != chosen.input_dtype


def _is_measured(entry: Entry, chosen: _Chosen, cfg: Config) -> bool:
    """Whether memory or time is its point: its mark says so, or it is a point of a series."""
    case = chosen.case
    bounds = any(expectation["kind"] in ("peaks", "holds") for expectation in case["expectations"])
    return bool(case["measured"] or case["warm_up"] or bounds or any(_series(entry, case["name"], cfg)))


def _looks(chosen: _Chosen, repeat: int, replays: int, measured: int, cfg: Config) -> list[str]:
    """Passes of one repeat. A ruler is read once, and not looked at more closely; what is repeated for a measurement
    is looked at again only where its expectation needs it.
    """
    if _is_ruler(chosen):
        return [] if repeat else list(PASSES[:1])
    if repeat < replays:
        return _passes(chosen.case, cfg)
    if repeat >= measured:
        return []
    needed = any(expectation["kind"] == "recomputes_without" for expectation in chosen.case["expectations"])
    return _passes(chosen.case, cfg) if needed else list(PASSES[:1])


def _passes(case: Mapping[str, Any], cfg: Config) -> list[str]:
    """A case whose operators are not the point is not profiled."""
    return [one for one in PASSES if Pass(one) in cfg.passes and (one != "profiled" or case["profiled"])]


def _wanted(entry: Entry, device: str, cfg: Config) -> list[_Chosen]:
    """Cases of the configuration's choice, in every variant that this device has."""
    found = [
        _Chosen(case, variant["parameters"], variant["dtype"], variant["dtype"])
        for case in entry.cases
        if case["role"] != "reference" and device in case["on"]
        for variant in case["variants"]
    ]
    return [one for one in found if _matches(_label(one), cfg.cases)]


def _label(one: _Chosen) -> str:
    return case_label(one.case["name"], one.parameters, one.dtype, one.input_dtype)


def _matches(label: str, patterns: Sequence[str]) -> bool:
    """A pattern matches the case with its variant, or the bare case. Brackets are meant as they stand."""
    bare = label.partition("[")[0]
    return any(fnmatch.fnmatchcase(text, pattern.replace("[", "[[]")) for pattern in patterns for text in (label, bare))


def _with_references(entry: Entry, device: str, wanted: Sequence[_Chosen]) -> list[_Chosen]:
    """The references that the cases need, in float64 too, then the cases. Each once."""
    listed: dict[str, _Chosen] = {}
    for one in wanted:
        if device == "cpu" and "cuda" in one.case["needs"]:
            continue  # It will not run, so there is nothing to compare.
        reference = _reference(entry, device, one)
        if reference is not None:
            ruled = _is_ruled(entry, device, reference.case)
            for made in (reference, *([_exact(reference)] if ruled else [])):
                listed.setdefault(_label(made), made)
    return [*listed.values(), *wanted]


def _reference(entry: Entry, device: str, one: _Chosen) -> _Chosen | None:
    """The reference of a case: the same inputs, the same dtype, and the parameters that it takes."""
    candidates = entry.references(device)
    name = one.case["reference"]
    case = next((case for case in candidates if name in (None, case["name"])), None)
    if case is None:
        if name is not None:
            raise ConfigError(f"{entry.name}: case {one.case['name']} names {name!r}, which is no reference")
        return None
    compared = any(expectation["kind"] in ("agrees", "differs") for expectation in one.case["expectations"])
    if compared and case["gradient"] != one.case["gradient"]:
        raise ConfigError(
            f"{entry.name}: case {one.case['name']} is compared with {case['name']}, "
            "and one of them is not differentiated"
        )
    parameters = {key: value for key, value in one.parameters.items() if key in case["takes"]}
    return _Chosen(case, parameters, one.dtype, one.dtype)


def _is_ruled(entry: Entry, device: str, reference: Mapping[str, Any]) -> bool:
    """Whether rounding is measured for what is compared with the reference: only where a case or the scenario asks."""
    expected = _expected_against(entry, device, reference)
    return entry.rounding or any(one["kind"] == "agrees" and not one["bitwise"] for one in expected)


def _is_decided_by_elements(entry: Entry, device: str, reference: Mapping[str, Any]) -> bool:
    """Whether a verdict may hang on one element of what is compared with the reference, so that all are kept."""
    kinds = {expectation["kind"] for expectation in _expected_against(entry, device, reference)}
    return _is_ruled(entry, device, reference) or "differs" in kinds


def _expected_against(entry: Entry, device: str, reference: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What is expected of the cases that are compared with the reference."""
    first = next(iter(entry.references(device)), None)
    for case in entry.cases:
        named = case["reference"] or (first["name"] if first else None)
        if case["role"] != "reference" and device in case["on"] and named == reference["name"]:
            yield from case["expectations"]


def _exact(reference: _Chosen) -> _Chosen:
    return _Chosen(reference.case, reference.parameters, "float64", reference.input_dtype)


def _question(entry: Entry, chosen: _Chosen, device: str, cfg: Config, pass_: str) -> Question:
    return Question(
        scenario=entry.name,
        source=entry.source_digest,
        case=chosen.case["name"],
        parameters=chosen.parameters,
        device=device,
        dtype=chosen.dtype,
        input_dtype=chosen.input_dtype,
        seed=cfg.seed,
        threads=entry.threads,
        pass_=pass_,
    )


def _setting(entry: Entry, chosen: _Chosen, device: str, cfg: Config, repeat: int, replays: int) -> Setting:
    limits, case = cfg.limits, chosen.case
    reference = chosen if case["role"] == "reference" else _reference(entry, device, chosen)
    decided = reference is not None and _is_decided_by_elements(entry, device, reference.case)
    # Of several replays the last runs from a copy of the sources in another folder.
    copied = cfg.environment.sources is Sources.copied or (replays > 1 and repeat == replays - 1)
    return Setting(
        environment=cfg.environment.name,
        interpreter=interpreter(cfg.environment),
        variables=dict(cfg.environment.variables),
        isolation="forked" if _forks(cfg, case, copied=copied) else "fresh",
        sources="copied" if copied else "original",
        timeout=float(case["timeout"] or limits.timeout),
        memory=case["memory"] or limits.memory,
        output=case["output"] or limits.output,
        disk=case["disk"] or limits.disk,
        keep=limits.keep_deciding if decided else limits.keep,
        compile_cache="private",
        threads=cfg.environment.threads,
        matmul_precision=cfg.environment.matmul_precision.value,
        hash_seed=cfg.hash_seed,
        repeat=repeat,
        attempt=0,
    )


def _forks(cfg: Config, case: Mapping[str, Any], *, copied: bool) -> bool:
    """Copied sources are not what the server has imported; CUDA does not survive a fork once it is in use,
    and the server does not use it.
    """
    return cfg.isolation.kind is not Isolation.fresh and hasattr(os, "fork") and case["fork_safe"] and not copied


def _audited(specs: Sequence[Spec], cfg: Config) -> Iterator[Spec]:
    """The sample that an audit runs fresh as well: the same at every sweep, chosen by the replay's digest."""
    if cfg.isolation.kind is not Isolation.audit:
        return
    for spec in specs:
        if spec.setting.isolation == "forked" and int(spec.replay_digest()[:8], 16) / 2**32 < cfg.isolation.sample:
            setting = replace(spec.setting, isolation="fresh", hash_seed=(spec.setting.hash_seed + 1) % 2**32)
            yield replace(spec, setting=setting)


def _mark(entry: Entry, chosen: _Chosen, device: str, cfg: Config) -> Mark:
    case = chosen.case
    if case["role"] == "reference":
        reference = None
        ruled = chosen.dtype == chosen.input_dtype and _is_ruled(entry, device, case)
        exact = _exact(chosen) if ruled else None
    else:
        reference = _reference(entry, device, chosen)
        ruled = reference is not None and _is_ruled(entry, device, reference.case)
        exact = _exact(reference) if reference is not None and ruled else None
    return Mark(
        role=case["role"],
        expectations=tuple(case["expectations"]),
        why=case["why"],
        cause=case["cause"],
        needs=tuple(case["needs"]),
        reference=None if reference is None else _question(entry, reference, device, cfg, "plain").case_digest(),
        float64=None if exact is None else _question(entry, exact, device, cfg, "plain").case_digest(),
        fork_safe=case["fork_safe"],
        series=tuple(_series(entry, case["name"], cfg)),
    )


def _series(entry: Entry, case: str, cfg: Config) -> Iterator[dict[str, Any]]:
    """The series that the case is a curve of."""
    for name, one in sorted(cfg.series.items()):
        if one.scenario == entry.name and case in one.cases:
            exponents = {case: Expected(wanted.value, wanted.within) for case, wanted in one.exponents.items()}
            told = {"title": one.title, "parameter": one.parameter, "measure": one.measure, "unit": one.unit}
            yield Series(
                name=name, scenario=one.scenario, cases=tuple(one.cases), line=one.line, exponents=exponents, **told
            ).to_json()

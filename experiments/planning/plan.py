"""Build the plan of a sweep from its configuration: one spec for each process."""

from __future__ import annotations

import difflib
import fnmatch
import itertools
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import AbstractSet as Set
from typing import Any, Iterator, Mapping, Sequence

from ..analysis.series import Expected, Series
from ..core import requirements
from ..core.masking import mask_secrets
from ..core.spec import PASSES, Mark, Question, Setting, Spec, case_label
from .catalogue import Catalogue, Entry
from .catalogue import labels as labels_of
from .config import Config, ConfigError, Device, EnvironmentConfig, Isolation, IsolationConfig, Pass, Sources, Suite


@dataclass(frozen=True)
class Plan:
    """What a sweep will run."""

    specs: tuple[Spec, ...]
    missing: Mapping[str, str]
    """Unmet requirement of a case, by spec digest."""
    broken: tuple[Entry, ...]
    """Chosen scenario files that do not import."""
    absent: str
    """One line about the cases that an absent device would add. Empty if there are none."""


def plan(cfg: Config, catalogue: Catalogue) -> Plan:
    """Plan every process of the sweep, in order: scenario by scenario, so that each can be judged when it is done.

    Raises ConfigError or CatalogueError if the configuration cannot be planned.
    """
    _check_config(cfg)
    chosen = [entry for entry in catalogue.select(cfg.scenarios) if _is_in_suite(entry, cfg.suite)]
    devices = _devices(cfg, catalogue)
    whole = [entry for entry in chosen if entry.error is None]
    _check_cases(cfg.cases, whole)
    _check_series(cfg, catalogue)
    specs = tuple(
        spec
        for entry in whole
        for listed in [_device_specs(entry, devices, cfg)]
        for spec in (*listed, *_audit_specs(listed, cfg))
    )
    if not chosen:
        raise ConfigError(f"suite={cfg.suite.value} holds none of scenarios={list(cfg.scenarios)}")
    if not specs and whole:
        raise ConfigError(
            f"no case matches cases={list(cfg.cases)}; `python -m experiments.planning.catalogue` lists them"
        )
    return Plan(
        specs=specs,
        missing=_missing_needs(specs, catalogue, Path(cfg.outputs)),
        broken=tuple(entry for entry in chosen if entry.error is not None),
        absent=_absent_device_text(whole, devices, cfg),
    )


def join_plans(plans: Sequence[Plan], cases: Set[str], repeats: int) -> Plan:
    """Join plans: their first replays of these cases (by digest), all of them `repeats` times in turn.

    Raises ConfigError if there are no such replays.
    """
    planned = [
        (one, spec)
        for one in plans
        for spec in one.specs
        if spec.setting.repeat == 0 and spec.question.case_digest() in cases
    ]
    if not planned:
        raise ConfigError("no case is as it was: the scenario files have changed since; run `make run-all` again")
    again = [(one, spec, _set_repeat(spec, number)) for number in range(repeats) for one, spec in planned]
    return Plan(
        specs=tuple(made for _, _, made in again),
        missing={
            made.digest(): one.missing[spec.digest()] for one, spec, made in again if spec.digest() in one.missing
        },
        broken=tuple(dict.fromkeys(entry for one in plans for entry in one.broken)),
        absent="",
    )


def _set_repeat(spec: Spec, number: int) -> Spec:
    return replace(spec, setting=replace(spec.setting, repeat=number))


def capsule_config(cfg: Config) -> Config:
    """Return the configuration of a capsule: the same scenarios on all devices, once, in fresh processes."""
    return replace(cfg, devices=[Device.cpu, Device.cuda], replays=1, isolation=IsolationConfig())


def _missing_needs(specs: Sequence[Spec], catalogue: Catalogue, folder: Path) -> dict[str, str]:
    try:
        return requirements.missing_needs(specs, catalogue.machine, folder)
    except requirements.NeedError as error:
        raise ConfigError(str(error)) from None


def _check_config(cfg: Config) -> None:
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
        if mask_secrets(value) != value:
            raise ConfigError(f"environment.variables.{name} has a password in it, and so would records: leave it out")
    if cfg.capsule is not None and not Path(cfg.capsule).absolute().parent.is_dir():
        raise ConfigError(f"capsule={cfg.capsule}: there is no such folder")
    interpreter(cfg.environment)


def interpreter(environment: EnvironmentConfig) -> str:
    """Return the interpreter's path, empty for the current one. Raises ConfigError if there is none."""
    python = environment.python
    if not python or Path(python).is_file():
        return python
    found = shutil.which(python)
    if found is None:
        raise ConfigError(f"environment.python={python}: there is no such file, and no such program on PATH")
    return found


def _check_cases(patterns: Sequence[str], entries: Sequence[Entry]) -> None:
    """Raise ConfigError for a pattern that matches no case, even if others match: it is most likely a typo."""
    labels = sorted({label for entry in entries for case in entry.cases for label in labels_of(case)})
    for pattern in patterns if labels else ():
        if not any(_is_match(label, [pattern]) for label in labels):
            near = difflib.get_close_matches(pattern, [*labels, *{label.partition("[")[0] for label in labels}], n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"no case matches {pattern!r}; {hint}`python -m experiments.planning.catalogue` lists them"
            )


def _check_series(cfg: Config, catalogue: Catalogue) -> None:
    """Raise ConfigError if a series names something that does not exist: its points would be missing silently."""
    entries = {entry.name: entry for entry in catalogue.entries}
    for name, series in cfg.series.items():
        if series.scenario not in entries:
            near = difflib.get_close_matches(series.scenario, list(entries), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`python -m experiments.planning.catalogue` lists them"
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


def _is_in_suite(entry: Entry, suite: Suite) -> bool:
    return suite is Suite.full or entry.error is not None or suite.value in entry.suites


def _devices(cfg: Config, catalogue: Catalogue) -> list[str]:
    """Return the requested devices, each once."""
    if not cfg.devices:
        raise ConfigError("devices=[] runs nothing; give present, cpu, cuda or several of them")
    present = ["cpu", "cuda"] if catalogue.has_cuda else ["cpu"]
    named = (present if device is Device.present else [device.value] for device in cfg.devices)
    return list(dict.fromkeys(itertools.chain.from_iterable(named)))


def _absent_device_text(entries: Sequence[Entry], devices: Sequence[str], cfg: Config) -> str:
    if "cuda" in devices or not any(device is Device.present for device in cfg.devices):
        return ""
    added = [spec for entry in entries for spec in _entry_specs(entry, "cuda", cfg)]
    cases = len({spec.question.case_digest() for spec in added})
    return f"no CUDA device here; one would add {cases} cases ({len(added)} processes)" if added else ""


# Specs of one scenario.


@dataclass(frozen=True)
class _Chosen:
    """A case in one variant, chosen to run."""

    case: Mapping[str, Any]
    parameters: Mapping[str, Any]
    dtype: str
    input_dtype: str


def _device_specs(entry: Entry, devices: Sequence[str], cfg: Config) -> list[Spec]:
    return [spec for device in devices for spec in _entry_specs(entry, device, cfg)]


def _entry_specs(entry: Entry, device: str, cfg: Config) -> Iterator[Spec]:
    wanted = _select_cases(entry, device, cfg)
    replays = cfg.replays or (1 if cfg.suite is Suite.quick else entry.replays or 1)
    listed = _add_references(entry, device, wanted)
    measured = [
        max(_measured_replays(entry, chosen, cfg), _reference_replays(entry, chosen, device, cfg)) for chosen in listed
    ]
    for repeat in range(max([replays, *measured])):
        for chosen, most in zip(listed, measured):
            for pass_ in _repeat_passes(chosen, repeat, replays, most, cfg):
                yield Spec(
                    question=_question(entry, chosen, device, cfg, pass_),
                    setting=_setting(entry, chosen, device, cfg, repeat, replays),
                    mark=_mark(entry, chosen, device, cfg),
                )


def _measured_replays(entry: Entry, chosen: _Chosen, cfg: Config) -> int:
    """Return how often a case is replayed for its measurements. 0 if that adds nothing to `replays`."""
    if (
        cfg.replays is not None
        or cfg.suite is Suite.quick
        or _is_float64_reference(chosen)
        or not _is_measured(entry, chosen, cfg)
    ):
        return 0
    return cfg.long_measured_replays if chosen.case["measured"] == "at length" else cfg.measured_replays


def _reference_replays(entry: Entry, chosen: _Chosen, device: str, cfg: Config) -> int:
    """Return how often a reference is replayed to show that it repeats itself where a difference from it is expected.

    Two processes are needed, or two passes of one replay.
    """
    if chosen.case["role"] != "reference" or _is_float64_reference(chosen) or len(_passes(chosen.case, cfg)) > 1:
        return 0
    expected = _reference_expectations(entry, device, chosen.case)
    return 2 if any(expectation["kind"] == "differs" for expectation in expected) else 0


def _is_float64_reference(chosen: _Chosen) -> bool:
    """Whether it is a reference in float64, which only serves to measure rounding."""
    return chosen.dtype != chosen.input_dtype


def _is_measured(entry: Entry, chosen: _Chosen, cfg: Config) -> bool:
    """Whether the case is about memory or time: its mark says so, or it is a point of a series."""
    case = chosen.case
    bounds = any(expectation["kind"] in ("peaks", "holds") for expectation in case["expectations"])
    return bool(case["measured"] or case["warm_up"] or bounds or any(_series(entry, case["name"], cfg)))


def _repeat_passes(chosen: _Chosen, repeat: int, replays: int, measured: int, cfg: Config) -> list[str]:
    """Return the passes of one repeat.

    A float64 reference runs once, in the plain pass. Repeats for a measurement are plain only, unless an expectation
    needs the other passes.
    """
    if _is_float64_reference(chosen):
        return [] if repeat else list(PASSES[:1])
    if repeat < replays:
        return _passes(chosen.case, cfg)
    if repeat >= measured:
        return []
    needed = any(expectation["kind"] == "recomputes_without" for expectation in chosen.case["expectations"])
    return _passes(chosen.case, cfg) if needed else list(PASSES[:1])


def _passes(case: Mapping[str, Any], cfg: Config) -> list[str]:
    """Return the passes of a case. One that is not about operators is not profiled."""
    return [one for one in PASSES if Pass(one) in cfg.passes and (one != "profiled" or case["profiled"])]


def _select_cases(entry: Entry, device: str, cfg: Config) -> list[_Chosen]:
    """Return the cases that the configuration selects, in every variant on this device."""
    found = [
        _Chosen(case, variant["parameters"], variant["dtype"], variant["dtype"])
        for case in entry.cases
        if case["role"] != "reference" and device in case["on"]
        for variant in case["variants"]
    ]
    return [one for one in found if _is_match(_label(one), cfg.cases)]


def _label(one: _Chosen) -> str:
    return case_label(one.case["name"], one.parameters, one.dtype, one.input_dtype)


def _is_match(label: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern matches the case with its variant, or the bare case name. Brackets are literal."""
    bare = label.partition("[")[0]
    return any(fnmatch.fnmatchcase(text, pattern.replace("[", "[[]")) for pattern in patterns for text in (label, bare))


def _add_references(entry: Entry, device: str, wanted: Sequence[_Chosen]) -> list[_Chosen]:
    """Return the references that the cases need, in float64 too where needed, then the cases. Each once."""
    listed: dict[str, _Chosen] = {}
    for one in wanted:
        if device == "cpu" and "cuda" in one.case["needs"]:
            continue  # It will not run, so there is nothing to compare.
        reference = _reference(entry, device, one)
        if reference is not None:
            ruled = _is_rounding_measured(entry, device, reference.case)
            for made in (reference, *([_float64_reference(reference)] if ruled else [])):
                listed.setdefault(_label(made), made)
    return [*listed.values(), *wanted]


def _reference(entry: Entry, device: str, one: _Chosen) -> _Chosen | None:
    """Return the reference of a case: with the same inputs and dtype, and those parameters that it takes."""
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


def _is_rounding_measured(entry: Entry, device: str, reference: Mapping[str, Any]) -> bool:
    """Whether rounding is measured for comparisons with the reference: if a case or the scenario requires it."""
    expected = _reference_expectations(entry, device, reference)
    return entry.rounding or any(one["kind"] == "agrees" and not one["bitwise"] for one in expected)


def _is_decided_by_elements(entry: Entry, device: str, reference: Mapping[str, Any]) -> bool:
    """Whether a verdict may depend on single elements compared with the reference, so that all are stored."""
    kinds = {expectation["kind"] for expectation in _reference_expectations(entry, device, reference)}
    return _is_rounding_measured(entry, device, reference) or "differs" in kinds


def _reference_expectations(entry: Entry, device: str, reference: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the expectations of the cases that are compared with the reference."""
    first = next(iter(entry.references(device)), None)
    for case in entry.cases:
        named = case["reference"] or (first["name"] if first else None)
        if case["role"] != "reference" and device in case["on"] and named == reference["name"]:
            yield from case["expectations"]


def _float64_reference(reference: _Chosen) -> _Chosen:
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
    # The last of several replays runs from a copy of the sources in another folder.
    copied = cfg.environment.sources is Sources.copied or (replays > 1 and repeat == replays - 1)
    return Setting(
        environment=cfg.environment.name,
        interpreter=interpreter(cfg.environment),
        variables=dict(cfg.environment.variables),
        isolation="forked" if _is_forked(cfg, case, copied=copied) else "fresh",
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


def _is_forked(cfg: Config, case: Mapping[str, Any], *, copied: bool) -> bool:
    """Whether the case runs in a fork. Copied sources do not, as they are not what the server has imported.

    CUDA is no obstacle: it does not survive a fork once it is in use, but the server does not use it.
    """
    return cfg.isolation.kind is not Isolation.fresh and hasattr(os, "fork") and case["fork_safe"] and not copied


def _audit_specs(specs: Sequence[Spec], cfg: Config) -> Iterator[Spec]:
    """Yield the sample that an audit also runs fresh: the same in every sweep, chosen by the replay's digest."""
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
        ruled = chosen.dtype == chosen.input_dtype and _is_rounding_measured(entry, device, case)
        exact = _float64_reference(chosen) if ruled else None
    else:
        reference = _reference(entry, device, chosen)
        ruled = reference is not None and _is_rounding_measured(entry, device, reference.case)
        exact = _float64_reference(reference) if reference is not None and ruled else None
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
    """Yield the series that the case is a curve of, as JSON."""
    for name, one in sorted(cfg.series.items()):
        if one.scenario == entry.name and case in one.cases:
            exponents = {case: Expected(wanted.value, wanted.within) for case, wanted in one.exponents.items()}
            told = {"title": one.title, "parameter": one.parameter, "measure": one.measure, "unit": one.unit}
            yield Series(
                name=name, scenario=one.scenario, cases=tuple(one.cases), line=one.line, exponents=exponents, **told
            ).to_json()

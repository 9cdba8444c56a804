"""What MLflow shows of a replay and of a sweep: pages made of plain values, without MLflow.

A page is a function of the archive alone, so that the same replay always gives the same page and
publishing twice changes nothing. Text from a case can be anything. It is shown as code, with control
characters made visible; text that is too long is cut visibly, with the digest of the whole next to it.
MLflow itself would cut silently, and turn NaN and infinities into other numbers.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from experiments.analysis.series import Curve, Measured, Point, measured_series, points
from experiments.core.canonical_json import canonical, digest
from experiments.core.observation import Observation, Operator
from experiments.core.quantities import format_count
from experiments.core.record import Record
from experiments.core.replay import Replay
from experiments.core.shell_words import exact_pattern, make_command
from experiments.core.spec import Question, family
from experiments.core.tensor_diff import Difference, differences
from experiments.core.text import cut_text, safe_key, visible_text
from experiments.core.verdict import (
    AS_EXPECTED,
    CANNOT_SAY,
    NOT_AS_EXPECTED,
    Context,
    Verdict,
    describe_outcome,
    instrument_effect,
)
from reports.markdown.elements import block, code

FORMAT = 3
"""Increased when pages of the same records change, so that published sweeps are refreshed."""

ROLES = ("reference", "broken", "repair", "control")

PARAM = 2000
TAG = 4000
NOTE = 7500
"""Most characters that are kept; MLflow would cut at 6000, 8000 and 8000."""
_ROWS = 12
"""Most tensors, or replays, that a note lists."""

STATUS = {
    "finished": "FINISHED",
    "raised": "FAILED",
    "died": "FAILED",
    "out_of_memory": "FAILED",
    "timed_out": "KILLED",
    "not_run": "SCHEDULED",
    "not_observed": "FAILED",
}
"""MLflow's word for how a process ended. SCHEDULED: it never started."""

Compared = Mapping[str, Sequence[Difference]]
"""Differences from ``reference`` and from ``float64``, if these have run."""

Document = Callable[[str], str | None]
"""Returns text by digest, or None if it is not available."""


class Sweep(Protocol):
    """A sweep as the archive describes it."""

    @property
    def id(self) -> str: ...
    @property
    def plan(self) -> str: ...
    @property
    def machine(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def started_at(self) -> str: ...
    @property
    def planned(self) -> int: ...
    @property
    def done(self) -> int: ...
    @property
    def origin(self) -> object | None:
        """Where it came from. None if it was run here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The intended content of one MLflow run."""

    name: str
    status: str
    """A status of MLflow: FINISHED, FAILED, KILLED or SCHEDULED."""
    started: int
    """Milliseconds since 1970, UTC."""
    ended: int
    """Milliseconds since 1970, UTC."""
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    """Finite numbers only."""
    tags: Mapping[str, str]
    files: Mapping[str, str]
    """Artifacts: text by path."""
    steps: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """Metrics that are curves: pairs of step and finite number by name."""
    figures: tuple[Measured, ...] = ()
    """Series to be drawn, each an artifact of its own."""

    def digest(self) -> str:
        """Return a digest that is equal for two pages exactly if everything that would be written is equal."""
        times = {"started": self.started, "ended": self.ended, "status": self.status, "name": self.name}
        files = {path: digest(text.encode("utf-8", "surrogatepass")) for path, text in self.files.items()}
        drawn = [one.to_json() for one in self.figures]
        return digest(canonical([times, self.params, self.metrics, self.tags, files, self.steps, drawn]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A replay in the summary of its sweep."""

    scenario: str
    label: str
    repeat: int
    content: str
    """`Replay.content_digest()`."""
    verdict: Verdict
    ended: int
    """Milliseconds since 1970, UTC."""
    points: tuple[Point, ...] = ()
    """Its points in series."""

    @property
    def name(self) -> str:
        """Scenario without folder, case and repeat."""
        return f"{self.scenario.rpartition('/')[2]}/{self.label} #{self.repeat}"


def record_texts(replay: Replay) -> dict[str, str]:
    """Return the exact text of each record, by pass. It is made once, as it costs more than everything else."""
    return {name: record.text() for name, record in sorted(replay.records.items())}


def row(replay: Replay, verdict: Verdict, written: Mapping[str, str]) -> Row:
    """Return the row of a replay; `written` is what `record_texts` returns."""
    question = replay.spec.question
    return Row(
        scenario=question.scenario,
        label=question.label(),
        repeat=replay.spec.setting.repeat,
        content=digest(canonical({name: digest(text) for name, text in written.items()})),
        verdict=verdict,
        ended=_span(replay)[1],
        points=tuple(points(replay)),
    )


def page(
    replay: Replay, context: Context, shown: Row, written: Mapping[str, str], *, sweep: Sweep, document: Document
) -> Page:
    """Return the run of one replay; `shown` is its row, `written` what `record_texts` returns."""
    started, ended = _span(replay)
    compared = _reference_differences(replay, context)
    finite, rest = _split_finite(_metrics(replay, compared))
    digests = {name: digest(text) for name, text in written.items()}
    return Page(
        name=cut_text(visible_text(shown.name), 250),
        status=STATUS[replay.plain.outcome.kind] if replay.plain else "SCHEDULED",
        started=started,
        ended=ended,
        params=_params(replay),
        metrics=finite,
        tags=_fit_tags(_tags(replay, shown, digests, sweep) | _missing_tags(compared, rest))
        | _source_tags(f"experiments/scenarios/{replay.spec.question.scenario}.py")
        | _note_tag(replay, shown, digests, compared, rest),
        files=dict(_files(replay, written, document)),
    )


# Times.


def milliseconds(moment: str) -> int:
    """Return the milliseconds since 1970 of a time in RFC 3339."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def _span(replay: Replay) -> tuple[int, int]:
    """Return the start of the first process and the end of the last, in milliseconds since 1970."""
    endings = [record.ending for record in replay.records.values()]
    starts = [milliseconds(one.started_at) for one in endings]
    seconds = [one.duration if math.isfinite(one.duration) else 0.0 for one in endings]
    return min(starts), max(start + round(took * 1000) for start, took in zip(starts, seconds))


# Parameters: what was asked.


def _params(replay: Replay) -> dict[str, str]:
    question, setting, mark = replay.spec.question, replay.spec.setting, replay.spec.mark
    params: dict[str, Any] = {
        "scenario": question.scenario,
        "scenario_digest": question.source,
        "case": question.case,
        "role": mark.role,
        "device": question.device,
        "dtype": question.dtype,
        "input_dtype": question.input_dtype,
        "seed": question.seed,
        "threads": question.threads,
        "environment": setting.environment,
        "interpreter": setting.interpreter,
        "isolation": setting.isolation,
        "sources": setting.sources,
        "timeout_seconds": setting.timeout,
        "memory_limit_bytes": setting.memory,
        "hash_seed": setting.hash_seed,
        "repeat": setting.repeat,
        "expected": "; ".join(expected_sentences(replay)),
        "cause": mark.cause,
        "why": mark.why,
        "needs": ", ".join(mark.needs),
    }
    params |= {f"parameter.{safe_key(name)}": value for name, value in question.parameters.items()}
    params |= {f"variable.{safe_key(name)}": value for name, value in setting.variables.items()}
    present = {
        name: value for name, value in params.items() if value not in (None, "") or name.startswith("parameter.")
    }
    return {name: cut_text(visible_text(str(value)), PARAM) for name, value in present.items()}


_EXPECTED = {
    "raises": "raises {type} with a message that contains {text!r}",
    "differs": "some output or gradient differs from the reference by at least {by_at_least}",
    "recomputes_without": "the forward pass runs {operator}, the recomputation does not",
    "state_differs": "the switch {name} is left changed",
    "no_gradient": "no gradient for {names}",
    "refuses": "torch refuses one allocation of {bytes} bytes",
    "hangs": "does not end within its time limit",
}


def expected_sentences(replay: Replay) -> list[str]:
    """Return what the scenario expects of the case, one sentence for each expectation."""
    sentences = [_expectation_sentence(dict(one)) for one in replay.spec.mark.expectations]
    return sentences or ["finishes; it is the reference"]


def _expectation_sentence(data: dict[str, Any]) -> str:
    """Return an expectation as a sentence; one of an unknown kind is shown as it is."""
    kind = str(data.pop("kind", "unknown"))
    if kind == "raises" and not data.get("text"):
        return f"raises {data.get('type')}"
    if kind == "agrees":
        how = "has the same bits as" if data.get("bitwise") else "agrees within rounding with"
        return f"{how} the reference"
    try:
        return _EXPECTED[kind].format(**data)
    except (KeyError, ValueError, IndexError, AttributeError):
        fields = ", ".join(f"{name}={value}" for name, value in sorted(data.items()) if value is not None)
        return f"{kind}({fields})"


# Metrics: what was measured.


def _metrics(replay: Replay, compared: Compared) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for against, found in compared.items():
        metrics |= _difference_metrics(against, found)
    if replay.plain:
        metrics["duration_seconds/process"] = replay.plain.ending.duration
        if replay.plain.observation:
            metrics |= _observation_metrics(replay.plain.observation)
    for phase, operators in _operators(replay).items():
        metrics[f"operators/{safe_key(phase)}"] = float(len(operators))
    return metrics


def _reference_differences(replay: Replay, context: Context) -> Compared:
    others = {"reference": context.reference, "float64": context.float64}
    return {
        against: differences(replay.plain, other.plain, context.fetch)
        for against, other in others.items()
        if replay.plain and other and other.plain
    }


def _difference_metrics(against: str, found: Sequence[Difference]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    seen = [item for item in found if item.compared]
    for item in seen:
        start = f"{against}/{safe_key(f'{item.role} {item.name}')}"
        metrics |= {
            f"{start}/absolute": item.absolute,
            f"{start}/relative": item.relative,
            f"{start}/equal_bits_share": item.equal_bits / item.compared,
        }
        if item.dtype.startswith(("float", "bfloat")):
            metrics[f"{start}/ulp"] = item.ulp
        if item.distance is not None:
            metrics[f"{start}/distance"] = item.distance
    if seen:
        metrics[f"{against}/largest/absolute"] = _largest_value([item.absolute for item in seen])
        metrics[f"{against}/largest/relative"] = _largest_value([item.relative for item in seen])
    return metrics


def _largest_value(values: Sequence[float]) -> float:
    """Return the largest value, or NaN if any is NaN: the result of `max` would depend on the order."""
    return math.nan if any(math.isnan(value) for value in values) else max(values)


def _observation_metrics(seen: Observation) -> dict[str, float]:
    metrics = {f"duration_seconds/{safe_key(phase)}": seconds for phase, seconds in seen.durations.items()}
    for memory in seen.memory:
        sizes = {
            "before": memory.before,
            "peak": memory.peak,
            "cuda_before": memory.cuda_before,
            "cuda_peak": memory.cuda_peak,
        }
        metrics |= {
            f"memory_bytes/{safe_key(memory.phase)}_{name}": float(size)
            for name, size in sizes.items()
            if size is not None
        }
    numbers = [one for one in seen.observed if isinstance(one.value, (int, float)) and not isinstance(one.value, bool)]
    return metrics | {f"observed/{safe_key(one.name)}": float(one.value) for one in numbers}


def _operators(replay: Replay) -> Mapping[str, Sequence[Operator]]:
    record = replay.records.get("profiled")
    return (record.observation.operators if record and record.observation else None) or {}


def _split_finite(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Divide numbers into those that MLflow can hold and those that it would change."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return finite, {name: value for name, value in metrics.items() if name not in finite}


# Tags: what it is, and its outcome.


def _tags(replay: Replay, shown: Row, digests: Mapping[str, str], sweep: Sweep) -> dict[str, str]:
    plain = replay.plain
    machines = sorted({record.observation.machine for record in replay.records.values() if record.observation})
    return {
        "twofold.kind": "replay",
        "twofold.outcome": plain.outcome.kind if plain else "no plain pass",
        "twofold.verdict": shown.verdict.word,
        "twofold.reasons": "; ".join(shown.verdict.reasons),
        "twofold.role": replay.spec.mark.role,
        "twofold.machine": sweep.machine,
        "twofold.facts": " ".join(machines),
        "twofold.sweep": sweep.id,
        "twofold.family": family(shown.scenario),
        "twofold.replay": replay.digest(),
        "twofold.records": shown.content,
        "twofold.evidence": replay.evidence_digest(),
        "twofold.fingerprint": (plain.outcome.fingerprint() if plain else None) or "",
        "twofold.looking_changed": instrument_effect(replay),
        **{f"twofold.record.{safe_key(name)}": text for name, text in digests.items()},
    }


def _missing_tags(compared: Compared, rest: Mapping[str, float]) -> dict[str, str]:
    """Return tags for what has no metric: tensors that could not be compared, and numbers that are not finite."""
    missing = [
        f"{item.role} {item.name} ({against})"
        for against, found in compared.items()
        for item in found
        if not item.compared
    ]
    return {
        "twofold.not_compared": ", ".join(missing),
        "twofold.not_finite": "; ".join(f"{name} = {value}" for name, value in sorted(rest.items())),
    }


def _fit_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: cut_text(visible_text(value), TAG) for name, value in tags.items() if value}


def _source_tags(name: str) -> dict[str, str]:
    return {"mlflow.source.name": cut_text(visible_text(name), TAG), "mlflow.source.type": "LOCAL"}


# The note: what a reader of the run wants to know.


def _note_tag(
    replay: Replay, shown: Row, digests: Mapping[str, str], compared: Compared, rest: Mapping[str, float]
) -> dict[str, str]:
    plain, mark = replay.plain, replay.spec.mark
    parts = [
        f"**{shown.verdict.word}**: {'; '.join(code(text, 500) for text in shown.verdict.reasons[:3])}",
        _section(
            f"Expected of a {mark.role} case" if mark.role in ROLES else "Expected",
            [code(text) for text in expected_sentences(replay)],
            mark.why,
        ),
        _section("Seen", [code(describe_outcome(plain) if plain else "the plain pass has not run")]),
        _section(
            "Every reason", [code(text) for text in shown.verdict.reasons] if len(shown.verdict.reasons) > 3 else []
        ),
        _section("Looking changed it", [code(text) for text in [instrument_effect(replay)] if text]),
        _section("Differences", _difference_lines(compared)),
        _section("Not numbers that MLflow can hold", [code(f"{name} = {value}") for name, value in rest.items()]),
        f"### Repeat it\n{block(_repeat_commands(replay.spec.question, digests))}",
        _traceback(plain),
    ]
    return {"mlflow.note.content": _join_parts(parts)}


def _join_parts(parts: Sequence[str]) -> str:
    """Join as many whole parts as fit: half a part could leave a block of code open."""
    kept: list[str] = []
    for part in filter(None, parts):
        if len("\n\n".join([*kept, part])) <= NOTE - 100:
            kept.append(part)
        else:
            name = part.partition("\n")[0].removeprefix("### ") if part.startswith("### ") else "A part"
            kept.append(f"*{name}: too long for this note; see the record among the artifacts.*")
    return "\n\n".join(kept)[:NOTE]


def _section(heading: str, lines: Sequence[str], aside: str = "") -> str:
    if not lines:
        return ""
    items = [*lines[:_ROWS], *([f"and {len(lines) - _ROWS} more"] if len(lines) > _ROWS else [])]
    listed = "\n".join(f"- {line}" for line in items)
    return f"### {heading}\n{listed}" + (f"\n\nControl, because {code(aside)}" if aside else "")


def _difference_lines(compared: Compared) -> list[str]:
    names = {"reference": "the reference", "float64": "the float64 reference"}
    return [
        f"{code(f'{item.role} {item.name}', 100)} from {names[against]}: {_difference_text(item)}"
        for against, found in compared.items()
        for item in found
    ]


def _difference_text(item: Difference) -> str:
    if not item.compared:
        return "not compared: another shape, or content not at hand"
    if item.same_bits:
        return "same bits"
    units = "" if math.isnan(item.ulp) else f", {format_count(item.ulp)} ULP"
    same = f"{item.equal_bits} of {item.compared} elements with the same bits"
    return f"absolute {item.absolute:.3g}, relative {item.relative:.3g}{units}, {same}"


def _repeat_commands(question: Question, digests: Mapping[str, str]) -> str:
    scenario = exact_pattern(visible_text(question.scenario))
    again = make_command("run-all", SCENARIO=scenario, DEVICE=visible_text(question.device))
    show_commands = [f"python -m store show {name}" for name in digests.values()]
    return "\n".join(
        [again, make_command("snippet", SCENARIO=scenario, CASE=visible_text(question.case)), *show_commands]
    )


def _traceback(record: Record | None) -> str:
    if record is None or record.outcome.kind != "raised":
        return ""
    outcome = record.outcome
    trace = f"\n\n{block(outcome.traceback)}" if outcome.traceback else ""
    return f"### Message\n{block(outcome.message or '')}{trace}"


# Artifacts.


def _files(replay: Replay, written: Mapping[str, str], document: Document) -> Iterator[tuple[str, str]]:
    for name, text in written.items():
        yield f"records/{safe_key(name)}.json", text
    for phase, operators in _operators(replay).items():
        yield f"operators/{safe_key(phase)}.txt", _operator_tree(operators)
    for name, wanted in _documents(replay):
        content = document(wanted)
        if content is not None:
            yield name, content


def _documents(replay: Replay) -> Iterator[tuple[str, str]]:
    """Yield path and digest of the machine's facts and of the sources that are kept."""
    for record in (replay.plain, replay.any):
        if record is not None and record.observation is not None:
            yield "machine.json", record.observation.machine
            kept = [source for source in record.observation.sources if source.kept]
            yield from ((_path_below("sources", source.name), source.digest) for source in kept)
            return


def _path_below(folder: str, name: str) -> str:
    """Return a path below `folder`, whatever `name` contains."""
    parts = [part for part in re.split(r"[/\\]", name) if part not in ("", ".", "..")]
    return "/".join([folder, *(safe_key(part) for part in parts or ["unnamed"])])


def _operator_tree(operators: Sequence[Operator]) -> str:
    """Return the operators as indented text, each with the shapes of its arguments."""
    several = len({operator.thread for operator in operators}) > 1
    lines = [
        (f"{operator.thread:>3} | " if several else "")
        + "  " * operator.depth
        + " ".join([visible_text(operator.name), *(_shape_text(shape) for shape in operator.shapes if shape)])
        for operator in operators
    ]
    return "\n".join(lines) + "\n" if lines else "none\n"


def _shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


# The summary of a sweep within one family.


def summary(sweep: Sweep, name: str, rows: Sequence[Row]) -> Page:
    """Return the parent run: the verdicts on the replays of one family, whatever the order of `rows`."""
    rows = sorted(rows, key=lambda one: (one.scenario, one.label, one.repeat, one.content))
    counts = Counter(one.verdict.word for one in rows)
    started = milliseconds(sweep.started_at)
    found = measured_series(point for one in rows for point in one.points)
    return Page(
        name=cut_text(visible_text(sweep.id), 250),
        status=_status(sweep, counts),
        started=started,
        ended=max([started, *(one.ended for one in rows)]),
        params={"plan": sweep.plan, "machine": sweep.machine, "number": str(sweep.number)},
        metrics={
            "verdicts/as_expected": float(counts[AS_EXPECTED]),
            "verdicts/not_as_expected": float(counts[NOT_AS_EXPECTED]),
            "verdicts/cannot_say": float(counts[CANNOT_SAY]),
            "replays": float(len(rows)),
            **_exponents(found),
        },
        steps={name: steps for one in found for name, steps in _steps(one)},
        figures=tuple(found),
        tags=_summary_tags(sweep, name, rows, counts),
        files={"verdicts.txt": _verdict_lines(rows)},
    )


def _curve_name(one: Measured, curve: Curve) -> str:
    """Return a metric name under which MLflow groups all curves of a series."""
    return "/".join(safe_key(part) for part in ("series", one.series.name, curve.label, curve.device))


def _exponents(found: Sequence[Measured]) -> dict[str, float]:
    return {
        f"{_curve_name(one, curve)}/{what}": value
        for one in found
        for curve in one.curves
        if curve.fit is not None
        for what, value in (("exponent", curve.fit.exponent), ("exponent_error", curve.fit.error))
    }


def _steps(one: Measured) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """Yield the medians of each curve over its places. Steps are whole numbers, so other places are numbered."""
    places = sorted({place.at for curve in one.curves for place in curve.places}, key=lambda p: (isinstance(p, str), p))
    whole = all(isinstance(place, int) or (isinstance(place, float) and place.is_integer()) for place in places)
    step = {place: int(place) if whole else index for index, place in enumerate(places)}
    for curve in one.curves:
        yield _curve_name(one, curve), [(step[place.at], place.value) for place in curve.places]
    if one.line:
        yield (
            f"series/{safe_key(one.series.name)}/{safe_key(one.series.line)}",
            [(step[place], value) for place, value in one.line],
        )


def _status(sweep: Sweep, counts: Counter[str]) -> str:
    if sweep.done < sweep.planned:
        return "KILLED"
    return "FAILED" if counts[NOT_AS_EXPECTED] else "FINISHED"


def contents_digest(replays: Sequence[str], sweep: Sweep) -> str:
    """Return a digest over the content digests of replays, the progress of the sweep, and the format of pages."""
    return digest(canonical([FORMAT, sweep.done, sorted(replays)]))


def _summary_tags(sweep: Sweep, name: str, rows: Sequence[Row], counts: Counter[str]) -> dict[str, str]:
    tags = {
        "twofold.kind": "sweep",
        "twofold.sweep": sweep.id,
        "twofold.family": name,
        "twofold.machine": sweep.machine,
        "twofold.plan": sweep.plan,
        "twofold.verdict": next((word for word in (NOT_AS_EXPECTED, CANNOT_SAY) if counts[word]), AS_EXPECTED),
        "twofold.records": contents_digest([one.content for one in rows], sweep),
        "twofold.processes": f"{sweep.done} of {sweep.planned}",
    }
    note = {"mlflow.note.content": _summary_note(sweep, name, rows, counts)}
    return _fit_tags(tags) | note | _source_tags("python -m experiments")


def _summary_note(sweep: Sweep, name: str, rows: Sequence[Row], counts: Counter[str]) -> str:
    counted = ", ".join(f"{counts[word]} {word}" for word in (AS_EXPECTED, NOT_AS_EXPECTED, CANNOT_SAY))
    missing = sweep.planned - sweep.done
    again = make_command("run-all", SCENARIO=f"{exact_pattern(visible_text(name))}/*" if name else "*")
    parts = [
        f"**{counted}** of {len(rows)} replays in {code(name)}, sweep {code(sweep.id)}",
        f"Not finished: {missing} of the sweep's {sweep.planned} processes have not run." if missing > 0 else "",
        *(
            _section(word.capitalize(), [_row_line(one) for one in rows if one.verdict.word == word])
            for word in (NOT_AS_EXPECTED, CANNOT_SAY)
        ),
        f"### Repeat it\n{block(again)}",
    ]
    return _join_parts(parts)


def _row_line(one: Row) -> str:
    return f"{code(one.name, 200)}: {code('; '.join(one.verdict.reasons), 300)}"


def _verdict_lines(rows: Sequence[Row]) -> str:
    lines = sorted(f"{one.verdict.word}\t{one.name}\t{'; '.join(one.verdict.reasons)}" for one in rows)
    return "\n".join(visible_text(line, lines=True) for line in lines) + "\n"

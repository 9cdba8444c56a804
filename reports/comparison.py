"""The comparison of the replays of one sweep, as values: no file is read and nothing is rendered here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from experiments.analysis.series import Measured, measured_series, points, unmeasured_series
from experiments.core.agreement import Agreement, rank
from experiments.core.canonical_json import digest
from experiments.core.observation import Operator
from experiments.core.operator_diff import Step, align
from experiments.core.record import Record
from experiments.core.replay import Replay
from experiments.core.rounding import Allowance, allowances
from experiments.core.tensor_diff import Difference, differences
from experiments.core.tensor_values import Fetch
from experiments.core.verdict import Context, Verdict, contexts, instrument_effect, judge


@dataclass(frozen=True)
class Judged:
    """A replay with its verdict."""

    replay: Replay
    verdict: Verdict
    context: Context


@dataclass(frozen=True)
class Case:
    """All replays of one case on one machine under one torch: one row of the report."""

    judged: tuple[Judged, ...]

    @property
    def first(self) -> Judged:
        """The first replay."""
        return self.judged[0]

    @property
    def scenario(self) -> str:
        """The name of its scenario."""
        return self.first.replay.spec.question.scenario

    @property
    def label(self) -> str:
        """Its name with its parameters."""
        return self.first.replay.spec.question.label()

    @property
    def is_float64(self) -> bool:
        """Whether it is a reference that only serves to measure rounding."""
        question = self.first.replay.spec.question
        return question.dtype != question.input_dtype

    @property
    def is_whole(self) -> bool:
        """Whether it has exactly the outputs and gradients of its reference."""
        reference = self.first.context.reference
        return reference is not None and _tensor_names(self.first.replay.plain) == _tensor_names(reference.plain)

    @property
    def endings(self) -> list[str]:
        """The distinct endings of its replays, in a word or two each."""
        return list(dict.fromkeys(_ending_text(one.replay.plain) for one in self.judged))


def _tensor_names(record: Record | None) -> list[tuple[str, str]]:
    """Return role and name of each output and gradient of a record."""
    seen = record.observation if record else None
    return [(t.role, t.name) for t in (seen.tensors if seen else ()) if t.role != "input" and t.digest is not None]


def _ending_text(record: Record | None) -> str:
    """Return the outcome without its message, which is shown once where it matters."""
    if record is None:
        return "plain pass missing"
    outcome = record.outcome
    if outcome.kind == "raised":
        return f"raised {(outcome.type or '').rpartition('.')[2]} in {outcome.phase}"
    return f"{outcome.kind} ({outcome.detail})" if outcome.detail else outcome.kind


@dataclass(frozen=True)
class Numbers:
    """Differences of one tensor of a case from the reference, and of both from float64."""

    case: Case
    against_reference: Difference
    own_error: Difference | None
    """The difference of the case from float64. None if there is no float64 reference."""
    allowed: Allowance | None
    """What counts as rounding. None if there is no float64 reference."""

    @property
    def share(self) -> float:
        """The share of what rounding allows that the case uses up; 0 for tensors that cannot be measured."""
        if self.own_error is None or self.allowed is None or not self.allowed.total:
            return 0.0
        return self.own_error.absolute / self.allowed.total


@dataclass(frozen=True)
class Operators:
    """The operators of a forward pass, aligned with those of its recomputation."""

    case: Case
    record: Record
    steps: tuple[Step, ...]

    @property
    def first(self) -> int | None:
        """The index of the first difference. None if there is none.

        A recomputation stops once it has what it needs, so operators that only the forward pass has at the
        end are not a difference.
        """
        end = max((place for place, step in enumerate(self.steps) if step.right is not None), default=-1)
        return next((place for place, step in enumerate(self.steps[: end + 1]) if not step.same), None)


@dataclass(frozen=True)
class Repeats:
    """Whether the replays of one case agree: the widest rank of any replay compared with the first."""

    case: Case
    agreement: Agreement
    copied: bool
    """True if one of them ran from copied sources whose digests equal those of the originals."""
    audited: bool
    """True if the case ran both in a fork and in a fresh interpreter under another hash seed."""


@dataclass(frozen=True)
class Comparison:
    """All that a report shows."""

    cases: tuple[Case, ...]
    numbers: tuple[Numbers, ...]
    operators: tuple[Operators, ...]
    repeats: tuple[Repeats, ...]
    gaps: tuple[tuple[str, str], ...]
    """What could not be compared, and why."""
    machines: tuple[tuple[str, Mapping[str, Any]], ...]
    """Digest and facts of each machine document."""
    titles: Mapping[str, str]
    """Title of each scenario, by its name."""
    series: tuple[Measured, ...]


def compare(
    replays: Sequence[Replay], fetch: Fetch, machines: Mapping[str, Any], titles: Mapping[str, str]
) -> Comparison:
    """Judge, rank and measure the replays of a sweep; `machines` are its machine documents by digest."""
    judged = [
        Judged(replay, judge(replay, context), context) for replay, context in zip(replays, contexts(replays, fetch))
    ]
    cases = _cases(judged)
    repeats = tuple(_repeats(case, fetch) for case in cases if len(case.judged) > 1)
    return Comparison(
        cases=cases,
        numbers=tuple(row for case in cases for row in _numbers(case, fetch)),
        operators=tuple(row for case in cases for row in _operators(case)),
        repeats=repeats,
        gaps=(*(gap for case in cases for gap in _gaps(case)), *_unmeasured_series(replays)),
        machines=tuple(sorted(machines.items())),
        titles=titles,
        series=tuple(measured_series(point for replay in replays for point in points(replay))),
    )


def _cases(judged: Sequence[Judged]) -> tuple[Case, ...]:
    grouped: dict[str, list[Judged]] = {}
    for one in judged:
        grouped.setdefault(one.replay.spec.question.case_digest(), []).append(one)
    return tuple(Case(tuple(group)) for group in grouped.values())


def _numbers(case: Case, fetch: Fetch) -> list[Numbers]:
    record, context = case.first.replay.plain, case.first.context
    reference = context.reference.plain if context.reference else None
    if record is None or reference is None or record.outcome.kind != "finished":
        return []
    exact = context.float64.plain if context.float64 else None
    own = {} if exact is None else {(d.role, d.name): d for d in differences(record, exact, fetch)}
    allowed = {} if exact is None else allowances(reference, exact, fetch)
    return [
        Numbers(case, item, own.get((item.role, item.name)), allowed.get((item.role, item.name)))
        for item in differences(record, reference, fetch)
    ]


def _operators(case: Case) -> list[Operators]:
    """Return the aligned operators of a case that recomputes; empty for any other."""
    profiled = case.first.replay.records.get("profiled")
    if profiled is None or profiled.observation is None or not profiled.observation.operators:
        return []
    listed = profiled.observation.operators
    if not listed.get("recomputation"):
        return []
    forward, again = (_drop_detach(listed.get(phase, ())) for phase in ("forward", "recomputation"))
    return [Operators(case, profiled, tuple(align(forward, again)))]


def _drop_detach(operators: Sequence[Operator]) -> list[Operator]:
    """Drop `aten::detach`: checkpoint detaches what it saves, but only in the recomputation."""
    return [operator for operator in operators if operator.name != "aten::detach"]


def _repeats(case: Case, fetch: Fetch) -> Repeats:
    first, *others = case.judged
    exact, reference = first.context.float64, first.context.reference
    allowed = (
        allowances(reference.plain, exact.plain, fetch)
        if exact and reference and exact.plain and reference.plain
        else None
    )
    ranked = [rank(*_shared_passes(first.replay, other.replay), fetch, allowed) for other in others]
    settings = [one.replay.spec.setting for one in case.judged]
    return Repeats(
        case,
        max(ranked, key=lambda one: one.rank),
        copied=any(_is_copy(first, other) for other in others),
        audited=len({one.isolation for one in settings}) > 1 and len({one.hash_seed for one in settings}) > 1,
    )


def _shared_passes(ours: Replay, theirs: Replay) -> tuple[Replay, Replay]:
    """Return both replays with only the passes that they share, as a repeated measurement may have fewer.

    If the plain pass is not shared, return them unchanged: there is nothing to compare.
    """
    shared = [name for name in ours.records if name in theirs.records]
    if "plain" not in shared:
        return ours, theirs
    first, second = (Replay({name: one.records[name] for name in shared}) for one in (ours, theirs))
    return first, second


def _is_copy(first: Judged, other: Judged) -> bool:
    if other.replay.spec.setting.sources != "copied":
        return False
    return first.replay.sources == other.replay.sources != {}


def _gaps(case: Case) -> list[tuple[str, str]]:
    """Return what cannot be decided about this case, and what an instrument changed: pairs of case and reason."""
    found = [
        (f"{case.scenario} {case.label}", "; ".join(one.verdict.reasons))
        for one in case.judged
        if one.verdict.word == "cannot say"
    ]
    changed = [instrument_effect(one.replay) for one in case.judged]
    return list(dict.fromkeys([*found, *((f"{case.scenario} {case.label}", text) for text in changed if text)]))


def _unmeasured_series(replays: Sequence[Replay]) -> list[tuple[str, str]]:
    return [
        (f"series {series.name}", f"no case of it has measured {series.measure!r}")
        for series in unmeasured_series(replays)
    ]


def record_digests(replays: Sequence[Replay]) -> list[str]:
    """Return the digest of every record, in order."""
    return [digest(record.text()) for replay in replays for _, record in sorted(replay.records.items())]

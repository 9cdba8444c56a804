"""Findings: what records show about the cases of a sentence, and which records show it. Pure.

A test examines one replay, or several together, and answers yes, no, or unknown. With its answer it names the records
that decide it: if one of them were different or missing, the answer could be another. A sentence rests on exactly
these records and states their number, so one more or one less changes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Callable, Iterator, Literal, Mapping, Sequence

from experiments.core.canonical_json import digest
from experiments.core.environment import machine_identity
from experiments.core.expectations import Expectation, expectation_to_json
from experiments.core.record import Record
from experiments.core.replay import Replay
from experiments.core.tensor_values import Fetch
from experiments.core.verdict import AS_EXPECTED, CANNOT_SAY, Context, contexts, judge

Facts = Mapping[str, Mapping[str, Any]]
"""Machine documents by digest."""


# Evidence.


@dataclass(frozen=True)
class Setting:
    """Where replays were run: a device of a computer, under one torch, in one environment."""

    device: str
    computer: str
    """First digits of the computer's identity. Empty where no process left facts."""
    torch: str
    """Version of torch. Empty where no process left facts."""
    environment: str
    threads: str
    """Empty for the number that each question asks for."""
    precision: str
    """Precision of float32 matrix products. Empty for torch's default."""
    interpreter: str
    """Empty for the driver's interpreter."""

    def describe(self, others: Sequence[Setting]) -> str:
        """Describe what distinguishes this setting from the others."""
        words = {
            "device": self.device,
            "computer": f"computer {self.computer or 'unknown'}",
            "torch": f"torch {self.torch or 'unknown'}",
            "environment": f"environment {self.environment}",
            "threads": f"{self.threads or 'own'} threads",
            "precision": f"{self.precision or 'own'} precision",
            "interpreter": f"interpreter {self.interpreter or 'own'}",
        }
        return ", ".join(text for name, text in words.items() if len({getattr(one, name) for one in others}) > 1)


@dataclass(frozen=True)
class Evidence:
    """The replays that sentences are based on."""

    replays: tuple[Replay, ...]
    contexts: tuple[Context, ...]
    fetch: Fetch
    machines: Facts
    elsewhere: Mapping[str, tuple[Replay, ...]]
    """Replays of other settings, by name; only claims about several settings use them."""

    @cached_property
    def by_setting(self) -> dict[Setting, Evidence]:
        """The evidence of each setting by itself, so that no figure or reference comes from another setting."""
        grouped: dict[Setting, list[Replay]] = {}
        for setting, replay in zip(settings(self.replays, self.machines), self.replays):
            grouped.setdefault(setting, []).append(replay)
        if len(grouped) == 1:
            return dict.fromkeys(grouped, self)
        return {setting: gather(listed, self.fetch, self.machines) for setting, listed in grouped.items()}

    def find(self, cases: Cases, test: Test) -> Finding:
        """Apply a test to each replay of these cases."""
        return Finding(cases.name, tuple(_units_of_replays(self.replays_of(cases), test)))

    def find_together(self, cases: Cases, test: TestOfSeveral) -> Finding:
        """Apply a test to all replays of these cases together."""
        pairs = [pair for pair in self.replays_of(cases) if has_run(pair[0].plain)]
        return Finding(cases.name, (_joint_unit(pairs, test),) if pairs else ())

    def find_in_each_case(self, cases: Cases, test: TestOfSeveral) -> Finding:
        """Apply a test to each case, to all its replays together."""
        groups: dict[str, list[tuple[Replay, Context]]] = {}
        for pair in self.replays_of(cases):
            if has_run(pair[0].plain):
                groups.setdefault(pair[0].spec.question.case_digest(), []).append(pair)
        return Finding(cases.name, tuple(_joint_unit(pairs, test) for pairs in groups.values()))

    def replays_of(self, cases: Cases) -> list[tuple[Replay, Context]]:
        """Return the replays of these cases, with the context that each is judged against."""
        return [pair for pair in zip(self.replays, self.contexts) if cases.has_replay(pair[0])]


def gather(
    replays: Sequence[Replay],
    fetch: Fetch,
    machines: Facts,
    elsewhere: Mapping[str, Sequence[Replay]] | None = None,
) -> Evidence:
    """Collect replays with the context that each is judged against; `elsewhere` are other settings' replays by name."""
    others = {name: tuple(listed) for name, listed in (elsewhere or {}).items()}
    return Evidence(tuple(replays), tuple(contexts(replays, fetch)), fetch, machines, others)


def settings(replays: Sequence[Replay], machines: Facts) -> list[Setting]:
    """Return the setting of each replay. A replay without facts is assigned to a computer of the same environment."""
    found = [_setting(replay, machines.get(replay.machine, {})) for replay in replays]
    known = {_setting_key(one): one for one in found if one.computer}
    return [one if one.computer else known.get(_setting_key(one), one) for one in found]


def _setting_key(setting: Setting) -> Setting:
    return replace(setting, computer="", torch="")


def _setting(replay: Replay, facts: Mapping[str, Any]) -> Setting:
    way, device = replay.spec.setting, replay.spec.question.device
    return Setting(
        device=device,
        computer=_computer_id(facts) or replay.machine[:8],
        torch=torch_version(facts),
        environment=way.environment,
        threads="" if way.threads is None else str(way.threads),
        precision=way.matmul_precision,
        interpreter=way.interpreter,
    )


def _computer_id(facts: Mapping[str, Any]) -> str:
    try:
        return machine_identity(facts)[:8]
    except (KeyError, TypeError):  # a foreign document may hold anything
        return ""


def torch_version(facts: Mapping[str, Any]) -> str:
    """Return the version of torch in a machine document. Empty if it has none."""
    torch = facts.get("torch")
    return str(torch.get("version", "")) if isinstance(torch, Mapping) else ""


def has_run(record: Record | None) -> bool:
    """Return whether a record tells what its case did. One that was not observed does not, whatever it recorded."""
    return record is not None and record.outcome.kind not in ("not_run", "not_observed")


@dataclass(frozen=True)
class Cases:
    """Cases of one scenario."""

    scenario: str
    names: tuple[str, ...]
    where: tuple[tuple[str, Any], ...] = ()
    """Parameters that a replay must have."""
    device: str = ""
    """Empty for any."""

    def has_replay(self, replay: Replay) -> bool:
        """Return whether a replay is of one of these cases; a float64 reference only measures rounding and is not."""
        question = replay.spec.question
        return (
            (question.scenario, question.dtype) == (self.scenario, question.input_dtype)
            and question.case in self.names
            and self.device in ("", question.device)
            and all(name in question.parameters and question.parameters[name] == value for name, value in self.where)
        )

    @property
    def name(self) -> str:
        """Scenario, cases and parameters, for sentences."""
        where = [f"{name}={value}" for name, value in self.where]
        return f"{self.scenario} {', '.join((*self.names, *where))}".rstrip()


# Tests.


@dataclass(frozen=True)
class Look:
    """The answer of a test."""

    holds: bool | None
    """None if it is unknown."""
    records: tuple[Record, ...]
    """The records that decide it."""
    why: str = ""
    """Why it is unknown."""


Test = Callable[[Replay, Context], "Look | None"]
"""Returns what a replay shows, or None if it has not run or lacks the pass in question."""
TestOfSeveral = Callable[[Sequence[tuple[Replay, Context]]], Look]


def plain_pass_test(question: Callable[[Record], bool | None], why: str = "it ended in another way") -> Test:
    """Return a test of the plain pass alone; `why` is the reason if `question` returns None."""

    def test(replay: Replay, _: Context) -> Look | None:
        record = replay.plain
        if record is None or not has_run(record):
            return None
        holds = question(record)
        return Look(holds, (record,), why if holds is None else "")

    return test


def expectation_test(*expected: Expectation) -> Test:
    """Return a test of whether a replay meets these expectations, judged as a verdict is."""
    wanted = [expectation_to_json(one) for one in expected]
    return _verdict_test(lambda _: wanted)


def scenario_test(*kinds: str) -> Test:
    """Return a test of whether a replay meets its scenario's expectations: those of these kinds, or all of them."""
    return _verdict_test(
        lambda replay: [one for one in replay.spec.mark.expectations if not kinds or one["kind"] in kinds]
    )


def _verdict_test(wanted: Callable[[Replay], Sequence[Mapping[str, Any]]]) -> Test:
    def test(replay: Replay, context: Context) -> Look | None:
        if not has_run(replay.plain):
            return None
        asked = _replace_expectations(replay, wanted(replay))
        verdict = judge(asked, context)
        holds = None if verdict.word == CANNOT_SAY else verdict.word == AS_EXPECTED
        why = "; ".join(verdict.reasons) if holds is None else ""
        return Look(holds, tuple(_deciding_records(replay, asked, context, verdict.word)), why)

    return test


def _replace_expectations(replay: Replay, expectations: Sequence[Mapping[str, Any]]) -> Replay:
    """Return the replay as if its scenario had exactly these expectations."""
    mark = replace(replay.spec.mark, expectations=tuple(expectations))
    spec = replace(replay.spec, mark=mark)
    return Replay({name: replace(record, spec=spec) for name, record in replay.records.items()})


def _deciding_records(replay: Replay, asked: Replay, context: Context, word: str) -> Iterator[Record]:
    """Yield the records that a verdict rests on.

    These are the plain pass, every other pass without which the verdict would be another, and every reference and
    repeat of it that would change the verdict if it were missing or different.
    """
    if replay.plain is not None:
        yield replay.plain
    for name, record in sorted(replay.records.items()):
        less = Replay({key: value for key, value in asked.records.items() if key != name})
        if name != "plain" and judge(less, context).word != word:
            yield record
    for ruler, changed in _changed_contexts(context, asked):
        if any(judge(asked, one).word != word for one in changed):
            yield ruler


def _changed_contexts(context: Context, asked: Replay) -> Iterator[tuple[Record, Iterator[Context]]]:
    """Yield each reference, with contexts in which it is missing, equal to the case itself, or different."""
    for ruler, put in (
        (context.reference, lambda other: replace(context, reference=other)),
        (context.float64, lambda other: replace(context, float64=other)),
    ):
        if ruler is not None and ruler.plain is not None:
            yield ruler.plain, map(put, (None, asked, _replace_tensors(ruler)))
    # A reference must agree with itself, in each repeat and pass.
    repeats = {id(one): one for one in (context.reference, *context.reference_repeats) if one is not None}
    for repeat in repeats.values():
        for name, record in sorted(repeat.records.items()):
            if record.outcome.kind != "not_run" and (
                context.reference is None or record is not context.reference.plain
            ):
                yield (
                    record,
                    (
                        _replace_repeat(context, repeat, Replay({**repeat.records, name: other}))
                        for other in (_flip_ending(record), *_replace_tensors(Replay({name: record})).records.values())
                    ),
                )


def _replace_repeat(context: Context, repeat: Replay, other: Replay) -> Context:
    """Return the context with one replay of the reference replaced by another."""
    return replace(
        context,
        reference=other if context.reference is repeat else context.reference,
        reference_repeats=tuple(other if one is repeat else one for one in context.reference_repeats),
    )


def _flip_ending(record: Record) -> Record:
    kind = "finished" if record.outcome.kind == "raised" else "raised"
    outcome = replace(record.outcome, kind=kind)
    seen = record.observation
    return replace(record, outcome=outcome, observation=replace(seen, outcome=outcome) if seen else None)


def _replace_tensors(ruler: Replay) -> Replay:
    """Return the replay with tensors of unknown content."""
    records = {}
    for name, record in ruler.records.items():
        seen = record.observation
        tensors = tuple(
            replace(one, digest="0" * 64, samples=None, sketch=None) for one in (seen.tensors if seen else ())
        )
        records[name] = replace(record, observation=replace(seen, tensors=tensors) if seen else None)
    return Replay(records)


def _units_of_replays(pairs: Sequence[tuple[Replay, Context]], test: Test) -> Iterator[Unit]:
    """Yield one unit for each replay that the test answers for; equal records count once."""
    seen: set[tuple[str, ...]] = set()
    for replay, context in pairs:
        look = test(replay, context)
        if look is not None:
            names = tuple(map(record_digest, look.records))
            if names not in seen:
                seen.add(names)
                yield Unit((replay,), look)


def _joint_unit(pairs: Sequence[tuple[Replay, Context]], test: TestOfSeveral) -> Unit:
    return Unit(tuple(replay for replay, _ in pairs), test(pairs))


def record_digest(record: Record) -> str:
    """Return the digest by which a record is cited."""
    return digest(record.text())


# Findings.


@dataclass(frozen=True)
class Unit:
    """The answer of one test about one replay, or about several together."""

    replays: tuple[Replay, ...]
    look: Look


State = Literal["absent", "yes", "no", "mixed", "torn", "unknown"]


@dataclass(frozen=True)
class Finding:
    """The answers of a test about cases."""

    name: str
    """Name of the cases."""
    units: tuple[Unit, ...]

    @property
    def state(self) -> State:
        """`torn` if records of one case contradict each other, `mixed` if cases do, `unknown` if one answer is
        unknown, `absent` if no case has run.
        """
        if not self.units:
            return "absent"
        if any(unit.look.holds is None for unit in self.units):
            return "unknown"
        if any(len(words) > 1 for words in self._answers_by_case().values()):
            return "torn"
        answers = {unit.look.holds for unit in self.units}
        return "mixed" if len(answers) > 1 else "yes" if True in answers else "no"

    def _answers_by_case(self) -> dict[str, set[bool | None]]:
        found: dict[str, set[bool | None]] = {}
        for unit in self.units:
            found.setdefault(unit.replays[0].spec.question.case_digest(), set()).add(unit.look.holds)
        return found

    @property
    def replays(self) -> list[Replay]:
        """The replays that were tested."""
        return [replay for unit in self.units for replay in unit.replays]

    @property
    def records(self) -> list[Record]:
        """The records that decide it, each once."""
        return list({id(record): record for unit in self.units for record in unit.look.records}.values())

    def describe(self, yes: str, no: str) -> str:
        """Describe the answers in these words, each with the cases that gave it. Empty if nothing was run."""
        answers = [
            (words, [unit for unit in self.units if unit.look.holds is holds])
            for words, holds in ((yes, True), (no, False))
        ]
        parts = [f"{words} ({tally(units)})" for words, units in answers if units]
        unknown = [unit for unit in self.units if unit.look.holds is None]
        if unknown:
            parts.append(f"of {tally(unknown)} it cannot be said: {unknown[0].look.why}")
        return "; ".join(parts)


def tally(units: Sequence[Unit]) -> str:
    """Count the records or cases of these units, and the records of references that they rest on as well."""
    cases = Counter(replay.spec.question.case_digest() for unit in units for replay in unit.replays)
    own = {id(record) for unit in units for replay in unit.replays for record in replay.records.values()}
    cited = {id(record) for unit in units for record in unit.look.records}
    records, beside = len(cited & own), len(cited - own)
    text = _record_count(records) + (" of one case" if len(cases) == 1 else f" of {len(cases)} cases")
    if len(cases) > 1 and records == len(cases):
        text = f"{len(cases)} cases, one record each"
    return text + (
        f", against {_record_count(beside)} of {'a reference' if beside == 1 else 'references'}" if beside else ""
    )


def _record_count(number: int) -> str:
    return "one record" if number == 1 else f"{number} records"

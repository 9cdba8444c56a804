"""What records show of the cases that a sentence is about, and which records show it. Pure.

A test looks at one replay, or at several together, and says yes, no, or that it cannot be said; with its answer it
names the records that bear it: were one of them otherwise, or not there, the answer could be another. A sentence
rests on these and on no others, and it counts them, so that one more or one less is seen in it.
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
    """First digits of the digest of what makes it this one. Empty where no process left facts."""
    torch: str
    """Its version. Empty where no process left facts."""
    environment: str
    threads: str
    """Empty for as many as each question asks for."""
    precision: str
    """Of float32 matrix products. Empty for torch's own."""
    interpreter: str
    """Empty for the driver's own."""

    def told(self, others: Sequence[Setting]) -> str:
        """What tells it from the others."""
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
    """The replays that sentences are made from."""

    replays: tuple[Replay, ...]
    contexts: tuple[Context, ...]
    fetch: Fetch
    machines: Facts
    elsewhere: Mapping[str, tuple[Replay, ...]]
    """Replays of other settings by the name of each; only what is said of several settings looks at them."""

    @cached_property
    def by_setting(self) -> dict[Setting, Evidence]:
        """The evidence of each setting by itself, so that no figure and no reference is another setting's."""
        grouped: dict[Setting, list[Replay]] = {}
        for setting, replay in zip(settings(self.replays, self.machines), self.replays):
            grouped.setdefault(setting, []).append(replay)
        if len(grouped) == 1:
            return dict.fromkeys(grouped, self)
        return {setting: gather(listed, self.fetch, self.machines) for setting, listed in grouped.items()}

    def find(self, cases: Cases, test: Test) -> Finding:
        """What a test says of each replay of these cases."""
        return Finding(cases.name, tuple(_looked(self.of(cases), test)))

    def find_together(self, cases: Cases, test: TestOfSeveral) -> Finding:
        """What a test says of all replays of these cases together."""
        pairs = [pair for pair in self.of(cases) if ran(pair[0].plain)]
        return Finding(cases.name, (_together(pairs, test),) if pairs else ())

    def find_in_each_case(self, cases: Cases, test: TestOfSeveral) -> Finding:
        """What a test says of each case, of all replays of it together."""
        groups: dict[str, list[tuple[Replay, Context]]] = {}
        for pair in self.of(cases):
            if ran(pair[0].plain):
                groups.setdefault(pair[0].spec.question.case_digest(), []).append(pair)
        return Finding(cases.name, tuple(_together(pairs, test) for pairs in groups.values()))

    def of(self, cases: Cases) -> list[tuple[Replay, Context]]:
        """Replays of these cases, with what each is judged against."""
        return [pair for pair in zip(self.replays, self.contexts) if cases.cover(pair[0])]


def gather(
    replays: Sequence[Replay],
    fetch: Fetch,
    machines: Facts,
    elsewhere: Mapping[str, Sequence[Replay]] | None = None,
) -> Evidence:
    """Replays with what each is judged against; `elsewhere` are those of other settings, by name."""
    others = {name: tuple(listed) for name, listed in (elsewhere or {}).items()}
    return Evidence(tuple(replays), tuple(contexts(replays, fetch)), fetch, machines, others)


def settings(replays: Sequence[Replay], machines: Facts) -> list[Setting]:
    """The setting of each replay. One that left no facts is taken for one of its environment's computer."""
    found = [_setting(replay, machines.get(replay.machine, {})) for replay in replays]
    known = {_way(one): one for one in found if one.computer}
    return [one if one.computer else known.get(_way(one), one) for one in found]


def _way(setting: Setting) -> Setting:
    return replace(setting, computer="", torch="")


def _setting(replay: Replay, facts: Mapping[str, Any]) -> Setting:
    way, device = replay.spec.setting, replay.spec.question.device
    return Setting(
        device=device,
        computer=_computer(facts) or replay.machine[:8],
        torch=torch_version(facts),
        environment=way.environment,
        threads="" if way.threads is None else str(way.threads),
        precision=way.matmul_precision,
        interpreter=way.interpreter,
    )


def _computer(facts: Mapping[str, Any]) -> str:
    try:
        return machine_identity(facts)[:8]
    except (KeyError, TypeError):  # somebody else's document may be none
        return ""


def torch_version(facts: Mapping[str, Any]) -> str:
    told = facts.get("torch")
    return str(told.get("version", "")) if isinstance(told, Mapping) else ""


def ran(record: Record | None) -> bool:
    """Whether it says what its case did: what was not observed says nothing, whatever was seen before."""
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

    def cover(self, replay: Replay) -> bool:
        """Whether a replay is of one of them; a reference in float64, which is only a ruler, is of none."""
        question = replay.spec.question
        return (
            (question.scenario, question.dtype) == (self.scenario, question.input_dtype)
            and question.case in self.names
            and self.device in ("", question.device)
            and all(name in question.parameters and question.parameters[name] == value for name, value in self.where)
        )

    @property
    def name(self) -> str:
        where = [f"{name}={value}" for name, value in self.where]
        return f"{self.scenario} {', '.join((*self.names, *where))}".rstrip()


# Tests.


@dataclass(frozen=True)
class Look:
    """What a test says."""

    holds: bool | None
    """None where it cannot be said."""
    records: tuple[Record, ...]
    """Those that bear it."""
    why: str = ""
    """Why it cannot be said."""


Test = Callable[[Replay, Context], "Look | None"]
"""What a replay shows. None if it lacks the pass that is looked at, or has not run."""
TestOfSeveral = Callable[[Sequence[tuple[Replay, Context]]], Look]


def plainly(question: Callable[[Record], bool | None], why: str = "it ended in another way") -> Test:
    """A test of nothing but the plain pass."""

    def test(replay: Replay, _: Context) -> Look | None:
        record = replay.plain
        if record is None or not ran(record):
            return None
        holds = question(record)
        return Look(holds, (record,), why if holds is None else "")

    return test


def shows(*expected: Expectation) -> Test:
    """Whether a replay shows this, judged as a verdict is."""
    wanted = [expectation_to_json(one) for one in expected]
    return _judges(lambda _: wanted)


def as_marked(*kinds: str) -> Test:
    """Whether a replay shows what its scenario expects of it: of these kinds of expectations, or of all."""
    return _judges(lambda replay: [one for one in replay.spec.mark.expectations if not kinds or one["kind"] in kinds])


def _judges(wanted: Callable[[Replay], Sequence[Mapping[str, Any]]]) -> Test:
    def test(replay: Replay, context: Context) -> Look | None:
        if not ran(replay.plain):
            return None
        asked = _expecting(replay, wanted(replay))
        verdict = judge(asked, context)
        holds = None if verdict.word == CANNOT_SAY else verdict.word == AS_EXPECTED
        why = "; ".join(verdict.reasons) if holds is None else ""
        return Look(holds, tuple(_bearing(replay, asked, context, verdict.word)), why)

    return test


def _expecting(replay: Replay, expectations: Sequence[Mapping[str, Any]]) -> Replay:
    """The replay as if its scenario expected just this."""
    mark = replace(replay.spec.mark, expectations=tuple(expectations))
    spec = replace(replay.spec, mark=mark)
    return Replay({name: replace(record, spec=spec) for name, record in replay.records.items()})


def _bearing(replay: Replay, asked: Replay, context: Context, word: str) -> Iterator[Record]:
    """The records that a verdict rests on: the plain pass, every other pass and ruler without which there would be
    another verdict, and every ruler and repeat of the reference that would give another if it were otherwise.
    """
    if replay.plain is not None:
        yield replay.plain
    for name, record in sorted(replay.records.items()):
        less = Replay({key: value for key, value in asked.records.items() if key != name})
        if name != "plain" and judge(less, context).word != word:
            yield record
    for ruler, changed in _changed(context, asked):
        if any(judge(asked, one).word != word for one in changed):
            yield ruler


def _changed(context: Context, asked: Replay) -> Iterator[tuple[Record, Iterator[Context]]]:
    """Each ruler, with contexts in which it is missing, like the case itself, or another."""
    for ruler, put in (
        (context.reference, lambda other: replace(context, reference=other)),
        (context.float64, lambda other: replace(context, float64=other)),
    ):
        if ruler is not None and ruler.plain is not None:
            yield ruler.plain, map(put, (None, asked, _spoiled(ruler)))
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
                        _with_repeat(context, repeat, Replay({**repeat.records, name: other}))
                        for other in (_ended_otherwise(record), *_spoiled(Replay({name: record})).records.values())
                    ),
                )


def _with_repeat(context: Context, repeat: Replay, other: Replay) -> Context:
    """The context with another replay of the reference in the place of one."""
    return replace(
        context,
        reference=other if context.reference is repeat else context.reference,
        reference_repeats=tuple(other if one is repeat else one for one in context.reference_repeats),
    )


def _ended_otherwise(record: Record) -> Record:
    kind = "finished" if record.outcome.kind == "raised" else "raised"
    outcome = replace(record.outcome, kind=kind)
    seen = record.observation
    return replace(record, outcome=outcome, observation=replace(seen, outcome=outcome) if seen else None)


def _spoiled(ruler: Replay) -> Replay:
    """The same with tensors of contents that nobody has."""
    made = {}
    for name, record in ruler.records.items():
        seen = record.observation
        tensors = tuple(
            replace(one, digest="0" * 64, samples=None, sketch=None) for one in (seen.tensors if seen else ())
        )
        made[name] = replace(record, observation=replace(seen, tensors=tensors) if seen else None)
    return Replay(made)


def _looked(pairs: Sequence[tuple[Replay, Context]], test: Test) -> Iterator[Unit]:
    """One unit for each replay that the test has something to say of; the same records count once."""
    seen: set[tuple[str, ...]] = set()
    for replay, context in pairs:
        look = test(replay, context)
        if look is not None:
            names = tuple(map(name_of, look.records))
            if names not in seen:
                seen.add(names)
                yield Unit((replay,), look)


def _together(pairs: Sequence[tuple[Replay, Context]], test: TestOfSeveral) -> Unit:
    return Unit(tuple(replay for replay, _ in pairs), test(pairs))


def name_of(record: Record) -> str:
    """The digest by which it is cited."""
    return digest(record.text())


# Findings.


@dataclass(frozen=True)
class Unit:
    """What one test said: of one replay, or of several that were looked at together."""

    replays: tuple[Replay, ...]
    look: Look


State = Literal["absent", "yes", "no", "mixed", "torn", "unknown"]


@dataclass(frozen=True)
class Finding:
    """What a test said of cases."""

    name: str
    """Of the cases."""
    units: tuple[Unit, ...]

    @property
    def state(self) -> State:
        """`torn` if records of one case contradict each other, `mixed` if cases do, `unknown` if of one of them
        it cannot be said, `absent` if none has run.
        """
        if not self.units:
            return "absent"
        if any(unit.look.holds is None for unit in self.units):
            return "unknown"
        if any(len(words) > 1 for words in self._by_case().values()):
            return "torn"
        said = {unit.look.holds for unit in self.units}
        return "mixed" if len(said) > 1 else "yes" if True in said else "no"

    def _by_case(self) -> dict[str, set[bool | None]]:
        found: dict[str, set[bool | None]] = {}
        for unit in self.units:
            found.setdefault(unit.replays[0].spec.question.case_digest(), set()).add(unit.look.holds)
        return found

    @property
    def replays(self) -> list[Replay]:
        return [replay for unit in self.units for replay in unit.replays]

    @property
    def records(self) -> list[Record]:
        """Those that bear it, each once."""
        return list({id(record): record for unit in self.units for record in unit.look.records}.values())

    def told(self, yes: str, no: str) -> str:
        """What was found, in these words, with what it was found in. Empty if nothing was run."""
        said = [
            (words, [unit for unit in self.units if unit.look.holds is holds])
            for words, holds in ((yes, True), (no, False))
        ]
        shown = [f"{words} ({tally(units)})" for words, units in said if units]
        unknown = [unit for unit in self.units if unit.look.holds is None]
        if unknown:
            shown.append(f"of {tally(unknown)} it cannot be said: {unknown[0].look.why}")
        return "; ".join(shown)


def tally(units: Sequence[Unit]) -> str:
    """How much was found: records of one case, repeated, or cases; and how many records of references beside them."""
    cases = Counter(replay.spec.question.case_digest() for unit in units for replay in unit.replays)
    own = {id(record) for unit in units for replay in unit.replays for record in replay.records.values()}
    borne = {id(record) for unit in units for record in unit.look.records}
    records, beside = len(borne & own), len(borne - own)
    shown = _records(records) + (" of one case" if len(cases) == 1 else f" of {len(cases)} cases")
    if len(cases) > 1 and records == len(cases):
        shown = f"{len(cases)} cases, one record each"
    return shown + (
        f", against {_records(beside)} of {'a reference' if beside == 1 else 'references'}" if beside else ""
    )


def _records(number: int) -> str:
    return "one record" if number == 1 else f"{number} records"

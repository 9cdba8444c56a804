"""What a published claim is, the replays that it is decided from, and the words that rulings are made with.

Each claim has one function from replays to a ruling. It looks at replays of scenarios that were written for it, so
a claim is decided by the calculation that the claim was made about. Pure: no file is read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

from experiments.agreement import Fetch
from experiments.record import Record, Replay, digest
from experiments.verdict import (
    AS_EXPECTED,
    NOT_TESTED,
    REFUTED,
    SUPPORTED,
    SUPPORTED_IN_PART,
    Context,
    Ruling,
    contexts,
    judge,
)


@dataclass(frozen=True)
class Claim:
    """A sentence that somebody published, in our words."""

    id: str
    source: str
    text: str
    decide: Callable[[Evidence], Ruling]


@dataclass(frozen=True)
class Advice:
    """What to do instead of what a note did: true as far as its cases are as expected."""

    source: str
    text: str
    scenario: str
    cases: tuple[str, ...]

    def decide(self, evidence: Evidence) -> Ruling:
        """Whether every replay of the cases shows what it should; each case must be among them."""
        found = [one for one in evidence.of(self.scenario, *self.cases) if one[0].spec.mark.role != "broken"]
        holds = [judge(replay, context).word == AS_EXPECTED for replay, context in found]
        lacking = sorted(set(self.cases) - {replay.spec.question.case for replay, _ in found})
        reason = f"{', '.join(self.cases)} of {self.scenario}: as expected in {share(holds)}"
        if found and lacking:
            holds, reason = [*holds, False], f"{reason}; not run: {', '.join(lacking)}"
        return ruling(holds, reason, digests(found))


@dataclass(frozen=True)
class Evidence:
    """The replays that claims are decided from."""

    replays: tuple[Replay, ...]
    contexts: tuple[Context, ...]
    fetch: Fetch
    machines: Mapping[str, Mapping[str, Any]]
    """Machine documents by digest."""

    def of(self, scenario: str, *cases: str) -> list[tuple[Replay, Context]]:
        """Replays of these cases (of all, if none is named), on any device, that have run."""
        return [
            (replay, context)
            for replay, context in zip(self.replays, self.contexts)
            if replay.spec.question.scenario == scenario
            and (not cases or replay.spec.question.case in cases)
            and replay.plain is not None
            and replay.plain.outcome.kind != "not_run"
        ]


def gather(replays: Sequence[Replay], fetch: Fetch, machines: Mapping[str, Mapping[str, Any]]) -> Evidence:
    """Replays with what each is judged against."""
    return Evidence(tuple(replays), tuple(contexts(replays, fetch)), fetch, machines)


# Rulings.


def ruling(holds: Sequence[bool], reason: str, digests: Sequence[str]) -> Ruling:
    """One word for several replays."""
    if not holds:
        return Ruling(NOT_TESTED, "no replay of it is among these records", ())
    word = SUPPORTED if all(holds) else SUPPORTED_IN_PART if any(holds) else REFUTED
    return Ruling(word, reason, tuple(dict.fromkeys(digests)))


def digests(found: Sequence[tuple[Replay, Context]], name: str = "plain") -> list[str]:
    return [digest(replay.records[name].text()) for replay, _ in found if name in replay.records]


def plain(found: Sequence[tuple[Replay, Context]]) -> list[Record]:
    return [replay.plain for replay, _ in found if replay.plain is not None]


def share(holds: Sequence[bool]) -> str:
    return f"{sum(holds)} of {len(holds)} replays"


def references(found: Sequence[tuple[Replay, Context]]) -> list[str]:
    return [digest(c.reference.plain.text()) for _, c in found if c.reference is not None and c.reference.plain]


def operators(replay: Replay, phase: str) -> set[str]:
    seen = replay.records["profiled"].observation if "profiled" in replay.records else None
    return {operator.name for operator in ((seen.operators or {}) if seen else {}).get(phase, ())}


def has_gradients(record: Record) -> bool:
    seen = record.observation
    return any(tensor.role == "gradient" and tensor.digest for tensor in (seen.tensors if seen else ()))

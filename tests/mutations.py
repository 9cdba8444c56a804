"""Changes of records, for tests that a sentence rests on exactly the records that it cites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from experiments.core.canonical_json import digest
from experiments.core.record import Record
from experiments.core.replay import replays
from reports.claims.findings import Evidence, gather

Change = Callable[[Record], "Record | None"]
"""Gives the record as it is after the change. None if there is nothing in it to be changed, or nothing is left."""


def seen(record: Record, **changes: Any) -> Record | None:
    return None if record.observation is None else replace(record, observation=replace(record.observation, **changes))


def ended_otherwise(record: Record) -> Record | None:
    """Finished instead of raised, or the other way round."""
    raised = record.outcome.kind == "raised"
    ended = replace(
        record.outcome,
        kind="finished" if raised else "raised",
        phase=None if raised else "forward",
        type=None if raised else "builtins.ZeroDivisionError",
        bases=(),
        message=None if raised else "not that",
    )
    made = replace(record, outcome=ended)
    return made if made.observation is None else seen(made, outcome=ended)


def other_values(record: Record) -> Record | None:
    """Each value that was observed: true for false, larger by one for a number, more for a text."""
    made = record.observation and record.observation.observed
    return seen(record, observed=tuple(replace(one, value=_another(one.value)) for one in made)) if made else None


def _another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return f"{value} and more"


def no_values(record: Record) -> Record | None:
    return seen(record, observed=()) if record.observation and record.observation.observed else None


def other_tensors(record: Record) -> Record | None:
    """Tensors with contents that nobody has."""
    made = record.observation and record.observation.tensors
    changed = tuple(
        replace(one, digest=digest(one.digest), samples=None, sketch=None) if one.digest else one for one in made or ()
    )
    return seen(record, tensors=changed) if any(one.digest for one in changed) else None


def no_tensors(record: Record) -> Record | None:
    return seen(record, tensors=()) if record.observation and record.observation.tensors else None


def more_memory(record: Record) -> Record | None:
    return _memory(record, 10.0)


def less_memory(record: Record) -> Record | None:
    return _memory(record, 0.01)


def _memory(record: Record, factor: float) -> Record | None:
    """What each phase took above its start, times `factor`."""
    made = record.observation and record.observation.memory
    if not made:
        return None
    rows = []
    for row in made:
        new = {
            name: int(getattr(row, before) + factor * (getattr(row, name) - getattr(row, before)))
            for name, before in (
                ("peak", "before"),
                ("after", "before"),
                ("cuda_peak", "cuda_before"),
                ("cuda_after", "cuda_before"),
            )
            if getattr(row, name) is not None and getattr(row, before) is not None
        }
        rows.append(replace(row, **new))
    return seen(record, memory=tuple(rows))


def other_operators(record: Record) -> Record | None:
    made = record.observation and record.observation.operators
    if not made:
        return None
    other = {
        phase: tuple(replace(one, name=f"{one.name}_of_another_kind") for one in listed)
        for phase, listed in made.items()
    }
    return seen(record, operators=other)


def removed(_: Record) -> Record | None:
    return None


VALUES: Mapping[str, Change] = {
    "ended otherwise": ended_otherwise,
    "other values": other_values,
    "no values": no_values,
    "other tensors": other_tensors,
    "no tensors": no_tensors,
    "more memory": more_memory,
    "less memory": less_memory,
    "other operators": other_operators,
}
"""All but the last leave the record there."""


class Records:
    """Records by digest, which can be gathered again with some of them changed."""

    def __init__(self, records: Iterable[Record], fetch: Callable[[str], bytes | None], machines: Mapping[str, Any]):
        self.by_name = {digest(record.text()): record for record in records}
        self.fetch, self.machines = fetch, machines

    def about(self, scenarios: Iterable[str]) -> Records:
        """Those of some scenarios."""
        wanted = set(scenarios)
        kept = [record for record in self.by_name.values() if record.spec.question.scenario in wanted]
        return Records(kept, self.fetch, self.machines)

    def evidence(self, changed: Mapping[str, Record | None] | None = None) -> Evidence:
        """With these records instead of those of their names; None takes one away."""
        changed = changed or {}
        kept = [changed.get(name, record) for name, record in self.by_name.items()]
        return gather(replays([one for one in kept if one is not None]), self.fetch, self.machines)

"""A replay: the records of all passes of one case in one setting and repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Sequence

from .canonical_json import canonical, digest
from .record import Record
from .spec import Spec

# Replays.


@dataclass(frozen=True)
class Replay:
    """All passes of one case in one setting and repeat."""

    records: Mapping[str, Record]
    """By pass."""

    @property
    def plain(self) -> Record | None:
        """The pass without instruments, which outcome, gradients, memory and time are taken from.

        None if it has not run.
        """
        return self.records.get("plain")

    @property
    def any(self) -> Record:
        """One record of the replay, for what all of them have in common: question, setting, mark."""
        return self.records[min(self.records)]

    @property
    def spec(self) -> Spec:
        """The spec of one of its passes."""
        return self.any.spec

    @property
    def machine(self) -> str:
        """Digest of the facts of the machine that it ran on. Empty if no process left an observation."""
        return next((r.observation.machine for _, r in sorted(self.records.items()) if r.observation), "")

    @property
    def sources(self) -> dict[str, str]:
        """Digests of the sources that the plain pass ran, by name. Empty if it left no observation."""
        seen = self.plain.observation if self.plain else None
        return {source.name: source.digest for source in (seen.sources if seen else ())}

    def digest(self) -> str:
        """Return the identity of what was asked, which stays the same when it is run again."""
        return self.spec.replay_digest()

    def content_digest(self) -> str:
        """Return a digest of the records themselves, which changes when it is run again."""
        return digest(canonical({name: digest(record.text()) for name, record in self.records.items()}))

    def evidence_digest(self) -> str:
        """Return a digest that two replays, of any schemas, share exactly if every pass holds the same evidence."""
        return digest(canonical({name: record.agreement_digest() for name, record in self.records.items()}))


def replays(records: Sequence[Record]) -> list[Replay]:
    """Group records by replay, in the order in which each replay first appears.

    Of a pass that ran more than once, the last record counts.
    """
    grouped: dict[str, dict[str, Record]] = {}
    for record in records:
        grouped.setdefault(record.spec.replay_digest(), {})[record.spec.question.pass_] = record
    return [Replay(passes) for passes in grouped.values()]

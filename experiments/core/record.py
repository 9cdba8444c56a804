"""Record: one process, what was asked of it, what was seen, how it ended.

    record  = spec + what the worker observed + how the process ended

A record holds observations only: verdicts and differences are computed from it. It travels as canonical JSON, and its
digest is the SHA-256 of that text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Mapping

from .canonical_json import RecordError, canonical, digest, number, parse
from .codec import check_keys, read_fields, to_plain
from .fingerprint import normalize_value
from .observation import Ending, Observation, Output, without_outcome
from .outcome import Outcome, read_outcome
from .schema_history import FIRST_NORMALIZED, SCHEMA, upgrade
from .spec import Spec


@dataclass(frozen=True)
class Record:
    """One process: what was asked, what was seen, how it ended."""

    spec: Spec
    outcome: Outcome
    observation: Observation | None
    """None if the worker left none that can be read."""
    ending: Ending
    written: str | None = field(default=None, init=False, compare=False, repr=False)
    """For a record of an older schema the text it was read from, which its digest is of. None for one of this."""
    read_schema: int | None = field(default=None, init=False, compare=False, repr=False)
    """For a record of an older schema that schema. None for one of this."""

    def evidence(self, schema: int = SCHEMA) -> dict[str, Any]:
        """The part that a replay must repeat, as records of `schema` have it. Times, hosts, process ids and memory are
        not in it.

        Where results vary from run to run by nature, only that is.
        """
        if self.varies:
            return {"varies": True}
        seen, later = self.observation, schema >= FIRST_NORMALIZED
        outcome = {
            "kind": self.outcome.kind,
            "phase": self.outcome.phase,
            "fingerprint": self.outcome.fingerprint(schema),
            **({"named": self.outcome.named} if later else {}),
        }
        if seen is None:
            return {"outcome": outcome, "tensors": None, "operators": None, "observed": None, "state": None}
        return {
            "outcome": outcome,
            "tensors": [
                [t.role, t.name, t.dtype, t.shape, t.digest, *([t.layout] if later else [])] for t in seen.tensors
            ],
            "operators": None
            if seen.operators is None
            else {
                phase: [[o.thread, o.depth, o.name, o.shapes] for o in listed]
                for phase, listed in seen.operators.items()
            },
            "observed": [
                [o.name, normalize_value(o.value) if later else o.value] for o in seen.observed if o.kind == "evidence"
            ],
            "state": [to_plain(change) for change in seen.state],
        }

    @property
    def varies(self) -> bool:
        """Whether results vary from run to run by nature, so that one run is no evidence of another."""
        return any(expectation.get("kind") == "varies" for expectation in self.spec.mark.expectations)

    def evidence_digest(self) -> str:
        """Digest of the evidence as the record's own schema has it: what was written into the record."""
        return self._written_digest

    def agreement_digest(self) -> str:
        """Equal for two records, of whichever schemas, exactly if they hold the same evidence."""
        return self._agreement_digest

    @cached_property
    def _agreement_digest(self) -> str:
        return digest(canonical(self.evidence()))

    @cached_property
    def _written_digest(self) -> str:
        return (
            self._agreement_digest if self.schema >= FIRST_NORMALIZED else digest(canonical(self.evidence(self.schema)))
        )

    @property
    def schema(self) -> int:
        """The schema that the record was written in."""
        return SCHEMA if self.read_schema is None else self.read_schema

    def blobs(self) -> dict[str, str]:
        """Every content that must be kept beside the record: digest -> what it is.

        ``machine`` and ``source`` are texts, the others bytes: ``tensor``, ``stdout``, ``stderr``,
        ``unreadable`` (an observation that nobody can read).
        """
        wanted = {self.ending.stdout.digest: "stdout", self.ending.stderr.digest: "stderr"}
        if self.ending.unreadable is not None:
            wanted[self.ending.unreadable.digest] = "unreadable"
        return wanted if self.observation is None else {**wanted, **self.observation.blobs()}

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "spec": self.spec.to_json(),
            "outcome": {**to_plain(self.outcome), "fingerprint": self.outcome.fingerprint()},
            "observation": None if self.observation is None else without_outcome(self.observation),
            "ending": to_plain(self.ending),
            "evidence_digest": self.evidence_digest(),
        }

    def text(self) -> str:
        """The record as canonical JSON: what is stored, and what its digest is of."""
        return self._text if self.written is None else self.written

    @cached_property
    def _text(self) -> str:
        return canonical(self.to_json())

    @classmethod
    def from_text(cls, text: str) -> Record:
        """Read a record of this schema or any older one.

        Raises RecordError if it is newer, not a record, or does not match its own evidence digest.
        """
        data = parse(text)
        if not isinstance(data, dict):
            raise RecordError("a record is a JSON object")
        try:
            schema = data.get("schema")
            data = upgrade(data)
            check_keys(data, "record", ("spec", "outcome", "observation", "ending", "evidence_digest"))
            record = _record(data)
            if schema != SCHEMA:
                object.__setattr__(record, "written", text)
                object.__setattr__(record, "read_schema", schema)
            fingerprint = record.outcome.fingerprint(record.schema)
            found = {"evidence digest": record.evidence_digest(), "fingerprint": fingerprint}
            said = {"evidence digest": data["evidence_digest"], "fingerprint": data["outcome"]["fingerprint"]}
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise RecordError(f"not a record of schema {SCHEMA}: {type(error).__name__}: {error}") from None
        for name, value in found.items():
            if value != said[name]:
                raise RecordError(f"{name} is {value}, the record says {said[name]}")
        return record


def _record(data: Mapping[str, Any]) -> Record:
    outcome = dict(data["outcome"])
    outcome.pop("fingerprint")
    ending = read_fields(data["ending"], Ending, "ending")
    ending.update(
        duration=number(ending["duration"]),
        stdout=Output(**read_fields(ending["stdout"], Output, "stdout")),
        stderr=Output(**read_fields(ending["stderr"], Output, "stderr")),
        unreadable=None
        if ending["unreadable"] is None
        else Output(**read_fields(ending["unreadable"], Output, "unreadable observation")),
    )
    made = read_outcome(outcome)
    seen = data["observation"]
    return Record(
        spec=Spec.from_json(data["spec"]),
        outcome=made,
        observation=None if seen is None else Observation.from_json({**seen, "outcome": outcome}),
        ending=Ending(**ending),
    )

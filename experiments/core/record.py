"""A record of one process: what was asked, what was observed, and how the process ended.

    record  = spec + what the worker observed + how the process ended

A record holds only observations: verdicts and differences are computed from it. It is stored as canonical JSON, and its
digest is the SHA-256 of that text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Mapping

from .canonical_json import RecordError, canonical, digest, number, parse
from .codec import check_keys, read_fields, to_plain
from .fingerprint import normalize_value
from .observation import Ending, Observation, Output, json_without_outcome
from .outcome import Outcome, read_outcome
from .schema_history import FIRST_NORMALIZED, SCHEMA, upgrade_record
from .spec import Spec


@dataclass(frozen=True)
class Record:
    """One process: what was asked, what was observed, and how it ended."""

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
        """Return the part that a replay must repeat, in the form of records of `schema`.

        Times, hosts, process IDs and memory are not part of it. If results vary from run to run by nature, the evidence
        is only that.
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
        """Whether results vary from run to run by nature, so that one run is not evidence of another."""
        return any(expectation.get("kind") == "varies" for expectation in self.spec.mark.expectations)

    def evidence_digest(self) -> str:
        """Return the digest of the evidence in the form of the record's own schema, which the record contains."""
        return self._written_digest

    def agreement_digest(self) -> str:
        """Return a digest that two records, of any schemas, share exactly if they hold the same evidence."""
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
        """Return digest -> kind of every content that must be stored with the record.

        ``machine`` and ``source`` are texts, the others bytes: ``tensor``, ``stdout``, ``stderr``,
        ``unreadable`` (an observation that cannot be read).
        """
        wanted = {self.ending.stdout.digest: "stdout", self.ending.stderr.digest: "stderr"}
        if self.ending.unreadable is not None:
            wanted[self.ending.unreadable.digest] = "unreadable"
        return wanted if self.observation is None else {**wanted, **self.observation.blobs()}

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object of the current schema."""
        return {
            "schema": SCHEMA,
            "spec": self.spec.to_json(),
            "outcome": {**to_plain(self.outcome), "fingerprint": self.outcome.fingerprint()},
            "observation": None if self.observation is None else json_without_outcome(self.observation),
            "ending": to_plain(self.ending),
            "evidence_digest": self.evidence_digest(),
        }

    def text(self) -> str:
        """Return the record as canonical JSON: the text that is stored, and of which its digest is taken."""
        return self._text if self.written is None else self.written

    @cached_property
    def _text(self) -> str:
        return canonical(self.to_json())

    @classmethod
    def from_text(cls, text: str) -> Record:
        """Read a record of this schema or an older one.

        Raises RecordError if it is newer, not a record, or does not match its own evidence digest.
        """
        data = parse(text)
        if not isinstance(data, dict):
            raise RecordError("a record is a JSON object")
        try:
            schema = data.get("schema")
            data = upgrade_record(data)
            check_keys(data, "record", ("spec", "outcome", "observation", "ending", "evidence_digest"))
            record = _read_record(data)
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


def _read_record(data: Mapping[str, Any]) -> Record:
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

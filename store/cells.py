"""The index row of a record: what the archive is searched by."""

from __future__ import annotations

from typing import Any

from experiments.record import Record, RecordError, canonical, digest, parse
from store.blobs import is_digest
from store.errors import ArchiveError
from store.models import Cell

DOCUMENTS = ("machine", "source")
"""Kinds of content that are texts in the database; the others are blobs in the folder."""

OPTIONAL = ("stdout", "stderr", "unreadable")
"""Kinds that a record may come without: bundles leave them out, since they may name paths."""


def read_record(text: str) -> Record:
    """The record of a text that is exactly what its writer wrote.

    Raises ArchiveError if it is no record, a newer one, not canonical, or does not match its evidence digest.
    """
    try:
        record = Record.from_text(text)
        # An older schema is kept as it was written, so the text itself is what must be canonical.
        exact = canonical(parse(text)) == text
    except RecordError as error:
        raise ArchiveError(f"record {digest(text)} cannot be read: {error}") from None
    if not exact:
        raise ArchiveError(f"record {digest(text)} is not canonical JSON, so its digest would say nothing")
    return record


def wanted(record: Record) -> dict[str, str]:
    """`Record.blobs`, in order. Raises ArchiveError if something in it is not a digest."""
    try:
        found = sorted(record.blobs().items())
    except TypeError:
        raise ArchiveError("a digest in the record is not text") from None
    for name, kind in found:
        if not is_digest(name):
            raise ArchiveError(f"the record names {name!r} as a {kind}: that is not a SHA-256")
    return dict(found)


def cell(text: str, record: Record) -> dict[str, Any]:
    """The columns of `Cell` by attribute. Raises ArchiveError if a value is of another kind than its column."""
    values = {"digest": digest(text), "schema": parse(text)["schema"], **_asked(record), **_seen(record)}
    for column in Cell.__table__.columns:
        value = values[column.name]
        kind = column.type.python_type
        fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
        if not (fits or (value is None and column.nullable)):
            raise ArchiveError(f"{column.name} of the record is {value!r}, which is no {kind.__name__}")
    return values


def _asked(record: Record) -> dict[str, Any]:
    question, setting = record.spec.question, record.spec.setting
    return {
        "scenario": question.scenario,
        "family": str(question.scenario).partition("/")[0],
        "case": question.case,
        "label": question.label(),
        "role": record.spec.mark.role,
        "device": question.device,
        "dtype": question.dtype,
        "input_dtype": question.input_dtype,
        "seed": question.seed,
        "threads": question.threads,
        "pass": question.pass_,
        "question_digest": question.digest(),
        "case_digest": question.case_digest(),
        "replay_digest": record.spec.replay_digest(),
        "environment": setting.environment,
        "isolation": setting.isolation,
        "sources": setting.sources,
        "repeat": setting.repeat,
        "attempt": setting.attempt,
    }


def _seen(record: Record) -> dict[str, Any]:
    outcome, ending = record.outcome, record.ending
    return {
        "outcome": outcome.kind,
        "phase": outcome.phase,
        "error": outcome.type,
        "fingerprint": outcome.fingerprint(record.schema),
        "evidence_digest": record.evidence_digest(),
        "machine": record.observation.machine if record.observation else None,
        "started_at": ending.started_at,
        "duration": ending.duration,
    }

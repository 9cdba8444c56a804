"""The index row of a record, by which the archive is searched."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Any

from experiments.bundle.layout import is_canonical
from experiments.core.canonical_json import RecordError, digest, parse
from experiments.core.record import Record
from experiments.core.spec import family
from store.blobs import is_digest
from store.errors import ArchiveError
from store.models import Cell

_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?Z", re.ASCII)
"""RFC 3339 in UTC, as records write it."""

DOCUMENTS = ("machine", "source")
"""Kinds of content stored as text in the database; all others are blobs in the folder."""

OPTIONAL = ("stdout", "stderr", "unreadable")
"""Kinds that a record may lack: bundles leave them out, since they may name paths."""


_LONGEST_REASON = 300
"""Most characters of the reason for refusing a record: it may quote a key of megabytes."""


def read_record(text: str) -> Record:
    """Return the record of a text that is exactly what its writer wrote.

    Raises ArchiveError if it is not a record, has a newer schema, is not canonical, or does not match its evidence
    digest.
    """
    try:
        record = Record.from_text(text)
        # An older schema is kept as it was written, so the text itself is what must be canonical.
        exact = is_canonical(text)
    except RecordError as error:
        raise ArchiveError(f"record {digest(text)} cannot be read: {str(error)[:_LONGEST_REASON]}") from None
    if not exact:
        raise ArchiveError(f"record {digest(text)} is not canonical JSON, so its digest would say nothing")
    return record


def referenced_contents(record: Record) -> dict[str, str]:
    """Return digest -> kind of each content that the record refers to (`Record.blobs`), sorted by digest.

    Raises ArchiveError if something in it is not a digest.
    """
    try:
        found = sorted(record.blobs().items())
    except TypeError:
        raise ArchiveError("a digest in the record is not text") from None
    for name, kind in found:
        if not is_digest(name):
            raise ArchiveError(f"the record names {name!r} as a {kind}: that is not a SHA-256")
    return dict(found)


def cell_values(text: str, record: Record) -> dict[str, Any]:
    """Return the columns of `Cell` by name. Raises ArchiveError if a value does not have the type of its column."""
    values = {
        "digest": digest(text),
        "schema": parse(text)["schema"],
        **_spec_columns(record),
        **_outcome_columns(record),
    }
    for column in Cell.__table__.columns:
        value = values[column.name]
        kind = column.type.python_type
        fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
        if not (fits or (value is None and column.nullable)):
            raise ArchiveError(f"{column.name} of the record is {value!r}, which is no {kind.__name__}")
    return values


def refuse_invalid_times(record: Record) -> None:
    """Raise ArchiveError if a time of the record is not valid: a stranger's record may hold any text or number."""
    moment = record.ending.started_at
    if not (isinstance(moment, str) and _is_moment(moment)):
        said = repr(moment)[:40]
        raise ArchiveError(f"started_at of the record is {said}; it must be UTC as 2026-01-02T03:04:05.006Z")
    durations = record.observation.durations if record.observation else {}
    for name, seconds in {"duration": record.ending.duration, **durations}.items():
        number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not (number and math.isfinite(seconds) and seconds >= 0):
            said = f"{repr(name)[:40]} of the record is {repr(seconds)[:40]}"
            raise ArchiveError(f"{said}; a time that passed is a finite number of seconds, and not below 0")


def _is_moment(text: str) -> bool:
    if not _MOMENT.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(f"{text[:19]}+00:00")
    except ValueError:
        return False
    return True


def _spec_columns(record: Record) -> dict[str, Any]:
    question, setting = record.spec.question, record.spec.setting
    return {
        "scenario": question.scenario,
        "family": family(str(question.scenario)),
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


def _outcome_columns(record: Record) -> dict[str, Any]:
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

"""A sweep as text, as a bundle contains it: a run of a plan, and the record that it got for each spec.

    plan     canonical JSON: a list of specs, in their order, each once
    sweep    canonical JSON: {"id": ..., "machine": ..., "number": ..., "plan": digest of the plan,
             "records": {digest of a spec: digest of its record}, "started_at": ...}

Imports only the standard library, and runs on Python 3.9.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Mapping, Sequence

from .canonical_json import RecordError, canonical, parse
from .schema_history import upgraded_spec
from .spec import Spec

LARGEST_NUMBER = 2**31 - 1
"""Largest number of a sweep, which is stored as an integer of a database."""
MOMENT = "%Y-%m-%dT%H:%M:%S.%fZ"
"""RFC 3339 in UTC, to the microsecond and so of constant length: text sorts by time."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_KEYS = {"id", "machine", "number", "plan", "records", "started_at"}


class SweepError(Exception):
    """A plan or sweep cannot be read. The message says what is wrong and what is allowed."""


def sweep_id(plan: str, machine: str, number: int) -> str:
    """Return the name of a sweep, which is short enough to type."""
    return f"{plan[:12]}-{machine[:8]}-{number}"


def spec_place(spec: Spec) -> tuple[str, str]:
    """Return what a spec shares with its further attempts: the digests of its question and its replay."""
    return spec.question.digest(), spec.replay_digest()


def plan_places(plan: Sequence[Spec]) -> dict[tuple[str, str], int]:
    """Return the position of each spec in the plan, by `spec_place`."""
    return {spec_place(spec): position for position, spec in enumerate(plan)}


def plan_text(specs: Sequence[Spec]) -> str:
    """Return the text of a plan. Its digest identifies the plan."""
    return canonical([spec.to_json() for spec in specs])


def read_plan(text: str) -> list[Spec]:
    """Return the specs of a plan of any schema. Raises SweepError if they cannot be read, or there are none."""
    try:
        specs = [Spec.from_json(upgraded_spec(data)) for data in parse(text)]
        different = {spec.digest() for spec in specs}
    except RecordError as error:
        raise SweepError(str(error)) from None
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        # Types are checked where values are used, and a plan from elsewhere may contain any.
        raise SweepError(f"{type(error).__name__}: {error}") from None
    if not specs:
        raise SweepError("the plan is empty: there is nothing to sweep")
    if len(different) != len(specs):
        raise SweepError(f"the plan holds {len(specs) - len(different)} specs twice; each must differ from the others")
    return specs


@dataclass(frozen=True)
class BundledSweep:
    """A sweep as a bundle contains it."""

    plan: str
    """Digest of the plan."""
    machine: str
    """SHA-256 that names the machine."""
    number: int
    """Number of the run among those of one plan on one machine, from 1."""
    started_at: str
    """When it was started, in the format `MOMENT`."""
    records: Mapping[str, str]
    """Digest of a spec -> digest of the record that the sweep got for it."""

    @property
    def id(self) -> str:
        """The name of the sweep."""
        return sweep_id(self.plan, self.machine, self.number)

    def text(self) -> str:
        """Return the sweep as canonical JSON."""
        return canonical({**vars(self), "id": self.id})

    @classmethod
    def from_text(cls, text: str) -> BundledSweep:
        """Read what `text` has written. Raises SweepError if it is anything else."""
        try:
            data = parse(text)
        except RecordError as error:
            raise SweepError(str(error)) from None
        if not isinstance(data, dict) or set(data) != _KEYS:
            raise SweepError(f"it is not an object of {', '.join(sorted(_KEYS))}")
        said = data.pop("id")
        _refuse_wrong_values(data)
        made = cls(**data)
        if said != made.id:
            raise SweepError(f"its id is {_short_repr(said)}; plan, machine and number give {made.id}")
        return made


def _refuse_wrong_values(data: Mapping[str, Any]) -> None:
    for name in ("plan", "machine"):
        if not _is_digest(data[name]):
            raise SweepError(f"its {name} is {_short_repr(data[name])}, which is no SHA-256")
    number, moment, records = data["number"], data["started_at"], data["records"]
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= LARGEST_NUMBER:
        raise SweepError(f"its number is {_short_repr(number)}; from 1 to {LARGEST_NUMBER} is read")
    if not is_moment(moment):
        raise SweepError(f"started_at is {_short_repr(moment)}; it must be UTC as 2026-01-02T03:04:05.000006Z")
    if not isinstance(records, dict) or not records:
        raise SweepError("it has no records")
    if not all(_is_digest(key) and _is_digest(value) for key, value in records.items()):
        raise SweepError("it names a spec or a record by what is no SHA-256")


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def is_moment(value: Any) -> bool:
    """Return whether a value is a time in the format `MOMENT`."""
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        return False
    try:
        datetime.strptime(value, MOMENT).replace(tzinfo=timezone.utc)
    except ValueError:
        return False
    return True


def _short_repr(value: Any) -> str:
    return repr(value)[:100]

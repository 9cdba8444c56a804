"""A sweep as text: a run of a plan, and which record it got for each spec. This is how a bundle carries it.

    plan     canonical JSON: a list of specs, in their order, each once
    sweep    canonical JSON: {"id": ..., "machine": ..., "number": ..., "plan": digest of the plan,
             "records": {digest of a spec: digest of its record}, "started_at": ...}

Only the standard library is imported here, and nothing newer than Python 3.9.
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
"""Of a sweep: what a database's integer holds."""
MOMENT = "%Y-%m-%dT%H:%M:%S.%fZ"
"""RFC 3339 in UTC, to the microsecond and so always equally long: text sorts by time."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_KEYS = {"id", "machine", "number", "plan", "records", "started_at"}


class SweepError(Exception):
    """A plan or sweep cannot be read. The message says what was found and what is allowed."""


def sweep_id(plan: str, machine: str, number: int) -> str:
    """Name of a sweep, readable enough to type."""
    return f"{plan[:12]}-{machine[:8]}-{number}"


def place_of(spec: Spec) -> tuple[str, str]:
    """What a spec has in common with its further attempts: the question, and the replay it belongs to."""
    return spec.question.digest(), spec.replay_digest()


def places(plan: Sequence[Spec]) -> dict[tuple[str, str], int]:
    """Position in the plan by `place_of`."""
    return {place_of(spec): position for position, spec in enumerate(plan)}


def plan_text(specs: Sequence[Spec]) -> str:
    """The text of a plan, whose digest names it."""
    return canonical([spec.to_json() for spec in specs])


def read_plan(text: str) -> list[Spec]:
    """The specs of a plan of any schema. Raises SweepError if they cannot be read, or there are none."""
    try:
        specs = [Spec.from_json(upgraded_spec(data)) for data in parse(text)]
        different = {spec.digest() for spec in specs}
    except RecordError as error:
        raise SweepError(str(error)) from None
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        # Kinds of values are looked at where they are used, and a stranger's may be any.
        raise SweepError(f"{type(error).__name__}: {error}") from None
    if not specs:
        raise SweepError("the plan is empty: there is nothing to sweep")
    if len(different) != len(specs):
        raise SweepError(f"the plan holds {len(specs) - len(different)} specs twice; each must differ from the others")
    return specs


@dataclass(frozen=True)
class BundledSweep:
    """A sweep as a bundle has it."""

    plan: str
    """Digest of the plan."""
    machine: str
    """SHA-256 that names the machine."""
    number: int
    """Tells runs of one plan on one machine apart; from 1."""
    started_at: str
    """When it was begun, as `MOMENT`."""
    records: Mapping[str, str]
    """Digest of a spec -> digest of the record that the sweep got for it."""

    @property
    def id(self) -> str:
        return sweep_id(self.plan, self.machine, self.number)

    def text(self) -> str:
        """Canonical JSON."""
        return canonical({**vars(self), "id": self.id})

    @classmethod
    def from_text(cls, text: str) -> BundledSweep:
        """Raises SweepError if it is not what `text` makes of a sweep."""
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
            raise SweepError(f"its id is {_shown(said)}; plan, machine and number give {made.id}")
        return made


def _refuse_wrong_values(data: Mapping[str, Any]) -> None:
    for name in ("plan", "machine"):
        if not _is_digest(data[name]):
            raise SweepError(f"its {name} is {_shown(data[name])}, which is no SHA-256")
    number, moment, records = data["number"], data["started_at"], data["records"]
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= LARGEST_NUMBER:
        raise SweepError(f"its number is {_shown(number)}; from 1 to {LARGEST_NUMBER} is read")
    if not is_moment(moment):
        raise SweepError(f"started_at is {_shown(moment)}; it must be UTC as 2026-01-02T03:04:05.000006Z")
    if not isinstance(records, dict) or not records:
        raise SweepError("it has no records")
    if not all(_is_digest(key) and _is_digest(value) for key, value in records.items()):
        raise SweepError("it names a spec or a record by what is no SHA-256")


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def is_moment(value: Any) -> bool:
    """Whether a value is a time as `MOMENT` writes it."""
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        return False
    try:
        datetime.strptime(value, MOMENT).replace(tzinfo=timezone.utc)
    except ValueError:
        return False
    return True


def _shown(value: Any) -> str:
    return repr(value)[:100]

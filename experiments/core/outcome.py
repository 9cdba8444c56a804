"""The outcome of a case, that is, how it ended, and its fingerprint. Not whether it was expected."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .canonical_json import RecordError
from .codec import read_fields
from .fingerprint import PATHS, normalize
from .schema_history import FIRST_NORMALIZED, SCHEMA

ENDINGS = ("finished", "raised", "timed_out", "out_of_memory", "died", "not_run", "not_observed")
PHASES = ("inputs", "warm-up", "forward", "backward")


@dataclass(frozen=True)
class Outcome:
    """How the process ended. Not whether that was expected."""

    kind: str
    """One of `ENDINGS`."""
    phase: str | None
    """One of `PHASES`. None where the process ended where no phase could be seen, or with `finished`."""
    type: str | None
    """Qualified name of the exception. None unless `raised`."""
    bases: tuple[str, ...]
    """Qualified names of the exception's base classes, nearest first."""
    message: str | None
    """The exception's message. None unless `raised`."""
    traceback: str | None
    """With paths relative to the project or to torch. None unless `raised`."""
    detail: str
    """Signal name, exit code, limit, missing need, or what could not be observed and why. Empty when `finished` or
    `raised`."""

    def fingerprint(self, schema: int = SCHEMA) -> str | None:
        """Return type, phase and normalized message (`fingerprint.normalize`), in the form of records of `schema`.

        Shapes and byte counts stay. None unless `raised`.
        """
        if self.kind != "raised":
            return None
        message = self.message or ""
        head = normalize(message) if schema >= FIRST_NORMALIZED else _normalize_before_schema_4(message)
        return f"{self.type} in {self.phase}: {head}"

    @property
    def named(self) -> str | None:
        """The exception's type, or the signal or exit code of a process that died. None for other kinds."""
        if self.kind == "died":
            found = re.match(r"SIG[A-Z0-9]+|signal \d+|exit -?\d+", self.detail)
            return found.group() if found else ""
        return self.type

    @property
    def ran(self) -> bool:
        """Whether the case was started."""
        return self.kind != "not_run"


def _normalize_before_schema_4(message: str) -> str:
    """Normalize a message as records up to schema 3 do, whose digests depend on it."""
    text = re.split(r"\n[ \t]*\n", message.strip(), maxsplit=1)[0]
    text = re.sub(r"0x[0-9a-fA-F]+", "ADDRESS", text)
    for path in PATHS:
        text = re.sub(path, r"\g<quote>PATH\g<quote>" if "quote" in path else "PATH", text)
    text = re.sub(r"\bline \d+", "line N", text)
    return re.sub(r"\b(pid|process)([ :=]+)\d+", r"\1\2N", text, flags=re.IGNORECASE)


def read_outcome(data: Any) -> Outcome:
    """Read an outcome. Raises RecordError if a field is missing, unknown or of the wrong type."""
    values = read_fields(data, Outcome, "outcome")
    if values["kind"] not in ENDINGS:
        raise RecordError(f"outcome {values['kind']!r} is unknown; known are {', '.join(ENDINGS)}")
    return Outcome(**{**values, "bases": tuple(values["bases"])})

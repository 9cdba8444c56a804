"""Expectations: what a case is expected to show.

Each is a plain value that is stored in the spec as JSON, so that an old record can be judged without its scenario file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Mapping, Union


class ScenarioError(Exception):
    """A scenario file contradicts itself: two cases of the same name, a mark without an expectation..."""

    # The name by which scenario files import it, and which records contain.
    __module__ = "experiments.scenario"


@dataclass(frozen=True)
class Raises:
    """The case ends with this exception."""

    type: str
    """Qualified or unqualified name of the exception or of one of its base classes."""
    text: str
    """Text that the message contains. Empty for any."""
    kind: str = "raises"


@dataclass(frozen=True)
class Agrees:
    """The outputs and gradients agree with the reference."""

    bitwise: bool
    """True: the same bits. False: within the rounding that the float64 reference shows."""
    kind: str = "agrees"


@dataclass(frozen=True)
class Differs:
    """Some output or gradient differs from the reference, without any error."""

    by_at_least: float
    """Largest absolute difference over all outputs and gradients, in their own unit."""
    kind: str = "differs"


@dataclass(frozen=True)
class RecomputesWithout:
    """An operator of the forward pass is missing from the recomputation, where another ran instead."""

    operator: str
    """Operator name, such as ``aten::mm``; read from the profiled pass."""
    kind: str = "recomputes_without"


@dataclass(frozen=True)
class StateDiffers:
    """The case changes this process-wide switch and does not restore it."""

    name: str
    """As in the record's list of state changes, such as ``sdpa.math``."""
    kind: str = "state_differs"


@dataclass(frozen=True)
class NoGradient:
    """These inputs require a gradient and get none."""

    names: tuple[str, ...]
    kind: str = "no_gradient"


@dataclass(frozen=True)
class Peaks:
    """The peak of memory in use during one phase lies between two sizes."""

    phase: str
    at_least: int | None
    """Bytes above what was held when the phase began. None for no bound."""
    at_most: int | None
    """Bytes above what was held when the phase began. None for no bound."""
    kind: str = "peaks"


@dataclass(frozen=True)
class Holds:
    """The memory still held at the end of one phase lies between two sizes."""

    phase: str
    at_least: int | None
    """Bytes above what was held when the phase began. None for no bound."""
    at_most: int | None
    """Bytes above what was held when the phase began. None for no bound."""
    kind: str = "holds"


@dataclass(frozen=True)
class Shows:
    """The case observed these values."""

    values: Mapping[str, Any]
    """Values by the name passed to `observe`. Compared in the form that the record contains."""
    kind: str = "shows"


@dataclass(frozen=True)
class Refuses:
    """torch refuses one allocation of exactly this size."""

    bytes: int
    kind: str = "refuses"


@dataclass(frozen=True)
class Hangs:
    """The case does not end within its time limit."""

    kind: str = "hangs"


@dataclass(frozen=True)
class Dies:
    """The process ends by a signal or by an exit code of its own."""

    by: str
    """Signal name such as ``SIGSEGV``, or ``exit 3``. Empty for any."""
    kind: str = "dies"


@dataclass(frozen=True)
class Varies:
    """Runs differ from each other, and only how often they do is judged. Not part of the evidence."""

    at_least: float
    """Smallest share of repeats, 0 to 1, that deviate."""
    at_most: float
    """Largest share of repeats, 0 to 1, that deviate."""
    of: str = "endings"
    """How a repeat deviates: ``endings``, it does not finish; ``values``, it finishes with other values than most do;
    ``results``, either. Marks of schemas 1 to 3 lack this field and mean endings."""
    kind: str = "varies"


Expectation = Union[
    Raises,
    Agrees,
    Differs,
    RecomputesWithout,
    StateDiffers,
    NoGradient,
    Peaks,
    Holds,
    Shows,
    Refuses,
    Hangs,
    Dies,
    Varies,
]
_KINDS: dict[str, Any] = {
    "raises": Raises,
    "agrees": Agrees,
    "differs": Differs,
    "recomputes_without": RecomputesWithout,
    "state_differs": StateDiffers,
    "no_gradient": NoGradient,
    "peaks": Peaks,
    "holds": Holds,
    "shows": Shows,
    "refuses": Refuses,
    "hangs": Hangs,
    "dies": Dies,
    "varies": Varies,
}


def expectation_to_json(expectation: Expectation) -> dict[str, Any]:
    """Return the expectation as a JSON object, whose `kind` names its class."""
    data = asdict(expectation)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in data.items()}


def expectation_from_json(data: Mapping[str, Any]) -> Expectation:
    """Read what `expectation_to_json` returns. Raises ScenarioError if the kind or its fields are unknown."""
    kind = data.get("kind")
    if kind not in _KINDS:
        raise ScenarioError(f"expectation {kind!r} is unknown; known are {', '.join(sorted(_KINDS))}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    try:
        made: Expectation = _KINDS[kind](**values)
    except TypeError as error:
        raise ScenarioError(f"expectation {kind!r} has other fields than this version knows: {error}") from None
    return made

"""An observation: what a worker recorded of a case. An ending: what its parent recorded of the process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from .canonical_json import RecordError, number
from .codec import FITS, read_fields, to_plain
from .outcome import Outcome, read_outcome

UNOBSERVED = "unobserved"
"""Name of the file in which a worker says why it left no observation."""


@dataclass(frozen=True)
class Source:
    """A file whose content decided what happened."""

    name: str
    """Path below the project, or below torch's own folder as ``torch/...``."""
    digest: str
    kept: bool
    """True for ours, whose content is stored; False for torch's, of which only the digest is."""


@dataclass(frozen=True)
class Tensor:
    """An input, an observed value, or a gradient."""

    role: str
    """``input``, ``output`` (observed by the case) or ``gradient`` (of an input)."""
    name: str
    dtype: str | None
    """None if there is no such tensor: an input that got no gradient."""
    shape: tuple[int, ...] | None
    layout: str
    """Empty for an ordinary dense tensor, else what it is, such as ``jagged: 2x2, 3x2``, ``sparse_csr``, ``meta``."""
    digest: str | None
    """SHA-256 of its elements as raw little-endian bytes in row-major order; of a sparse tensor as a dense one, of a
    nested one those of its parts, of a quantized one its integers. None for a tensor that has no elements to keep, as
    one on the meta device, and if there is no such tensor."""
    whole: bool
    """True if those bytes are stored; False if only `samples` and `sketch` are."""
    norm: float | None
    """Square root of the sum of squares, calculated in float64."""
    largest: float | None
    """Largest absolute value."""
    samples: str | None
    """Digest of the elements at `sample_positions`, raw. None if the tensor is whole or missing."""
    sketch: str | None
    """Digest of its count sketch (float64). None if the tensor is whole or missing."""


@dataclass(frozen=True)
class Operator:
    """One dispatched operator. Operators are listed in the order in which they started."""

    thread: int
    """Numbered in the order in which threads appear; 0 is the one that called the case."""
    depth: int
    """Operators around it: 0 for one called by the case or by autograd itself."""
    name: str
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of its arguments, empty for those that are not tensors."""

    def to_list(self) -> list[Any]:
        """Return the operator as a JSON list: there are many operators, and a list is shorter than an object."""
        return [self.thread, self.depth, self.name, [list(shape) for shape in self.shapes]]


@dataclass(frozen=True)
class Observed:
    """A value that the case itself observed."""

    name: str
    value: Any
    kind: str
    """``evidence``, which a replay must repeat, or ``measurement``."""
    tolerance: float | None
    """Relative difference of a measurement that still counts as the same. None if none was given."""


@dataclass(frozen=True)
class StateChange:
    """A process-wide switch that the case changed and did not restore."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Memory:
    """Memory of one phase, in bytes."""

    phase: str
    before: int | None
    """Resident size when the phase began. None where the system does not tell."""
    peak: int | None
    """Largest resident size during the phase. None where it cannot be reset and read."""
    after: int | None
    """Resident size when the phase ended. None where the system does not tell."""
    cuda_before: int | None
    """Allocated by torch on the GPU when the phase began. None off the GPU."""
    cuda_peak: int | None
    cuda_after: int | None
    largest: int | None
    """Largest single allocation of torch on the case's device during the phase. None except in the profiled pass."""

    def growth(self, *, peak: bool) -> int | None:
        """Return the bytes at the phase's peak, or at its end, above those at its start.

        Memory of the GPU if the case ran there, else resident memory. None where the system does not report it.
        """
        cuda = self.cuda_before is not None
        before = self.cuda_before if cuda else self.before
        after = self.cuda_after if cuda else self.after
        reached = (self.cuda_peak if cuda else self.peak) if peak else after
        return None if before is None or reached is None else reached - before


@dataclass(frozen=True)
class Observation:
    """What the worker observed. The worker writes it, and its parent completes it to a record."""

    outcome: Outcome
    tensors: tuple[Tensor, ...]
    operators: Mapping[str, tuple[Operator, ...]] | None
    """By phase: forward, recomputation, backward. None except in the profiled pass; without recomputation
    where it could not be marked, in a torch whose checkpoint is not known."""
    observed: tuple[Observed, ...]
    state: tuple[StateChange, ...]
    memory: tuple[Memory, ...]
    durations: Mapping[str, float]
    """Seconds by phase; a phase that was not reached is not there."""
    machine: str
    """Digest of the machine's facts as this process saw them."""
    sources: tuple[Source, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Observation:
        """Read an observation. Raises RecordError if it is not one of this version."""
        values = read_fields(data, Observation, "observation")
        return _read_observation(values)

    def to_json(self) -> dict[str, Any]:
        """Return the observation as a JSON object."""
        made: dict[str, Any] = to_plain(self)
        return made

    def blobs(self) -> dict[str, str]:
        """Return every content that it refers to: digest -> ``machine``, ``source`` or ``tensor``."""
        kept = [part for one in self.tensors for part in (one.digest if one.whole else None, one.samples, one.sketch)]
        sources = [source.digest for source in self.sources if source.kept]
        return {
            **{name: "tensor" for name in kept if name},
            **dict.fromkeys(sources, "source"),
            self.machine: "machine",
        }


@dataclass(frozen=True)
class Output:
    """Output of a process to stdout or stderr."""

    digest: str
    """SHA-256 of what was kept."""
    written: int
    """Bytes written in all."""
    kept: int
    """Bytes kept; less than `written` if it was cut."""


@dataclass(frozen=True)
class Ending:
    """How the process ended, as observed by its parent. None of it is evidence."""

    exit_code: int | None
    """None if it was ended by a signal or never started."""
    signal: str | None
    """Name of the signal that ended it. None if it exited or never started."""
    started_at: str
    """When the process was started, UTC, RFC 3339."""
    duration: float
    """Seconds from start to end."""
    stdout: Output
    stderr: Output
    unreadable: Output | None
    """The observation that the worker left but nobody can read. None if there is no such thing."""


def _read_observation(values: dict[str, Any]) -> Observation:
    operators = values["operators"]
    return Observation(
        outcome=read_outcome(values["outcome"]),
        tensors=tuple(_read_tensor(item) for item in values["tensors"]),
        operators=None
        if operators is None
        else {phase: tuple(_read_operator(item) for item in listed) for phase, listed in operators.items()},
        observed=tuple(_read_observed_value(item) for item in values["observed"]),
        state=tuple(StateChange(**read_fields(item, StateChange, "state change")) for item in values["state"]),
        memory=tuple(Memory(**read_fields(item, Memory, "memory")) for item in values["memory"]),
        durations={phase: number(seconds) for phase, seconds in values["durations"].items()},
        machine=values["machine"],
        sources=tuple(Source(**read_fields(item, Source, "source")) for item in values["sources"]),
    )


def _read_tensor(data: Any) -> Tensor:
    values = read_fields(data, Tensor, "tensor")
    for name in ("norm", "largest"):
        values[name] = None if values[name] is None else number(values[name])
    values["shape"] = None if values["shape"] is None else tuple(values["shape"])
    return Tensor(**values)


def _read_operator(data: Any) -> Operator:
    """Read an operator. The inverse of `Operator.to_list`."""
    thread, depth, name, shapes = data
    right = FITS["int"](thread) and FITS["int"](depth) and isinstance(name, str)
    if not right or not all(FITS["tuple[int, ...]"](shape) for shape in shapes):
        raise RecordError(f"an operator is {data!r:.100}, not thread, depth, name and shapes")
    return Operator(thread, depth, name, tuple(tuple(shape) for shape in shapes))


def _read_observed_value(data: Any) -> Observed:
    values = read_fields(data, Observed, "observed value")
    values["tolerance"] = None if values["tolerance"] is None else number(values["tolerance"])
    return Observed(**values)


def json_without_outcome(seen: Observation) -> dict[str, Any]:
    """Return an observation as a JSON object without its outcome, which a record keeps outside the observation."""
    data = seen.to_json()
    del data["outcome"]
    return data

"""The profiled pass: which operators ran in the forward pass, in the recomputation and in backward.

`torch.profiler` does not affect compiled code, and it sees composite operators; a dispatch mode does neither. Recorded
are `aten::` operators (and CUDA kernels), by phase and thread, in the order in which they started.
"""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass, replace
from typing import Any, Callable, ContextManager, Iterator, Mapping, Sequence

import torch

from ...core.bounds import CUT, LONGEST_NAME, MOST_DEPTH, MOST_DIMENSIONS, MOST_OPERATORS, MOST_SHAPES
from ...core.canonical_json import digest
from ...core.observation import Memory, Operator
from . import regions

MARK = "twofold::"
IGNORED = MARK + "ignored"
"""Mark around operators of the worker itself."""
_PHASES = {
    MARK + "forward": "forward",
    MARK + "backward": "backward",
    regions.FORWARD: "forward",
    regions.RECOMPUTATION: "recomputation",
}


class Profile:
    """Collects operators within its block, or does nothing if it is not wanted."""

    def __init__(self, *, wanted: bool, device: str, observing: Callable[[str], ContextManager[None]]) -> None:
        """`observing` is entered around the worker's own operations, and records why one failed."""
        self.wanted = wanted
        self.operators: dict[str, tuple[Operator, ...]] | None = None
        self.largest: dict[str, int] = {}
        """Bytes of the largest single allocation, by phase."""
        self._device = device
        self._observing = observing

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        if not self.wanted:
            yield
            return
        _import_dynamo()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._device == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profiler = torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True)
        profiler.start()
        try:
            with regions.mark_regions():
                yield
        finally:
            with self._observing("the list of operators"):
                self._read_operators(profiler)

    def _read_operators(self, profiler: Any) -> None:
        """Stop the profiler and read the operators from it."""
        cuda = self._device == "cuda"
        if cuda:
            torch.cuda.synchronize()
        profiler.stop()
        events = profiler.events() or []
        self.operators = cut_lists(_operators_by_phase(events))
        self.largest = _largest_allocations(profiler, events, cuda=cuda)
        if not regions.has_hooks():
            del self.operators["recomputation"]

    @contextlib.contextmanager
    def mark_phase(self, name: str) -> Iterator[None]:
        """Mark a phase in the profile."""
        if not self.wanted:
            yield
            return
        with torch.profiler.record_function(MARK + name):
            yield

    def add_largest(self, phases: Sequence[Memory]) -> tuple[Memory, ...]:
        """Return the memory of each phase with its largest allocation, if the profile contains one."""
        return tuple(replace(row, largest=self.largest.get(row.phase)) for row in phases)


def _import_dynamo() -> None:
    """Import what the first call of `checkpoint` would import.

    In some versions of torch that import runs operators, which do not belong to the case.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._dynamo")


def _largest_allocations(profiler: Any, events: Any, *, cuda: bool) -> dict[str, int]:
    """Return the largest single allocation in each phase. Empty if this torch's profiler does not list allocations."""
    listed = getattr(getattr(profiler, "profiler", None), "kineto_results", None)
    if listed is None:
        return {}
    spans = {e.name: e.time_range for e in events if e.name in (MARK + "forward", MARK + "backward")}
    origin = listed.trace_start_ns() if hasattr(listed, "trace_start_ns") else listed.trace_start_us() * 1000
    found: dict[str, int] = {}
    for event in listed.events():
        if event.name() != "[memory]" or event.nbytes() <= 0 or str(event.device_type()).endswith("CUDA") != cuda:
            continue
        at = (event.start_ns() - origin) / 1000
        for name, span in spans.items():
            if span.start <= at <= span.end:
                phase = _PHASES[name]
                found[phase] = max(found.get(phase, 0), int(event.nbytes()))
    return found


@dataclass(frozen=True)
class _Span:
    """One event of the profile."""

    name: str
    thread: int
    start: float
    """Microseconds."""
    end: float
    """Microseconds."""
    kernel: bool
    shapes: tuple[tuple[int, ...], ...]

    def is_around(self, other: _Span) -> bool:
        """Return whether another event lies within this one."""
        return self.start <= other.start and other.end <= self.end and self is not other


def _operators_by_phase(events: Any) -> dict[str, tuple[Operator, ...]]:
    """Return the operators by phase from the profiler's events."""
    spans = sorted((_read_span(event) for event in events), key=lambda span: (span.start, -span.end))
    marks = [span for span in spans if span.name in _PHASES or span.name == IGNORED]
    threads: dict[int, int] = {}
    listed: dict[str, list[Operator]] = {"forward": [], "recomputation": [], "backward": []}
    open_spans: dict[int, list[_Span]] = {}
    for span in (span for span in spans if span.kernel or span.name.startswith("aten::")):
        around = [other for other in open_spans.get(span.thread, []) if other.is_around(span)]
        phase = _span_phase(span, marks)
        if phase is None:
            continue
        depth = sum(1 for other in around if _span_phase(other, marks) == phase)
        number = threads.setdefault(span.thread, len(threads))
        listed[phase].append(Operator(number, depth, span.name, span.shapes))
        open_spans[span.thread] = [*around, span]
    return {phase: tuple(operators) for phase, operators in listed.items()}


def cut_lists(listed: Mapping[str, Sequence[Operator]]) -> dict[str, tuple[Operator, ...]]:
    """Cut each list to what a record may contain.

    A list that was cut ends with a pseudo-operator, whose name says so and contains the digest of the whole list, so
    that two cut lists are equal only if the whole lists were.
    """
    most = MOST_OPERATORS // max(1, len(listed))
    return {phase: tuple(_cut_operators(operators, most)) for phase, operators in listed.items()}


def _cut_operators(operators: Sequence[Operator], most: int) -> Iterator[Operator]:
    kept = list(operators[:most])
    yield from (replace(one, depth=min(one.depth, MOST_DEPTH), name=_cut_name(one.name)) for one in kept)
    if len(operators) > most:
        whole = digest(ascii([(one.thread, one.depth, one.name, one.shapes) for one in operators]))
        yield Operator(0, 0, f"{CUT}{len(operators)} operators in all, SHA-256 {whole}]", ())


def _cut_name(name: str) -> str:
    """Cut a name to what a record may contain: that of a kernel may list all arguments of its template."""
    if len(name) <= LONGEST_NAME:
        return name
    mark = f"{CUT}{len(name)} characters in all, SHA-256 {digest(name)}]"
    return name[: LONGEST_NAME - len(mark)] + mark


def _span_phase(span: _Span, marks: list[_Span]) -> str | None:
    """Return the phase of the innermost mark around a span: in its own thread, else (an autograd thread) in any.

    None if there is no mark, or it is that of the worker itself.
    """
    around = [mark for mark in marks if mark.is_around(span)]
    own = [mark for mark in around if mark.thread == span.thread]
    innermost = max(own or around, key=lambda mark: mark.start, default=None)
    return None if innermost is None or innermost.name == IGNORED else _PHASES[innermost.name]


def _read_span(event: Any) -> _Span:
    shapes = tuple(tuple(shape) if _is_shape(shape) else () for shape in (event.input_shapes or ())[:MOST_SHAPES])
    return _Span(
        name=event.name,
        thread=event.thread,
        start=event.time_range.start,
        end=event.time_range.end,
        kernel=str(event.device_type).endswith("CUDA"),
        shapes=shapes,
    )


def _is_shape(shape: Any) -> bool:
    # For a list of tensors the profiler returns a list of shapes, which is not a shape.
    sizes = isinstance(shape, (list, tuple)) and all(isinstance(size, int) for size in shape)
    return sizes and len(shape) <= MOST_DIMENSIONS

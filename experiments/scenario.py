"""The words a scenario file is written in: `Scenario`, its marks, and what a case is expected to show.

A scenario file holds one fault or one claim about torch. It imports torch and this module, makes one
`Scenario`, and marks plain functions::

    scenario = Scenario(source="https://...")

    @scenario.inputs                          # seed -> {name: tensor}, float32 on the CPU
    @scenario.reference                       # the calculation as it should be
    @scenario.broken(raises(...))             # a way in which it goes wrong, and how that shows
    @scenario.repair(agrees(bitwise=True))    # a way to put it right, and how close it comes
    @scenario.control(agrees(...), why="...") # a variant that cannot go wrong here, and why

A case takes the inputs by name (and its variant's parameters, by name) and returns the scalar to
differentiate; the worker calls `backward()` on it. A case that must stay inside a `with` block while
the gradients are computed *yields* the scalar instead: the worker differentiates, then lets it end.
A case marked ``gradient=False`` is not differentiated and may return nothing: what it observes is compared.

Marks may be stacked on one function, each with its own variants (`over=`, `dtypes=`) or devices (`on=`),
because the same call can break on one device and be a control on another.

Only the standard library is imported here, and nothing newer than Python 3.9: workers load this file.
"""

from __future__ import annotations

import inspect
import itertools
from dataclasses import dataclass, field
from typing import Any, Callable, Literal, Mapping, Sequence, TypeVar, Union

from .core.expectations import (
    Agrees,
    Dies,
    Differs,
    Expectation,
    Hangs,
    Holds,
    NoGradient,
    Peaks,
    Raises,
    RecomputesWithout,
    Refuses,
    ScenarioError,
    Shows,
    StateDiffers,
    Varies,
)

Function = TypeVar("Function", bound=Callable[..., Any])
Role = Literal["reference", "broken", "repair", "control"]
Parameter = Union[str, int, float, bool, None]

CAUSES = (
    "ambient state",  # SDPA policy, autocast, grad mode, precision switches, default dtype or device
    "random state",
    "python value",  # a closure cell, global or attribute
    "training flag",
    "tensor changed",  # an input, parameter or buffer written between the runs
    "effect repeated",  # something that the recomputation did a second time
    "early stop",
    "reentrant limit",
    "another thread",
    "compiler",
    "process",  # what a child process inherits, or lacks
    "derivative",  # a formula of a backward pass
    "kernel",  # an operator's own implementation
    "nondeterminism",  # an operator whose result depends on the order of its threads
    "memory",
)
"""What makes a case go wrong, in a recomputation or anywhere: the closed vocabulary of `cause=`."""

VARYING = ("results", "endings", "values")
"""What `varies` can speak of."""

DTYPES = ("float32", "float64", "bfloat16", "float16")
DEVICES = ("cpu", "cuda")
MEASURED = ("briefly", "at length")
"""How long a case takes whose memory or time is the point: under ten seconds on two cores, or more."""


def raises(error: type[BaseException] | str, text: str = "") -> Raises:
    """The case ends with `error` (a class or its qualified name) and a message that contains `text`."""
    return Raises(type=error if isinstance(error, str) else qualified_name(error), text=text)


def agrees(*, bitwise: bool = False, within_rounding: bool = False) -> Agrees:
    """Output and gradients have the reference's bits, or differ from it by no more than rounding."""
    if bitwise == within_rounding:
        raise ScenarioError("agrees() takes exactly one of bitwise=True and within_rounding=True")
    return Agrees(bitwise=bitwise)


def differs(*, by_at_least: float) -> Differs:
    """No error, and some output or gradient is off by at least this much, in its own unit."""
    if not by_at_least > 0:
        raise ScenarioError(f"differs(by_at_least={by_at_least!r}) shows nothing; give a size above 0")
    return Differs(by_at_least=by_at_least)


def recomputes_without(operator: str) -> RecomputesWithout:
    """The forward pass ran `operator`, the recomputation did not."""
    return RecomputesWithout(operator=operator)


def state_differs(name: str) -> StateDiffers:
    """The process-wide switch `name` is left other than it was found."""
    return StateDiffers(name=name)


def no_gradient(*names: str) -> NoGradient:
    """The inputs `names` require a gradient and get none."""
    if not names:
        raise ScenarioError("no_gradient() needs the names of the inputs that get none")
    return NoGradient(names=names)


def peaks(phase: str = "forward", *, at_least: int | None = None, at_most: int | None = None) -> Peaks:
    """Memory in use during `phase` peaks between these bytes above what was held at its start."""
    _range("peaks", phase, at_least, at_most)
    return Peaks(phase=phase, at_least=at_least, at_most=at_most)


def holds(phase: str = "forward", *, at_least: int | None = None, at_most: int | None = None) -> Holds:
    """Memory still held at the end of `phase` lies between these bytes above what was held at its start."""
    _range("holds", phase, at_least, at_most)
    return Holds(phase=phase, at_least=at_least, at_most=at_most)


def _range(word: str, phase: str, at_least: int | None, at_most: int | None) -> None:
    if phase not in ("inputs", "forward", "backward"):
        raise ScenarioError(f"{word}(): phase {phase!r} is unknown; known are inputs, forward, backward")
    if at_least is not None and at_most is not None and at_least > at_most:
        raise ScenarioError(f"{word}(at_least={at_least}, at_most={at_most}) is not a range")
    if at_least is None and at_most is None:
        raise ScenarioError(f"{word}() needs at_least=, at_most= or both, in bytes")
    if at_most is None and at_least is not None and at_least <= 0:
        raise ScenarioError(f"{word}(at_least={at_least}) holds for every case: give a number of bytes above 0")


def shows(values: Mapping[str, Any] | None = None, **named: Any) -> Shows:
    """The case observed exactly these values, whichever way it ended: ``shows(compiled=False)``, or
    ``shows({"calls that ran compiled": 0})`` where the name is no identifier.
    """
    found = {**(values or {}), **named}
    if not found:
        raise ScenarioError("shows() needs the observed values that are expected, by name")
    return Shows(values=found)


def refuses(*, bytes: int) -> Refuses:
    """Torch refuses one allocation of exactly `bytes` bytes."""
    return Refuses(bytes=bytes)


def hangs() -> Hangs:
    """The case does not end within its time limit."""
    return Hangs()


def dies(*, by: str = "") -> Dies:
    """The process dies, by this signal name or exit code."""
    return Dies(by=by)


def varies(*, at_least: float = 0.0, at_most: float = 1.0, of: str = "results") -> Varies:
    """Results differ from run to run; between these shares of the repeats fail, or finish with other tensors or
    observed values than most of them: ``of="results"``. ``of="endings"`` counts those that fail only,
    ``of="values"`` those that finish with other values only.
    """
    if not 0 <= at_least <= at_most <= 1:
        raise ScenarioError(f"varies(at_least={at_least!r}, at_most={at_most!r}) is not a range within 0 and 1")
    if at_least == 0 and at_most == 1:
        raise ScenarioError("varies() holds for every case: give at_least=, at_most= or both, between 0 and 1")
    if of not in VARYING:
        raise ScenarioError(f"varies(of={of!r}) is unknown; known are {', '.join(VARYING)}")
    return Varies(at_least=at_least, at_most=at_most, of=of)


def qualified_name(error: type[BaseException]) -> str:
    """``module.Name``, or the bare name of a builtin."""
    return error.__qualname__ if error.__module__ == "builtins" else f"{error.__module__}.{error.__qualname__}"


# Cases and the scenario that collects them.


@dataclass(frozen=True)
class Variant:
    """One way of calling a case."""

    parameters: Mapping[str, Parameter]
    dtype: str


@dataclass(frozen=True)
class Case:
    """One mark on one function: a role, what is expected, and the variants it holds for."""

    name: str
    role: Role
    expectations: tuple[Expectation, ...]
    variants: tuple[Variant, ...]
    on: tuple[str, ...]
    """Devices for which this mark speaks."""
    needs: tuple[str, ...]
    """What must be there, such as ``cuda`` or ``torch>=2.11``; without it the outcome is `not_run`."""
    cause: str | None
    """From `CAUSES`: what made the recomputation differ. None where nothing did."""
    why: str
    """For a control: why it cannot break here. Empty otherwise."""
    reference: str | None
    """Name of the reference it is compared with. None for the scenario's first one."""
    fork_safe: bool
    """False if the case must not run in a fork of a process that has imported torch."""
    timeout: float | None
    """Seconds; None for the sweep's own limit."""
    memory: int | None
    """Bytes; None for the sweep's own limit."""
    output: int | None
    """Bytes kept of each of stdout and stderr; None for the sweep's own limit."""
    disk: int | None
    """Bytes; None for the sweep's own limit."""
    gradient: bool
    """False if it is not differentiated: its inputs require no gradient, and only outputs are compared."""
    warm_up: bool
    """True to call it once beforehand, unobserved: for memory, and where a first call compiles."""
    profiled: bool
    """False if no profiled pass is wanted: its operators are not the point."""
    measured: str
    """From `MEASURED`, if its memory or time is the point. Empty where warm_up, its expectations or a series say so
    already, or nothing does.
    """
    run: Callable[..., Any] = field(compare=False)


class Scenario:
    """Collects the inputs and the cases of one file. The marks return the function unchanged."""

    def __init__(
        self,
        *,
        source: str,
        threads: int = 1,
        replays: int | None = None,
        suites: Sequence[str] = ("full",),
        rounding: bool = False,
    ) -> None:
        """`source` says where the claim comes from; `threads` is the number of compute threads;
        `replays` how many times each case is replayed, None for the sweep's default; `suites` the named
        selections beside `full` that include it. `rounding=True` measures rounding by float64 references although no
        case asks for it, so that replays in other settings can be ranked.
        """
        if not source:
            raise ScenarioError("a scenario needs a source: where the claim or the report comes from")
        self.source = source
        self.threads = threads
        self.replays = replays
        self.rounding = rounding
        self.suites = tuple(dict.fromkeys(("full", *suites)))
        self.cases: list[Case] = []
        self._inputs: Callable[..., Mapping[str, Any]] | None = None

    def inputs(self, function: Function) -> Function:
        """Mark the function that makes the inputs: ``seed -> {name: tensor}``.

        Parameters of a variant that it names beside `seed` are passed to it as well.
        """
        if self._inputs is not None:
            raise ScenarioError(f"{function.__name__}: the scenario has its inputs already")
        self._inputs = function
        return function

    def reference(
        self,
        function: Function | None = None,
        *,
        on: Sequence[str] = DEVICES,
        needs: Sequence[str] = (),
        gradient: bool = True,
        warm_up: bool = False,
        profiled: bool = True,
        timeout: float | None = None,
        memory: int | None = None,
    ) -> Any:
        """Mark the calculation as it should be. With several, the first is what cases are compared with
        unless their mark says `reference=`. It runs in whichever variants its cases have: their dtypes,
        and those of their parameters that it takes by name. Used bare, or with options.
        """

        def mark(function: Function) -> Function:
            options: dict[str, Any] = {"timeout": timeout, "memory": memory}
            looks: dict[str, Any] = {"gradient": gradient, "warm_up": warm_up, "profiled": profiled}
            self._add(function, "reference", (), on=on, needs=needs, **options, **looks)
            return function

        return mark if function is None else mark(function)

    def broken(self, *expectations: Expectation, cause: str, **options: Any) -> Callable[[Function], Function]:
        """Mark a way in which the calculation goes wrong, and why (`cause=`, from `CAUSES`)."""
        return self._mark("broken", expectations, cause=cause, **options)

    def repair(self, *expectations: Expectation, **options: Any) -> Callable[[Function], Function]:
        """Mark a way to put it right."""
        return self._mark("repair", expectations, **options)

    def control(self, *expectations: Expectation, why: str, **options: Any) -> Callable[[Function], Function]:
        """Mark a variant that cannot break on this device or torch, and say why."""
        return self._mark("control", expectations, why=why, **options)

    def make_inputs(self, seed: int, parameters: Mapping[str, Parameter]) -> Mapping[str, Any]:
        """The inputs for `seed`, given the variant's parameters that the inputs function names."""
        if self._inputs is None:
            raise ScenarioError("the scenario has no @scenario.inputs")
        wanted = {name: parameters[name] for name in self.input_parameters() if name in parameters}
        return self._inputs(seed, **wanted)

    def input_parameters(self) -> tuple[str, ...]:
        """Names, beside the seed, that the inputs depend on."""
        if self._inputs is None:
            raise ScenarioError("the scenario has no @scenario.inputs")
        return tuple(inspect.signature(self._inputs).parameters)[1:]

    def parameters_of(self, case: Case, parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
        """Those of `parameters` that `case` or the inputs take by name: the variant of a reference that
        belongs to a case with these parameters.
        """
        taken = set(self.input_parameters()) | set(inspect.signature(case.run).parameters)
        return {name: value for name, value in parameters.items() if name in taken}

    def find(self, name: str, parameters: Mapping[str, Parameter], dtype: str, device: str) -> Case:
        """The case of this name that holds `parameters` and `dtype` on `device`; a reference holds any.

        Raises ScenarioError if there is none.
        """
        for case in self.cases:
            if case.name != name or device not in case.on:
                continue
            if case.role == "reference" or Variant(dict(parameters), dtype) in case.variants:
                return case
        raise ScenarioError(f"no case {name} with {dict(parameters)} in {dtype} on {device}")

    def _mark(
        self, role: Role, expectations: tuple[Expectation, ...], **options: Any
    ) -> Callable[[Function], Function]:
        def mark(function: Function) -> Function:
            if not expectations:
                raise ScenarioError(f"{function.__name__}: a {role} case says what it is expected to show")
            self._add(function, role, expectations, **options)
            return function

        return mark

    def _add(
        self,
        function: Callable[..., Any],
        role: Role,
        expectations: tuple[Expectation, ...],
        *,
        over: Mapping[str, Sequence[Parameter]] | Sequence[Mapping[str, Parameter]] = (),
        dtypes: Sequence[str] = ("float32",),
        on: Sequence[str] = DEVICES,
        needs: Sequence[str] = (),
        cause: str | None = None,
        why: str = "",
        reference: str | None = None,
        fork_safe: bool = True,
        timeout: float | None = None,
        memory: int | None = None,
        output: int | None = None,
        disk: int | None = None,
        gradient: bool = True,
        warm_up: bool = False,
        profiled: bool = True,
        measured: str = "",
    ) -> None:
        name = function.__name__
        _check(name, "cause", [] if cause is None else [cause], CAUSES)
        _check(name, "dtype", dtypes, DTYPES)
        _check(name, "device", on, DEVICES)
        _check(name, "measured", [measured] if measured else [], MEASURED)
        if role == "control" and not why:
            raise ScenarioError(f"{name}: a control says why it cannot break")
        for kind, looked, option in ((RecomputesWithout, profiled, "profiled"), (NoGradient, gradient, "gradient")):
            if not looked and any(isinstance(one, kind) for one in expectations):
                raise ScenarioError(f"{name}: nobody can judge its {kind.__name__} with {option}=False")
        case = Case(
            name=name,
            role=role,
            expectations=expectations,
            variants=tuple(Variant(parameters, dtype) for parameters in _expand(over) for dtype in dtypes),
            on=tuple(on),
            needs=tuple(needs),
            cause=cause,
            why=why,
            reference=reference,
            fork_safe=fork_safe,
            timeout=timeout,
            memory=memory,
            output=output,
            disk=disk,
            gradient=gradient,
            warm_up=warm_up,
            profiled=profiled,
            measured=measured,
            run=function,
        )
        for other in self.cases:
            _refuse_overlap(case, other)
        self.cases.append(case)


def _check(name: str, what: str, found: Sequence[str], allowed: Sequence[str]) -> None:
    for value in found:
        if value not in allowed:
            raise ScenarioError(f"{name}: {what} {value!r} is unknown; known are {', '.join(allowed)}")


def _expand(
    over: Mapping[str, Sequence[Parameter]] | Sequence[Mapping[str, Parameter]],
) -> list[dict[str, Parameter]]:
    """A table of values becomes every combination; a list of variants stays as it is."""
    if isinstance(over, Mapping):
        names = sorted(over)
        return [dict(zip(names, values)) for values in itertools.product(*(over[name] for name in names))]
    return [dict(variant) for variant in over] or [{}]


def _refuse_overlap(case: Case, other: Case) -> None:
    if case.name != other.name or not set(case.on) & set(other.on):
        return
    if case.run is not other.run:
        raise ScenarioError(f"{case.name}: two functions have this name")
    for variant in case.variants:
        if variant in other.variants:
            raise ScenarioError(f"{case.name}: marked twice for {dict(variant.parameters)} in {variant.dtype}")


# What a case may say about itself while it runs. The worker listens; without one, nothing happens.

_listeners: list[Callable[[str, Any, str, float | None], None]] = []


def observe(name: str, value: Any, *, measurement: bool = False, tolerance: float | None = None) -> None:
    """Keep a number, text, flag or tensor under `name`, as evidence that a replay must repeat.

    With ``measurement=True`` it is kept and shown but a replay need not repeat it; `tolerance` is the
    relative difference that is still called the same.
    """
    for listener in _listeners:
        listener(name, value, "measurement" if measurement else "evidence", tolerance)

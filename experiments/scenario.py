"""Interface for scenario files: `Scenario`, its marks, the expectations of a case, and `observe`.

A scenario file contains one fault or one claim about torch. It imports torch and this module, creates one
`Scenario`, and marks plain functions::

    scenario = Scenario(source="https://...")

    @scenario.inputs                          # seed -> {name: tensor}, float32 on the CPU
    @scenario.reference                       # the correct calculation
    @scenario.broken(raises(...))             # a way in which it goes wrong, and how that shows
    @scenario.repair(agrees(bitwise=True))    # a way to repair it, and how close the result is
    @scenario.control(agrees(...), why="...") # a variant that cannot go wrong here, and why

A case takes the inputs by name (and its variant's parameters, by name) and returns the scalar to
differentiate; the worker calls `backward()` on it. A case that must stay inside a `with` block while
the gradients are computed *yields* the scalar instead: the worker differentiates, then lets it end.
A case marked ``gradient=False`` is not differentiated and may return nothing: its observed values are compared.

Marks may be stacked on one function, each with its own variants (`over=`, `dtypes=`) or devices (`on=`),
because the same call can break on one device and be a control on another.

Imports only the standard library, and nothing newer than Python 3.9, because workers load this file.
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
from .core.requirements import KNOWN, is_known_need

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
"""Allowed values of `varies(of=...)`."""

DTYPES = ("float32", "float64", "bfloat16", "float16")
DEVICES = ("cpu", "cuda")
MEASURED = ("briefly", "at length")
"""How long a case about memory or time takes on two cores: under ten seconds, or more."""


def raises(error: type[BaseException] | str, text: str = "") -> Raises:
    """Expect the case to end with `error` (a class or its qualified name) and a message that contains `text`."""
    return Raises(type=error if isinstance(error, str) else qualified_name(error), text=text)


def agrees(*, bitwise: bool = False, within_rounding: bool = False) -> Agrees:
    """Expect output and gradients to equal the reference bit for bit, or to differ by no more than rounding."""
    if bitwise == within_rounding:
        raise ScenarioError("agrees() takes exactly one of bitwise=True and within_rounding=True")
    return Agrees(bitwise=bitwise)


def differs(*, by_at_least: float) -> Differs:
    """Expect no error, and some output or gradient to differ from the reference by at least this much, absolute."""
    if not by_at_least > 0:
        raise ScenarioError(f"differs(by_at_least={by_at_least!r}) shows nothing; give a size above 0")
    return Differs(by_at_least=by_at_least)


def recomputes_without(operator: str) -> RecomputesWithout:
    """Expect the forward pass, but not the recomputation, to run `operator`."""
    return RecomputesWithout(operator=operator)


def state_differs(name: str) -> StateDiffers:
    """Expect the process-wide switch `name` to have another value after the case than before."""
    return StateDiffers(name=name)


def no_gradient(*names: str) -> NoGradient:
    """Expect the inputs `names` to require a gradient but get none."""
    if not names:
        raise ScenarioError("no_gradient() needs the names of the inputs that get none")
    return NoGradient(names=names)


def peaks(phase: str = "forward", *, at_least: int | None = None, at_most: int | None = None) -> Peaks:
    """Expect peak memory during `phase` to be between these numbers of bytes above that at its start."""
    _check_range("peaks", phase, at_least, at_most)
    return Peaks(phase=phase, at_least=at_least, at_most=at_most)


def holds(phase: str = "forward", *, at_least: int | None = None, at_most: int | None = None) -> Holds:
    """Expect memory at the end of `phase` to be between these numbers of bytes above that at its start."""
    _check_range("holds", phase, at_least, at_most)
    return Holds(phase=phase, at_least=at_least, at_most=at_most)


def _check_range(word: str, phase: str, at_least: int | None, at_most: int | None) -> None:
    if phase not in ("inputs", "forward", "backward"):
        raise ScenarioError(f"{word}(): phase {phase!r} is unknown; known are inputs, forward, backward")
    if at_least is not None and at_most is not None and at_least > at_most:
        raise ScenarioError(f"{word}(at_least={at_least}, at_most={at_most}) is not a range")
    if at_least is None and at_most is None:
        raise ScenarioError(f"{word}() needs at_least=, at_most= or both, in bytes")
    if at_most is None and at_least is not None and at_least <= 0:
        raise ScenarioError(f"{word}(at_least={at_least}) holds for every case: give a number of bytes above 0")


def shows(values: Mapping[str, Any] | None = None, **named: Any) -> Shows:
    """Expect the case to observe exactly these values, however it ends: ``shows(compiled=False)``, or
    ``shows({"calls that ran compiled": 0})`` if the name is not an identifier.
    """
    found = {**(values or {}), **named}
    if not found:
        raise ScenarioError("shows() needs the observed values that are expected, by name")
    return Shows(values=found)


def refuses(*, bytes: int) -> Refuses:
    """Expect torch to refuse one allocation of exactly `bytes` bytes."""
    return Refuses(bytes=bytes)


def hangs() -> Hangs:
    """Expect the case not to end within its time limit."""
    return Hangs()


def dies(*, by: str = "") -> Dies:
    """Expect the process to die, by this signal name or exit code."""
    return Dies(by=by)


def varies(*, at_least: float = 0.0, at_most: float = 1.0, of: str = "results") -> Varies:
    """Expect results to differ from run to run: the share of repeats that fail, or finish with other tensors or
    observed values than most of them, is between these bounds (``of="results"``). ``of="endings"`` counts only
    failures, ``of="values"`` only repeats that finish with other values.
    """
    if not 0 <= at_least <= at_most <= 1:
        raise ScenarioError(f"varies(at_least={at_least!r}, at_most={at_most!r}) is not a range within 0 and 1")
    if at_least == 0 and at_most == 1:
        raise ScenarioError("varies() holds for every case: give at_least=, at_most= or both, between 0 and 1")
    if of not in VARYING:
        raise ScenarioError(f"varies(of={of!r}) is unknown; known are {', '.join(VARYING)}")
    return Varies(at_least=at_least, at_most=at_most, of=of)


def qualified_name(error: type[BaseException]) -> str:
    """Return ``module.Name``, or the bare name of a builtin."""
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
    """Devices to which this mark applies."""
    needs: tuple[str, ...]
    """Requirements, such as ``cuda`` or ``torch>=2.11``; if one is not met, the outcome is `not_run`."""
    cause: str | None
    """From `CAUSES`: what makes the case go wrong. None if nothing does."""
    why: str
    """For a control: why it cannot break here. Empty otherwise."""
    reference: str | None
    """Name of the reference that it is compared with. None for the scenario's first one."""
    fork_safe: bool
    """False if the case must not run in a fork of a process that has imported torch."""
    timeout: float | None
    """Seconds; None for the sweep's own limit."""
    memory: int | None
    """Bytes; None for the sweep's own limit."""
    output: int | None
    """Bytes stored of each of stdout and stderr; None for the sweep's own limit."""
    disk: int | None
    """Bytes; None for the sweep's own limit."""
    gradient: bool
    """False if it is not differentiated: its inputs require no gradient, and only outputs are compared."""
    warm_up: bool
    """True to call it once beforehand, unobserved: for memory, and if the first call compiles."""
    profiled: bool
    """False to skip the profiled pass, if the case is not about operators."""
    measured: str
    """From `MEASURED`, if the case is about memory or time. Empty if warm_up, its expectations or a series say so
    already, or if it is not.
    """
    run: Callable[..., Any] = field(compare=False)


class Scenario:
    """The inputs and the cases of one file. Marks return the function unchanged."""

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
        `replays` is how often each case is replayed, None for the sweep's default; `suites` are the named
        selections besides `full` that include it. `rounding=True` measures rounding with float64 references although
        no case requires it, so that replays under other settings can be ranked.
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
        """Mark the function that creates the inputs: ``seed -> {name: tensor}``.

        Parameters of a variant that it takes in addition to `seed` are passed to it as well.
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
        """Mark the correct calculation. If there are several, cases are compared with the first one unless their
        mark has `reference=`. It runs in the variants of its cases: their dtypes, and those of their parameters
        that it takes by name. Used as ``@scenario.reference`` or with options.
        """

        def mark(function: Function) -> Function:
            options: dict[str, Any] = {"timeout": timeout, "memory": memory}
            looks: dict[str, Any] = {"gradient": gradient, "warm_up": warm_up, "profiled": profiled}
            self._add_case(function, "reference", (), on=on, needs=needs, **options, **looks)
            return function

        return mark if function is None else mark(function)

    def broken(self, *expectations: Expectation, cause: str, **options: Any) -> Callable[[Function], Function]:
        """Mark a way in which the calculation goes wrong, and why (`cause=`, from `CAUSES`)."""
        return self._mark_case("broken", expectations, cause=cause, **options)

    def repair(self, *expectations: Expectation, **options: Any) -> Callable[[Function], Function]:
        """Mark a way to repair the calculation."""
        return self._mark_case("repair", expectations, **options)

    def control(self, *expectations: Expectation, why: str, **options: Any) -> Callable[[Function], Function]:
        """Mark a variant that cannot break on this device or torch, and say why."""
        return self._mark_case("control", expectations, why=why, **options)

    def make_inputs(self, seed: int, parameters: Mapping[str, Parameter]) -> Mapping[str, Any]:
        """Return the inputs for `seed` and those of the variant's parameters that the inputs function takes."""
        if self._inputs is None:
            raise ScenarioError("the scenario has no @scenario.inputs")
        wanted = {name: parameters[name] for name in self.input_parameters() if name in parameters}
        return self._inputs(seed, **wanted)

    def input_parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters, except the seed, that the inputs depend on."""
        if self._inputs is None:
            raise ScenarioError("the scenario has no @scenario.inputs")
        return tuple(inspect.signature(self._inputs).parameters)[1:]

    def find(self, name: str, parameters: Mapping[str, Parameter], dtype: str, device: str) -> Case:
        """Return the case of this name with the variant `parameters`, `dtype` on `device`; a reference has any variant.

        Raises ScenarioError if there is none.
        """
        for case in self.cases:
            if case.name != name or device not in case.on:
                continue
            if case.role == "reference" or Variant(dict(parameters), dtype) in case.variants:
                return case
        raise ScenarioError(f"no case {name} with {dict(parameters)} in {dtype} on {device}")

    def _mark_case(
        self, role: Role, expectations: tuple[Expectation, ...], **options: Any
    ) -> Callable[[Function], Function]:
        def mark(function: Function) -> Function:
            if not expectations:
                raise ScenarioError(f"{function.__name__}: a {role} case says what it is expected to show")
            self._add_case(function, role, expectations, **options)
            return function

        return mark

    def _add_case(
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
        _check_values(name, "cause", [] if cause is None else [cause], CAUSES)
        _check_values(name, "dtype", dtypes, DTYPES)
        _check_values(name, "device", on, DEVICES)
        _check_values(name, "measured", [measured] if measured else [], MEASURED)
        for need in needs:
            if not is_known_need(need):
                raise ScenarioError(f"{name}: need {need!r} is unknown; known are {KNOWN}")
        if role == "control" and not why:
            raise ScenarioError(f"{name}: a control says why it cannot break")
        for kind, looked, option in ((RecomputesWithout, profiled, "profiled"), (NoGradient, gradient, "gradient")):
            if not looked and any(isinstance(one, kind) for one in expectations):
                raise ScenarioError(f"{name}: nobody can judge its {kind.__name__} with {option}=False")
        case = Case(
            name=name,
            role=role,
            expectations=expectations,
            variants=tuple(Variant(parameters, dtype) for parameters in _expand_variants(over) for dtype in dtypes),
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


def _check_values(name: str, what: str, found: Sequence[str], allowed: Sequence[str]) -> None:
    for value in found:
        if value not in allowed:
            raise ScenarioError(f"{name}: {what} {value!r} is unknown; known are {', '.join(allowed)}")


def _expand_variants(
    over: Mapping[str, Sequence[Parameter]] | Sequence[Mapping[str, Parameter]],
) -> list[dict[str, Parameter]]:
    """Expand a table of values to all combinations; a list of variants is kept as it is."""
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


# Values that a case observes while it runs. The worker listens; without a worker, nothing happens.

_listeners: list[Callable[[str, Any, str, float | None], None]] = []


def observe(name: str, value: Any, *, measurement: bool = False, tolerance: float | None = None) -> None:
    """Record a number, text, boolean or tensor under `name`, as evidence that a replay must repeat.

    With ``measurement=True`` it is recorded and shown, but a replay need not repeat it; `tolerance` is the
    relative difference up to which values count as equal.
    """
    for listener in _listeners:
        listener(name, value, "measurement" if measurement else "evidence", tolerance)

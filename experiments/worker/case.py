"""Runs one case, phase by phase, and writes what it saw.

Inputs are made in float32 on the CPU, rounded to the question's input dtype, then cast and moved; the case
is called (once beforehand, if it wants to be warm); `backward()` is called on what it returns. In the plain
pass nothing looks on: no profiler, no hook, no mode. The two clocks and the memory meter read before and after
each phase only.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import sys
import time
import types
from pathlib import Path
from typing import Any, Callable, ContextManager, Iterator, Mapping

import torch

from .. import scenario as scenario_module
from ..core.bounds import LONGEST_NAME, MOST_OBSERVED
from ..core.canonical_json import canonical, digest, parse
from ..core.expectations import ScenarioError
from ..core.observation import UNOBSERVED, Observation, Observed
from ..core.outcome import Outcome
from ..core.spec import Spec
from ..scenario import Case, Scenario
from . import exceptions, machine, sources, spawned, switches, tensors
from .blobs import Blobs
from .instruments.memory import Meter
from .instruments.operators import IGNORED, Profile

Phase = Callable[[str], ContextManager[None]]

KEPT_INPUT = 16384
"""Bytes up to which an input is kept whole."""
LONGEST_REASON = 500
"""Characters kept of why something could not be observed."""


def run(folder: Path, root: Path) -> None:
    """Run the case that ``folder/spec.json`` asks for and leave ``folder/observation.json``."""
    spec = Spec.from_json(parse((folder / "spec.json").read_text(encoding="utf-8")))
    torch.set_num_threads(spec.setting.given_threads(spec.question))
    if spec.setting.matmul_precision:
        torch.set_float32_matmul_precision(spec.setting.matmul_precision)
    process = os.getpid()
    spawned.keep_addresses_short(folder / "tmp")
    try:
        text = canonical(_Run(spec, folder, root).observe().to_json())
    except Exception as error:
        # The case's own exceptions are part of the observation, so this one is the worker's.
        if os.getpid() == process:
            _write(folder / UNOBSERVED, _reason("what the case did cannot be written down", error, root, folder))
        raise
    if os.getpid() != process:
        os._exit(0)  # A child of the case, which came back here as well. The observation is its parent's.
    _write(folder / "observation.json", text)


def _reason(what: str, error: BaseException, root: Path, folder: Path) -> str:
    """Why something was not observed, in one bounded line without folders of this machine."""
    first = f"{type(error).__name__}: {exceptions.relative(exceptions.message(error), root, folder)}".partition("\n")[0]
    return f"{what}: {first}"[:LONGEST_REASON]


def load(path: Path, name: str) -> types.ModuleType:
    """Execute a scenario file as the module `name`.

    Raises whatever it raises, and ScenarioError if it holds no scenario.
    """
    module = types.ModuleType(name)
    module.__file__ = str(path)
    text = path.read_bytes().decode("utf-8-sig")  # as Python itself reads a file
    sys.modules[name] = module  # where the compiler looks for what a function of the file reads
    exec(compile(text, str(path), "exec"), module.__dict__)  # noqa: S102 - scenarios are code
    if not isinstance(getattr(module, "scenario", None), Scenario):
        raise ScenarioError("the file has no `scenario = Scenario(...)`")
    return module


class _Run:
    """One case, from inputs to observation."""

    def __init__(self, spec: Spec, folder: Path, root: Path) -> None:
        self.spec, self.folder, self.root = spec, folder, root
        self.path = root / "experiments" / "scenarios" / f"{spec.question.scenario}.py"
        self.blobs = Blobs(folder / "blobs")
        self.meter = Meter(spec.question.device)
        wanted = spec.question.pass_ == "profiled"
        self.profile = Profile(wanted=wanted, device=spec.question.device, observing=self._observing)
        self.durations: dict[str, float] = {}
        self.observed: list[Observed] = []
        self.heard = {"loss"}
        self.outputs: list[tuple[str, torch.Tensor]] = []
        self.kept: dict[tuple[str, str], Any] = {}
        self.outcome = Outcome("finished", None, None, (), None, None, "")
        self.unobserved = ""
        self.inputs: Mapping[str, Any] = {}
        self.parameters: dict[str, Any] = {}
        self.phase = "inputs"

    def observe(self) -> Observation:
        facts = canonical(machine.facts(os.environ))
        listed = [(source, content) for source, content in sources.loaded(self.root, self.spec.question.scenario)]
        before = switches.snapshot()
        self._run()
        after = switches.snapshot()
        for source, content in listed:
            if source.kept:
                self.blobs.add(content.encode("utf-8"))
        return Observation(
            outcome=self.outcome,
            tensors=tuple(self.kept.values()),
            operators=self.profile.operators,
            observed=tuple(self.observed),
            state=switches.changes(before, after),
            memory=self.profile.with_largest(self.meter.phases),
            durations=self.durations,
            machine=self.blobs.add(facts.encode("utf-8")),
            sources=tuple(source for source, _ in listed),
        )

    def _run(self) -> None:
        scenario_module._listeners.append(self._hear)  # noqa: SLF001 - the worker is the one listener there is
        try:
            self._steps()
        except BaseException as error:  # noqa: BLE001 - whatever the case raises is the observation
            self.outcome = exceptions.outcome(error, self.phase, self.root, str(self.path))
        finally:
            scenario_module._listeners.remove(self._hear)  # noqa: SLF001
        self._keep_results()
        if self.unobserved:
            ended = self.outcome.type or self.outcome.kind
            detail = f"{self.unobserved} (the case itself: {ended})"
            self.outcome = Outcome("not_observed", self.phase, None, (), None, None, detail)

    def _steps(self) -> None:
        with self._timed("inputs"):
            scenario = self._scenario()
            question = self.spec.question
            case = scenario.find(question.case, question.parameters, question.dtype, question.device)
            made = scenario.make_inputs(question.seed, question.parameters)
            taken = set(inspect.signature(case.run).parameters)
            self.parameters = {name: value for name, value in question.parameters.items() if name in taken}
            _refuse_misfit(case, {**made, **self.parameters})
            self.inputs = {name: self._prepared(value, case) for name, value in made.items()}
            for name, value in self.inputs.items():
                self._keep("input", name, value)
        if case.warm_up:
            self.meter.exact = True
            with self._timed("warm-up"):
                self._warm_up(case)
        with self.profile():
            scalar = self._calculated(case, self.inputs)
        if scalar is not None:
            self.outputs.append(("loss", scalar))

    def _calculated(self, case: Case, inputs: Mapping[str, Any], phase: Phase | None = None) -> torch.Tensor | None:
        """Forward, then backward if the case is differentiated. `phase` says what surrounds each."""
        phase = phase or self._looked_at
        with phase("forward"):
            result = case.run(**inputs, **self.parameters)
            held = result if inspect.isgenerator(result) else None
            result = next(held, None) if held is not None else result
            scalar = None if result is None and not case.gradient else self._scalar(result)
            del result  # what a phase holds at its end is measured
        if case.gradient or held is not None:
            with phase("backward"):
                if case.gradient and scalar is not None:
                    scalar.backward()
                if held is not None and next(held, held) is not held:
                    raise ScenarioError("a case yields once, the scalar to differentiate")
        return scalar

    def _warm_up(self, case: Case) -> None:
        """Run all of it once on inputs of its own, unheard, and put the random state back: what follows finds
        everything imported and compiled that a first run imports and compiles.
        """
        copies = {name: value.detach().clone() for name, value in self.inputs.items()}
        for name, value in self.inputs.items():
            copies[name].requires_grad_(value.requires_grad)
        python = random.getstate()
        scenario_module._listeners.remove(self._hear)  # noqa: SLF001 - as above
        try:
            with torch.random.fork_rng(enabled=True):
                self._calculated(case, copies, lambda _: contextlib.nullcontext())
        finally:
            scenario_module._listeners.append(self._hear)  # noqa: SLF001 - as above
            random.setstate(python)

    @contextlib.contextmanager
    def _looked_at(self, phase: str) -> Iterator[None]:
        with self._timed(phase), self.profile.phase(phase):
            yield

    def _scenario(self) -> Scenario:
        found = digest(self.path.read_bytes())
        if found != self.spec.question.source:
            raise ScenarioError(f"the file has changed since the plan was made: {found} is not what was planned")
        scenario: Scenario = load(self.path, spawned.MODULE).scenario
        return scenario

    def _prepared(self, value: Any, case: Case) -> Any:
        """An input as the question wants it. What is no floating or complex tensor keeps its dtype, and only a case
        that is differentiated gets inputs that require a gradient.
        """
        if not isinstance(value, torch.Tensor):
            raise ScenarioError(f"inputs are tensors, not {type(value).__name__}")
        question, made = self.spec.question, value.detach()
        if made.is_complex():
            made = made.to(_complex(question.input_dtype)).to(_complex(question.dtype))
        elif made.is_floating_point():
            made = made.to(getattr(torch, question.input_dtype)).to(getattr(torch, question.dtype))
        return made.to(question.device).clone().requires_grad_(value.requires_grad and case.gradient)

    def _scalar(self, result: Any) -> torch.Tensor:
        if not isinstance(result, torch.Tensor) or result.numel() != 1:
            what = (
                f"a tensor of shape {list(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
            )
            raise ScenarioError(f"a case returns the scalar to differentiate, not {what}")
        return result

    def _keep(self, role: str, name: str, value: torch.Tensor) -> None:
        if (role, name) in self.kept:
            raise ScenarioError(f"{role} {name!r} is there already: give each observed value its own name")
        # Of inputs the digest says all there is to say.
        keep = min(self.spec.setting.keep, KEPT_INPUT) if role == "input" else self.spec.setting.keep
        self.kept[role, name] = tensors.describe(role, name, value, keep, self.blobs)

    def _keep_results(self) -> None:
        """Gradients, if the case came to its end, and outputs. What cannot be kept is no fault of the case's."""
        if self.outcome.kind == "finished":
            for name, value in self.inputs.items():
                if value.requires_grad:
                    self._keep_gradient(name, value.grad)
        for name, value in self.outputs:
            with self._observing(f"output {name!r:.100}"):
                self._keep("output", name, value)

    def _keep_gradient(self, name: str, gradient: torch.Tensor | None) -> None:
        if gradient is None:
            self.kept["gradient", name] = tensors.absent("gradient", name)
            return
        with self._observing(f"gradient of {name!r}"):
            self._keep("gradient", name, gradient)

    @contextlib.contextmanager
    def _observing(self, what: str) -> Iterator[None]:
        """What fails within is the worker's, not the case's: the first reason counts, and the case goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a case may hand out anything
            self.unobserved = self.unobserved or _reason(f"{what} cannot be kept", error, self.root, self.folder)

    def _hear(self, name: str, value: Any, kind: str, tolerance: float | None) -> None:
        """What the case observes: tensors are kept like outputs, anything else as it is."""
        with self._observing(f"observed value {name!r:.100}"):
            self._note(name, value, kind, tolerance)

    def _note(self, name: str, value: Any, kind: str, tolerance: float | None) -> None:
        if len(str(name)) > LONGEST_NAME or len(self.heard) > MOST_OBSERVED:
            raise ScenarioError(
                f"names have at most {LONGEST_NAME} characters, and a case observes at most {MOST_OBSERVED} values"
            )
        if name in self.heard:
            raise ScenarioError(f"{name!r} is there already: give each observed value its own name")
        self.heard.add(name)
        if isinstance(value, torch.Tensor) and not _is_plain_number(value):
            self.outputs.append((name, self._copy(value)))
            return
        plain = value.item() if isinstance(value, torch.Tensor) else value
        # As it is now, and checked as deep as it will lie in the record.
        kept = parse(canonical([[[[plain]]]]))[0][0][0][0]
        self.observed.append(Observed(name, kept, kind, tolerance))

    def _copy(self, value: torch.Tensor) -> torch.Tensor:
        """A copy, because the case may go on to write to it. In a profile its operator is ours."""
        marked = torch.profiler.record_function(IGNORED) if self.profile.wanted else contextlib.nullcontext()
        with torch.no_grad(), marked:
            return value.detach().clone()

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        self.phase = phase
        (self.folder / "phase").write_text(phase, encoding="utf-8")
        self.meter.begin(phase)
        started = time.perf_counter()
        try:
            yield
        finally:
            self.durations[phase] = time.perf_counter() - started
            self.meter.end()


def _complex(dtype: str) -> torch.dtype:
    """The complex numbers whose parts are of a dtype. torch has none of bfloat16: single precision stands in."""
    parts = {"float64": torch.complex128, "float16": torch.complex32}
    return parts.get(dtype, torch.complex64)


def _is_plain_number(value: torch.Tensor) -> bool:
    """Whether JSON has a number for it."""
    ordinary = value.layout is torch.strided and value.device.type != "meta" and not value.is_quantized
    return ordinary and not value.is_nested and not value.is_complex() and value.numel() == 1


def _write(path: Path, text: str) -> None:
    """All of it, or nothing: written beside, made durable, renamed into place."""
    beside = path.with_suffix(".part")
    with beside.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _refuse_misfit(case: Case, given: Mapping[str, Any]) -> None:
    """Raises ScenarioError if the case does not take what it is called with: it would end before it was entered, and
    that is none of its endings.
    """
    try:
        inspect.signature(case.run).bind(**given)
    except TypeError as error:
        raise ScenarioError(f"the case cannot be called with {', '.join(given) or 'nothing'}: {error}") from None

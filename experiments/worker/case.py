"""Run of one case, phase by phase, and its observation.

Inputs are made in float32 on the CPU, rounded to the question's input dtype, then cast and moved. The case is called
(after a warm-up, if it requests one), and `backward()` is called on what it returns. In the plain pass there are no
instruments: no profiler, no hook, no mode. The clock and the memory meter are read only before and after each phase.
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
"""Bytes up to which an input is stored whole."""
LONGEST_REASON = 500
"""Maximum number of characters of the reason why something was not observed."""


def run_case(folder: Path, root: Path) -> None:
    """Run the case of ``folder/spec.json`` and write ``folder/observation.json``."""
    spec = Spec.from_json(parse((folder / "spec.json").read_text(encoding="utf-8")))
    torch.set_num_threads(spec.setting.thread_count(spec.question))
    if spec.setting.matmul_precision:
        torch.set_float32_matmul_precision(spec.setting.matmul_precision)
    process = os.getpid()
    spawned.shorten_socket_addresses(folder / "tmp")
    try:
        text = canonical(_Run(spec, folder, root).observe().to_json())
    except Exception as error:
        # Exceptions of the case are part of the observation, so this is an error of the worker.
        if os.getpid() == process:
            _write_file(
                folder / UNOBSERVED, _failure_reason("what the case did cannot be written down", error, root, folder)
            )
        raise
    if os.getpid() != process:
        os._exit(0)  # A child of the case that also returned here. Its parent writes the observation.
    _write_file(folder / "observation.json", text)


def _failure_reason(what: str, error: BaseException, root: Path, folder: Path) -> str:
    """Return why something was not observed, in one bounded line without folders of this machine."""
    text = f"{type(error).__name__}: {exceptions.replace_folders(exceptions.error_message(error), root, folder)}"
    first = text.partition("\n")[0]
    return f"{what}: {first}"[:LONGEST_REASON]


def load_module(path: Path, name: str) -> types.ModuleType:
    """Execute a scenario file as the module `name`, and return the module.

    Raises whatever the file raises, and ScenarioError if it contains no scenario.
    """
    module = types.ModuleType(name)
    module.__file__ = str(path)
    text = path.read_bytes().decode("utf-8-sig")  # as Python itself reads a file
    sys.modules[name] = module  # where torch's compiler looks up the globals of a function
    exec(compile(text, str(path), "exec"), module.__dict__)  # noqa: S102 - scenarios are code
    if not isinstance(getattr(module, "scenario", None), Scenario):
        raise ScenarioError("the file has no `scenario = Scenario(...)`")
    return module


class _Run:
    """The run of one case, from inputs to observation."""

    def __init__(self, spec: Spec, folder: Path, root: Path) -> None:
        self.spec, self.folder, self.root = spec, folder, root
        self.path = root / "experiments" / "scenarios" / f"{spec.question.scenario}.py"
        self.blobs = Blobs(folder / "blobs")
        self.meter = Meter(spec.question.device)
        wanted = spec.question.pass_ == "profiled"
        self.profile = Profile(wanted=wanted, device=spec.question.device, observing=self._guard_observation)
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
        """Run the case and return what was observed."""
        facts = canonical(machine.facts(os.environ))
        listed = [
            (source, content) for source, content in sources.loaded_sources(self.root, self.spec.question.scenario)
        ]
        before = switches.snapshot()
        self._run_case()
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
            memory=self.profile.add_largest(self.meter.phases),
            durations=self.durations,
            machine=self.blobs.add(facts.encode("utf-8")),
            sources=tuple(source for source, _ in listed),
        )

    def _run_case(self) -> None:
        scenario_module._listeners.append(self._hear)  # noqa: SLF001 - the worker is the only listener
        try:
            self._run_phases()
        except BaseException as error:  # noqa: BLE001 - whatever the case raises is part of the observation
            self.outcome = exceptions.raised_outcome(error, self.phase, self.root, str(self.path))
        finally:
            scenario_module._listeners.remove(self._hear)  # noqa: SLF001
        self._keep_results()
        if self.unobserved:
            ended = self.outcome.type or self.outcome.kind
            detail = f"{self.unobserved} (the case itself: {ended})"
            self.outcome = Outcome("not_observed", self.phase, None, (), None, None, detail)

    def _run_phases(self) -> None:
        with self._time_phase("inputs"):
            scenario = self._load_scenario()
            question = self.spec.question
            case = scenario.find(question.case, question.parameters, question.dtype, question.device)
            made = scenario.make_inputs(question.seed, question.parameters)
            taken = set(inspect.signature(case.run).parameters)
            self.parameters = {name: value for name, value in question.parameters.items() if name in taken}
            _refuse_misfit(case, {**made, **self.parameters})
            self.inputs = {name: self._prepare_input(value, case) for name, value in made.items()}
            for name, value in self.inputs.items():
                self._keep_tensor("input", name, value)
        if case.warm_up:
            self.meter.exact = True
            with self._time_phase("warm-up"):
                self._warm_up(case)
        with self.profile():
            scalar = self._calculate(case, self.inputs)
        if scalar is not None:
            self.outputs.append(("loss", scalar))

    def _calculate(self, case: Case, inputs: Mapping[str, Any], phase: Phase | None = None) -> torch.Tensor | None:
        """Run forward, then backward if the case is differentiated, each within the context manager `phase`."""
        phase = phase or self._watch_phase
        with phase("forward"):
            result = case.run(**inputs, **self.parameters)
            held = result if inspect.isgenerator(result) else None
            result = next(held, None) if held is not None else result
            scalar = None if result is None and not case.gradient else self._check_scalar(result)
            del result  # the memory that a phase holds at its end is measured
        if case.gradient or held is not None:
            with phase("backward"):
                if case.gradient and scalar is not None:
                    scalar.backward()
                if held is not None and next(held, held) is not held:
                    raise ScenarioError("a case yields once, the scalar to differentiate")
        return scalar

    def _warm_up(self, case: Case) -> None:
        """Run the case once on copies of its inputs, without observing, and restore the random state.

        Afterwards everything is imported and compiled that a first run imports and compiles.
        """
        copies = {name: value.detach().clone() for name, value in self.inputs.items()}
        for name, value in self.inputs.items():
            copies[name].requires_grad_(value.requires_grad)
        python = random.getstate()
        scenario_module._listeners.remove(self._hear)  # noqa: SLF001 - as above
        try:
            with torch.random.fork_rng(enabled=True):
                self._calculate(case, copies, lambda _: contextlib.nullcontext())
        finally:
            scenario_module._listeners.append(self._hear)  # noqa: SLF001 - as above
            random.setstate(python)

    @contextlib.contextmanager
    def _watch_phase(self, phase: str) -> Iterator[None]:
        with self._time_phase(phase), self.profile.mark_phase(phase):
            yield

    def _load_scenario(self) -> Scenario:
        found = digest(self.path.read_bytes())
        if found != self.spec.question.source:
            raise ScenarioError(f"the file has changed since the plan was made: {found} is not what was planned")
        scenario: Scenario = load_module(self.path, spawned.MODULE).scenario
        return scenario

    def _prepare_input(self, value: Any, case: Case) -> Any:
        """Return an input with the dtype and on the device of the question.

        A tensor that is neither floating-point nor complex keeps its dtype, and only a case that is differentiated gets
        inputs that require a gradient. Raises ScenarioError for anything but a tensor.
        """
        if not isinstance(value, torch.Tensor):
            raise ScenarioError(f"inputs are tensors, not {type(value).__name__}")
        question, made = self.spec.question, value.detach()
        if made.is_complex():
            made = made.to(_complex_dtype(question.input_dtype)).to(_complex_dtype(question.dtype))
        elif made.is_floating_point():
            made = made.to(getattr(torch, question.input_dtype)).to(getattr(torch, question.dtype))
        return made.to(question.device).clone().requires_grad_(value.requires_grad and case.gradient)

    def _check_scalar(self, result: Any) -> torch.Tensor:
        if not isinstance(result, torch.Tensor) or result.numel() != 1:
            what = (
                f"a tensor of shape {list(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
            )
            raise ScenarioError(f"a case returns the scalar to differentiate, not {what}")
        return result

    def _keep_tensor(self, role: str, name: str, value: torch.Tensor) -> None:
        if (role, name) in self.kept:
            raise ScenarioError(f"{role} {name!r} is there already: give each observed value its own name")
        # For inputs the digest is sufficient evidence.
        keep = min(self.spec.setting.keep, KEPT_INPUT) if role == "input" else self.spec.setting.keep
        self.kept[role, name] = tensors.describe_tensor(role, name, value, keep, self.blobs)

    def _keep_results(self) -> None:
        """Keep the gradients, if the case finished, and the outputs. A failure to do so is not an error of the case."""
        if self.outcome.kind == "finished":
            for name, value in self.inputs.items():
                if value.requires_grad:
                    self._keep_gradient(name, value.grad)
        for name, value in self.outputs:
            with self._guard_observation(f"output {name!r:.100}"):
                self._keep_tensor("output", name, value)

    def _keep_gradient(self, name: str, gradient: torch.Tensor | None) -> None:
        if gradient is None:
            self.kept["gradient", name] = tensors.absent_tensor("gradient", name)
            return
        with self._guard_observation(f"gradient of {name!r}"):
            self._keep_tensor("gradient", name, gradient)

    @contextlib.contextmanager
    def _guard_observation(self, what: str) -> Iterator[None]:
        """Record the first failure in the block as one of the worker, not of the case, and continue the case."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a case may return anything
            self.unobserved = self.unobserved or _failure_reason(
                f"{what} cannot be kept", error, self.root, self.folder
            )

    def _hear(self, name: str, value: Any, kind: str, tolerance: float | None) -> None:
        """Record what the case observes: a tensor like an output, anything else as a JSON value."""
        with self._guard_observation(f"observed value {name!r:.100}"):
            self._note_value(name, value, kind, tolerance)

    def _note_value(self, name: str, value: Any, kind: str, tolerance: float | None) -> None:
        if len(str(name)) > LONGEST_NAME or len(self.heard) > MOST_OBSERVED:
            raise ScenarioError(
                f"names have at most {LONGEST_NAME} characters, and a case observes at most {MOST_OBSERVED} values"
            )
        if name in self.heard:
            raise ScenarioError(f"{name!r} is there already: give each observed value its own name")
        self.heard.add(name)
        if isinstance(value, torch.Tensor) and not _is_plain_number(value):
            self.outputs.append((name, self._copy_tensor(value)))
            return
        plain = value.item() if isinstance(value, torch.Tensor) else value
        # Its current value, checked at the depth that it will have in the record.
        kept = parse(canonical([[[[plain]]]]))[0][0][0][0]
        self.observed.append(Observed(name, kept, kind, tolerance))

    def _copy_tensor(self, value: torch.Tensor) -> torch.Tensor:
        """Return a copy, since the case may write to the tensor later. A profile ignores its operator."""
        marked = torch.profiler.record_function(IGNORED) if self.profile.wanted else contextlib.nullcontext()
        with torch.no_grad(), marked:
            return value.detach().clone()

    @contextlib.contextmanager
    def _time_phase(self, phase: str) -> Iterator[None]:
        self.phase = phase
        (self.folder / "phase").write_text(phase, encoding="utf-8")
        self.meter.begin(phase)
        started = time.perf_counter()
        try:
            yield
        finally:
            self.durations[phase] = time.perf_counter() - started
            self.meter.end()


def _complex_dtype(dtype: str) -> torch.dtype:
    """Return the complex dtype whose parts have a dtype. For bfloat16 torch has none, and complex64 is used instead."""
    parts = {"float64": torch.complex128, "float16": torch.complex32}
    return parts.get(dtype, torch.complex64)


def _is_plain_number(value: torch.Tensor) -> bool:
    """Return whether a tensor can be stored as one JSON number."""
    ordinary = value.layout is torch.strided and value.device.type != "meta" and not value.is_quantized
    return ordinary and not value.is_nested and not value.is_complex() and value.numel() == 1


def _write_file(path: Path, text: str) -> None:
    """Write a file completely or not at all: to another name, flushed to disk, and renamed into place."""
    partial = path.with_suffix(".part")
    with partial.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _refuse_misfit(case: Case, given: Mapping[str, Any]) -> None:
    """Raise ScenarioError if the case does not accept its arguments.

    The call would fail before the case is entered, which must not count as an ending of the case.
    """
    try:
        inspect.signature(case.run).bind(**given)
    except TypeError as error:
        raise ScenarioError(f"the case cannot be called with {', '.join(given) or 'nothing'}: {error}") from None

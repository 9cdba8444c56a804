"""Write the text of a snippet: code from the scenario file, followed by what the worker does with a case.

The case is called on the same inputs, in the same dtype, with the same number of threads as in a worker; a case that
is compared is followed by its reference, and the largest differences are printed.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from typing import Mapping, Sequence

from .source import Carried, Function, SnippetError, carry, is_generator

Parameter = object
"""A string, number, boolean or None."""

SWITCHES = {
    "sdpa.flash": "torch.backends.cuda.flash_sdp_enabled",
    "sdpa.efficient": "torch.backends.cuda.mem_efficient_sdp_enabled",
    "sdpa.math": "torch.backends.cuda.math_sdp_enabled",
    "sdpa.cudnn": "torch.backends.cuda.cudnn_sdp_enabled",
    "sdpa.order": "torch._C._get_sdp_priority_order",
    "sdpa.math_reduced_precision": "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
    "grad": "torch.is_grad_enabled",
    "inference": "torch.is_inference_mode_enabled",
    "autocast.cpu": "lambda: torch.is_autocast_enabled('cpu')",
    "autocast.cpu_dtype": "lambda: torch.get_autocast_dtype('cpu')",
    "autocast.cuda": "lambda: torch.is_autocast_enabled('cuda')",
    "autocast.cuda_dtype": "lambda: torch.get_autocast_dtype('cuda')",
    "autocast.cache": "torch.is_autocast_cache_enabled",
    "deterministic": "torch.are_deterministic_algorithms_enabled",
    "deterministic.warn_only": "torch.is_deterministic_algorithms_warn_only_enabled",
    "matmul_precision": "torch.get_float32_matmul_precision",
    "tf32.matmul": "lambda: torch.backends.cuda.matmul.allow_tf32",
    "tf32.cudnn": "lambda: torch.backends.cudnn.allow_tf32",
    "reduced_precision.fp16": "lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "reduced_precision.bf16": "lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cudnn.enabled": "lambda: torch.backends.cudnn.enabled",
    "cudnn.benchmark": "lambda: torch.backends.cudnn.benchmark",
    "cudnn.deterministic": "lambda: torch.backends.cudnn.deterministic",
    "mkldnn.enabled": "lambda: torch.backends.mkldnn.enabled",
    "default_dtype": "torch.get_default_dtype",
    "default_device": "torch.get_default_device",
    "threads": "torch.get_num_threads",
    "threads.interop": "torch.get_num_interop_threads",
}
"""Expression that reads each switch of the worker's `state`, by name."""

COMPLEX = {"float64": "complex128", "float16": "complex32"}
"""Complex dtype whose parts have a given dtype; complex64 for any other."""


@dataclass(frozen=True)
class Wanted:
    """A case in one variant, and how it is run."""

    case: str
    parameters: Mapping[str, Parameter]
    seed: int
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1
    gradient: bool = True
    """False if it is not differentiated."""
    warm_up: bool = False
    """True to call it once beforehand, without observing it."""
    reference: str | None = None
    """Name of the function that it is compared with. None if it is not compared."""
    reference_parameters: Mapping[str, Parameter] = field(default_factory=dict)
    switches: Sequence[str] = ()
    """Names of switches whose values before and after are printed."""


@dataclass(frozen=True)
class Snippet:
    """A self-contained script, with a description of its parts."""

    text: str
    observes: tuple[str, ...]
    """Names of the functions that receive observed values."""
    prepared: str
    """Name of the function that converts each input."""
    run: str | None
    """Name of the function that runs a case and returns its tensors by role and name. None if the text does that
    inline, with the variables `given` and `total`."""
    given: str
    """Name of the variable with the inputs, by name."""
    total: str
    """Name of the variable with the case's return value."""
    warm_up: bool
    """Whether the first call of `run` is a warm-up."""
    needs: tuple[str, ...]
    """Packages that it needs in addition to torch."""
    phases: Mapping[int, str]
    """Phase of each line that calls the case or differentiates; other lines belong to the inputs."""

    def add_header(self, comment: Sequence[str]) -> str:
        """Return the text below a comment with a paragraph for each item."""
        lines = [line for one in comment for line in textwrap.wrap(one, 98, break_on_hyphens=False)]
        return "".join(f"# {line}\n" for line in lines) + "\n" + self.text


def snippet(source: str, wanted: Wanted) -> Snippet:
    """Return the snippet for one case of a scenario file with this `source`.

    Raises SnippetError if the case cannot run without this project.
    """
    functions = [wanted.case, *([wanted.reference] if wanted.reference else [])]
    return _Writer(carry(source, functions), wanted).write()


class _Writer:
    """Writer of one snippet, line by line."""

    def __init__(self, carried: Carried, wanted: Wanted) -> None:
        self.carried, self.wanted = carried, wanted
        self.lines: list[str] = []
        self.phases: dict[int, str] = {}
        self.prepared, self.given, self.total = (
            self._free_name("prepared"),
            self._free_name("given"),
            self._free_name("total"),
        )
        self.held, self.runs, self.result = self._free_name("held"), self._free_name("run"), self._free_name("result")
        self.quiet, self.observed, self.difference = (
            self._free_name("quiet"),
            self._free_name("observed"),
            self._free_name("difference"),
        )
        self.ours, self.theirs, self.switches = (
            self._free_name("ours"),
            self._free_name("theirs"),
            self._free_name("switches"),
        )
        self.before, self.state = self._free_name("before"), self._free_name("state")
        self.indent = ""
        self.spread = wanted.reference is None and not wanted.warm_up

    def _free_name(self, name: str) -> str:
        """Return the name, with underscores appended until the carried part does not contain it."""
        while name in self.carried.names:
            name += "_"
        return name

    def write(self) -> Snippet:
        """Write all parts and return the snippet."""
        for part in (
            self._write_opening,
            self._write_threads,
            self._write_observe,
            self._write_body,
            self._write_prepared,
        ):
            part()
        if not self.spread:
            self._write_function()
        self._put_gap()
        if self.carried.spawns:
            self._put('if __name__ == "__main__":')
            self.indent = "    "
        self._put('print("torch", torch.__version__)')
        for part in (self._write_inline if self.spread else self._write_calls, self._write_switches):
            part()
        return Snippet(
            text="\n".join(self.lines) + "\n",
            observes=self.carried.observes,
            prepared=self.prepared,
            run=None if self.spread else self.runs,
            given=self.given,
            total=self.total,
            warm_up=self.wanted.warm_up,
            needs=self.carried.needs,
            phases=self.phases,
        )

    def _put(self, *lines: str, phase: str = "") -> None:
        for line in lines:
            self.lines.append(self.indent + line if line else "")
            if phase:
                self.phases[len(self.lines)] = phase

    def _put_block(self, text: str) -> None:
        if text:
            self._put(*text.strip("\n").split("\n"))

    def _put_gap(self, lines: int = 2) -> None:
        if self.lines:
            self._put(*[""] * lines)

    # Code from the scenario file.

    def _write_opening(self) -> None:
        self._put_block(self.carried.opening)
        self._put_gap(1)
        imported = self.carried.imports.split("\n")
        own = [
            *(["import inspect"] if self._is_kind_unknown() else []),
            *([] if "import torch" in imported else ["import torch"]),
        ]
        self._put(*(line for line in own if line not in imported))
        self._put_block(self.carried.imports)

    def _write_threads(self) -> None:
        self._put("", f"torch.set_num_threads({self.wanted.threads})")
        unknown = [name for name in self.wanted.switches if name not in SWITCHES]
        if unknown:
            raise SnippetError(f"nothing reads the switch {unknown[0]!r} without this project")
        if self.wanted.switches:
            self._put(f"{self.switches} = {{")
            self._put(*(f"    {literal(name)}: {SWITCHES[name]}," for name in self.wanted.switches))
            self._put("}", f"{self.before} = {{name: read() for name, read in {self.switches}.items()}}")

    def _write_observe(self) -> None:
        if not self.carried.observes:
            return
        if self.wanted.warm_up:
            self._put(f"{self.quiet} = False")
        if self.wanted.reference:
            self._put(f"{self.observed} = {{}}")
        first, *others = self.carried.observes
        self._put_gap()
        self._put(f"def {first}(name, value, **_):", '    """Print what a case observes."""')
        if self.wanted.warm_up:
            self._put(f"    if {self.quiet}:", "        return")
        self._put("    if isinstance(value, torch.Tensor):", "        value = value.detach().clone()")
        if self.wanted.reference:
            self._put(f"        {self.observed}[name] = value")
        self._put(
            "        plain = value.layout is torch.strided and not value.is_nested and not value.is_meta",
            "        value = value.item() if plain and value.numel() == 1 else value",
            '    print(f"{name}: {value}")',
        )
        if others:
            self._put_gap()
            self._put(*(f"{other} = {first}" for other in others))

    def _write_body(self) -> None:
        self._put_gap()
        self._put_block(self.carried.body)

    # What the worker does with the case.

    def _write_prepared(self) -> None:
        dtype, differentiated = self.wanted.dtype, self.wanted.gradient
        self._put_gap()
        self._put(f"def {self.prepared}(tensor):")
        self._put("    made = tensor.detach()")
        self._put("    if made.is_floating_point():", f"        made = made.to(torch.{dtype})")
        if dtype != "float32":
            parts = COMPLEX.get(dtype, "complex64")
            self._put("    elif made.is_complex():", f"        made = made.to(torch.{parts})")
        wants = ".requires_grad_(tensor.requires_grad)" if differentiated else ""
        self._put(f"    return made.to({literal(self.wanted.device)}).clone(){wants}")

    def _inputs_expression(self) -> str:
        seed = repr(self.wanted.seed)
        names = _parameter_names(self.carried.functions[self.carried.inputs])[1:]
        parameters = {**self.wanted.parameters, **self.wanted.reference_parameters}
        arguments = ", ".join([seed, *_keyword_arguments(parameters, names)])
        items = f"{self.carried.inputs}({arguments}).items()"
        return f"{{name: {self.prepared}(tensor) for name, tensor in {items}}}"

    def _arguments(self, case: str, parameters: Mapping[str, Parameter]) -> list[str]:
        return _keyword_arguments(parameters, _parameter_names(self.carried.functions[case]))

    def _is_kind_unknown(self) -> bool:
        """Whether only running the case shows if it returns a generator."""
        return self._kind() == "unknown"

    def _kind(self) -> str:
        """Return ``scalar``, ``generator``, or ``unknown`` if a case may return another function's generator."""
        wanted = [name for name in (self.wanted.case, self.wanted.reference) if name]
        others = self.carried.generators - set(wanted)
        kinds = {
            "generator" if is_generator(self.carried.functions[name]) else "unknown" if others else "scalar"
            for name in wanted
        }
        return kinds.pop() if len(kinds) == 1 else "unknown"

    def _write_steps(self, call: str, indent: str = "") -> None:
        """Write the lines that call the case and differentiate its result."""
        kind, (total, held, result) = self._kind(), (self.total, self.held, self.result)
        forward = {
            "scalar": [f"{total} = {call}"],
            "generator": [f"{held} = {call}", f"{total} = next({held}, None)"],
            "unknown": [
                f"{result} = {call}",
                f"{held} = {result} if inspect.isgenerator({result}) else iter([{result}])",
                f"{total} = next({held}, None)",
            ],
        }[kind]
        self._put(*(indent + line for line in forward), phase="forward")
        if self.wanted.gradient:
            self._put(f"{indent}{total}.backward()", phase="backward")
        if kind != "scalar":
            self._put(f"{indent}next({held}, None)", phase="backward")

    def _write_inline(self) -> None:
        """Write the steps inline, if the case is run once."""
        call = ", ".join([f"**{self.given}", *self._arguments(self.wanted.case, self.wanted.parameters)])
        self._put(f"{self.given} = {self._inputs_expression()}")
        self._write_steps(f"{self.wanted.case}({call})")
        if not self.wanted.gradient:
            self._put(f'print("output:", {self.total})')
            return
        self._put(f'print("output:", {self.total}.detach())', f"for name, tensor in {self.given}.items():")
        self._put("    if tensor.requires_grad:", '        print(f"gradient of {name}:", tensor.grad)')

    def _write_function(self) -> None:
        """Write a function that runs a case, if that is done more than once."""
        self._put_gap()
        self._put(f"def {self.runs}(case, **parameters):")
        self._put('    """The output of a case and its gradients, on inputs of its own."""')
        if self.carried.observes and self.wanted.reference:
            self._put(f"    {self.observed}.clear()")
        self._put(f"    {self.given} = {self._inputs_expression()}")
        self._write_steps(f"case(**{self.given}, **parameters)", "    ")
        detached = f"{self.total}.detach()"
        made = [f'"output": {detached if self.wanted.gradient else self._optional_output()}']
        if self.wanted.gradient:
            items = f"for name, tensor in {self.given}.items() if tensor.requires_grad"
            made.append(f'**{{f"gradient of {{name}}": tensor.grad {items}}}')
        if self.carried.observes and self.wanted.reference:
            made.append(f'**{{f"observed {{name}}": tensor for name, tensor in {self.observed}.items()}}')
        self._put("    return {", *(f"        {one}," for one in made), "    }")
        if self.wanted.reference:
            self._write_difference()

    def _optional_output(self) -> str:
        """Return the expression for the output of a case that is not differentiated, which may be None."""
        return f"None if {self.total} is None else {self.total}.detach()"

    def _write_difference(self) -> None:
        self._put_gap()
        self._put(
            f"def {self.difference}(ours, theirs):",
            '    """The largest absolute difference, or what else tells them apart."""',
            "    if ours is None or theirs is None:",
            '        return "there is none" if ours is theirs else "one of them is missing"',
            "    if ours.is_nested or ours.layout is not torch.strided or ours.is_meta or ours.is_quantized:",
            '        return "not compared"',
            "    if ours.shape != theirs.shape:",
            '        return f"shapes {tuple(ours.shape)} and {tuple(theirs.shape)}"',
            "    wide = torch.complex128 if ours.is_complex() or theirs.is_complex() else torch.float64",
            "    apart = (ours.to(wide) - theirs.to(wide)).abs()",
            '    return f"{apart.max().item():.3g}" if apart.numel() else "there are no elements"',
        )

    def _write_calls(self) -> None:
        wanted = self.wanted
        ours = ", ".join([wanted.case, *self._arguments(wanted.case, wanted.parameters)])
        if wanted.warm_up:
            self._write_warm_up(ours)
        if wanted.reference is None:
            self._put(f"for name, tensor in {self.runs}({ours}).items():", '    print(f"{name}:", tensor)')
            return
        theirs = ", ".join([wanted.reference, *self._arguments(wanted.reference, wanted.reference_parameters)])
        self._put(f'print("{wanted.case}:")')
        # The reference must start from the same random state as the case.
        self._put_isolated(f"{self.ours} = {self.runs}({ours})")
        self._put(f'print("{wanted.reference}, the reference:")', f"{self.theirs} = {self.runs}({theirs})")
        self._put(f"for name in {{**{self.ours}, **{self.theirs}}}:")
        found = f"{self.difference}({self.ours}.get(name), {self.theirs}.get(name))"
        self._put(f'    print(f"{{name}}: largest difference from the reference:", {found})')

    def _write_warm_up(self, call: str) -> None:
        self._put("# Once beforehand, unheard: what a first call imports and compiles is then there.")
        if self.carried.observes:
            self._put(f"{self.quiet} = True")
        self._put_isolated(f"{self.runs}({call})", phase="warm-up")
        if self.carried.observes:
            self._put(f"{self.quiet} = False")

    def _put_isolated(self, line: str, phase: str = "") -> None:
        """Write a line and restore the random state after it."""
        if self.carried.shuffles:
            self._put(f"{self.state} = random.getstate()")
        self._put("with torch.random.fork_rng():")
        self._put(f"    {line}", phase=phase)
        if self.carried.shuffles:
            self._put(f"random.setstate({self.state})")

    def _write_switches(self) -> None:
        if self.wanted.switches:
            self._put(f"for name, read in {self.switches}.items():")
            self._put(f'    print(f"{{name}}: {{{self.before}[name]}} before, {{read()}} after")')


def _parameter_names(function: Function) -> list[str]:
    """Return the names of a function's parameters."""
    arguments = function.args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _keyword_arguments(parameters: Mapping[str, Parameter], names: Sequence[str]) -> list[str]:
    return [f"{name}={literal(value)}" for name, value in sorted(parameters.items()) if name in names]


def literal(value: Parameter) -> str:
    """Return a value as Python source, with double quotes where possible. Infinities and NaN have no literal."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    text = repr(value)
    return f'"{text[1:-1]}"' if text.startswith("'") and '"' not in text else text

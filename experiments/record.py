"""Spec, observation, ending, record: what is asked of a process, and what is kept of it.

    spec    = question (the same on all machines) + setting (how it is run here) + mark (what is expected)
    record  = spec + what the worker observed + how the process ended

One process, one record. A record holds observations only: verdicts and differences are computed from it.
Records travel as canonical JSON (RFC 8785), so equal content has equal bytes and one SHA-256. What JSON
numbers cannot hold (integers from 2**53, NaN, infinities, -0.0) is written as a string.

Only the standard library is imported here, and nothing newer than Python 3.9: workers load this file.

Schema history:
    1   first.
    2   a setting names the compile cache, a mark the series it belongs to, memory the largest single allocation;
        a process may warm up before it is looked at.
    3   a setting says how many threads it gives and which matmul precision, where the question's own are not meant.
    4   a process may end as `not_observed`; a tensor names its layout; a fingerprint is free of frames, ports, times
        and temporary names, and the texts that a case observed are compared like it; `varies` says of what.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from .fingerprint import PATHS, normalize, normalize_value

SCHEMA = 4
"""Version of the record's JSON that this code writes. It reads 1 to SCHEMA."""

PASSES = ("plain", "profiled")
ENDINGS = ("finished", "raised", "timed_out", "out_of_memory", "died", "not_run", "not_observed")
UNOBSERVED = "unobserved"
"""File in which a worker says why it could leave no observation."""
PHASES = ("inputs", "warm-up", "forward", "backward")

_LARGEST = 2**53
_MAX_DEPTH = 64


class RecordError(Exception):
    """A text is not a record that this version can read. The message says what was found."""


# Canonical JSON.


def canonical(value: Any) -> str:
    """`value` as canonical JSON (RFC 8785): equal values give equal text.

    Numbers that JSON cannot carry exactly become strings: see `number`. Lone surrogates, which have no
    UTF-8 form, become their backslash escapes. Raises RecordError for anything that is not JSON.
    """
    made: list[str] = []
    _write(value, 0, made.append)
    return "".join(made)


def _write(value: Any, depth: int, out: Callable[[str], None]) -> None:
    if depth > _MAX_DEPTH:
        raise RecordError(f"nested deeper than {_MAX_DEPTH} levels")
    if value is None or value is True or value is False:
        out({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, str):
        out(_string(value))
    elif isinstance(value, int):
        out(str(int(value)) if abs(value) < _LARGEST else _string(str(int(value))))
    elif isinstance(value, float):
        out(_float(value))
    elif isinstance(value, (dict, Mapping)):
        if len({printable(key) if isinstance(key, str) else key for key in value}) != len(value):
            raise RecordError("two keys of an object print alike")
        start = "{"
        for key in sorted(value, key=_utf16):
            out(f"{start}{_string(key)}:")
            _write(value[key], depth + 1, out)
            start = ","
        out("}" if value else "{}")
    elif isinstance(value, (list, tuple)):
        start = "["
        for item in value:
            out(start)
            _write(item, depth + 1, out)
            start = ","
        out("]" if value else "[]")
    else:
        raise RecordError(f"{type(value).__name__} has no JSON form")


def _utf16(key: Any) -> bytes:
    """RFC 8785 orders keys by their UTF-16 code units."""
    if not isinstance(key, str):
        raise RecordError(f"key {key!r} is not text")
    return printable(key).encode("utf-16-be")


def printable(text: str) -> str:
    """`text` with lone surrogates, which cannot be encoded, as backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _string(text: str) -> str:
    # json escapes exactly what RFC 8785 asks for, once told to leave other characters alone.
    return _ENCODER.encode(text if text.isascii() else printable(text))


_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _float(value: float) -> str:
    """ECMAScript's shortest form: Python has the same digits but writes exponents otherwise."""
    if math.isnan(value) or math.isinf(value) or (value == 0 and math.copysign(1, value) < 0):
        return _string({"-0.0": "-0.0", "nan": "nan", "inf": "inf", "-inf": "-inf"}[repr(value)])
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    shown = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{sign}{shown}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def number(value: Any) -> float:
    """The float that canonical JSON carries as a number or, where it cannot, as a string."""
    if isinstance(value, str) and value not in ("nan", "inf", "-inf", "-0.0"):
        raise RecordError(f"{value!r} is not a number")
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise RecordError(f"{value!r} is not a number")
    return float(value)


def parse(text: str) -> Any:
    """The value of a JSON text. Raises RecordError for duplicate keys, bare NaN or absurd depth."""
    try:
        return json.loads(
            text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_int=_integer, parse_float=_finite
        )
    except RecursionError:
        raise RecordError("nested too deep to read") from None
    except ValueError as error:
        raise RecordError(f"not JSON: {error}") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise RecordError("an object has the same key twice")
    return made


def _integer(text: str) -> int | float:
    """Integers from 2**53 are written as strings, so digits beyond it are a float's."""
    return int(text) if abs(int(text)) < _LARGEST else _finite(text)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise RecordError(f"{text[:20]} is larger than any float")
    return value


def _no_constant(name: str) -> Any:
    raise RecordError(f"{name} is not JSON")


def digest(content: str | bytes) -> str:
    """SHA-256 in hexadecimal, 64 digits."""
    return hashlib.sha256(content.encode("utf-8") if isinstance(content, str) else content).hexdigest()


VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "KMP_SETTINGS",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "MKL_THREADING_LAYER",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "OMP_MAX_ACTIVE_LEVELS",
    "OMP_NESTED",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OMP_SCHEDULE",
    "OMP_STACKSIZE",
    "OMP_THREAD_LIMIT",
    "OMP_WAIT_POLICY",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)
"""Environment variables that a calculation depends on. These are passed from the caller to a worker and
recorded, by whole name; nothing else of the environment is recorded, so no secret can be."""


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of `VARIABLES` that are set."""
    return {name: environment[name] for name in VARIABLES if name in environment}


def own_folders(temporary: str) -> dict[str, str]:
    """What makes `temporary` the place of a process's own files, compiled code included, which starts empty: no
    process finds what another has compiled.
    """
    caches = {f"{name}_CACHE_DIR": str(Path(temporary) / "compiled") for name in ("TORCHINDUCTOR", "TRITON")}
    return {"TMPDIR": temporary, "TEMP": temporary, **caches}


def machine_identity(facts: Mapping[str, Any]) -> str:
    """Digest of what makes a machine this one: host, processor, GPU, system. Not torch, threads, switches."""
    cpu = {name: facts["cpu"][name] for name in ("model", "architecture", "cores")}
    return digest(
        canonical({"host": facts["host"], "cpu": cpu, "gpu": facts["gpu"], "system": facts["system"]["name"]})
    )


# Spec.


@dataclass(frozen=True)
class Question:
    """What is asked. Its digest is the identity that all machines share."""

    scenario: str
    """Folder and file name, such as ``checkpoint/attention_policy_ends_before_recomputation``."""
    source: str
    """SHA-256 of the scenario file."""
    case: str
    parameters: Mapping[str, Any]
    """The variant's parameters, by name."""
    device: str
    dtype: str
    """In which the case calculates."""
    input_dtype: str
    """To which the float32 inputs are rounded first; differs from `dtype` in a float64 reference only."""
    seed: int
    threads: int
    """Compute threads."""
    pass_: str
    """How the process looks at the case: one of `PASSES`."""

    def digest(self) -> str:
        """Identity of this process's question, its pass included."""
        return digest(canonical(_plain(self)))

    def case_digest(self) -> str:
        """Identity of the case whichever way it is looked at: the same for all passes of a replay."""
        data = _plain(self)
        del data["pass"]
        return digest(canonical(data))

    def label(self) -> str:
        """The case with its variant, such as ``asked_first[dtype=bfloat16,first=MATH]``."""
        return case_label(self.case, self.parameters, self.dtype, self.input_dtype)


def case_label(case: str, parameters: Mapping[str, Any], dtype: str, input_dtype: str) -> str:
    """A case and its variant in one word; plain float32 without parameters is the bare name."""
    shown = dict(parameters)
    if dtype != "float32":
        shown["dtype"] = dtype if dtype == input_dtype else f"{dtype} of {input_dtype}"
    elif input_dtype != "float32":
        shown["dtype"] = f"{dtype} of {input_dtype}"
    inside = ",".join(f"{name}={shown[name]}" for name in sorted(shown))
    return f"{case}[{inside}]" if inside else case


@dataclass(frozen=True)
class Setting:
    """How it is run here. Two settings of one question are two replays of the same case."""

    environment: str
    """Name of the environment, such as ``here``."""
    interpreter: str
    """Python that runs the worker. Empty for the one that runs the driver."""
    variables: Mapping[str, str]
    """Environment variables that the setting adds."""
    isolation: str
    """``fresh``: a new interpreter for each process."""
    sources: str
    """``original``, or ``copied``: run from a copy of the sources in another folder."""
    timeout: float
    """Seconds until the process group is ended."""
    memory: int | None
    """Bytes of resident memory, added up over the process group, at which it is ended. None for no limit."""
    output: int
    """Bytes kept of each of stdout and stderr."""
    disk: int
    """Bytes that one file, and all files of the case in the process's own folder, may grow to."""
    keep: int
    """Bytes up to which a tensor is kept whole."""
    compile_cache: str
    """``private``: compiled code is cached in a folder of the process's own, empty when it starts."""
    threads: int | None
    """Compute threads that the environment gives. None for as many as the question asks for."""
    matmul_precision: str
    """torch's float32 matmul precision as the case finds it. Empty for torch's own."""
    hash_seed: int
    """PYTHONHASHSEED."""
    repeat: int
    """Number of this replay, from 0."""
    attempt: int
    """Number of this try at it, from 0."""

    def given_threads(self, question: Question) -> int:
        """Compute threads that the process has."""
        return question.threads if self.threads is None else self.threads

    def replay_digest(self) -> str:
        """Identity of the setting whichever attempt it is."""
        data = _identity(self)
        del data["attempt"]
        return digest(canonical(data))


@dataclass(frozen=True)
class Mark:
    """What the scenario says about the case; judged later, never by the worker."""

    role: str
    expectations: tuple[Mapping[str, Any], ...]
    """As written by `scenario.expectation_to_json`."""
    why: str
    """For a control: why it cannot break here. Empty otherwise."""
    cause: str | None
    """None where nothing differs."""
    needs: tuple[str, ...]
    """What must be there for the case to run."""
    reference: str | None
    """Case digest of the reference. None for a reference itself."""
    float64: str | None
    """Case digest of the reference calculated in float64 from the same inputs. None for that one itself."""
    fork_safe: bool
    series: tuple[Mapping[str, Any], ...]
    """Series of measured points that the case is one of, as `series.Series` writes them."""


@dataclass(frozen=True)
class Spec:
    """One process to be started: frozen and complete."""

    question: Question
    setting: Setting
    mark: Mark

    def digest(self) -> str:
        """Identity of the process within its plan."""
        data = {"setting": _identity(self.setting), "mark": _identity(self.mark)}
        return digest(canonical({"question": _plain(self.question), **data}))

    def replay_digest(self) -> str:
        """Identity of the replay it belongs to: all passes of one case in one setting and repeat."""
        return digest(self.question.case_digest() + self.setting.replay_digest())

    def to_json(self) -> dict[str, Any]:
        return {"question": _plain(self.question), "setting": _plain(self.setting), "mark": _plain(self.mark)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """Raises RecordError if a field is missing, unknown or of the wrong kind."""
        _keys(data, "spec", ("question", "setting", "mark"))
        setting = _object(data["setting"], Setting, "setting")
        setting["timeout"] = number(setting["timeout"])
        mark = _object(data["mark"], Mark, "mark")
        mark.update({name: tuple(mark[name]) for name in ("expectations", "needs", "series")})
        question = Question(**_object(data["question"], Question, "question"))
        return cls(question=question, setting=Setting(**setting), mark=Mark(**mark))


# Observation.


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


SAMPLES = 1024
"""Elements kept of a tensor that is too large to be kept whole."""


def sample_positions(elements: int) -> list[int]:
    """Positions, in row-major order, of the elements kept of a large tensor: the same on all machines.

    One from each of `SAMPLES` equal stretches, so that no part of the tensor goes unseen; where in its
    stretch is scattered by a fixed hash (splitmix64), so that no regular pattern does either.
    """
    if elements <= SAMPLES:
        return list(range(elements))
    edges = [index * elements // SAMPLES for index in range(SAMPLES + 1)]
    return [low + _scatter(index) % (high - low) for index, (low, high) in enumerate(zip(edges, edges[1:]))]


def _scatter(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & (2**64 - 1)
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return value ^ (value >> 31)


@dataclass(frozen=True)
class Operator:
    """One dispatched operator, in the order in which they started."""

    thread: int
    """Numbered in the order in which threads appear; 0 is the one that called the case."""
    depth: int
    """Operators around it: 0 for one called by the case or by autograd itself."""
    name: str
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of its arguments, empty for those that are not tensors."""

    def to_list(self) -> list[Any]:
        """Operators are many, so each is a short JSON list instead of an object."""
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
    """A process-wide switch that the case left other than it found it."""

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

    def grown(self, *, peak: bool) -> int | None:
        """Bytes at the phase's peak, or held at its end, above those at its start: of the GPU if the case ran
        there, else resident. None where the system does not tell.
        """
        cuda = self.cuda_before is not None
        before = self.cuda_before if cuda else self.before
        after = self.cuda_after if cuda else self.after
        reached = (self.cuda_peak if cuda else self.peak) if peak else after
        return None if before is None or reached is None else reached - before


@dataclass(frozen=True)
class Observation:
    """What the worker saw. Written by it, completed to a record by its parent."""

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
        """Raises RecordError if it is not an observation of this version."""
        values = _object(data, Observation, "observation")
        return _observation(values)

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = _plain(self)
        return made

    def blobs(self) -> dict[str, str]:
        """Every content that it names: digest -> ``machine``, ``source`` or ``tensor``."""
        kept = [part for one in self.tensors for part in (one.digest if one.whole else None, one.samples, one.sketch)]
        sources = [source.digest for source in self.sources if source.kept]
        return {
            **{name: "tensor" for name in kept if name},
            **dict.fromkeys(sources, "source"),
            self.machine: "machine",
        }


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
        """Type, phase and message without what changes from run to run (`fingerprint.normalize`), as records of
        `schema` have it. Shapes and byte counts stay. None unless `raised`.
        """
        if self.kind != "raised":
            return None
        message = self.message or ""
        head = normalize(message) if schema >= _NORMALIZED else _without_accidents(message)
        return f"{self.type} in {self.phase}: {head}"

    @property
    def named(self) -> str | None:
        """What the process ended by: the exception's type, or the signal or exit code that it died of. None for
        other kinds.
        """
        if self.kind == "died":
            found = re.match(r"SIG[A-Z0-9]+|signal \d+|exit -?\d+", self.detail)
            return found.group() if found else ""
        return self.type

    @property
    def ran(self) -> bool:
        """Whether the case was started at all."""
        return self.kind != "not_run"


_NORMALIZED = 4
"""The schema from which on fingerprints are made by `fingerprint.normalize`."""


def _without_accidents(message: str) -> str:
    """As records up to schema 3 have it: their digests are of this."""
    text = re.split(r"\n[ \t]*\n", message.strip(), maxsplit=1)[0]
    text = re.sub(r"0x[0-9a-fA-F]+", "ADDRESS", text)
    for path in PATHS:
        text = re.sub(path, r"\g<quote>PATH\g<quote>" if "quote" in path else "PATH", text)
    text = re.sub(r"\bline \d+", "line N", text)
    return re.sub(r"\b(pid|process)([ :=]+)\d+", r"\1\2N", text, flags=re.IGNORECASE)


@dataclass(frozen=True)
class Output:
    """What a process wrote to stdout or stderr."""

    digest: str
    """SHA-256 of what was kept."""
    written: int
    """Bytes written in all."""
    kept: int
    """Bytes kept; less than `written` if it was cut."""


@dataclass(frozen=True)
class Ending:
    """How the process ended as its parent saw it. None of it is evidence."""

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


@dataclass(frozen=True)
class Record:
    """One process: what was asked, what was seen, how it ended."""

    spec: Spec
    outcome: Outcome
    observation: Observation | None
    """None if the worker left none that can be read."""
    ending: Ending
    written: str | None = field(default=None, init=False, compare=False, repr=False)
    """For a record of an older schema the text it was read from, which its digest is of. None for one of this."""
    read_schema: int | None = field(default=None, init=False, compare=False, repr=False)
    """For a record of an older schema that schema. None for one of this."""

    def evidence(self, schema: int = SCHEMA) -> dict[str, Any]:
        """The part that a replay must repeat, as records of `schema` have it. Times, hosts, process ids and memory are
        not in it.

        Where results vary from run to run by nature, only that is.
        """
        if self.varies:
            return {"varies": True}
        seen, later = self.observation, schema >= _NORMALIZED
        outcome = {
            "kind": self.outcome.kind,
            "phase": self.outcome.phase,
            "fingerprint": self.outcome.fingerprint(schema),
            **({"named": self.outcome.named} if later else {}),
        }
        if seen is None:
            return {"outcome": outcome, "tensors": None, "operators": None, "observed": None, "state": None}
        return {
            "outcome": outcome,
            "tensors": [
                [t.role, t.name, t.dtype, t.shape, t.digest, *([t.layout] if later else [])] for t in seen.tensors
            ],
            "operators": None
            if seen.operators is None
            else {
                phase: [[o.thread, o.depth, o.name, o.shapes] for o in listed]
                for phase, listed in seen.operators.items()
            },
            "observed": [
                [o.name, normalize_value(o.value) if later else o.value] for o in seen.observed if o.kind == "evidence"
            ],
            "state": [_plain(change) for change in seen.state],
        }

    @property
    def varies(self) -> bool:
        """Whether results vary from run to run by nature, so that one run is no evidence of another."""
        return any(expectation.get("kind") == "varies" for expectation in self.spec.mark.expectations)

    def evidence_digest(self) -> str:
        """Digest of the evidence as the record's own schema has it: what was written into the record."""
        return self._written_digest

    def agreement_digest(self) -> str:
        """Equal for two records, of whichever schemas, exactly if they hold the same evidence."""
        return self._agreement_digest

    @cached_property
    def _agreement_digest(self) -> str:
        return digest(canonical(self.evidence()))

    @cached_property
    def _written_digest(self) -> str:
        return self._agreement_digest if self.schema >= _NORMALIZED else digest(canonical(self.evidence(self.schema)))

    @property
    def schema(self) -> int:
        """The schema that the record was written in."""
        return SCHEMA if self.read_schema is None else self.read_schema

    def blobs(self) -> dict[str, str]:
        """Every content that must be kept beside the record: digest -> what it is.

        ``machine`` and ``source`` are texts, the others bytes: ``tensor``, ``stdout``, ``stderr``,
        ``unreadable`` (an observation that nobody can read).
        """
        wanted = {self.ending.stdout.digest: "stdout", self.ending.stderr.digest: "stderr"}
        if self.ending.unreadable is not None:
            wanted[self.ending.unreadable.digest] = "unreadable"
        return wanted if self.observation is None else {**wanted, **self.observation.blobs()}

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "spec": self.spec.to_json(),
            "outcome": {**_plain(self.outcome), "fingerprint": self.outcome.fingerprint()},
            "observation": None if self.observation is None else _without_outcome(self.observation),
            "ending": _plain(self.ending),
            "evidence_digest": self.evidence_digest(),
        }

    def text(self) -> str:
        """The record as canonical JSON: what is stored, and what its digest is of."""
        return self._text if self.written is None else self.written

    @cached_property
    def _text(self) -> str:
        return canonical(self.to_json())

    @classmethod
    def from_text(cls, text: str) -> Record:
        """Read a record of this schema or any older one.

        Raises RecordError if it is newer, not a record, or does not match its own evidence digest.
        """
        data = parse(text)
        if not isinstance(data, dict):
            raise RecordError("a record is a JSON object")
        try:
            schema = data.get("schema")
            data = _upgraded(data)
            _keys(data, "record", ("spec", "outcome", "observation", "ending", "evidence_digest"))
            record = _record(data)
            if schema != SCHEMA:
                object.__setattr__(record, "written", text)
                object.__setattr__(record, "read_schema", schema)
            fingerprint = record.outcome.fingerprint(record.schema)
            found = {"evidence digest": record.evidence_digest(), "fingerprint": fingerprint}
            said = {"evidence digest": data["evidence_digest"], "fingerprint": data["outcome"]["fingerprint"]}
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise RecordError(f"not a record of schema {SCHEMA}: {type(error).__name__}: {error}") from None
        for name, value in found.items():
            if value != said[name]:
                raise RecordError(f"{name} is {value}, the record says {said[name]}")
        return record


_LATER: Mapping[str, Any] = {"compile_cache": "private", "series": [], "threads": None, "matmul_precision": ""}
"""Fields that a later schema added to a setting or mark, and what was so before. Where it still is so, the digests
of a spec leave them out: what is written down more fully is still the same process.
"""


def _identity(part: Setting | Mark) -> dict[str, Any]:
    return {name: value for name, value in _plain(part).items() if name not in _LATER or _LATER[name] != value}


def upgraded_spec(data: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a spec of any schema as this one writes it: a stored plan does not say which it is of."""
    setting = {**{name: _LATER[name] for name in ("compile_cache", *_THIRD)}, **data["setting"]}
    return {**data, "setting": setting, "mark": {"series": _LATER["series"], **data["mark"]}}


_THIRD = ("threads", "matmul_precision")


def _second(data: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 had private compile caches and no series, and did not look at single allocations."""
    spec, seen = data["spec"], data["observation"]
    rows = [] if seen is None else seen["memory"]
    added = [("compile_cache", spec["setting"]), ("series", spec["mark"]), *(("largest", row) for row in rows)]
    for name, part in added:
        if name in part:
            raise RecordError(f"schema 1 has no {name}")
    if seen is not None:
        seen = {**seen, "memory": [{**row, "largest": None} for row in rows]}
    setting = {"compile_cache": _LATER["compile_cache"], **spec["setting"]}
    spec = {**spec, "setting": setting, "mark": {"series": _LATER["series"], **spec["mark"]}}
    return {**data, "spec": spec, "observation": seen}


def _third(data: dict[str, Any]) -> dict[str, Any]:
    """Schema 2 had the threads of the question and torch's own precision."""
    for name in _THIRD:
        if name in data["spec"]["setting"]:
            raise RecordError(f"schema 2 has no {name}")
    return {**data, "spec": upgraded_spec(data["spec"])}


def _fourth(data: dict[str, Any]) -> dict[str, Any]:
    """Schema 3 kept dense tensors only, and what varied was how a process ended."""
    seen = data["observation"]
    if data["outcome"]["kind"] == "not_observed":
        raise RecordError("schema 3 has no not_observed")
    if seen is None:
        return data
    for tensor in seen["tensors"]:
        if "layout" in tensor:
            raise RecordError("schema 3 has no layout")
    return {**data, "observation": {**seen, "tensors": [{**one, "layout": ""} for one in seen["tensors"]]}}


_UPGRADES: list[Any] = [_second, _third, _fourth]
"""`_UPGRADES[n - 1]` turns schema n into n + 1. Stored text is never changed; only the reading is."""


def _upgraded(data: dict[str, Any]) -> dict[str, Any]:
    schema = data.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise RecordError(
            f"record has schema {schema!r}; this version reads 1 to {SCHEMA}: update the project to read it"
        )
    data = {key: value for key, value in data.items() if key != "schema"}
    for step in _UPGRADES[schema - 1 :]:
        data = step(data)
    return data


def _record(data: Mapping[str, Any]) -> Record:
    outcome = dict(data["outcome"])
    outcome.pop("fingerprint")
    ending = _object(data["ending"], Ending, "ending")
    ending.update(
        duration=number(ending["duration"]),
        stdout=Output(**_object(ending["stdout"], Output, "stdout")),
        stderr=Output(**_object(ending["stderr"], Output, "stderr")),
        unreadable=None
        if ending["unreadable"] is None
        else Output(**_object(ending["unreadable"], Output, "unreadable observation")),
    )
    made = _outcome(outcome)
    seen = data["observation"]
    return Record(
        spec=Spec.from_json(data["spec"]),
        outcome=made,
        observation=None if seen is None else Observation.from_json({**seen, "outcome": outcome}),
        ending=Ending(**ending),
    )


def _outcome(data: Any) -> Outcome:
    values = _object(data, Outcome, "outcome")
    if values["kind"] not in ENDINGS:
        raise RecordError(f"outcome {values['kind']!r} is unknown; known are {', '.join(ENDINGS)}")
    return Outcome(**{**values, "bases": tuple(values["bases"])})


def _observation(values: dict[str, Any]) -> Observation:
    operators = values["operators"]
    return Observation(
        outcome=_outcome(values["outcome"]),
        tensors=tuple(_tensor(item) for item in values["tensors"]),
        operators=None
        if operators is None
        else {phase: tuple(_operator(item) for item in listed) for phase, listed in operators.items()},
        observed=tuple(_observed(item) for item in values["observed"]),
        state=tuple(StateChange(**_object(item, StateChange, "state change")) for item in values["state"]),
        memory=tuple(Memory(**_object(item, Memory, "memory")) for item in values["memory"]),
        durations={phase: number(seconds) for phase, seconds in values["durations"].items()},
        machine=values["machine"],
        sources=tuple(Source(**_object(item, Source, "source")) for item in values["sources"]),
    )


def _tensor(data: Any) -> Tensor:
    values = _object(data, Tensor, "tensor")
    for name in ("norm", "largest"):
        values[name] = None if values[name] is None else number(values[name])
    values["shape"] = None if values["shape"] is None else tuple(values["shape"])
    return Tensor(**values)


def _operator(data: Any) -> Operator:
    """The inverse of `Operator.to_list`."""
    thread, depth, name, shapes = data
    right = _FITS["int"](thread) and _FITS["int"](depth) and isinstance(name, str)
    if not right or not all(_FITS["tuple[int, ...]"](shape) for shape in shapes):
        raise RecordError(f"an operator is {data!r:.100}, not thread, depth, name and shapes")
    return Operator(thread, depth, name, tuple(tuple(shape) for shape in shapes))


def _observed(data: Any) -> Observed:
    values = _object(data, Observed, "observed value")
    values["tolerance"] = None if values["tolerance"] is None else number(values["tolerance"])
    return Observed(**values)


def _without_outcome(seen: Observation) -> dict[str, Any]:
    data = seen.to_json()
    del data["outcome"]
    return data


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries (`pass_` as `pass`), tuples as lists; what has `to_list` as that."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if hasattr(value, "to_list"):
        return value.to_list()
    if hasattr(value, "__dataclass_fields__"):
        return {field.name.rstrip("_"): _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _keys(data: Any, what: str, names: Sequence[str]) -> None:
    if not isinstance(data, Mapping):
        raise RecordError(f"{what} is {type(data).__name__}, not an object")
    missing, unknown = sorted(set(names) - set(data)), sorted(set(data) - set(names))
    if missing or unknown:
        raise RecordError(f"{what} lacks {missing or 'nothing'} and has unknown {unknown or 'nothing'}")


def _object(data: Any, kind: Any, what: str) -> dict[str, Any]:
    """The fields of a dataclass out of a JSON object that has exactly them."""
    listed = {field.name.rstrip("_"): field for field in fields(kind)}
    _keys(data, what, tuple(listed))
    return {listed[key].name: _of_kind(value, listed[key].type, f"{key} of the {what}") for key, value in data.items()}


_FITS: Mapping[str, Any] = {
    "None": lambda value: value is None,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, (int, float, str)) and not isinstance(value, bool),
    "tuple[str, ...]": lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    "tuple[int, ...]": lambda value: isinstance(value, list) and all(_is_size(one) for one in value),
    "tuple[Mapping[str, Any], ...]": lambda value: (
        isinstance(value, list) and all(isinstance(one, dict) for one in value)
    ),
    "Mapping[str, Any]": lambda value: isinstance(value, dict),
    "Mapping[str, str]": lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
}
"""Whether a JSON value is of the kind that a field is declared as. What is not here is checked where it is read."""


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _of_kind(value: Any, kind: Any, what: str) -> Any:
    """The value, which must be of the kind that its field is declared as. Integers from 2**53 come as text."""
    if kind in ("int", "int | None") and isinstance(value, str):
        if not re.fullmatch(r"-?[1-9][0-9]{15,}", value):
            raise RecordError(f"{what} is {value!r:.100}, which is no integer")
        return int(value)
    kinds = str(kind).split(" | ")
    if all(one in _FITS for one in kinds) and not any(_FITS[one](value) for one in kinds):
        raise RecordError(f"{what} is {value!r:.100}, not {kind}")
    return value


# Replays.


@dataclass(frozen=True)
class Replay:
    """All passes of one case in one setting and repeat."""

    records: Mapping[str, Record]
    """By pass."""

    @property
    def plain(self) -> Record | None:
        """The pass that carries no instrument: outcome, gradients, memory and time come from it.
        None if it has not run.
        """
        return self.records.get("plain")

    @property
    def any(self) -> Record:
        """Some record of the replay, for what all of them share: question, setting, mark."""
        return self.records[min(self.records)]

    @property
    def spec(self) -> Spec:
        return self.any.spec

    @property
    def machine(self) -> str:
        """Digest of the facts of the machine that it ran on. Empty if no process left any."""
        return next((r.observation.machine for _, r in sorted(self.records.items()) if r.observation), "")

    @property
    def sources(self) -> dict[str, str]:
        """Digests by name of the sources that the plain pass ran. Empty if it left no observation."""
        seen = self.plain.observation if self.plain else None
        return {source.name: source.digest for source in (seen.sources if seen else ())}

    def digest(self) -> str:
        """Identity of what was asked: the same when it is run again."""
        return self.spec.replay_digest()

    def content_digest(self) -> str:
        """Digest over the records themselves: another when it is run again."""
        return digest(canonical({name: digest(record.text()) for name, record in self.records.items()}))

    def evidence_digest(self) -> str:
        """Equal for two replays, of whichever schemas, exactly if every pass holds the same evidence."""
        return digest(canonical({name: record.agreement_digest() for name, record in self.records.items()}))


def replays(records: Sequence[Record]) -> list[Replay]:
    """Records grouped by replay, in the order in which each replay first appears. The last record of a
    pass counts if it was run more than once.
    """
    grouped: dict[str, dict[str, Record]] = {}
    for record in records:
        grouped.setdefault(record.spec.replay_digest(), {})[record.spec.question.pass_] = record
    return [Replay(passes) for passes in grouped.values()]


def with_attempt(spec: Spec, attempt: int) -> Spec:
    """The same process, tried again."""
    return replace(spec, setting=replace(spec.setting, attempt=attempt))

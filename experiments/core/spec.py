"""A spec: what is asked of one process. It has a question (the same on all machines), a setting (how it is run here),
and a mark (what is expected).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping

from .canonical_json import canonical, digest, number
from .codec import check_keys, read_fields, to_plain

PASSES = ("plain", "profiled")


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
        """Return the identity of the question, including the pass."""
        return digest(canonical(to_plain(self)))

    def case_digest(self) -> str:
        """Return the identity of the case, which is the same for all passes of a replay."""
        data = to_plain(self)
        del data["pass"]
        return digest(canonical(data))

    def label(self) -> str:
        """Return the case with its variant, such as ``asked_first[dtype=bfloat16,first=MATH]``."""
        return case_label(self.case, self.parameters, self.dtype, self.input_dtype)


def family(scenario: str) -> str:
    """Return the folder of a scenario, such as ``checkpoint``. Empty if it is in none."""
    return scenario.rpartition("/")[0]


def case_label(case: str, parameters: Mapping[str, Any], dtype: str, input_dtype: str) -> str:
    """Return a case and its variant in one word. For float32 without parameters it is the name of the case alone."""
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

    def thread_count(self, question: Question) -> int:
        """Return the number of compute threads of the process."""
        return question.threads if self.threads is None else self.threads

    def replay_digest(self) -> str:
        """Return the identity of the setting, which is the same for all attempts."""
        data = _identity_fields(self)
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
        """Return the identity of the process within its plan."""
        data = {"setting": _identity_fields(self.setting), "mark": _identity_fields(self.mark)}
        return digest(canonical({"question": to_plain(self.question), **data}))

    def replay_digest(self) -> str:
        """Return the identity of its replay: all passes of one case in one setting and repeat."""
        return digest(self.question.case_digest() + self.setting.replay_digest())

    def to_json(self) -> dict[str, Any]:
        """Return the spec as a JSON object."""
        return {"question": to_plain(self.question), "setting": to_plain(self.setting), "mark": to_plain(self.mark)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """Read a spec. Raises RecordError if a field is missing, unknown or of the wrong type."""
        check_keys(data, "spec", ("question", "setting", "mark"))
        setting = read_fields(data["setting"], Setting, "setting")
        setting["timeout"] = number(setting["timeout"])
        mark = read_fields(data["mark"], Mark, "mark")
        mark.update({name: tuple(mark[name]) for name in ("expectations", "needs", "series")})
        question = Question(**read_fields(data["question"], Question, "question"))
        return cls(question=question, setting=Setting(**setting), mark=Mark(**mark))


LATER_FIELDS: Mapping[str, Any] = {"compile_cache": "private", "series": [], "threads": None, "matmul_precision": ""}
"""Fields that a later schema added to a setting or mark, with the values that older specs imply. The digests of a spec
omit fields with these values, so that the same process keeps its identity.
"""


def _identity_fields(part: Setting | Mark) -> dict[str, Any]:
    """Return the fields that the digests of a spec are taken of."""
    return {
        name: value for name, value in to_plain(part).items() if name not in LATER_FIELDS or LATER_FIELDS[name] != value
    }


def spec_of_attempt(spec: Spec, attempt: int) -> Spec:
    """Return the spec of another attempt at the same process."""
    return replace(spec, setting=replace(spec.setting, attempt=attempt))

"""Records as a run would leave them, made from the dataclasses, for tests of what is done with records."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.core.canonical_json import canonical, digest
from experiments.core.observation import Ending, Memory, Observation, Observed, Operator, Output, Source, Tensor
from experiments.core.outcome import Outcome
from experiments.core.record import Record
from experiments.core.replay import Replay
from experiments.core.spec import Mark, Question, Setting, Spec

SCENARIO = b"print('scenario')\n"
STDOUT = b"hello\n"
STDERR = b""


def spec(case: str = "chosen_inside", **changes: Any) -> Spec:
    """A spec; `changes` replace fields of its question, setting or mark, whichever has them."""
    question = Question(
        scenario="checkpoint/policy",
        source=digest(SCENARIO),
        case=case,
        parameters={},
        device="cpu",
        dtype="float32",
        input_dtype="float32",
        seed=1729,
        threads=1,
        pass_="plain",
    )
    setting = Setting(
        environment="default",
        interpreter="",
        variables={},
        isolation="fresh",
        sources="original",
        timeout=60.0,
        memory=None,
        output=65536,
        disk=2**30,
        keep=16384,
        compile_cache="private",
        threads=None,
        matmul_precision="",
        hash_seed=0,
        repeat=0,
        attempt=0,
    )
    mark = Mark(
        role="broken",
        expectations=(),
        why="",
        cause=None,
        needs=(),
        reference=None,
        float64=None,
        fork_safe=True,
        series=(),
    )
    parts = [
        replace(part, **{name: value for name, value in changes.items() if hasattr(part, name)})
        for part in (question, setting, mark)
    ]
    return Spec(*parts)


def contents(seed: int = 0) -> dict[str, bytes]:
    """What the sample record of that seed rests on, by digest."""
    parts = [SCENARIO, STDOUT, STDERR, machine(), tensor(seed)]
    return {digest(part): part for part in parts}


def machine(name: str = "one") -> bytes:
    return canonical({"cpu": name}).encode()


def tensor(seed: int) -> bytes:
    return seed.to_bytes(4, "little") * 16


def outcome(kind: str = "finished", message: str | None = None) -> Outcome:
    raised = kind == "raised"
    return Outcome(
        kind=kind,
        phase="backward" if raised else None,
        type="RuntimeError" if raised else None,
        bases=("Exception",) if raised else (),
        message=message,
        traceback="Traceback" if raised else None,
        detail="",
    )


def observation(seed: int, ended: Outcome) -> Observation:
    raw = digest(tensor(seed))
    return Observation(
        outcome=ended,
        tensors=(
            Tensor(
                role="gradient",
                name="query",
                dtype="float32",
                shape=(16,),
                layout="",
                digest=raw,
                whole=True,
                norm=1.5,
                largest=1.0,
                samples=None,
                sketch=None,
            ),
        ),
        operators={"forward": (Operator(0, 0, "aten::mul", ((16,), ())),)},
        observed=(Observed("calls", 2, "evidence", None),),
        state=(),
        memory=(Memory("forward", 1, 2, 3, None, None, None, None),),
        durations={"forward": 0.25},
        machine=digest(machine()),
        sources=(Source("experiments/scenarios/checkpoint/policy.py", digest(SCENARIO), kept=True),),
    )


def record(
    case: str = "chosen_inside",
    *,
    seed: int = 0,
    kind: str = "finished",
    message: str | None = None,
    started_at: str = "2026-01-02T03:04:05.000000Z",
    observed: bool = True,
    asked: Spec | None = None,
    **changes: Any,
) -> Record:
    """A record of one process; `seed` chooses its tensor."""
    ended = outcome(kind, message)
    return Record(
        spec=asked or spec(case, **changes),
        outcome=ended,
        observation=observation(seed, ended) if observed else None,
        ending=Ending(
            exit_code=0,
            signal=None,
            started_at=started_at,
            duration=1.25,
            stdout=Output(digest(STDOUT), len(STDOUT), len(STDOUT)),
            stderr=Output(digest(STDERR), 0, 0),
            unreadable=None,
        ),
    )


def folder(path: Path, kept: Record, seed: int = 0, *, without: tuple[str, ...] = ()) -> Path:
    """The folder that a run leaves: record.json and blobs."""
    (path / "blobs").mkdir(parents=True)
    (path / "record.json").write_bytes(kept.text().encode())
    for name, content in contents(seed).items():
        if name not in without:
            (path / "blobs" / name).write_bytes(content)
    return path


# Records whose tensors, operators and machine a test chooses.


def facts(host: str = "one", version: str = "2.13.0+cpu", **others: Any) -> dict[str, Any]:
    """Facts of a machine, with the parts that reports and claims look at."""
    return {
        "host": host,
        "cpu": {"model": "a processor", "architecture": "x86_64", "capability": "AVX512", "cores": 8},
        "gpu": None,
        "system": {"name": "Linux", "release": "6.1"},
        "compiler": {"c++": "g++ 12", "triton": None},
        "torch": {"version": version, "build": "built with:\n  - a compiler\n", "parallel": "threads:\n  1\n"},
        **others,
    }


def packed(numbers: Sequence[float], dtype: str = "float32") -> bytes:
    """Raw little-endian elements; bfloat16 keeps the upper half of a float32."""
    if dtype == "bfloat16":
        singles = struct.pack(f"<{len(numbers)}f", *numbers)
        return b"".join(singles[at + 2 : at + 4] for at in range(0, len(singles), 4))
    codes = {"float32": "f", "float64": "d", "float16": "e", "int8": "b", "uint8": "B", "bool": "?", "int64": "q"}
    return struct.pack(f"<{len(numbers)}{codes[dtype]}", *numbers)


class Bench:
    """Makes records and keeps what they rest on."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = contents()
        self.machines: dict[str, dict[str, Any]] = {}

    def keep(self, content: bytes) -> str:
        name = digest(content)
        self.blobs[name] = content
        return name

    def tensor(
        self, role: str, name: str, numbers: Sequence[float], dtype: str = "float32", shape: Sequence[int] | None = None
    ) -> Tensor:
        """A tensor kept whole, one-dimensional unless a shape is given."""
        finite = [abs(float(number)) for number in numbers if math.isfinite(number)]
        return Tensor(
            role=role,
            name=name,
            dtype=dtype,
            shape=tuple(shape) if shape is not None else (len(numbers),),
            layout="",
            digest=self.keep(packed(numbers, dtype)),
            whole=True,
            norm=1.0,
            largest=max(finite, default=0.0),
            samples=None,
            sketch=None,
        )

    def absent(self, role: str, name: str) -> Tensor:
        """An input that got no gradient."""
        return Tensor(
            role=role,
            name=name,
            dtype=None,
            shape=None,
            layout="",
            digest=None,
            whole=False,
            norm=None,
            largest=None,
            samples=None,
            sketch=None,
        )

    def record(
        self, asked: Spec, *tensors: Tensor, ended: Outcome | None = None, machine: Any = None, **seen: Any
    ) -> Record:
        """A record of `asked` that saw these tensors; `seen` replaces fields of the observation."""
        document = facts() if machine is None else machine
        name = self.keep(canonical(document).encode())
        self.machines[name] = document
        ended = ended or outcome()
        base = record(asked=asked)
        assert base.observation is not None
        plain = asked.question.pass_ == "plain"
        fields: dict[str, Any] = {"operators": None if plain else {}, "observed": (), "state": (), **seen}
        return replace(
            base,
            outcome=ended,
            observation=replace(base.observation, outcome=ended, tensors=tensors, machine=name, **fields),
        )

    def replay(self, *made: Record) -> Replay:
        return Replay({one.spec.question.pass_: one for one in made})

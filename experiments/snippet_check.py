"""Runs a case, its reference and the snippet made of it, each in a process of its own, and compares what they did.

The case runs through a worker, as in a sweep; the snippet as the program that it is, under the same limits. Compared
are the outcome (its kind, exception, phase and normalised message), the bits of inputs, outputs and gradients, what was
observed, and the bits of the reference that the snippet prints differences to.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Iterator

from . import launch
from .record import Outcome, Record, Spec
from .snippet_text import Snippet

PROGRAM = "experiments/snippet_run.py"
MODULES = ("__main__.", "scenario_under_test.")
"""What the module of the case is called, in a snippet and in a worker."""
MISTAKES = ("NameError", "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError")
"""How a snippet ends from which something is missing."""
LONGEST = 200
"""Characters of a message that are printed."""


@dataclass(frozen=True)
class Checked:
    """What came of running a snippet beside its case."""

    difference: str
    """What the snippet does otherwise than the case. Empty if nothing."""
    seen: str
    """What it does, in a sentence."""


def check(snippet: Snippet, spec: Spec, reference: Spec | None, root: Path) -> Checked:
    """Run all of them, one after the other. `spec` asks for the case, `reference` for what it is compared with.

    Raises LaunchError if one cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="twofold-snippet-") as name:
        folder = Path(name).resolve()
        case = launch.run(spec, folder / "case", root)
        own = None if reference is None else launch.run(reference, folder / "reference", root)
        pasted = run(snippet, spec, folder / "snippet", root)
    return Checked(next(_differences(case, own, pasted), ""), _seen(case, pasted))


def run(snippet: Snippet, spec: Spec, folder: Path, root: Path) -> Record:
    """The record of the snippet's own process, which is started in the place of the case's worker."""

    def starter(asked: Spec, place: Path) -> launch.Process:
        (place / "snippet.py").write_text(snippet.text, encoding="utf-8", newline="")
        (place / "snippet.json").write_text(json.dumps(asdict(snippet)), encoding="utf-8")
        return launch.fresh(root, PROGRAM)(asked, place)

    running = launch.start(spec, folder, starter)
    while True:
        record = running.poll()
        if record is not None:
            return record
        time.sleep(0.01)


def _differences(case: Record, own: Record | None, pasted: Record) -> Iterator[str]:
    ours, theirs = case.outcome, pasted.outcome
    if (ours.type or "").startswith("experiments."):
        yield f"the case itself ends with {_ended(case)}, which is about the scenario: {_first(ours)}"
    if _varies(case):
        if theirs.type in MISTAKES and ours.type != theirs.type:
            yield f"it ends with {_ended(pasted)}: {_first(theirs)}"
        return
    if _kind(ours) != theirs.kind or _named(ours) != _named(theirs):
        yield f"the case {_ended(case)}, the snippet {_ended(pasted)} ({_first(theirs) or 'without a message'})"
    elif _message(ours) != _message(theirs):
        yield f"the case says {_first(ours)!r}, the snippet {_first(theirs)!r}"
    yield from _other_values(case, pasted)
    if own is not None and ours.kind == "finished":
        yield from _other_reference(own, pasted)


def _other_values(case: Record, pasted: Record) -> Iterator[str]:
    """Tensors and observed values that are not the case's."""
    if _tensors(case, "input") != _tensors(pasted, "input"):
        yield "its inputs are not the case's"
    ours, theirs = ({**_named_tensors(one, "output"), **_named_tensors(one, "gradient")} for one in (case, pasted))
    for key in sorted({**ours, **theirs}):
        whole = case.outcome.kind != "not_observed" or (key in ours and key in theirs)
        if whole and ours.get(key) != theirs.get(key):
            yield f"{key[0]} {key[1]!r} is not bit for bit the case's"
    if case.outcome.kind == "not_observed" or case.observation is None or pasted.observation is None:
        return
    if case.evidence()["observed"] != pasted.evidence()["observed"]:
        yield "it observes other values than the case"


def _other_reference(own: Record, pasted: Record) -> Iterator[str]:
    if own.outcome.kind != "finished":
        yield f"the reference itself {_ended(own)}: {_first(own.outcome)}"
    for role in ("output", "gradient"):
        ours, theirs = _named_tensors(own, role), _named_tensors(pasted, f"reference {role}")
        for key, found in theirs.items():
            expected = ours.get((role, key[1]))
            if expected is not None and expected != found:
                yield f"after the case, {role} {key[1]!r} of the reference is not bit for bit what it is alone"


def _tensors(record: Record, role: str) -> list[list[Any]]:
    """Dtype, shape and digest of its tensors of one role, in their order."""
    if record.observation is None:
        return []
    return [[t.dtype, list(t.shape or ()), t.digest] for t in record.observation.tensors if t.role == role]


def _named_tensors(record: Record, role: str) -> dict[tuple[str, str], list[Any]]:
    if record.observation is None:
        return {}
    found = [tensor for tensor in record.observation.tensors if tensor.role == role]
    return {(role, one.name): [one.dtype, list(one.shape or ()), one.digest] for one in found}


def _varies(record: Record) -> bool:
    return any(expectation["kind"] == "varies" for expectation in record.spec.mark.expectations)


def _kind(outcome: Outcome) -> str:
    """What is not observed has run to its end: only its record lacks something."""
    return "finished" if outcome.kind == "not_observed" else outcome.kind


def _named(outcome: Outcome) -> tuple[str | None, str | None, str]:
    """By what it ended, and where, as far as a process shows it."""
    if outcome.kind == "raised":
        return _in_a_worker(outcome.type or ""), outcome.phase, ""
    return None, None, outcome.detail if outcome.kind == "died" else ""


def _message(outcome: Outcome) -> str:
    return _in_a_worker(outcome.fingerprint() or "")


def _in_a_worker(text: str) -> str:
    return text.replace(*MODULES)


def _first(outcome: Outcome) -> str:
    """The first line of the message, cut. Empty if there is none."""
    return (outcome.message or "").strip().partition("\n")[0][:LONGEST]


def _ended(record: Record) -> str:
    """What the process did, as a verb."""
    outcome = record.outcome
    words = {
        "finished": "finishes",
        "raised": f"raises {_in_a_worker(outcome.type or '').removeprefix(MODULES[1])} in {outcome.phase}",
        "timed_out": f"does not end within {record.spec.setting.timeout:g} seconds",
        "out_of_memory": f"needs more memory than {record.spec.setting.memory} bytes",
        "died": f"dies ({outcome.detail})",
        "not_observed": "finishes",
    }
    return words.get(outcome.kind, outcome.kind)


def _seen(case: Record, pasted: Record) -> str:
    did = _ended(pasted)
    if _varies(case):
        return f"It {did}; the case itself, run before it, {_ended(case)}. Its ending varies from run to run."
    if case.outcome.kind == "not_observed":
        return f"It {did}, as the case itself does, whose record lacks something: {case.outcome.detail}"
    bits = ", with the same bits" if pasted.outcome.kind == "finished" else ""
    return f"It {did}, as the case itself does{bits}."

"""Runs a case, its reference and the snippet made of it, each in a process of its own, and compares what they did.

The case runs through a worker, as in a sweep; the snippet as the program that it is, under the same limits. Compared
are the outcome (its kind, exception, phase and normalised message), the bits of inputs, outputs and gradients, what was
observed, and the bits of the reference that the snippet prints differences to.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core import folders
from ..core.outcome import Outcome
from ..core.record import Record
from ..core.spec import Spec
from ..runner import supervisor
from .text import Snippet

PROGRAM = "experiments/snippet/run.py"
MODULES = ("__main__.", "scenario_under_test.")
"""What the module of the case is called, in a snippet and in a worker."""
MISTAKES = ("NameError", "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError")
"""How a snippet ends from which something is missing."""
MOVES = "Its numbers are others each time, those of the case itself too, so they could not be compared."
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
    with folders.temporary("twofold-snippet-") as made:
        folder = made.resolve()
        case = supervisor.run(spec, folder / "case", root)
        own = None if reference is None else supervisor.run(reference, folder / "reference", root)
        pasted = run(snippet, spec, folder / "snippet", root)
        outcome, values = _other_outcome(case, pasted), _other_values(case, own, pasted)
        if values and not outcome:
            again = [
                supervisor.run(one.spec, folder / f"again-{at}", root) for at, one in enumerate((case, own)) if one
            ]
            if any(map(_moves, (one for one in (case, own) if one), again)):
                return Checked("", f"It {_ended(pasted)}, as the case itself does. {MOVES}")
    return Checked(next(iter([*outcome, *values]), ""), _seen(case, pasted))


def _moves(once: Record, again: Record) -> bool:
    """Whether a process does not even repeat itself."""
    return bool(_other_values(once, None, again))


def run(snippet: Snippet, spec: Spec, folder: Path, root: Path) -> Record:
    """The record of the snippet's own process, which is started in the place of the case's worker."""

    def starter(asked: Spec, place: Path) -> supervisor.Process:
        (place / "snippet.py").write_text(snippet.text, encoding="utf-8", newline="")
        (place / "snippet.json").write_text(json.dumps(asdict(snippet)), encoding="utf-8")
        return supervisor.fresh(root, PROGRAM)(asked, place)

    running = supervisor.start(spec, folder, starter)
    while True:
        record = running.poll()
        if record is not None:
            return record
        time.sleep(0.01)


def _other_outcome(case: Record, pasted: Record) -> list[str]:
    """In what the snippet ends otherwise than the case."""
    ours, theirs = case.outcome, pasted.outcome
    if (ours.type or "").startswith("experiments."):
        return [f"the case itself {_ended(case)}, which is about the scenario: {_first(ours)}"]
    if _varies(case) and theirs.type not in MISTAKES:
        return []
    if _kind(ours) != theirs.kind or _named(ours) != _named(theirs):
        said = _first(theirs) or "without a message"
        return [f"the case {_ended(case)}, the snippet {_ended(pasted)} ({said})"]
    return []


def _other_values(case: Record, own: Record | None, pasted: Record) -> list[str]:
    """Messages, tensors and observed values in which the snippet, or another run of the case, is not the case."""
    if _varies(case):
        return []
    ours, theirs = case.outcome, pasted.outcome
    found = []
    if _message(ours) != _message(theirs):
        found.append(f"the case says {_first(ours)!r}, the snippet {_first(theirs)!r}")
    if _tensors(case, "input") != _tensors(pasted, "input"):
        found.append("its inputs are not the case's")
    found += _other_tensors(case, pasted)
    whole = "not_observed" not in (ours.kind, theirs.kind) and case.observation and pasted.observation
    if whole and case.evidence()["observed"] != pasted.evidence()["observed"]:
        found.append("it observes other values than the case")
    return found + (_other_reference(own, pasted) if own is not None and ours.kind == "finished" else [])


def _other_tensors(case: Record, pasted: Record) -> list[str]:
    ours, theirs = ({**_named_tensors(one, "output"), **_named_tensors(one, "gradient")} for one in (case, pasted))
    # What could not be observed is not there to be compared.
    keys = [key for key in {**ours, **theirs} if case.outcome.kind != "not_observed" or key in ours.keys() & theirs]
    return [f"{key[0]} {key[1]!r} is not bit for bit the case's" for key in keys if ours.get(key) != theirs.get(key)]


def _other_reference(own: Record, pasted: Record) -> list[str]:
    if own.outcome.kind != "finished":
        return [f"the reference itself {_ended(own)}: {_first(own.outcome)}"]
    ours = {**_named_tensors(own, "output"), **_named_tensors(own, "gradient")}
    theirs = {**_named_tensors(pasted, "reference output"), **_named_tensors(pasted, "reference gradient")}
    found = {(role.removeprefix("reference "), name): tensor for (role, name), tensor in theirs.items()}
    return [
        f"after the case, {key[0]} {key[1]!r} of the reference is not bit for bit what it is alone"
        for key, tensor in found.items()
        if ours.get(key, tensor) != tensor
    ]


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

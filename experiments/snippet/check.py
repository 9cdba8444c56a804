"""Run a case, its reference and its snippet, each in its own process, and compare them.

The case runs in a worker, as in a sweep; the snippet runs as a program, under the same limits. Compared are the
outcome (its kind, exception, phase and normalized message), the bits of inputs, outputs and gradients, the observed
values, and the bits of the reference to which the snippet prints differences.
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
"""Prefix of names in the case's module, in a snippet and in a worker."""
MISTAKES = ("NameError", "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError")
"""Exceptions of a snippet from which something is missing."""
MOVES = "Its numbers are others each time, those of the case itself too, so they could not be compared."
LONGEST = 200
"""Longest part of a message that is printed, in characters."""


@dataclass(frozen=True)
class Checked:
    """Result of comparing a snippet with its case."""

    difference: str
    """How the snippet differs from the case. Empty if it does not."""
    seen: str
    """A sentence on what the snippet does."""


def check(snippet: Snippet, spec: Spec, reference: Spec | None, root: Path) -> Checked:
    """Run case, reference and snippet one after another and compare them. `spec` and `reference` run the first two.

    Raises LaunchError if one cannot be started.
    """
    with folders.temporary_folder("twofold-snippet-") as made:
        folder = made.resolve()
        case = supervisor.run(spec, folder / "case", root)
        own = None if reference is None else supervisor.run(reference, folder / "reference", root)
        pasted = run_snippet(snippet, spec, folder / "snippet", root)
        outcome, values = _outcome_differences(case, pasted), _value_differences(case, own, pasted)
        if values and not outcome:
            again = [
                supervisor.run(one.spec, folder / f"again-{at}", root) for at, one in enumerate((case, own)) if one
            ]
            if any(map(_is_unrepeatable, (one for one in (case, own) if one), again)):
                return Checked("", f"It {_ending_text(pasted)}, as the case itself does. {MOVES}")
    return Checked(next(iter([*outcome, *values]), ""), _result_sentence(case, pasted))


def _is_unrepeatable(once: Record, again: Record) -> bool:
    """Whether a second run of the same spec gives other values."""
    return bool(_value_differences(once, None, again))


def run_snippet(snippet: Snippet, spec: Spec, folder: Path, root: Path) -> Record:
    """Run the snippet in place of the case's worker and return its record."""

    def starter(spec: Spec, place: Path) -> supervisor.Process:
        (place / "snippet.py").write_text(snippet.text, encoding="utf-8", newline="")
        (place / "snippet.json").write_text(json.dumps(asdict(snippet)), encoding="utf-8")
        return supervisor.fresh_starter(root, PROGRAM)(spec, place)

    running = supervisor.start(spec, folder, starter)
    while True:
        record = running.poll()
        if record is not None:
            return record
        time.sleep(0.01)


def _outcome_differences(case: Record, pasted: Record) -> list[str]:
    """Return how the snippet's outcome differs from that of the case."""
    ours, theirs = case.outcome, pasted.outcome
    if (ours.type or "").startswith("experiments."):
        return [f"the case itself {_ending_text(case)}, which is about the scenario: {_first_line(ours)}"]
    if _is_expected_to_vary(case) and theirs.type not in MISTAKES:
        return []
    if _ending_kind(ours) != theirs.kind or _ending_key(ours) != _ending_key(theirs):
        said = _first_line(theirs) or "without a message"
        return [f"the case {_ending_text(case)}, the snippet {_ending_text(pasted)} ({said})"]
    return []


def _value_differences(case: Record, own: Record | None, pasted: Record) -> list[str]:
    """Return how messages, tensors and observed values of a snippet, or of another run, differ from the case."""
    if _is_expected_to_vary(case):
        return []
    ours, theirs = case.outcome, pasted.outcome
    found = []
    if _message(ours) != _message(theirs):
        found.append(f"the case says {_first_line(ours)!r}, the snippet {_first_line(theirs)!r}")
    if _tensor_list(case, "input") != _tensor_list(pasted, "input"):
        found.append("its inputs are not the case's")
    found += _tensor_differences(case, pasted)
    whole = "not_observed" not in (ours.kind, theirs.kind) and case.observation and pasted.observation
    if whole and case.evidence()["observed"] != pasted.evidence()["observed"]:
        found.append("it observes other values than the case")
    return found + (_reference_differences(own, pasted) if own is not None and ours.kind == "finished" else [])


def _tensor_differences(case: Record, pasted: Record) -> list[str]:
    ours, theirs = ({**_named_tensors(one, "output"), **_named_tensors(one, "gradient")} for one in (case, pasted))
    # Tensors that could not be observed are not compared.
    keys = [key for key in {**ours, **theirs} if case.outcome.kind != "not_observed" or key in ours.keys() & theirs]
    return [f"{key[0]} {key[1]!r} is not bit for bit the case's" for key in keys if ours.get(key) != theirs.get(key)]


def _reference_differences(own: Record, pasted: Record) -> list[str]:
    if own.outcome.kind != "finished":
        return [f"the reference itself {_ending_text(own)}: {_first_line(own.outcome)}"]
    ours = {**_named_tensors(own, "output"), **_named_tensors(own, "gradient")}
    theirs = {**_named_tensors(pasted, "reference output"), **_named_tensors(pasted, "reference gradient")}
    found = {(role.removeprefix("reference "), name): tensor for (role, name), tensor in theirs.items()}
    return [
        f"after the case, {key[0]} {key[1]!r} of the reference is not bit for bit what it is alone"
        for key, tensor in found.items()
        if ours.get(key, tensor) != tensor
    ]


def _tensor_list(record: Record, role: str) -> list[list[Any]]:
    """Return dtype, shape and digest of the record's tensors with this role, in order."""
    if record.observation is None:
        return []
    return [[t.dtype, list(t.shape or ()), t.digest] for t in record.observation.tensors if t.role == role]


def _named_tensors(record: Record, role: str) -> dict[tuple[str, str], list[Any]]:
    if record.observation is None:
        return {}
    found = [tensor for tensor in record.observation.tensors if tensor.role == role]
    return {(role, one.name): [one.dtype, list(one.shape or ()), one.digest] for one in found}


def _is_expected_to_vary(record: Record) -> bool:
    return any(expectation["kind"] == "varies" for expectation in record.spec.mark.expectations)


def _ending_kind(outcome: Outcome) -> str:
    """Return the kind of outcome to compare: a case that was not observed has finished; its record is incomplete."""
    return "finished" if outcome.kind == "not_observed" else outcome.kind


def _ending_key(outcome: Outcome) -> tuple[str | None, str | None, str]:
    """Return the exception and phase, or the detail of a death, as far as every process shows them."""
    if outcome.kind == "raised":
        return _replace_module(outcome.type or ""), outcome.phase, ""
    return None, None, outcome.detail if outcome.kind == "died" else ""


def _message(outcome: Outcome) -> str:
    return _replace_module(outcome.fingerprint() or "")


def _replace_module(text: str) -> str:
    return text.replace(*MODULES)


def _first_line(outcome: Outcome) -> str:
    """Return the first line of the message, truncated. Empty if there is none."""
    return (outcome.message or "").strip().partition("\n")[0][:LONGEST]


def _ending_text(record: Record) -> str:
    """Return what the process did, as a verb phrase."""
    outcome = record.outcome
    words = {
        "finished": "finishes",
        "raised": f"raises {_replace_module(outcome.type or '').removeprefix(MODULES[1])} in {outcome.phase}",
        "timed_out": f"does not end within {record.spec.setting.timeout:g} seconds",
        "out_of_memory": f"needs more memory than {record.spec.setting.memory} bytes",
        "died": f"dies ({outcome.detail})",
        "not_observed": "finishes",
    }
    return words.get(outcome.kind, outcome.kind)


def _result_sentence(case: Record, pasted: Record) -> str:
    did = _ending_text(pasted)
    if _is_expected_to_vary(case):
        return f"It {did}; the case itself, run before it, {_ending_text(case)}. Its ending varies from run to run."
    if case.outcome.kind == "not_observed":
        return f"It {did}, as the case itself does, whose record lacks something: {case.outcome.detail}"
    bits = ", with the same bits" if pasted.outcome.kind == "finished" else ""
    return f"It {did}, as the case itself does{bits}."

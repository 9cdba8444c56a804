"""Outcomes of single runs that the two notes published, as settings that are reported, not replayed.

Only outcomes were published, so only outcomes are compared. What is known of the notes is in `notes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from experiments.core.record import Record
from experiments.core.replay import Replay
from reports.claims import notes

SAME = "same outcome"
OTHER = "different outcome"
NOT_RUN = "not run here"


@dataclass(frozen=True)
class Told:
    """One outcome that a note reports."""

    claim: str
    scenario: str
    case: str
    kind: str
    """An ending, as in a record."""
    error: str
    """Bare name of the exception. Empty if none was raised."""
    text: str
    """What the note says about it, in our words."""
    where: tuple[tuple[str, str], ...] = ()
    """Parameters that a replay must have."""


@dataclass(frozen=True)
class Reported:
    """The setting of a note."""

    name: str
    facts: str
    told: tuple[Told, ...]


_POLICY = "checkpoint/attention_policy_ends_before_recomputation"
_REFUSED = "attention/dense_fallback_is_refused"
_MEMORY = "attention/dense_fallback_memory"
_WAYS = "compile/ways_out_that_were_weighed"
_INSIDE = "attention_inside_the_checkpoint"
_NON_REENTRANT = (("checkpoint_kind", "non-reentrant"),)
_REENTRANT = (("checkpoint_kind", "reentrant"),)
_RACE = "compile/two_threads_train_compiled_replicas"


def _finished_outcome(claim: str, scenario: str, case: str, text: str) -> Told:
    return Told(claim, scenario, case, "finished", "", text)


CHECKPOINT_NOTE = Reported(
    "checkpoint-attention-note",
    notes.CHECKPOINT_NOTE.setting,
    (
        Told("A1", _POLICY, "chosen_around_the_forward", "raised", "CheckpointError", "backward raises"),
        _finished_outcome("A3", _POLICY, "chosen_around_forward_and_backward", "passes"),
        _finished_outcome("A4", _POLICY, "chosen_for_both_runs", "passes"),
        _finished_outcome("A5", _POLICY, "chosen_inside_the_function", "passes"),
        _finished_outcome("A6", _POLICY, "default_throughout", "passes"),
        Told("A11", _POLICY, "one_context_given_twice", "raised", "", "contexts must be fresh"),
    ),
)

COMPILE_NOTE = Reported(
    "compile-checkpoint-note",
    notes.COMPILE_NOTE.setting,
    (
        Told("B2", _REFUSED, "uncompiled", "raised", "", "the allocation of all scores failed"),
        _finished_outcome("B4", _MEMORY, "compiled", "block sparsity is used"),
        Told("B5", _WAYS, _INSIDE, "raised", "RuntimeError", "an FX trace was detected", _NON_REENTRANT),
        Told("B15", _WAYS, _INSIDE, "finished", "", "reentrant checkpoint was said to work", _REENTRANT),
        Told("B8", _RACE, "trained_from_cold", "raised", "RuntimeError", "failed with one more thread"),
    ),
)

REPORTED = (CHECKPOINT_NOTE, COMPILE_NOTE)


def compare_outcome(told: Told, replays: Sequence[Replay]) -> tuple[str, str]:
    """Return whether the case ends here as reported, and how it ends here."""
    found = [replay.plain for replay in replays if _is_reported_case(told, replay) and replay.plain is not None]
    ran = [record for record in found if record.outcome.kind != "not_run"]
    if not ran:
        return NOT_RUN, "not run"
    same = [
        record.outcome.kind == told.kind
        and (not told.error or told.error in ((record.outcome.type or "").rpartition(".")[2], *_base_names(record)))
        for record in ran
    ]
    endings = sorted({_ending(record) for record in ran})
    word = SAME if all(same) else OTHER if not any(same) else f"{SAME} in {sum(same)} of {len(same)}"
    return word, ", ".join(endings)


def _is_reported_case(told: Told, replay: Replay) -> bool:
    question = replay.spec.question
    has_parameters = all(question.parameters.get(name) == value for name, value in told.where)
    return has_parameters and (question.scenario, question.case) == (told.scenario, told.case)


def _base_names(record: Record) -> list[str]:
    return [name.rpartition(".")[2] for name in record.outcome.bases]


def _ending(record: Record) -> str:
    outcome = record.outcome
    return (outcome.type or "").rpartition(".")[2] if outcome.kind == "raised" else outcome.kind

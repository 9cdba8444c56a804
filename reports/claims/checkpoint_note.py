"""The claims of the checkpoint attention note, decided from replays of its own scenario. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Iterator, Sequence

from experiments.core.quantities import format_significant
from experiments.core.record import Record
from experiments.core.replay import Replay
from experiments.core.rounding import read_ruler
from experiments.core.tensor_diff import Difference, differences
from experiments.core.tensor_values import Fetch
from experiments.core.verdict import CANNOT_DECIDE, NOT_TESTED, SUPPORTED, Context, Ruling
from experiments.scenario import agrees
from reports.claims.amounts import observed_value
from reports.claims.claim import Advice, Claim, Decide, Statement, decide_in_each_setting, rule, statement_for
from reports.claims.findings import (
    Cases,
    Evidence,
    Finding,
    Look,
    Unit,
    expectation_test,
    has_run,
    plain_pass_test,
    record_digest,
    settings,
)
from reports.claims.notes import CHECKPOINT_NOTE

NOTE = "checkpoint/attention_policy_ends_before_recomputation"
SILENT = "checkpoint/attention_policy_changes_silently_when_reentrant"
MATH = "aten::_scaled_dot_product_attention_math"
FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
REPAIRS = ("chosen_around_forward_and_backward", "chosen_for_both_runs", "chosen_inside_the_function")
BROKEN = "chosen_around_the_forward"
COMPARED = (("output", "attended"), *(("gradient", name) for name in ("query", "key", "value")))


def _cases(*names: str, device: str = "") -> Cases:
    return Cases(NOTE, names, device=device)


# A1, A2: what the note observed.


def _is_checkpoint_error(record: Record) -> bool:
    outcome = record.outcome
    return (
        (outcome.kind, outcome.phase, outcome.type) == ("raised", "backward", "torch.utils.checkpoint.CheckpointError")
    ) and "different metadata" in (outcome.message or "")


def _decide_error(evidence: Evidence) -> Ruling:
    found = evidence.find(_cases(BROKEN), plain_pass_test(_is_checkpoint_error))
    return rule(
        statement_for(
            found,
            "backward raises CheckpointError, different metadata",
            "backward does not raise CheckpointError with different metadata",
        )
    )


_SAVED = re.compile(
    r"saved metadata: .*?torch\.Size\((\[[\d, ]*\])\).*\nrecomputed metadata: .*?torch\.Size\((\[[\d, ]*\])\)"
)


def _has_reported_shapes(record: Record) -> bool:
    return ("[2, 4, 8]", "[1, 2, 8, 4]") in _SAVED.findall(record.outcome.message or "")


def _decide_shapes(evidence: Evidence) -> Ruling:
    found = evidence.find(_cases(BROKEN), plain_pass_test(_has_reported_shapes))
    return rule(
        statement_for(
            found,
            "the message names a tensor saved as [2, 4, 8] and recomputed as [1, 2, 8, 4]",
            "no message names a tensor saved as [2, 4, 8] and recomputed as [1, 2, 8, 4]",
        )
    )


# A3 to A7: the repairs.


def gradients(record: Record) -> set[str]:
    """Return the names of the inputs that got a gradient."""
    seen = record.observation
    return {tensor.name for tensor in (seen.tensors if seen else ()) if tensor.role == "gradient" and tensor.digest}


def _pass_decision(case: str) -> Decide:
    def decide(evidence: Evidence) -> Ruling:
        test = plain_pass_test(lambda record: record.outcome.kind == "finished" and bool(gradients(record)))
        found = evidence.find(_cases(case), test)
        return rule(statement_for(found, "it finishes with gradients", "it does not finish with gradients"))

    return decide


def _decide_default_policy(evidence: Evidence) -> Ruling:
    found = evidence.find(_cases("default_throughout"), expectation_test(agrees(bitwise=True)))
    return rule(
        statement_for(
            found,
            "it finishes with the bits of the uncheckpointed default-policy reference",
            "it has not the bits of the uncheckpointed default-policy reference",
        )
    )


def _has_all_bits(replay: Replay, context: Context) -> Look | None:
    """Test whether output and all three gradients are present and have the bits of the reference."""
    look = expectation_test(agrees(bitwise=True))(replay, context)
    if look is None or look.holds is not True or replay.plain is None:
        return look
    seen = replay.plain.observation
    tensors = {(tensor.role, tensor.name) for tensor in (seen.tensors if seen else ()) if tensor.digest}
    return Look(set(COMPARED) <= tensors, look.records)


def _decide_exact_repairs(evidence: Evidence) -> Ruling:
    def exact_statement(claim: str, case: str) -> Statement:
        found = evidence.find(_cases(case), _has_all_bits)
        same = f"{claim}: output and all three gradients have the reference's bits, so differ by exactly 0"
        return statement_for(found, same, f"{claim}: output or a gradient is missing or has not the reference's bits")

    return rule(*(exact_statement(claim, case) for claim, case in zip(("A3", "A4", "A5"), REPAIRS)))


# A8: operators.


def operators(record: Record, phase: str) -> set[str] | None:
    """Return the names of the operators of a phase. None if they were not recorded."""
    seen = record.observation.operators if record.observation else None
    return None if seen is None or phase not in seen else {operator.name for operator in seen[phase]}


def _has_both_operators(replay: Replay, _: Context) -> Look | None:
    record = replay.records.get("profiled")
    if record is None or not has_run(record):
        return None
    forward, again = operators(record, "forward"), operators(record, "recomputation")
    if forward is None or again is None:
        return Look(None, (record,), "its operators were not seen")
    return Look(MATH in forward and FLASH in again, (record,))


def _decide_operators(evidence: Evidence) -> Ruling:
    found = evidence.find(_cases(BROKEN, device="cpu"), _has_both_operators)
    where = f"{MATH} in the forward pass and {FLASH} in the recomputation, in a pass of its own"
    return rule(statement_for(found, f"it shows {where}", f"it does not show {where}"))


# A9: fresh processes.


def _decide_exact_agreement(evidence: Evidence) -> Ruling:
    groups: dict[str, list[Replay]] = {}
    for replay, _ in evidence.replays_of(_cases(BROKEN, *REPAIRS)):
        if replay.spec.setting.isolation == "fresh" and has_run(replay.plain):
            groups.setdefault(replay.spec.question.case_digest(), []).append(replay)
    units = [
        Unit(tuple(listed), _compare_evidence(listed)) for listed in groups.values() if _has_enough_processes(listed)
    ]
    three = "three or more fresh processes of a case, one from copied sources with the originals' digests,"
    found = Finding(f"{NOTE} in {three.rstrip(',')}", tuple(units))
    return rule(
        statement_for(found, f"{three} have equal evidence digests", f"{three} have not all equal evidence digests")
    )


def _has_enough_processes(listed: Sequence[Replay]) -> bool:
    first = next((one for one in listed if one.spec.setting.sources == "original"), None)
    copies = [one for one in listed if one.spec.setting.sources == "copied"]
    return len(listed) >= 3 and first is not None and any(one.sources == first.sources != {} for one in copies)


def _compare_evidence(listed: Sequence[Replay]) -> Look:
    records = tuple(record for replay in listed for _, record in sorted(replay.records.items()))
    return Look(len({replay.evidence_digest() for replay in listed}) == 1, records)


# A10: explicit, not silent.


def _is_explicit(record: Record) -> bool:
    return record.outcome.kind == "raised"


def _decide_explicit_error(evidence: Evidence) -> Ruling:
    found = evidence.find(_cases(BROKEN), plain_pass_test(_is_explicit))
    silent = evidence.find(Cases(SILENT, (BROKEN,)), _is_within_rounding)
    statements = [statement_for(found, "an exception", "no exception")]
    if silent.units:
        changed = "; ".join(_largest_silent_differences(silent, evidence))
        quiet = "beside it, with use_reentrant=True the same change of policy is silent, and it is"
        statements.append(
            statement_for(
                silent,
                f"{quiet} a change of policy within rounding, not corruption: {changed}",
                f"{quiet} more than rounding: {changed}",
            )
        )
    return rule(*statements)


def _is_within_rounding(replay: Replay, context: Context) -> Look | None:
    """Test whether the gradients are right within rounding.

    The float64 reference is always cited, as the figures depend on it even where the bits agree.
    """
    look = expectation_test(agrees(within_rounding=True))(replay, context)
    ruler = context.float64.plain if context.float64 else None
    if look is None or ruler is None or any(one is ruler for one in look.records):
        return look
    return Look(look.holds, (*look.records, ruler), look.why)


def _largest_silent_differences(found: Finding, evidence: Evidence) -> list[str]:
    """Describe, for each dtype and size, the gradient that is farthest from MATH's."""
    context_of = {id(replay): context for replay, context in zip(evidence.replays, evidence.contexts)}
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for replay in found.replays:
        question = replay.spec.question
        for far, text in _gradient_distances(replay, context_of[id(replay)], evidence.fetch):
            key = (question.dtype, str(question.parameters.get("size")))
            worst[key] = max(worst.get(key, (far, text)), (far, text), key=lambda one: one[0])
    return [f"{dtype}, {size}: {text}" for (dtype, size), (_, text) in sorted(worst.items())]


def _gradient_distances(replay: Replay, context: Context, fetch: Fetch) -> list[tuple[float, str]]:
    """Return how far each gradient is from MATH's, as a number and in words.

    The words state its error against float64, MATH's error, and what rounding allows as well.
    """
    reference, exact = (one.plain if one else None for one in (context.reference, context.float64))
    if replay.plain is None or reference is None or exact is None:
        return []
    from_math = _gradient_differences(replay.plain, reference, fetch)
    own, theirs = _gradient_differences(replay.plain, exact, fetch), _gradient_differences(reference, exact, fetch)
    allowed = read_ruler(reference, exact, fetch).allowed
    return [
        (
            item.absolute,
            f"the gradient of {name} differs most from MATH's, by up to {format_significant(item.absolute)} "
            f"(against float64 it errs by {format_significant(own[name].absolute)}, "
            f"MATH's by {format_significant(theirs[name].absolute)}; rounding "
            f"allows {format_significant(allowed['gradient', name].total)}){item.sampled}",
        )
        for name, item in from_math.items()
        if name in own and name in theirs and ("gradient", name) in allowed
    ]


def _gradient_differences(ours: Record, theirs: Record, fetch: Fetch) -> dict[str, Difference]:
    return {item.name: item for item in differences(ours, theirs, fetch) if item.role == "gradient"}


# A11 to A13.


def _decide_fresh_contexts(evidence: Evidence) -> Ruling:
    is_refused = plain_pass_test(lambda record: record.outcome.type == "AttributeError")
    found = evidence.find(_cases("one_context_given_twice"), is_refused)
    twice = "one sdpa_kernel object given for both runs"
    return rule(
        statement_for(found, f"{twice} raises AttributeError", f"{twice} does not raise AttributeError"),
    )


def _has_warning(record: Record) -> bool | None:
    """Return whether the installed docstring warns of an error and of wrong gradients. None if it was not read."""
    seen = record.observation.observed if record.observation else ()
    found = [one.value for one in seen if one.name.startswith("warns")]
    return all(value is True for value in found) if found else None


def _decide_documentation(evidence: Evidence) -> Ruling:
    found = evidence.find(_cases("documented"), plain_pass_test(_has_warning, "the docstring was not read"))
    quoted = sorted({str(observed_value(replay.plain, "sha256 of the docstring"))[:12] for replay in found.replays})
    text = f"docs.pytorch.org/docs/stable/checkpoint.html; the installed docstring (SHA-256 {', '.join(quoted)})"
    return rule(
        statement_for(
            found,
            f"{text} warns of an error and of wrong gradients",
            f"{text} does not warn of both an error and wrong gradients",
        )
    )


def _decide_other_platforms(evidence: Evidence) -> Ruling:
    """Decide that others *may* differ: one that does shows it, and no number of agreeing settings refutes it."""
    found = list(_dispatches(evidence))
    if not found:
        return Ruling(NOT_TESTED, f"not run here: {_cases(BROKEN).name}", ())
    cited = tuple(sorted({record_digest(one.record) for one in found}))
    where = len({one.setting for one in found})
    records = f"{len(cited)} records of {where} {'setting' if where == 1 else 'settings'}"
    kinds = [Counter(one.kind for one in found if one.pass_ == name) for name in ("plain", "profiled")]
    summary = "; ".join(f"{text} ({number})" for kind in kinds for text, number in sorted(kind.items()))
    if any(len(kind) > 1 for kind in kinds):
        return Ruling(SUPPORTED, f"{records} differ: {summary}", cited)
    reason = f"{records} agree: {summary}. That others may differ cannot be shown by those that agree"
    return Ruling(CANNOT_DECIDE, reason, cited)


@dataclass(frozen=True)
class _Dispatched:
    """How the note's case was dispatched, as one record shows it."""

    setting: str
    pass_: str
    kind: str
    record: Record


def _dispatches(evidence: Evidence) -> Iterator[_Dispatched]:
    """Yield how the note's case ended and which attention ran in it, here and under every other setting."""
    own = settings(evidence.replays, evidence.machines)
    named = [(repr(setting), replay) for setting, replay in zip(own, evidence.replays)]
    named += [(name, replay) for name, listed in evidence.elsewhere.items() for replay in listed]
    for name, replay in named:
        if not _cases(BROKEN).has_replay(replay):
            continue
        for pass_, told in (("plain", _ending), ("profiled", _attention_operators)):
            record = replay.records.get(pass_)
            if record is not None and has_run(record):
                yield _Dispatched(name, pass_, told(record), record)


def _ending(record: Record) -> str:
    outcome = record.outcome
    if outcome.kind != "raised":
        return outcome.kind
    return f"{(outcome.type or '').rpartition('.')[2]} in {outcome.phase}"


def _attention_operators(record: Record) -> str:
    """Return the attention operators of forward and recomputation."""
    phases = [operators(record, phase) for phase in ("forward", "recomputation")]
    named = [sorted(name for name in one or () if "::_scaled_dot_product" in name) for one in phases]
    return " then ".join(", ".join(one) or "none" for one in named)


# Advice.


def _bits_decision(case: str) -> Decide:
    def decide(evidence: Evidence) -> Ruling:
        found = evidence.find(_cases(case), expectation_test(agrees(bitwise=True)))
        bits = "the bits of the uncheckpointed MATH reference"
        return rule(statement_for(found, f"output and gradients have {bits}", f"output or a gradient has not {bits}"))

    return decide


def _claim(id_: str, text: str, decide: Decide, *, together: bool = False) -> Claim:
    return Claim(id_, CHECKPOINT_NOTE, text, decide if together else decide_in_each_setting(decide))


CLAIMS = (
    _claim(
        "A1",
        "A MATH scope around the checkpointed forward only: backward raises CheckpointError, different metadata.",
        _decide_error,
    ),
    _claim("A2", "One of the reported shapes changes from [2, 4, 8] to [1, 2, 8, 4].", _decide_shapes),
    _claim("A3", "A MATH scope around forward and backward passes.", _pass_decision(REPAIRS[0])),
    _claim("A4", "A pair of fresh MATH contexts through context_fn passes.", _pass_decision(REPAIRS[1])),
    _claim("A5", "A fresh MATH context entered inside the function at each call passes.", _pass_decision(REPAIRS[2])),
    _claim(
        "A6", "The default policy throughout passes against its own default-policy reference.", _decide_default_policy
    ),
    _claim(
        "A7",
        "Against an uncheckpointed MATH reference, output and gradients of the repairs A3 to A5 differ by exactly 0.",
        _decide_exact_repairs,
    ),
    _claim(
        "A8",
        "An operator trace of A1, taken separately, shows MATH and a CPU flash-attention operator.",
        _decide_operators,
    ),
    _claim(
        "A9",
        "Three saved fresh-process records, one of them a replay from copied sources, agree exactly.",
        _decide_exact_agreement,
    ),
    _claim("A10", "The fault is an explicit exception, not silent gradient corruption.", _decide_explicit_error),
    _claim("A11", "Contexts must be fresh: one per run.", _decide_fresh_contexts),
    _claim(
        "A12",
        "PyTorch's documentation warns that a function that behaves differently when recomputed gives errors or "
        "wrong gradients.",
        _decide_documentation,
    ),
    _claim(
        "A13",
        "Other versions, platforms and backends may dispatch differently and need not reproduce this.",
        _decide_other_platforms,
        together=True,
    ),
)

_INSTEAD: tuple[tuple[str, str], ...] = (
    ("Enter the policy inside the checkpointed function, at each call.", REPAIRS[2]),
    ("Or give checkpoint a pair of fresh contexts through context_fn.", REPAIRS[1]),
    ("Or keep the policy until the gradients are there.", REPAIRS[0]),
)

ADVICE = tuple(
    Advice(f"A-{number}", CHECKPOINT_NOTE, text, decide_in_each_setting(_bits_decision(case)))
    for number, (text, case) in enumerate(_INSTEAD, 1)
)

"""The claims of the checkpoint attention note, decided from replays of its own scenario. Pure."""

from __future__ import annotations

import re
from typing import Callable, Iterator, Sequence

from experiments.agreement import Fetch, differences, rank
from experiments.record import Record, Replay, machine_identity
from experiments.verdict import AS_EXPECTED, NOT_AS_EXPECTED, SUPPORTED, SUPPORTED_IN_PART, Context, Ruling, judge
from reports.rulings import Advice, Claim, Evidence, digests, has_gradients, operators, plain, references, ruling, share

NOTE = "checkpoint/attention_policy_ends_before_recomputation"
SILENT = "checkpoint/attention_policy_changes_silently_when_reentrant"
MATH = "aten::_scaled_dot_product_attention_math"
FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
REPAIRS = ("chosen_around_forward_and_backward", "chosen_for_both_runs", "chosen_inside_the_function")
BROKEN = "chosen_around_the_forward"


def _raises(evidence: Evidence) -> Ruling:
    found = evidence.of(NOTE, BROKEN)
    holds = [
        record.outcome.kind == "raised"
        and record.outcome.phase == "backward"
        and record.outcome.type == "torch.utils.checkpoint.CheckpointError"
        and "different metadata" in (record.outcome.message or "")
        for record in plain(found)
    ]
    return ruling(holds, f"CheckpointError, different metadata, in backward: {share(holds)}", digests(found))


_SAVED = re.compile(
    r"saved metadata: .*?torch\.Size\((\[[\d, ]*\])\).*\nrecomputed metadata: .*?torch\.Size\((\[[\d, ]*\])\)"
)


def _shapes(evidence: Evidence) -> Ruling:
    found = evidence.of(NOTE, BROKEN)
    pairs = [_SAVED.findall(record.outcome.message or "") for record in plain(found)]
    holds = [("[2, 4, 8]", "[1, 2, 8, 4]") in listed for listed in pairs]
    return ruling(
        holds,
        f"the message names a tensor saved as [2, 4, 8] and recomputed as [1, 2, 8, 4]: {share(holds)}",
        digests(found),
    )


def _passes(case: str) -> Callable[[Evidence], Ruling]:
    def decide(evidence: Evidence) -> Ruling:
        found = evidence.of(NOTE, case)
        holds = [record.outcome.kind == "finished" and has_gradients(record) for record in plain(found)]
        return ruling(holds, f"finished with gradients: {share(holds)}", digests(found))

    return decide


def _default_passes(evidence: Evidence) -> Ruling:
    found = evidence.of(NOTE, "default_throughout")
    holds = [judge(replay, context).word == AS_EXPECTED for replay, context in found]
    return ruling(
        holds,
        f"finished with the bits of the uncheckpointed default-policy reference: {share(holds)}",
        [*digests(found), *references(found)],
    )


def _exact_repairs(evidence: Evidence) -> Ruling:
    found = evidence.of(NOTE, *REPAIRS)
    holds = [_no_difference(replay, context, evidence.fetch) for replay, context in found]
    reason = f"output and all three gradients have the reference's bits, so differ by exactly 0: {share(holds)}"
    lacking = sorted(set(REPAIRS) - {replay.spec.question.case for replay, _ in found})
    if found and lacking:
        holds, reason = [*holds, False], f"{reason}; not run: {', '.join(lacking)}"
    return ruling(holds, reason, [*digests(found), *references(found)])


def _no_difference(replay: Replay, context: Context, fetch: Fetch) -> bool:
    if context.reference is None or context.reference.plain is None or replay.plain is None:
        return False
    compared = {(d.role, d.name): d for d in differences(replay.plain, context.reference.plain, fetch)}
    wanted = [("output", "attended"), *(("gradient", name) for name in ("query", "key", "value"))]
    return all(name in compared and compared[name].same_bits for name in wanted)


def _operators(evidence: Evidence) -> Ruling:
    found = [(replay, context) for replay, context in evidence.of(NOTE, BROKEN) if replay.spec.question.device == "cpu"]
    holds = [
        MATH in operators(replay, "forward") and FLASH in operators(replay, "recomputation")
        for replay, _ in found
        if "profiled" in replay.records
    ]
    reason = f"{MATH} in the forward pass and {FLASH} in the recomputation, seen in passes of their own: {share(holds)}"
    return ruling(holds, reason, digests(found, "profiled"))


def _three_agree(evidence: Evidence) -> Ruling:
    found = [pair for pair in evidence.of(NOTE, BROKEN, *REPAIRS) if pair[0].spec.setting.isolation == "fresh"]
    groups: dict[tuple[str, str], list[Replay]] = {}
    for replay, _ in found:
        groups.setdefault((replay.spec.question.case_digest(), replay.machine), []).append(replay)
    whole = [
        group for group in groups.values() if len(group) >= 3 and any(_is_copy(group[0], one) for one in group[1:])
    ]
    holds = [all(rank(group[0], other, evidence.fetch).rank == 1 for other in group[1:]) for group in whole]
    reason = (
        f"{sum(holds)} of {len(holds)} cases: three or more fresh processes, one from copied sources with the "
        "originals' digests, have equal evidence digests"
    )
    return ruling(holds, reason, digests(found))


def _is_copy(first: Replay, other: Replay) -> bool:
    return other.spec.setting.sources == "copied" and first.sources == other.sources != {}


def _explicit(evidence: Evidence) -> Ruling:
    found = evidence.of(NOTE, BROKEN)
    holds = [record.outcome.kind == "raised" and not has_gradients(record) for record in plain(found)]
    beside_it = [(pair, judge(*pair)) for pair in evidence.of(SILENT, BROKEN)]
    silent = [pair for pair, verdict in beside_it if verdict.word == AS_EXPECTED]
    corrupt = [(pair, verdict) for pair, verdict in beside_it if verdict.word == NOT_AS_EXPECTED]
    reason = f"an exception, and no gradient is left behind: {share(holds)}"
    beside = "; ".join(_silently(silent, evidence.fetch))
    if beside:
        reason += (
            ". Beside it: with use_reentrant=True the same change of policy is silent. It is a change of policy "
            f"within rounding, not corruption: {beside}"
        )
    if corrupt and holds:
        holds = [*holds, False]
        reason += f". Not so with use_reentrant=True: {'; '.join(corrupt[0][1].reasons)}"
    return ruling(holds, reason, [*digests(found), *digests(silent), *digests([pair for pair, _ in corrupt])])


def _silently(found: Sequence[tuple[Replay, Context]], fetch: Fetch) -> Iterator[str]:
    """For each dtype and size: how far the silent gradients are from MATH, and each from float64."""
    seen: set[str] = set()
    for replay, context in found:
        record, question = replay.plain, replay.spec.question
        reference, exact = (one.plain if one else None for one in (context.reference, context.float64))
        if record is None or reference is None or exact is None or question.label() in seen:
            continue
        seen.add(question.label())
        pairs = ((record, reference), (record, exact), (reference, exact))
        found_in = [d for d in differences(record, reference, fetch) if d.role == "gradient"]
        sizes = [_largest(a, b, fetch) for a, b in pairs]
        sampled = next((d.sampled for d in found_in if d.sampled), "")
        where = f"{question.dtype}, {question.parameters.get('size')}"
        yield (
            f"{where}: gradients differ from MATH by up to {sizes[0]:.2g} "
            f"(own float64 error {sizes[1]:.2g}, MATH's {sizes[2]:.2g}){sampled}"
        )


def _largest(ours: Record, theirs: Record, fetch: Fetch) -> float:
    return max((d.absolute for d in differences(ours, theirs, fetch) if d.role == "gradient"), default=0.0)


def _fresh(evidence: Evidence) -> Ruling:
    found = evidence.of(NOTE, "one_context_given_twice")
    holds = [record.outcome.type == "AttributeError" for record in plain(found)]
    return ruling(
        holds, f"one sdpa_kernel object given for both runs raises AttributeError: {share(holds)}", digests(found)
    )


def _documented(evidence: Evidence) -> Ruling:
    found = evidence.of(NOTE, "documented")
    told = [{o.name: o.value for o in record.observation.observed} for record in plain(found) if record.observation]
    warned = [[value for name, value in one.items() if name.startswith("warns")] for one in told]
    holds = [bool(values) and all(value is True for value in values) for values in warned]
    quoted = sorted({str(one.get("sha256 of the docstring"))[:12] for one in told})
    reason = (
        f"docs.pytorch.org/docs/stable/checkpoint.html; the installed docstring (SHA-256 {', '.join(quoted)}) "
        f"warns of an error and of wrong gradients: {share(holds)}"
    )
    return ruling(holds, reason, digests(found))


def _elsewhere(evidence: Evidence) -> Ruling:
    """That others *may* differ: no number of agreeing machines shows it, and one that differs does."""
    found = evidence.of(NOTE, BROKEN)
    if not found:
        return ruling([], "", [])
    kinds = {replay.plain.evidence_digest() for replay, _ in found if replay.plain}
    machines = {machine_identity(evidence.machines[r.machine]) for r, _ in found if r.machine in evidence.machines}
    versions = sorted(
        {str(evidence.machines[r.machine]["torch"]["version"]) for r, _ in found if r.machine in evidence.machines}
    )
    there = f"{len(machines)} {'machine' if len(machines) == 1 else 'machines'}, torch {', '.join(versions)}"
    if len(kinds) > 1:
        return Ruling(SUPPORTED, f"{len(kinds)} different outcomes among {there}", tuple(digests(found)))
    reason = f"all {len(found)} replays here agree ({there}); that others may differ is not shown by these"
    return Ruling(SUPPORTED_IN_PART, reason, tuple(digests(found)))


_SOURCE = "checkpoint attention note"

CLAIMS = (
    Claim(
        "A1",
        _SOURCE,
        "A MATH scope around the checkpointed forward only: backward raises CheckpointError, different metadata.",
        _raises,
    ),
    Claim("A2", _SOURCE, "One of the reported shapes changes from [2, 4, 8] to [1, 2, 8, 4].", _shapes),
    Claim("A3", _SOURCE, "A MATH scope around forward and backward passes.", _passes(REPAIRS[0])),
    Claim("A4", _SOURCE, "A pair of fresh MATH contexts through context_fn passes.", _passes(REPAIRS[1])),
    Claim("A5", _SOURCE, "A fresh MATH context entered inside the function at each call passes.", _passes(REPAIRS[2])),
    Claim(
        "A6", _SOURCE, "The default policy throughout passes against its own default-policy reference.", _default_passes
    ),
    Claim(
        "A7",
        _SOURCE,
        "Against an uncheckpointed MATH reference, output and gradients of the repairs A3 to A5 differ by exactly 0.",
        _exact_repairs,
    ),
    Claim(
        "A8",
        _SOURCE,
        "An operator trace of A1, taken separately, shows MATH and a CPU flash-attention operator.",
        _operators,
    ),
    Claim(
        "A9",
        _SOURCE,
        "Three saved fresh-process records, one of them a replay from copied sources, agree exactly.",
        _three_agree,
    ),
    Claim("A10", _SOURCE, "The fault is an explicit exception, not silent gradient corruption.", _explicit),
    Claim("A11", _SOURCE, "Contexts must be fresh: one per run.", _fresh),
    Claim(
        "A12",
        _SOURCE,
        "PyTorch's documentation warns that a function that behaves differently when recomputed gives errors or "
        "wrong gradients.",
        _documented,
    ),
    Claim(
        "A13",
        _SOURCE,
        "Other versions, platforms and backends may dispatch differently and need not reproduce this.",
        _elsewhere,
    ),
)

ADVICE = (
    Advice(_SOURCE, "Enter the policy inside the checkpointed function, at each call.", NOTE, (REPAIRS[2],)),
    Advice(_SOURCE, "Or give checkpoint a pair of fresh contexts through context_fn.", NOTE, (REPAIRS[1],)),
    Advice(_SOURCE, "Or keep the policy until the gradients are there.", NOTE, (REPAIRS[0],)),
)

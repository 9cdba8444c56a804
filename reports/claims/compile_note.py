"""The claims of the DFlash compile-checkpoint note, decided from replays of scenarios written for them. Pure."""

from __future__ import annotations

import re
from typing import Any, Sequence

from experiments.analysis.series import Fit, fit_power_law
from experiments.core.quantities import format_significant
from experiments.core.record import Record
from experiments.core.replay import Replay
from experiments.core.verdict import NOT_TESTED, Context, Ruling
from experiments.scenario import agrees, differs
from reports.claims import amounts
from reports.claims.amounts import (
    figure,
    held_bytes,
    in_mebibytes,
    observed_number,
    observed_value,
    peak_bytes,
    peak_in_outputs,
    peak_in_scores,
    whole_peak,
)
from reports.claims.claim import (
    Advice,
    Claim,
    Decide,
    Statement,
    decide_in_each_setting,
    remark,
    requirement,
    rule,
    rule_any,
    statement_against,
    statement_for,
)
from reports.claims.findings import (
    Cases,
    Evidence,
    Finding,
    Look,
    Test,
    expectation_test,
    plain_pass_test,
    scenario_test,
)
from reports.claims.notes import COMPILE_NOTE
from reports.markdown.elements import count

MEMORY = "attention/dense_fallback_memory"
REFUSED = "attention/dense_fallback_is_refused"
MASK = "attention/dense_fallback_applies_the_mask"
SPARSITY = "attention/block_sparsity_is_used_when_compiled"
TRACES = "compile/another_thread_traces"
BACKWARD = "compile/another_thread_compiles_its_backward"
RACE = "compile/two_threads_train_compiled_replicas"
WAYS = "compile/ways_out_that_were_weighed"
RECOMPILES = "compile/block_mask_recompiles"
LOGITS = "checkpoint/logits_and_loss_memory"
DRAFTER = "attention/drafter_in_small"
ANOTHER_MASK = "compiled_with_another_mask_at_each_step"

REFUSAL = "Detected that you are using FX to symbolically trace a dynamo-optimized function"
"""torch's message when it mistakes a call of a compiled function for one that is being traced."""
GPU = 95e9
"""Bytes of one of the note's GPUs."""


def _cases(scenario: str, *names: str, device: str = "", **where: Any) -> Cases:
    return Cases(scenario, names, tuple(where.items()), device)


# Tests.


def _is_refused(record: Record) -> bool | None:
    """Return whether a call was refused as one that is being traced. None if it failed otherwise."""
    if record.outcome.kind == "raised" and REFUSAL in (record.outcome.message or ""):
        return True
    return False if record.outcome.kind == "finished" else None


is_refused = plain_pass_test(_is_refused, "it ended with another error")


def is_refused_or_right(replay: Replay, context: Context) -> Look | None:
    """Test whether a call was refused. If it neither was nor met its scenario's expectations, it is unknown."""
    look = is_refused(replay, context)
    if look is None or look.holds is not False:
        return look
    right = scenario_test()(replay, context)
    if right is None or right.holds is True:
        return None if right is None else Look(False, right.records)
    return Look(None, right.records, right.why or "it was not refused, and not right either")


def _exception_test(kind: str, *texts: str) -> Test:
    """Return a test for an exception of this bare name, with one of these texts in its message."""

    def has_raised(record: Record) -> bool:
        outcome = record.outcome
        names = {name.rpartition(".")[2] for name in (outcome.type or "", *outcome.bases)}
        has_text = any(text in (outcome.message or "") for text in texts or ("",))
        return outcome.kind == "raised" and kind in names and has_text

    return plain_pass_test(has_raised)


def _has_failed_rounds(record: Record) -> bool | None:
    failed, rounds = (observed_number(record, name) for name in ("rounds that failed", "rounds"))
    return None if failed is None or not rounds else failed > 0


has_failed_rounds = plain_pass_test(_has_failed_rounds, "it did not count rounds")


def _find_any_refusal(pairs: Sequence[tuple[Replay, Context]]) -> Look:
    """Test whether any of the replays was refused, as a conflict of threads depends on timing."""
    looks = [look for look in (is_refused(*pair) for pair in pairs) if look is not None]
    records = tuple(record for look in looks for record in look.records)
    if any(look.holds is None for look in looks):
        return Look(None, records, "it ended with another error")
    return Look(any(look.holds for look in looks), records)


def _refusal_counts(found: Finding) -> str:
    """Say how many trainings failed: a case ends with the first that does, and observes how many it ran."""
    records = [replay.plain for replay in found.replays if replay.plain is not None]
    refused = sum(bool(_is_refused(record)) for record in records)
    trainings = [observed_number(record, "trainings") for record in records]
    if any(one is None for one in trainings):
        return f"{refused} of {count(len(records), 'run', 'runs')}, of which not all say how many trainings there were"
    return f"{refused} of {count(int(sum(one or 0 for one in trainings)), 'training', 'trainings')} failed"


def failure_rate(found: Finding) -> str:
    """Say how many rounds failed, of how many."""
    failed, rounds = (
        sum(amounts.values(found.replays, amounts.observed_amount(name))) for name in ("rounds that failed", "rounds")
    )
    return f"{failed:g} of {rounds:g} rounds failed"


def _has_all_scores(record: Record) -> bool | None:
    reached = peak_in_scores(record)
    return None if reached is None else reached >= 1


has_all_scores = plain_pass_test(_has_all_scores, "its memory was not measured")


def has_no_scores(replay: Replay, context: Context) -> Look | None:
    """Test whether the forward peak is smaller than one score tensor."""
    look = has_all_scores(replay, context)
    return look if look is None or look.holds is None else Look(not look.holds, look.records)


# B1, B7, B14: memory of the fallback.


EXPONENT, WITHIN = 2.0, 0.1
"""The number of scores grows with the square of the number of keys; how far a fit may be off, as in conf/series."""


def _fit_peaks(replays: Sequence[Replay]) -> Fit | None:
    """Fit the peak over the number of keys, through every run."""
    points = [
        (float(one.spec.question.parameters["keys"]), peak_bytes(one.plain)) for one in replays if one.plain is not None
    ]
    return fit_power_law([(keys, reached) for keys, reached in points if reached is not None])


def _test_quadratic_growth(pairs: Sequence[tuple[Replay, Context]]) -> Look:
    """Test whether every peak holds all scores, and peaks grow with the square of the number of keys."""
    records = [replay.plain for replay, _ in pairs if replay.plain is not None]
    reached = [peak_in_scores(record) for record in records]
    fitted = _fit_peaks([replay for replay, _ in pairs])
    if any(one is None for one in reached) or fitted is None:
        return Look(None, tuple(records), "it takes finished runs with measured memory at three or more lengths")
    dense = all(one is not None and one >= 1 for one in reached)
    return Look(dense and abs(fitted.exponent - EXPONENT) <= WITHIN, tuple(records))


def _find_uncompiled_growth(evidence: Evidence) -> Finding:
    return evidence.find_together(_cases(MEMORY, "uncompiled"), _test_quadratic_growth)


def _find_compiled_memory(evidence: Evidence) -> Finding:
    return evidence.find(_cases(MEMORY, "compiled"), has_no_scores)


def _compiled_memory_text(found: Finding) -> str:
    return (
        f"{figure(found.replays, in_mebibytes(peak_bytes), 'MiB')}, "
        f"{figure(found.replays, peak_in_outputs)} times its output, at {_key_range(found)}"
    )


def _key_range(found: Finding) -> str:
    return f"{amounts.parameter_range(found.replays, 'keys')} keys" if found.units else "no keys"


def _decide_dense_fallback(evidence: Evidence) -> Ruling:
    uncompiled, compiled = _find_uncompiled_growth(evidence), _find_compiled_memory(evidence)
    measured = (
        f"{figure(uncompiled.replays, peak_in_scores, 'score tensors')} at {_key_range(uncompiled)}, and goes with the "
        f"number of keys to the power of {amounts.exponent_text(_fit_peaks(uncompiled.replays))}"
    )
    return rule(
        statement_for(
            uncompiled,
            f"uncompiled, the forward peak holds all scores: it is {measured}",
            f"uncompiled, the forward peak is not that of all scores: it is {measured}",
        ),
        statement_for(
            compiled,
            f"compiled with a block mask it holds no scores: {_compiled_memory_text(compiled)}",
            f"compiled with a block mask it holds all scores as well: {_compiled_memory_text(compiled)}",
        ),
    )


def _decide_switched_off_compiler(evidence: Evidence) -> Ruling:
    names = ("compiled_but_forced_to_run_eagerly", "called_where_the_compiler_is_disabled")
    off, compiled = evidence.find(_cases(MEMORY, *names), has_all_scores), _find_compiled_memory(evidence)
    without = evidence.find(_cases(MEMORY, "dynamo_switched_off"), _exception_test("RuntimeError"))
    reached = figure(off.replays, peak_in_scores, "score tensors")
    return rule(
        statement_for(
            off,
            f"switched off by set_stance or torch.compiler.disable, the forward peak holds all scores: {reached}",
            f"switched off by set_stance or torch.compiler.disable, the forward peak is {reached}",
        ),
        statement_for(
            compiled,
            f"compiled with a block mask it holds none: {_compiled_memory_text(compiled)}",
            f"compiled with a block mask it holds all scores as well: {_compiled_memory_text(compiled)}",
        ),
        remark(
            without,
            "switched off by torch._dynamo.config.disable, the call does not run at all",
            "switched off by torch._dynamo.config.disable, the call runs",
        ),
    )


_ASKED = re.compile(r"[Tt]ried to allocate (\d+) bytes")


def requested_bytes(record: Record | None) -> int | None:
    """Return the bytes of the allocation that was refused. None if none was, or the message only has them rounded."""
    found = _ASKED.search((record.outcome.message or "") if record is not None else "")
    return int(found.group(1)) if found else None


def _requested_amount(record: Record) -> float | None:
    return requested_bytes(record)


def _find_refused_allocation(evidence: Evidence, keys: int, question: Any) -> Finding:
    """Find the allocation that the real call with so many keys requests; on the CPU, as CUDA's message rounds it."""

    def test(record: Record) -> bool | None:
        asked = requested_bytes(record)
        return None if asked is None else bool(question(asked))

    cases = _cases(REFUSED, "uncompiled", device="cpu", keys=keys)
    return evidence.find(cases, plain_pass_test(test, "no allocation was refused"))


def _bytes_text(number: float | None) -> str:
    if number is None:
        return "no bytes"
    return f"{int(number):,} bytes ({number / 2**30:g} GiB, {number / 1e9:.1f} GB)"


def _requested_text(found: Finding) -> str:
    listed = sorted(set(amounts.values(found.replays, _requested_amount)))
    return " or ".join(_bytes_text(one) for one in listed) or "nothing"


def _decide_two_figures(evidence: Evidence) -> Ruling:
    size = "one score tensor, bytes"
    real = _find_refused_allocation(evidence, 81920, lambda asked: round(asked / 1e9) == 298)
    fewer = _find_refused_allocation(evidence, 76288, lambda asked: round(asked / 2**30) == 298)
    counted = evidence.find(_cases(REFUSED, "counted"), plain_pass_test(lambda record: _is_328_gigabytes(record, size)))
    product = " or ".join(sorted({_bytes_text(observed_number(replay.plain, size)) for replay in counted.replays}))
    return rule(
        statement_for(
            real,
            f"with 81,920 keys the real call asks for 298 GB: {_requested_text(real)}",
            f"with 81,920 keys the real call does not ask for 298 GB, but for {_requested_text(real)}",
        ),
        statement_for(
            counted,
            f"the product is 328 GB: {product}",
            f"the product is not 328 GB, but {product}",
        ),
        remark(
            fewer,
            f"298 is GiB, and belongs to 76,288 keys, with which the call asks for {_requested_text(fewer)}",
            f"with 76,288 keys the call asks for {_requested_text(fewer)}",
        ),
    )


def _is_328_gigabytes(record: Record, name: str) -> bool | None:
    counted = observed_number(record, name)
    return None if counted is None else round(counted / 1e9) == 328


def _decide_gpu_fit(evidence: Evidence) -> Ruling:
    keys = 81920
    refused, uncompiled = (
        _find_refused_allocation(evidence, keys, lambda asked: asked > GPU),
        _find_uncompiled_growth(evidence),
    )
    asked = max(amounts.values(refused.replays, _requested_amount), default=0.0)
    shares = amounts.values(uncompiled.replays, peak_in_scores)
    scores_text = (
        f"of the note's 81,920 keys the scores alone are {_requested_text(refused)}, "
        f"{format_significant(asked / GPU)} times 95 GB"
    )
    alone = f"; a GPU would hold one score tensor of at most {int(GPU * keys // asked):,} keys" if asked else ""
    fewer = (
        _key_count_text([GPU * keys / asked / share for share in shares])
        if asked and shares
        else "an unknown number of"
    )
    return rule(
        statement_for(refused, scores_text + alone, scores_text),
        remark(
            uncompiled,
            f"with as many score tensors as the fallback holds at its peak in a smaller case, "
            f"{figure(uncompiled.replays, peak_in_scores)}, it would hold those of {fewer} keys",
            f"in a smaller case the peak is {figure(uncompiled.replays, peak_in_scores, 'score tensors')}, which is "
            "not that of all scores",
        ),
    )


def _key_count_text(numbers: Sequence[float]) -> str:
    low, high = (f"{int(float(format_significant(one))):,}" for one in (min(numbers), max(numbers)))
    return f"about {low}" if low == high else f"{low} to {high}"


# B3, B4: masks.


def _decide_masking(evidence: Evidence) -> Ruling:
    right = expectation_test(agrees(within_rounding=True))
    uncompiled, compiled = (evidence.find(_cases(MASK, name), right) for name in ("uncompiled", "compiled"))
    unmasked = evidence.find(_cases(MASK, "without_the_mask"), expectation_test(differs(by_at_least=0.5)))
    lists = evidence.find(_cases(MASK, "lists_without_a_mask_function"), expectation_test(differs(by_at_least=0.1)))
    masks = max((len(_mask_names(replay)) for replay in uncompiled.replays), default=0)
    calls = f"over {masks} calls in a row in one process, one for each mask"
    peaks = [figure(found.replays, peak_in_scores, "score tensors") for found in (uncompiled, unmasked)]
    return rule(
        statement_against(
            uncompiled,
            f"under each of {masks} masks the fallback's values are those of a dense masked calculation within "
            f"rounding; the peak {calls}, is {peaks[0]}: of single calls B1 and B4 tell",
            f"under {masks} masks the fallback's values are not those of a dense masked calculation",
        ),
        requirement(
            unmasked,
            f"without a mask they are others, and the peak of as many calls is {peaks[1]}",
            "without a mask they are the same, so that nothing tells whether a mask is applied",
        ),
        remark(compiled, "compiled, the values are those as well", "compiled, the values are others"),
        remark(
            lists,
            "what is not read is the lists of blocks: a block mask of lists alone, without a mask function, leaves "
            "out nothing",
            "a block mask of lists alone, without a mask function, leaves out what it does not list",
        ),
    )


def _mask_names(replay: Replay) -> list[str]:
    seen = replay.plain.observation if replay.plain else None
    return [tensor.name for tensor in (seen.tensors if seen else ()) if tensor.name.startswith("attended under ")]


def _share_of_time(record: Record) -> float | None:
    return observed_number(record, "time at density 0.0625, of that at density 1")


def _is_half_at_most(record: Record) -> bool | None:
    share = _share_of_time(record)
    return None if share is None else share <= 0.5


def _decide_sparsity(evidence: Evidence) -> Ruling:
    """Decide by time on the CPU: on a GPU so small a kernel takes no time at any density."""
    test = plain_pass_test(_is_half_at_most, "no time was measured")
    compiled, uncompiled = (
        evidence.find(_cases(SPARSITY, name, device="cpu"), test) for name in ("compiled", "uncompiled")
    )
    memory = evidence.find(_cases(SPARSITY, "uncompiled_memory"), has_all_scores)
    reached = figure(memory.replays, peak_in_scores, "score tensors")
    times = [f"{figure(found.replays, _share_of_time)} of the time of all" for found in (compiled, uncompiled)]
    return rule(
        statement_for(
            compiled,
            f"compiled, a sixteenth of the blocks takes {times[0]}",
            f"compiled, a sixteenth of the blocks takes {times[0]}, more than half",
        ),
        remark(
            uncompiled,
            f"uncompiled it takes {times[1]}, less than half",
            f"uncompiled it takes {times[1]}",
        ),
        remark(
            memory,
            f"uncompiled, the peak of a single call is {reached} over all densities",
            f"uncompiled, the peak of a single call is {reached}, less than one",
        ),
    )


# B5, B6, B8, B9, B15: the error, and threads.


def _find_call_without_trace(evidence: Evidence, kind: str) -> Finding:
    return evidence.find(_cases(TRACES, "nothing_traces", checkpoint_kind=kind), is_refused_or_right)


def _find_call_during_trace(evidence: Evidence, kind: str) -> Finding:
    return evidence.find(_cases(TRACES, "called_while_another_thread_traces", checkpoint_kind=kind), is_refused)


def _find_call_during_backward_compilation(evidence: Evidence, kind: str) -> Finding:
    return evidence.find(
        _cases(BACKWARD, "called_while_another_backward_is_compiled", checkpoint_kind=kind), is_refused
    )


def _find_race(evidence: Evidence, kind: str) -> Finding:
    return evidence.find(_cases(RACE, "trained_from_cold", checkpoint_kind=kind), has_failed_rounds)


def _race_remark(found: Finding, how: str) -> Statement:
    text = f"of two threads that train compiled replicas from cold, {how}, {failure_rate(found)}"
    return remark(found, text, text)


def _remarks_without_checkpoint(evidence: Evidence) -> tuple[Statement, Statement]:
    when = "without any checkpoint a call"
    return (
        remark(
            _find_call_during_trace(evidence, "none"),
            f"{when} is refused while another thread is inside a trace",
            f"{when} is not refused while another thread is inside a trace",
        ),
        remark(
            _find_call_during_backward_compilation(evidence, "none"),
            f"{when} is refused while another thread compiles its backward",
            f"{when} is not refused while another thread compiles its backward",
        ),
    )


def _decide_cause_of_error(evidence: Evidence) -> Ruling:
    return rule(
        statement_for(
            _find_call_without_trace(evidence, "non-reentrant"),
            "with nothing else tracing, a compiled function under checkpoint(use_reentrant=False) is refused",
            "with nothing else tracing, a compiled function under checkpoint(use_reentrant=False) is not refused, and "
            "is right",
        ),
        *_remarks_without_checkpoint(evidence),
        _race_remark(_find_race(evidence, "none"), "without any checkpoint"),
    )


def _decide_both_kinds(evidence: Evidence) -> Ruling:
    traced, compiling = (
        find(evidence, "reentrant") for find in (_find_call_during_trace, _find_call_during_backward_compilation)
    )
    return rule(
        _conflict_requirement(evidence),
        statement_against(
            traced,
            "use_reentrant=True does not avoid it: a call is refused while another thread traces",
            "use_reentrant=True avoids it: no call is refused while another thread traces",
        ),
        statement_against(
            compiling,
            "with use_reentrant=True a call is refused while another thread compiles its backward",
            "with use_reentrant=True no call is refused while another thread compiles its backward",
        ),
        statement_for(
            _find_call_without_trace(evidence, "non-reentrant"),
            "with nothing else tracing, compiled functions are refused under use_reentrant=False",
            "with nothing else tracing, compiled functions are right under use_reentrant=False",
        ),
        remark(
            _find_call_without_trace(evidence, "reentrant"),
            "with nothing else tracing, compiled functions are refused under use_reentrant=True",
            "with nothing else tracing, compiled functions are right under use_reentrant=True",
        ),
        _race_remark(_find_race(evidence, "reentrant"), "with the reentrant kind"),
        _race_remark(_find_race(evidence, "non-reentrant"), "with the non-reentrant kind"),
    )


def _find_drafters(evidence: Evidence, threads: int) -> tuple[Finding, str]:
    found = evidence.find_in_each_case(_cases(DRAFTER, "all_threads_from_cold", threads=threads), _find_any_refusal)
    return found, _refusal_counts(found)


def _decide_third_thread(evidence: Evidence) -> Ruling:
    forward = evidence.find(_cases(BACKWARD, "called_while_another_forward_is_compiled"), is_refused)
    backward = evidence.find(_cases(BACKWARD, "called_while_another_backward_is_compiled"), is_refused)
    warm = evidence.find(_cases(RACE, "forward_and_backward_compiled_before_the_threads_start"), has_failed_rounds)
    (three, of_three), (two, of_two), (one, of_one) = (_find_drafters(evidence, threads) for threads in (3, 2, 1))
    trained = "a small drafter trained from cold"
    return rule(
        statement_for(
            three,
            f"{trained} by three threads fails with the error: {of_three}",
            f"{trained} by three threads does not fail: {of_three}",
        ),
        statement_against(
            two, f"two threads are enough for it to fail: {of_two}", f"by two threads it does not fail: {of_two}"
        ),
        statement_against(
            one, f"one thread is enough for it to fail: {of_one}", f"by one thread it does not fail: {of_one}"
        ),
        remark(
            backward,
            "the window is the compilation of another thread's backward, during which a call is refused",
            "during the compilation of another thread's backward no call is refused",
        ),
        remark(
            forward,
            "during that of another thread's forward a call is refused as well",
            "during that of another thread's forward no call is refused",
        ),
        _race_remark(_find_race(evidence, "none"), "without any checkpoint"),
        remark(
            warm,
            f"compiled before the threads start, {failure_rate(warm)}",
            f"compiled before they start, {failure_rate(warm)}",
        ),
    )


def _conflict_requirement(evidence: Evidence) -> Statement:
    """Require that a call is refused: otherwise nothing can be decided about what helps."""
    refused = "without any checkpoint, a call of a compiled function while another thread traces is"
    return requirement(
        _find_call_during_trace(evidence, "none"),
        f"{refused} refused",
        f"{refused} not refused, so that there is nothing to be avoided",
    )


def _decide_own_functions(evidence: Evidence) -> Ruling:
    own = evidence.find(_cases(TRACES, "compiled_for_its_own_thread"), is_refused)
    call = "a function that was compiled by and for its own thread"
    return rule(
        _conflict_requirement(evidence), statement_for(own, f"{call} is refused all the same", f"{call} is not refused")
    )


def _decide_ways_out(evidence: Evidence) -> Ruling:
    def find_way(*names: str, **where: Any) -> Finding:
        return evidence.find(_cases(WAYS, *names, **where), is_refused)

    inside = find_way("attention_inside_the_checkpoint", checkpoint_kind="reentrant")
    other = find_way("attention_inside_the_checkpoint", checkpoint_kind="non-reentrant")
    forward = find_way("attention_apart_from_the_checkpoint", traced_during="forward")
    backward = find_way("attention_apart_from_the_checkpoint", traced_during="backward")
    whole = find_way("compiler_switched_off", around="forward")
    contexts = [
        find_way("compiler_switched_off", around="attention", switch=name) for name in ("set_stance", "config.disable")
    ]
    wrapped = evidence.find(
        _cases(WAYS, "compiler_switched_off", around="attention", switch="disable"), scenario_test("agrees", "shows")
    )
    lock = evidence.find(_cases(WAYS, "one_lock_around_traces_and_steps"), scenario_test())
    apart = "with attention apart from the checkpoint a step is"
    off = "with the compiler switched off by a context"
    return rule(
        requirement(
            other,
            "while another thread traces, a step with attention inside a non-reentrant checkpoint is refused",
            "while another thread traces, a step with attention inside a non-reentrant checkpoint is not refused, so "
            "that there is nothing to be avoided",
        ),
        statement_against(
            inside,
            "with attention inside a reentrant checkpoint it is refused as well",
            "with attention inside a reentrant checkpoint it is not refused",
        ),
        remark(
            forward, f"{apart} refused if the trace is during forward", f"{apart} not refused if it is during forward"
        ),
        remark(backward, f"{apart} refused if it is during backward", f"{apart} not refused if it is during backward"),
        remark(whole, f"{off} for the whole forward it is refused", f"{off} for the whole forward it is not refused"),
        *(
            remark(one, f"{off} ({name}) around flex_attention it is refused", f"{off} ({name}) around it, it is not")
            for name, one in zip(("set_stance", "config.disable"), contexts)
        ),
        remark(
            wrapped,
            "with torch.compiler.disable around it the step is right and runs uncompiled",
            "with torch.compiler.disable around it the step is not right, or runs compiled",
        ),
        remark(
            lock,
            "with one lock around traces and steps it is right and runs compiled",
            "with one lock around traces and steps it is not right, or does not run compiled",
        ),
    )


# B10: recompilation.


def _is_recompiled(record: Record) -> bool | None:
    """Return whether each step that ran compiled needed a graph of its own. None if graphs were not counted."""
    graphs, compiled = (observed_number(record, name) for name in ("graphs", "steps that ran compiled"))
    return None if graphs is None or not compiled else graphs >= compiled


is_recompiled = plain_pass_test(_is_recompiled, "it did not count graphs")


def _graph_counts(found: Finding) -> str:
    """Return the graphs and compiled steps of each record."""
    texts = {
        f"{observed_value(replay.plain, 'graphs')} for "
        f"{observed_value(replay.plain, 'steps that ran compiled')} compiled steps"
        for replay in found.replays
    }
    return f"graphs: {', '.join(sorted(texts))}"


def _decide_mask_changes(evidence: Evidence) -> Ruling:
    def mask_statement(told: str, **where: Any) -> Statement:
        found = evidence.find(_cases(RECOMPILES, ANOTHER_MASK, **where), is_recompiled)
        anew, again = f"{told} each mask is compiled anew", f"{told} what was compiled serves other masks"
        return statement_for(found, f"{anew} ({_graph_counts(found)})", f"{again} ({_graph_counts(found)})")

    limit = evidence.find(_cases(RECOMPILES, "asked_to_fail_at_the_limit"), _exception_test("FailOnRecompileLimitHit"))
    return rule(
        mask_statement("if the content of a tensor changes,", mask="tensor", lengths="same"),
        mask_statement("if a number in a closure changes,", mask="closure", dynamic=None),
        mask_statement("if lengths change,", lengths="growing", dynamic=None),
        mask_statement("if a number in a default argument changes,", mask="default argument"),
        mask_statement("if a number in a module changes,", mask="module"),
        mask_statement("if the number of joined functions changes,", mask="several functions"),
        mask_statement("if a number or lengths change with dynamic=False,", dynamic=False),
        remark(
            evidence.find(
                _cases(RECOMPILES, ANOTHER_MASK), plain_pass_test(lambda record: record.outcome.kind == "finished")
            ),
            "all steps end without an error, at the recompile limit too",
            "the steps do not end, or with an error",
        ),
        remark(
            limit,
            "asked to fail at the recompile limit, they do",
            "asked to fail at the recompile limit, they do not",
        ),
    )


# B11: logits.


def _logits_bytes(record: Record) -> float | None:
    """Return the size of a logits tensor, which `not_checkpointed_and_measured` observes."""
    return observed_number(record, "bytes of a logits tensor")


def _decide_logits_memory(evidence: Evidence) -> Ruling:
    plain_case, whole_case = "not_checkpointed_and_measured", ("checkpointed_as_a_whole",)
    both = (*whole_case, "checkpointed_as_a_whole_and_reentrant")
    plain = evidence.find(_cases(LOGITS, plain_case), plain_pass_test(_is_measured, "its memory was not measured"))

    def find_lower(case: str, amount: amounts.Amount) -> Finding:
        limit = amounts.median_amount(plain.replays, amount)

        def test(record: Record) -> bool | None:
            found = amount(record)
            return None if found is None or limit is None else found < limit * LOWER

        return evidence.find(_cases(LOGITS, case), plain_pass_test(test, "its memory was not measured"))

    def statement_parts(case: str, amount: amounts.Amount, what: str) -> tuple[Finding, str, str]:
        found = find_lower(case, amount)
        size = figure(found.replays, in_mebibytes(amount), "MiB")
        name = case.replace("_", " ")
        return found, f"{name}, less {what}: {size}", f"{name}, as much {what}: {size}"

    logits = " or ".join(sorted({f"{one / 2**20:,.0f} MiB" for one in amounts.values(plain.replays, _logits_bytes)}))
    base = (
        f"without checkpoint, of a logits tensor of {logits}, "
        f"{figure(plain.replays, in_mebibytes(held_bytes), 'MiB')} are held "
        f"between forward and backward, and the peak is {figure(plain.replays, in_mebibytes(whole_peak), 'MiB')}"
    )
    chunks = "in_checkpointed_chunks"
    return rule(
        requirement(plain, base, base),
        *(statement_for(*statement_parts(case, held_bytes, "is held")) for case in both),
        *(statement_for(*statement_parts(case, whole_peak, "is taken at the peak")) for case in both),
        remark(*statement_parts(chunks, held_bytes, "is held")),
        remark(*statement_parts(chunks, whole_peak, "is taken at the peak")),
    )


LOWER = 0.75
"""Memory counts as lower below this share of that without checkpoint: repeats of one case differ by far less."""


def _is_measured(record: Record) -> bool | None:
    return None if held_bytes(record) is None or whole_peak(record) is None else True


# B12: limits of the reentrant kind.


GIVES_NO_GRADIENT = "checkpoint/reentrant_gives_no_gradient_to_parameters"
NESTED = "checkpoint/reentrant_ignores_nested_tensors"
KEYWORDS = "checkpoint/reentrant_refuses_keyword_arguments"
GRAD = "checkpoint/reentrant_refuses_autograd_grad"
DETACHED = "checkpoint/reentrant_attaches_detached_outputs"
NO_GRAPH = "checkpoint/reentrant_has_no_graph_inside"
SECOND = "checkpoint/reentrant_loses_second_derivatives"
TO_THE_END = "checkpoint/reentrant_recomputes_to_the_end"

LIMITS = (
    (
        "it gives no gradient to parameters if no argument requires one",
        Cases(GIVES_NO_GRADIENT, ("only_data_passed", "kind_not_said", "only_data_passed_to_the_whole_model")),
    ),
    (
        "it does not see tensors in containers",
        Cases(
            NESTED,
            (
                "passed_in_a_container",
                "passed_in_a_container_beside_another_argument",
                "returned_in_a_container",
            ),
        ),
    ),
    (
        "it refuses keyword arguments and context_fn",
        Cases(KEYWORDS, ("passed_by_keyword", "given_contexts_for_both_runs")),
    ),
    (
        "it refuses torch.autograd.grad and backward(inputs=...)",
        Cases(GRAD, ("asked_by_grad", "asked_by_backward_with_inputs")),
    ),
    (
        "it attaches detached outputs, or refuses them",
        Cases(DETACHED, ("only_a_detached_output", "detached_beside_another_output")),
    ),
    ("there is no graph inside it", Cases(NO_GRAPH, ("differentiated_inside",))),
    ("it loses second derivatives", Cases(SECOND, ("block_checkpointed", "all_of_it_checkpointed"))),
    ("it recomputes to the end", Cases(TO_THE_END, ("asked_to_stop_early",))),
)
"""Each limit of the reentrant kind, with the broken cases that show it."""

WITHOUT_LIMITS = (
    Cases(GIVES_NO_GRADIENT, ("not_reentrant",)),
    Cases(NESTED, ("not_reentrant",)),
    Cases(KEYWORDS, ("not_reentrant",)),
    Cases(GRAD, ("not_reentrant_by_grad", "not_reentrant_by_backward_with_inputs")),
    Cases(DETACHED, ("not_reentrant",)),
    Cases(NO_GRAPH, ("not_reentrant",)),
    Cases(SECOND, ("not_reentrant",)),
    Cases(TO_THE_END, ("not_reentrant",)),
)
"""The same calculations under the non-reentrant kind."""


def _decide_limits(evidence: Evidence) -> Ruling:
    def limit_statement(told: str, cases: Cases) -> Statement:
        return statement_for(evidence.find(cases, scenario_test()), told, f"not shown: {told}")

    return rule_any(*(limit_statement(told, cases) for told, cases in LIMITS))


# B13.


def _decide_throughput(_: Evidence) -> Ruling:
    """Return that it was not tested: no scenario measures it, so no record can decide it."""
    faster, slower = 19.5, 13.5
    reason = f"it needs 8 GPUs and the model; the arithmetic holds ({faster} / {slower} = {faster / slower:.3f})"
    return Ruling(NOT_TESTED, reason, ())


# Advice.


def _values_decision(cases: Cases, told: str) -> Decide:
    """Return a decision that holds if these cases meet all expectations of their scenario."""

    def decide(evidence: Evidence) -> Ruling:
        return rule(statement_for(evidence.find(cases, scenario_test()), told, f"not shown: {told}"))

    return decide


def _race_decision(case: str) -> Decide:
    """Return a decision that holds if the replicas train without a failed round and are right within rounding."""

    def decide(evidence: Evidence) -> Ruling:
        cases = _cases(RACE, case)
        right, rounds = evidence.find(cases, scenario_test()), evidence.find(cases, has_failed_rounds)
        text = "losses and gradients are those of uncompiled replicas within rounding"
        return rule(
            statement_for(right, text, f"not shown: {text}"),
            statement_against(rounds, failure_rate(rounds), failure_rate(rounds)),
        )

    return decide


def _decide_compiled_advice(evidence: Evidence) -> Ruling:
    found = evidence.find(_cases(MEMORY, "compiled"), scenario_test())
    most = sorted({bound for replay in found.replays for bound in _peak_bounds(replay)})
    checked = " or ".join(f"{bound / 2**20:g} MiB" for bound in most) or "nothing"
    measured = f"its forward peak was {_compiled_memory_text(found)}; each case checks that it is at most {checked}"
    return rule(
        statement_for(
            found, f"{measured}, and that values are right within rounding", f"it was more, or not right: {measured}"
        )
    )


def _peak_bounds(replay: Replay) -> list[int]:
    marked = [one for one in replay.spec.mark.expectations if one["kind"] == "peaks"]
    return [int(one["at_most"]) for one in marked if one["at_most"] is not None]


def _decide_tensor_advice(evidence: Evidence) -> Ruling:
    cases = _cases(RECOMPILES, ANOTHER_MASK, mask="tensor", lengths="same", dynamic=None)
    found = evidence.find(cases, plain_pass_test(lambda record: observed_number(record, "graphs") == 1))
    condition = f"with lengths that stay and a mask whose tensor changes at each step ({_graph_counts(found)})"
    return rule(statement_for(found, f"{condition} it is compiled once", f"{condition} it is not compiled once"))


def _decide_non_reentrant_advice(evidence: Evidence) -> Ruling:
    def limit_statement(told: str, cases: Cases) -> Statement:
        found = evidence.find(cases, scenario_test())
        return statement_for(found, f"right where of the reentrant kind {told}", f"not right where {told}")

    own = evidence.find(_cases(NO_GRAPH, "transformed_inside_and_not_reentrant"), scenario_test())
    pairs = zip((told for told, _ in LIMITS), WITHOUT_LIMITS)
    return rule(
        *(limit_statement(told, cases) for told, cases in pairs),
        remark(own, "it has one of its own: it refuses torch.func.grad inside", "it does not refuse torch.func.grad"),
    )


def _claim(id_: str, text: str, decide: Decide) -> Claim:
    return Claim(id_, COMPILE_NOTE, text, decide_in_each_setting(decide))


CLAIMS: tuple[Claim, ...] = (
    _claim(
        "B1",
        "Without torch.compile, flex_attention takes a dense fallback that materialises all scores.",
        _decide_dense_fallback,
    ),
    _claim(
        "B2",
        "The failed allocation was 298 GB, and the score tensor is 32 x 32768 x 81920 x 4 bytes = 328 GB.",
        _decide_two_figures,
    ),
    _claim("B3", "In the fallback the block mask is ignored.", _decide_masking),
    _claim("B4", "Compiled, the block sparsity is used.", _decide_sparsity),
    _claim(
        "B5",
        '"Detected that you are using FX to symbolically trace a dynamo-optimized function" came from '
        "checkpoint(use_reentrant=False), which uses FX tracing.",
        _decide_cause_of_error,
    ),
    _claim(
        "B6",
        "use_reentrant=True avoids the conflict and is compatible with compiled functions; use_reentrant=False is not.",
        _decide_both_kinds,
    ),
    _claim("B7", "Switching compile off is no way out, because of memory.", _decide_switched_off_compiler),
    _claim(
        "B8",
        "The error appeared on going from 2 to 3 drafter GPUs, when more threads compiled at once.",
        _decide_third_thread,
    ),
    _claim("B9", "A per-device cache of compiled functions did not help.", _decide_own_functions),
    _claim("B10", "The mask changes with every batch, so that compiling hardly pays.", _decide_mask_changes),
    _claim(
        "B11",
        "Checkpointing lm_head and loss is what keeps the logits from running out of memory.",
        _decide_logits_memory,
    ),
    _claim("B12", "Reentrant checkpoint has limits.", _decide_limits),
    _claim(
        "B13",
        "Three drafters instead of two lift throughput from 13.5 to 19.5 thousand tokens a second, 44 %.",
        _decide_throughput,
    ),
    _claim("B14", "No such allocation fits a GPU of 95 GB.", _decide_gpu_fit),
    _claim(
        "B15",
        "Of four ways out (separate scopes, compiler off for the forward, compiler off around flex_attention, "
        "reentrant checkpoint) the last was chosen, and works.",
        _decide_ways_out,
    ),
)

_INSTEAD: tuple[tuple[str, Decide], ...] = (
    (
        "Compile forward and backward of every replica before the threads start.",
        _race_decision("forward_and_backward_compiled_before_the_threads_start"),
    ),
    ("Or hold one lock around steps that may compile.", _race_decision("one_lock_around_steps")),
    (
        "Or give each device a process of its own.",
        _values_decision(
            _cases(RACE, "a_process_for_each_replica"),
            "losses and gradients are those of uncompiled replicas within rounding",
        ),
    ),
    (
        "Or set torch._functorch.config.force_non_lazy_backward_lowering in every thread.",
        _race_decision("backward_compiled_with_the_forward"),
    ),
    ("Keep flex_attention compiled, with a block mask: it does not hold the scores.", _decide_compiled_advice),
    ("Keep what changes in a mask in a tensor, so that it is compiled once.", _decide_tensor_advice),
    (
        "Give a block mask its mask function: uncompiled, nothing else of it is read.",
        _values_decision(
            _cases(MASK, "lists_with_a_mask_function"),
            "uncompiled, lists with a mask function give the values of a dense masked calculation within rounding",
        ),
    ),
    (
        "Calculate logits and loss in checkpointed chunks.",
        _values_decision(
            _cases(LOGITS, "in_checkpointed_chunks"),
            "the numbers are those without checkpoint within rounding, and less is held and taken at the peak than "
            "its scenario allows",
        ),
    ),
    (
        "Use non-reentrant checkpoint, which has none of these limits of the reentrant kind.",
        _decide_non_reentrant_advice,
    ),
)

ADVICE = tuple(
    Advice(f"B-{number}", COMPILE_NOTE, text, decide_in_each_setting(decide))
    for number, (text, decide) in enumerate(_INSTEAD, 1)
)

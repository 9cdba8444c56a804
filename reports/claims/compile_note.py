"""The claims of the DFlash compile-checkpoint note, decided from replays of scenarios written for them. Pure."""

from __future__ import annotations

import re
from typing import Any, Sequence

from experiments.analysis.series import Fit, fit
from experiments.core.quantities import significant
from experiments.core.record import Record
from experiments.core.replay import Replay
from experiments.core.verdict import NOT_TESTED, Context, Ruling
from experiments.scenario import agrees, differs
from reports.claims import amounts
from reports.claims.amounts import (
    figure,
    held,
    in_outputs,
    in_scores,
    mebibytes,
    observed,
    observed_number,
    peak,
    whole_peak,
)
from reports.claims.claim import (
    Advice,
    Claim,
    Decide,
    Statement,
    beside,
    in_each_setting,
    needed,
    rule,
    rule_any,
    speaks_against,
    speaks_for,
)
from reports.claims.findings import Cases, Evidence, Finding, Look, Test, as_marked, plainly, shows
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
"""What torch says when it takes a call of a compiled function for one that is traced."""
GPU = 95e9
"""Bytes of one of the note's GPUs."""


def _cases(scenario: str, *names: str, device: str = "", **where: Any) -> Cases:
    return Cases(scenario, names, tuple(where.items()), device)


# Tests.


def _refused(record: Record) -> bool | None:
    """Whether a call was refused as one that is traced. None if something else went wrong."""
    if record.outcome.kind == "raised" and REFUSAL in (record.outcome.message or ""):
        return True
    return False if record.outcome.kind == "finished" else None


is_refused = plainly(_refused, "it ended with another error")


def is_refused_or_right(replay: Replay, context: Context) -> Look | None:
    """Whether a call was refused, or did all that its scenario expects; neither cannot be said."""
    look = is_refused(replay, context)
    if look is None or look.holds is not False:
        return look
    right = as_marked()(replay, context)
    if right is None or right.holds is True:
        return None if right is None else Look(False, right.records)
    return Look(None, right.records, right.why or "it was not refused, and not right either")


def _raises(kind: str, *texts: str) -> Test:
    """Whether it ends with an exception of this bare name, with one of these texts in its message."""

    def raised(record: Record) -> bool:
        outcome = record.outcome
        names = {name.rpartition(".")[2] for name in (outcome.type or "", *outcome.bases)}
        said = any(text in (outcome.message or "") for text in texts or ("",))
        return outcome.kind == "raised" and kind in names and said

    return plainly(raised)


def _some_rounds_failed(record: Record) -> bool | None:
    failed, rounds = (observed_number(record, name) for name in ("rounds that failed", "rounds"))
    return None if failed is None or not rounds else failed > 0


races = plainly(_some_rounds_failed, "it did not count rounds")


def _fails_sometimes(pairs: Sequence[tuple[Replay, Context]]) -> Look:
    """Whether one of the replays was refused: what threads do to each other is a matter of time."""
    looks = [look for look in (is_refused(*pair) for pair in pairs) if look is not None]
    records = tuple(record for look in looks for record in look.records)
    if any(look.holds is None for look in looks):
        return Look(None, records, "it ended with another error")
    return Look(any(look.holds for look in looks), records)


def _refusals(found: Finding) -> str:
    """How many trainings failed: a case ends with the first that does, and says how many there were."""
    records = [replay.plain for replay in found.replays if replay.plain is not None]
    refused = sum(bool(_refused(record)) for record in records)
    trainings = [observed_number(record, "trainings") for record in records]
    if any(one is None for one in trainings):
        return f"{refused} of {count(len(records), 'run', 'runs')}, of which not all say how many trainings there were"
    return f"{refused} of {count(int(sum(one or 0 for one in trainings)), 'training', 'trainings')} failed"


def rate(found: Finding) -> str:
    """Rounds that failed, of how many."""
    failed, rounds = (
        sum(amounts.values(found.replays, amounts.number(name))) for name in ("rounds that failed", "rounds")
    )
    return f"{failed:g} of {rounds:g} rounds failed"


def _holds_all_scores(record: Record) -> bool | None:
    reached = in_scores(record)
    return None if reached is None else reached >= 1


holds_all_scores = plainly(_holds_all_scores, "its memory was not measured")


def holds_no_scores(replay: Replay, context: Context) -> Look | None:
    look = holds_all_scores(replay, context)
    return look if look is None or look.holds is None else Look(not look.holds, look.records)


# B1, B7, B14: memory of the fallback.


EXPONENT, WITHIN = 2.0, 0.1
"""The number of scores grows with the square of the number of keys; how far a fit may be off, as in conf/series."""


def _fitted(replays: Sequence[Replay]) -> Fit | None:
    """Of the peak over the number of keys, through every run."""
    points = [
        (float(one.spec.question.parameters["keys"]), peak(one.plain)) for one in replays if one.plain is not None
    ]
    return fit([(keys, reached) for keys, reached in points if reached is not None])


def _grows_with_the_scores(pairs: Sequence[tuple[Replay, Context]]) -> Look:
    """Whether every peak holds all scores, and they grow with the square of the number of keys."""
    records = [replay.plain for replay, _ in pairs if replay.plain is not None]
    reached = [in_scores(record) for record in records]
    fitted = _fitted([replay for replay, _ in pairs])
    if any(one is None for one in reached) or fitted is None:
        return Look(None, tuple(records), "it takes finished runs with measured memory at three or more lengths")
    dense = all(one is not None and one >= 1 for one in reached)
    return Look(dense and abs(fitted.exponent - EXPONENT) <= WITHIN, tuple(records))


def _uncompiled(evidence: Evidence) -> Finding:
    return evidence.find_together(_cases(MEMORY, "uncompiled"), _grows_with_the_scores)


def _compiled(evidence: Evidence) -> Finding:
    return evidence.find(_cases(MEMORY, "compiled"), holds_no_scores)


def _compiled_memory(found: Finding) -> str:
    return (
        f"{figure(found.replays, mebibytes(peak), 'MiB')}, {figure(found.replays, in_outputs)} times its output, "
        f"at {_at(found)}"
    )


def _at(found: Finding) -> str:
    return f"{amounts.places(found.replays, 'keys')} keys" if found.units else "no keys"


def _dense(evidence: Evidence) -> Ruling:
    uncompiled, compiled = _uncompiled(evidence), _compiled(evidence)
    measured = (
        f"{figure(uncompiled.replays, in_scores, 'score tensors')} at {_at(uncompiled)}, and goes with the number of "
        f"keys to the power of {amounts.power(_fitted(uncompiled.replays))}"
    )
    return rule(
        speaks_for(
            uncompiled,
            f"uncompiled, the forward peak holds all scores: it is {measured}",
            f"uncompiled, the forward peak is not that of all scores: it is {measured}",
        ),
        speaks_for(
            compiled,
            f"compiled with a block mask it holds no scores: {_compiled_memory(compiled)}",
            f"compiled with a block mask it holds all scores as well: {_compiled_memory(compiled)}",
        ),
    )


def _switched_off(evidence: Evidence) -> Ruling:
    names = ("compiled_but_forced_to_run_eagerly", "called_where_the_compiler_is_disabled")
    off, compiled = evidence.find(_cases(MEMORY, *names), holds_all_scores), _compiled(evidence)
    without = evidence.find(_cases(MEMORY, "dynamo_switched_off"), _raises("RuntimeError"))
    reached = figure(off.replays, in_scores, "score tensors")
    return rule(
        speaks_for(
            off,
            f"switched off by set_stance or torch.compiler.disable, the forward peak holds all scores: {reached}",
            f"switched off by set_stance or torch.compiler.disable, the forward peak is {reached}",
        ),
        speaks_for(
            compiled,
            f"compiled with a block mask it holds none: {_compiled_memory(compiled)}",
            f"compiled with a block mask it holds all scores as well: {_compiled_memory(compiled)}",
        ),
        beside(
            without,
            "switched off by torch._dynamo.config.disable, the call does not run at all",
            "switched off by torch._dynamo.config.disable, the call runs",
        ),
    )


_ASKED = re.compile(r"[Tt]ried to allocate (\d+) bytes")


def asked_for(record: Record | None) -> int | None:
    """Bytes of the allocation that was refused. None if none was, or if the message only gives it rounded."""
    found = _ASKED.search((record.outcome.message or "") if record is not None else "")
    return int(found.group(1)) if found else None


def _amount_asked(record: Record) -> float | None:
    return asked_for(record)


def _refusal(evidence: Evidence, keys: int, question: Any) -> Finding:
    """Of the real call with so many keys; CUDA's message rounds what it says."""

    def test(record: Record) -> bool | None:
        asked = asked_for(record)
        return None if asked is None else bool(question(asked))

    cases = _cases(REFUSED, "uncompiled", device="cpu", keys=keys)
    return evidence.find(cases, plainly(test, "no allocation was refused"))


def _bytes(number: float | None) -> str:
    if number is None:
        return "no bytes"
    return f"{int(number):,} bytes ({number / 2**30:g} GiB, {number / 1e9:.1f} GB)"


def _asked(found: Finding) -> str:
    listed = sorted(set(amounts.values(found.replays, _amount_asked)))
    return " or ".join(_bytes(one) for one in listed) or "nothing"


def _two_figures(evidence: Evidence) -> Ruling:
    size = "one score tensor, bytes"
    real = _refusal(evidence, 81920, lambda asked: round(asked / 1e9) == 298)
    fewer = _refusal(evidence, 76288, lambda asked: round(asked / 2**30) == 298)
    counted = evidence.find(_cases(REFUSED, "counted"), plainly(lambda record: _is_328(record, size)))
    product = " or ".join(sorted({_bytes(observed_number(replay.plain, size)) for replay in counted.replays}))
    return rule(
        speaks_for(
            real,
            f"with 81,920 keys the real call asks for 298 GB: {_asked(real)}",
            f"with 81,920 keys the real call does not ask for 298 GB, but for {_asked(real)}",
        ),
        speaks_for(
            counted,
            f"the product is 328 GB: {product}",
            f"the product is not 328 GB, but {product}",
        ),
        beside(
            fewer,
            f"298 is GiB, and belongs to 76,288 keys, with which the call asks for {_asked(fewer)}",
            f"with 76,288 keys the call asks for {_asked(fewer)}",
        ),
    )


def _is_328(record: Record, name: str) -> bool | None:
    counted = observed_number(record, name)
    return None if counted is None else round(counted / 1e9) == 328


def _fits_nowhere(evidence: Evidence) -> Ruling:
    keys = 81920
    refused, uncompiled = _refusal(evidence, keys, lambda asked: asked > GPU), _uncompiled(evidence)
    asked = max(amounts.values(refused.replays, _amount_asked), default=0.0)
    shares = amounts.values(uncompiled.replays, in_scores)
    told = f"of the note's 81,920 keys the scores alone are {_asked(refused)}, {significant(asked / GPU)} times 95 GB"
    alone = f"; a GPU would hold one score tensor of at most {int(GPU * keys // asked):,} keys" if asked else ""
    fewer = _keys([GPU * keys / asked / share for share in shares]) if asked and shares else "an unknown number of"
    return rule(
        speaks_for(refused, told + alone, told),
        beside(
            uncompiled,
            f"with as many score tensors as the fallback holds at its peak in a smaller case, "
            f"{figure(uncompiled.replays, in_scores)}, it would hold those of {fewer} keys",
            f"in a smaller case the peak is {figure(uncompiled.replays, in_scores, 'score tensors')}, which is not "
            "that of all scores",
        ),
    )


def _keys(numbers: Sequence[float]) -> str:
    low, high = (f"{int(float(significant(one))):,}" for one in (min(numbers), max(numbers)))
    return f"about {low}" if low == high else f"{low} to {high}"


# B3, B4: masks.


def _masked(evidence: Evidence) -> Ruling:
    right = shows(agrees(within_rounding=True))
    uncompiled, compiled = (evidence.find(_cases(MASK, name), right) for name in ("uncompiled", "compiled"))
    unmasked = evidence.find(_cases(MASK, "without_the_mask"), shows(differs(by_at_least=0.5)))
    lists = evidence.find(_cases(MASK, "lists_without_a_mask_function"), shows(differs(by_at_least=0.1)))
    masks = max((len(_masks(replay)) for replay in uncompiled.replays), default=0)
    calls = f"over {masks} calls in a row in one process, one for each mask"
    peaks = [figure(found.replays, in_scores, "score tensors") for found in (uncompiled, unmasked)]
    return rule(
        speaks_against(
            uncompiled,
            f"under each of {masks} masks the fallback's values are those of a dense masked calculation within "
            f"rounding; the peak {calls}, is {peaks[0]}: of single calls B1 and B4 tell",
            f"under {masks} masks the fallback's values are not those of a dense masked calculation",
        ),
        needed(
            unmasked,
            f"without a mask they are others, and the peak of as many calls is {peaks[1]}",
            "without a mask they are the same, so that nothing tells whether a mask is applied",
        ),
        beside(compiled, "compiled, the values are those as well", "compiled, the values are others"),
        beside(
            lists,
            "what is not read is the lists of blocks: a block mask of lists alone, without a mask function, leaves "
            "out nothing",
            "a block mask of lists alone, without a mask function, leaves out what it does not list",
        ),
    )


def _masks(replay: Replay) -> list[str]:
    seen = replay.plain.observation if replay.plain else None
    return [tensor.name for tensor in (seen.tensors if seen else ()) if tensor.name.startswith("attended under ")]


def _share_of_time(record: Record) -> float | None:
    return observed_number(record, "time at density 0.0625, of that at density 1")


def _takes_half_at_most(record: Record) -> bool | None:
    share = _share_of_time(record)
    return None if share is None else share <= 0.5


def _sparse(evidence: Evidence) -> Ruling:
    """By time on the CPU: so small a kernel takes a GPU no time at any density."""
    test = plainly(_takes_half_at_most, "no time was measured")
    compiled, uncompiled = (
        evidence.find(_cases(SPARSITY, name, device="cpu"), test) for name in ("compiled", "uncompiled")
    )
    memory = evidence.find(_cases(SPARSITY, "uncompiled_memory"), holds_all_scores)
    reached = figure(memory.replays, in_scores, "score tensors")
    times = [f"{figure(found.replays, _share_of_time)} of the time of all" for found in (compiled, uncompiled)]
    return rule(
        speaks_for(
            compiled,
            f"compiled, a sixteenth of the blocks takes {times[0]}",
            f"compiled, a sixteenth of the blocks takes {times[0]}, more than half",
        ),
        beside(
            uncompiled,
            f"uncompiled it takes {times[1]}, less than half",
            f"uncompiled it takes {times[1]}",
        ),
        beside(
            memory,
            f"uncompiled, the peak of a single call is {reached} over all densities",
            f"uncompiled, the peak of a single call is {reached}, less than one",
        ),
    )


# B5, B6, B8, B9, B15: the error, and threads.


def _alone(evidence: Evidence, kind: str) -> Finding:
    return evidence.find(_cases(TRACES, "nothing_traces", checkpoint_kind=kind), is_refused_or_right)


def _while_traced(evidence: Evidence, kind: str) -> Finding:
    return evidence.find(_cases(TRACES, "called_while_another_thread_traces", checkpoint_kind=kind), is_refused)


def _while_compiled(evidence: Evidence, kind: str) -> Finding:
    return evidence.find(
        _cases(BACKWARD, "called_while_another_backward_is_compiled", checkpoint_kind=kind), is_refused
    )


def _race(evidence: Evidence, kind: str) -> Finding:
    return evidence.find(_cases(RACE, "trained_from_cold", checkpoint_kind=kind), races)


def _told_race(found: Finding, how: str) -> Statement:
    text = f"of two threads that train compiled replicas from cold, {how}, {rate(found)}"
    return beside(found, text, text)


def _without_checkpoint(evidence: Evidence) -> tuple[Statement, Statement]:
    when = "without any checkpoint a call"
    return (
        beside(
            _while_traced(evidence, "none"),
            f"{when} is refused while another thread is inside a trace",
            f"{when} is not refused while another thread is inside a trace",
        ),
        beside(
            _while_compiled(evidence, "none"),
            f"{when} is refused while another thread compiles its backward",
            f"{when} is not refused while another thread compiles its backward",
        ),
    )


def _part_of_checkpoint(evidence: Evidence) -> Ruling:
    return rule(
        speaks_for(
            _alone(evidence, "non-reentrant"),
            "with nothing else tracing, a compiled function under checkpoint(use_reentrant=False) is refused",
            "with nothing else tracing, a compiled function under checkpoint(use_reentrant=False) is not refused, and "
            "is right",
        ),
        *_without_checkpoint(evidence),
        _told_race(_race(evidence, "none"), "without any checkpoint"),
    )


def _both_kinds(evidence: Evidence) -> Ruling:
    traced, compiling = (find(evidence, "reentrant") for find in (_while_traced, _while_compiled))
    return rule(
        _conflict(evidence),
        speaks_against(
            traced,
            "use_reentrant=True does not avoid it: a call is refused while another thread traces",
            "use_reentrant=True avoids it: no call is refused while another thread traces",
        ),
        speaks_against(
            compiling,
            "with use_reentrant=True a call is refused while another thread compiles its backward",
            "with use_reentrant=True no call is refused while another thread compiles its backward",
        ),
        speaks_for(
            _alone(evidence, "non-reentrant"),
            "with nothing else tracing, compiled functions are refused under use_reentrant=False",
            "with nothing else tracing, compiled functions are right under use_reentrant=False",
        ),
        beside(
            _alone(evidence, "reentrant"),
            "with nothing else tracing, compiled functions are refused under use_reentrant=True",
            "with nothing else tracing, compiled functions are right under use_reentrant=True",
        ),
        _told_race(_race(evidence, "reentrant"), "with the reentrant kind"),
        _told_race(_race(evidence, "non-reentrant"), "with the non-reentrant kind"),
    )


def _drafters(evidence: Evidence, threads: int) -> tuple[Finding, str]:
    found = evidence.find_in_each_case(_cases(DRAFTER, "all_threads_from_cold", threads=threads), _fails_sometimes)
    return found, _refusals(found)


def _third_thread(evidence: Evidence) -> Ruling:
    forward = evidence.find(_cases(BACKWARD, "called_while_another_forward_is_compiled"), is_refused)
    backward = evidence.find(_cases(BACKWARD, "called_while_another_backward_is_compiled"), is_refused)
    warm = evidence.find(_cases(RACE, "forward_and_backward_compiled_before_the_threads_start"), races)
    (three, of_three), (two, of_two), (one, of_one) = (_drafters(evidence, threads) for threads in (3, 2, 1))
    trained = "a small drafter trained from cold"
    return rule(
        speaks_for(
            three,
            f"{trained} by three threads fails with the error: {of_three}",
            f"{trained} by three threads does not fail: {of_three}",
        ),
        speaks_against(
            two, f"two threads are enough for it to fail: {of_two}", f"by two threads it does not fail: {of_two}"
        ),
        speaks_against(
            one, f"one thread is enough for it to fail: {of_one}", f"by one thread it does not fail: {of_one}"
        ),
        beside(
            backward,
            "the window is the compilation of another thread's backward, during which a call is refused",
            "during the compilation of another thread's backward no call is refused",
        ),
        beside(
            forward,
            "during that of another thread's forward a call is refused as well",
            "during that of another thread's forward no call is refused",
        ),
        _told_race(_race(evidence, "none"), "without any checkpoint"),
        beside(warm, f"compiled before the threads start, {rate(warm)}", f"compiled before they start, {rate(warm)}"),
    )


def _conflict(evidence: Evidence) -> Statement:
    """Where no call is refused at all, nothing can be said of what helps."""
    refused = "without any checkpoint, a call of a compiled function while another thread traces is"
    return needed(
        _while_traced(evidence, "none"),
        f"{refused} refused",
        f"{refused} not refused, so that there is nothing to be avoided",
    )


def _own_functions(evidence: Evidence) -> Ruling:
    own = evidence.find(_cases(TRACES, "compiled_for_its_own_thread"), is_refused)
    call = "a function that was compiled by and for its own thread"
    return rule(_conflict(evidence), speaks_for(own, f"{call} is refused all the same", f"{call} is not refused"))


def _weighed(evidence: Evidence) -> Ruling:
    def way(*names: str, **where: Any) -> Finding:
        return evidence.find(_cases(WAYS, *names, **where), is_refused)

    inside = way("attention_inside_the_checkpoint", checkpoint_kind="reentrant")
    other = way("attention_inside_the_checkpoint", checkpoint_kind="non-reentrant")
    forward = way("attention_apart_from_the_checkpoint", traced_during="forward")
    backward = way("attention_apart_from_the_checkpoint", traced_during="backward")
    whole = way("compiler_switched_off", around="forward")
    contexts = [
        way("compiler_switched_off", around="attention", switch=name) for name in ("set_stance", "config.disable")
    ]
    wrapped = evidence.find(
        _cases(WAYS, "compiler_switched_off", around="attention", switch="disable"), as_marked("agrees", "shows")
    )
    lock = evidence.find(_cases(WAYS, "one_lock_around_traces_and_steps"), as_marked())
    apart = "with attention apart from the checkpoint a step is"
    off = "with the compiler switched off by a context"
    return rule(
        needed(
            other,
            "while another thread traces, a step with attention inside a non-reentrant checkpoint is refused",
            "while another thread traces, a step with attention inside a non-reentrant checkpoint is not refused, so "
            "that there is nothing to be avoided",
        ),
        speaks_against(
            inside,
            "with attention inside a reentrant checkpoint it is refused as well",
            "with attention inside a reentrant checkpoint it is not refused",
        ),
        beside(
            forward, f"{apart} refused if the trace is during forward", f"{apart} not refused if it is during forward"
        ),
        beside(backward, f"{apart} refused if it is during backward", f"{apart} not refused if it is during backward"),
        beside(whole, f"{off} for the whole forward it is refused", f"{off} for the whole forward it is not refused"),
        *(
            beside(one, f"{off} ({name}) around flex_attention it is refused", f"{off} ({name}) around it, it is not")
            for name, one in zip(("set_stance", "config.disable"), contexts)
        ),
        beside(
            wrapped,
            "with torch.compiler.disable around it the step is right and runs uncompiled",
            "with torch.compiler.disable around it the step is not right, or runs compiled",
        ),
        beside(
            lock,
            "with one lock around traces and steps it is right and runs compiled",
            "with one lock around traces and steps it is not right, or does not run compiled",
        ),
    )


# B10: recompilation.


def _is_compiled_anew(record: Record) -> bool | None:
    """Whether each step that ran compiled needed a graph of its own."""
    graphs, compiled = (observed_number(record, name) for name in ("graphs", "steps that ran compiled"))
    return None if graphs is None or not compiled else graphs >= compiled


compiled_anew = plainly(_is_compiled_anew, "it did not count graphs")


def _graphs(found: Finding) -> str:
    """Graphs and compiled steps of each record."""
    told = {
        f"{observed(replay.plain, 'graphs')} for {observed(replay.plain, 'steps that ran compiled')} compiled steps"
        for replay in found.replays
    }
    return f"graphs: {', '.join(sorted(told))}"


def _mask_changes(evidence: Evidence) -> Ruling:
    def masks(told: str, **where: Any) -> Statement:
        found = evidence.find(_cases(RECOMPILES, ANOTHER_MASK, **where), compiled_anew)
        anew, again = f"{told} each mask is compiled anew", f"{told} what was compiled serves other masks"
        return speaks_for(found, f"{anew} ({_graphs(found)})", f"{again} ({_graphs(found)})")

    limit = evidence.find(_cases(RECOMPILES, "asked_to_fail_at_the_limit"), _raises("FailOnRecompileLimitHit"))
    return rule(
        masks("if the content of a tensor changes,", mask="tensor", lengths="same"),
        masks("if a number in a closure changes,", mask="closure", dynamic=None),
        masks("if lengths change,", lengths="growing", dynamic=None),
        masks("if a number in a default argument changes,", mask="default argument"),
        masks("if a number in a module changes,", mask="module"),
        masks("if the number of joined functions changes,", mask="several functions"),
        masks("if a number or lengths change with dynamic=False,", dynamic=False),
        beside(
            evidence.find(_cases(RECOMPILES, ANOTHER_MASK), plainly(lambda record: record.outcome.kind == "finished")),
            "all steps end without an error, at the recompile limit too",
            "the steps do not end, or with an error",
        ),
        beside(
            limit,
            "asked to fail at the recompile limit, they do",
            "asked to fail at the recompile limit, they do not",
        ),
    )


# B11: logits.


def _logits(record: Record) -> float | None:
    """Words and positions decide it, which `not_checkpointed_and_measured` observes."""
    return observed_number(record, "bytes of a logits tensor")


def _held_and_peak(evidence: Evidence) -> Ruling:
    plain_case, whole_case = "not_checkpointed_and_measured", ("checkpointed_as_a_whole",)
    both = (*whole_case, "checkpointed_as_a_whole_and_reentrant")
    plain = evidence.find(_cases(LOGITS, plain_case), plainly(_is_measured, "its memory was not measured"))

    def lower(case: str, amount: amounts.Amount) -> Finding:
        limit = amounts.middle(plain.replays, amount)

        def test(record: Record) -> bool | None:
            found = amount(record)
            return None if found is None or limit is None else found < limit * LOWER

        return evidence.find(_cases(LOGITS, case), plainly(test, "its memory was not measured"))

    def told(case: str, amount: amounts.Amount, what: str) -> tuple[Finding, str, str]:
        found = lower(case, amount)
        size = figure(found.replays, mebibytes(amount), "MiB")
        name = case.replace("_", " ")
        return found, f"{name}, less {what}: {size}", f"{name}, as much {what}: {size}"

    logits = " or ".join(sorted({f"{one / 2**20:,.0f} MiB" for one in amounts.values(plain.replays, _logits)}))
    base = (
        f"without checkpoint, of a logits tensor of {logits}, {figure(plain.replays, mebibytes(held), 'MiB')} are held "
        f"between forward and backward, and the peak is {figure(plain.replays, mebibytes(whole_peak), 'MiB')}"
    )
    chunks = "in_checkpointed_chunks"
    return rule(
        needed(plain, base, base),
        *(speaks_for(*told(case, held, "is held")) for case in both),
        *(speaks_for(*told(case, whole_peak, "is taken at the peak")) for case in both),
        beside(*told(chunks, held, "is held")),
        beside(*told(chunks, whole_peak, "is taken at the peak")),
    )


LOWER = 0.75
"""Memory below this share of that without checkpoint is lower: repeats of one case differ by far less."""


def _is_measured(record: Record) -> bool | None:
    return None if held(record) is None or whole_peak(record) is None else True


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


def _limits(evidence: Evidence) -> Ruling:
    def limit(told: str, cases: Cases) -> Statement:
        return speaks_for(evidence.find(cases, as_marked()), told, f"not shown: {told}")

    return rule_any(*(limit(told, cases) for told, cases in LIMITS))


# B13.


def _eight_gpus(_: Evidence) -> Ruling:
    """No scenario measures it, so no record can decide it."""
    faster, slower = 19.5, 13.5
    reason = f"it needs 8 GPUs and the model; the arithmetic holds ({faster} / {slower} = {faster / slower:.3f})"
    return Ruling(NOT_TESTED, reason, ())


# Advice.


def _is_right(cases: Cases, told: str) -> Decide:
    """Advice that stands if these cases show all that their scenario expects of them."""

    def decide(evidence: Evidence) -> Ruling:
        return rule(speaks_for(evidence.find(cases, as_marked()), told, f"not shown: {told}"))

    return decide


def _no_round_fails(case: str) -> Decide:
    """Advice that stands if the replicas train without a failed round, and right to rounding."""

    def decide(evidence: Evidence) -> Ruling:
        cases = _cases(RACE, case)
        right, rounds = evidence.find(cases, as_marked()), evidence.find(cases, races)
        told = "losses and gradients are those of uncompiled replicas within rounding"
        return rule(
            speaks_for(right, told, f"not shown: {told}"),
            speaks_against(rounds, rate(rounds), rate(rounds)),
        )

    return decide


def _advise_compiled(evidence: Evidence) -> Ruling:
    found = evidence.find(_cases(MEMORY, "compiled"), as_marked())
    most = sorted({bound for replay in found.replays for bound in _most(replay)})
    checked = " or ".join(f"{bound / 2**20:g} MiB" for bound in most) or "nothing"
    told = f"its forward peak was {_compiled_memory(found)}; each case checks that it is at most {checked}"
    return rule(
        speaks_for(found, f"{told}, and that values are right within rounding", f"it was more, or not right: {told}")
    )


def _most(replay: Replay) -> list[int]:
    marked = [one for one in replay.spec.mark.expectations if one["kind"] == "peaks"]
    return [int(one["at_most"]) for one in marked if one["at_most"] is not None]


def _advise_tensors(evidence: Evidence) -> Ruling:
    cases = _cases(RECOMPILES, ANOTHER_MASK, mask="tensor", lengths="same", dynamic=None)
    found = evidence.find(cases, plainly(lambda record: observed_number(record, "graphs") == 1))
    told = f"with lengths that stay and a mask whose tensor changes at each step ({_graphs(found)})"
    return rule(speaks_for(found, f"{told} it is compiled once", f"{told} it is not compiled once"))


def _advise_non_reentrant(evidence: Evidence) -> Ruling:
    def free(told: str, cases: Cases) -> Statement:
        found = evidence.find(cases, as_marked())
        return speaks_for(found, f"right where of the reentrant kind {told}", f"not right where {told}")

    own = evidence.find(_cases(NO_GRAPH, "transformed_inside_and_not_reentrant"), as_marked())
    pairs = zip((told for told, _ in LIMITS), WITHOUT_LIMITS)
    return rule(
        *(free(told, cases) for told, cases in pairs),
        beside(own, "it has one of its own: it refuses torch.func.grad inside", "it does not refuse torch.func.grad"),
    )


def _claim(id_: str, text: str, decide: Decide) -> Claim:
    return Claim(id_, COMPILE_NOTE, text, in_each_setting(decide))


CLAIMS: tuple[Claim, ...] = (
    _claim("B1", "Without torch.compile, flex_attention takes a dense fallback that materialises all scores.", _dense),
    _claim(
        "B2",
        "The failed allocation was 298 GB, and the score tensor is 32 x 32768 x 81920 x 4 bytes = 328 GB.",
        _two_figures,
    ),
    _claim("B3", "In the fallback the block mask is ignored.", _masked),
    _claim("B4", "Compiled, the block sparsity is used.", _sparse),
    _claim(
        "B5",
        '"Detected that you are using FX to symbolically trace a dynamo-optimized function" came from '
        "checkpoint(use_reentrant=False), which uses FX tracing.",
        _part_of_checkpoint,
    ),
    _claim(
        "B6",
        "use_reentrant=True avoids the conflict and is compatible with compiled functions; use_reentrant=False is not.",
        _both_kinds,
    ),
    _claim("B7", "Switching compile off is no way out, because of memory.", _switched_off),
    _claim(
        "B8",
        "The error appeared on going from 2 to 3 drafter GPUs, when more threads compiled at once.",
        _third_thread,
    ),
    _claim("B9", "A per-device cache of compiled functions did not help.", _own_functions),
    _claim("B10", "The mask changes with every batch, so that compiling hardly pays.", _mask_changes),
    _claim(
        "B11",
        "Checkpointing lm_head and loss is what keeps the logits from running out of memory.",
        _held_and_peak,
    ),
    _claim("B12", "Reentrant checkpoint has limits.", _limits),
    _claim(
        "B13",
        "Three drafters instead of two lift throughput from 13.5 to 19.5 thousand tokens a second, 44 %.",
        _eight_gpus,
    ),
    _claim("B14", "No such allocation fits a GPU of 95 GB.", _fits_nowhere),
    _claim(
        "B15",
        "Of four ways out (separate scopes, compiler off for the forward, compiler off around flex_attention, "
        "reentrant checkpoint) the last was chosen, and works.",
        _weighed,
    ),
)

_INSTEAD: tuple[tuple[str, Decide], ...] = (
    (
        "Compile forward and backward of every replica before the threads start.",
        _no_round_fails("forward_and_backward_compiled_before_the_threads_start"),
    ),
    ("Or hold one lock around steps that may compile.", _no_round_fails("one_lock_around_steps")),
    (
        "Or give each device a process of its own.",
        _is_right(
            _cases(RACE, "a_process_for_each_replica"),
            "losses and gradients are those of uncompiled replicas within rounding",
        ),
    ),
    (
        "Or set torch._functorch.config.force_non_lazy_backward_lowering in every thread.",
        _no_round_fails("backward_compiled_with_the_forward"),
    ),
    ("Keep flex_attention compiled, with a block mask: it does not hold the scores.", _advise_compiled),
    ("Keep what changes in a mask in a tensor, so that it is compiled once.", _advise_tensors),
    (
        "Give a block mask its mask function: uncompiled, nothing else of it is read.",
        _is_right(
            _cases(MASK, "lists_with_a_mask_function"),
            "uncompiled, lists with a mask function give the values of a dense masked calculation within rounding",
        ),
    ),
    (
        "Calculate logits and loss in checkpointed chunks.",
        _is_right(
            _cases(LOGITS, "in_checkpointed_chunks"),
            "the numbers are those without checkpoint within rounding, and less is held and taken at the peak than "
            "its scenario allows",
        ),
    ),
    ("Use non-reentrant checkpoint, which has none of these limits of the reentrant kind.", _advise_non_reentrant),
)

ADVICE = tuple(
    Advice(f"B-{number}", COMPILE_NOTE, text, in_each_setting(decide))
    for number, (text, decide) in enumerate(_INSTEAD, 1)
)

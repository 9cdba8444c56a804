"""The claims of the DFlash compile-checkpoint note, decided from replays of scenarios written for them. Pure.

Each claim names the cases that decide it. If all of them are there and as expected, the ruling is what they show, with
their figures. If one is not, the records do not decide the claim, and the ruling says which and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Sequence

from experiments.record import Replay
from experiments.series import measured, points
from experiments.verdict import AS_EXPECTED, NOT_TESTED, REFUTED, SUPPORTED, SUPPORTED_IN_PART, Context, Ruling, judge
from reports.rulings import Advice, Claim, Evidence, digests

MEMORY = "attention/dense_fallback_memory"
REFUSED = "attention/dense_fallback_is_refused"
MASK = "attention/dense_fallback_applies_the_mask"
SPARSITY = "attention/block_sparsity_is_used_when_compiled"
TRACES = "compile/another_thread_traces"
BACKWARD = "compile/another_thread_compiles_its_backward"
RACE = "compile/two_threads_train_compiled_replicas"
STUCK = "compile/overlapping_traces_leave_the_flag_set"
WAYS = "compile/ways_out_that_were_weighed"
RECOMPILES = "compile/block_mask_recompiles"
LOGITS = "checkpoint/logits_and_loss_memory"
DRAFTER = "attention/drafter_in_small"
LIMITS = (
    "checkpoint/reentrant_gives_no_gradient_to_parameters",
    "checkpoint/reentrant_ignores_nested_tensors",
    "checkpoint/reentrant_refuses_keyword_arguments",
    "checkpoint/reentrant_refuses_autograd_grad",
    "checkpoint/reentrant_attaches_detached_outputs",
    "checkpoint/reentrant_has_no_graph_inside",
    "checkpoint/reentrant_loses_second_derivatives",
    "checkpoint/reentrant_recomputes_to_the_end",
)

Found = Sequence[tuple[Replay, Context]]


@dataclass(frozen=True)
class Part:
    """Cases of one scenario that a ruling needs."""

    scenario: str
    cases: tuple[str, ...] = ()
    """Empty for all."""
    where: tuple[tuple[str, Any], ...] = ()
    """Parameters that a replay must have."""
    device: str = ""
    """Empty for any."""

    def found(self, evidence: Evidence) -> list[tuple[Replay, Context]]:
        return [pair for pair in evidence.of(self.scenario, *self.cases) if self._fits(pair[0])]

    def _fits(self, replay: Replay) -> bool:
        question = replay.spec.question
        given = question.parameters
        if question.dtype != question.input_dtype or self.device not in ("", question.device):
            return False
        return all(given.get(name) == value for name, value in self.where)

    @property
    def name(self) -> str:
        where = [f"{name}={value}" for name, value in self.where]
        return f"{self.scenario} {', '.join((*self.cases, *where))}".rstrip()


@dataclass(frozen=True)
class When:
    """The ruling is `word` if every part ran and shows what it should; `reason` is given what each part found."""

    word: str
    parts: tuple[Part, ...]
    reason: Callable[..., str]

    def __call__(self, evidence: Evidence) -> Ruling:
        found = [part.found(evidence) for part in self.parts]
        absent = [part.name for part, listed in zip(self.parts, found) if not listed]
        if absent:
            return Ruling(NOT_TESTED, f"not run here: {'; '.join(absent)}", ())
        wrong = [text for part, listed in zip(self.parts, found) for text in [_wrong(part, listed)] if text]
        if wrong:
            said = "; ".join(wrong)
            return Ruling(NOT_TESTED, f"what should decide it came out otherwise, so it is left open: {said}", ())
        rested = dict.fromkeys(digest for listed in found for digest in digests(listed))
        return Ruling(self.word, self.reason(*found), tuple(rested))


def _wrong(part: Part, listed: Found) -> str:
    """The first replay that does not show what it should. Empty if all do."""
    for replay, context in listed:
        verdict = judge(replay, context)
        if verdict.word != AS_EXPECTED:
            return f"{part.scenario} {replay.spec.question.label()}: {'; '.join(verdict.reasons)}"
    return ""


# Figures.


def _count(listed: Found) -> str:
    return f"{len(listed)} of {len(listed)} replays"


def _observed(replay: Replay, name: str) -> Any:
    seen = replay.plain.observation if replay.plain else None
    return next((one.value for one in (seen.observed if seen else ()) if one.name == name), None)


def _grown(replay: Replay, phase: str, *, peak: bool) -> int | None:
    seen = replay.plain.observation if replay.plain else None
    rows = [row for row in (seen.memory if seen else ()) if row.phase == phase]
    return rows[0].grown(peak=peak) if rows else None


def _range(values: Sequence[float], digits: int = 2) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _scores(listed: Found) -> list[float]:
    """Peaks in score tensors."""
    peaks = [(_grown(replay, "forward", peak=True), _observed(replay, "score tensor, bytes")) for replay, _ in listed]
    return [peak / score for peak, score in peaks if peak is not None and score]


def _dense(uncompiled: Found, compiled: Found) -> str:
    fits = [
        curve.fit
        for one in measured(point for replay, _ in uncompiled for point in points(replay))
        for curve in one.curves
        if curve.fit is not None
    ]
    power = "".join(f", with an exponent of {fit.exponent:.2f} ± {fit.error:.2f}" for fit in fits[:1])
    places = [replay.spec.question.parameters.get("keys", 0) for replay, _ in uncompiled]
    largest = max((_grown(replay, "forward", peak=True) or 0 for replay, _ in compiled), default=0)
    return (
        f"uncompiled, the forward peak is {_range(_scores(uncompiled))} score tensors at {min(places)} to "
        f"{max(places)} keys{power}; compiled it is at most {largest / 2**20:.1f} MiB"
    )


# Claims.


_SOURCE = "DFlash compile-checkpoint note"

# CUDA's message rounds what it says.
_TOO_LARGE = Part(REFUSED, ("uncompiled",), device="cpu")
_ANOTHER_MASK = "compiled_with_another_mask_at_each_step"
_UNCOMPILED, _COMPILED = Part(MEMORY, ("uncompiled",)), Part(MEMORY, ("compiled",))


def _forced(kind: str) -> tuple[Part, ...]:
    """Calls that fail because another thread traces or compiles a backward, with this kind of checkpoint."""
    where = (("checkpoint_kind", kind),)
    return (
        Part(TRACES, ("called_while_another_thread_traces",), where),
        Part(BACKWARD, ("called_while_another_backward_is_compiled",), where),
    )


def _alone(kind: str) -> Part:
    return Part(TRACES, ("nothing_traces",), (("checkpoint_kind", kind),))


def _race(kind: str) -> Part:
    return Part(RACE, ("trained_from_cold",), (("checkpoint_kind", kind),))


def _rate(listed: Found) -> str:
    """Of the natural race: rounds that failed, of how many."""
    rounds = [(_observed(replay, "rounds that failed"), _observed(replay, "rounds")) for replay, _ in listed]
    return f"{sum(failed or 0 for failed, _ in rounds)} of {sum(all_ or 0 for _, all_ in rounds)} rounds"


def _no_part_of_checkpoint(alone: Found, traced: Found, compiling: Found, race: Found) -> str:
    return (
        "checkpoint(use_reentrant=False) traces nothing: with nothing else tracing, compiled functions work under it "
        f"({_count(alone)}). The error comes without any checkpoint, when another thread is inside a trace "
        f"({_count(traced)}) or compiles its backward ({_count(compiling)}), and by itself in {_rate(race)} of two "
        "threads that train compiled replicas from cold"
    )


def _both_kinds(
    alone: Found, alone_reentrant: Found, traced: Found, compiling: Found, race: Found, race_non_reentrant: Found
) -> str:
    return (
        f"both halves: alone, compiled functions work under either kind ({_count([*alone, *alone_reentrant])}); with "
        f"another thread tracing or compiling a backward they fail under use_reentrant=True as well "
        f"({_count([*traced, *compiling])}); from cold, training failed in {_rate(race)} with the reentrant and in "
        f"{_rate(race_non_reentrant)} with the non-reentrant kind"
    )


def _explained(race: Found, backward: Found, forward: Found, repaired: Found) -> str:
    return (
        f"explained by a race, for which two threads are enough: without checkpoint {_rate(race)} failed. The window "
        f"is the lazy compilation of a backward, which traces for the whole process ({_count(backward)}), while that "
        f"of a forward hides its traces ({_count(forward)}); compiling forward and backward before the threads start "
        f"closes it ({_count(repaired)}). That a third thread should matter is not shown, and the training itself, on "
        "8 GPUs, is not repeated here"
    )


def _recompiled(tensor: Found, numbers: Found, functions: Found, lengths: Found, limit: Found) -> str:
    once, graphs = _observed(tensor[0][0], "steps that ran compiled"), _observed(numbers[0][0], "graphs")
    return (
        "a mask that changes with every batch is compiled once if what changes is the content of a tensor (1 graph for "
        f"{once} masks, {_count(tensor)}); a number that is compiled in ({_count(numbers)}), the number of joined "
        f"functions ({_count(functions)}), or a number or the lengths with dynamic=False ({_count(lengths)}) are "
        f"compiled each time, up to the recompile limit ({graphs} here), after which the steps run dense without an "
        f"error, unless asked to fail there ({_count(limit)})"
    )


def _held_and_peak(plain: Found, whole: Found, reentrant: Found, chunks: Found) -> str:
    told = []
    for name, listed in (
        ("plain", plain),
        ("checkpointed as a whole", whole),
        ("reentrant", reentrant),
        ("in 8 checkpointed chunks", chunks),
    ):
        for replay, _ in listed[:1]:
            held = _grown(replay, "forward", peak=False) or 0
            forward = _grown(replay, "forward", peak=True) or 0
            backward = held + (_grown(replay, "backward", peak=True) or 0)
            told.append(f"{name} {held / 2**20:.0f} MiB held, {max(forward, backward) / 2**20:.0f} at the peak")
    sizes = {_observed(replay, "bytes of a logits tensor") for replay, _ in plain}
    one = ", ".join(f"{size / 2**20:.0f} MiB" for size in sizes if size)
    return (
        "checkpointing lm_head and loss as a whole lowers what is held between forward and backward, not the peak; "
        f"chunks lower both. With a logits tensor of {one}: {'; '.join(told)}. One of 32,768 positions and 151,936 "
        "words takes 19,914,555,392 bytes"
    )


def _limits(*found: Found) -> str:
    named = [part.rpartition("/reentrant_")[2].replace("_", " ") for part in LIMITS]
    return f"reentrant checkpoint {'; '.join(named)}: each shown, {_count([pair for one in found for pair in one])}"


def _eight_gpus(_: Evidence) -> Ruling:
    reason = "needs 8 GPUs and the model; the arithmetic holds (19.5 / 13.5 = 1.444)"
    return Ruling(NOT_TESTED, reason, ())


def _masked(uncompiled: Found, compiled: Found, unmasked: Found, lists: Found) -> str:
    return (
        "the mask is applied: under causal, sliding-window, document and the note's own anchored masks the fallback's "
        f"values are those of a dense masked calculation within rounding ({_count([*uncompiled, *compiled])}, compiled "
        f"or not), and other than without a mask ({_count(unmasked)}). What it does not use is sparsity: its peak is "
        f"{_range(_scores(uncompiled))} score tensors with a mask, {_range(_scores(unmasked))} without one. It reads "
        "the mask function only: a block mask made of lists of blocks, without a function, leaves out nothing there "
        f"({_count(lists)})"
    )


def _sparse(compiled: Found, uncompiled: Found, memory: Found) -> str:
    name = "time at density 0.0625, of that at density 1"
    times = [[_observed(replay, name) for replay, _ in listed] for listed in (compiled, uncompiled)]
    return (
        f"a sixteenth of the blocks takes {_range([t for t in times[0] if t is not None])} of the time of all of them "
        f"compiled, {_range([t for t in times[1] if t is not None])} uncompiled, where the peak is "
        f"{_range(_scores(memory))} score tensors at every density"
    )


def _asked_for(listed: Found) -> list[int]:
    """Bytes of the refused allocations, the largest first; from the judgement, which has read them."""
    found = {
        int(expectation["bytes"])
        for replay, _ in listed
        for expectation in replay.spec.mark.expectations
        if expectation["kind"] == "refuses"
    }
    return sorted(found, reverse=True)


def _two_figures(refused: Found, counted: Found) -> str:
    asked = " and ".join(
        f"{bytes_:,} bytes ({bytes_ / 2**30:g} GiB, {bytes_ / 1e9:.1f} GB) with {keys:,} keys"
        for bytes_, keys in zip(_asked_for(refused), sorted(_keys(refused), reverse=True))
    )
    held = _observed(counted[0][0], "three and a quarter score tensors, GiB")
    return (
        f"the real call asks for {asked}. So the product is neither of the two figures, 298 is GiB and belongs to "
        "another number of keys, and one such tensor is not the whole need: the fallback holds three and a quarter, "
        f"{held:,} GiB"
    )


def _keys(listed: Found) -> set[int]:
    return {int(replay.spec.question.parameters["keys"]) for replay, _ in listed}


def _fits_nowhere(refused: Found, counted: Found) -> str:
    most, asked = _observed(counted[0][0], "most keys whose scores fit 95 GB"), _asked_for(refused)[0]
    return (
        f"the request of {asked:,} bytes is {asked / 95e9:.1f} times 95 GB; the scores of at most {most:,} keys would "
        "fit, of the note's 81,920"
    )


def _weighed(apart: Found, apart_in_backward: Found, forward: Found, around: Found, wrapped: Found, lock: Found) -> str:
    return (
        "with another thread tracing, reentrant checkpoint fails like the other kind "
        f"({_count(apart)}). Attention apart from what is checkpointed is safe during backward only "
        f"({_count(apart_in_backward)}). A context that switches the compiler off, for the whole forward "
        f"({_count(forward)}) or around flex_attention ({_count(around)}), does not stop a compiled function from "
        "being refused; torch.compiler.disable around it does, and then it runs uncompiled "
        f"({_count(wrapped)}). One lock around traces and steps helps, compiled ({_count(lock)})"
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "B1",
        _SOURCE,
        "Without torch.compile, flex_attention takes a dense fallback that materialises all scores.",
        When(SUPPORTED, (_UNCOMPILED, _COMPILED), _dense),
    ),
    Claim(
        "B2",
        _SOURCE,
        "The failed allocation was 298 GB, and the score tensor is 32 x 32768 x 81920 x 4 bytes = 328 GB.",
        When(REFUTED, (_TOO_LARGE, Part(REFUSED, ("counted",))), _two_figures),
    ),
    Claim(
        "B3",
        _SOURCE,
        "In the fallback the block mask is ignored.",
        When(
            REFUTED,
            tuple(
                Part(MASK, (case,))
                for case in ("uncompiled", "compiled", "without_the_mask", "lists_without_a_mask_function")
            ),
            _masked,
        ),
    ),
    Claim(
        "B4",
        _SOURCE,
        "Compiled, the block sparsity is used.",
        When(
            SUPPORTED,
            tuple(Part(SPARSITY, (case,)) for case in ("compiled", "uncompiled", "uncompiled_memory")),
            _sparse,
        ),
    ),
    Claim(
        "B5",
        _SOURCE,
        '"Detected that you are using FX to symbolically trace a dynamo-optimized function" came from '
        "checkpoint(use_reentrant=False), which uses FX tracing.",
        When(REFUTED, (_alone("non-reentrant"), *_forced("none"), _race("none")), _no_part_of_checkpoint),
    ),
    Claim(
        "B6",
        _SOURCE,
        "use_reentrant=True avoids the conflict and is compatible with compiled functions; use_reentrant=False is not.",
        When(
            REFUTED,
            (
                _alone("non-reentrant"),
                _alone("reentrant"),
                *_forced("reentrant"),
                _race("reentrant"),
                _race("non-reentrant"),
            ),
            _both_kinds,
        ),
    ),
    Claim(
        "B7",
        _SOURCE,
        "Switching compile off is no way out, because of memory.",
        When(
            SUPPORTED,
            (
                Part(MEMORY, ("compiled_but_forced_to_run_eagerly", "called_where_the_compiler_is_disabled")),
                _UNCOMPILED,
                _COMPILED,
            ),
            lambda off, uncompiled, compiled: (
                f"switched off by set_stance or torch.compiler.disable, the peak is {_range(_scores(off))} score "
                f"tensors; {_dense(uncompiled, compiled)}"
            ),
        ),
    ),
    Claim(
        "B8",
        _SOURCE,
        "The error appeared on going from 2 to 3 drafter GPUs, when more threads compiled at once.",
        When(
            SUPPORTED_IN_PART,
            (
                _race("none"),
                Part(BACKWARD, ("called_while_another_backward_is_compiled",)),
                Part(BACKWARD, ("called_while_another_forward_is_compiled",)),
                Part(RACE, ("forward_and_backward_compiled_before_the_threads_start",)),
            ),
            _explained,
        ),
    ),
    Claim(
        "B9",
        _SOURCE,
        "A per-device cache of compiled functions did not help.",
        When(
            SUPPORTED,
            (Part(TRACES, ("compiled_for_its_own_thread",)),),
            lambda own: (
                "what a call looks at is one variable of the process, not the function: a function compiled by and for "
                f"its own thread is refused all the same ({_count(own)})"
            ),
        ),
    ),
    Claim(
        "B10",
        _SOURCE,
        "The mask changes with every batch, so that compiling hardly pays.",
        When(
            SUPPORTED_IN_PART,
            (
                Part(RECOMPILES, (_ANOTHER_MASK,), (("mask", "tensor"), ("lengths", "same"))),
                Part(RECOMPILES, (_ANOTHER_MASK,), (("mask", "default argument"),)),
                Part(RECOMPILES, (_ANOTHER_MASK,), (("mask", "several functions"),)),
                Part(RECOMPILES, (_ANOTHER_MASK,), (("dynamic", False),)),
                Part(RECOMPILES, ("asked_to_fail_at_the_limit",)),
            ),
            _recompiled,
        ),
    ),
    Claim(
        "B11",
        _SOURCE,
        "Checkpointing lm_head and loss is what keeps the logits from running out of memory.",
        When(
            SUPPORTED_IN_PART,
            (
                Part(LOGITS, ("not_checkpointed_and_measured",)),
                Part(LOGITS, ("checkpointed_as_a_whole",)),
                Part(LOGITS, ("checkpointed_as_a_whole_and_reentrant",)),
                Part(LOGITS, ("in_checkpointed_chunks",)),
            ),
            _held_and_peak,
        ),
    ),
    Claim(
        "B12",
        _SOURCE,
        "Reentrant checkpoint has limits.",
        When(SUPPORTED, tuple(Part(name) for name in LIMITS), _limits),
    ),
    Claim(
        "B13",
        _SOURCE,
        "Three drafters instead of two lift throughput from 13.5 to 19.5 thousand tokens a second, 44 %.",
        _eight_gpus,
    ),
    Claim(
        "B14",
        _SOURCE,
        "No such allocation fits a GPU of 95 GB.",
        When(SUPPORTED, (_TOO_LARGE, Part(REFUSED, ("counted",))), _fits_nowhere),
    ),
    Claim(
        "B15",
        _SOURCE,
        "Of four ways out (separate scopes, compiler off for the forward, compiler off around flex_attention, "
        "reentrant checkpoint) the last was chosen, and works.",
        When(
            REFUTED,
            (
                Part(WAYS, ("attention_apart_from_the_checkpoint",), (("traced_during", "forward"),)),
                Part(WAYS, ("attention_apart_from_the_checkpoint",), (("traced_during", "backward"),)),
                Part(WAYS, ("compiler_switched_off",), (("around", "forward"),)),
                Part(WAYS, ("compiler_switched_off",), (("around", "attention"), ("switch", "set_stance"))),
                Part(WAYS, ("compiler_switched_off",), (("around", "attention"), ("switch", "disable"))),
                Part(WAYS, ("one_lock_around_traces_and_steps",)),
            ),
            _weighed,
        ),
    ),
)

ADVICE: tuple[Advice, ...] = (
    Advice(
        _SOURCE,
        "Compile forward and backward of every replica before the threads start.",
        RACE,
        ("forward_and_backward_compiled_before_the_threads_start",),
    ),
    Advice(_SOURCE, "Or hold one lock around steps that may compile.", RACE, ("one_lock_around_steps",)),
    Advice(_SOURCE, "Or give each device a process of its own.", RACE, ("a_process_for_each_replica",)),
    Advice(
        _SOURCE,
        "Or set torch._functorch.config.force_non_lazy_backward_lowering in every thread.",
        RACE,
        ("backward_compiled_with_the_forward",),
    ),
    Advice(
        _SOURCE,
        "Keep flex_attention compiled, with a block mask: its memory stays that of its output.",
        MEMORY,
        ("compiled",),
    ),
    Advice(
        _SOURCE,
        "Keep what changes in a mask in tensors, so that it is compiled once.",
        RECOMPILES,
        (_ANOTHER_MASK,),
    ),
    Advice(
        _SOURCE,
        "Give a block mask its mask function: uncompiled, nothing else of it is read.",
        MASK,
        ("lists_with_a_mask_function",),
    ),
    Advice(_SOURCE, "Calculate logits and loss in checkpointed chunks.", LOGITS, ("in_checkpointed_chunks",)),
    Advice(
        _SOURCE,
        "Use non-reentrant checkpoint: it has none of the reentrant kind's limits.",
        LIMITS[1],
        ("not_reentrant",),
    ),
)

"""A verdict is one of three words, and what could not be seen is neither of the first two."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
import samples

from experiments.core import verdict
from experiments.core.canonical_json import canonical, parse
from experiments.core.expectations import ScenarioError, expectation_from_json, expectation_to_json
from experiments.core.observation import Memory, Observed, Operator, StateChange, Tensor
from experiments.core.record import Record
from experiments.core.replay import Replay
from experiments.core.verdict import (
    AS_EXPECTED,
    CANNOT_SAY,
    NOT_AS_EXPECTED,
    Context,
    contexts,
    describe_outcome,
    instrument_effect,
    judge,
)
from experiments.scenario import (
    agrees,
    dies,
    differs,
    hangs,
    holds,
    no_gradient,
    peaks,
    raises,
    recomputes_without,
    refuses,
    shows,
    state_differs,
    varies,
)

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
MATH = "aten::_scaled_dot_product_attention_math"


@pytest.fixture
def bench():
    return samples.Bench()


def asked(*expectations, **changes):
    return samples.spec(expectations=tuple(expectation_to_json(one) for one in expectations), **changes)


def context(bench, reference=None, float64=None, repeats=()):
    alone = [None if one is None else bench.replay(one) for one in (reference, float64)]
    return Context(alone[0], alone[1], tuple(repeats), bench.blobs.get)


def outcome(kind, message=None, **changes):
    return replace(samples.outcome(kind, message), **changes)


def judged(bench, expectation, *tensors, against=None, **seen):
    record = bench.record(asked(expectation), *tensors, **seen)
    found = judge(bench.replay(record), against or context(bench))
    assert len(found.reasons) == 1
    assert found.reasons[0]
    return found.word


def raised(
    message, kind="torch.utils.checkpoint.CheckpointError", bases=("RuntimeError", "Exception"), phase="backward"
):
    return outcome("raised", message, type=kind, bases=bases, phase=phase)


NOT_RUN = outcome("not_run", detail="cuda")


# What every expectation shares.


ALL = [
    raises(ValueError),
    agrees(bitwise=True),
    agrees(within_rounding=True),
    differs(by_at_least=1),
    recomputes_without(MATH),
    state_differs("sdpa.math"),
    no_gradient("q"),
    peaks(at_most=1),
    holds(at_least=1),
    shows({"a name": [1, "two"]}, other=None),
    refuses(bytes=1),
    hangs(),
    dies(),
    varies(at_most=0.5),
]


@pytest.mark.parametrize("expectation", ALL, ids=lambda one: one.kind)
def test_a_case_that_lacks_what_it_needs_cannot_be_judged(bench, expectation):
    record = bench.record(asked(expectation, needs=("cuda",)), ended=NOT_RUN)
    found = judge(bench.replay(record), context(bench, repeats=[bench.replay(record)]))
    assert (found.word, found.reasons) == (CANNOT_SAY, ("not run: cuda",))


@pytest.mark.parametrize("expectation", ALL, ids=lambda one: one.kind)
def test_without_its_plain_pass_a_case_cannot_be_judged(bench, expectation):
    """A pass with an instrument does not speak for the case."""
    profiled = bench.record(asked(expectation, pass_="profiled"))
    assert judge(bench.replay(profiled), context(bench)).word == CANNOT_SAY


@pytest.mark.parametrize("expectation", ALL, ids=lambda one: one.kind)
def test_an_expectation_travels_as_json(expectation):
    assert expectation_from_json(expectation_to_json(expectation)) == expectation


@pytest.mark.parametrize(
    "data", [{"kind": "explodes"}, {}, {"kind": "hangs", "for": 3}, {"kind": "raises", "type": "A"}]
)
def test_an_expectation_of_another_version_is_refused(data):
    with pytest.raises(ScenarioError):
        expectation_from_json(data)


def test_the_worst_of_several_words_counts_and_every_reason_is_given(bench):
    """One thing that is not as expected is not outweighed, nor hidden behind what cannot be said."""
    ended = raised("different metadata")
    for expected, word in (
        ([raises("CheckpointError")], AS_EXPECTED),
        ([raises("CheckpointError"), recomputes_without(MATH)], CANNOT_SAY),
        ([raises("CheckpointError"), recomputes_without(MATH), hangs()], NOT_AS_EXPECTED),
    ):
        found = judge(bench.replay(bench.record(asked(*expected), ended=ended)), context(bench))
        assert found.word == word
        assert len(found.reasons) == len(expected)


@pytest.mark.parametrize("kind", ["finished", "raised", "timed_out", "out_of_memory", "died"])
def test_a_reference_is_expected_to_finish(bench, kind):
    record = bench.record(asked(role="reference"), ended=outcome(kind, "no"))
    found = judge(bench.replay(record), context(bench))
    assert found.word == (AS_EXPECTED if kind == "finished" else NOT_AS_EXPECTED)


# One expectation each.


@pytest.mark.parametrize(
    ("expectation", "ended", "word"),
    [
        (raises("CheckpointError", "different metadata"), raised("has different metadata now"), AS_EXPECTED),
        (raises("torch.utils.checkpoint.CheckpointError"), raised("x"), AS_EXPECTED),
        (raises(RuntimeError), raised("x"), AS_EXPECTED),
        (raises("CheckpointError"), raised(None), AS_EXPECTED),
        (raises("CheckpointError", "different metadata"), raised("something else"), NOT_AS_EXPECTED),
        (raises(ValueError), raised("x"), NOT_AS_EXPECTED),
        (raises("pointError"), raised("x"), NOT_AS_EXPECTED),
        (raises("CheckpointError"), outcome("finished"), NOT_AS_EXPECTED),
        (raises("CheckpointError"), outcome("timed_out"), NOT_AS_EXPECTED),
        (refuses(bytes=7), raised("you tried to allocate 7 bytes. Error"), AS_EXPECTED),
        (refuses(bytes=7), raised("Tried to allocate 7 bytes"), AS_EXPECTED),
        (refuses(bytes=7), raised("you tried to allocate 77 bytes"), NOT_AS_EXPECTED),
        (refuses(bytes=7), raised("no memory"), NOT_AS_EXPECTED),
        (refuses(bytes=7), raised("Tried to allocate 7 bytes", "ValueError", ("Exception",)), NOT_AS_EXPECTED),
        (refuses(bytes=7), outcome("finished"), NOT_AS_EXPECTED),
        (refuses(bytes=7), outcome("out_of_memory"), NOT_AS_EXPECTED),
        (hangs(), outcome("timed_out", detail="1 s"), AS_EXPECTED),
        (hangs(), outcome("finished"), NOT_AS_EXPECTED),
        (dies(), outcome("died", detail="SIGSEGV"), AS_EXPECTED),
        (dies(by="SIGSEGV"), outcome("died", detail="SIGSEGV"), AS_EXPECTED),
        (dies(by="SIGSEGV"), outcome("died", detail="SIGABRT"), NOT_AS_EXPECTED),
        (dies(), outcome("out_of_memory", detail="1 GiB"), NOT_AS_EXPECTED),
        (dies(), raised("x"), NOT_AS_EXPECTED),
    ],
)
def test_an_ending_is_the_expected_one_or_not(bench, expectation, ended, word):
    assert judged(bench, expectation, ended=ended) == word


@pytest.mark.parametrize(
    ("expectation", "ended"),
    [
        (raises("RuntimeError"), outcome("raised", "no such data", phase="inputs")),
        (hangs(), outcome("timed_out", phase="inputs", detail="after 3 seconds")),
        (hangs(), outcome("timed_out", detail="after 0.5 seconds")),
        (dies(), outcome("died", phase="inputs", detail="SIGABRT")),
        (raises("Exception"), outcome("raised", "returns no scalar", type="experiments.scenario.ScenarioError")),
    ],
)
def test_what_ends_before_the_case_is_called_is_no_ending_of_the_case(bench, expectation, ended):
    record = replace(bench.record(asked(expectation), ended=ended), observation=None)
    assert judge(bench.replay(record), context(bench)).word == CANNOT_SAY
    # What is expected to finish has not, so a mistake in the inputs still ends a sweep with 1.
    other = replace(bench.record(asked(agrees(bitwise=True)), ended=ended), observation=None)
    assert judge(bench.replay(other), context(bench)).word == NOT_AS_EXPECTED


@pytest.mark.parametrize(
    "expectation",
    [agrees(bitwise=True), agrees(within_rounding=True), differs(by_at_least=1), no_gradient("q")],
    ids=lambda one: one.kind,
)
@pytest.mark.parametrize("kind", ["raised", "timed_out", "out_of_memory", "died"])
def test_what_compares_tensors_expects_the_case_to_finish(bench, expectation, kind):
    assert judged(bench, expectation, ended=outcome(kind, "no")) == NOT_AS_EXPECTED


def with_output(bench, *numbers, dtype="float32", **changes):
    return bench.record(samples.spec(dtype=dtype, **changes), bench.tensor("output", "x", numbers, dtype))


@pytest.mark.parametrize(
    ("numbers", "word"),
    [([1.0, 2.0], AS_EXPECTED), ([1.0, 2.0 + 2**-22], NOT_AS_EXPECTED), ([1.0, float("nan")], NOT_AS_EXPECTED)],
)
def test_agrees_bitwise_means_every_bit(bench, numbers, word):
    against = context(bench, with_output(bench, 1.0, 2.0))
    assert judged(bench, agrees(bitwise=True), bench.tensor("output", "x", numbers), against=against) == word


def test_a_zero_of_the_other_sign_does_not_agree_bitwise(bench):
    against = context(bench, with_output(bench, 0.0))
    assert judged(bench, agrees(bitwise=True), bench.tensor("output", "x", [-0.0]), against=against) == NOT_AS_EXPECTED


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (2.0, AS_EXPECTED),
        (2.25, AS_EXPECTED),
        (2.5, AS_EXPECTED),
        (2.75 + 2**-9, NOT_AS_EXPECTED),
        (float("nan"), NOT_AS_EXPECTED),
    ],
)
def test_within_rounding_is_measured_against_float64(bench, number, word):
    """The reference errs by 0.25 from 2.25, so the case may err by twice that."""
    against = context(bench, with_output(bench, 4096.0, 2.0), with_output(bench, 4096.0, 2.25, dtype="float64"))
    out = bench.tensor("output", "x", [4096.0, number])
    assert judged(bench, agrees(within_rounding=True), out, against=against) == word


@pytest.mark.parametrize(("number", "word"), [(10.0, NOT_AS_EXPECTED), (1.0 + 2**-23, AS_EXPECTED)])
def test_an_element_is_not_excused_by_a_larger_one(bench, number, word):
    """In float64 the reference is exact; one unit in the last place of its largest element is 8."""
    against = context(bench, with_output(bench, 1e8, 1.0), with_output(bench, 1e8, 1.0, dtype="float64"))
    out = bench.tensor("output", "x", [1e8, number])
    assert judged(bench, agrees(within_rounding=True), out, against=against) == word


def test_an_infinity_of_another_sign_is_another_calculation(bench):
    exact = with_output(bench, -math.inf, 1.0, dtype="float64")
    against = context(bench, with_output(bench, math.inf, 1.0), exact)
    out = bench.tensor("output", "x", [math.inf, 1000.0])
    assert judged(bench, agrees(within_rounding=True), out, against=against) == CANNOT_SAY


def test_within_rounding_cannot_be_said_without_a_float64_reference(bench):
    other = bench.tensor("output", "x", [1.0, 2.5])
    expectation = agrees(within_rounding=True)
    assert judged(bench, expectation, other, against=context(bench, with_output(bench, 1.0, 2.0))) == CANNOT_SAY
    failed = bench.record(samples.spec(dtype="float64"), ended=raised("x"))
    assert judged(bench, expectation, other, against=context(bench, with_output(bench, 1.0, 2.0), failed)) == CANNOT_SAY


def test_within_rounding_cannot_be_said_of_a_tensor_without_a_float64_value(bench):
    """Nothing compared is not everything within rounding."""
    other = bench.tensor("output", "x", [1.0, 900.0])
    against = context(bench, with_output(bench, 1.0, 2.0), bench.record(samples.spec(dtype="float64")))
    assert judged(bench, agrees(within_rounding=True), other, against=against) == CANNOT_SAY


def test_the_bits_of_the_reference_need_no_float64_reference(bench):
    same = bench.tensor("output", "x", [1.0, 2.0])
    against = context(bench, with_output(bench, 1.0, 2.0))
    assert judged(bench, agrees(within_rounding=True), same, against=against) == AS_EXPECTED


@pytest.mark.parametrize(("number", "word"), [(2.7, AS_EXPECTED), (2.5, AS_EXPECTED), (2.25, NOT_AS_EXPECTED)])
def test_differs_is_a_size(bench, number, word):
    against = context(bench, with_output(bench, 1.0, 2.0))
    found = judged(bench, differs(by_at_least=0.5), bench.tensor("output", "x", [1.0, number]), against=against)
    assert found == word


def test_a_difference_from_a_reference_that_ran_once_says_so(bench):
    reference = bench.record(samples.spec(), bench.tensor("gradient", "a", [1.0]))
    record = bench.record(asked(differs(by_at_least=0.5)), bench.tensor("gradient", "a", [2.0]))
    again = bench.record(samples.spec(repeat=1), bench.tensor("gradient", "a", [1.0]))
    once = judge(bench.replay(record), context(bench, reference))
    assert (once.word, once.reasons[0].endswith("; the reference ran once")) == (AS_EXPECTED, True)
    twice = replace(context(bench, reference), reference_repeats=(bench.replay(reference), bench.replay(again)))
    assert "ran once" not in judge(bench.replay(record), twice).reasons[0]


def test_a_gradient_on_one_side_only_differs_and_does_not_agree(bench):
    against = context(bench, bench.record(samples.spec(), bench.tensor("gradient", "q", [1.0])))
    missing = bench.absent("gradient", "q")
    assert judged(bench, differs(by_at_least=5), missing, against=against) == AS_EXPECTED
    assert judged(bench, agrees(bitwise=True), missing, against=against) == NOT_AS_EXPECTED


@pytest.mark.parametrize("expectation", [agrees(bitwise=True), agrees(within_rounding=True), differs(by_at_least=1)])
def test_what_cannot_be_compared_is_not_judged(bench, expectation):
    out = bench.tensor("output", "x", [1.0, 2.0])
    unfinished = context(bench, bench.record(samples.spec(), ended=raised("x")))
    nothing = context(bench, bench.record(samples.spec(), bench.tensor("output", "y", [1.0])))
    for against in (context(bench), unfinished, nothing):
        assert judged(bench, expectation, out, against=against) == CANNOT_SAY
    against = replace(context(bench, with_output(bench, 1.0, 2.5)), fetch=lambda _: None)
    # That the bits are others is known without the content.
    word = NOT_AS_EXPECTED if expectation == agrees(bitwise=True) else CANNOT_SAY
    assert judged(bench, expectation, out, against=against) == word


def test_another_shape_does_not_agree_and_is_no_size(bench):
    out = bench.tensor("output", "x", [1.0, 2.0])
    against = context(bench, bench.record(samples.spec(), bench.tensor("output", "x", [1.0, 2.0], shape=(2, 1))))
    for expectation in (agrees(bitwise=True), agrees(within_rounding=True)):
        assert judged(bench, expectation, out, against=against) == NOT_AS_EXPECTED
    assert judged(bench, differs(by_at_least=1), out, against=against) == CANNOT_SAY


def test_an_output_that_the_reference_lacks_is_not_called_the_same(bench):
    """ "Same bits as the reference" must not rest on the tensors that happen to have one name."""
    against = context(bench, with_output(bench, 1.0))
    tensors = bench.tensor("output", "x", [1.0]), bench.tensor("output", "y", [900.0])
    assert judged(bench, agrees(bitwise=True), *tensors, against=against) != AS_EXPECTED


def profiled(bench, expectation, **operators):
    plain = bench.record(asked(expectation))
    listed = {phase: tuple(Operator(0, 0, name, ()) for name in names) for phase, names in operators.items()}
    looked = bench.record(asked(expectation, pass_="profiled"), operators=listed)
    return judge(bench.replay(plain, looked), context(bench)).word


@pytest.mark.parametrize(
    ("forward", "again", "word"),
    [
        ([MATH, "aten::mm"], ["aten::mm", FLASH], AS_EXPECTED),
        # It lies outside the checkpoint, or after what recomputation stops at: nothing ran instead.
        ([MATH, "aten::mm"], ["aten::mm"], NOT_AS_EXPECTED),
        ([MATH, "aten::mm"], ["aten::mm", "aten::detach"], NOT_AS_EXPECTED),
        ([MATH], [MATH], NOT_AS_EXPECTED),
        (["aten::mm"], ["aten::mm"], NOT_AS_EXPECTED),
        (["aten::mm"], [MATH], NOT_AS_EXPECTED),
        ([MATH], [], NOT_AS_EXPECTED),
    ],
)
def test_recomputes_without_needs_the_operator_in_one_run_only(bench, forward, again, word):
    assert profiled(bench, recomputes_without(MATH), forward=forward, recomputation=again) == word


def test_operators_cannot_be_judged_without_a_profiled_pass(bench):
    assert judged(bench, recomputes_without(MATH)) == CANNOT_SAY
    plain = bench.record(asked(recomputes_without(MATH)))
    lost = replace(bench.record(asked(recomputes_without(MATH), pass_="profiled")), observation=None)
    assert judge(bench.replay(plain, lost), context(bench)).word == CANNOT_SAY


@pytest.mark.parametrize("expectation", [peaks("forward", at_most=1000), holds("forward", at_most=1000), shows(a=1)])
def test_what_a_case_shows_that_was_to_finish_counts_only_if_it_did(bench, expectation):
    rows = (Memory("forward", 100, 150, 120, None, None, None, None),)
    seen = {"memory": rows, "observed": (Observed("a", 1, "evidence", None),)}
    record = bench.record(asked(expectation), **seen)
    assert judge(bench.replay(record), context(bench)).word == AS_EXPECTED
    failed = judge(
        bench.replay(bench.record(asked(expectation), ended=raised("a typo", "NameError"), **seen)), context(bench)
    )
    assert (failed.word, failed.reasons[-1]) == (
        NOT_AS_EXPECTED,
        "expected to finish: raised NameError in backward: a typo",
    )
    both = bench.record(asked(expectation, raises("NameError")), ended=raised("a typo", "NameError"), **seen)
    assert judge(bench.replay(both), context(bench)).word == AS_EXPECTED


def test_what_died_before_its_inputs_is_none_of_the_cases_endings(bench):
    early = replace(bench.record(asked(dies()), ended=outcome("died", detail="lost")), observation=None)
    assert judge(bench.replay(early), context(bench)).word == CANNOT_SAY


def test_values_of_runs_that_all_fail_are_not_compared(bench):
    failed = [bench.replay(bench.record(asked(varies(of="values", at_most=0.9)), ended=raised("x")))] * 3
    assert judge(failed[0], context(bench, repeats=failed)).word == CANNOT_SAY


def test_what_the_reference_differs_from_itself_by_is_no_difference_of_the_case(bench):
    one, other, far = (bench.tensor("gradient", "a", [number, 1.0]) for number in (0.5, 0.5000001, 0.6))
    reference = bench.record(samples.spec(), one)
    again, exact = bench.record(samples.spec(repeat=1), other), bench.record(samples.spec(dtype="float64"), other)
    shaken = replace(context(bench, reference, exact), reference_repeats=(bench.replay(reference), bench.replay(again)))
    found = judge(bench.replay(bench.record(asked(differs(by_at_least=1e-9)), other)), shaken)
    assert (found.word, "differs from itself" in found.reasons[0]) == (CANNOT_SAY, True)
    assert judge(bench.replay(bench.record(asked(differs(by_at_least=1e-9)), far)), shaken).word != NOT_AS_EXPECTED


@pytest.mark.parametrize(
    ("dtype", "expectation", "word"),
    [
        ("float64", agrees(bitwise=True), NOT_AS_EXPECTED),
        ("int64", agrees(bitwise=True), NOT_AS_EXPECTED),
        ("int64", agrees(within_rounding=True), NOT_AS_EXPECTED),
        ("int64", differs(by_at_least=1.0), CANNOT_SAY),
    ],
)
@pytest.mark.parametrize("numbers", [[], [1, 2]])
def test_another_dtype_is_another_form(bench, dtype, expectation, word, numbers):
    against = context(bench, bench.record(samples.spec(), bench.tensor("output", "x", [float(one) for one in numbers])))
    mine = bench.tensor("output", "x", numbers, dtype)
    assert judged(bench, expectation, mine, against=against) == word


def test_state_differs_by_name(bench):
    left = (StateChange("sdpa.math", True, False),)
    assert judged(bench, state_differs("sdpa.math"), state=left) == AS_EXPECTED
    assert judged(bench, state_differs("sdpa.flash"), state=left) == NOT_AS_EXPECTED
    assert judged(bench, state_differs("sdpa.math")) == NOT_AS_EXPECTED


def test_state_cannot_be_judged_without_an_observation(bench):
    died = outcome("died", phase="forward")
    record = replace(bench.record(asked(state_differs("sdpa.math"), dies()), ended=died), observation=None)
    assert judge(bench.replay(record), context(bench)).word == CANNOT_SAY


def test_no_gradient_is_about_inputs_that_require_one(bench):
    none, some = bench.absent("gradient", "q"), bench.tensor("gradient", "k", [1.0])
    assert judged(bench, no_gradient("q"), none, some) == AS_EXPECTED
    assert judged(bench, no_gradient("q", "k"), none, some) == NOT_AS_EXPECTED
    assert judged(bench, no_gradient("v"), none, some) == CANNOT_SAY


@pytest.mark.parametrize(
    ("expectation", "word"),
    [
        (peaks(at_least=50), AS_EXPECTED),
        (peaks(at_most=50), AS_EXPECTED),
        (peaks(at_least=49, at_most=51), AS_EXPECTED),
        (peaks(at_least=51), NOT_AS_EXPECTED),
        (peaks(at_most=49), NOT_AS_EXPECTED),
        (peaks("backward", at_most=49), CANNOT_SAY),
    ],
)
def test_a_peak_is_above_what_was_held_before(bench, expectation, word):
    rows = (Memory("forward", 100, 150, 120, None, None, None, None),)
    assert judged(bench, expectation, memory=rows) == word


@pytest.mark.parametrize(
    ("held", "at_most", "said"),
    [(3 * 2**20, 2**21, "forward: 3 MiB at its peak above its start, expected at most 2 MiB"),
     (2**21 + 1, 2**21, "forward: 2097153 bytes at its peak above its start, expected at most 2097152 bytes")],
)  # fmt: skip
def test_a_size_is_told_in_units_that_show_how_it_differs_from_its_bound(bench, held, at_most, said):
    rows = (Memory("forward", 0, held, 0, None, None, None, None),)
    replay = bench.replay(bench.record(asked(peaks(at_most=at_most)), memory=rows))
    assert judge(replay, context(bench)).reasons == (said,)


def test_on_a_gpu_the_peak_is_the_gpus(bench):
    rows = (Memory("forward", 100, 900, 120, 10, 20, 10, None),)
    assert judged(bench, peaks(at_most=10), memory=rows) == AS_EXPECTED


@pytest.mark.parametrize("row", [(None, 150), (100, None)])
def test_a_peak_that_the_system_does_not_tell_cannot_be_judged(bench, row):
    rows = (Memory("forward", *row, 120, None, None, None, None),)
    assert judged(bench, peaks(at_most=1000), memory=rows) == CANNOT_SAY


@pytest.mark.parametrize(
    ("expectation", "word"),
    [
        (holds(at_least=20), AS_EXPECTED),
        (holds(at_most=20), AS_EXPECTED),
        (holds(at_least=20, at_most=20), AS_EXPECTED),
        (holds(at_least=21), NOT_AS_EXPECTED),
        (holds(at_most=19), NOT_AS_EXPECTED),
        (holds("backward", at_most=-5), AS_EXPECTED),
        (holds("backward", at_most=-6), NOT_AS_EXPECTED),
        (holds("inputs", at_most=1000), CANNOT_SAY),
    ],
)
def test_what_is_held_is_above_what_was_held_before(bench, expectation, word):
    """Not what the phase took meanwhile; a phase may also give up what was there before it."""
    rows = (
        Memory("forward", 100, 150, 120, None, None, None, None),
        Memory("backward", 120, 160, 115, None, None, None, 2**30),
    )
    assert judged(bench, expectation, memory=rows) == word


@pytest.mark.parametrize(
    ("expectation", "word"),
    [
        (holds(at_least=4, at_most=4), AS_EXPECTED),
        (holds(at_least=5), NOT_AS_EXPECTED),
        (peaks(at_least=10, at_most=10), AS_EXPECTED),
        (peaks(at_least=11), NOT_AS_EXPECTED),
    ],
)
def test_on_a_gpu_what_is_held_is_the_gpus(bench, expectation, word):
    rows = (Memory("forward", 100, 900, 500, 10, 20, 14, None),)
    assert judged(bench, expectation, memory=rows) == word


@pytest.mark.parametrize(
    "row",
    [
        Memory("forward", None, 150, 120, None, None, None, None),
        Memory("forward", 100, 150, None, None, None, None, None),
        Memory("forward", 100, 150, 120, 10, 20, None, None),
    ],
    ids=["start", "end", "end on a GPU"],
)
def test_what_the_system_does_not_tell_is_not_judged_as_held(bench, row):
    assert judged(bench, holds(at_most=1000), memory=(row,)) == CANNOT_SAY


# Observed values.


def told(*values):
    """As a worker leaves them: what was observed, and already as the record has it."""
    return tuple(Observed(name, parse(canonical([value]))[0], "evidence", None) for name, value in values)


def shown(bench, expectation, *values, **how):
    """The word on a record that has been written and read, as those of an archive have."""
    record = bench.record(asked(expectation), observed=told(*values), **how)
    found = judge(bench.replay(Record.from_text(record.text())), context(bench))
    assert len(found.reasons) == 1
    return found.word


@pytest.mark.parametrize(
    ("expected", "seen", "word"),
    [
        (True, True, AS_EXPECTED),
        (True, False, NOT_AS_EXPECTED),
        (True, 1, NOT_AS_EXPECTED),
        (0, False, NOT_AS_EXPECTED),
        (0, None, NOT_AS_EXPECTED),
        (None, None, AS_EXPECTED),
        ("MATH", "MATH", AS_EXPECTED),
        ("MATH", "math", NOT_AS_EXPECTED),
        ("1", 1, NOT_AS_EXPECTED),
        (1, 1.0, AS_EXPECTED),
        (0.1, 0.1, AS_EXPECTED),
        (0.1, 0.1 + 2**-56, NOT_AS_EXPECTED),
        (5e-324, 0.0, NOT_AS_EXPECTED),
        (-0.0, -0.0, AS_EXPECTED),
        (-0.0, 0.0, NOT_AS_EXPECTED),
        (0.0, -0.0, NOT_AS_EXPECTED),
        (0, -0.0, NOT_AS_EXPECTED),
        (math.nan, math.nan, AS_EXPECTED),
        (math.nan, 0.0, NOT_AS_EXPECTED),
        (math.inf, math.inf, AS_EXPECTED),
        (math.inf, -math.inf, NOT_AS_EXPECTED),
        (2**53, 2**53, AS_EXPECTED),
        (2**53, 2**53 + 1, NOT_AS_EXPECTED),
        (2**53 - 1, 2**53 - 1, AS_EXPECTED),
        (-(2**70), -(2**70), AS_EXPECTED),
        (1e300, 1e300, AS_EXPECTED),
        ([1, [2.5, None]], [1, [2.5, None]], AS_EXPECTED),
        ((1, (2.5, None)), [1, [2.5, None]], AS_EXPECTED),
        ([1, [2.5, None]], [1, [2.5]], NOT_AS_EXPECTED),
        ([1, 2], [2, 1], NOT_AS_EXPECTED),
        ([math.nan, -0.0, 2**60], [math.nan, -0.0, 2**60], AS_EXPECTED),
        ([math.nan, -0.0, 2**60], [math.nan, 0.0, 2**60], NOT_AS_EXPECTED),
        ([], [], AS_EXPECTED),
        ([], None, NOT_AS_EXPECTED),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, AS_EXPECTED),
        ({"a": 1}, {"a": 1, "b": 2}, NOT_AS_EXPECTED),
        ("half a pair: \ud800", "half a pair: \ud800", AS_EXPECTED),
    ],
)
def test_an_observed_value_is_the_expected_one_or_is_not(bench, expected, seen, word):
    """To the bit, and of the same kind: what two records would call the same evidence."""
    assert shown(bench, shows({"the value": expected}), ("the value", seen)) == word


def test_a_value_that_was_not_observed_is_not_as_expected(bench):
    """Also None: a case that did not get there has not shown it."""
    for expected in (1, None):
        assert shown(bench, shows(calls=expected), ("other", expected)) == NOT_AS_EXPECTED
        assert shown(bench, shows(calls=expected)) == NOT_AS_EXPECTED


def test_every_expected_value_counts_and_no_other(bench):
    expectation = shows(first=1, second=2)
    assert shown(bench, expectation, ("first", 1), ("second", 2), ("third", 3)) == AS_EXPECTED
    assert shown(bench, expectation, ("first", 1), ("second", 3)) == NOT_AS_EXPECTED
    assert shown(bench, expectation, ("first", 1)) == NOT_AS_EXPECTED


def test_what_was_observed_and_what_was_expected_is_said(bench):
    record = bench.record(asked(shows(calls=2, backend="MATH")), observed=told(("calls", 2)))
    (reason,) = judge(bench.replay(record), context(bench)).reasons
    assert reason == 'backend: not observed; calls: 2; expected backend: "MATH"'


def test_a_measurement_may_be_expected_too(bench):
    seen = (Observed("milliseconds", 3, "measurement", 0.5),)
    record = bench.record(asked(shows(milliseconds=3)), observed=seen)
    assert judge(bench.replay(record), context(bench)).word == AS_EXPECTED


@pytest.mark.parametrize("kind", ["raised", "timed_out"])
@pytest.mark.parametrize("expectation", [peaks(at_most=50), holds(at_most=20), shows(a=1)], ids=lambda one: one.kind)
def test_what_was_seen_of_a_case_that_is_to_end_otherwise_counts_whichever_way_it_ended(bench, expectation, kind):
    seen = {"memory": (Memory("forward", 100, 150, 120, None, None, None, None),), "observed": told(("a", 1))}
    ends = raises("Error") if kind == "raised" else hangs()
    ended = raised("no", "Error") if kind == "raised" else outcome(kind, "no")
    record = bench.record(asked(expectation, ends), ended=ended, **seen)
    assert judge(bench.replay(record), context(bench)).word == AS_EXPECTED
    alone = judge(bench.replay(bench.record(asked(expectation), ended=ended, **seen)), context(bench))
    assert (alone.word, alone.reasons[-1].startswith("expected to finish: ")) == (NOT_AS_EXPECTED, True)


def test_without_an_observation_nobody_can_say_what_was_observed(bench):
    record = bench.record(asked(shows(calls=2), dies()), ended=outcome("died", phase="forward"))
    assert judge(bench.replay(replace(record, observation=None)), context(bench)).word == CANNOT_SAY


def test_observed_tensors_are_no_values(bench):
    """They are compared with the reference's."""
    record = bench.record(asked(shows(scores=1.0)), bench.tensor("output", "scores", [1.0]))
    assert judge(bench.replay(record), context(bench)).word == NOT_AS_EXPECTED


# What varies.


@pytest.mark.parametrize(
    ("endings", "word"),
    [
        (["finished", "raised", "finished", "finished"], AS_EXPECTED),
        (["raised", "raised", "finished", "died"], NOT_AS_EXPECTED),
        (["finished", "finished"], NOT_AS_EXPECTED),
        (["raised", "not_run", "finished", "not_run"], AS_EXPECTED),
    ],
)
def test_what_varies_is_judged_by_its_rate(bench, endings, word):
    expectation = varies(at_least=0.1, at_most=0.5)
    made = [bench.replay(bench.record(asked(expectation, repeat=n), ended=outcome(k))) for n, k in enumerate(endings)]
    assert judge(made[0], context(bench, repeats=made)).word == word


def test_without_a_repeat_that_ran_a_rate_cannot_be_judged(bench):
    assert judged(bench, varies(at_most=0.5)) == CANNOT_SAY


# What a replay is judged against.


def case(bench, name="case", **changes):
    return bench.replay(bench.record(samples.spec(name, **changes), bench.tensor("output", "x", [1.0])))


def family(bench, **others):
    """Reference, float64 reference and case, in three repeats; the last from copied sources."""
    settings = [{"repeat": 0}, {"repeat": 1}, {"repeat": 2, "sources": "copied"}]
    references = [case(bench, "reference", **setting) for setting in settings]
    exact = case(bench, "reference", dtype="float64", repeat=0)
    named = {
        "reference": references[0].spec.question.case_digest(),
        "float64": exact.spec.question.case_digest(),
    }
    return references, exact, [case(bench, **named, **setting, **others) for setting in settings]


def test_a_replay_is_judged_against_the_reference_of_its_repeat(bench):
    references, exact, cases = family(bench)
    found = contexts([*references, exact, *cases], bench.blobs.get)
    assert [one.reference for one in found[4:]] == references
    assert [one.float64 for one in found[4:]] == [exact] * 3
    assert all(one.repeats == tuple(cases) for one in found[4:])
    assert found[0].reference is None
    assert found[0].repeats == tuple(references)


def test_another_repeat_serves_where_that_of_the_same_is_missing(bench):
    references, exact, cases = family(bench)
    found = contexts([references[1], exact, *cases], bench.blobs.get)
    assert [one.reference for one in found[2:]] == [references[1]] * 3


def test_without_its_reference_a_replay_has_none(bench):
    _, _, cases = family(bench)
    assert [(one.reference, one.float64) for one in contexts(cases, bench.blobs.get)] == [(None, None)] * 3


@pytest.mark.parametrize(
    "other", [{"timeout": 5.0}, {"memory": 2**30}, {"attempt": 1}], ids=lambda one: next(iter(one))
)
def test_limits_and_attempts_do_not_choose_the_reference(bench, other):
    """A case with a time limit of its own still has a reference in its repeat."""
    references, exact, cases = family(bench, **other)
    found = contexts([*references, exact, *cases], bench.blobs.get)
    assert [one.reference for one in found[4:]] == references


# What an instrument changes, and how an ending is said.


def test_an_instrument_that_changes_the_ending_is_named(bench):
    plain = bench.record(samples.spec())
    looked = bench.record(samples.spec(pass_="profiled"), ended=raised("no"))
    text = instrument_effect(bench.replay(plain, looked))
    assert text.startswith("profiled pass: raised torch.utils.checkpoint.CheckpointError in backward: no")
    assert text.endswith("plain pass: finished")


def test_an_instrument_that_changes_a_bit_is_named(bench):
    plain, looked = (
        bench.record(samples.spec(pass_=name), bench.tensor("output", "x", [number]))
        for name, number in (("plain", 1.0), ("profiled", 2.0))
    )
    assert instrument_effect(bench.replay(plain, looked)) == "profiled pass: other tensor bits than the plain pass"


def test_an_instrument_that_changes_nothing_is_not_named(bench):
    plain, looked = (
        bench.record(samples.spec(pass_=name), bench.tensor("output", "x", [1.0])) for name in ("plain", "profiled")
    )
    assert instrument_effect(bench.replay(plain, looked)) == ""
    assert instrument_effect(Replay({"profiled": looked})) == ""


@pytest.mark.parametrize(
    ("ended", "shown"),
    [
        (outcome("finished"), "finished"),
        (outcome("timed_out", detail="60 s"), "timed_out (60 s)"),
        (raised("first\nsecond"), "raised torch.utils.checkpoint.CheckpointError in backward: first"),
        (raised("", kind="ValueError", phase="forward"), "raised ValueError in forward"),
        (raised(None, kind="ValueError", phase="forward"), "raised ValueError in forward"),
    ],
)
def test_an_ending_is_said_in_one_line(bench, ended, shown):
    assert describe_outcome(bench.record(samples.spec(), ended=ended)) == shown


def test_a_missing_gradient_has_no_digest(bench):
    """What `no_gradient` and the comparison of gradients rest on."""
    assert bench.absent("gradient", "q") == Tensor("gradient", "q", None, None, "", None, False, *[None] * 4)


def test_rulings_have_five_words():
    """As published: another word would be read as another ruling."""
    words = (verdict.SUPPORTED, verdict.SUPPORTED_IN_PART, verdict.REFUTED, verdict.CANNOT_DECIDE, verdict.NOT_TESTED)
    assert words == ("supported", "supported in part", "refuted", "cannot decide", "not tested here")
    assert (AS_EXPECTED, NOT_AS_EXPECTED, CANNOT_SAY) == ("as expected", "not as expected", "cannot say")


# Which replay is held against which.


def some_replays(bench, random, count):
    """Replays of two cases in settings drawn from a few, so that many are alike in some way."""
    made = []
    for number in range(count):
        record = samples.record(seed=number, asked=asked(case=random.choice("ab"), reference=REFERENCE))
        setting = replace(
            record.spec.setting,
            environment=random.choice(("one", "two")),
            variables=random.choice(({}, {"A": "1"})),
            repeat=random.randrange(3),
            isolation=random.choice(("fresh", "forked")),
            hash_seed=random.randrange(2),
        )
        seen = replace(record.observation, machine=random.choice("mn") * 64)
        made.append(bench.replay(replace(record, spec=replace(record.spec, setting=setting), observation=seen)))
    return made


def slowly(replay, candidates):
    """The rule, word for word: the first of the least."""

    def distance(other):
        ours, theirs = replay.spec.setting, other.spec.setting
        names = ("environment", "interpreter", "variables", "repeat", "sources", "isolation", "hash_seed")
        return (replay.machine != other.machine, *(getattr(ours, name) != getattr(theirs, name) for name in names))

    return min(candidates, key=distance, default=None)


REFERENCE = samples.spec(case="a").question.case_digest()


@pytest.mark.parametrize("seed", range(20))
def test_a_replay_is_held_against_the_one_that_is_run_most_like_it(bench, seed):
    made = some_replays(bench, Random(seed), 40)
    references = [one for one in made if one.spec.question.case_digest() == REFERENCE]
    assert references
    for replay, found in zip(made, contexts(made, bench.blobs.get), strict=True):
        assert found.reference is slowly(replay, references)
        assert found.repeats == tuple(one for one in made if one.spec.question.case == replay.spec.question.case)
        assert found.reference_repeats == tuple(
            one
            for one in references
            if (one.machine, one.spec.setting.environment) == (replay.machine, replay.spec.setting.environment)
        )


def test_what_was_found_of_repeats_is_of_those_alone(bench):
    """It is kept for all contexts of a sweep: other repeats are counted anew, also where objects come and go."""
    expected = asked(varies(at_least=0.5))
    steady = [bench.replay(samples.record(seed=1, asked=expected)) for _ in range(4)]
    shared = contexts(steady, bench.blobs.get)
    assert {judge(one, context).word for one, context in zip(steady, shared, strict=True)} == {NOT_AS_EXPECTED}
    for number in range(50):
        others = tuple(bench.replay(samples.record(seed=10 * number + one, asked=expected)) for one in range(4))
        varied = replace(shared[0], repeats=others)
        assert judge(others[0], varied).word == AS_EXPECTED
        assert judge(steady[0], shared[0]).word == NOT_AS_EXPECTED

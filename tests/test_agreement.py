"""Two replays get a rank, their tensors get numbers, and what was not compared is never called equal."""

from __future__ import annotations

import ctypes
import math
import random
import struct
import time
from dataclasses import replace

import pytest
import samples
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.core import bounds
from experiments.core.agreement import LONGEST, RANKS, rank
from experiments.core.observation import Observed, Operator, StateChange
from experiments.core.operator_diff import align, first_difference
from experiments.core.replay import Replay
from experiments.core.rounding import Allowance, allowances, limits, noise, read_ruler
from experiments.core.sampling import SAMPLES, sample_positions
from experiments.core.tensor_diff import difference, differences, ulp_steps
from experiments.core.tensor_values import ulp, values

DTYPES = (
    *("float32", "float64", "float16", "bfloat16"),
    *("int8", "uint8", "int16", "int32", "int64", "bool"),
)
FLOATS = DTYPES[:4]
few = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def raw(tensor):
    flat = tensor.contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


@pytest.fixture
def bench():
    return samples.Bench()


def compared(bench, first, second, dtype="float32", other=None):
    """Difference of two tensors given as lists of numbers."""
    left, right = bench.tensor("output", "x", first, dtype), bench.tensor("output", "x", second, other or dtype)
    return difference(left, right, bench.blobs.get)


# Numbers out of bytes.


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_what_torch_reads_from_the_same_bytes(dtype):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (4096,), dtype=torch.uint8, generator=generator)
    made = (noise % 2).bool() if dtype == "bool" else noise.view(getattr(torch, dtype))
    expected = made.to(torch.float64) if dtype != "int64" else made
    read = values(raw(made), dtype)
    assert len(read) == made.numel()
    for ours, theirs in zip(read, expected.tolist(), strict=True):
        assert ours == theirs or (math.isnan(ours) and math.isnan(theirs))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "qint8", "nothing"])
def test_a_dtype_without_numbers_says_so(dtype):
    with pytest.raises(ValueError, match=f"{dtype} are compared by digest only"):
        values(b"\0" * 16, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_ulp_is_the_step_to_the_next_number(dtype):
    kind = getattr(torch, dtype)
    for number in (1.0, 1.5, 2.0, 3.0, 0.125, 1024.0, torch.finfo(kind).tiny, 0.0, torch.finfo(kind).tiny * 4):
        here = torch.tensor([number], dtype=kind)
        step = torch.nextafter(here, torch.tensor([math.inf], dtype=kind)).double() - here.double()
        assert ulp(number, dtype) == ulp(-number, dtype) == step.item(), number


def test_one_ulp_at_a_subnormal_is_the_smallest_step():
    assert ulp(1e-40, "float32") == 2.0**-149
    assert ulp(5e-324, "float64") == 5e-324


# One tensor against another.


def test_equal_digests_need_no_content(bench):
    """Records from elsewhere are compared even where their tensors were not brought along."""
    one = bench.tensor("output", "x", [1.0, 2.0])
    found = difference(one, one, lambda _: None)
    assert (found.absolute, found.equal_bits, found.compared, found.elements) == (0.0, 2, 2, 2)
    assert found.same_bits


def test_a_difference_has_size_place_in_bits_and_ulps(bench):
    found = compared(bench, [1.0, 2.0, -4.0], [1.0, 2.0 + 2**-21, -4.5])
    assert (found.elements, found.compared, found.equal_bits) == (3, 3, 1)
    assert found.absolute == 0.5
    assert found.relative == 0.5 / 4.5
    assert found.ulp == 2.0**20
    assert found.distance is None
    assert not found.same_bits


@pytest.mark.parametrize("dtype", FLOATS)
def test_neighbours_are_one_ulp_apart_across_zero_too(dtype):
    kind = getattr(torch, dtype)
    zero = torch.zeros(1, dtype=kind)
    least = torch.nextafter(zero, torch.ones(1, dtype=kind))
    pairs = [(1.0, torch.nextafter(torch.ones(1, dtype=kind), zero).item()), (0.0, least.item())]
    for first, second in pairs:
        assert compared(samples.Bench(), [first], [second], dtype).ulp == 1
    assert compared(samples.Bench(), [-least.item()], [least.item()], dtype).ulp == 2


def test_zeros_of_both_signs_are_equal_numbers_of_other_bits(bench):
    found = compared(bench, [0.0], [-0.0])
    assert (found.absolute, found.relative, found.ulp, found.equal_bits) == (0.0, 0.0, 0.0, 0)
    assert not found.same_bits


def test_nan_on_one_side_only_is_an_infinite_difference(bench):
    assert compared(bench, [math.nan, 1.0], [1.0, 1.0]).absolute == math.inf
    assert compared(bench, [1.0, 1.0], [math.nan, 1.0]).absolute == math.inf
    assert compared(bench, [1.0, math.nan], [2.0, math.nan]).absolute == 1.0


def test_nan_on_both_sides_is_no_distance_in_ulps_either(bench):
    quiet, negative = struct.pack("<I", 0x7FC00000), struct.pack("<I", 0xFFC00000)
    one = bench.tensor("output", "x", [1.0])
    first, second = (replace(one, digest=bench.keep(content)) for content in (quiet, negative))
    found = difference(first, second, bench.blobs.get)
    assert (found.absolute, found.ulp) == (0.0, 0.0)


def test_infinities_agree_with_themselves_only(bench):
    assert compared(bench, [math.inf, 1.0], [math.inf, 2.0]).absolute == 1.0
    assert compared(bench, [math.inf], [-math.inf]).absolute == math.inf
    assert compared(bench, [math.inf], [1.0]).absolute == math.inf


def test_a_difference_from_nothing_but_zeros_is_infinite_in_proportion(bench):
    assert compared(bench, [1.0], [0.0]).relative == math.inf


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_integers_and_flags_have_no_ulps(bench, dtype):
    found = compared(bench, [1, 0, 1], [1, 1, 1], dtype)
    assert (found.absolute, found.equal_bits) == (1, 2)
    assert math.isnan(found.ulp)


def test_bfloat16_is_compared_in_its_own_ulps(bench):
    found = compared(bench, [1.0, 3.0], [1.0, 3.0 + 2**-6], "bfloat16")
    assert (found.absolute, found.ulp, found.equal_bits) == (2**-6, 1, 1)


def test_another_dtype_is_compared_by_value_in_ulps_of_the_first(bench):
    """float32 against its float64 reference: no bits are equal, the error is exact."""
    exact = [1 / 3, 2 / 3]
    rounded = list(struct.unpack("<2f", struct.pack("<2f", *exact)))
    found = compared(bench, rounded, exact, "float32", "float64")
    assert found.absolute == max(abs(a - b) for a, b in zip(rounded, exact, strict=True))
    assert 0 < found.ulp <= 0.5
    assert found.equal_bits == 0
    assert found.dtype == "float32"


def test_equal_values_of_another_dtype_differ_by_nothing(bench):
    found = compared(bench, [1.0, 2.0], [1.0, 2.0], "float32", "float64")
    assert (found.absolute, found.ulp) == (0.0, 0.0)
    assert not found.same_bits


@pytest.mark.parametrize("missing", [0, 1])
def test_without_its_content_a_tensor_is_not_compared(bench, missing):
    pair = [bench.tensor("output", "x", [1.0]), bench.tensor("output", "x", [2.0])]
    del bench.blobs[pair[missing].digest]
    found = difference(*pair, bench.blobs.get)
    assert found.compared == 0
    assert math.isnan(found.absolute)
    assert not found.same_bits


def test_other_shapes_are_not_compared(bench):
    first, second = bench.tensor("output", "x", [1.0, 2.0]), bench.tensor("output", "x", [1.0, 2.0], shape=(2, 1))
    assert difference(first, second, bench.blobs.get).compared == 0


def test_a_dtype_without_numbers_is_not_compared(bench):
    """A scenario that observes a quantized tensor would otherwise end the whole report."""
    pair = [replace(bench.tensor("output", "x", [float(number)]), dtype="qint32") for number in (1, 2)]
    found = difference(*pair, bench.blobs.get)
    assert found.compared == 0
    assert not found.same_bits


def test_complex_numbers_are_compared_as_complex_numbers(bench):
    """3 and 4 apart in their parts are 5 apart; their unit in the last place is that of the parts."""
    first, second = (
        replace(bench.tensor("output", "x", numbers, shape=(2,)), dtype="complex64")
        for numbers in ([1.0, 1.0, 2.0, 0.0], [4.0, 5.0, 2.0, 0.0])
    )
    found = difference(first, second, bench.blobs.get)
    assert (found.elements, found.compared, found.equal_bits, found.absolute) == (2, 2, 1, 5.0)
    assert found.ulp == 5.0 / ulp(abs(complex(4.0, 5.0)), "float32")
    assert ulp_steps(first, first, bench.blobs.get) == [0, 0, 0, 0]


def test_a_complex_tensor_is_not_compared_with_a_real_one(bench):
    real = bench.tensor("output", "x", [1.0, 2.0])
    assert difference(real, replace(real, dtype="complex64", shape=(2,)), bench.blobs.get).compared == 0


def test_tensors_of_other_layouts_are_not_compared(bench):
    dense = bench.tensor("output", "x", [1.0, 2.0])
    assert not difference(dense, replace(dense, layout="jagged: 1, 1"), bench.blobs.get).same_bits


def test_two_empty_tensors_have_the_same_bits(bench):
    empty = bench.tensor("output", "x", [])
    assert difference(empty, empty, bench.blobs.get).same_bits


@few
@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=8))
def test_a_difference_has_no_direction(pairs):
    """Sizes and bits are those of the pair, whichever comes first."""
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    there, back = compared(samples.Bench(), left, right), compared(samples.Bench(), right, left)
    assert (there.absolute, there.ulp, there.equal_bits) == (back.absolute, back.ulp, back.equal_bits)
    assert (there.equal_bits == there.elements) == (samples.packed(left) == samples.packed(right))


# Tensors too large to be kept.


def sampled(bench, numbers, sketch=None):
    whole = bench.tensor("gradient", "x", numbers)
    kept = [numbers[place] for place in sample_positions(len(numbers))]
    sketched = None if sketch is None else bench.keep(samples.packed(sketch, "float64"))
    return replace(whole, whole=False, samples=bench.keep(samples.packed(kept)), sketch=sketched)


def test_a_sampled_tensor_says_how_much_was_compared(bench):
    numbers = [float(index) for index in range(5000)]
    place = sample_positions(5000)[7]
    other = [number + (2.0 if index == place else 0.0) for index, number in enumerate(numbers)]
    found = difference(sampled(bench, numbers), sampled(bench, other), bench.blobs.get)
    assert (found.elements, found.compared, found.equal_bits, found.absolute) == (5000, SAMPLES, SAMPLES - 1, 2.0)


def test_a_difference_outside_the_sample_is_not_the_same_bits(bench):
    """The digests differ, so the tensors do, even where every element that was kept is equal."""
    numbers = [float(index) for index in range(5000)]
    place = min(set(range(5000)) - set(sample_positions(5000)))
    other = [number + (2.0 if index == place else 0.0) for index, number in enumerate(numbers)]
    found = difference(sampled(bench, numbers, [0.0, 1.0]), sampled(bench, other, [3.0, 5.0]), bench.blobs.get)
    assert found.absolute == 0.0
    assert found.distance == 5.0
    assert not found.same_bits


def test_equal_sampled_tensors_have_the_same_bits(bench):
    one = sampled(bench, [float(index) for index in range(5000)])
    assert difference(one, one, bench.blobs.get).same_bits


def test_a_whole_tensor_is_compared_with_a_sample_at_the_places_of_the_sample(bench):
    """A float32 tensor may be small enough to be kept whole and its float64 twin not."""
    numbers = [float(index) for index in range(5000)]
    place = sample_positions(5000)[7]
    other = [number + (2.0 if index == place else 0.0) for index, number in enumerate(numbers)]
    whole = bench.tensor("gradient", "x", other)
    for pair in ((whole, sampled(bench, numbers)), (sampled(bench, numbers), whole)):
        found = difference(*pair, bench.blobs.get)
        assert (found.compared, found.equal_bits, found.absolute) == (SAMPLES, SAMPLES - 1, 2.0)


def test_steps_are_the_units_in_the_last_place_of_each_element(bench):
    left, right = bench.tensor("output", "x", [1.0, 2.0]), bench.tensor("output", "x", [1.0, 2.0 + 2**-21])
    assert ulp_steps(left, right, bench.blobs.get) == [0, 2]
    assert ulp_steps(left, right, lambda _: None) is None
    assert ulp_steps(left, bench.tensor("output", "x", [1.0, 2.0], "float64"), bench.blobs.get) is None
    assert (
        ulp_steps(bench.tensor("output", "x", [1, 2], "int64"), bench.tensor("output", "x", [1, 2], "int64"), {})
        is None
    )


# Tensors of two records.


def test_only_outputs_and_gradients_that_both_have_are_compared(bench):
    given_, out = bench.tensor("input", "q", [1.0]), bench.tensor("output", "x", [1.0])
    first = bench.record(
        samples.spec(), given_, out, bench.tensor("gradient", "q", [1.0]), bench.absent("gradient", "k")
    )
    second = bench.record(
        samples.spec(), given_, bench.absent("gradient", "q"), out, bench.tensor("gradient", "k", [1.0])
    )
    assert [(one.role, one.name) for one in differences(first, second, bench.blobs.get)] == [("output", "x")]
    assert differences(first, replace(second, observation=None), bench.blobs.get) == []


# Rounding.


def ruler(bench, numbers, exact, single=None, dtype="float32"):
    """Reference and float64 reference of these values."""
    first = [bench.tensor("output", "x", numbers, dtype)]
    second = [bench.tensor("output", "x", exact, "float64")]
    if single:
        first.append(bench.tensor("output", "loss", [single[0]], dtype))
        second.append(bench.tensor("output", "loss", [single[1]], "float64"))
    return bench.record(samples.spec(), *first), bench.record(samples.spec(dtype="float64"), *second)


def test_rounding_is_twice_what_the_reference_errs_and_its_last_place(bench):
    allowed = allowances(*ruler(bench, [4096.0, 2.0], [4096.0, 2.25]), bench.blobs.get)["output", "x"]
    assert allowed == Allowance(own_error=0.25, last_place=2.0**-11, carried=0.0)
    assert allowed.total == 2 * (0.25 + 2.0**-11)


def test_a_single_number_may_be_off_by_the_share_of_the_other_tensors(bench):
    """A sum can be right by chance; its terms show what its rounding could be."""
    allowed = allowances(*ruler(bench, [4096.0, 2.0], [4096.0, 2.25], single=(100.0, 100.0)), bench.blobs.get)
    share = allowed["output", "x"].total / 4096.0
    assert allowed["output", "loss"].own_error == 0.0
    assert allowed["output", "loss"].total == allowed["output", "loss"].carried == share * 100.0
    assert allowed["output", "x"].carried == 0.0


def test_a_single_number_alone_has_its_own_error_only(bench):
    allowed = allowances(*ruler(bench, [4096.0], [4096.25]), bench.blobs.get)["output", "x"]
    assert allowed.carried == 0.0
    assert allowed.own_error == 0.25


def test_what_cannot_be_measured_has_no_allowance(bench):
    reference, exact = ruler(bench, [4096.0, 2.0], [4096.0, 2.25])
    assert allowances(reference, exact, lambda _: None) == {}
    assert allowances(replace(reference, observation=None), exact, bench.blobs.get) == {}


# Rounding between two machines.


def machine_of(bench, numbers, reference, exact, repeats=()):
    """Noise of a case with these numbers, on a machine whose reference and float64 reference have those."""
    of = [bench.replay(bench.record(samples.spec(), bench.tensor("output", "x", some))) for some in (numbers, *repeats)]
    against, ruler_ = (bench.replay(one) for one in ruler(bench, reference, exact))
    return of[0], noise(of[0], against, ruler_, of, bench.blobs.get)


def between(bench, first, second):
    (ours, one), (theirs, other) = (machine_of(bench, *each) for each in (first, second))
    return ranked(bench, ours, theirs, limits(one, other)), limits(one, other)["output", "x"]


def test_two_machines_may_differ_by_what_each_reference_errs(bench):
    """Wrong on both machines, against float64, and by as much: no rounding makes it right, but they agree."""
    reference = [4096.0, 2.0]
    first, second = ([5.0, 2.0], reference, [4096.0, 2.25]), ([5.5, 2.0], reference, [4096.0, 2.5])
    found, limit = between(bench, first, second)
    assert limit.total == (0.25 + 2.0**-11) + (0.5 + 2.0**-11)
    assert (found.rank, limit.why) == (2, "the reference errs by as much in both settings, against float64")
    assert between(bench, ([6.0, 2.0], *first[1:]), second)[0].rank == 2
    assert between(bench, ([6.5, 2.0], *first[1:]), second)[0].rank == 4


def test_two_that_are_right_to_rounding_may_differ_by_both_allowances(bench):
    right = tuple(([4096.0, number], [4096.0, 2.0], [4096.0, 2.25]) for number in (2.7, 1.8))
    found, limit = between(bench, *right)
    assert found.rank == 2, "each is within 0.5 of 2.25"
    assert limit.why == "in each setting it is right to rounding, against float64"
    assert "right to rounding" in found.rule
    assert "output x by 0.9" in found.rule
    wrong = ([4096.0, 2.9], *right[0][1:])
    assert between(bench, wrong, right[1])[0].rank == 4, "by 1.1, and 2.9 is not right to rounding"


def test_what_repeats_differ_by_is_no_difference_between_machines(bench):
    exact = ([4096.0, 2.0], [4096.0, 2.0])
    first, second = ([4096.0, 2.0], *exact, [[4096.5, 2.0]]), ([4096.25, 2.0], *exact)
    found, limit = between(bench, first, second)
    assert (found.rank, limit.total, limit.why) == (2, 0.5, "repeats in one setting differ by as much")
    assert between(bench, ([4096.0, 2.0], *exact), second)[0].rank == 4


def test_repeats_that_are_not_one_calculation_measure_no_rounding(bench):
    """Numbers that are drawn anew in each run would allow any difference between two machines."""
    exact = ([4096.0, 2.0], [4096.0, 2.0])
    first, second = ([5.0, 2.0], *exact, [[8.0, 2.0]]), ([7.0, 2.0], *exact)
    assert between(bench, first, second)[0].rank == 4


# A ruler is one only while it is the same calculation.


@pytest.mark.parametrize(
    ("numbers", "exact", "why"),
    [
        ([1.0, 2.0], [1.0, 2.25], "fewer than half of the digits of float32 agree"),
        ([math.inf, 2.0], [1e39, 2.0], "one is finite where the other is not"),
        ([math.nan, 2.0], [4.0, 2.0], "one is finite where the other is not"),
        ([0.0, 0.0], [0.0, 1.0], "fewer than half of the digits of float32 agree"),
    ],
)
def test_a_float64_reference_of_another_calculation_is_no_ruler(bench, numbers, exact, why):
    """Noise drawn in another dtype, an overflow: what they differ by is no rounding, and allows nothing."""
    found = read_ruler(*ruler(bench, numbers, exact), bench.blobs.get)
    assert found.allowed == {}
    assert "another calculation" in found.refused["output", "x"]
    assert why in found.refused["output", "x"]


@pytest.mark.parametrize(
    ("dtype", "error", "fits"),
    [
        ("float32", 2.0**-12, True),
        ("float32", 2.0**-11, False),
        ("bfloat16", 2.0**-4, True),
        ("bfloat16", 2.0**-3, False),
        ("float16", 2.0**-6, True),
        ("float16", 2.0**-5, False),
    ],
)
def test_half_of_the_digits_of_the_dtype_must_agree(bench, dtype, error, fits):
    found = read_ruler(*ruler(bench, [1.0], [1.0 + error], dtype=dtype), bench.blobs.get)
    assert (("output", "x") in found.allowed) == fits


def test_infinities_in_the_same_places_are_the_same_calculation(bench):
    numbers = [math.inf, 4096.0, math.nan]
    assert read_ruler(*ruler(bench, numbers, numbers), bench.blobs.get).refused == {}


def test_what_no_ruler_measures_is_said_between_machines(bench):
    first, second = ([1.0, 2.5], [1.0, 2.0], [1.0, 2.25]), ([1.0, 2.75], [1.0, 2.0], [1.0, 2.25])
    found, limit = between(bench, first, second)
    assert math.isnan(limit.total)
    assert (found.rank, found.rule) == (4, "a tensor differs; what counts as rounding is not known")
    assert "the float64 reference is another calculation" in found.first


def test_without_a_ruler_nothing_is_rounding(bench):
    one = bench.replay(bench.record(samples.spec(), bench.tensor("output", "x", [1.0])))
    assert limits(*[noise(one, None, None, [one], bench.blobs.get)] * 2) == {}
    assert noise(bench.replay(made(bench).records["profiled"]), None, None, [], bench.blobs.get).own == {}


def test_a_sketch_beside_very_large_elements_bounds_no_small_one(bench):
    """Its sums are float64: beside an ordinary mask of -3.4e38 they lose an element of 100."""
    for largest, bounded in ((1.0, True), (3.4028234e38, False)):
        numbers = [largest if place % 2 else 1.0 for place in range(5000)]
        found = difference(*(sampled(bench, numbers, [0.0, 0.0]) for _ in range(2)), bench.blobs.get)
        assert found.at_most == 0.0, "the same digest is the same tensor"
        other = replace(sampled(bench, numbers, [0.0, 0.0]), digest="1" * 64)
        found = difference(sampled(bench, numbers, [0.0, 0.0]), other, bench.blobs.get)
        assert (found.at_most < 1e-9) == bounded


def test_a_sketch_finds_what_no_sample_shows(bench):
    """A sample that is within rounding does not speak for the elements that were not kept."""
    numbers = [float(index) for index in range(5000)]
    kept = set(sample_positions(5000))
    other = [number + (0.0 if index in kept else 1.0) for index, number in enumerate(numbers)]
    left, right = (
        bench.replay(bench.record(samples.spec(), sampled(bench, some, [start, 0.0])))
        for some, start in ((numbers, 0.0), (other, 60.0))
    )
    found = ranked(bench, left, right, {("gradient", "x"): Allowance(0.25, 0.0, 0.0)})
    assert found.rank == 4
    assert "at least 0.772 somewhere among its 5000 elements (from sketches, to 3%" in found.first
    undecided = ranked(bench, left, right, {("gradient", "x"): Allowance(0.4, 0.0, 0.0)})
    assert (undecided.rank, "do not decide" in undecided.rule) == (6, True), "one element may be off by 60"
    assert ranked(bench, left, right, {("gradient", "x"): Allowance(40.0, 0.0, 0.0)}).rank == 2


def test_a_case_whose_results_vary_says_so(bench):
    varying = {"expectations": ({"kind": "varies", "at_least": 0.0, "at_most": 1.0},)}
    found = ranked(bench, made(bench, 1.0, **varying), made(bench, 9.0, **varying))
    assert (found.rank, found.rule) == (
        6,
        "results vary from run to run by nature: one run is no evidence of another",
    )


# Operators.


def op(name, shapes=((2, 2),), depth=0, thread=0):
    return Operator(thread, depth, name, shapes)


LISTED = [op("aten::mm"), op("aten::add"), op("aten::mul"), op("aten::add"), op("aten::sum")]


def test_equal_lists_have_no_first_difference():
    assert first_difference(LISTED, list(LISTED)) is None
    assert first_difference([], []) is None
    assert all(step.same for step in align(LISTED, LISTED))


@pytest.mark.parametrize("place", range(6))
def test_an_inserted_operator_shifts_nothing(place):
    longer = [*LISTED[:place], op("aten::relu"), *LISTED[place:]]
    steps = align(LISTED, longer)
    assert [step.right.name for step in steps if not step.same] == ["aten::relu"]
    assert first_difference(LISTED, longer)[0] == place
    found = first_difference(longer, LISTED)
    assert found[0] == place
    assert (found[1].left, found[1].right) == (op("aten::relu"), None)


def test_another_shape_is_a_difference_at_its_place():
    other = [*LISTED[:2], op("aten::mul", ((4, 1),)), *LISTED[3:]]
    place, step = first_difference(LISTED, other)
    assert place == 2
    assert (step.left.shapes, step.right.shapes) == (((2, 2),), ((4, 1),))


def test_a_replaced_operator_stands_beside_its_replacement():
    other = [*LISTED[:2], op("aten::div"), *LISTED[3:]]
    assert [(s.left.name, s.right.name) for s in align(LISTED, other) if not s.same] == [("aten::mul", "aten::div")]


def test_an_operator_inside_another_is_not_the_same_as_one_outside():
    assert first_difference([op("aten::mm")], [op("aten::mm", depth=1)]) is not None


def test_aligning_keeps_every_operator_in_its_order():
    generator = random.Random(0)
    left, right = ([op(f"aten::{generator.choice('abc')}") for _ in range(30)] for _ in range(2))
    steps = align(left, right)
    assert [step.left for step in steps if step.left] == left
    assert [step.right for step in steps if step.right] == right


@pytest.mark.parametrize("seed", range(3))
def test_aligning_long_lists_keeps_every_operator_and_finds_the_first_difference(seed):
    generator = random.Random(seed)
    left = [op(f"aten::{generator.choice('abcdefgh')}") for _ in range(600)]
    right = [*left[:400], op("aten::more"), *left[400:]]
    steps = align(left, right)
    assert [step.left for step in steps if step.left] == left
    assert [step.right for step in steps if step.right] == right
    assert [(at, step.left) for at, step in enumerate(steps) if not step.same] == [(400, None)]


@pytest.mark.parametrize(
    ("ours", "theirs"), [("ab", "bac"), ("a?", "abcdef"), ("a", "ab"), ("abc", "cba"), ("a", "b"), ("ab", "a")]
)
def test_no_lists_of_operators_take_long(ours, theirs):
    """difflib takes the cube of their lengths at worst: hours for these."""
    # Half of what is read, as this machine may be slow.
    left, right = ([op(name) for name in many * (bounds.MOST_OPERATORS // 2 // len(many))] for many in (ours, theirs))
    began = time.process_time()
    steps = align(left, right)
    assert time.process_time() - began < 5
    assert [step.left for step in steps if step.left] == left
    assert [step.right for step in steps if step.right] == right


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_numbers_of_any_size_are_compared(bench, dtype):
    """The square of 1e200 is no float, nor is the absolute value of a complex number of two such."""
    huge = struct.pack("<2d", 1.7e308, 1.7e308)
    kept = [
        replace(bench.tensor("output", "x", [0.0]), dtype=dtype, digest=bench.keep(one), shape=(len(huge) // 8,))
        for one in (huge, bytes(16))
    ]
    pair = [replace(one, shape=(1,)) if dtype == "complex128" else one for one in kept]
    assert difference(*pair, bench.blobs.get).absolute >= 1.7e308
    sketched = [
        replace(one, sketch=bench.keep(packed))
        for one, packed in zip(pair, (struct.pack("<1024d", *[1e200] * 1024), bytes(8192)), strict=True)
    ]
    assert difference(*sketched, bench.blobs.get).distance == math.inf


# The rank.


def made(bench, *numbers, profiled=True, operators=None, **changes):
    """A replay with an input, one output of these numbers, and a profiled pass with these operators."""
    fields = {name: changes.pop(name) for name in ("observed", "state") if name in changes}
    ended = changes.pop("ended", None)
    tensors = (
        bench.tensor("input", "q", [changes.pop("given", 1.0)]),
        bench.tensor("output", "x", numbers or [1.0, 2.0]),
    )
    plain = bench.record(samples.spec(**changes), *tensors, ended=ended, **fields)
    if not profiled:
        return bench.replay(plain)
    looked = bench.record(
        samples.spec(pass_="profiled", **changes),
        *tensors,
        ended=ended,
        operators={"forward": tuple(operators or LISTED)},
    )
    return bench.replay(plain, looked)


ALLOWED = {("output", "x"): Allowance(own_error=0.25, last_place=0.0, carried=0.0)}


def ranked(bench, first, second, allowed=None):
    found = rank(first, second, bench.blobs.get, allowed)
    back = rank(second, first, bench.blobs.get, allowed)
    assert found.rank == back.rank
    assert found.word == RANKS[found.rank]
    return found


def test_rank_1_identical(bench):
    found = ranked(bench, made(bench), made(bench, repeat=1, sources="copied"))
    assert (found.rank, found.rule, found.first) == (1, "the evidence digests are equal", "")


def test_rank_2_equal_within_rounding(bench):
    found = ranked(bench, made(bench, 1.0, 2.0), made(bench, 1.0, 2.5), ALLOWED)
    assert (found.rank, found.first) == (2, "")
    assert found.rule == (
        "no tensor differs by more than rounding: output x by 0.5, allowed 0.5: "
        "the reference errs by as much, against float64"
    )
    assert [one.absolute for one in found.differences] == [0.5]


def test_rank_3_other_operators_same_outcome(bench):
    found = ranked(bench, made(bench), made(bench, operators=[*LISTED[:2], op("aten::div"), *LISTED[3:]]))
    assert (found.rank, found.rule) == (3, "other operators, no value beyond rounding")
    assert {"aten::mul", "aten::div"} == set(found.first.partition(": ")[2].split(" against "))
    assert found.first.startswith("profiled pass, forward, operator 2")


def test_rank_3_of_an_error_that_is_worded_otherwise(bench):
    """A release adds a word to a message: the case ends as it did."""
    first, second = (made(bench, ended=samples.outcome("raised", text)) for text in ("is refused", "is now refused"))
    found = ranked(bench, first, second)
    assert (found.rank, found.rule) == (3, "other wording of the error, no value beyond rounding")
    assert "is refused" in found.first
    assert "is now refused" in found.first


def test_rank_4_different_tensors(bench):
    found = ranked(bench, made(bench, 1.0, 2.0), made(bench, 1.0, 2.75), ALLOWED)
    assert (found.rank, found.rule) == (4, "a tensor differs by more than rounding")
    assert found.first == "output x differs by 0.75; rounding allows 0.5"


def test_rank_4_without_a_measure_of_rounding(bench):
    """No tolerance is assumed: without a float64 reference any other bit is a difference."""
    assert ranked(bench, made(bench, 1.0, 2.0), made(bench, 1.0, 2.0 + 2**-22)).rank == 4


def test_rank_4_of_a_value_that_the_case_observed(bench):
    two, three = (made(bench, observed=(Observed("calls", count, "evidence", None),)) for count in (2, 3))
    found = ranked(bench, two, three)
    assert (found.rank, found.rule) == (4, "an observed value differs")
    assert {"observed calls: 2 against 3"} >= {found.first}
    left = made(bench, state=(StateChange("sdpa.math", True, False),))
    assert ranked(bench, made(bench), left).first == "other switches were left changed"


def test_rank_4_of_a_gradient_on_one_side_only(bench):
    asked = samples.spec()
    first = bench.replay(bench.record(asked, bench.tensor("gradient", "q", [1.0])))
    second = bench.replay(bench.record(asked, bench.absent("gradient", "q")))
    found = ranked(bench, first, second)
    assert (found.rank, found.first) == (4, "other tensors are there, or of other shapes, dtypes or layouts")


def test_rank_5_different_outcome(bench):
    found = ranked(bench, made(bench), made(bench, ended=samples.outcome("raised", "no")))
    assert (found.rank, found.rule) == (5, "a pass ended otherwise")
    assert "RuntimeError in backward: no" in found.first
    assert "finished" in found.first


def test_rank_3_names_the_line_in_which_two_messages_differ(bench):
    """A message may list what ran, and begin alike."""
    first, second = (
        made(bench, ended=samples.outcome("raised", f"skipped:\n  - one\n{rest}"))
        for rest in ("  - two", "  - three\n  - x")
    )
    found = rank(first, second, bench.blobs.get)
    assert found.rank == 3
    assert found.first == "plain pass: RuntimeError in backward: skipped:; line 3: - two against - three"
    longer = made(bench, ended=samples.outcome("raised", "skipped:\n  - one\n  - two\n  - more"))
    assert rank(first, longer, bench.blobs.get).first.endswith("; line 4: nothing against - more")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (samples.outcome("raised", "no"), replace(samples.outcome("raised", "no"), type="ValueError")),
        (samples.outcome("raised", "no"), replace(samples.outcome("raised", "no"), phase="forward")),
        (samples.outcome("died"), replace(samples.outcome("died"), detail="SIGFPE")),
    ],
)
def test_rank_5_of_another_type_phase_or_signal(bench, ours, theirs):
    assert ranked(bench, made(bench, ended=ours), made(bench, ended=theirs)).rank == 5


def test_rank_5_of_a_profiled_pass_only(bench):
    whole = made(bench)
    looked = bench.record(whole.records["profiled"].spec, ended=samples.outcome("died"))
    found = ranked(bench, whole, bench.replay(whole.plain, looked))
    assert (found.rank, found.first.partition(":")[0]) == (5, "profiled pass")


@pytest.mark.parametrize(
    ("other", "rule"),
    [
        ({"case": "another"}, "they answer different questions"),
        ({"seed": 1}, "they answer different questions"),
        ({"source": "0" * 64}, "they answer different questions"),
        ({"given": 2.0}, "the inputs differ"),
    ],
)
def test_rank_6_cannot_compare(bench, other, rule):
    found = ranked(bench, made(bench), made(bench, **other))
    assert (found.rank, found.rule) == (6, rule)


def test_only_the_passes_that_both_have_are_compared(bench):
    assert ranked(bench, made(bench), made(bench, profiled=False)).rank == 1


def test_rank_6_of_what_was_not_observed(bench):
    ended = replace(samples.outcome("not_observed"), detail="output 'x' cannot be kept")
    assert ranked(bench, made(bench), made(bench, ended=ended)).rule == "not observed: output 'x' cannot be kept"


def test_rank_6_of_what_has_not_run(bench):
    ended = replace(samples.outcome("not_run"), detail="cuda")
    assert ranked(bench, made(bench), made(bench, ended=ended)).rule == "not run: cuda"
    both = made(bench, ended=ended)
    assert ranked(bench, both, both).rank == 6, "two that have not run do not agree"
    whole = made(bench)
    unseen = Replay({"profiled": whole.records["profiled"]})
    assert ranked(bench, whole, unseen).rule == "a plain pass is missing"


def test_rank_6_where_the_content_is_missing(bench):
    """What could not be measured is not a finding."""
    first, second = made(bench, 1.0, 2.0), made(bench, 1.0, 2.5)
    assert rank(first, second, lambda _: None, ALLOWED).rank == 6


def test_a_difference_in_the_profiled_pass_alone_is_not_rounding(bench):
    first = made(bench)
    second = bench.replay(first.plain, made(bench, 1.0, 900.0).records["profiled"])
    assert ranked(bench, first, second, ALLOWED).rank == 4


replays_ = st.fixed_dictionaries(
    {
        "numbers": st.lists(st.sampled_from([0.0, -0.0, 1.0, 1.5, math.nan, math.inf]), min_size=1, max_size=3),
        "given": st.sampled_from([1.0, 1.0, 2.0]),
        "ended": st.sampled_from([None, None, samples.outcome("raised", "a"), samples.outcome("timed_out")]),
        "observed": st.sampled_from([(), (Observed("n", 1, "evidence", None),)]),
        "operators": st.lists(st.sampled_from(LISTED), min_size=1, max_size=4),
        "profiled": st.sampled_from([True, True, True, False]),
    }
)


@few
@given(replays_)
def test_a_replay_is_identical_to_itself(fields):
    bench = samples.Bench()
    one = made(bench, *fields["numbers"], **{name: value for name, value in fields.items() if name != "numbers"})
    assert rank(one, one, bench.blobs.get, ALLOWED).rank == 1


@few
@given(replays_, replays_, st.sampled_from([None, ALLOWED]))
def test_the_rank_of_two_replays_has_no_direction(left, right, allowed):
    bench = samples.Bench()
    first, second = (
        made(bench, *fields["numbers"], **{name: value for name, value in fields.items() if name != "numbers"})
        for fields in (left, right)
    )
    found = ranked(bench, first, second, allowed)
    shared = first.records.keys() & second.records.keys()
    one, other = ({name: replay.records[name].agreement_digest() for name in shared} for replay in (first, second))
    assert (found.rank == 1) == (one == other), "identical means equal evidence, and nothing else does"


# Records that somebody else made.


@pytest.mark.parametrize("content", [b"", b"\0", b"\0" * 7, b"\0" * 4095])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_content_that_is_no_such_tensor_is_not_compared(bench, dtype, content):
    one = bench.tensor("output", "x", [1.0, 2.0], dtype)
    other = replace(one, digest=bench.keep(content))
    for pair in ((one, other), (other, one)):
        assert difference(*pair, bench.blobs.get).compared == 0
        assert ulp_steps(*pair, bench.blobs.get) is None
    numbers = [float(index) for index in range(5000)]
    odd = replace(sampled(bench, numbers), digest="0" * 64, samples=bench.keep(content), sketch=bench.keep(b"\0" * 7))
    assert difference(odd, sampled(bench, numbers, [0.0]), bench.blobs.get).compared == 0


def test_a_first_difference_is_no_longer_than_a_table_can_hold(bench):
    long = (made(bench, ended=samples.outcome("raised", text * 9999)) for text in "ab")
    assert len(ranked(bench, *long).first) < 2 * LONGEST + 100
    values_ = (made(bench, observed=(Observed("n", text * 9999, "evidence", None),)) for text in "ab")
    assert len(ranked(bench, *values_).first) < 2 * LONGEST + 100


def test_a_loss_in_double_precision_has_the_digits_of_what_it_is_calculated_from(bench):
    """As with ``attended.double().square().sum()`` of an attention in single precision."""
    pair = [bench.tensor("output", "loss", [number], "float64") for number in (100.0, 100.0 + 1e-5)]
    reference, exact = (
        bench.record(samples.spec(dtype=dtype), one) for dtype, one in zip(("float32", "float64"), pair)
    )
    assert ("output", "loss") in read_ruler(reference, exact, bench.blobs.get).allowed
    double = bench.record(samples.spec(dtype="float64"), pair[0])
    assert "digits of float64" in read_ruler(double, exact, bench.blobs.get).refused["output", "loss"]

"""Figures in sentences have as many digits as were measured, and say how often."""

import pytest

from experiments.core.quantities import (
    format_count,
    format_share,
    format_significant,
    median_and_range,
    range_cell,
    value_and_error,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3.85, "3.9"),
        (340.1, "340"),
        (0.01234, "0.0123"),
        (0.0234, "0.023"),
        (0.0, "0"),
        (-2.56, "-2.6"),
        (99.9, "100"),
        (1.2e9, "1.20e+09"),
        (106.95, "107"),
    ],
)
def test_two_digits_are_shown_of_a_measured_figure(value, shown):
    assert format_significant(value) == shown


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 7, ""),
        (1, 3, "33.3 %"),
        (3, 3, "100.0 %"),
        (9_997, 10_000, "> 99.9 %"),
        (1, 100_000, "< 0.1 %"),
        (1, 1000, "0.1 %"),
    ],
)
def test_a_share_is_never_rounded_to_nothing_or_to_all(part, whole, shown):
    assert format_share(part, whole) == shown


def test_a_figure_of_one_run_says_so():
    assert median_and_range([3.85], "MiB") == "3.9 MiB (one run)"


def test_a_figure_of_several_runs_is_their_median_with_its_range():
    assert median_and_range([3.6, 4.24, 3.85], "score tensors") == "3.9 score tensors (median of 3 runs, 3.6 to 4.2)"


def test_a_figure_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one measurement"):
        median_and_range([])
    with pytest.raises(ValueError, match="at least one measurement"):
        range_cell([])


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([3.85], "3.9 (one run)"),
        ([3.6, 4.24, 3.85], "3.9 (3 runs, 3.6 to 4.2)"),
        ([3.26, 3.28], "3.3 (2 runs, 3.26 to 3.28)"),
    ],
)
def test_a_cell_of_a_table_says_how_often_it_was_measured(values, shown):
    assert range_cell(values) == shown


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (1.99638, 0.000213, "1.9964 ± 0.0002"),
        (1.9812, 0.0271, "1.98 ± 0.03"),
        (1.9812, 0.0137, "1.981 ± 0.014"),
        (2.04, 0.0996, "2.04 ± 0.10"),
        (-0.5, 0.2, "-0.5 ± 0.2"),
        (123456.0, 2300.0, "123000 ± 2000"),
        (1.3, 25.0, "0 ± 20"),
        (0.0, 0.4, "0.0 ± 0.4"),
        (-0.01, 0.4, "0.0 ± 0.4"),
    ],
)
def test_an_error_leaves_its_value_the_digits_that_it_does_not_blur(value, error, shown):
    assert value_and_error(value, error) == shown


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (1.9981234, 0.0, "1.998 (no scatter)"),
        (2.0, 3e-16, "2 (no scatter)"),
        (0.0, 0.0, "0 (no scatter)"),
        (2.04, float("nan"), "2.0 (error not known)"),
        (2.04, float("inf"), "2.0 (error not known)"),
        (2.04, -1.0, "2.0 (error not known)"),
    ],
)
def test_an_error_that_says_nothing_is_not_printed_as_zero(value, error, shown):
    assert value_and_error(value, error) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(2097152.0, "2097152"), (0.0, "0"), (0.125, "0.125"), (1.23456, "1.23"), (float("nan"), "nan")]
)
def test_what_is_counted_keeps_every_digit(value, shown):
    assert format_count(value) == shown

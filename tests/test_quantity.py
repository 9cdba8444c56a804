"""Figures in sentences have as many digits as were measured, and say how often."""

import pytest

from experiments.quantity import median_and_range, significant, with_error


@pytest.mark.parametrize(
    ("value", "shown"),
    [(3.85, "3.9"), (340.1, "340"), (0.01234, "0.012"), (0.0, "0"), (-2.56, "-2.6"), (99.9, "100"), (1.2e9, "1.2e+09")],
)
def test_two_digits_are_shown_of_a_measured_figure(value, shown):
    assert significant(value) == shown


def test_a_figure_of_one_run_says_so():
    assert median_and_range([3.85], "MiB") == "3.9 MiB (one run)"


def test_a_figure_of_several_runs_is_their_median_with_its_range():
    assert median_and_range([3.6, 4.24, 3.85], "score tensors") == "3.9 score tensors (median of 3 runs, 3.6 to 4.2)"


def test_a_figure_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one measurement"):
        median_and_range([])


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
    assert with_error(value, error) == shown


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
    assert with_error(value, error) == shown

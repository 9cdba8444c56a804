"""Figures in sentences have as many digits as were measured, and say how often."""

import pytest

from experiments.quantity import median_and_range, significant


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

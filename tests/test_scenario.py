"""The words a scenario is written in: what they refuse, and that expectations travel as JSON."""

from __future__ import annotations

import pytest

from experiments.core import expectations
from experiments.core.canonical_json import canonical, parse
from experiments.core.expectations import ScenarioError, expectation_from_json, expectation_to_json
from experiments.scenario import (
    CAUSES,
    Scenario,
    agrees,
    dies,
    differs,
    hangs,
    holds,
    no_gradient,
    observe,
    peaks,
    raises,
    recomputes_without,
    refuses,
    shows,
    state_differs,
    varies,
)

EXPECTATIONS = [
    raises(ValueError, "text"),
    raises("torch.OutOfMemoryError"),
    agrees(bitwise=True),
    agrees(within_rounding=True),
    differs(by_at_least=0.5),
    recomputes_without("aten::mm"),
    state_differs("sdpa.math"),
    no_gradient("query", "key"),
    peaks(at_least=1, at_most=2),
    peaks("backward", at_most=2),
    holds(at_least=1),
    holds("backward", at_least=-1, at_most=2),
    shows(compiled=False),
    shows({"a name": [1, [0.5]]}, other="x"),
    refuses(bytes=2**40),
    hangs(),
    dies(),
    dies(by="SIGSEGV"),
    varies(at_least=0.25),
]


@pytest.fixture
def scenario():
    return Scenario(source="a test")


def case(weight):
    return weight


@pytest.mark.parametrize("expectation", EXPECTATIONS, ids=lambda one: one.kind)
def test_an_expectation_reads_back_from_json(expectation):
    """Old records are judged by it, without the file that it came from."""
    text = canonical(expectation_to_json(expectation))
    assert expectation_from_json(parse(text)) == expectation


def test_every_kind_of_expectation_is_covered_here():
    assert {expectation.kind for expectation in EXPECTATIONS} == set(expectations._KINDS)


def test_a_kind_that_is_unknown_is_refused_with_the_known_ones():
    with pytest.raises(ScenarioError, match="expectation 'melts' is unknown; known are agrees, dies"):
        expectation_from_json({"kind": "melts"})


@pytest.mark.parametrize("data", [{"kind": "agrees"}, {"kind": "hangs", "for": 3}, {"kind": "raises", "type": "A"}])
def test_other_fields_than_the_known_are_refused(data):
    with pytest.raises(ScenarioError, match="has other fields than this version knows"):
        expectation_from_json(data)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (agrees, "exactly one of bitwise"),
        (lambda: agrees(bitwise=True, within_rounding=True), "exactly one of bitwise"),
        (lambda: differs(by_at_least=0), "give a size above 0"),
        (lambda: differs(by_at_least=-1.0), "give a size above 0"),
        (lambda: differs(by_at_least=float("nan")), "give a size above 0"),
        (no_gradient, "names of the inputs"),
        (lambda: peaks("forward"), "at_least=, at_most= or both"),
        (lambda: holds("forward"), r"holds\(\) needs at_least=, at_most= or both"),
        (shows, "needs the observed values"),
        (lambda: shows({}), "needs the observed values"),
        (lambda: varies(at_least=0.6, at_most=0.5), "not a range"),
        (lambda: varies(at_least=-0.1), "not a range"),
        (lambda: varies(at_most=1.1), "not a range"),
        (lambda: Scenario(source=""), "needs a source"),
    ],
)
def test_a_word_that_says_nothing_is_refused(make, said):
    with pytest.raises(ScenarioError, match=said):
        make()


@pytest.mark.parametrize("word", [peaks, holds])
def test_bytes_between_bounds_that_exclude_each_other_are_refused(word):
    with pytest.raises(ScenarioError, match=rf"{word.__name__}\(at_least=2, at_most=1\) is not a range"):
        word(at_least=2, at_most=1)
    assert word(at_least=2, at_most=2)


@pytest.mark.parametrize("word", [peaks, holds])
@pytest.mark.parametrize("phase", ["forwards", "warm-up", ""])
def test_memory_of_a_phase_that_nobody_judges_is_refused(word, phase):
    with pytest.raises(ScenarioError, match="is unknown; known are inputs, forward, backward"):
        word(phase, at_most=1)


def test_values_are_named_either_way():
    assert shows(compiled=False) == shows({"compiled": False})
    assert shows({"a name": 1}, other=2).values == {"a name": 1, "other": 2}


def test_an_exception_is_named_with_its_module_unless_it_is_builtin():
    assert raises(ValueError).type == "ValueError"
    assert raises(ScenarioError).type == "experiments.scenario.ScenarioError"


@pytest.mark.parametrize("mark", ["broken", "repair", "control"])
def test_a_mark_says_what_is_expected(scenario, mark):
    options = {"broken": {"cause": "early stop"}, "control": {"why": "a reason"}}.get(mark, {})
    with pytest.raises(ScenarioError, match=f"case: a {mark} case says what it is expected to show"):
        getattr(scenario, mark)(**options)(case)


def test_a_cause_is_from_the_closed_list(scenario):
    with pytest.raises(ScenarioError, match="case: cause 'the weather' is unknown; known are ambient state"):
        scenario.broken(hangs(), cause="the weather")(case)
    for cause in CAUSES:
        Scenario(source="a test").broken(hangs(), cause=cause)(case)


def test_a_broken_case_has_a_cause(scenario):
    with pytest.raises(TypeError, match="cause"):
        scenario.broken(hangs())


def test_a_control_says_why(scenario):
    with pytest.raises(ScenarioError, match="case: a control says why it cannot break"):
        scenario.control(agrees(bitwise=True), why="")(case)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtypes": ("float31",)}, "dtype 'float31' is unknown; known are float32"),
        ({"on": ("tpu",)}, "device 'tpu' is unknown; known are cpu, cuda"),
        ({"measured": "often"}, "measured 'often' is unknown; known are briefly, at length"),
    ],
)
def test_an_unknown_dtype_device_or_length_is_refused(scenario, options, said):
    with pytest.raises(ScenarioError, match=said):
        scenario.repair(agrees(bitwise=True), **options)(case)


def test_a_misspelt_option_is_refused(scenario):
    with pytest.raises(TypeError, match="dtype"):
        scenario.repair(agrees(bitwise=True), dtype="float32")(case)


def test_a_string_where_a_list_is_meant_is_refused(scenario):
    """`on="cpu"` would be three devices named by letters."""
    with pytest.raises(ScenarioError):
        scenario.repair(agrees(bitwise=True), on="cpu")(case)


@pytest.mark.parametrize("mark", ["reference", "broken", "repair", "control"])
def test_every_mark_takes_how_its_case_is_run(scenario, mark):
    """And says so of each case, whatever the others are."""
    options = {"broken": {"cause": "early stop"}, "control": {"why": "a reason"}}.get(mark, {})
    expected = [] if mark == "reference" else [agrees(bitwise=True)]

    def other(weight):
        return weight

    getattr(scenario, mark)(*expected, **options, gradient=False, warm_up=True, profiled=False)(case)
    scenario.repair(agrees(bitwise=True))(other)
    assert [(one.gradient, one.warm_up, one.profiled) for one in scenario.cases] == [
        (False, True, False),
        (True, False, True),
    ]


@pytest.mark.parametrize(
    ("expectation", "option"),
    [(recomputes_without("aten::mm"), {"profiled": False}), (no_gradient("weight"), {"gradient": False})],
    ids=["profiled", "gradient"],
)
def test_what_its_own_mark_keeps_from_being_seen_is_not_expected(scenario, expectation, option):
    """The verdict would be "cannot say" for ever, which ends no sweep with an error."""
    with pytest.raises(ScenarioError, match="nobody can judge"):
        scenario.broken(expectation, cause="early stop", **option)(case)
    scenario.broken(expectation, cause="early stop")(case)


def test_a_bare_reference_is_differentiated_cold_and_profiled(scenario):
    scenario.reference(case)
    (one,) = scenario.cases
    assert (one.gradient, one.warm_up, one.profiled) == (True, False, True)


def test_marks_are_stacked_on_one_function(scenario):
    made = scenario.broken(hangs(), cause="early stop", on=("cuda",))(
        scenario.control(agrees(bitwise=True), why="a reason", on=("cpu",))(case)
    )
    assert made is case
    assert [(one.role, one.on) for one in scenario.cases] == [("control", ("cpu",)), ("broken", ("cuda",))]


def test_stacked_marks_divide_the_variants(scenario):
    scenario.repair(agrees(bitwise=True), over={"size": (1, 2)})(case)
    scenario.repair(agrees(bitwise=True), over={"size": (3,)})(case)
    scenario.repair(agrees(within_rounding=True), over={"size": (1,)}, dtypes=("float16",))(case)
    assert scenario.find("case", {"size": 3}, "float32", "cpu") is scenario.cases[1]
    assert scenario.find("case", {"size": 1}, "float16", "cpu") is scenario.cases[2]


def test_one_variant_is_marked_once(scenario):
    scenario.repair(agrees(bitwise=True), over={"size": (1, 2)})(case)
    with pytest.raises(ScenarioError, match=r"case: marked twice for {'size': 2} in float32"):
        scenario.broken(hangs(), cause="early stop", over={"size": (2, 3)})(case)


def test_two_functions_have_two_names(scenario):
    def other(weight):
        return weight

    other.__name__ = "case"
    scenario.reference(case)
    with pytest.raises(ScenarioError, match="case: two functions have this name"):
        scenario.repair(agrees(bitwise=True))(other)


def test_inputs_are_marked_once(scenario):
    scenario.inputs(case)
    with pytest.raises(ScenarioError, match="case: the scenario has its inputs already"):
        scenario.inputs(case)


def test_a_scenario_without_inputs_says_so(scenario):
    with pytest.raises(ScenarioError, match=r"has no @scenario.inputs"):
        scenario.make_inputs(1, {})


def test_inputs_get_the_parameters_that_they_name(scenario):
    @scenario.inputs
    def inputs(seed, size):
        return {"seed": seed, "size": size}

    assert scenario.make_inputs(7, {"size": 2, "other": 3}) == {"seed": 7, "size": 2}


@pytest.mark.parametrize("need", ["mps", "torch>=2", "cuda ", ""])
def test_a_need_that_is_unknown_is_refused_where_it_is_written(scenario, need):
    """It ended the whole sweep with 2; now its file is listed as broken and all others run."""
    with pytest.raises(ScenarioError, match=r"need .* is unknown; known are cuda, inductor, torch>=X.Y"):
        scenario.repair(agrees(bitwise=True), needs=(need,))(case)


@pytest.mark.parametrize("need", ["cuda", "inductor", "torch>=2.9", "torch<2.10"])
def test_a_need_that_is_known_is_taken(scenario, need):
    scenario.repair(agrees(bitwise=True), needs=(need,))(case)
    assert scenario.cases[0].needs == (need,)


def test_a_table_of_values_is_every_combination_and_a_list_is_itself(scenario):
    scenario.repair(agrees(bitwise=True), over={"a": (1, 2), "b": (3, 4)}, dtypes=("float32", "float16"))(case)
    assert len(scenario.cases[0].variants) == 8
    scenario.repair(agrees(bitwise=True), over=[{"a": 1, "b": 9}, {"a": 2}])(case)
    assert [dict(one.parameters) for one in scenario.cases[1].variants] == [{"a": 1, "b": 9}, {"a": 2}]


def test_a_case_that_is_not_there_is_said_so(scenario):
    scenario.reference(on=("cuda",))(case)
    with pytest.raises(ScenarioError, match=r"no case case with {} in float32 on cpu"):
        scenario.find("case", {}, "float32", "cpu")


def test_every_suite_contains_full():
    assert Scenario(source="a test", suites=("quick", "full")).suites == ("full", "quick")


def test_observing_outside_a_worker_does_nothing():
    observe("anything", object())

"""Machines fall into classes by their evidence, and a factor is a cause only where flipping it alone is followed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.classes import (
    _DERIVED,
    CANNOT,
    CAPABILITY,
    IN_PART,
    INTERPRETER,
    MKL,
    NOT_THE_CAUSE,
    OPEN,
    OTHER_BITS,
    PRECISION,
    PROVEN,
    SOURCES,
    SWITCH,
    THREADS,
    VARIABLE,
    Machine,
    causes,
    classes,
    differing,
    factors,
    flat,
    flips,
    hindrance,
    machines,
    splits,
    value,
)
from experiments.record import VARIABLES
from experiments.worker import machine as worker

few = settings(max_examples=80, deadline=None, derandomize=True, database=None)
KNOWN = {CAPABILITY, MKL, THREADS, PRECISION, INTERPRETER, SOURCES, "host", "processor", "GPU", "system"}
BENCH = samples.Bench()


def replay(case, number, **changes):
    """A replay of a case whose evidence is told by a number; None is a case that could not run."""
    if number is None:
        lacking = replace(samples.outcome("not_run"), detail="needs cuda")
        return BENCH.replay(BENCH.record(samples.spec(case, **changes), ended=lacking))
    return BENCH.replay(BENCH.record(samples.spec(case, **changes), BENCH.tensor("output", "x", [float(number)])))


REPLAYS = {(case, number): replay(case, number) for case in "abc" for number in (0, 1, 2, 3, None)}


def made(name, seen, *, cap="AVX512", threads="1", **others):
    """A machine that has these numbers by case; `others` are facts by factor."""
    given_threads = {"switches.threads": threads} if isinstance(threads, str) else threads
    own = {CAPABILITY: {"cpu.capability": cap}, THREADS: given_threads, **others}
    return Machine(name, name, own, tuple(REPLAYS[one] for one in seen.items()))


# Facts and factors.


@pytest.mark.parametrize("environment", [{}, dict.fromkeys(VARIABLES, "1")], ids=["bare", "every variable"])
def test_every_fact_of_a_machine_is_in_a_factor_or_follows_from_others(environment):
    facts = worker.facts(environment)
    sorted_ = factors(facts, "original")
    unreadable = {name for name, text in flat(facts).items() if text == "not readable"}
    placed = [name for own in sorted_.values() for name in own]
    assert len(placed) == len(set(placed))
    assert {*placed, *unreadable, *(name for name in _DERIVED if name in flat(facts))} == {
        *flat(facts),
        "setting.sources",
    }
    assert all(name in KNOWN or name.startswith((SWITCH, VARIABLE)) for name in sorted_)


def test_a_fact_that_nobody_has_sorted_is_a_factor_of_its_own():
    assert factors({"moon": {"phase": "full"}}, "original")["moon.phase"] == {"moon.phase": "full"}


def test_what_follows_from_other_facts_tells_no_machines_apart():
    first, second = samples.facts(), samples.facts()
    second["torch"] = {**second["torch"], "build": "another\nbuild", "parallel": "another"}
    second["cpu"] = {**second["cpu"], "cores": 96}
    second["variables"] = {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "4"}
    assert factors(first, "original") == factors(second, "original")


def test_text_of_several_lines_is_told_by_digest():
    one, other = (flat({"a": {"b": f"line\n{end}"}})["a.b"] for end in "xy")
    assert one.startswith("SHA-256 ")
    assert one != other
    assert flat({"a": {"b": None, "c": [1, 2]}}) == {"a.b": "None", "a.c": "[1, 2]"}


def test_variables_and_switches_are_factors_each_for_itself():
    found = factors({"variables": {"MKL_CBWR": "AVX2", "KMP_BLOCKTIME": "0"}, "switches": {"grad": True}}, "copied")
    assert found == {
        MKL: {"variables.MKL_CBWR": "AVX2"},
        f"{VARIABLE}KMP_BLOCKTIME": {"variables.KMP_BLOCKTIME": "0"},
        f"{SWITCH}grad": {"switches.grad": "True"},
        SOURCES: {"setting.sources": "copied"},
    }


def test_a_variable_that_is_set_on_one_side_counts_a_switch_that_one_side_cannot_read_does_not():
    ours = made("ours", {}, **{f"{VARIABLE}KMP_BLOCKTIME": {"variables.KMP_BLOCKTIME": "0"}})
    theirs = made("theirs", {}, threads="2", **{f"{SWITCH}grad": {"switches.grad": "True"}})
    assert differing(ours, theirs) == differing(theirs, ours) == [THREADS, f"{VARIABLE}KMP_BLOCKTIME"]
    off = made("off", {}, threads="2", **{f"{SWITCH}grad": {"switches.grad": "False"}})
    assert differing(theirs, off) == [f"{SWITCH}grad"]
    assert differing(ours, ours) == []


def test_a_value_is_shown_beside_another_machine_as_far_as_it_differs():
    first = made("first", {}, interpreter={"torch.version": "2.13", "python.version": "3.11", "cpu.mkl": "True"})
    second = made("second", {}, interpreter={"torch.version": "2.14", "python.version": "3.11"})
    assert value(first, INTERPRETER) == "torch.version 2.13, python.version 3.11, cpu.mkl True"
    assert value(first, INTERPRETER, second) == "torch.version 2.13, cpu.mkl True"
    assert value(second, INTERPRETER, first) == "torch.version 2.14, cpu.mkl not set"
    assert value(first, MKL, made("set", {}, **{MKL: {"variables.MKL_CBWR": "AVX2"}})) == "not set"


# Machines out of replays.


def on(case, host, **changes):
    bench_record = BENCH.record(samples.spec(case, **changes), machine=samples.facts(host))
    return BENCH.replay(bench_record)


def mute(case, **changes):
    record = BENCH.record(samples.spec(case, **changes), ended=samples.outcome("died"))
    return BENCH.replay(replace(record, observation=None))


def grouped(*replays):
    """By environment and host, the cases of each machine."""
    found = machines(replays, BENCH.machines)
    return {
        (environment, facts["host"]["host"]): [one.spec.question.case for one in own]
        for (environment, _), (facts, own) in found.items()
    }


def test_a_machine_is_a_computer_in_one_environment():
    found = grouped(on("a", "one"), on("b", "one"), on("a", "two"), on("a", "one", environment="avx2"))
    assert found == {("default", "one"): ["a", "b"], ("default", "two"): ["a"], ("avx2", "one"): ["a"]}


def test_a_replay_without_facts_is_of_the_largest_machine_of_its_environment():
    largest = [on("a", "two"), on("b", "two")]
    found = grouped(on("a", "one"), *largest, mute("m"), on("a", "one", environment="avx2"))
    assert found["default", "two"] == ["a", "b", "m"]
    assert grouped(on("a", "one"), mute("m", environment="avx2")) == {("default", "one"): ["a"]}
    assert grouped(mute("m")) == {}


def test_a_machine_document_that_is_no_object_has_no_facts():
    """Bundles come from strangers."""
    first, second = on("a", "one"), on("b", "two")
    documents = {**BENCH.machines, second.machine: ["no", "facts"]}
    assert [len(own) for _, own in machines([first, second], documents).values()] == [2]


def sources(*replays):
    return [own[SOURCES]["setting.sources"] for own, _ in machines(replays, BENCH.machines).values()]


def test_copied_sources_are_a_fact_only_where_all_of_an_environment_are_copied():
    assert sources(on("a", "one"), on("a", "one", sources="copied", repeat=1)) == ["original"]
    assert sources(on("a", "one", sources="copied"), on("b", "one", sources="copied")) == ["copied"]
    assert sources(on("a", "one", sources="copied", environment="capsule")) == ["original"]


# What stands for a case.


def test_the_first_replay_stands_for_its_case_and_of_several_the_latest():
    early, late = (
        BENCH.replay(samples.record("a", seed=seed, started_at=f"2026-01-0{seed}T00:00:00Z")) for seed in (1, 2)
    )
    again = BENCH.replay(samples.record("a", seed=3, started_at="2026-01-03T00:00:00Z", repeat=1))
    for order in ((early, late, again), (again, late, early)):
        assert list(Machine("m", "m", {}, order).by_case.values()) == [late]


def test_what_could_not_run_later_does_not_hide_what_ran():
    ran = BENCH.replay(samples.record("a", started_at="2026-01-01T00:00:00Z"))
    lacking = BENCH.replay(samples.record("a", kind="not_run", observed=False, started_at="2026-01-02T00:00:00Z"))
    assert list(Machine("m", "m", {}, (lacking, ran)).by_case.values()) == [ran]
    assert list(Machine("m", "m", {}, (lacking,)).by_case.values()) == [lacking]


def test_rulers_what_varies_and_what_did_not_run_is_no_evidence():
    varying = {"expectations": ({"kind": "varies", "at_least": 0.0, "at_most": 1.0},)}
    kept = replay("kept", 1)
    several = (kept, replay("ruler", 1, dtype="float64"), replay("varying", 1, **varying), replay("lacking", None))
    assert list(Machine("m", "m", {}, several).evidence.values()) == [kept.evidence_digest()]


def test_a_case_that_was_looked_at_in_other_passes_is_another_question():
    plain = replay("a", 1)
    both = BENCH.replay(plain.plain, BENCH.record(samples.spec("a", pass_="profiled")))
    first, second = (Machine(name, name, {}, (one,)) for name, one in (("first", plain), ("second", both)))
    assert not first.evidence.keys() & second.evidence.keys()


# Classes.


def members(*listed):
    return [[member.name for member in one.members] for one in classes(listed)]


def test_machines_that_agree_in_all_that_they_share_are_a_class():
    listed = made("one", {"a": 1, "b": 1}), made("two", {"a": 1, "b": 2}), made("three", {"a": 1, "b": 1})
    assert members(*listed) == [["one", "three"], ["two"]]
    assert [one.cases for one in classes(listed)] == [2, 2]
    assert [one.representative.name for one in classes(listed[::-1])] == ["three", "two"]


def test_without_a_shared_case_machines_are_no_class():
    assert members(made("one", {"a": 1}), made("two", {"b": 1})) == [["one"], ["two"]]


def test_missing_cases_let_members_of_a_class_differ_from_each_other_not_from_its_representative():
    """Agreement with gaps is not transitive, so each is held against the representative alone."""
    whole, left, right = made("whole", {"a": 1}), made("left", {"a": 1, "b": 1}), made("right", {"a": 1, "b": 2})
    assert members(whole, left, right) == [["whole", "left", "right"]]
    assert members(left, whole, right) == [["left", "whole"], ["right"]]


def test_a_machine_that_has_run_nothing_is_in_no_class():
    assert members(made("one", {"a": 1}), made("none", {}), made("lacking", {"a": None})) == [["one"]]


SEEN = st.dictionaries(st.sampled_from("abc"), st.sampled_from([0, 1]), max_size=3)
FACTS = st.fixed_dictionaries(
    {"cap": st.sampled_from(["AVX2", "AVX512"]), "threads": st.sampled_from("12"), "host": st.sampled_from("xy")}
)
LISTED = st.lists(st.tuples(SEEN, FACTS), min_size=1, max_size=6)


def several(listed, names=None):
    names = names or [f"m{at}" for at in range(len(listed))]
    return [
        made(name, seen, **{**facts, "host": {"host": facts["host"]}})
        for name, (seen, facts) in zip(names, listed, strict=True)
    ]


@few
@given(LISTED)
def test_a_machine_is_in_exactly_one_class_and_agrees_with_its_representative(listed):
    own = several(listed)
    found = classes(own)
    assert sorted(one.name for group in found for one in group.members) == sorted(m.name for m in own if m.evidence)
    for group in found:
        first = group.representative.evidence
        assert group.cases == len(first)
        for member in group.members:
            shared = first.keys() & member.evidence.keys()
            assert shared
            assert all(first[case] == member.evidence[case] for case in shared)


@few
@given(LISTED, st.randoms(use_true_random=False))
def test_classes_do_not_depend_on_names(listed, generator):
    names = [f"n{at}" for at in range(len(listed))]
    generator.shuffle(names)
    plain, renamed = several(listed), several(listed, names)
    as_places = [
        [[own.index(member) for member in group.members] for group in classes(own)] for own in (plain, renamed)
    ]
    assert as_places[0] == as_places[1]


# What splits them.


def test_a_factor_splits_where_the_evidence_is_a_function_of_its_value():
    listed = [
        made("one", {"a": 1, "b": 1, "c": 1}, cap="AVX512", threads="1"),
        made("two", {"a": 2, "b": 1, "c": 1}, cap="AVX2", threads="1"),
        made("three", {"a": 2, "b": 2, "c": 1}, cap="AVX2", threads="2"),
    ]
    found = {one.factor: (one.decides, one.of, one.values) for one in splits(listed)}
    assert found == {CAPABILITY: (1, 2, 2), THREADS: (1, 2, 2)}
    assert splits([made("one", {"a": 1}), made("two", {"a": 1}, cap="AVX2")]) == []


def test_a_case_that_machines_of_one_value_alone_have_run_decides_nothing():
    listed = [made("one", {"a": 1}), made("two", {"a": 2}), made("three", {}, cap="AVX2")]
    assert splits(listed) == []


def test_few_values_come_first_among_those_that_decide_as_much():
    listed = [
        made("one", {"a": 1}, cap="DEFAULT", threads="1"),
        made("two", {"a": 2}, cap="AVX2", threads="2"),
        made("three", {"a": 2}, cap="AVX512", threads="2"),
    ]
    assert [(one.factor, one.values) for one in splits(listed)] == [(THREADS, 2), (CAPABILITY, 3)]


@pytest.mark.parametrize("factor", [THREADS, CAPABILITY, INTERPRETER, "processor", f"{SWITCH}grad"])
def test_the_host_beats_no_factor_that_explains_as_much(factor):
    """Two computers: all that differs between them has two values."""
    listed = [
        made(name, {"a": number}, host={"host": name}, **{factor: {"fact": name}})
        if factor not in (THREADS, CAPABILITY)
        else made(name, {"a": number}, host={"host": name}, **{{THREADS: "threads", CAPABILITY: "cap"}[factor]: name})
        for name, number in (("x", 1), ("y", 2))
    ]
    assert [one.factor for one in splits(listed)] == [factor, "host"]


def test_what_decides_more_comes_before_what_needs_fewer_values():
    listed = [
        made("one", {"a": 1, "b": 1}, host={"host": "x"}),
        made("two", {"a": 2, "b": 2}, host={"host": "y"}, cap="AVX2"),
        made("three", {"a": 2, "b": 1}, host={"host": "z"}, cap="AVX2"),
    ]
    assert [(one.factor, one.decides) for one in splits(listed)] == [("host", 2), (CAPABILITY, 1)]


def test_a_switch_that_a_machine_cannot_read_splits_nothing():
    on, off = ({f"{SWITCH}grad": {"switches.grad": word}} for word in ("True", "False"))
    listed = [made("new", {"a": 1}, **on), made("old", {"a": 2})]
    assert splits(listed) == []
    assert splits([*listed, made("off", {}, **off)]) == [], "of those that can read it, one value alone has run it"
    assert [one.factor for one in splits([*listed, made("off", {"a": 2}, **off)])] == [f"{SWITCH}grad"]


# Causes.

OURS = made("ours", {"a": 1, "b": 1, "c": 1}, cap="AVX512", threads="1")
THEIRS = made("theirs", {"a": 2, "b": 2, "c": 1}, cap="AVX2", threads="2")


def flipped(seen, name="flipped", **facts):
    return made(name, seen, **{"cap": "AVX2", "threads": "1", **facts})


def cause(*listed, factor=CAPABILITY, theirs=THEIRS):
    return next(one for one in causes(OURS, theirs, [theirs, *listed]) if one.factor == factor)


@pytest.mark.parametrize(
    ("seen", "word", "followed", "of"),
    [
        ({"a": 2, "b": 2, "c": 1}, PROVEN, 2, 2),
        ({"a": 2}, PROVEN, 1, 1),
        ({"a": 2, "b": 1}, IN_PART, 1, 2),
        ({"a": 2, "b": 3}, IN_PART, 1, 2),
        ({"a": 1, "b": 1}, NOT_THE_CAUSE, 0, 2),
        ({"a": 3, "b": 1}, OTHER_BITS, 0, 2),
        ({"a": 3, "b": 3}, OTHER_BITS, 0, 2),
        ({"c": 1}, OPEN, 0, 2),
        ({}, OPEN, 0, 2),
    ],
)
def test_a_cause_is_what_the_bits_follow_when_it_alone_is_flipped(seen, word, followed, of):
    found = cause(flipped(seen))
    assert (found.word, found.followed, found.of) == (word, followed, of)
    assert (found.ours, found.theirs) == ("AVX512", "AVX2")
    assert found.by == ("" if word == OPEN else "flipped")


def test_the_other_machine_itself_proves_the_only_factor_in_which_it_differs():
    theirs = flipped({"a": 2, "b": 2}, name="theirs")
    (found,) = causes(OURS, theirs, [theirs])
    assert (found.factor, found.word, found.by) == (CAPABILITY, PROVEN, "theirs")


def test_the_machine_that_shows_most_is_shown():
    listed = flipped({"a": 2, "b": 1}, "half"), flipped({"a": 2, "b": 2}, "whole"), flipped({"a": 1, "b": 1}, "none")
    for order in (listed, listed[::-1]):
        assert (cause(*order).by, cause(*order).word) == ("whole", PROVEN)


def test_a_machine_that_differs_in_more_or_in_another_value_shows_nothing():
    assert cause(flipped({"a": 2, "b": 2}, threads="3")).word == OPEN
    assert cause(flipped({"a": 2, "b": 2}, cap="DEFAULT")).word == OPEN


def test_causes_are_listed_with_what_is_proven_first():
    theirs = made("theirs", {"a": 2, "b": 2}, cap="AVX2", threads="2", host={"host": "y"})
    listed = [flipped({"a": 2, "b": 2}, "cap"), flipped({"a": 1, "b": 1}, "threads", cap="AVX512", threads="2")]
    found = [(one.factor, one.word) for one in causes(OURS, theirs, [theirs, *listed])]
    assert found == [(CAPABILITY, PROVEN), ("host", CANNOT), (THREADS, NOT_THE_CAUSE)]


def test_machines_that_agree_have_no_causes():
    assert causes(OURS, made("theirs", {"a": 1, "b": 1}, cap="AVX2"), []) == []
    assert causes(OURS, made("theirs", {}, cap="AVX2"), []) == []


@few
@given(LISTED)
def test_nothing_is_proven_but_by_a_machine_that_differs_in_that_factor_alone(listed):
    ours, *others = several(listed)
    by_name = {one.name: one for one in others}
    for theirs in others:
        first, second = ours.evidence, theirs.evidence
        unlike = {case for case in first.keys() & second.keys() if first[case] != second[case]}
        found = causes(ours, theirs, others)
        assert sorted(one.factor for one in found) == (differing(ours, theirs) if unlike else [])
        for one in found:
            assert 0 <= one.followed <= one.of <= len(unlike)
            if one.word not in (PROVEN, IN_PART):
                assert not one.followed
                continue
            shown = by_name[one.by]
            assert differing(ours, shown) == [one.factor]
            assert shown.factors.get(one.factor) == theirs.factors.get(one.factor)
            followed = [case for case in unlike if shown.evidence.get(case) == second[case]]
            assert len(followed) == one.followed > 0
            assert (one.word == PROVEN) == (one.followed == len(unlike & shown.evidence.keys()))


@few
@given(SEEN, FACTS, FACTS, LISTED)
def test_two_machines_of_equal_evidence_have_no_causes(seen, first, second, listed):
    ours, theirs, *others = several([(seen, first), (seen, second), *listed])
    assert causes(ours, theirs, others) == []


# Flipping.


ODD = "it is no variable that a calculation depends on, or has an odd value: set it yourself and sweep"
"""What somebody else's evidence says is not put into the environment of our processes as it is."""


def with_(factor, **facts):
    return made("theirs", {"a": 2}, **{factor: facts})


@pytest.mark.parametrize(
    ("factor", "facts", "said"),
    [
        (CAPABILITY, {"cpu.capability": "AVX2"}, ""),
        (CAPABILITY, {"cpu.capability": "SVE"}, "no processor is told to be SVE by a variable"),
        (MKL, {"variables.MKL_CBWR": "AVX2"}, ""),
        (f"{VARIABLE}KMP_BLOCKTIME", {"variables.KMP_BLOCKTIME": "0"}, ""),
        (THREADS, {"switches.threads": "4"}, ""),
        (THREADS, {}, "it does not tell how many it has"),
        (THREADS, {"switches.threads": "many"}, "it does not tell how many it has"),
        (THREADS, {"switches.threads": "9" * 99}, "it does not tell how many it has"),
        (THREADS, {"switches.threads": "0"}, "it does not tell how many it has"),
        (PRECISION, {"switches.matmul_precision": "planted"}, "it tells no precision that torch has"),
        (f"{VARIABLE}LD_PRELOAD", {"variables.LD_PRELOAD": "planted.so"}, ODD),
        (f"{VARIABLE}KMP_BLOCKTIME", {"variables.KMP_BLOCKTIME": "0; rm"}, ODD),
        (MKL, {"variables.MKL_CBWR": "AVX2\nLD_PRELOAD=planted.so"}, ODD),
        (PRECISION, {"switches.matmul_precision": "high"}, ""),
        (INTERPRETER, {"torch.version": "2.14"}, ""),
        (SOURCES, {"setting.sources": "copied"}, ""),
        ("host", {"host": "y"}, "it is another computer"),
        ("processor", {"cpu.model": "y"}, "it is another computer"),
        ("GPU", {"gpu.name": "y"}, "it is another computer"),
        ("system", {"system.name": "y"}, "it is another computer"),
        (f"{SWITCH}grad", {"switches.grad": "False"}, "no setting changes it"),
        ("moon.phase", {"moon.phase": "full"}, "no setting changes it"),
    ],
)
def test_what_cannot_be_flipped_here_says_why(factor, facts, said):
    ours = made("ours", {"a": 1}, **{f"{SWITCH}grad": {"switches.grad": "True"}})
    theirs = with_(factor, **facts)
    assert hindrance(factor, ours, theirs) == said
    more = replace(theirs, factors={**theirs.factors, "moon.orbit": {"moon.orbit": "high"}})
    found = {one.factor: (one.word, one.why) for one in causes(ours, more, [])}
    assert found[factor] == (CANNOT if said else OPEN, said)


def test_a_capability_that_this_processor_lacks_cannot_be_flipped():
    weak = made("ours", {"a": 1}, cap="AVX2")
    assert hindrance(CAPABILITY, weak, OURS) == "this processor, as it was run, has no AVX512"
    assert hindrance(CAPABILITY, OURS, weak) == ""


def test_a_variable_that_is_set_here_alone_is_not_set_there():
    ours = made("ours", {"a": 1}, **{MKL: {"variables.MKL_CBWR": "AVX2"}})
    found = causes(ours, made("theirs", {"a": 2}, threads="2"), [])
    assert {one.factor: (one.word, one.why) for one in found} == {
        MKL: (CANNOT, "it is set here and not there: unset it and sweep again"),
        THREADS: (OPEN, ""),
    }


FLIPS = {
    CAPABILITY: ({"cpu.capability": "AVX2"}, {"variables": {"ATEN_CPU_CAPABILITY": "avx2"}}),
    MKL: ({"variables.MKL_CBWR": "AVX2"}, {"variables": {"MKL_CBWR": "AVX2"}}),
    f"{VARIABLE}KMP_BLOCKTIME": ({"variables.KMP_BLOCKTIME": "0"}, {"variables": {"KMP_BLOCKTIME": "0"}}),
    THREADS: ({"switches.threads": "4"}, {"threads": 4}),
    PRECISION: ({"switches.matmul_precision": "high"}, {"matmul_precision": "high"}),
    INTERPRETER: ({"torch.version": "2.14"}, {"interpreter": True}),
    SOURCES: ({"setting.sources": "copied"}, {"sources": "copied"}),
}


@pytest.mark.parametrize("factor", FLIPS)
def test_a_flip_is_ours_with_one_factor_as_it_is_there(factor):
    theirs = made("theirs", {"a": 2}, host={"host": "y"}, **{factor: FLIPS[factor][0]})
    (found,) = flips(OURS, theirs, [theirs])
    nothing = {"variables": {}, "threads": None, "matmul_precision": "", "sources": "original", "interpreter": False}
    assert {name: getattr(found, name) for name in nothing} == {**nothing, **FLIPS[factor][1]}
    assert found.factor == factor


def test_what_was_flipped_is_not_flipped_again():
    assert [one.factor for one in flips(OURS, THEIRS, [THEIRS])] == [CAPABILITY, THREADS]
    assert [one.factor for one in flips(OURS, THEIRS, [THEIRS, flipped({"a": 1, "b": 1})])] == [THREADS]
    assert flips(OURS, OURS, []) == []


def test_a_fact_that_only_one_of_them_tells_does_not_count():
    """An older version did not ask for it, and a factor that differs by that alone would block every proof."""
    older = made("older", {"a": 0}, system={"system.name": "Linux"})
    newer = made("newer", {"a": 1}, cap="AVX2", system={"system.name": "Linux", "compiler.c++": "g++ 12"})
    assert differing(older, newer) == differing(newer, older) == [CAPABILITY]
    assert [one.word for one in causes(older, newer, [newer])] == [PROVEN]
    other = made("other", {"a": 1}, system={"system.name": "Darwin", "compiler.c++": "g++ 12"})
    assert differing(older, other) == ["system"]
    assert differing(older, made("none", {"a": 1}, system={"compiler.c++": "g++ 12"})) == ["system"], (
        "nothing in common"
    )


def test_what_is_not_run_here_splits_nothing_here():
    listed = [made("ours", {"a": 0}), made("two", {"a": 0, "b": 1}), made("three", {"a": 0, "b": 2}, cap="AVX2")]
    assert splits(listed) == []
    assert splits([]) == []


def test_a_factor_of_one_machine_among_several_goes_along_with_its_differences():
    """Others split the same cases by other factors, so it decides none of them."""
    listed = [
        made("ours", {"a": 0, "b": 0}),
        made("two", {"a": 1, "b": 1}, cap="AVX2"),
        made("three", {"a": 2, "b": 0}, **{MKL: {"variables.MKL_CBWR": "COMPATIBLE"}}),
    ]
    assert [(one.factor, one.decides, one.along, one.pairs) for one in splits(listed)] == [
        (CAPABILITY, 1, 2, 3),
        (MKL, 0, 1, 3),
    ]

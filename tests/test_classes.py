"""Settings of computers are told apart by their facts, and fall into classes by their evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.analysis.agreement_classes import classes, splits
from experiments.analysis.settings import (
    _DERIVED,
    CAPABILITY,
    INTERPRETER,
    MKL,
    PRECISION,
    SOURCES,
    SWITCH,
    THREADS,
    VARIABLE,
    ComputerSetting,
    computer_settings,
    differing_factors,
    factors,
    flatten_facts,
    label,
    value,
)
from experiments.core.environment import VARIABLES
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
    """A setting that has these numbers by case; `others` are facts by factor."""
    given_threads = {"switches.threads": threads} if isinstance(threads, str) else threads
    own = {CAPABILITY: {"cpu.capability": cap}, THREADS: given_threads, **others}
    return ComputerSetting(name, name, own, tuple(REPLAYS[one] for one in seen.items()))


# Facts and factors.


@pytest.mark.parametrize("environment", [{}, dict.fromkeys(VARIABLES, "1")], ids=["bare", "every variable"])
def test_every_fact_of_a_document_is_in_a_factor_or_follows_from_others(environment):
    facts = worker.facts(environment)
    sorted_ = factors(facts, "original")
    unreadable = {name for name, text in flatten_facts(facts).items() if text == "not readable"}
    placed = [name for own in sorted_.values() for name in own]
    assert len(placed) == len(set(placed))
    assert {*placed, *unreadable, *(name for name in _DERIVED if name in flatten_facts(facts))} == {
        *flatten_facts(facts),
        "setting.sources",
    }
    assert all(name in KNOWN or name.startswith((SWITCH, VARIABLE)) for name in sorted_)


def test_a_fact_that_nobody_has_sorted_is_a_factor_of_its_own():
    assert factors({"moon": {"phase": "full"}}, "original")["moon.phase"] == {"moon.phase": "full"}


def test_what_follows_from_other_facts_tells_no_settings_apart():
    first, second = samples.facts(), samples.facts()
    for made, capability in ((first, "AVX512"), (second, "AVX2")):
        build = f"{made['torch']['build']}  - CPU capability usage: {capability}\n"
        made["torch"] = {**made["torch"], "build": build, "parallel": capability}
    second["cpu"] = {**second["cpu"], "cores": 96}
    second["variables"] = {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "4"}
    assert factors(first, "original") == factors(second, "original")


def test_another_build_of_the_same_torch_is_another_interpreter():
    first, second = samples.facts(), samples.facts()
    second["torch"] = {**second["torch"], "build": "built with:\n  - another compiler\n"}
    ours, theirs = (ComputerSetting("", "", factors(one, "original"), ()) for one in (first, second))
    assert differing_factors(ours, theirs) == [INTERPRETER]


def test_text_of_several_lines_is_told_by_digest():
    one, other = (flatten_facts({"a": {"b": f"line\n{end}"}})["a.b"] for end in "xy")
    assert one.startswith("SHA-256 ")
    assert one != other
    assert flatten_facts({"a": {"b": None, "c": [1, 2]}}) == {"a.b": "None", "a.c": "[1, 2]"}


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
    assert differing_factors(ours, theirs) == differing_factors(theirs, ours) == [THREADS, f"{VARIABLE}KMP_BLOCKTIME"]
    off = made("off", {}, threads="2", **{f"{SWITCH}grad": {"switches.grad": "False"}})
    assert differing_factors(theirs, off) == [f"{SWITCH}grad"]
    assert differing_factors(ours, ours) == []


def test_a_fact_that_only_one_of_them_tells_does_not_count():
    """An older version did not ask for it, and a factor that differs by that alone would block every proof."""
    older = made("older", {}, system={"system.name": "Linux"})
    newer = made("newer", {}, cap="AVX2", system={"system.name": "Linux", "compiler.c++": "g++ 12"}, moon={"moon": "1"})
    assert differing_factors(older, newer) == differing_factors(newer, older) == [CAPABILITY]
    other = made("other", {}, system={"system.name": "Darwin", "compiler.c++": "g++ 12"})
    assert differing_factors(older, other) == ["system"]
    assert differing_factors(older, made("none", {}, system={"compiler.c++": "g++ 12"})) == ["system"], (
        "nothing in common"
    )


def test_who_does_not_tell_what_every_version_asks_may_differ_in_it():
    bare = ComputerSetting("bare", "lab", {}, ())
    assert differing_factors(made("ours", {}), bare) == [CAPABILITY, THREADS]


def test_a_value_is_shown_beside_another_setting_as_far_as_it_differs():
    first = made("first", {}, system={"system.name": "Linux", "system.libc": "glibc 2", "system.release": "6.1"})
    second = made("second", {}, system={"system.name": "Linux", "system.libc": "musl", "system.release": "6.2"})
    assert value(first, "system", second) == "system.libc glibc 2, system.release 6.1"
    assert value(first, CAPABILITY, made("third", {}, cap="AVX2")) == "AVX512"
    assert value(first, MKL, made("set", {}, **{MKL: {"variables.MKL_CBWR": "AVX2"}})) == "not set"


def test_an_interpreter_is_shown_as_the_torch_the_build_and_the_python_that_it_bundles():
    """Nobody shall take it for one fact."""
    facts = {
        "torch.version": "2.13",
        "torch.build": "SHA-256 0123456789ab",
        "python.version": "3.11",
        "cpu.mkl": "True",
    }
    first = made("first", {}, interpreter=facts)
    second = made("second", {}, interpreter={"torch.version": "2.14", "python.version": "3.11"})
    assert value(first, INTERPRETER) == "torch 2.13, build 0123456789ab, Python 3.11"
    assert value(first, INTERPRETER, second) == "torch 2.13, build 0123456789ab, Python 3.11, cpu.mkl True"
    assert value(second, INTERPRETER, first) == "torch 2.14, build not told, Python 3.11, cpu.mkl not told"
    assert label(INTERPRETER) == "interpreter (torch, its build, Python)"
    assert label(THREADS) == THREADS


# Settings out of replays.


def on(case, host, more=None, **changes):
    bench_record = BENCH.record(samples.spec(case, **changes), machine={**samples.facts(host), **(more or {})})
    return BENCH.replay(bench_record)


def mute(case, **changes):
    record = BENCH.record(samples.spec(case, **changes), ended=samples.outcome("died"))
    return BENCH.replay(replace(record, observation=None))


def grouped(*replays):
    """By environment and host, the cases of each setting."""
    found = computer_settings(replays, BENCH.machines)
    seen = {(one.environment, one.computer): [replay.spec.question.case for replay in one.replays] for one in found}
    assert len(seen) == len(found), "a setting is split"
    return seen


def test_a_setting_is_a_computer_in_one_environment():
    found = grouped(on("a", "one"), on("b", "one"), on("a", "two"), on("a", "one", environment="avx2"))
    assert found == {("default", "one"): ["a", "b"], ("default", "two"): ["a"], ("avx2", "one"): ["a"]}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("name", "fact"),
    [("governor.name", {"governor": {"name": "powersave"}}), ("switches.new", {"switches": {"new": 1}})],
)
def test_a_fact_that_a_newer_version_tells_does_not_split_a_setting_from_its_past(name, fact, order):
    both = [on("a", "one"), on("b", "one", fact)][::order]
    (found,) = computer_settings(both, BENCH.machines)
    assert [replay.spec.question.case for replay in found.replays] == ["a", "b"][::order]
    assert name in {told for facts in found.factors.values() for told in facts}


def test_a_new_fact_of_an_old_factor_does_not_split_it_either():
    cpu = {**samples.facts()["cpu"], "governor": "powersave"}
    assert grouped(on("a", "one"), on("b", "one", {"cpu": cpu})) == {("default", "one"): ["a", "b"]}
    other = {**cpu, "governor": "performance"}
    both = [on("a", "one", {"cpu": cpu}), on("b", "one", {"cpu": other})]
    assert len(computer_settings(both, BENCH.machines)) == 2, "told by both, it counts"


def test_a_replay_without_facts_is_of_the_largest_setting_of_its_environment():
    largest = [on("a", "two"), on("b", "two")]
    found = grouped(on("a", "one"), *largest, mute("m"), on("a", "one", environment="avx2"))
    assert found["default", "two"] == ["a", "b", "m"]
    assert grouped(on("a", "one"), mute("m", environment="avx2")) == {("default", "one"): ["a"]}
    assert grouped(mute("m")) == {}


def test_a_machine_document_that_is_no_object_has_no_facts():
    """Bundles come from strangers."""
    first, second = on("a", "one"), on("b", "two")
    documents = {**BENCH.machines, second.machine: ["no", "facts"]}
    assert [len(one.replays) for one in computer_settings([first, second], documents)] == [2]


def sources(*replays):
    return [one.factors[SOURCES]["setting.sources"] for one in computer_settings(replays, BENCH.machines)]


def test_copied_sources_are_a_fact_only_where_all_of_an_environment_are_copied():
    assert sources(on("a", "one"), on("a", "one", sources="copied", repeat=1)) == ["original"]
    assert sources(on("a", "one", sources="copied"), on("b", "one", sources="copied")) == ["copied"]
    assert sources(on("a", "one", sources="copied", environment="capsule")) == ["original"]


# What stands for a case.


def test_the_first_replay_stands_for_its_case_and_of_several_the_last_that_is_given():
    """Whenever they say that they began: whoever writes a record chooses that."""
    early, late = (
        BENCH.replay(samples.record("a", seed=seed, started_at=f"2026-01-0{seed}T00:00:00Z")) for seed in (1, 2)
    )
    again = BENCH.replay(samples.record("a", seed=3, started_at="2026-01-03T00:00:00Z", repeat=1))
    for order, expected in (((early, late, again), late), ((again, late, early), early)):
        assert list(ComputerSetting("m", "m", {}, order).by_case.values()) == [expected]


def test_what_could_not_run_later_does_not_hide_what_ran():
    ran = BENCH.replay(samples.record("a", started_at="2026-01-01T00:00:00Z"))
    lacking = BENCH.replay(samples.record("a", kind="not_run", observed=False, started_at="2026-01-02T00:00:00Z"))
    assert list(ComputerSetting("m", "m", {}, (lacking, ran)).by_case.values()) == [ran]
    assert list(ComputerSetting("m", "m", {}, (lacking,)).by_case.values()) == [lacking]


def test_rulers_what_varies_and_what_did_not_run_is_no_evidence():
    varying = {"expectations": ({"kind": "varies", "at_least": 0.0, "at_most": 1.0},)}
    kept = replay("kept", 1)
    several = (kept, replay("ruler", 1, dtype="float64"), replay("varying", 1, **varying), replay("lacking", None))
    assert list(ComputerSetting("m", "m", {}, several).evidence.values()) == [kept.evidence_digest()]


def test_a_case_that_was_looked_at_in_other_passes_is_another_question():
    plain = replay("a", 1)
    both = BENCH.replay(plain.plain, BENCH.record(samples.spec("a", pass_="profiled")))
    first, second = (ComputerSetting(name, name, {}, (one,)) for name, one in (("first", plain), ("second", both)))
    assert not first.evidence.keys() & second.evidence.keys()


def test_repeats_are_all_replays_of_a_case():
    several = [replay("a", 1), replay("a", 2, repeat=1), replay("a", None, repeat=2), replay("b", 1)]
    found = ComputerSetting("m", "m", {}, tuple(several))
    assert sorted(found.repeats.values(), key=len) == [
        [several[3].evidence_digest()],
        [several[0].evidence_digest(), several[1].evidence_digest()],
    ]


# Classes.


def members(*listed):
    return [[member.name for member in one.members] for one in classes(listed)]


def test_settings_that_agree_in_all_that_they_share_are_a_class():
    listed = made("one", {"a": 1, "b": 1}), made("two", {"a": 1, "b": 2}), made("three", {"a": 1, "b": 1})
    assert members(*listed) == [["one", "three"], ["two"]]
    assert [one.cases for one in classes(listed)] == [2, 2]
    assert [one.representative.name for one in classes(listed[::-1])] == ["three", "two"]


def test_without_a_shared_case_settings_are_no_class():
    assert members(made("one", {"a": 1}), made("two", {"b": 1})) == [["one"], ["two"]]


def test_missing_cases_let_members_of_a_class_differ_from_each_other_not_from_its_representative():
    """Agreement with gaps is not transitive, so each is held against the representative alone."""
    whole, left, right = made("whole", {"a": 1}), made("left", {"a": 1, "b": 1}), made("right", {"a": 1, "b": 2})
    assert members(whole, left, right) == [["whole", "left", "right"]]
    assert members(left, whole, right) == [["left", "whole"], ["right"]]


def test_a_setting_that_has_run_nothing_is_in_no_class():
    assert members(made("one", {"a": 1}), made("none", {}), made("lacking", {"a": None})) == [["one"]]


def test_a_class_tells_of_how_many_computers_its_settings_are():
    """Those of one computer do not confirm each other."""
    listed = [made(name, {"a": 1}, host={"host": host}) for name, host in (("one", "x"), ("two", "x"), ("three", "y"))]
    (found,) = classes(listed)
    assert (len(found.members), found.computers) == (3, 2)
    (found,) = classes([made("one", {"a": 1}), made("two", {"a": 1})])
    assert found.computers == 1, "who tells no host identity may be the same"


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
def test_a_setting_is_in_exactly_one_class_and_agrees_with_its_representative(listed):
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


def test_a_case_that_settings_of_one_value_alone_have_run_decides_nothing():
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


def test_a_switch_that_a_setting_cannot_read_splits_nothing():
    on, off = ({f"{SWITCH}grad": {"switches.grad": word}} for word in ("True", "False"))
    listed = [made("new", {"a": 1}, **on), made("old", {"a": 2})]
    assert splits(listed) == []
    assert splits([*listed, made("off", {}, **off)]) == [], "of those that can read it, one value alone has run it"
    assert [one.factor for one in splits([*listed, made("off", {"a": 2}, **off)])] == [f"{SWITCH}grad"]


def test_what_is_not_run_here_splits_nothing_here():
    listed = [made("ours", {"a": 0}), made("two", {"a": 0, "b": 1}), made("three", {"a": 0, "b": 2}, cap="AVX2")]
    assert splits(listed) == []
    assert splits([]) == []


def test_a_factor_of_one_setting_among_several_goes_along_with_its_differences():
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

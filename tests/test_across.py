"""A sweep beside other settings and computers: who they are, how far they agree, and that no word becomes markup."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_report import OPENING, TOGETHER, assert_safe, structure

from experiments.analysis.causes import CANNOT as FIXED
from experiments.analysis.causes import CONTROL, CONTROL_DIFFERS, FLIP, OPEN, PROVEN, environment
from experiments.analysis.settings import CAPABILITY, THREADS
from experiments.core.agreement import RANKS
from experiments.core.canonical_json import digest, parse
from reports import build
from reports.claims.published_outcomes import (
    CHECKPOINT_NOTE,
    COMPILE_NOTE,
    NOT_RUN,
    OTHER,
    REPORTED,
    SAME,
    Reported,
    Told,
    compare_outcome,
)
from reports.markdown.settings import SHOWN, page
from reports.setting_comparison import BIN_NAMES, CANNOT, Origin, agreement_json, compare_settings
from store.archive import Archive, ArchiveError
from store.bundles import export_bundle

few = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def facts(host="one", version="2.13.0+cpu", cap="AVX512", threads=1, **others):
    made = samples.facts(host, version, **{"switches": {"threads": threads}, **others})
    return {**made, "cpu": {**made["cpu"], "capability": cap}}


class Lab:
    """Makes replays of several computers and settings, all of whose contents are at hand."""

    def __init__(self):
        self.bench = samples.Bench()

    def replay(self, case="plain", numbers=(1.0, 2.0), *, on=None, role="gradient", tensor="x", ended=None, **changes):
        """One plain pass; `on` are the facts of its machine."""
        asked = samples.spec(case, **changes)
        dtype = "float64" if asked.question.dtype == "float64" else "float32"
        return self.bench.replay(
            self.bench.record(
                asked, self.bench.tensor(role, tensor, numbers, dtype), machine=on or facts(), ended=ended
            )
        )

    def measured(self, numbers, reference=(4096.0, 2.0), exact=(4096.0, 2.25), repeats=(), **more):
        """A case with its reference, the same in float64, and repeats."""
        ruler = samples.spec("reference", role="reference", dtype="float64").question.case_digest()
        named = samples.spec("reference").question.case_digest()
        return [
            self.replay("reference", reference, float64=ruler, **more),
            self.replay("reference", exact, dtype="float64", **more),
            *(
                self.replay("case", some, reference=named, float64=ruler, repeat=at, **more)
                for at, some in enumerate((numbers, *repeats))
            ),
        ]

    def origin(self, name, *replays):
        return Origin(name, tuple(replays), {k: parse(self.bench.blobs[k].decode()) for k in self.bench.machines})

    def across(self, own, *others, reported=(), planned=1, counter=()):
        """`own` replays beside pairs of an origin's name and its replays; `counter` are such pairs of sweeps."""
        origins, proofs = ([self.origin(name, *replays) for name, replays in some] for some in (others, counter))
        return compare_settings(self.origin("here", *own), origins, self.bench.blobs.get, reported, planned, proofs)

    def proof(self, case, ours, theirs, *, factor=CAPABILITY, flipped=None, repeats=2, host="one"):
        """Replays of a counter-replay: the numbers under our setting again, and those under the flipped one."""
        there = flipped or facts(host, cap="AVX2")
        return [
            self.replay(case, numbers, on=on, environment=environment(kind, factor), repeat=repeat)
            for repeat in range(repeats)
            for kind, numbers, on in ((CONTROL, ours, facts(host)), (FLIP, theirs, there))
        ]


@pytest.fixture
def lab():
    return Lab()


def only(found):
    (pair,) = found.pairs
    return pair


# Which settings there are.


def test_the_archives_own_past_of_this_setting_is_no_other_setting(lab):
    past = [lab.replay(numbers=(9.0, 9.0))]
    assert lab.across([lab.replay()], ("archive", past)).others == ()
    assert [one.origin for one in lab.across([lab.replay()], ("lab", past)).others] == ["lab"]


def test_a_fact_that_only_the_newer_version_tells_does_not_split_a_setting_from_its_past(lab):
    newer = facts(governor={"name": "powersave"})
    for on, past in ((newer, facts()), (facts(), newer)):
        found = lab.across([lab.replay(on=on)], ("archive", [lab.replay(numbers=(9.0, 9.0), on=past)]))
        assert found.others == ()


def test_settings_stand_computer_by_computer_this_one_first(lab):
    own, *others = (lab.replay(on=facts(host)) for host in ("one", "two", "three", "two"))
    here = lab.replay(environment="avx2", on=facts("one", cap="AVX2"))
    found = lab.across([own], *((f"bundle {at}", [other]) for at, other in enumerate([*others, here])))
    assert [one.computer for one in found.others] == ["one", "two", "two", "three"]
    assert found.computers == ("one", "two", "three")
    hosts = [found.host_description(one) for one in found.others[:2]]
    assert hosts == ["same host identity as here", "another host identity"]


def test_who_tells_no_host_identity_is_on_no_computer_that_is_known(lab):
    found = lab.across([lab.replay()], ("lab", [lab.replay(on={**facts(), "host": "not readable"})]))
    assert [found.host_description(one) for one in found.others] == ["host identity not told"]
    assert "not told" in text(found)


def test_what_the_archive_has_under_another_setting_is_compared(lab):
    other = [lab.replay(on=facts(cap="AVX2"), environment="avx2"), lab.replay(on=facts(threads=2))]
    found = lab.across([lab.replay()], ("archive", other))
    assert [(one.name, one.origin) for one in found.others] == [("avx2", "archive"), ("default-threads-2", "archive")]


@pytest.mark.parametrize(
    ("on", "environment", "name"),
    [
        (facts(), "default", "default"),
        (facts(cap="AVX2"), "default", "default-capability-avx2"),
        (facts(cap="AVX2", threads=4), "capsule", "capsule-capability-avx2-threads-4"),
        (facts(cap="AVX2"), "avx2", "avx2"),
        (facts(version="2.14.1+cpu"), "default", "default-torch-2.14.1"),
        (facts("0123456789ab"), "default", "default-0123"),
        (facts(gpu={"name": "a GPU"}), "default", "default-cuda"),
        (facts(), "of two words", "of_two_words"),
    ],
)
def test_a_name_says_what_tells_the_setting_apart(lab, on, environment, name):
    found = lab.across([lab.replay()], ("lab", [lab.replay(on=on, environment=environment)]))
    assert [one.name for one in found.others] == [name]


@few
@given(st.lists(st.sampled_from(["default", "here", "default-2", "here-2"]), min_size=1, max_size=6))
def test_names_are_unique_and_none_is_that_of_this_setting(environments):
    lab = Lab()
    others = [(f"bundle {at}", [lab.replay(environment=name)]) for at, name in enumerate(environments)]
    found = lab.across([lab.replay()], *others)
    names = [found.here.name, *(one.name for one in found.others)]
    assert len(names) == len(set(names)) == 1 + len(environments)
    assert len(found.pairs) == len(environments)


def test_a_setting_that_has_run_nothing_of_what_was_asked_is_not_listed(lab):
    assert lab.across([lab.replay()], ("lab", [lab.replay("another")])).others == ()


def test_a_setting_of_the_name_here_keeps_its_evidence_to_itself(lab):
    found = lab.across([lab.replay()], ("lab", [lab.replay(numbers=(1.0, 7.0), environment="here")]))
    assert [[one.name for one in group.members] for group in found.classes] == [["here"], ["here-2"]]


def test_a_sweep_that_has_run_nothing_is_beside_nobody(lab):
    lacking = replace(samples.outcome("not_run"), detail="needs cuda")
    record = lab.bench.record(samples.spec(), ended=lacking)
    bare = lab.bench.replay(replace(record, observation=None))
    assert lab.across([bare], ("lab", [lab.replay()])) is None


def test_of_several_settings_in_a_sweep_the_one_with_most_replays_is_here(lab):
    own = [lab.replay("a", on=facts(threads=2)), lab.replay("b"), lab.replay("c")]
    found = lab.across(own, planned=7)
    assert [one.spec.question.case for one in found.here.replays] == ["b", "c"]
    assert found.planned == 7


# How far they agree.


def test_equal_evidence_is_identical(lab):
    pair = only(lab.across([lab.replay()], ("lab", [lab.replay(on=facts("two"))])))
    assert (pair.agreement.word, pair.compared, pair.differs) == ("identical", True, False)


def test_rounding_that_was_measured_under_both_settings_is_allowed(lab):
    """0.25 there and 0.5 here from float64: wrong on both, and as wrong as rounding makes the reference."""
    own = lab.measured((5.0, 2.0))
    for number, word in ((5.5, RANKS[2]), (6.5, RANKS[4])):
        theirs = lab.measured((number, 2.0), exact=(4096.0, 2.5), on=facts("two"))
        found = {pair.label: pair for pair in lab.across(own, ("lab", theirs)).pairs}
        assert found["case"].agreement.word == word
        assert found["case"].differs == (word == RANKS[4])
        assert "0.75" in (found["case"].agreement.rule if word == RANKS[2] else found["case"].agreement.first)


def test_repeats_measure_rounding_too(lab):
    own = lab.measured((4096.0, 2.0), exact=(4096.0, 2.0), repeats=[(4096.5, 2.0)])
    found = lab.across(own, ("lab", lab.measured((4096.25, 2.0), exact=(4096.0, 2.0), on=facts("two"))))
    (pair,) = [one for one in found.pairs if one.label == "case"]
    assert pair.agreement.rule.endswith("repeats in one setting differ by as much")


def test_without_a_measure_any_other_bit_differs(lab):
    pair = only(lab.across([lab.replay()], ("lab", [lab.replay(numbers=(1.0, 2.0 + 2**-22), on=facts("two"))])))
    assert (pair.agreement.word, pair.differs) == (RANKS[4], True)
    assert "what rounding allows is not known" in pair.agreement.first


def test_rulers_are_used_and_not_compared(lab):
    found = lab.across(lab.measured((1.0, 2.0)), ("lab", lab.measured((1.0, 2.0), on=facts("two"))))
    assert sorted(pair.label for pair in found.pairs) == ["case", "reference"]


def test_a_case_that_is_not_there_says_why(lab):
    own = [lab.replay("a"), lab.replay("b"), lab.replay("c", scenario="x/y"), lab.replay("d", scenario="x/z")]
    theirs = [
        lab.replay("a", on=facts("two")),
        lab.replay("c", scenario="x/y", source=digest("edited"), on=facts("two")),
    ]
    found = {pair.label: pair for pair in lab.across(own, ("lab", theirs)).pairs}
    assert {label: pair.agreement.rule for label, pair in found.items() if pair.theirs is None} == {
        "b": "the case was not run there",
        "c": "the scenario file was another when it was run there",
        "d": "the scenario was not run there",
    }
    assert not any(pair.compared or pair.differs for label, pair in found.items() if label != "a")


@pytest.mark.parametrize("order", [1, -1])
def test_a_file_that_was_run_before_and_after_an_edit_was_run(lab, order):
    own = [lab.replay("a"), lab.replay("b")]
    theirs = [lab.replay("a", on=facts("two")), lab.replay("b", source=digest("edited"), on=facts("two"))]
    found = {pair.label: pair for pair in lab.across(own, ("lab", theirs[::order])).pairs}
    assert found["b"].agreement.rule == "the case was not run there"


def test_a_bundle_of_other_sources_alone_is_compared_with_nothing(lab):
    edited = [lab.replay(source=digest("edited"), on=facts("two"))]
    assert lab.across([lab.replay()], ("lab", edited)).pairs == ()


def test_what_could_not_run_on_one_side_is_not_compared(lab):
    lacking = replace(samples.outcome("not_run"), detail="needs cuda")
    for own, theirs in (({"ended": lacking}, {}), ({}, {"ended": lacking})):
        others = [lab.replay("a", on=facts("two"), **theirs), lab.replay("b", on=facts("two"))]
        found = lab.across([lab.replay("a", **own), lab.replay("b")], ("lab", others))
        pair = next(pair for pair in found.pairs if pair.label == "a")
        assert (pair.compared, pair.differs, pair.agreement.rule) == (False, False, "not run: needs cuda")


def test_what_ran_on_both_sides_and_cannot_be_compared_is_no_difference(lab):
    own, theirs = (lab.replay(role="input", numbers=(some,), on=facts(host)) for some, host in ((1.0, "a"), (2.0, "b")))
    pair = only(lab.across([own], ("lab", [theirs])))
    assert (pair.compared, pair.agreement.rank, pair.differs) == (True, CANNOT, False)
    assert lab.across([own], ("lab", [theirs])).differing == []


# What is proven.

SAME_, OTHER_ = (1.0, 2.0), (1.0, 3.0)


def test_a_cause_is_proven_by_a_counter_replay_and_by_no_setting_that_happens_to_differ_in_one_factor(lab):
    own = [lab.replay()]
    other = ("lab", [lab.replay(numbers=OTHER_, on=facts(cap="AVX2", threads=2))])
    alone = ("archive", [lab.replay(numbers=OTHER_, on=facts(cap="AVX2"))])
    both = lab.across(own, alone, other)
    assert {one.word for listed in both.causes.values() for one in listed} == {OPEN}
    found = lab.across(own, alone, other, counter=[("proof", lab.proof("plain", SAME_, OTHER_))])
    words = {one.factor: (one.word, one.by) for one in found.causes["default-capability-avx2-threads-2"]}
    assert words == {CAPABILITY: (PROVEN, "proof"), THREADS: (OPEN, "")}
    assert set(found.causes) == {one.name for one in found.others}
    assert [one.name for one in found.others] == [one.name for one in both.others], "a counter-replay is no column"
    assert [(one.factor, one.decides, one.along, one.pairs) for one in found.splits] == [
        (CAPABILITY, 1, 2, 2),
        (THREADS, 0, 1, 2),
    ]


def test_a_setting_that_differs_in_nothing_recorded_and_gives_other_evidence_is_said_to(lab):
    found = lab.across([lab.replay("a"), lab.replay("b")], ("lab", [lab.replay("a", numbers=OTHER_), lab.replay("b")]))
    assert found.causes["default"] == ()
    made = text(found)
    assert "**No cause is proven.**" in made
    assert "| `default` | none that is recorded | | | 1 case gives other evidence" in re.sub(" +", " ", made)
    alike = lab.across([lab.replay("a")], ("lab", [lab.replay("a")]))
    assert "none that is recorded" not in text(alike)


def test_a_first_run_that_differs_in_the_system_alone_proves_nothing(lab):
    """What a newcomer was told: the kernel is the cause, with the published bundle as its own witness."""
    kernel = {"name": "Linux", "release": "6.18"}
    own = [lab.replay("same"), lab.replay("message", ended=samples.outcome("raised", "hook"))]
    theirs = [
        lab.replay("same", on=facts(system=kernel)),
        lab.replay("message", on=facts(system=kernel), ended=samples.outcome("raised", "no hook")),
    ]
    found = lab.across(own, ("lab", theirs))
    (one,) = found.causes["default"]
    assert (one.factor, one.word, one.alone, one.by) == ("system", FIXED, True, "")
    made = text(found)
    assert "**No cause is proven.**" in made
    assert "Proven causes" not in made
    assert "differs in this alone; cannot be flipped here" in made
    assert "is changed by no setting of a process" in made


@pytest.mark.parametrize("name", ["archive", "lab"])
def test_records_that_call_themselves_a_counter_replay_prove_nothing_outside_of_a_sweep(lab, name):
    """In the archive or in a bundle they are loose records, whoever wrote them."""
    other = ("bundle", [lab.replay(numbers=OTHER_, on=facts(cap="AVX2"))])
    found = lab.across([lab.replay()], other, (name, lab.proof("plain", SAME_, OTHER_)))
    assert [one.word for one in found.causes["default-capability-avx2"]] == [OPEN]
    assert len(found.others) == 1


@pytest.mark.parametrize(
    ("proof", "word"),
    [
        ({"ours": OTHER_, "theirs": OTHER_}, CONTROL_DIFFERS),
        ({"ours": SAME_, "theirs": SAME_}, "not the cause"),
        ({"ours": SAME_, "theirs": (1.0, 9.0)}, "changes the bits, but not to these"),
        ({"ours": SAME_, "theirs": OTHER_, "repeats": 1}, "cannot decide: not every case was run twice on both sides"),
        ({"ours": SAME_, "theirs": OTHER_, "host": "two"}, OPEN),
    ],
)
def test_what_a_counter_replay_does_not_show_is_not_proven(lab, proof, word):
    other = ("lab", [lab.replay(numbers=OTHER_, on=facts(cap="AVX2"))])
    found = lab.across([lab.replay()], other, counter=[("id", lab.proof("plain", **proof))])
    assert [one.word for one in found.causes["default-capability-avx2"]] == [word]
    made = text(found)
    assert "**No cause is proven.**" in made
    assert word in made


def test_a_proof_names_its_sweep(lab):
    other = ("lab", [lab.replay(numbers=OTHER_, on=facts(cap="AVX2"))])
    made = text(lab.across([lab.replay()], other, counter=[("proof-1", lab.proof("plain", SAME_, OTHER_))]))
    assert "**Proven causes: CPU capability (1 setting).**" in made
    assert "| **proven** | 1 of 1 | counter-replay `proof-1` |" in made


# Distances.


def neighbour(steps):
    """The float32 that many units in the last place above 1."""
    return 1.0 + steps * 2.0**-23


def test_gradients_are_counted_by_how_many_units_they_are_off(lab):
    steps = (0, 0, 1, 2, 3, 4, 15, 16, 255, 256, 65535, 65536)
    own, theirs = (1.0,) * len(steps), tuple(map(neighbour, steps))
    others = [lab.replay(numbers=theirs, on=facts("two")), lab.replay("b", role="output", on=facts("two"))]
    found = lab.across([lab.replay(numbers=own), lab.replay("b", role="output")], ("lab", others))
    (one,) = found.distances
    assert dict(zip(BIN_NAMES, one.counts, strict=True)) == {
        "same bits": 2,
        "1": 1,
        "2 to 3": 2,
        "4 to 15": 2,
        "16 to 255": 2,
        "256 to 65535": 2,
        "more": 1,
    }
    assert (one.largest, one.tensors, one.elements) == (65536, 1, len(steps)), "an output is no gradient"


def test_of_another_outcome_no_distance_is_taken(lab):
    raised = lab.replay(numbers=(9.0, 9.0), on=facts("two"), ended=samples.outcome("raised", "no"))
    (one,) = lab.across([lab.replay()], ("lab", [raised])).distances
    assert (one.elements, one.tensors, one.largest) == (0, 0, 0)


def test_cases_without_gradients_to_compare_are_counted_and_those_that_differ_among_them(lab):
    """A chart of gradients alone shows a computer as equal on which the cases that differ have none."""
    own = [lab.replay(case) for case in ("same", "off", "raised", "absent")]
    own += [lab.replay("bare", role="output"), lab.replay("lacking")]
    theirs = [
        lab.replay("same", on=facts("two")),
        lab.replay("off", (1.0, 3.0), on=facts("two")),
        lab.replay("raised", on=facts("two"), ended=samples.outcome("raised", "no")),
        lab.replay("bare", role="output", on=facts("two")),
        lab.replay("lacking", on=facts("two"), ended=replace(samples.outcome("not_run"), detail="needs cuda")),
    ]
    (one,) = lab.across(own, ("lab", theirs)).distances
    assert (one.cases, one.left_out, one.differing_left_out) == (2, 2, 1), "what did not run there is in neither"


# As JSON.


def test_the_json_has_every_pair_with_the_rule_that_decided_it(lab):
    own, theirs = [lab.replay("a"), lab.replay("b")], [lab.replay("a", (1.0, 3.0), on=facts("two"))]
    found = lab.across(own, ("lab", theirs))
    made = json.loads(agreement_json(found))
    assert [(one["case"], one["rank"], one["compared"]) for one in made["pairs"]] == [
        ("a", 4, True),
        ("b", CANNOT, False),
    ]
    assert made["pairs"][0]["theirs"] == theirs[0].content_digest()
    assert made["pairs"][0]["largest difference"] == {
        "tensor": "gradient x",
        "absolute": 1,
        "relative": 1 / 3,
        "ulp": 2**22,
    }
    assert made["pairs"][1]["largest difference"] is None
    assert made["pairs"][1]["theirs"] is None
    assert [(one["name"], one["computer"]) for one in made["settings"]] == [
        ("here", "one"),
        (found.others[0].name, "two"),
    ]
    assert {one["setting"] for one in made["pairs"]} == {found.others[0].name}
    assert made["classes"] == [["here"], [found.others[0].name]]
    assert agreement_json(lab.across(own, ("lab", theirs))) == agreement_json(found)


# What notes have reported.


def told(**changes):
    fields = {"claim": "X1", "scenario": "checkpoint/policy", "case": "plain", "kind": "finished", "error": ""}
    return Told(**{**fields, "text": "passes", **changes})


def raised(kind="torch.checkpoint.CheckpointError", bases=("builtins.RuntimeError",)):
    return replace(samples.outcome("raised", "no"), type=kind, bases=bases)


@pytest.mark.parametrize(
    ("changes", "ended", "word", "here"),
    [
        ({}, None, SAME, "finished"),
        ({"kind": "raised"}, None, OTHER, "finished"),
        ({}, raised(), OTHER, "CheckpointError"),
        ({"kind": "raised", "error": "CheckpointError"}, raised(), SAME, "CheckpointError"),
        ({"kind": "raised", "error": "RuntimeError"}, raised(), SAME, "CheckpointError"),
        ({"kind": "raised", "error": ""}, raised(), SAME, "CheckpointError"),
        ({"kind": "raised", "error": "ValueError"}, raised(), OTHER, "CheckpointError"),
        ({"kind": "raised"}, samples.outcome("timed_out"), OTHER, "timed_out"),
        ({"case": "another"}, None, NOT_RUN, "not run"),
        ({"scenario": "x/y"}, None, NOT_RUN, "not run"),
        ({}, samples.outcome("not_run"), NOT_RUN, "not run"),
    ],
)
def test_an_outcome_that_was_reported_is_held_against_what_was_seen(lab, changes, ended, word, here):
    assert compare_outcome(told(**changes), [lab.replay(ended=ended)]) == (word, here)


def test_parameters_must_be_those_that_were_reported(lab):
    replays = [
        lab.replay(parameters={"kind": "reentrant"}),
        lab.replay(parameters={"kind": "non-reentrant"}, ended=raised()),
    ]
    assert compare_outcome(told(where=(("kind", "reentrant"),)), replays) == (SAME, "finished")
    assert compare_outcome(told(where=(("kind", "non-reentrant"),)), replays)[0] == OTHER
    assert compare_outcome(told(where=(("kind", "another"),)), replays)[0] == NOT_RUN
    assert compare_outcome(told(), replays) == (f"{SAME} in 1 of 2", "CheckpointError, finished")


def test_the_notes_tell_of_outcomes_that_a_record_can_have():
    assert REPORTED == (CHECKPOINT_NOTE, COMPILE_NOTE)
    for one in REPORTED:
        assert len({(item.claim, item.scenario, item.case) for item in one.told}) == len(one.told) > 0
        assert {item.kind for item in one.told} <= {"finished", "raised"}


# The page.


def text(found, image=""):
    return "\n\n".join("\n".join(section) for section in page(found, image)) + "\n"


def test_with_nobody_to_compare_with_there_is_no_page(lab):
    assert page(lab.across([lab.replay()])) == []


def test_with_notes_alone_it_says_that_there_is_nothing_to_compare_with(lab):
    made = text(lab.across([lab.replay()], reported=REPORTED))
    assert "there is nothing to compare with" in made
    assert "`compile-checkpoint-note`" in made
    assert_safe(made)


def test_a_setting_with_which_nothing_was_compared_leaves_no_sentence_open(lab):
    lacking = replace(samples.outcome("not_run"), detail="needs cuda")
    made = text(lab.across([lab.replay()], ("lab", [lab.replay(on=facts("two"), ended=lacking)])))
    assert "Over all pairs of a case here and under another setting: none." in made
    assert "| not run: needs cuda | `default-two` | 1 | `checkpoint/policy` |" in made


def test_what_cannot_be_compared_is_listed_as_that_alone(lab):
    own, theirs = (lab.replay(role="input", numbers=(some,), on=facts(host)) for some, host in ((1.0, "a"), (2.0, "b")))
    made = text(lab.across([own], ("lab", [theirs])))
    assert "differs beyond rounding" not in made
    assert "equal within rounding, with the rule" not in made
    assert "| the inputs differ | `default-b` | 1 | `checkpoint/policy` |" in made


def test_the_first_difference_of_a_class_is_one_that_was_found(lab):
    """What was looked at in other passes stands first in the sweep, and says nothing."""
    looked = lab.bench.record(samples.spec("a", pass_="profiled"), machine=facts())
    own = [lab.bench.replay(lab.replay("a").plain, looked), lab.replay("b")]
    theirs = [lab.replay("a", on=facts("two")), lab.replay("b", (1.0, 3.0), on=facts("two"))]
    made = text(lab.across(own, ("lab", theirs)))
    assert (
        "| 2 | `default-two` | `default-two` | 1 setting of one computer | `checkpoint/policy b`: different values: "
        "a tensor differs; what counts as rounding is not known: `gradient x differs by 1;"
    ) in made.replace(" (outlier)", "")


def test_settings_of_one_computer_that_agree_do_not_confirm_each_other(lab):
    same = [(name, [lab.replay(environment=name, on=facts(threads=threads))]) for threads, name in ((2, "x"), (3, "y"))]
    made = text(lab.across([lab.replay()], *same, ("lab", [lab.replay(on=facts("two"))])))
    assert (
        "has exactly the evidence of 2 other settings with the host identity of this computer (`x`, `y`) and 1 setting "
        "of 1 other computer (`default-two`), in all cases that they share."
    ) in made
    assert "| 1 | `here` | `here`, `x`, `y`, `default-two` | 4 settings of 2 computers |" in made
    assert "a copy of its image would have it too. Computer 1 has 3 settings, 2 has 1 setting." in made
    assert "machine" not in made.replace("machine id", "")


def test_a_switch_that_is_not_known_here_is_not_said_to_be_equal_everywhere(lab):
    theirs = lab.replay(on=facts("two", switches={"threads": 1, "newer": True}))
    made = text(lab.across([lab.replay()], ("lab", [theirs])))
    assert "newer" not in made
    assert "(empty)" not in made


WORDS = {
    "environment": "avx2",
    "bundle": "lab",
    "host": "two",
    "version": "2.14.1",
    "processor": "another processor",
    "capability": "SVE",
    "variable": "0",
    "message": "no",
    "detail": "needs cuda",
    "tensor": "x",
    "scenario": "checkpoint/policy",
    "case": "broken",
    "parameter": "small",
    "variable name": "KMP_BLOCKTIME",
    "switch": "grad",
    "note": "a note",
    "reported": "passes",
}
"""Every place into which a record, a machine document or a bundle's name can write text."""
NAMES = ("scenario", "case", "parameter", "variable name", "switch", "environment")
"""Places that order or group what is shown."""


def world(**words):
    """A sweep beside two other computers with one of everything; `words` replace texts of `WORDS`."""
    said = {**WORDS, **{name.replace("_", " "): word for name, word in words.items()}}
    lab = Lab()
    asked = {"scenario": said["scenario"], "parameters": {"size": said["parameter"]}}
    switches = {"threads": 1, said["switch"]: said["variable"]}
    there = facts(
        said["host"], said["version"], said["capability"], variables={said["variable name"]: said["variable"]}
    )
    there = {**there, "switches": switches, "cpu": {**there["cpu"], "model": said["processor"]}}
    own, theirs = {"on": facts(switches={"threads": 1, said["switch"]: "on"})}, {"on": there}
    lacking = replace(samples.outcome("not_run"), detail=said["detail"])
    cases = [
        (said["case"], {}, {"ended": samples.outcome("raised", said["message"])}),
        ("numbers", {"tensor": said["tensor"]}, {"tensor": said["tensor"], "numbers": (1.0, 7.0)}),
        ("lacking", {}, {"ended": lacking}),
        ("same", {}, {}),
    ]
    first = [lab.replay(case, **asked, **own, **one) for case, one, _ in cases]
    second = [lab.replay(case, **asked, **theirs, environment=said["environment"], **one) for case, _, one in cases]
    first += lab.measured((5.0, 2.0), **own, tensor=said["tensor"])
    second += lab.measured((5.5, 2.0), **theirs, tensor=said["tensor"], environment=said["environment"])
    third = [lab.replay("same", **asked, on=facts("three"), environment=said["environment"])]
    note = Reported(said["note"], said["note"], (told(case="same", scenario=said["scenario"], text=said["reported"]),))
    found = lab.across(first, (said["bundle"], second), ("other", third), reported=[note], planned=6)
    return text(found, "stem.png").replace("![Gradients by ULP](stem.png)", "image")


def test_the_page_has_a_place_for_each_of_the_words():
    made = world(**{name.replace(" ", "_"): f"w{at}w" for at, name in enumerate(WORDS)})
    assert [name for at, name in enumerate(WORDS) if f"w{at}w" not in made] == []


def test_the_same_values_give_the_same_bytes():
    assert world() == world()


def test_sections_stand_in_the_order_in_which_they_are_read():
    assert [line[3:] for line in world().splitlines() if line.startswith("## ")] == [
        "This setting among others",
        "From planned to same",
        "Why the bits differ",
        "Scenarios by setting",
        "Differences in numbers between settings",
        "What could not be compared with other settings",
    ]


def test_the_page_counts_pairs_setting_by_setting():
    made = world()
    assert "| `avx2-torch-2.14.1-two` | 2 | 6 | 6 | 5 | 2 | 1 |  | 1 | 1 |  |" in made
    assert "1 pair is equal within rounding, with the rule that decided it" in made
    assert "2 pairs differ beyond rounding:" in made
    assert "**1 different outcome**" in made


def test_of_many_pairs_that_differ_the_first_are_shown_and_the_rest_folded(lab):
    many = [f"c{at:02}" for at in range(SHOWN + 5)]
    theirs = [lab.replay(case, (1.0, 3.0), on=facts("two")) for case in many]
    made = text(lab.across([lab.replay(case) for case in many], ("lab", theirs)))
    assert f"{SHOWN + 5} pairs differ beyond rounding:" in made
    shown, _, rest = made.partition("<details><summary>5 more</summary>")
    assert [case in shown.partition("differ beyond rounding")[2] for case in many] == [True] * SHOWN + [False] * 5
    assert all(case in rest for case in many[SHOWN:])


@pytest.mark.parametrize("place", sorted(set(WORDS) - set(NAMES)))
def test_no_text_changes_the_structure_of_the_page(place):
    """The same tokens in the same places: no cell, row, heading or link is added."""
    # A variable that is no word is not set here, and the page says so.
    expected = structure(world(**({"variable": "two words"} if place == "variable" else {})))
    for word in (*TOGETHER, *OPENING):
        made = world(**{place.replace(" ", "_"): word})
        assert_safe(made)
        assert structure(made) == expected, word


@pytest.mark.parametrize("place", NAMES)
def test_no_name_becomes_markup(place):
    for word in (*TOGETHER, *OPENING):
        assert_safe(world(**{place.replace(" ", "_"): word}))


@pytest.mark.parametrize("word", ["a|b", "`", "<script>alert(1)</script>", "a\nb", "\x1b[31mred\x07"])
def test_everything_at_once_is_safe_too(word):
    made = world(**{name.replace(" ", "_"): word for name in WORDS})
    assert_safe(made)


# Through files.


def kept(folder, name, *records, bench):
    """An archive of a sweep of these records; gives it open, and the sweep."""
    archive = Archive.open(f"sqlite:///{folder}/{name}.db", folder / name)
    sweep = archive.begin_sweep([one.spec for one in records], "a" * 64).id
    for one in records:
        archive.add_text(one.text(), bench.blobs.get, sweep)
    return archive, sweep


@pytest.fixture
def published(lab, tmp_path):
    """A folder with one bundle: another computer, which agrees in one of two cases."""
    theirs = [lab.replay("a", on=facts("two", cap="AVX2")), lab.replay("b", (1.0, 2.5), on=facts("two", cap="AVX2"))]
    archive, sweep = kept(tmp_path, "theirs", *(one.plain for one in theirs), bench=lab.bench)
    (tmp_path / "published").mkdir()
    with archive:
        export_bundle(archive, [cell.digest for cell in archive.cells(sweep=sweep)], tmp_path / "published" / "lab.zip")
    return tmp_path / "published"


@pytest.fixture
def swept(lab, tmp_path):
    """An archive, open, and its sweep."""
    archive, sweep = kept(tmp_path, "ours", lab.replay("a").plain, lab.replay("b").plain, bench=lab.bench)
    with archive:
        yield archive, sweep


def test_a_report_is_held_against_published_bundles_which_stay_where_they_are(swept, published, tmp_path):
    archive, sweep = swept
    made = build.make_report(archive, sweep, "stem", published)
    assert set(made.files) == {"stem.agreement.json", "stem-machines.png"}
    assert made.files["stem-machines.png"].startswith(b"\x89PNG")
    assert [(one.name, one.origin) for one in made.across.others] == [("default-capability-avx2-two", "lab.zip")]
    said = json.loads(made.files["stem.agreement.json"])
    assert {one["case"]: one["rank"] for one in said["pairs"]} == {"a": 1, "b": 4}
    for section in ("## This setting among others", "## From planned to same", "## Why the bits differ"):
        assert section in made.text
    assert "![Gradients by ULP](stem-machines.png)" in made.text
    assert "| `checkpoint/policy` | 2 finished | 1 identical, **1 different values** |" in made.text
    assert len(archive.cells()) == 2, "nothing of a bundle is added"
    path = build.write_report(archive, sweep, tmp_path / "reports", "stem", published)
    again = build.write_report(archive, sweep, tmp_path / "again", "stem", published)
    assert {one.name: one.read_bytes() for one in path.parent.iterdir()} == {
        one.name: one.read_bytes() for one in again.parent.iterdir()
    }


def test_what_else_the_archive_has_is_another_setting(lab, swept, tmp_path):
    archive, sweep = swept
    flipped = lab.replay("b", (1.0, 2.5), on=facts(cap="AVX2"), environment="avx2").plain
    for other in (flipped, lab.replay("b", (9.0, 9.0)).plain):
        again = archive.begin_sweep([other.spec], "a" * 64).id
        archive.add_text(other.text(), lab.bench.blobs.get, again)
    made = build.make_report(archive, sweep, "stem", tmp_path / "nothing")
    assert [(one.name, one.origin) for one in made.across.others] == [("avx2", "archive")], "its own past is not"
    assert [one.word for one in made.across.causes["avx2"]] == [OPEN]
    assert "**No cause is proven.**" in made.text


def proven(archive, sweep, nowhere):
    made = build.make_report(archive, sweep, "stem", nowhere)
    return [(one.word, one.by) for one in made.across.causes["avx2"]], made


def test_a_counter_replay_is_a_sweep_that_was_run_on_this_computer(lab, swept, tmp_path):
    """Its records alone, or as the sweep of another computer, prove nothing."""
    archive, sweep = swept
    archive.add_text(
        lab.replay("b", OTHER_, on=facts(cap="AVX2"), environment="avx2").plain.text(), lab.bench.blobs.get
    )
    proof = [one.plain for one in lab.proof("b", SAME_, OTHER_)]
    for one in proof:
        archive.add_text(one.text(), lab.bench.blobs.get)
    assert proven(archive, sweep, tmp_path / "nothing")[0] == [(OPEN, "")]
    for computer, expected in (("b" * 64, OPEN), ("a" * 64, PROVEN)):
        made = archive.begin_sweep([one.spec for one in proof], computer).id
        for one in proof:
            archive.add_text(one.text(), lab.bench.blobs.get, made)
        assert proven(archive, sweep, tmp_path / "nothing")[0] == [(expected, made if expected == PROVEN else "")]
    assert build.latest_own_sweep(archive) == sweep, "it is no sweep to report on"
    said = json.loads(proven(archive, sweep, tmp_path / "nothing")[1].files["stem.agreement.json"])
    assert said["causes"]["avx2"] == [[CAPABILITY, "AVX512", "AVX2", True, PROVEN, 1, 1, 1, made]]


def test_a_sweep_of_the_flip_alone_proves_nothing(lab, swept, tmp_path):
    """What counter-replays were before they had a control."""
    archive, sweep = swept
    archive.add_text(
        lab.replay("b", OTHER_, on=facts(cap="AVX2"), environment="avx2").plain.text(), lab.bench.blobs.get
    )
    for kind in (CONTROL, FLIP):
        half = [one.plain for one in lab.proof("b", SAME_, OTHER_) if one.spec.setting.environment.startswith(kind)]
        made = archive.begin_sweep([one.spec for one in half], "a" * 64).id
        for one in half:
            archive.add_text(one.text(), lab.bench.blobs.get, made)
    assert proven(archive, sweep, tmp_path / "nothing")[0] == [(OPEN, "")]


def test_alone_nothing_is_said_of_other_settings(swept):
    archive, sweep = swept
    made = build.make_report(archive, sweep, "stem", None)
    assert made.across is None
    assert not made.files
    assert "among others" not in made.text


@pytest.mark.parametrize("damage", ["cut", "changed", "no bundle"])
def test_a_damaged_published_bundle_is_an_error_that_names_it(swept, published, damage):
    archive, sweep = swept
    path = published / "lab.zip"
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(
        {
            "cut": content[:middle],
            "changed": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            "no bundle": b"not a zip",
        }[damage]
    )
    with pytest.raises(ArchiveError, match=r"lab\.zip is refused"):
        build.make_report(archive, sweep, "stem", published)


def test_every_bundle_is_a_setting_even_if_they_are_the_same(swept, published):
    archive, sweep = swept
    shutil.copy(published / "lab.zip", published / "lab-again.zip")
    made = build.make_report(archive, sweep, "stem", published)
    assert [(one.name, one.origin) for one in made.across.others] == [
        ("default-capability-avx2-two", "lab-again.zip"),
        ("default-capability-avx2-two-2", "lab.zip"),
    ]


@pytest.mark.parametrize("name", ["archive.zip", "here.zip"])
def test_a_bundle_of_any_name_is_a_published_one(swept, published, name):
    archive, sweep = swept
    (published / "lab.zip").rename(published / name)
    (found,) = build.make_report(archive, sweep, "stem", published).across.others
    assert found.origin == name

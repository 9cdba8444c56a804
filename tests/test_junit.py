"""JUnit XML says of each pair what its agreement says, whatever the records hold, in the same bytes each time."""

from __future__ import annotations

import math
from dataclasses import replace
from xml.etree import ElementTree as ET

import junitparser
import pytest
import samples
from test_across import Lab, facts
from test_report import HOSTILE

from experiments.core.verdict import AS_EXPECTED, CANNOT_SAY, NOT_AS_EXPECTED, Verdict
from reports import build
from reports.ci import junit

LACKING = replace(samples.outcome("not_run"), detail="needs cuda")


@pytest.fixture
def lab():
    return Lab()


def suites(content):
    """Cases by suite and name, each with what it came to: tag, type, message, text."""
    root = ET.fromstring(content)
    return {suite.get("name"): {case.get("name"): came_to(case) for case in suite.iter("testcase")} for suite in root}


def came_to(case):
    return [(one.tag, one.get("type"), one.get("message"), one.text) for one in case]


def beside(lab, own, theirs):
    """The suite of the one other machine."""
    found = lab.across([own], ("lab", [theirs] if theirs else [lab.replay("b", on=facts("two"))]))
    return suites(junit.document("s", [], found))["default-two"]


def pair(lab, ours=None, other=None):
    """What a pair comes to whose sides are changed so."""
    own, theirs = lab.replay(**(ours or {})), lab.replay(on=facts("two"), **(other or {}))
    (found,) = beside(lab, own, theirs).values()
    return found


# Pairs.


def test_a_pair_that_agrees_passes(lab):
    assert pair(lab) == []


def test_a_pair_that_is_equal_within_rounding_passes(lab):
    found = lab.across(lab.measured((5.0, 2.0)), ("lab", lab.measured((5.5, 2.0), on=facts("two"))))
    assert set(suites(junit.document("s", [], found))["default-two"]) == {"case (cpu)", "reference (cpu)"}
    assert "within rounding" in " ".join(one.agreement.word for one in found.pairs)
    assert junitparser.JUnitXml.fromstring(junit.document("s", [], found)).failures == 0


def test_a_pair_that_differs_fails_with_its_first_difference_and_its_rule(lab):
    assert pair(lab, other={"numbers": (1.0, 3.0)}) == [
        (
            "failure",
            "different values",
            "gradient x differs by 1; what rounding allows is not known",
            "a tensor differs; what counts as rounding is not known",
        )
    ]
    ((tag, kind, message, rule),) = pair(lab, other={"ended": samples.outcome("raised", "no")})
    assert (tag, kind, rule) == ("failure", "different outcome", "a pass ended otherwise")
    assert message.startswith("plain pass: finished against ")


@pytest.mark.parametrize("kind", ["timed_out", "out_of_memory", "died"])
@pytest.mark.parametrize("side", ["ours", "other"])
def test_a_process_that_was_ended_on_one_side_alone_is_an_error(lab, kind, side):
    ((tag, words, message, _),) = pair(lab, **{side: {"ended": samples.outcome(kind)}})
    assert tag == "error"
    assert words == (f"{kind} here, finished there" if side == "ours" else f"finished here, {kind} there")
    assert kind in message


def test_processes_that_were_ended_on_both_sides_are_compared(lab):
    assert pair(lab, {"ended": samples.outcome("died")}, {"ended": samples.outcome("died")}) == []
    found = pair(lab, {"ended": samples.outcome("died")}, {"ended": samples.outcome("timed_out")})
    assert [tag for tag, *_ in found] == ["failure"]


def test_what_was_not_compared_is_skipped_with_the_reason(lab):
    assert pair(lab, {"ended": LACKING}) == [("skipped", None, "not run: needs cuda", None)]
    assert pair(lab, {"role": "input", "numbers": (1.0,)}, {"role": "input", "numbers": (2.0,)}) == [
        ("skipped", None, "the inputs differ", None)
    ]
    own = [lab.replay("a"), lab.replay("b")]
    found = lab.across(own, ("lab", [lab.replay("b", on=facts("two"))]))
    assert suites(junit.document("s", [], found))["default-two"] == {
        "a (cpu)": [("skipped", None, "the case was not run there", None)],
        "b (cpu)": [],
    }


def test_a_suite_says_how_its_setting_differs_and_of_which_class_it_is(lab):
    found = lab.across([lab.replay()], ("lab", [lab.replay(numbers=(1.0, 3.0), on=facts("two", cap="AVX2"))]))
    root = junitparser.JUnitXml.fromstring(junit.document("s", [], found))
    (suite,) = [one for one in root if one.name != "verdicts"]
    assert suite.name == found.others[0].name
    assert {one.name: one.value for one in suite.properties()} == {
        "from": "lab",
        "computer": "another host identity",
        "class": "2",
        "class of this setting": "1",
        "CPU capability": "AVX2",
        "host identity": "two",
    }


def test_a_setting_that_has_run_nothing_is_of_no_class(lab):
    found = lab.across([lab.replay()], ("lab", [lab.replay(on=facts("two"), ended=LACKING)]))
    root = junitparser.JUnitXml.fromstring(junit.document("s", [], found))
    (suite,) = [one for one in root if one.name != "verdicts"]
    assert {one.name: one.value for one in suite.properties()}["class"] == "none"


def timed(replay, seconds):
    record = replay.plain
    return type(replay)({"plain": replace(record, ending=replace(record.ending, duration=seconds))})


def seconds(content, name):
    return {
        case.get("name"): float(case.get("time"))
        for suite in ET.fromstring(content)
        if suite.get("name") == name
        for case in suite.iter("testcase")
    }


def test_times_are_those_of_the_process_under_the_setting_of_the_suite(lab):
    own, theirs = timed(lab.replay(), 2.5), timed(lab.replay(on=facts("two")), 4.0004)
    found = lab.across([own], ("lab", [theirs]))
    content = junit.document("s", [(own, Verdict(AS_EXPECTED, ()))], found)
    assert seconds(content, "verdicts") == {"plain (cpu) #0": 2.5}
    assert seconds(content, "default-two") == {"plain (cpu)": 4.0}
    assert ET.fromstring(content).get("time") == "6.5"


@pytest.mark.parametrize("took", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_none(lab, took):
    own = timed(lab.replay(), took)
    assert seconds(junit.document("s", [(own, Verdict(AS_EXPECTED, ()))], None), "verdicts") == {"plain (cpu) #0": 0.0}


# Verdicts.


def test_verdicts_are_a_suite_of_the_sweep(lab):
    judged = [
        (lab.replay("fine"), Verdict(AS_EXPECTED, ("same bits",))),
        (lab.replay("wrong"), Verdict(NOT_AS_EXPECTED, ("expected ValueError: finished", "and more"))),
        (lab.replay("lacking", ended=LACKING), Verdict(CANNOT_SAY, ("not run: needs cuda",))),
        (lab.replay("wrong", repeat=1, sources="copied"), Verdict(AS_EXPECTED, ())),
        (lab.replay("fine", isolation="forked", parameters={"size": "small"}), Verdict(AS_EXPECTED, ())),
    ]
    content = junit.document("a-sweep", judged, None)
    assert suites(content) == {
        "verdicts": {
            "fine (cpu) #0": [],
            "fine[size=small] (cpu) #0 forked": [],
            "lacking (cpu) #0": [("skipped", None, "not run: needs cuda", None)],
            "wrong (cpu) #0": [("failure", "not as expected", "expected ValueError: finished; and more", "finished")],
            "wrong (cpu) #1 copied": [],
        }
    }
    root = junitparser.JUnitXml.fromstring(content)
    assert (root.tests, root.failures, root.errors, root.skipped) == (5, 1, 0, 1)
    assert [(one.name, one.value) for one in next(iter(root)).properties()] == [("sweep", "a-sweep")]
    assert {case.classname for case in next(iter(root))} == {"checkpoint/policy"}


# Bytes.


def world(lab, text="two words"):
    own = [lab.replay("b", scenario=text), lab.replay("a", scenario=text, ended=samples.outcome("raised", text))]
    theirs = [lab.replay(one, scenario=text, on=facts("two", variables={"KMP_SETTINGS": text})) for one in ("b", "a")]
    others = [(f"{text} z", theirs), (f"{text} a", [lab.replay("a", scenario=text, environment=text)])]
    found = lab.across(own, *others)
    return found, [(one, Verdict(NOT_AS_EXPECTED, (text,))) for one in own]


def test_the_same_records_give_the_same_bytes_in_whatever_order(lab):
    found, judged = world(lab)
    content = junit.document("s", judged, found)
    turned = replace(found, others=found.others[::-1], pairs=found.pairs[::-1])
    assert junit.document("s", judged[::-1], turned) == content
    again, _ = world(Lab())
    assert junit.document("s", judged, again) == content
    assert b"2026" not in content


@pytest.mark.parametrize("text", [*HOSTILE, "]]>", "\ufffe\uffff", "&amp;", '"', "\x00\x0b\x0c"])
def test_whatever_a_record_holds_the_xml_can_be_read(lab, text):
    found, judged = world(lab, text)
    content = junit.document(text, judged, found)
    root = junitparser.JUnitXml.fromstring(content)
    assert [len(suite) for suite in root] == [2, 2, 2]
    assert all(char.isprintable() or char in "\n\t" for char in content.decode("utf-8"))


def test_what_xml_cannot_hold_is_shown_as_it_is_escaped(lab):
    found = pair(lab, other={"ended": samples.outcome("raised", "\x1b[31mred\x00 \ud800")})
    assert "\\x1b[31mred\\x00 \\ud800" in found[0][2]


def test_a_long_text_is_cut_where_the_reader_sees_it(lab):
    content = junit.document("s", [(lab.replay(), Verdict(NOT_AS_EXPECTED, ("x" * 100_000,)))], None)
    (((_, _, message, _),),) = suites(content)["verdicts"].values()
    assert len(message) == junit.LONGEST
    assert "cut: 100000 characters in all" in message


def test_it_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "junit.xml"
    build.replace_file(path, b"first")
    build.replace_file(path, b"second")
    assert path.read_bytes() == b"second"
    assert [one.name for one in path.parent.iterdir()] == ["junit.xml"]

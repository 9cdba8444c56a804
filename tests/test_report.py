"""A report says what its records say, in the same bytes each time, and nothing in a record becomes markup."""

from __future__ import annotations

import json
import random
import re
import shlex
from dataclasses import replace

import pytest
import samples

from experiments.core.canonical_json import canonical, digest, parse
from experiments.core.expectations import expectation_to_json
from experiments.core.observation import Observed, Operator
from experiments.core.record import Record
from experiments.core.replay import Replay
from experiments.core.verdict import Ruling
from experiments.scenario import agrees, raises, recomputes_without
from reports.claims.claim import Claim
from reports.claims.findings import gather
from reports.claims.notes import Note
from reports.claims.registry import CLAIMS, decide
from reports.comparison import compare, record_digests
from reports.markdown.sweep import render_report

markdown_it = pytest.importorskip("markdown_it", reason="what markdown means is asked of a parser")

SCENARIO = "checkpoint/policy"
TITLE = "A policy has ended."
MESSAGE = "different metadata\nsaved: [2, 4]\nrecomputed: [4, 2]\n\nadvice"
PLACES = {
    "scenario": "checkpoint/policy",
    "case": "broken",
    "parameter": "small",
    "message": MESSAGE,
    "type": "CheckpointError",
    "detail": "cuda",
    "why": "nothing to break",
    "tensor": "x",
    "observed": "seen",
    "operator": "aten::math",
    "fact": "a processor",
    "fact of a process": "AVX512",
    "version": "2.13.0",
    "build": "built\nwith this",
    "title": "A policy has ended",
    "reason": "it holds",
    "sweep": "1-2-3",
    "role": "broken",
    "tensor role": "output",
    "torch fact": "build",
    "environment": "default",
}
"""Every place of a report into which a record, or what was imported with it, can write text."""


class Sweep:
    """A small sweep with one of everything; `words` replace texts of `PLACES`."""

    def __init__(self, **words):
        self.words = {**PLACES, **{name.replace("_", " "): text for name, text in words.items()}}
        self.bench = samples.Bench()
        self.made = []
        self.build()
        self.bench.machines = {name: parse(canonical(one)) for name, one in self.bench.machines.items()}

    def spec(self, case, **changes):
        scenario, environment = self.words["scenario"], self.words["environment"]
        return samples.spec(case, **{"scenario": scenario, "environment": environment, **changes})

    def facts(self, capability):
        words = self.words
        made = samples.facts(version=words["version"])
        made["torch"] = {"version": words["version"], words["torch fact"]: words["build"], "parallel": "one\nthread"}
        made["cpu"] = {**made["cpu"], "model": words["fact"], "capability": capability}
        return made

    def out(self, *numbers, dtype="float32"):
        return self.bench.tensor(self.words["tensor role"], self.words["tensor"], numbers, dtype)

    def record(self, asked, *tensors, capability="AVX2", **seen):
        return self.bench.record(asked, *tensors, machine=self.facts(capability), **seen)

    def add(self, *records):
        self.made.append(self.bench.replay(*records))

    def build(self):
        words = self.words
        reference, exact = (
            self.spec("reference", role="reference"),
            self.spec("reference", role="reference", dtype="float64"),
        )
        against = {"reference": reference.question.case_digest(), "float64": exact.question.case_digest()}
        self.add(
            self.record(
                replace(reference, mark=replace(reference.mark, float64=against["float64"])), self.out(4096.0, 2.0)
            )
        )
        self.add(self.record(exact, self.out(4096.0, 2.25, dtype="float64")))
        expected = (raises(words["type"], "metadata"), recomputes_without(words["operator"]))
        for repeat, sources in ((0, "original"), (1, "copied")):
            self.add(*self.broken(tuple(map(expectation_to_json, expected)), against, repeat=repeat, sources=sources))
        bitwise, rounded = ((expectation_to_json(agrees(**{how: True})),) for how in ("bitwise", "within_rounding"))
        self.add(
            self.record(self.spec("repaired", role="repair", expectations=bitwise, **against), self.out(4096.0, 2.0))
        )
        for size in ("small", "large"):
            rounds = self.spec("rounds", role="repair", parameters={"size": size}, expectations=rounded, **against)
            observed = (Observed(words["observed"], words["observed"], "evidence", None),)
            self.add(
                self.record(rounds, self.out(4096.0, 2.5), observed=observed, capability=words["fact of a process"])
            )
        lacking = replace(samples.outcome("not_run"), detail=words["detail"])
        held = self.spec("elsewhere", role="control", why=words["why"], expectations=bitwise, **against)
        self.add(self.record(held, ended=lacking))

    def broken(self, expectations, against, **changes):
        words = self.words
        ended = replace(samples.outcome("raised", words["message"]), type=words["type"])
        operators = {
            "forward": tuple(Operator(0, 0, name, ((2, 4),)) for name in ("aten::mm", words["operator"], "aten::sum")),
            "recomputation": tuple(
                Operator(0, depth, name, ((2, 4),)) for depth, name in ((0, "aten::mm"), (1, "aten::flash"))
            ),
        }
        for name in ("plain", "profiled"):
            asked = self.spec(
                words["case"],
                pass_=name,
                role=words["role"],
                parameters={"size": words["parameter"]},
                expectations=expectations,
                **against,
                **changes,
            )
            yield self.record(asked, ended=ended, operators=operators if name == "profiled" else None)

    def titles(self):
        return {self.words["scenario"]: self.words["title"]}

    def comparison(self):
        return compare(self.made, self.bench.blobs.get, self.bench.machines, self.titles())

    def text(self):
        rulings = [
            (
                Claim("A1", Note("source", "A note.", "here"), "A claim.", lambda _: None),
                Ruling("supported", self.words["reason"], ("a" * 64,)),
            )
        ]
        return render_report(self.words["sweep"], self.made, self.comparison(), rulings)


@pytest.fixture(scope="module")
def sweep():
    return Sweep()


@pytest.fixture(scope="module")
def report(sweep):
    return sweep.text()


def section(text, title):
    """What stands below the heading that begins so."""
    _, _, rest = text.partition(f"\n## {title}")
    assert rest, title
    return rest.partition("\n")[2].partition("\n## ")[0]


# Same records, same bytes.


def test_the_same_records_give_the_same_bytes(sweep, report):
    assert sweep.text() == report
    assert Sweep().text() == report


def shuffled(value, generator):
    """The same value with every mapping in another order."""
    if isinstance(value, dict):
        keys = list(value)
        generator.shuffle(keys)
        return {key: shuffled(value[key], generator) for key in keys}
    return [shuffled(item, generator) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_keys_does_not_show(sweep, report, seed):
    generator = random.Random(seed)
    again = Sweep()
    again.bench.machines = shuffled(sweep.bench.machines, generator)
    again.made = [
        Replay(
            {
                name: Record.from_text(json.dumps(shuffled(json.loads(one.text()), generator)))
                for name, one in reversed(list(replay.records.items()))
            }
        )
        for replay in sweep.made
    ]
    assert again.text() == report


def test_neither_time_nor_place_shows(report):
    again = Sweep()
    again.made = [
        Replay({name: replace(r, ending=replace(r.ending, duration=9.0)) for name, r in one.records.items()})
        for one in again.made
    ]
    digests = re.compile(r"[0-9a-f]{12,}")
    assert digests.sub("", again.text()) == digests.sub("", report), "other times are other records, and nothing else"
    assert "2026" not in report


def test_the_first_lines_name_the_records_by_digest(sweep, report):
    listed = record_digests(sweep.made)
    assert len(listed) == len(set(listed)) == 10
    head = report.splitlines()[2]
    assert head.startswith("10 records;")
    assert f"`{digest(''.join(listed))}`" in head
    for name in listed:
        assert f"`{name}`" in section(report, "Digests")


# What is in it.


def test_the_question_comes_first(report):
    assert report.splitlines()[0] == "# Evidence report: sweep `1-2-3`"
    assert report.splitlines()[4].startswith("**Question.**")
    assert "2.13.0" in report.splitlines()[4]


def test_sections_stand_in_the_order_in_which_they_are_read(report):
    titles = [line[3:] for line in report.splitlines() if line.startswith("## ")]
    assert titles == [
        "Verdicts",
        "The source in one page",
        "Operators: forward against recomputation",
        "Differences in numbers",
        "Do replays agree?",
        "What could not be compared",
        "The computer and its setting",
        "How to repeat it",
        "Digests",
    ]


def test_what_rests_on_records_that_are_kept_elsewhere_is_said_and_where_they_are():
    made = Sweep()
    names = ["b" * 64, "a" * 64]
    alone = render_report("s", made.made, made.comparison(), [])
    beside = render_report("s", made.made, made.comparison(), [], elsewhere={"there.zip": names})
    assert "each is named by its digest at the end." in alone.splitlines()[2]
    assert "other settings" not in alone
    assert "What is said of other settings rests on records that are kept elsewhere" in beside.splitlines()[2]
    row = f"| `there.zip` | 2 | `{digest(''.join(sorted(names)))}` |"
    assert row in section(beside, "Digests").splitlines()


def test_verdicts_are_counted_and_listed(report):
    text = section(report, "Verdicts")
    assert "Replays: 7 as expected, 1 cannot say." in text
    assert "`raised CheckpointError in backward`" in text
    for row in ("`reference`", "`broken[size=small]`", "`repaired`", "`rounds[size=large]`", "`elsewhere`"):
        assert f"| {row} |" in text
    assert "`elsewhere` cannot break here: nothing to break." in text


def test_the_ledger_has_every_claim_with_its_ruling(sweep):
    rulings = decide(gather(sweep.made, sweep.bench.blobs.get, sweep.bench.machines))
    report = render_report("s", sweep.made, sweep.comparison(), rulings)
    text = section(report, "The checkpoint attention note in one page")
    rows = [line.split("**")[1] for line in text.splitlines() if line.startswith("- **")]
    assert rows == [f"A{number}" for number in range(1, 14)]
    assert rows == [claim.id for claim in CLAIMS if claim.note.name == "checkpoint attention note"]
    assert "encountered while building Vesper" in text
    assert "No address or author of it is known to us." in text
    assert "Of 13 claims: 13 not tested here." in text
    assert "**What was not tested here**" in text
    assert "**What was right**" not in text


def test_operators_are_shown_with_the_first_difference_marked(report):
    lines = [line for line in section(report, "Operators").splitlines() if line.startswith("|")]
    marked = [line for line in lines if "**first difference**" in line]
    assert len(marked) == 1
    assert "| 1 | `aten::math` (2x4) | · `aten::flash` (2x4) |" in marked[0]
    assert "different metadata" in section(report, "Operators")


def test_a_recomputation_that_stops_early_does_not_differ():
    """Design: it is a prefix and fine."""
    made = Sweep()
    whole = made.made[2].records["profiled"]
    forward = whole.observation.operators["forward"]
    for again, place in ((forward[:2], None), (forward[:1], None), (forward, None), (forward[1:], 0), ((), None)):
        seen = replace(whole.observation, operators={"forward": forward, "recomputation": tuple(again)})
        replay = Replay({**made.made[2].records, "profiled": replace(whole, observation=seen)})
        found = compare([replay], made.bench.blobs.get, made.bench.machines, {}).operators
        assert [one.first for one in found] == ([place] if again else [])


def test_numbers_are_against_the_reference_and_float64(report):
    text = section(report, "Differences in numbers")
    assert "3 cases have" not in text
    assert "1 case has the bits of the reference in every output and gradient." in text
    assert "| `policy` `rounds[size=small]` | output `x` | 0.5 | 2097152 | 1 of 2 | 0.25 | 0.25 | 0.501 |" in text


def test_replays_that_agree_are_said_to(report):
    text = section(report, "Do replays agree?")
    assert text.split()[0] == "1"
    assert "1 of them once from sources copied" in text
    assert "**All replays agree exactly**" in text


def test_a_repeat_without_a_profiled_pass_is_compared_in_what_it_has():
    """What is repeated for a measurement is not looked at again: that is no other way of looking."""
    for message, rank in (("", "**All replays agree exactly**"), ("another", "same outcome by another path")):
        made = Sweep()
        assert set(made.made[2].records) == {"plain", "profiled"}, "the first is"
        plain = made.made[3].records["plain"]
        ended = replace(plain.outcome, message=message) if message else plain.outcome
        made.made[3] = Replay({"plain": replace(plain, outcome=ended)})
        text = section(made.text(), "Do replays agree?")
        assert rank in text
        assert "cannot compare" not in text


def test_replays_that_do_not_agree_are_listed():
    made = Sweep()
    plain = made.made[3].records["plain"]
    ended = replace(plain.outcome, message="another")
    made.made[3] = Replay({**made.made[3].records, "plain": replace(plain, outcome=ended)})
    text = section(made.text(), "Do replays agree?")
    assert "All replays agree exactly" not in text
    assert (
        "| `broken[size=small]` | same outcome by another path | other wording of the error, no value beyond rounding |"
        in text
    )


def test_what_has_not_run_is_listed_as_not_compared(report):
    text = section(report, "What could not be compared")
    assert "not run: cuda: 1 case." in text
    assert "- `checkpoint/policy elsewhere`" in text
    assert "elsewhere" not in section(report, "Differences in numbers")


def test_what_an_instrument_changed_is_listed():
    made = Sweep()
    looked = made.made[2].records["profiled"]
    made.made[2] = Replay({**made.made[2].records, "profiled": replace(looked, outcome=samples.outcome("finished"))})
    text = section(made.text(), "What could not be compared")
    assert "profiled pass: finished; plain pass: raised CheckpointError" in text


def test_facts_that_are_equal_are_said_once(report):
    text = section(report, "The computer and its setting")
    shared, _, different = text.partition("Facts that differ between processes:")
    assert "| `cpu.model` | `a processor` |" in shared
    assert "`cpu.capability`" not in shared
    assert different.count("`cpu.capability`") == 1
    assert "`AVX2`" in different
    assert "`AVX512`" in different
    assert text.count("built\nwith this") == 1


def test_one_machine_has_no_facts_that_differ():
    text = section(Sweep(fact_of_a_process="AVX2").text(), "The computer and its setting")
    assert "differ between processes" not in text
    assert "| `cpu.capability` | `AVX2` |" in text


def commands(text):
    """The lines of the shell blocks, as a shell would split them."""
    tokens = markdown_it.MarkdownIt("commonmark").parse(text)
    return [
        shlex.split(line)
        for token in tokens
        if token.type == "fence" and token.info == "sh"
        for line in token.content.splitlines()
    ]


def test_how_to_repeat_it_are_commands_to_paste(report):
    assert commands(report) == [
        ["make", "run-all", "SCENARIO=checkpoint/policy"],
        ["make", "snippet", "SCENARIO=checkpoint/policy", "CASE=broken[size=small]"],
    ]


@pytest.mark.parametrize("words", [{"parameter": "it's"}, {"scenario": "a/b'; echo planted '"}, {"scenario": "a/b c"}])
def test_names_in_commands_are_quoted(words):
    """Records come from other machines: what a reader pastes must not run what they hold."""
    made = {**PLACES, **words}
    assert commands(Sweep(**words).text()) == [
        ["make", "run-all", f"SCENARIO={made['scenario']}"],
        ["make", "snippet", f"SCENARIO={made['scenario']}", f"CASE=broken[size={made['parameter']}]"],
    ]


def test_without_replays_there_is_still_a_report():
    text = render_report("none", [], compare([], lambda _: None, {}, {}), [])
    assert "0 records" in text
    assert "Asked of torch `unknown`" in text


def test_without_replays_no_sentence_is_left_open():
    assert "Replays: ." not in render_report("none", [], compare([], lambda _: None, {}, {}), [])


def test_records_that_were_read_back_give_the_same_report(sweep, report):
    again = Sweep()
    again.made = [Replay({n: Record.from_text(r.text()) for n, r in one.records.items()}) for one in sweep.made]
    again.bench.machines = {name: parse(canonical(facts)) for name, facts in sweep.bench.machines.items()}
    assert again.text() == report


# Nothing in a record becomes markup.


HOSTILE = (
    "a|b",
    "||",
    "a\\|b\\",
    "`",
    "``` x",
    "a ` b `` c ``` d",
    "```\n# heading\n```",
    "\n\n## heading\n\n",
    "\r\n\r\n- item",
    "<script>alert(1)</script>",
    "</summary></details><b>x",
    "<!-- x",
    "<details>",
    "[x](javascript:alert(1))",
    "![i](http://x/y.png)",
    "[x]: http://x",
    "<http://x/y>",
    "**strong** _em_ ~~gone~~",
    "&lt;b&gt; &amp; &#60;",
    "\x1b[31mred\x00\x07\x7f",
    "\u202egnp.exe\u2066 \u200b\ufeff",
    "\u2028\u2029\x85\x0b",
    "tab\there",
    "lone \ud800",
    "$x$ $$y$$",
    "x" * 5000,
)
TOGETHER = tuple(" ".join(HOSTILE[at : at + 3]) for at in range(0, len(HOSTILE), 3))
OPENING = (
    "- item",
    "+ item",
    "1. item",
    "---",
    "===",
    "    code",
    "# heading",
    "> quote",
    "| a | b |\n|---|---|",
    "***",
)
"""What means something at the start of a line."""


def structure(text):
    """The kind of every token, without what it says."""
    tokens = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [(token.type, token.tag, [child.type for child in token.children or ()]) for token in tokens]


def assert_safe(text):
    assert all(char.isprintable() or char in "\n\t" for char in text)
    tokens = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    assert not {child.type for child in inline} & {"link_open", "image", "html_inline", "s_open", "em_open"}
    for token in tokens:
        if token.type == "html_block":
            assert re.fullmatch(r"<details><summary>[^<>]*</summary>|</details>", token.content.strip()), token.content


IMPORTED = ("role", "tensor role", "torch fact", "scenario", "case", "parameter")
"""What no run of ours writes so, but a bundle of somebody else's records may hold."""
OWN_LINES = ("version", "build")
"""Facts that are shown in a block of their own if they have lines, so the structure follows what they say."""


@pytest.mark.parametrize("place", sorted(set(PLACES) - set(IMPORTED)))
def test_text_of_a_record_changes_no_structure(report, place):
    """The same tokens in the same places, whatever a record says: so no cell, row, heading or link is added."""
    expected = structure(report)
    for text in (*TOGETHER, *OPENING):
        made = Sweep(**{place.replace(" ", "_"): text}).text()
        assert_safe(made)
        if place not in OWN_LINES:
            assert structure(made) == expected, text


@pytest.mark.parametrize("place", IMPORTED)
def test_text_of_an_imported_record_changes_no_structure_either(place):
    for text in (*TOGETHER, *OPENING):
        assert_safe(Sweep(**{place.replace(" ", "_"): text}).text())


def test_an_empty_text_changes_no_table(report):
    for place in ("message", "fact", "title", "reason", "detail", "parameter"):
        assert_safe(Sweep(**{place: ""}).text())


def test_a_report_is_safe(report):
    assert_safe(report)


def test_text_may_hold_any_letters(report):
    """Escaping is for what does not print, not for what is not English."""
    assert "Überlauf 溢出" in Sweep(message="Überlauf 溢出").text()


def test_a_case_without_a_gradient_has_not_all_bits_of_its_reference():
    """An input that gets no gradient is compared with nothing, and is no equality either."""
    made = Sweep()
    whole = made.comparison()
    named = [case for case in whole.cases if case.is_whole]
    assert named
    case = named[0]
    seen = case.first.replay.plain.observation
    bare = replace(
        case.first.replay.plain, observation=replace(seen, tensors=tuple(t for t in seen.tensors if t.role == "input"))
    )
    lacking = replace(case, judged=(replace(case.first, replay=Replay({"plain": bare})), *case.judged[1:]))
    assert not lacking.is_whole

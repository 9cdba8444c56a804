"""What a record may hold is bounded, whoever made it: refused before anything is added, and never made here."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import roots
import samples

from experiments.bundle import layout
from experiments.core import bounds
from experiments.core.canonical_json import RecordError, canonical, digest
from experiments.core.observation import Operator
from experiments.worker.instruments import operators
from store.__main__ import main as store
from store.archive import Archive

TOO_MUCH = {
    "tensor 'query' has 65 dimensions; at most 64": {"tensors": {"shape": (1,) * 65}},
    "tensor 'query' has more elements than": {"tensors": {"shape": (2**27, 2**27)}},
    "name of the tensor has 1001 characters; at most 1000": {"tensors": {"name": "q" * 1001}},
    "layout of the tensor has 1001 characters": {"tensors": {"layout": "q" * 1001}},
    "there are 1001 tensors; at most 1000": {"tensors": 1001},
    "there are 20002 operators; at most 20000": {"operators": 20002},
    "the name of an operator has 1001 characters": {"operators": Operator(0, 0, "o" * 1001, ())},
    "there are 257 arguments of operator 'o'; at most 256": {"operators": Operator(0, 0, "o", ((1,),) * 257)},
    "an argument of operator 'o' has 65 dimensions": {"operators": Operator(0, 0, "o", ((1,) * 65,))},
    "operator 'o' is in thread 0 below 1001 others; at most 1000": {"operators": Operator(0, 1001, "o", ())},
    "operator 'o' is in thread -1": {"operators": Operator(-1, 0, "o", ())},
    "there are 1001 observed values": {"observed": 1001},
    "the name of an observed value has 1001 characters": {"observed": {"name": "o" * 1001}},
    "phase of the phases of memory has 1001": {"memory": {"phase": "p" * 1001}},
    "before of the phases of memory has more than 40 digits": {"memory": {"before": 10**41}},
    "there are 1001 sources": {"sources": 1001},
    "duration of forward is nan; from 0": {"durations": {"forward": float("nan")}},
    "duration of forward is -1": {"durations": {"forward": -1.0}},
    "there are 1001 durations": {"durations": {str(number): 1.0 for number in range(1001)}},
    "message of the outcome has 131073 characters": {"outcome": {"message": "m" * 131073}},
    "type of the outcome has 1001 characters": {"outcome": {"type": "t" * 1001}},
    "there are 1001 base classes": {"outcome": {"bases": ("b",) * 1001}},
    "duration of the ending is inf": {"ending": {"duration": float("inf")}},
    "started_at is '2026-01-02'; it must be UTC": {"ending": {"started_at": "2026-01-02"}},
    "started_at is '2026-02-30T00:00:00Z'": {"ending": {"started_at": "2026-02-30T00:00:00Z"}},
    "started_at is '1899-01-02T00:00:00Z'": {"ending": {"started_at": "1899-01-02T00:00:00Z"}},
    "case of the question has 1001 characters": {"spec": {"case": "c" * 1001}},
    "pass of the question is 'odd'; known are plain, profiled": {"spec": {"pass_": "odd"}},
    "environment of the setting has 1001 characters": {"spec": {"environment": "e" * 1001}},
    "timeout of the setting is nan": {"spec": {"timeout": float("nan")}},
    "the label of the case has 2007 characters; at most 2000": {"spec": {"case": "c", "parameters": {"p": "v" * 2002}}},
    "a name among the parameters has 1001": {"spec": {"parameters": {"p" * 1001: ""}}},
    "the name of a variable has 1001": {"spec": {"variables": {"v" * 1001: ""}}},
    "there are 1001 expectations": {"spec": {"expectations": ({"kind": "agrees"},) * 1001}},
    "a text among the expectations has": {"spec": {"expectations": ({"kind": "e" * 131073},)}},
}


def changed(change):
    """A record of which one part is changed."""
    ((part, value),) = change.items()
    made = samples.record(kind="raised", message="no")
    seen = made.observation
    if part == "spec":
        return samples.record(kind="raised", message="no", **value)
    if part == "outcome":
        return replace(made, outcome=replace(made.outcome, **value))
    if part == "ending":
        return replace(made, ending=replace(made.ending, **value))
    if part == "durations":
        return replace(made, observation=replace(seen, durations=value))
    listed = seen.operators["forward"] if part == "operators" else getattr(seen, part)
    if isinstance(value, int):
        listed = tuple(replace(listed[0], name=f"{number}") for number in range(value))
    else:
        listed = (value if isinstance(value, Operator) else replace(listed[0], **value),)
    return replace(made, observation=replace(seen, **{part: {"forward": listed} if part == "operators" else listed}))


@pytest.mark.parametrize("says", TOO_MUCH)
def test_a_record_of_more_than_is_allowed_is_refused(says):
    text = changed(TOO_MUCH[says]).text()
    with pytest.raises(layout.PackError) as refused:
        layout.read_record(text)
    assert says in str(refused.value)


def test_what_the_samples_hold_is_allowed():
    bounds.refuse_excess(samples.record(kind="raised", message="no"))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ('{"a":"' + "x" * 2**18 + '"}', "characters; at most 262144"),
        (canonical({"a": "x" * 131073}), "fact 'a' has 131073 characters"),
        (canonical({"a" * 1001: 1}), "the name of a fact has 1001 characters"),
        (canonical({str(number): 1 for number in range(1001)}), "more than 1000 facts"),
        (json.dumps({"a": {"b\ud800": 1}, "a.b\\ud800": 2}), "two facts print alike"),
        (canonical({"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": 1}}}}}}}}}), "deeper than 8 levels"),
    ],
)
def test_facts_of_a_machine_are_bounded_and_can_be_told_apart(document, says):
    with pytest.raises(RecordError, match=says):
        bounds.refuse_excess_facts(document)


@pytest.mark.parametrize("document", ["nonsense", "[]", "[" * 99 + "]" * 99, canonical(samples.facts())])
def test_what_says_nothing_of_a_machine_is_no_excess(document):
    bounds.refuse_excess_facts(document)


# Where it is looked at.


def test_a_folder_of_more_than_is_allowed_is_refused_and_nothing_is_added(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = changed({"tensors": {"shape": (1,) * 65}})
    samples.folder(tmp_path / "large", made)
    sketch = replace(samples.record(), observation=None)
    seen = samples.record().observation
    short = replace(seen.tensors[0], sketch=digest(b"short"))
    samples.folder(tmp_path / "short", replace(sketch, observation=replace(seen, tensors=(short,))))
    (tmp_path / "short" / "blobs" / digest(b"short")).write_bytes(b"short")
    for name, says in (("large", "has 65 dimensions; at most 64"), ("short", "has 5 bytes and is called a sketch")):
        assert store(["add", str(tmp_path / name)]) == 2
        assert says in capsys.readouterr().err
    with Archive.open("sqlite:///outputs/archive.db", Path("outputs/blobs")) as archive:
        assert archive.cells() == []


# Where it is made.

CASES = """
@scenario.reference
def has_many_dimensions(weight):
    observe("deep", torch.zeros([1] * 64 + [2]))
    return weight.sum()


@scenario.reference
def observes_much(weight):
    for number in range(1001):
        observe(f"value {number}", number)
    return weight.sum()


@scenario.reference
def observes_a_long_name(weight):
    observe("n" * 1001, 1)
    return weight.sum()


@scenario.reference
def has_many_parts(weight):
    observe("parts", torch.nested.nested_tensor([torch.zeros(2)] * 2000))
    return weight.sum()


@scenario.reference
def runs_many_operators(weight):
    for _ in range(7000):
        weight = weight + 1
    return weight.sum()
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bounds")
    return roots.Lab.of(folder, {"a/cases": roots.HEAD + CASES})


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("has_many_dimensions", "64"),
        ("observes_much", "a case observes at most 1000 values"),
        ("observes_a_long_name", "names have at most 1000 characters"),
    ],
)
def test_what_a_worker_cannot_keep_is_said(lab, case, says):
    record = lab.ran("a/cases", case).record
    assert record.outcome.kind == "not_observed"
    assert says in record.outcome.detail
    assert layout.read_record(record.text()) == record


def test_the_sizes_of_many_parts_are_told_by_digest(lab):
    record = lab.ran("a/cases", "has_many_parts").record
    assert "2000 parts, SHA-256 of their sizes " in record.observation.tensors[-2].layout
    assert layout.read_record(record.text()) == record


def test_a_worker_cuts_a_long_list_of_operators_and_says_so(lab):
    record = lab.ran("a/cases", "runs_many_operators", pass_="profiled").record
    *listed, last = record.observation.operators["forward"]
    assert {len(listed), bounds.MOST_OPERATORS // 3} == {6666}
    assert re.fullmatch(r"\[cut here: [0-9]+ operators in all, SHA-256 [0-9a-f]{64}\]", last.name)
    assert layout.read_record(record.text()) == record


def test_lists_that_were_cut_are_equal_only_if_the_wholes_were():
    def listed(last):
        return {"forward": [Operator(0, 0, name, ()) for name in ["aten::add"] * bounds.MOST_OPERATORS + [last]]}

    assert operators.cut_lists(listed("a")) == operators.cut_lists(listed("a")) != operators.cut_lists(listed("b"))


def test_a_long_name_of_an_operator_is_cut_and_one_that_is_not_stays():
    first, second = operators.cut_lists({"forward": [Operator(0, 0, "k" * 1000, ()), Operator(0, 0, "k" * 1001, ())]})[
        "forward"
    ]
    assert first.name == "k" * 1000
    assert len(second.name) == 1000
    assert "1001 characters in all, SHA-256" in second.name

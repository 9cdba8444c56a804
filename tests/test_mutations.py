"""Each sentence rests on exactly the records that it cites: if one of them changes, it does, and with no other."""

from __future__ import annotations

import mutations
import pytest
from mutations import VALUES, removed

from experiments.core import tensor_diff
from reports.claims.registry import ADVICE, CLAIMS

EVERY = [*CLAIMS, *ADVICE]
TESTED = [one for one in EVERY if one.id != "B13"]
"""What no record can decide cites none."""

MUST = {
    **dict.fromkeys(("A1", "A2", "A3", "A4", "A5", "A10", "A11", "B5", "B6", "B8", "B9", "B15"), "ended otherwise"),
    **dict.fromkeys(("A6", "A7", "A-1", "A-2", "A-3", "B3", "B-7", "B-9"), "other tensors"),
    **dict.fromkeys(("B1", "B4", "B7", "B11", "B14", "B-5", "B-8"), "more memory"),
    **dict.fromkeys(("A12", "B10", "B-1", "B-2", "B-4", "B-6"), "other values"),
    "A8": "other operators",
}
"""What some record of each must be sensitive to, beside how it ended."""


@pytest.fixture(scope="module", autouse=True)
def _each_pair_of_tensors_is_compared_once():
    """Most of them are the same after each change, and comparing is what takes the time."""
    with pytest.MonkeyPatch.context() as patch:
        compared = {}
        compare = tensor_diff.difference

        def remembered(ours, theirs, fetch):
            if (ours, theirs) not in compared:
                compared[ours, theirs] = compare(ours, theirs, fetch)
            return compared[ours, theirs]

        patch.setattr(tensor_diff, "difference", remembered)
        yield


@pytest.fixture(scope="module")
def decided(published):
    whole = published.evidence()
    return {one.id: one.decide(whole) for one in EVERY}


@pytest.fixture(scope="module")
def own(published, decided):
    """For each claim the records of the scenarios that it cites."""
    made = {}

    def about(name):
        scenarios = frozenset(published.by_name[one].spec.question.scenario for one in decided[name].digests)
        if scenarios not in made:
            made[scenarios] = published.about(scenarios)
        return made[scenarios]

    return about


def said(ruling):
    return ruling.word, ruling.reason


def where(record):
    question = record.spec.question
    return f"{question.scenario} {question.label()} {question.pass_} #{record.spec.setting.repeat}"


def test_every_claim_and_all_advice_but_one_is_decided_by_published_records(decided):
    assert [one.id for one in EVERY if not decided[one.id].digests] == ["B13"]
    assert len({one.id for one in EVERY}) == len(EVERY)


@pytest.mark.parametrize("one", TESTED, ids=lambda one: one.id)
def test_a_sentence_changes_with_each_record_that_it_cites(one, decided, own):
    ruling, kept = decided[one.id], own(one.id)
    unseen = []
    for name in ruling.digests:
        record = kept.by_name[name]
        if said(one.decide(kept.evidence({name: None}))) == said(ruling):
            unseen.append(f"removed: {where(record)}")
        changed = (change(record) for change in VALUES.values())
        if all(said(one.decide(kept.evidence({name: new}))) == said(ruling) for new in changed if new is not None):
            unseen.append(f"changed: {where(record)}")
    assert unseen == []


@pytest.mark.parametrize("one", [one for one in TESTED if one.id in MUST], ids=lambda one: one.id)
def test_a_sentence_changes_with_what_it_is_about(one, decided, own):
    """Not only with how the case ended."""
    ruling, kept, change = decided[one.id], own(one.id), VALUES[MUST[one.id]]
    changed = {name: change(kept.by_name[name]) for name in ruling.digests}
    seen = {name: new for name, new in changed.items() if new is not None}
    assert any(said(one.decide(kept.evidence({name: new}))) != said(ruling) for name, new in seen.items())


@pytest.mark.parametrize("one", TESTED, ids=lambda one: one.id)
def test_a_sentence_does_not_change_with_a_record_of_its_scenarios_that_it_does_not_cite(one, decided, own):
    """All of them at once, in each way; if it does, one by one to name which."""
    ruling, kept = decided[one.id], own(one.id)
    spared = {name: record for name, record in kept.by_name.items() if name not in ruling.digests}
    for how, change in {**VALUES, "removed": removed}.items():
        changed = {name: new for name, record in spared.items() for new in [change(record)] if new or how == "removed"}
        if one.decide(kept.evidence(changed)) != ruling:
            guilty = [
                where(spared[name]) for name, new in changed.items() if one.decide(kept.evidence({name: new})) != ruling
            ]
            pytest.fail(f"{one.id} changes if {how}: {guilty}")


def test_no_sentence_changes_with_records_of_other_scenarios(published, decided, own):
    """All of them changed in every way at once, and all of them taken away."""
    otherwise = {name: _in_every_way(record) for name, record in published.by_name.items()}
    made = {}
    for one in TESTED:
        near = own(one.id)
        if id(near) not in made:
            far = {name: new for name, new in otherwise.items() if name not in near.by_name}
            made[id(near)] = near.evidence(), published.evidence(far)
        assert [one.decide(evidence) for evidence in made[id(near)]] == [decided[one.id]] * 2, one.id


def _in_every_way(record):
    for change in (
        mutations.other_values,
        mutations.other_tensors,
        mutations.more_memory,
        mutations.other_operators,
        mutations.ended_otherwise,
    ):
        record = change(record) or record
    return record

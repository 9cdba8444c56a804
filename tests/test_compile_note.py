"""The claims of the DFlash note: what each rests on, and that it is left open where that is missing or otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import samples

from experiments import catalogue
from experiments.record import Memory, Observed, Replay
from experiments.scenario import expectation_to_json, raises, refuses
from experiments.verdict import NOT_TESTED, REFUTED, SUPPORTED, SUPPORTED_IN_PART
from reports.claims import ADVICE, advise
from reports.compile_note import CLAIMS, REFUSED, Part, When
from reports.rulings import gather

WORDS = {
    "B1": SUPPORTED,
    "B2": REFUTED,
    "B3": REFUTED,
    "B4": SUPPORTED,
    "B5": REFUTED,
    "B6": REFUTED,
    "B7": SUPPORTED,
    "B8": SUPPORTED_IN_PART,
    "B9": SUPPORTED,
    "B10": SUPPORTED_IN_PART,
    "B11": SUPPORTED_IN_PART,
    "B12": SUPPORTED,
    "B13": NOT_TESTED,
    "B14": SUPPORTED,
    "B15": REFUTED,
}
"""What these rulings are when every case shows what its scenario says."""

OBSERVED = {
    "score tensor, bytes": 2**20,
    "rounds": 3,
    "rounds that failed": 2,
    "graphs": 4,
    "steps that ran compiled": 6,
    "bytes of a logits tensor": 524_288_000,
    "three and a quarter score tensors, GiB": 1040,
    "most keys whose scores fit 95 GB": 22649,
    "time at density 0.0625, of that at density 1": 0.07,
}
DECIDED = [claim for claim in CLAIMS if isinstance(claim.decide, When)]


def replay(part: Part, *, otherwise: bool = False, case: str = "") -> Replay:
    """A replay that `part` finds, as expected or not."""
    expected: list[Any] = []
    ended = samples.outcome()
    if part.scenario == REFUSED and part.cases == ("uncompiled",):
        expected = [refuses(bytes=343_597_383_680)]
        ended = samples.outcome("raised", "DefaultCPUAllocator: you tried to allocate 343597383680 bytes.")
    if otherwise:
        expected = [raises("ZeroDivisionError", "never")]
    asked = samples.spec(
        case or (part.cases or ("any",))[0],
        scenario=part.scenario,
        parameters={"keys": 81920, **dict(part.where)},
        expectations=tuple(expectation_to_json(one) for one in expected),
    )
    made = samples.record(asked=asked)
    seen = replace(
        made.observation,
        outcome=ended,
        observed=tuple(Observed(name, value, "evidence", None) for name, value in OBSERVED.items()),
        memory=tuple(Memory(phase, 0, 3 * 2**20, 2**20, None, None, None, None) for phase in ("forward", "backward")),
    )
    return Replay({"plain": replace(made, outcome=ended, observation=seen)})


def decided(claim, replays):
    return claim.decide(gather(replays, {}.get, {}))


def whole(claim) -> list[Replay]:
    return [replay(part, case=case) for part in claim.decide.parts for case in (part.cases or ("any",))]


def test_every_claim_of_the_note_is_there():
    assert [claim.id for claim in CLAIMS] == list(WORDS) == [f"B{number}" for number in range(1, 16)]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_claim_is_decided_by_its_cases(claim):
    made = whole(claim) if isinstance(claim.decide, When) else []
    found = decided(claim, made)
    assert found.word == WORDS[claim.id]
    assert len(found.digests) == len({one.plain.text() for one in made})
    assert "None" not in found.reason


@pytest.mark.parametrize("claim", DECIDED, ids=lambda claim: claim.id)
def test_a_claim_is_left_open_without_any_one_of_its_cases(claim):
    for missing in claim.decide.parts:
        made = [
            one for part in claim.decide.parts for one in [replay(part)] if not missing.found(gather([one], {}.get, {}))
        ]
        found = decided(claim, made)
        assert (found.word, found.digests) == (NOT_TESTED, ())
        assert missing.name in found.reason


@pytest.mark.parametrize("claim", DECIDED, ids=lambda claim: claim.id)
def test_a_claim_is_left_open_if_any_one_of_its_cases_came_out_otherwise(claim):
    for part in claim.decide.parts:
        found = decided(claim, [*whole(claim), replay(part, otherwise=True)])
        assert (found.word, found.digests) == (NOT_TESTED, ())
        assert "left open" in found.reason
        assert part.scenario in found.reason


def test_two_figures_of_the_note_are_set_beside_the_request():
    claim = next(one for one in CLAIMS if one.id == "B2")
    assert "343,597,383,680 bytes (320 GiB, 343.6 GB) with 81,920 keys" in decided(claim, whole(claim)).reason


def test_the_rate_of_the_race_is_said():
    claim = next(one for one in CLAIMS if one.id == "B8")
    assert "2 of 3 rounds failed" in decided(claim, whole(claim)).reason


# What claims and advice name must be there.


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    found = catalogue.cached(Path(catalogue.ROOT), tmp_path_factory.mktemp("cache"))
    return {entry.name: entry for entry in found.entries}


def variants(entry, cases):
    return [
        {**variant["parameters"], "device": device}
        for case in entry.cases
        if case["name"] in cases or not cases
        for variant in case["variants"]
        for device in case["on"]
    ]


@pytest.mark.parametrize("claim", DECIDED, ids=lambda claim: claim.id)
def test_every_case_that_a_claim_names_is_in_the_catalogue(claim, listed):
    for part in claim.decide.parts:
        entry = listed[part.scenario]
        assert entry.error is None
        assert {*part.cases} <= {case["name"] for case in entry.cases}
        there = variants(entry, part.cases)
        assert any(all(one.get(name) == value for name, value in part.where) for one in there), part.name


@pytest.mark.parametrize("advice", ADVICE, ids=lambda advice: advice.text[:40])
def test_advice_is_a_repair_of_the_catalogue(advice, listed):
    roles = {(case["name"], case["role"]) for case in listed[advice.scenario].cases}
    assert {(case, "repair") for case in advice.cases} <= roles


def test_advice_stands_only_if_its_repairs_are_as_expected():
    one = ADVICE[-1]
    part = Part(one.scenario, one.cases)
    sound = [replay(part, case=case) for case in one.cases]
    sound = [_as(one_, "repair") for one_ in sound]
    words = {}
    for name, made in (
        ("sound", sound),
        ("none", []),
        ("failing", [*sound, _as(replay(part, otherwise=True), "repair")]),
    ):
        words[name] = next(ruling.word for advice, ruling in advise(gather(made, {}.get, {})) if advice is one)
    assert words == {"sound": SUPPORTED, "none": NOT_TESTED, "failing": SUPPORTED_IN_PART}


def test_a_broken_variant_does_not_speak_against_the_repair_of_the_same_name():
    one = ADVICE[-1]
    part = Part(one.scenario, one.cases)
    made = [_as(replay(part), "repair"), _as(replay(part, otherwise=True), "broken")]
    found = next(ruling for advice, ruling in advise(gather(made, {}.get, {})) if advice is one)
    assert found.word == SUPPORTED


def _as(made: Replay, role: str) -> Replay:
    plain = made.plain
    spec = replace(plain.spec, mark=replace(plain.spec.mark, role=role))
    return Replay({"plain": replace(plain, spec=spec)})

"""Scenarios that were made to fool a verdict: each case gets the one that a reader of its file would give.

They are swept twice, as their user would, so that evidence that changes from run to run shows as well.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from commands import driven
from test_sweep import project

from experiments.core.agreement import rank
from experiments.core.replay import Replay, replays
from experiments.core.verdict import AS_EXPECTED, CANNOT_SAY, NOT_AS_EXPECTED, contexts, is_ruler, judge
from store.archive import Archive

FOOLED = Path(__file__).parent / "fooled"

VERDICTS = {
    "noise_of_another_dtype": {
        "other_noise_in_backward": (AS_EXPECTED, "largest difference"),
        "wrong_and_called_right": (CANNOT_SAY, "the float64 reference is another calculation"),
        "right": (AS_EXPECTED, "same bits"),
    },
    "overflows_in_half_precision": {
        "something_else[dtype=float16]": (CANNOT_SAY, "one is finite where the other is not"),
        "not_a_number[dtype=float16]": (CANNOT_SAY, "one is finite where the other is not"),
    },
    "one_element_of_many": {
        "seen_to_differ[off=1.5]": (AS_EXPECTED, "largest difference 1.5 in gradient data"),
        "seen_to_differ[off=0.0001]": (AS_EXPECTED, "gradient data"),
        "called_right[off=1.5]": (NOT_AS_EXPECTED, "gradient data is off by 1.5 from float64"),
        "called_right[off=0.0001]": (NOT_AS_EXPECTED, "gradient data is off by 0.0001"),
        "right": (AS_EXPECTED, "within rounding"),
    },
    "unseeded_reference": {
        "drawn_again": (CANNOT_SAY, "the reference differs from itself"),
        "drawn_again_and_called_right": (CANNOT_SAY, "the reference differs from itself"),
    },
    "unseeded_reference_run_once": {"drawn_again": (CANNOT_SAY, "the reference differs from itself")},
    "kinds_of_tensors": {
        "jagged_otherwise": (NOT_AS_EXPECTED, "output seen is of shape [10], jagged: 3x2, 2x2"),
        "observes_an_object": (CANNOT_SAY, "not observed: observed value 'seen' cannot be kept"),
        "observes_below_a_transform": (CANNOT_SAY, "not observed: "),
    },
    "accidents_in_messages": {
        "names_an_object": (AS_EXPECTED, "raised TypeError"),
        "opens_a_temporary_file": (AS_EXPECTED, "raised FileNotFoundError"),
        "names_a_port": (AS_EXPECTED, "raised RuntimeError"),
        "observes_the_message": (AS_EXPECTED, "raised RuntimeError"),
    },
    "a_ruler_that_nobody_asked_for": {
        "doubled": (AS_EXPECTED, "largest difference"),
        "checkpointed": (AS_EXPECTED, "same bits"),
    },
    "a_ruler_that_cannot_be": {
        "doubled": (AS_EXPECTED, "largest difference"),
        "checkpointed": (CANNOT_SAY, "the float64 reference has not finished"),
    },
    "complex_numbers": {
        "in_another_order": (AS_EXPECTED, ""),
        "conjugated": (AS_EXPECTED, "largest difference"),
        "off_in_the_imaginary_part": (NOT_AS_EXPECTED, "from float64"),
    },
    "other_numbers_in_each_run": {
        "varying": (AS_EXPECTED, "failed in 0 of 3 repeats; the 3 that finished show 3 different results"),
        "varying_and_said_to_fail": (NOT_AS_EXPECTED, "failed in 0 of 3 repeats"),
        "steady_and_said_to_vary": (NOT_AS_EXPECTED, "the 3 that finished show 1 different result"),
    },
}
"""Word, and words of the reason, by scenario and case."""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The archive of two sweeps of all these files, and what each said."""
    folder = project(tmp_path_factory.mktemp("fooled"))
    scenarios = folder / "experiments" / "scenarios" / "tests"
    shutil.copytree(FOOLED, scenarios, ignore=shutil.ignore_patterns("__pycache__"))
    asked = ["tracking=none", "isolation=forked", "report=false"]
    said = [
        driven(folder, *asked, *more)
        for more in ([], ["passes=[plain]"])  # the second run is to repeat the first
    ]
    with Archive.open(f"sqlite:///{folder}/outputs/archive.db", folder / "outputs" / "blobs", create=False) as archive:
        yield archive, said


@pytest.fixture(scope="module")
def judged(swept):
    archive, _ = swept
    made = replays(archive.records(sweep=archive.sweeps()[0].id))
    return [(replay, judge(replay, context)) for replay, context in zip(made, contexts(made, archive.fetch))]


CASES = [(scenario, case, *wanted) for scenario, cases in VERDICTS.items() for case, wanted in cases.items()]


@pytest.mark.parametrize(("scenario", "case", "word", "why"), CASES, ids=[f"{one[0]}-{one[1]}" for one in CASES])
def test_a_case_gets_the_verdict_that_its_reader_would_give(judged, scenario, case, word, why):
    found = [
        verdict
        for replay, verdict in judged
        if (replay.spec.question.scenario, replay.spec.question.label()) == (f"tests/{scenario}", case)
    ]
    assert found, "it was not run"
    for verdict in found:
        assert (verdict.word, why in "; ".join(verdict.reasons)) == (word, True), verdict


def test_every_file_has_its_verdicts():
    assert {path.stem for path in FOOLED.glob("*.py")} == set(VERDICTS)


def test_tensors_of_every_kind_agree_with_themselves(judged):
    kinds = {
        replay.spec.question.parameters["kind"]: verdict
        for replay, verdict in judged
        if replay.spec.question.case == "observed_again"
    }
    assert len(kinds) == len(
        re.findall(r"^    \"[\w ]+\": lambda", (FOOLED / "kinds_of_tensors.py").read_text(), re.MULTILINE)
    )
    assert {kind: verdict.word for kind, verdict in kinds.items()} == dict.fromkeys(kinds, AS_EXPECTED)


def test_a_ruler_runs_only_where_a_case_asks_for_one(judged):
    ruled = {replay.spec.question.scenario for replay, _ in judged if is_ruler(replay)}
    assert "tests/a_ruler_that_nobody_asked_for" not in ruled
    assert "tests/a_ruler_that_cannot_be" in ruled
    assert [v.word for r, v in judged if is_ruler(r) and "cannot_be" in r.spec.question.scenario] == [CANNOT_SAY]


def test_evidence_repeats_unless_it_is_said_to_vary(swept):
    archive, _ = swept
    first, second = (replays(archive.records(sweep=sweep.id)) for sweep in archive.sweeps()[:2])
    others = {replay.digest(): replay for replay in second}
    ranked = {
        (replay.spec.question.scenario, replay.spec.question.label()): rank(
            Replay({"plain": replay.plain}), Replay({"plain": others[replay.digest()].plain}), archive.fetch
        )
        for replay in first
    }
    odd = {key: agreement for key, agreement in ranked.items() if agreement.rank != 1}
    assert {key[0] for key in odd} <= {
        "tests/unseeded_reference",  # drawn anew each time
        "tests/unseeded_reference_run_once",
        "tests/other_numbers_in_each_run",
        "tests/kinds_of_tensors",  # what was not observed cannot be compared
        "tests/noise_of_another_dtype",
    }, odd
    assert {odd[key].rank for key in odd if key[0] == "tests/other_numbers_in_each_run"} == {6}


def test_what_cannot_be_said_stands_on_the_console(swept):
    _, said = swept
    for one in said:
        assert one.returncode == 1, one.stderr
        assert "cannot say (1 replay): tests/overflows_in_half_precision something_else[dtype=float16]" in one.stdout

"""`prove=` as its user runs it: a counter-replay is one sweep of control and flip, and says what it shows."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import test_plan
from test_sweep import project, rows, run

from experiments.planning.config import ConfigError
from experiments.planning.plan import join_plans, plan

SCENARIO = '''"""One case depends on the threads, one on what no record tells."""

import os

import torch

from experiments.scenario import Scenario, agrees

scenario = Scenario(source="a test")


@scenario.inputs
def inputs(seed):
    return {"scores": (torch.arange(16, dtype=torch.float32) / 16).requires_grad_()}


@scenario.reference
def plainly(scores):
    return scores.square().sum()


@scenario.repair(agrees(bitwise=True))
def by_threads(scores):
    return scores.square().sum() * torch.get_num_threads()


@scenario.repair(agrees(bitwise=True))
def by_what_nobody_records(scores):
    return scores.square().sum() * float(os.environ.get("TWOFOLD_TEST_SCALE", "1"))
'''
QUICK = ("tracking=none", "isolation=forked", "passes=[plain]")
SCALE = "+environment.variables.TWOFOLD_TEST_SCALE='3'"


@dataclass(frozen=True)
class Proven:
    """Two other settings, then ours, then a counter-replay for both."""

    root: Path
    ours: CompletedProcess[str]
    before: str
    """The report before anything was flipped."""
    edited: CompletedProcess[str]
    """What was said while the scenario was another."""
    planned: CompletedProcess[str]
    ended: CompletedProcess[str]


@pytest.fixture(scope="module")
def proven(tmp_path_factory):
    root = project(tmp_path_factory.mktemp("proven"), depends=SCENARIO)
    for other in (["environment.name=two"], ["environment.name=both", SCALE]):
        ended = run(root, *QUICK, "report=false", "environment.threads=2", *other)
        assert ended.returncode == 1, ended.stderr
    ours = run(root, *QUICK)
    before = report(root, ours)
    path = root / "experiments" / "scenarios" / "tests" / "depends.py"
    path.write_text(SCENARIO + "\n")
    edited = run(root, *QUICK, "prove=all", "dry_run=true")
    path.write_text(SCENARIO)
    planned = run(root, *QUICK, "prove=all", "dry_run=true")
    return Proven(root, ours, before, edited, planned, run(root, *QUICK, "prove=all"))


def report(root, ended):
    path = next(line.removeprefix("report: ") for line in ended.stdout.splitlines() if line.startswith("report: "))
    return (root / path).read_text()


def test_before_it_nothing_is_proven_and_the_console_names_no_cause(proven):
    assert "**No cause is proven.**" in proven.before
    assert proven.before.count("differs in this alone; not flipped yet") == 2
    assert "Proven causes" not in proven.before
    assert "proven" not in proven.ours.stdout
    assert "beside setting two (same host identity as here): 2 identical, 1 different values" in proven.ours.stdout


def test_control_and_flip_are_one_sweep_of_every_case_that_differs_twice_each(proven):
    assert "in all: 2 cases, 8 replays, 8 processes" in proven.planned.stdout
    assert "threads (2): 2 cases differ, each run 2 times as here and 2 times flipped" in proven.ended.stderr
    assert "8 processes" in proven.ended.stderr
    database = proven.root / "outputs" / "archive.db"
    sweeps = rows(database, "select sweep, count(*) from sweep_records group by sweep")
    assert sorted(count for _, count in sweeps) == [3, 3, 3, 8]
    (proof,) = [name for name, count in sweeps if count == 8]
    with sqlite3.connect(database) as connection:
        query = (
            "select environment, count(*) from cells join sweep_records on record = digest where sweep = ? group by 1"
        )
        assert dict(connection.execute(query, [proof])) == {"control-threads": 4, "flip-threads": 4}
    connection.close()


def test_what_followed_in_every_case_is_proven_and_what_did_not_is_not(proven):
    ended = proven.ended
    assert ended.returncode == 0, ended.stderr
    assert "  threads: proven (1 here, 2 there; 1 of 1 cases followed)" in ended.stdout
    assert "  threads: proven in part (1 here, 2 there; 1 of 2 cases followed)" in ended.stdout
    made = report(proven.root, ended)
    assert "**Proven causes: threads (1 setting).**" in made
    assert "| `flip-" not in made
    assert "| `control-" not in made


def test_what_was_decided_is_not_run_again(proven):
    database = proven.root / "outputs" / "archive.db"
    before = rows(database, "select count(*) from sweeps")
    again = run(proven.root, *QUICK, "prove=two")
    assert (again.returncode, rows(database, "select count(*) from sweeps")) == (0, before)
    assert "  threads: proven (1 here, 2 there; 1 of 1 cases followed)" in again.stdout


def test_a_setting_that_nobody_knows_is_refused_with_those_that_are_known(proven):
    ended = run(proven.root, *QUICK, "prove=nobody")
    assert ended.returncode == 2
    assert "prove=nobody: there is no such setting; known are both, two, all" in ended.stderr


def test_a_file_that_has_changed_since_is_not_taken_for_what_was_run(proven):
    assert proven.edited.returncode == 2
    assert "the scenario files have changed since" in proven.edited.stderr


# The plan.


def both():
    control, flip = (
        plan(test_plan.config(environment__name=name), test_plan.listed()) for name in ("control-x", "flip-x")
    )
    return control, flip


def test_a_joined_plan_holds_the_cases_of_each_as_often_as_it_is_asked_to():
    control, flip = both()
    cases = {control.specs[0].question.case_digest(), control.specs[-1].question.case_digest()}
    made = join_plans([control, flip], cases, 2)
    assert {spec.question.case_digest() for spec in made.specs} == cases
    assert len({spec.digest() for spec in made.specs}) == len(made.specs)
    counted = Counter((spec.setting.environment, spec.setting.repeat) for spec in made.specs)
    assert counted.keys() == {("control-x", 0), ("control-x", 1), ("flip-x", 0), ("flip-x", 1)}
    assert len(set(counted.values())) == 1
    assert {spec.setting.sources for spec in made.specs} == {"original"}, "no repeat is from a copy: that is a factor"


def test_what_a_case_lacks_is_known_of_its_repeats_too():
    control = plan(test_plan.config(devices=[test_plan.Device.cuda]), test_plan.listed())
    assert control.missing, "there is no CUDA device in the catalogue of the tests"
    made = join_plans([control], {spec.question.case_digest() for spec in control.specs}, 3)
    assert len(made.missing) == 3 * sum(not spec.setting.repeat for spec in control.specs)
    assert made.missing.keys() <= {spec.digest() for spec in made.specs}


def test_a_joined_plan_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="changed since"):
        join_plans(both(), {"0" * 64}, 2)

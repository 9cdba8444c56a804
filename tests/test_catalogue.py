"""Every scenario file is listed, and one that is broken stops nobody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import roots
from roots import HEAD, PROJECT

from experiments.core.canonical_json import digest
from experiments.planning import catalogue
from experiments.planning.catalogue import CatalogueError
from experiments.runner import supervisor

GOOD = (
    HEAD
    + """
from experiments.scenario import agrees


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.control(
    agrees(bitwise=True), why="a reason", gradient=False, warm_up=True, profiled=False, measured="at length"
)
def squares_warm(weight):
    return weight.square().sum()


@scenario.repair(agrees(bitwise=True), dtypes=("float32", "float16"), over={"size": (1, 2)}, needs=("cuda",))
def squares_again(weight, size):
    \"\"\"What it shows.\"\"\"
    return weight.square().sum()
"""
)

SCENARIOS = {
    "one/good": GOOD,
    "one/deeper/good": GOOD,
    "one/_private": "raise SystemError",
    "two/raises": HEAD + "raise LookupError('not today')\n",
    "two/exits": "import os\nos._exit(7)\n",
    "two/exits_politely": "raise SystemExit(7)\n",
    "two/crashes": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    "two/has_no_scenario": "scenario = 1\n",
    "two/has_no_inputs": "from experiments.scenario import Scenario\nscenario = Scenario(source='a test')\n",
    "two/is_no_python": "def (",
    "two/prints": "print('{' * 100000)\n" + GOOD,
    "two/cannot_be_written": GOOD.replace("(1, 2)", "(object(),)"),
    "two/is_not_utf_8": f"# -*- coding: latin-1 -*-\n# caf\xe9\n{GOOD}".encode("latin-1"),
    "two/raises_unprintable": "class E(Exception):\n    def __str__(self):\n        return 1 / 0\nraise E\n",
}

BROKEN = {
    "two/raises": "LookupError: not today",
    "two/exits": "ended by exit 7 on import",
    "two/exits_politely": "SystemExit: 7",
    "two/crashes": "ended by SIGSEGV on import",
    "two/has_no_scenario": "ScenarioError: the file has no `scenario = Scenario(...)`",
    "two/has_no_inputs": "ScenarioError: the scenario has no @scenario.inputs",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return roots.whole(tmp_path_factory.mktemp("catalogue") / "root", SCENARIOS)


@pytest.fixture(scope="module")
def listed(root):
    return catalogue.read(root=root)


def entry(listed, name):
    (found,) = [one for one in listed.entries if one.name == name]
    return found


def test_a_file_is_found_without_being_registered(listed):
    assert [one.name for one in listed.entries if one.error is None] == [
        "one/deeper/good",
        "one/good",
        "two/prints",
    ]


def test_a_private_file_is_none(listed):
    assert "one/_private" not in [one.name for one in listed.entries]


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_file_is_listed_with_its_error(listed, name):
    found = entry(listed, name)
    assert (found.error, found.cases) == (BROKEN[name], ())
    assert found.source_digest == digest(SCENARIOS[name])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("two/is_no_python", "SyntaxError"),
        ("two/is_not_utf_8", "utf-8"),
        ("two/cannot_be_written", "object has no JSON form"),
        ("two/raises_unprintable", "E"),
    ],
)
def test_the_error_of_a_broken_file_says_what_is_wrong(listed, name, said):
    """An exit code would not help whoever wrote the file."""
    assert said in entry(listed, name).error
    assert "exit" not in entry(listed, name).error


def test_an_entry_says_everything_about_its_cases(listed):
    found = entry(listed, "one/good")
    assert (found.title, found.source, found.threads, found.suites) == ("Made for a test.", "a test", 1, ("full",))
    reference, control, repair = found.cases
    assert (reference["name"], reference["role"]) == ("squares", "reference")
    assert repair["text"] == "What it shows."
    assert repair["needs"] == ["cuda"]
    options = ("gradient", "warm_up", "profiled", "measured")
    assert [[case[name] for name in options] for case in (reference, control)] == [
        [True, False, True, ""],
        [False, True, False, "at length"],
    ]
    assert set(repair["takes"]) == {"size", "weight"}
    assert len(repair["variants"]) == 4
    assert catalogue.labels(repair)[:2] == [
        "squares_again[size=1]",
        "squares_again[dtype=float16,size=1]",
    ]


def test_the_machine_comes_with_the_listing(listed):
    assert listed.machine["torch"]["version"]
    assert len(listed.machine_identity) == 64


def test_patterns_choose_in_the_catalogue_s_order(listed):
    chosen = listed.select(["two/raises", "one/*", "one/good"])
    assert [one.name for one in chosen] == ["one/deeper/good", "one/good", "two/raises"]


@pytest.mark.parametrize("name", ["one/goood", "one/god", "two/rises"])
def test_a_misspelt_name_is_refused_with_the_near_one(listed, name):
    near = {"one/goood": "one/good", "one/god": "one/good", "two/rises": "two/raises"}[name]
    with pytest.raises(CatalogueError, match=f"no scenario matches '{name}'; did you mean '{near}'"):
        listed.select(["one/*", name])


def test_a_pattern_near_nothing_names_the_listing(listed):
    with pytest.raises(CatalogueError, match=r"`python -m experiments.planning.catalogue` lists all"):
        listed.select(["zzzzzzzzz"])


HANG = """
import sys
from pathlib import Path
from experiments.worker import describe
describe.LONGEST_IMPORT = 1.0
describe.write_catalogue(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_file_that_hangs_is_listed_as_broken(tmp_path):
    """Also when what it started still holds the pipe; the limit is shortened here, nothing else."""
    hangs = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(5)\n    os._exit(0)\ntime.sleep(60)\n"
    made = roots.root(tmp_path / "root", {"a/hangs": hangs, "a/good": GOOD})
    target = tmp_path / "catalogue.json"
    subprocess.run([sys.executable, "-c", HANG, str(target), str(made)], cwd=made, check=True, timeout=60)
    errors = {one["name"]: one["error"] for one in json.loads(target.read_text())["scenarios"]}
    assert errors == {"a/good": None, "a/hangs": "still importing after 1 seconds"}


def test_the_cache_follows_a_changed_file(tmp_path, monkeypatch):
    made = roots.root(tmp_path / "root", {"a/good": GOOD})
    asked = []
    describe = supervisor.describe

    def counted(*arguments):
        asked.append(arguments)
        return describe(*arguments)

    monkeypatch.setattr(supervisor, "describe", counted)
    first = catalogue.read_cached(made, tmp_path / "cache")
    assert catalogue.read_cached(made, tmp_path / "cache") == first
    assert len(asked) == 1
    (made / "experiments/scenarios/a/good.py").write_text(GOOD.replace("Made for", "Changed in"))
    assert entry(catalogue.read_cached(made, tmp_path / "cache"), "a/good").title == "Changed in a test."
    assert len(asked) == 2


def test_a_damaged_cache_is_made_anew(tmp_path):
    made = roots.root(tmp_path / "root", {"a/good": GOOD})
    cache = tmp_path / "cache"
    first = catalogue.read_cached(made, cache)
    (kept,) = cache.glob("*.json")
    kept.write_text(kept.read_text()[:-20])
    assert catalogue.read_cached(made, cache).entries == first.entries


# The command.


def command(root, *arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "experiments.planning.catalogue", *arguments],
        cwd=root,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_listing_is_json_when_asked(root):
    ended = command(root, "one/*", "--json")
    assert ended.returncode == 0, ended.stderr
    listed = json.loads(ended.stdout)
    assert [one["name"] for one in listed] == ["one/deeper/good", "one/good"]
    assert listed[0]["cases"][2]["expectations"] == [{"bitwise": True, "kind": "agrees"}]


def test_the_listing_shows_broken_files_and_where_a_case_runs(root):
    ended = command(root)
    assert ended.returncode == 0, ended.stderr
    assert "two/raises\n  broken: LookupError: not today" in ended.stdout
    assert "    repair    squares_again[size=1]  (cpu/cuda, needs cuda)" in ended.stdout
    assert ended.stderr == ""


def test_a_misspelt_name_is_refused_by_the_command(root):
    ended = command(root, "one/goood")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "did you mean 'one/good'?" in ended.stderr


def test_the_project_s_own_scenarios_import(tmp_path):
    listed = catalogue.read_cached(PROJECT, tmp_path)
    assert [one.name for one in listed.entries if one.error] == []
    assert {one.name.split("/")[0] for one in listed.entries} >= {"attention", "checkpoint"}
